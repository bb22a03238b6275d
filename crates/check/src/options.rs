//! What to check, how, and whom to tell how far it is.

use crate::report::Counts;
use std::fmt;

/// Findings that a report holds unless told otherwise; the rest is counted.
const FINDINGS_MAX_DEFAULT: usize = 1000;

/// Told how far the check is, now and then, from any of its threads.
pub type Progress<'a> = &'a (dyn Fn(&Counts) + Sync);

#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Also read every sector that has a checksum, on every copy.
    pub check_data_csum: bool,
    /// Threads to work with: 1 does everything on the caller's, 0 takes one per core.
    pub threads: usize,
    /// Go on with devices missing, where every chunk can still be read.
    pub degraded: bool,
    /// Findings to keep; more are only counted.
    pub findings_max: usize,
    pub progress: Option<Progress<'a>>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            check_data_csum: false,
            threads: 1,
            degraded: false,
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
            .field("findings_max", &self.findings_max)
            .finish_non_exhaustive()
    }
}
