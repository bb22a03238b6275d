//! As typed: mount and umount.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// Devices or images of one volume, then the mount point
    #[arg(required = true, num_args = 1.., value_names = ["VOLUME", "MOUNTPOINT"])]
    pub(crate) places: Vec<OsString>,
    /// Options, joined with commas (see below)
    #[arg(short, long, value_name = "OPT,...")]
    pub(crate) options: Vec<OsString>,
    /// Stay in the foreground, and say on stderr when the mount serves
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Threads that may write file data at once, at most 64; four more answer other requests
    /// [default: one per core, at least 4]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Started by the daemon's parent: stdout is the pipe that says the mount serves
    #[arg(long, hide = true)]
    pub(crate) ready: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The mount point
    pub(crate) mountpoint: PathBuf,
    /// Detach at once, and let open files finish
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// Seconds to wait for the release of the volume; a busy mount is retried for 2 to 30 seconds,
    /// and no longer than this
    #[arg(long, default_value = "60", value_name = "N")]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The mount point, or anything in the mount
    pub(crate) mountpoint: PathBuf,
    /// Print the text that Prometheus reads
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The mount point, or anything in the mount
    pub(crate) mountpoint: PathBuf,
    /// A switch to show, or to set [default: show all]
    #[arg(value_name = "KEY[=VALUE]")]
    pub(crate) switch: Option<String>,
}
