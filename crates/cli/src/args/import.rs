//! Arguments of `import`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::VolumeArgs;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// File or directory to copy; a path ending in /. copies only its contents and attributes. With
    /// --tar, an archive, or - for stdin
    pub(crate) src: PathBuf,
    /// Destination: a new name, or an existing directory in which the copy gets the name of SRC.
    /// With --tar, the directory to extract in, which is created if it does not exist
    #[arg(value_name = "PATH")]
    pub(crate) dest: OsString,
    /// Extract an archive of tar (pax, GNU or ustar; .gz and .zst are decompressed), with the
    /// numbers of its owners, extended attributes, ACLs, hard links and holes
    #[arg(long, conflicts_with_all = ["one_file_system", "threads"])]
    pub(crate) tar: bool,
    #[command(flatten)]
    pub(crate) import_options: ImportOptions,
}

/// Options of `import` and `mkfs --rootdir`.
#[derive(Debug, Args)]
pub(crate) struct ImportOptions {
    /// Set owner and group of all copies to 0
    #[arg(long)]
    pub(crate) no_owner: bool,
    /// Do not copy extended attributes, ACLs and capabilities
    #[arg(long)]
    pub(crate) no_xattrs: bool,
    /// Do not descend into other mounted filesystems
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
    /// Number of threads that read files [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}
