//! As typed: the command that copies trees in.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::VolumeArgs;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// What to copy; of a directory that ends in /. only what is in it, and its attributes
    pub(crate) src: PathBuf,
    /// Where to: made under this name, or, if it is a directory already, in it under SRC's name
    #[arg(value_name = "PATH")]
    pub(crate) dest: OsString,
    #[command(flatten)]
    pub(crate) how: ImportHow,
}

/// How a tree is copied in.
#[derive(Debug, Args)]
pub(crate) struct ImportHow {
    /// Everything that is copied belongs to user and group 0
    #[arg(long)]
    pub(crate) no_owner: bool,
    /// Do not copy extended attributes, ACLs and capabilities
    #[arg(long)]
    pub(crate) no_xattrs: bool,
    /// Do not go into what is mounted below the source
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
    /// Threads that read files [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}
