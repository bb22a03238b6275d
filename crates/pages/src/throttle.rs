//! The throttle: how long writers pause, so that data is dirtied no faster than it is written back.
//!
//! ```text
//!   dirty      0 ........ background ...... free run ....... setpoint ....... hard limit
//!   flushers      idle     | write back
//!   writers       do not pause             | rate:  2x .......... 1x .......... 0
//! ```
//!
//! The allowed rate is the measured write rate of the busy device times a factor. The factor falls
//! as a cubic from 2 at the end of the free run to 1 at the setpoint and 0 at the hard limit. All
//! writers draw on one rate, one after the other, so each gets an equal share.
//!
//! Laws:
//!
//! 1. The throttle is a pure function of its inputs: it reads no clock and waits for nothing.
//! 2. One pause is at most [`PAUSE_MAX`]. There are no pauses below the end of the free run.
//! 3. At the hard limit the pause is [`PAUSE_MAX`]; a writer checks again after its pause, before
//!    it writes.
//! 4. A pause that is too short to sleep is not forgotten: it adds to the pause of the next writer.

use std::time::Duration;

/// The longest pause (law 2).
pub const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The shortest pause; a shorter one is accumulated (law 4).
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The assumed write rate of a device that has not written yet, in bytes per second.
const RATE_FIRST: u64 = 200 << 20;
const RATE_MIN: u64 = 1 << 20;
/// Minimum size of one measurement: time that the device was busy, or bytes that it wrote.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(50);
const SAMPLE_BYTES_MIN: u64 = 32 << 20;
/// The value 1 in fixed-point arithmetic.
const ONE: i64 = 1 << 10;

/// Limits of dirty data. Data under writeback counts as dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Flushers write back while more than this is dirty.
    pub background_bytes: u64,
    /// Writers stop here. Only writes that are in progress at that moment exceed it.
    pub hard_bytes: u64,
}

impl DirtyLimits {
    /// Returns the limit up to which writers do not pause.
    pub fn free_run_bytes(&self) -> u64 {
        self.background_bytes.midpoint(self.hard_bytes)
    }

    /// Returns the amount of dirty data at which writers are held to the write rate of the device.
    pub fn setpoint_bytes(&self) -> u64 {
        self.free_run_bytes().midpoint(self.hard_bytes)
    }
}

/// The measured write rate and the accumulated pauses. All times are durations since one fixed
/// moment.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Write rate in bytes per second, smoothed.
    rate: u64,
    is_measured: bool,
    /// Writebacks in flight, and the time up to which the device's busy time was counted.
    in_flight: u32,
    busy_since: Duration,
    /// Busy time and bytes of the current measurement.
    busy: Duration,
    bytes: u64,
    /// The time at which the device will have written all data that was admitted so far.
    admitted_until: Duration,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            rate: RATE_FIRST,
            is_measured: false,
            in_flight: 0,
            busy_since: Duration::ZERO,
            busy: Duration::ZERO,
            bytes: 0,
            admitted_until: Duration::ZERO,
        }
    }
}

impl Throttle {
    /// Notes that a writeback was submitted to the device.
    pub fn writeback_started(&mut self, now: Duration) {
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.in_flight += 1;
    }

    /// Notes that a writeback of `bytes` has completed; 0 if it failed.
    pub fn writeback_ended(&mut self, now: Duration, bytes: u64) {
        self.busy += now.saturating_sub(self.busy_since);
        self.busy_since = now;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.bytes += bytes;
        let is_enough = self.busy >= SAMPLE_TIME_MIN
            || (self.bytes >= SAMPLE_BYTES_MIN && self.busy > Duration::ZERO);
        if !is_enough {
            return;
        }
        let rate = u128::from(self.bytes) * 1_000_000_000 / self.busy.as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX / 16).clamp(RATE_MIN, u64::MAX / 16);
        self.rate = if self.is_measured { self.rate / 4 * 3 + rate / 4 } else { rate };
        (self.is_measured, self.busy, self.bytes) = (true, Duration::ZERO, 0);
    }

    /// Returns the measured write rate, in bytes per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns how long a writer pauses that dirties `bytes` while `dirty` bytes are dirty.
    pub fn pause(
        &mut self,
        now: Duration,
        bytes: u64,
        dirty: u64,
        limits: &DirtyLimits,
    ) -> Duration {
        if dirty <= limits.free_run_bytes() {
            self.admitted_until = now.min(self.admitted_until);
            return Duration::ZERO;
        }
        if dirty >= limits.hard_bytes {
            return PAUSE_MAX;
        }
        let factor = u64::try_from(pos_ratio(dirty, limits)).unwrap_or(0);
        let rate = (self.rate / ONE.unsigned_abs()).saturating_mul(factor).max(RATE_MIN);
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX)).min(PAUSE_MAX);
        self.admitted_until = (self.admitted_until.max(now) + cost).min(now + 2 * PAUSE_MAX);
        let pause = self.admitted_until.saturating_sub(now).min(PAUSE_MAX);
        if pause < PAUSE_MIN { Duration::ZERO } else { pause }
    }
}

/// Returns the factor of the allowed rate, between 0 and 2 in fixed point.
fn pos_ratio(dirty: u64, limits: &DirtyLimits) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX / 2048) / 4096;
    let setpoint = signed(limits.setpoint_bytes());
    let span = (signed(limits.hard_bytes) - setpoint).max(1);
    let distance = ((setpoint - signed(dirty)) * ONE / span).clamp(-ONE, ONE);
    ONE + distance * distance / ONE * distance / ONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: DirtyLimits = DirtyLimits { background_bytes: 32 << 20, hard_bytes: 64 << 20 };

    fn measured(rate: u64) -> Throttle {
        let mut throttle = Throttle::default();
        throttle.writeback_started(Duration::ZERO);
        throttle.writeback_ended(Duration::from_secs(1), rate);
        assert_eq!(throttle.rate(), rate);
        throttle
    }

    #[test]
    fn writers_pause_above_the_free_run_and_stop_at_the_limit() {
        let mut throttle = measured(100 << 20);
        let now = Duration::from_secs(9);
        let pause = |dirty| throttle.clone().pause(now, 1 << 20, dirty, &LIMITS);
        assert_eq!(pause(LIMITS.free_run_bytes()), Duration::ZERO);
        assert_eq!(pause(LIMITS.setpoint_bytes()), Duration::from_millis(10));
        assert!(pause(LIMITS.free_run_bytes() + 4096) < Duration::from_millis(6));
        assert!(pause(LIMITS.hard_bytes - (1 << 20)) > Duration::from_millis(20));
        assert_eq!(pause(LIMITS.hard_bytes), PAUSE_MAX);
        throttle.pause(now, 1 << 20, LIMITS.setpoint_bytes(), &LIMITS);
        let next = throttle.pause(now, 1 << 20, LIMITS.setpoint_bytes(), &LIMITS);
        assert_eq!(next, Duration::from_millis(20), "a second writer pauses longer");
    }

    #[test]
    fn short_pauses_accumulate_until_they_are_worth_a_sleep() {
        let mut throttle = measured(100 << 20);
        let dirty = LIMITS.setpoint_bytes();
        let pauses: Vec<Duration> = (0..100)
            .map(|_| throttle.pause(Duration::from_secs(1), 4096, dirty, &LIMITS))
            .collect();
        assert!(pauses.iter().take(50).all(Duration::is_zero));
        assert!(pauses.last().is_some_and(|last| *last > Duration::from_millis(3)));
    }

    /// Writers as fast as possible and one device: the dirty data stays near the setpoint.
    #[test]
    fn dirty_data_settles_below_the_hard_limit() {
        for (rate, writers) in [(50u64 << 20, 1u64), (400 << 20, 4), (2000 << 20, 32)] {
            let mut throttle = Throttle::default();
            let step = Duration::from_millis(1);
            let mut wakes = vec![Duration::ZERO; usize::try_from(writers).unwrap()];
            let (mut dirty, mut dirty_max, mut taken) = (0u64, 0, 0u64);
            for tick in 0..20_000u32 {
                let now = step * tick;
                for wake in &mut wakes {
                    while *wake <= now && dirty < LIMITS.hard_bytes + writers * (64 << 10) {
                        let pause = throttle.pause(now, 64 << 10, dirty, &LIMITS);
                        *wake = now + pause;
                        if pause < PAUSE_MAX || dirty < LIMITS.hard_bytes {
                            dirty += 64 << 10;
                        }
                        if !pause.is_zero() {
                            break;
                        }
                    }
                }
                dirty_max = dirty_max.max(dirty);
                if dirty > LIMITS.background_bytes {
                    throttle.writeback_started(now);
                    let bytes = (rate / 1000).min(dirty - LIMITS.background_bytes);
                    dirty -= bytes;
                    taken += bytes;
                    throttle.writeback_ended(now + step, bytes);
                }
            }
            assert!(dirty_max <= LIMITS.hard_bytes + writers * (64 << 10), "{rate}: {dirty_max}");
            assert!(taken > rate * 20 * 9 / 10, "{rate}: the device stays busy, {taken}");
        }
    }

    proptest! {
        #[test]
        fn more_dirty_data_never_shortens_the_pause(
            rate in RATE_MIN..10_000_000_000u64,
            bytes in 1..1u64 << 24,
            one in 0..80u64 << 20,
            two in 0..80u64 << 20,
        ) {
            let throttle = measured(rate);
            let now = Duration::from_secs(5);
            let pause = |dirty| throttle.clone().pause(now, bytes, dirty, &LIMITS);
            let (less, more) = (pause(one.min(two)), pause(one.max(two)));
            prop_assert!(less <= more && more <= PAUSE_MAX, "{less:?} {more:?}");
        }
    }
}
