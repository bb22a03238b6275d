//! As typed: the commands that look after a volume.

use std::ffi::OsString;

use clap::Args;

use super::VolumeArgs;
use super::listing::VolumesArgs;

#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The new name, at most 255 bytes; empty for none [default: print the old one]
    pub(crate) label: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Devices or images of a volume, or a directory of something mounted
    #[arg(required = true, value_name = "VOLUME")]
    pub(crate) volume: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Bytes, with K, M, G, T; +N and -N are more and fewer than there are; max is all of the
    /// device. DEVID says which device, where there are several
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    pub(crate) size: String,
    /// Leave an image file as long as it is when its volume shrinks
    #[arg(long)]
    pub(crate) keep_file: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TrimArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Leave free runs shorter than this
    #[arg(short, long, value_name = "N", default_value = "4096")]
    pub(crate) minimum: String,
}
