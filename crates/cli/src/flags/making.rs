//! As typed: making volumes. Flags are those of mkfs.btrfs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::ImportHow;

#[expect(clippy::struct_excessive_bools, reason = "flags, as typed")]
#[derive(Debug, Args)]
pub(crate) struct MkfsArgs {
    /// Device or image: PATH[?offset=N]
    #[arg(value_name = "DEVICE", required_unless_present = "features")]
    pub(crate) devices: Vec<OsString>,
    /// Go ahead although something is there
    #[arg(short, long)]
    pub(crate) force: bool,
    /// The volume's name, at most 255 bytes
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub(crate) label: Option<OsString>,
    /// The volume's id [default: a new one]
    #[arg(short = 'U', long, value_name = "UUID")]
    pub(crate) uuid: Option<String>,
    /// Bytes of a tree block: 4K to 64K [default: 16K, mixed 4K]
    #[arg(short, long, value_name = "BYTES")]
    pub(crate) nodesize: Option<String>,
    /// crc32c, xxhash, sha256 or blake2
    #[arg(long, alias = "checksum", value_name = "ALGORITHM", default_value = "crc32c")]
    pub(crate) csum: String,
    /// How data is kept: single or dup [default: single]
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) data: Option<String>,
    /// How metadata is kept: single or dup [default: dup, mixed single]
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) metadata: Option<String>,
    /// Data and metadata in the same groups, for small volumes
    #[arg(short = 'M', long)]
    pub(crate) mixed: bool,
    /// Features on, or off with ^ in front, joined with commas; list-all shows them
    #[arg(short = 'O', long, value_name = "FEATURE,...")]
    pub(crate) features: Vec<String>,
    /// Bytes of the volume; an image file is made or extended [default: all there is]
    #[arg(short = 'b', long, alias = "byte-count", value_name = "BYTES")]
    pub(crate) size: Option<String>,
    /// Do not tell a block device that what was there is of no value
    #[arg(short = 'K', long)]
    pub(crate) nodiscard: bool,
    /// Fill the volume with what is in a directory; an image file without --size is made as large
    /// as it takes, and some more
    #[arg(short, long, value_name = "DIR")]
    pub(crate) rootdir: Option<PathBuf>,
    /// Make the volume, and its image file, end where what is used ends
    #[arg(long, requires = "rootdir")]
    pub(crate) shrink: bool,
    #[command(flatten)]
    pub(crate) how: ImportHow,
}
