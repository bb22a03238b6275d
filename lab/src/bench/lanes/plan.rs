//! What a run of the lanes does: how long, how often, and with which programs.

use std::path::PathBuf;

/// Duration and number of the runs, and the programs to run.
pub(crate) struct Plan {
    pub(crate) repeats: usize,
    pub(crate) seconds: u32,
    /// Size of each file, in MiB.
    pub(crate) file_mib: u32,
    pub(crate) fio: PathBuf,
    /// Whether this fio requests uncached I/O with the `RWF_DONTCACHE` value of released kernels.
    pub(crate) fio_has_uncached: bool,
    pub(crate) engine: PathBuf,
}
