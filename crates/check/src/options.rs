//! Options of a check.

use crate::report::Counts;
use std::fmt;

/// Default of [`CheckOptions::findings_max`].
const FINDINGS_MAX_DEFAULT: usize = 1000;

/// A callback that receives the counts so far, every few hundred tree blocks, from any thread of
/// the check.
pub type Progress<'a> = &'a (dyn Fn(&Counts) + Sync);

#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Also read every sector that has a checksum, on every mirror, and verify it.
    pub check_data_csum: bool,
    /// Number of threads: 1 uses only the caller's thread, 0 starts one per core.
    pub threads: usize,
    /// Check a volume with devices missing, if every chunk can still be read.
    pub degraded: bool,
    /// Count the usage of quota groups also where the quota tree says that its own is inexact.
    pub qgroup_report: bool,
    /// The volume is written to, and its process keeps what commits refer to, from the one of this
    /// generation on. The last one is checked: the superblocks and the log tree change meanwhile,
    /// and are not.
    pub held_since: Option<u64>,
    /// Number of findings to keep. Further findings are only counted.
    pub findings_max: usize,
    pub progress: Option<Progress<'a>>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            check_data_csum: false,
            threads: 1,
            degraded: false,
            qgroup_report: false,
            held_since: None,
            findings_max: FINDINGS_MAX_DEFAULT,
            progress: None,
        }
    }
}

impl fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("check_data_csum", &self.check_data_csum)
            .field("threads", &self.threads)
            .field("degraded", &self.degraded)
            .field("qgroup_report", &self.qgroup_report)
            .field("held_since", &self.held_since)
            .field("findings_max", &self.findings_max)
            .finish_non_exhaustive()
    }
}
