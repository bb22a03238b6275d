//! Arguments of `verity`.

use std::ffi::OsString;
use std::path::PathBuf;

use butternut::VerityHash;
use clap::{Args, Subcommand, ValueEnum};

const ENABLE_HELP: &str = "\
The first form seals files of a volume that is not mounted, and the volume must not be open in
another process. The second form seals files of a mounted volume, of Butternut or of the kernel's
btrfs; a first argument that is a file without a volume selects it.

A sealed file can never be written again: opening it for writing fails with EPERM, and only its
name, owner, mode, times and attributes change. A tree of hashes over its data is stored beside it,
and every read is verified: data that does not agree is never returned, the read fails with EIO.
The digest that `verity measure` prints is that of fsverity(1), and stands for the whole contents.

A file must not be open for writing, or the command fails with ETXTBSY. A command that is
interrupted, or a crash, leaves the file as it was. With --signature, the bytes are stored and not
verified; a kernel that has fs-verity signatures built in opens the file only if they are valid.

The kernel needs CONFIG_FS_VERITY to open a sealed file. A stream of `send` has the data of the file
and not its seal.

A clone of a sealed file (`cp --reflink`), and a copy by copy_file_range(2) that shares its extents,
is a file that is not sealed, and nothing verifies data that is shared while it is made, as in the
kernel. Data that was damaged before reads without an error there, unless it has checksums. To copy
verified data, read it: `cp --reflink=never`. Deduplication compares what it reads, so it shares
only data that was verified.";

const MEASURE_HELP: &str = "\
Each line is HASH:DIGEST PATH, as fsverity(1) prints it. A file that is not sealed is an error.";

const METADATA_HELP: &str = "\
The bytes are written to stdout. The second form is for mounts of Butternut; the kernel's btrfs has
no call for it.";

#[derive(Debug, Subcommand)]
pub(crate) enum VerityCommand {
    /// Seal files, so that their contents can never change
    #[command(after_help = ENABLE_HELP)]
    Enable(VerityEnableArgs),
    /// Print the digests of sealed files
    #[command(after_help = MEASURE_HELP)]
    Measure(VerityMeasureArgs),
    /// Write the tree of hashes, the descriptor or the signature of a sealed file to stdout
    #[command(after_help = METADATA_HELP)]
    Metadata(VerityMetadataArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HashName {
    Sha256,
    Sha512,
}

impl HashName {
    pub(crate) fn hash(self) -> VerityHash {
        match self {
            Self::Sha256 => VerityHash::Sha256,
            Self::Sha512 => VerityHash::Sha512,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MetadataName {
    /// The tree of hashes, root first
    #[value(alias = "merkle")]
    MerkleTree,
    /// The descriptor, whose hash is the digest
    Descriptor,
    /// The signature
    Signature,
}

#[derive(Debug, Args)]
pub(crate) struct VerityEnableArgs {
    /// Hash function
    #[arg(long, value_name = "HASH", default_value = "sha256")]
    pub(crate) hash_alg: HashName,
    /// Size of a block that is hashed: 1024, 2048 or 4096 bytes
    #[arg(long, value_name = "N", default_value = "4096")]
    pub(crate) block_size: String,
    /// Salt, at most 32 bytes in hexadecimal
    #[arg(long, value_name = "HEX")]
    pub(crate) salt: Option<String>,
    /// File with a signature to store, at most 16128 bytes
    #[arg(long, value_name = "FILE")]
    pub(crate) signature: Option<PathBuf>,
    /// Volume that is not mounted, and paths in it; or paths in mounted volumes
    #[arg(required = true, value_name = "VOLUME PATH... | PATH")]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct VerityMeasureArgs {
    /// Volume that is not mounted, and paths in it; or paths in mounted volumes
    #[arg(required = true, value_name = "VOLUME PATH... | PATH")]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct VerityMetadataArgs {
    /// What to write
    #[arg(long = "type", value_name = "TYPE", default_value = "merkle-tree")]
    pub(crate) kind: MetadataName,
    /// Volume that is not mounted, and a path in it; or a path in a mounted volume
    #[arg(required = true, num_args = 1..=2, value_name = "VOLUME PATH | PATH")]
    pub(crate) paths: Vec<OsString>,
}
