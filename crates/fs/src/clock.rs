//! The clock that inodes and commits are stamped by: the system's, or one that a test winds.

use butternut_format::inode::Time;
use butternut_tree::ForestOptions;
use std::fmt;

/// Tells what time it is. Two clocks are the same where they are the same function.
#[derive(Clone, Copy)]
pub struct Clock(pub(crate) fn() -> Time);

impl Clock {
    pub fn new(now: fn() -> Time) -> Self {
        Self(now)
    }

    /// Returns the clock that the kernel stamps its own inodes by, which advances a few hundred
    /// times a second. A filesystem in front of which the kernel stamps some changes itself uses
    /// it, so that no change is stamped earlier than one before it.
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
