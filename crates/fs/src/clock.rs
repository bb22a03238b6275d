//! [`Clock`]: the clock for the times of inodes and commits: the system's, or one that a test
//! controls.

use butternut_format::inode::Time;
use butternut_tree::ForestOptions;
use std::fmt;

/// A clock. Two clocks are equal if they are the same function.
#[derive(Clone, Copy)]
pub struct Clock(pub(crate) fn() -> Time);

impl Clock {
    /// Returns a clock that calls `now`.
    pub fn new(now: fn() -> Time) -> Self {
        Self(now)
    }

    /// Returns the clock with which the kernel sets the times of its own inodes; it advances a few
    /// hundred times a second. With it, a filesystem in front of which the kernel sets some times
    /// itself never sets a time before an earlier one.
    pub fn coarse() -> Self {
        Self(coarse_time)
    }

    pub(crate) fn now(self) -> Time {
        (self.0)()
    }
}

fn coarse_time() -> Time {
    let (secs, nanos) = butternut_sys::clock::coarse_now();
    Time { secs, nanos }
}

impl Default for Clock {
    fn default() -> Self {
        Self(ForestOptions::default().clock)
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
