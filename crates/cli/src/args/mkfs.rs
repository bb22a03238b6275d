//! Arguments of `mkfs`. The options are those of mkfs.btrfs(8).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::ImportOptions;

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct MkfsArgs {
    /// Block device or image file: PATH[?offset=N|?partition=N]
    #[arg(value_name = "DEVICE", required_unless_present = "features")]
    pub(crate) devices: Vec<OsString>,
    /// Overwrite an existing filesystem, swap space or partition table
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Label, at most 255 bytes
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub(crate) label: Option<OsString>,
    /// UUID of the volume [default: random]
    #[arg(short = 'U', long, value_name = "UUID")]
    pub(crate) uuid: Option<String>,
    /// Size of a tree block: 4K to 64K [default: 16K, with --mixed 4K]
    #[arg(short, long, value_name = "BYTES")]
    pub(crate) nodesize: Option<String>,
    /// Checksum algorithm: crc32c, xxhash, sha256 or blake2
    #[arg(long, alias = "checksum", value_name = "ALGORITHM", default_value = "crc32c")]
    pub(crate) csum: String,
    /// Profile of data: single or dup [default: single]
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) data: Option<String>,
    /// Profile of metadata: single or dup [default: dup, with --mixed single]
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) metadata: Option<String>,
    /// Mix data and metadata in the same block groups, for small volumes
    #[arg(short = 'M', long)]
    pub(crate) mixed: bool,
    /// Features to enable, or with ^ to disable, separated by commas; list-all lists them
    #[arg(short = 'O', long, value_name = "FEATURE,...")]
    pub(crate) features: Vec<String>,
    /// Size of the volume; an image file is created, with mode 600, or extended [default: the whole
    /// device]
    #[arg(short = 'b', long, alias = "byte-count", value_name = "BYTES")]
    pub(crate) size: Option<String>,
    /// Do not discard the previous contents of a block device (TRIM)
    #[arg(short = 'K', long)]
    pub(crate) nodiscard: bool,
    /// Copy the contents of a directory into the volume; without --size, an image file is made
    /// large enough, with some free space
    #[arg(short, long, value_name = "DIR")]
    pub(crate) rootdir: Option<PathBuf>,
    /// Shrink the volume to the minimum size, and its image file, if nothing is behind the volume
    #[arg(long, requires = "rootdir")]
    pub(crate) shrink: bool,
    #[command(flatten)]
    pub(crate) import_options: ImportOptions,
}
