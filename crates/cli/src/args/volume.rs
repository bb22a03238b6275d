//! The argument that names a volume.

use std::ffi::OsString;

use clap::Args;

/// The volume of a command that also takes a path: one argument.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    #[arg(
        value_name = "VOLUME",
        help = "Block device or image file: \
        PATH[,PATH...][@SUBVOL][?offset=N|?partition=N]"
    )]
    pub(crate) volume: OsString,
}
