//! Arguments of `lab`, which are those of another program, and of `top`, which that program shows.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

pub(crate) const LAB_HELP: &str = "\
The benchmark is a program of its own, butternut-lab, which is found beside this program or on the
PATH. It measures Butternut, its mount, the kernel's btrfs, xfs and ext4, raw devices and any
directory with the same workloads, and keeps every sample.

    butternut lab list                            list the suites
    butternut lab show nosec                      print the file of a suite
    butternut lab run --suite nosec --quick       run a suite
    butternut lab run mine.toml --target dir:/srv run a suite of a file on a directory
    butternut lab run --resume ID                 continue an interrupted run
    butternut lab run --help                      describe all options and targets
    butternut lab compare latest~1 latest         judge two runs
    butternut lab report latest --out report      write a page of HTML, and tables

Suites, targets and records are described in docs/lab/README.md.";

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// The command of butternut-lab, and its options
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "ARG")]
    pub(crate) arguments: Vec<OsString>,
}

pub(crate) const TOP_HELP: &str = "\
The numbers are those of `butternut stats`: rates of the last interval, and quantiles since the
mount. The number of operations in flight is the time that they took, divided by the interval. The
keys are q to quit, and the arrows to scroll.

Where the output is no terminal, or with --once, one frame is printed as text. The view is shown by
the program butternut-lab, which is found beside this program or on the PATH.";

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The mount point, or any path in the mount
    pub(crate) mountpoint: PathBuf,
    /// Seconds between two updates, from 0.1 to 3600
    #[arg(long, short, default_value = "1", value_name = "SECONDS")]
    pub(crate) interval: String,
    /// Print one frame as text
    #[arg(long)]
    pub(crate) once: bool,
}
