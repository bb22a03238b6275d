//! The system's clock, fine and coarse: the one place that reads it. Everyone else is given the
//! time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Whole seconds since 1970, and nanoseconds beyond them. Before 1970 it says 1970.
pub fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// The same as of the kernel's last tick, which is what the kernel stamps inodes by.
pub fn coarse_now() -> (i64, u32) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, which `time` is, and keeps no pointer to it.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    if done != 0 {
        return now();
    }
    (time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_is_behind_the_fine_one_and_follows_it() {
        let (before, coarse, after) = (now(), coarse_now(), now());
        assert!(coarse <= after);
        assert!(before.0 - coarse.0 <= 1, "{before:?} {coarse:?}");
    }
}
