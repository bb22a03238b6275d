//! The state that all threads of an export share.

use butternut::Filesystem;

use super::super::progress::Progress;
use super::preserve::Preserve;
use super::report::Report;

/// The state that all threads of an export share.
pub(super) struct Export {
    pub(super) filesystem: Filesystem,
    pub(super) preserve: Preserve,
    pub(super) report: Report,
    pub(super) progress: Progress,
    /// No extent has more bytes.
    pub(super) extent_bytes_max: u64,
}
