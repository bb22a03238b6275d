//! The system clock, fine and coarse. No other code reads the wall clock; the time is passed in.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970 and the nanoseconds of the second. A time before 1970 is returned
/// as 1970.
pub fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// Returns the time of the kernel's last timer tick, which the kernel uses for the timestamps of
/// inodes.
pub fn coarse_now() -> (i64, u32) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec` to `time` and keeps no pointer to it.
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
    fn the_coarse_clock_lags_behind_the_fine_clock() {
        let (before, coarse, after) = (now(), coarse_now(), now());
        assert!(coarse <= after);
        assert!(before.0 - coarse.0 <= 1, "{before:?} {coarse:?}");
    }
}
