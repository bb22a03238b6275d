//! [`Histogram`]: a latency histogram of fixed memory, without a lock.
//!
//! It is log-linear: every power of two has the same number of buckets, so every time is known to
//! within 1/32 of its value. Laws:
//!
//! 1. Recording allocates nothing, takes no lock, and makes two additions to shared memory; a third
//!    write if the time is the longest so far.
//! 2. A quantile is never less than the true one, and at most one bucket more. The count, the sum
//!    and the maximum are exact.
//! 3. A reader may miss samples that are being recorded while it reads, and no others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Base-2 logarithm of the number of buckets for each power of two.
const SHARE_BITS: u32 = 5;
/// About 18 minutes: longer times are in the last bucket.
const NANOS_BITS: u32 = 40;
const BUCKETS: usize = ((NANOS_BITS - SHARE_BITS + 1) << SHARE_BITS) as usize;

#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    nanos_sum: AtomicU64,
    nanos_max: AtomicU64,
}

/// Latencies of an operation: count, sum, maximum and quantiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    pub count: u64,
    pub sum: Duration,
    pub max: Duration,
    /// The median, then the quantiles of 99 % and 99.9 %. Each is exact to within 1/32.
    pub p50: Duration,
    pub p99: Duration,
    pub p999: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, nanos_sum: AtomicU64::new(0), nanos_max: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub(crate) fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if nanos > self.nanos_max.load(Ordering::Relaxed) {
            self.nanos_max.fetch_max(nanos, Ordering::Relaxed);
        }
        self.nanos_sum.fetch_add(nanos, Ordering::Relaxed);
        self.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Latency {
        let counts: Vec<u64> =
            self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let nanos_max = self.nanos_max.load(Ordering::Relaxed);
        let quantile = |share| Duration::from_nanos(quantile(&counts, share).min(nanos_max));
        Latency {
            count,
            sum: Duration::from_nanos(self.nanos_sum.load(Ordering::Relaxed)),
            max: Duration::from_nanos(nanos_max),
            p50: quantile(500),
            p99: quantile(990),
            p999: quantile(999),
        }
    }
}

impl Latency {
    /// Returns the average.
    pub fn mean(&self) -> Duration {
        let nanos = self.sum.as_nanos().checked_div(u128::from(self.count)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Returns the longest time of the bucket that holds the sample at `per_mille` of all.
fn quantile(counts: &[u64], per_mille: u64) -> u64 {
    let count: u64 = counts.iter().sum();
    let rank = count.saturating_mul(per_mille).div_ceil(1000).max(1);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= rank {
            return longest_of(bucket);
        }
    }
    0
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min((1 << NANOS_BITS) - 1);
    let bucket = match nanos.checked_ilog2() {
        Some(power) if power >= SHARE_BITS => {
            let shift = power - SHARE_BITS;
            (u64::from(shift) << SHARE_BITS) + (nanos >> shift)
        }
        _ => nanos,
    };
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

fn longest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> SHARE_BITS).saturating_sub(1);
    ((bucket - (shift << SHARE_BITS) + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: u64 = 1 << SHARE_BITS;

    /// Returns the next pseudorandom number.
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut longest = None;
        for bucket in 0..BUCKETS {
            let first: u64 = longest.map_or(0, |longest: u64| longest + 1);
            let last = longest_of(bucket);
            assert_eq!((bucket_of(first), bucket_of(last)), (bucket, bucket));
            assert!(last - first <= first / SHARE, "{first} to {last} is too wide");
            longest = Some(last);
        }
        assert_eq!(longest, Some((1 << NANOS_BITS) - 1));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_samples_within_a_bucket() {
        let mut random = 88_172_645_463_325_252;
        for size in [1_usize, 2, 3, 99, 100, 101, 1000, 20_000] {
            let histogram = Histogram::default();
            let mut samples = Vec::new();
            for _ in 0..size {
                // All orders of magnitude are equally frequent.
                let nanos = next(&mut random) >> (24 + next(&mut random) % 40);
                samples.push(nanos);
                histogram.record(Duration::from_nanos(nanos));
            }
            samples.sort_unstable();
            let now = histogram.now();
            assert_eq!(now.count, size as u64);
            assert_eq!(now.sum, Duration::from_nanos(samples.iter().sum()));
            assert_eq!(now.max, Duration::from_nanos(samples[size - 1]));
            for (got, per_mille) in [(now.p50, 500), (now.p99, 990), (now.p999, 999)] {
                let got = u64::try_from(got.as_nanos()).unwrap();
                let want = samples[(size * per_mille).div_ceil(1000) - 1];
                let most = want + want / SHARE;
                assert!((want..=most).contains(&got), "{size}, {per_mille}: {got}, {want}");
            }
        }
    }

    #[test]
    fn an_empty_histogram_is_zero_and_very_long_times_count() {
        let histogram = Histogram::default();
        assert_eq!(histogram.now(), Latency::default());
        assert_eq!(Latency::default().mean(), Duration::ZERO);
        histogram.record(Duration::from_secs(1 << 40));
        let now = histogram.now();
        assert_eq!((now.count, now.max), (1, Duration::from_nanos(u64::MAX)));
        assert_eq!(now.p50, Duration::from_nanos((1 << NANOS_BITS) - 1));
    }

    #[test]
    fn concurrent_samples_are_all_counted() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let histogram = &histogram;
                scope.spawn(move || {
                    for n in 0..10_000 {
                        histogram.record(Duration::from_nanos(n * 4 + thread));
                    }
                });
            }
        });
        let now = histogram.now();
        assert_eq!((now.count, now.max), (40_000, Duration::from_nanos(39_999)));
        assert_eq!(now.sum, Duration::from_nanos((0..40_000).sum()));
    }
}
