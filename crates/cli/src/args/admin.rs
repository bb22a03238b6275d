//! Arguments of the commands that change a volume as a whole.

use std::ffi::OsString;

use clap::Args;

use super::VolumeArgs;
use super::read::VolumesArgs;

pub(super) const RESIZE_HELP: &str = "\
An image file is extended when its volume grows. It is truncated when its volume shrinks, if the
volume reached the end of the file. A volume cannot shrink below the end of its last block group in
use.";

#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// New label, at most 255 bytes; an empty string removes it [default: print the label]
    pub(crate) label: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Block devices or image files of a volume, or a directory on a mounted filesystem
    #[arg(required = true, value_name = "VOLUME")]
    pub(crate) volume: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    // `resize -1G VOLUME`, the order of btrfs-progs, has a message of its own.
    #[arg(
        value_name = "VOLUME",
        allow_hyphen_values = true,
        help = "Block device or image file: PATH[,PATH...][@SUBVOL][?offset=N]"
    )]
    pub(crate) volume: OsString,
    /// New size in bytes, with suffix K, M, G or T; +N and -N are relative; max is the size of the
    /// device. DEVID selects one of several devices
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    pub(crate) size: String,
    /// Do not truncate the image file of a volume that shrinks
    #[arg(long)]
    pub(crate) keep_file: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TrimArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Do not discard free ranges shorter than N bytes
    #[arg(short, long, value_name = "N", default_value = "4096")]
    pub(crate) minimum: String,
}
