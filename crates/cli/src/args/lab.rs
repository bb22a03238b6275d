//! Arguments of `lab`, which are those of another program.

use std::ffi::OsString;

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
