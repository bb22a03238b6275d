//! The clock that inodes are stamped by: the system's, or one that a test winds.

use crate::Time;
use butternut_format::inode;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Tells what time it is. Two clocks are the same where they are the same function.
#[derive(Clone, Copy)]
pub struct Clock(fn() -> Time);

impl Clock {
    pub fn new(now: fn() -> Time) -> Self {
        Self(now)
    }

    pub(crate) fn now(self) -> inode::Time {
        let Time { secs, nanos } = (self.0)();
        inode::Time { secs, nanos }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self(system_time)
    }
}

impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for Clock {}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_system = *self == Self::default();
        f.write_str(if is_system { "Clock(system)" } else { "Clock(given)" })
    }
}

/// Before 1970 it says 1970.
fn system_time() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let secs = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Time { secs, nanos: since.subsec_nanos() }
}
