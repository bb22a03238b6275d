//! The throttle: how long a writer pauses, so that data gets dirty no faster than it goes down.
//!
//! ```text
//!   dirty      0 ........ background ...... free run ....... setpoint ....... hard limit
//!   flushers      rest     | work
//!   writers                      run free      | rate:  2x .......... 1x .......... 0
//! ```
//!
//! The rate is that at which the device took data when it was busy, times a factor that falls as
//! a cubic from 2 at the end of the free run to 1 at the setpoint and 0 at the hard limit. All
//! writers draw on the one rate in turn, so each gets his part of it, whatever their number.
//!
//! Laws:
//!
//! 1. It is a pure function of what it was told: it reads no clock and waits for nothing.
//! 2. Nobody is asked to pause longer than [`PAUSE_MAX`] at once. Below the free run nobody pauses.
//! 3. At the hard limit the pause is the longest; who has paused asks again before he writes.
//! 4. What one writer owes is not forgotten when it is too short to sleep for.

use std::time::Duration;

/// The longest pause (law 2).
pub const PAUSE_MAX: Duration = Duration::from_millis(200);
/// A sleep shorter than this is not worth it: it is owed (law 4).
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// What is believed of a device that has not written yet, in bytes a second.
const RATE_FIRST: u64 = 200 << 20;
const RATE_MIN: u64 = 1 << 20;
/// What a measurement takes at least: time the device was busy, or bytes that it took.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(50);
const SAMPLE_BYTES_MIN: u64 = 32 << 20;
/// One, in the arithmetic of factors.
const ONE: i64 = 1 << 10;

/// Bytes that may be dirty, or on their way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Flushers work while more than this is dirty.
    pub background_bytes: u64,
    /// Never exceeded by more than what is being written at the moment.
    pub hard_bytes: u64,
}

impl DirtyLimits {
    /// Up to here writers do not pause.
    pub fn free_run_bytes(&self) -> u64 {
        self.background_bytes.midpoint(self.hard_bytes)
    }

    /// Where writers are held.
    pub fn setpoint_bytes(&self) -> u64 {
        self.free_run_bytes().midpoint(self.hard_bytes)
    }
}

/// What is known of the device, and what writers owe. Times are since anything that stays.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Bytes a second, smoothed.
    rate: u64,
    is_measured: bool,
    /// Writes on their way, and since when there were any.
    in_flight: u32,
    busy_since: Duration,
    /// Of the measurement under way.
    busy: Duration,
    bytes: u64,
    /// When all that was let through so far will have been taken.
    even_at: Duration,
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
            even_at: Duration::ZERO,
        }
    }
}

impl Throttle {
    /// Data is handed to the device.
    pub fn started(&mut self, now: Duration) {
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.in_flight += 1;
    }

    /// It has taken it, or refused to: then `bytes` is 0.
    pub fn ended(&mut self, now: Duration, bytes: u64) {
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

    /// Bytes a second that the device takes.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// How long a writer sleeps who wants to make `bytes` more dirty while `dirty` are.
    pub fn pause(
        &mut self,
        now: Duration,
        bytes: u64,
        dirty: u64,
        limits: &DirtyLimits,
    ) -> Duration {
        if dirty <= limits.free_run_bytes() {
            self.even_at = now.min(self.even_at);
            return Duration::ZERO;
        }
        if dirty >= limits.hard_bytes {
            return PAUSE_MAX;
        }
        let factor = u64::try_from(factor(dirty, limits)).unwrap_or(0);
        let rate = (self.rate / ONE.unsigned_abs()).saturating_mul(factor).max(RATE_MIN);
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX)).min(PAUSE_MAX);
        self.even_at = (self.even_at.max(now) + cost).min(now + 2 * PAUSE_MAX);
        let pause = self.even_at.saturating_sub(now).min(PAUSE_MAX);
        if pause < PAUSE_MIN { Duration::ZERO } else { pause }
    }
}

/// Between 0 and 2.
fn factor(dirty: u64, limits: &DirtyLimits) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX / 2048) / 4096;
    let setpoint = signed(limits.setpoint_bytes());
    let room = (signed(limits.hard_bytes) - setpoint).max(1);
    let distance = ((setpoint - signed(dirty)) * ONE / room).clamp(-ONE, ONE);
    ONE + distance * distance / ONE * distance / ONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: DirtyLimits = DirtyLimits { background_bytes: 32 << 20, hard_bytes: 64 << 20 };

    fn measured(rate: u64) -> Throttle {
        let mut throttle = Throttle::default();
        throttle.started(Duration::ZERO);
        throttle.ended(Duration::from_secs(1), rate);
        assert_eq!(throttle.rate(), rate);
        throttle
    }

    #[test]
    fn writers_run_free_and_then_are_held_and_at_the_limit_stopped() {
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
        assert_eq!(next, Duration::from_millis(20), "another writer waits for his turn");
    }

    #[test]
    fn short_debts_are_kept_until_they_are_worth_a_sleep() {
        let mut throttle = measured(100 << 20);
        let dirty = LIMITS.setpoint_bytes();
        let pauses: Vec<Duration> = (0..100)
            .map(|_| throttle.pause(Duration::from_secs(1), 4096, dirty, &LIMITS))
            .collect();
        assert!(pauses.iter().take(50).all(Duration::is_zero));
        assert!(pauses.last().is_some_and(|last| *last > Duration::from_millis(3)));
    }

    /// Writers as fast as they can be, one device: what is dirty stays around the setpoint.
    #[test]
    fn writers_and_a_device_come_to_rest_below_the_hard_limit() {
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
                    throttle.started(now);
                    let bytes = (rate / 1000).min(dirty - LIMITS.background_bytes);
                    dirty -= bytes;
                    taken += bytes;
                    throttle.ended(now + step, bytes);
                }
            }
            assert!(dirty_max <= LIMITS.hard_bytes + writers * (64 << 10), "{rate}: {dirty_max}");
            assert!(taken > rate * 20 * 9 / 10, "{rate}: the device is kept busy, {taken}");
        }
    }

    proptest! {
        #[test]
        fn more_dirty_is_never_a_shorter_pause(
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
