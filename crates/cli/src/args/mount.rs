//! Arguments of `mount`, `umount`, `stats` and `ctl`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// Block devices or image files of one volume, then the mount point
    #[arg(required = true, num_args = 1.., value_names = ["VOLUME", "MOUNTPOINT"])]
    pub(crate) paths: Vec<OsString>,
    /// Mount options, separated by commas (see below)
    #[arg(short, long, value_name = "OPT,...")]
    pub(crate) options: Vec<OsString>,
    /// Stay in the foreground, and report on stderr when the volume is mounted
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Number of threads that can write file data at the same time, at most 64; four more threads
    /// serve other requests [default: one per core, at least 4]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Set by the parent of the daemon: stdout is the pipe on which readiness is reported
    #[arg(long, hide = true)]
    pub(crate) ready: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The mount point; or the image file or device, if it is mounted at one mount point
    pub(crate) mountpoint: PathBuf,
    /// Detach the mount now, and then commit; it ends when its last open file is closed
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// Seconds to wait until the volume is released; a busy mount is retried for 2 to 30 seconds,
    /// but not longer than this
    #[arg(long, default_value = "60", value_name = "N")]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The mount point, or any path in the mount
    pub(crate) mountpoint: PathBuf,
    /// Print metrics in the Prometheus text format
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
    /// Print what each number means
    #[arg(long, conflicts_with_all = ["json", "prometheus"])]
    pub(crate) explain: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The mount point, or any path in the mount
    pub(crate) mountpoint: PathBuf,
    /// Tunable to show or set [default: show all]
    #[arg(value_name = "KEY[=VALUE]")]
    pub(crate) tunable: Option<String>,
}
