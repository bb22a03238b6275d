//! Messages of a daemon: on stderr, and in the system's log, which remains once the terminal is
//! released.

use std::os::unix::net::UnixDatagram;

use crate::output::{say, text};

/// The system's log, and the priorities of what is written there (facility "daemon").
const LOG: &str = "/dev/log";
pub(super) const CRITICAL: u32 = 3 << 3 | 2;
pub(super) const WARNING: u32 = 3 << 3 | 4;
pub(super) const NOTICE: u32 = 3 << 3 | 5;

/// Writes a message to both. Without a log there is no other place for it.
pub(super) fn tell(priority: u32, message: &str) {
    say(message);
    let message = text::one_line(message);
    let line = format!("<{priority}>butternut[{}]: {message}", std::process::id());
    UnixDatagram::unbound()
        .and_then(|socket| socket.send_to(line.as_bytes(), LOG))
        .map(drop)
        .unwrap_or_default();
}
