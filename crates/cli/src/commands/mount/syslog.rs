//! Messages of a daemon, written to stderr and to syslog, which remains when the daemon has
//! released its terminal.

use crate::output::{reporter, stderr_line, text};

/// The priorities of messages (facility "daemon").
pub(super) const CRITICAL: u32 = 3 << 3 | 2;
pub(super) const WARNING: u32 = 3 << 3 | 4;
pub(super) const NOTICE: u32 = 3 << 3 | 5;

/// Queues a message for stderr and syslog ([`reporter`]): no caller waits until it is written. A
/// failure to reach syslog is ignored.
pub(super) fn log(priority: u32, message: &str) {
    stderr_line(message);
    let message = text::one_line(message);
    let line = format!("<{priority}>butternut[{}]: {message}", std::process::id());
    reporter::queue_for_syslog(line);
}
