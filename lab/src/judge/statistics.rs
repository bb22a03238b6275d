//! Estimates and tests on small samples of positive values, compared as ratios.
//!
//! Laws:
//!
//! 1. Values are compared on the logarithmic scale: a slowdown is a ratio, and the noise of
//!    throughput and latency is closer to lognormal than to normal.
//! 2. From [`TRIM_MIN`] values on, a fifth of the values is trimmed from each end, so one outlier
//!    in five cannot decide. The test is Yuen's: Welch's t-test on trimmed means.
//! 3. Nothing is estimated from fewer than [`REPEATS_MIN`] values.
//! 4. The same input gives the same output: random numbers come from a seed.
//!
//! Sources: Yuen, "The two-sample trimmed t for unequal population variances" (1974); Hesterberg,
//! "What teachers should know about the bootstrap" (2015), for the expanded percentile interval;
//! Benjamini and Hochberg, "Controlling the false discovery rate" (1995); Cliff, "Dominance
//! statistics" (1993).

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Fewest values of a side that anything is estimated from.
pub const REPEATS_MIN: usize = 3;

/// Fewest values of a side that are trimmed.
pub const TRIM_MIN: usize = 5;

/// Number of resamples of a bootstrap interval.
pub const RESAMPLES: usize = 2000;

/// Smallest standard deviation of logarithms that is assumed, so that coarse values which happen to
/// repeat are not taken for exact ones. It corresponds to 0.2 %.
pub const DEVIATION_MIN: f64 = 0.002;

/// A location of a sample and how well it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Trimmed mean.
    pub mean: f64,
    /// Squared standard error of the mean.
    pub variance: f64,
    /// Degrees of freedom of the variance.
    pub freedom: f64,
}

/// What a test of two locations found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Test {
    /// Difference of the locations, second minus first.
    pub difference: f64,
    /// Standard error of the difference.
    pub error: f64,
    /// Degrees of freedom of the error.
    pub freedom: f64,
    /// Probability of a difference at least as large where there is none, in `0.0..=1.0`.
    pub p: f64,
}

/// Returns the median, or `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match (sorted.len(), sorted.len() % 2) {
        (0, _) => None,
        (_, 1) => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the trimmed mean of `values` (law 2), or `None` of nothing.
pub fn location(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let cut = trimmed(sorted.len());
    mean(sorted.get(cut..sorted.len() - cut)?)
}

/// Returns the trimmed mean of `values` with its standard error, or `None` of fewer than
/// [`REPEATS_MIN`] values.
#[allow(clippy::cast_precision_loss, reason = "counts of repeats are small")]
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let count = values.len();
    if count < REPEATS_MIN {
        return None;
    }
    let mean = location(values)?;
    let kept = count - 2 * trimmed(count);
    let spread =
        squares(&winsorized(values)).max(DEVIATION_MIN * DEVIATION_MIN * (count - 1) as f64);
    let variance = spread / (kept * (kept - 1)) as f64;
    Some(Estimate { mean, variance, freedom: (kept - 1) as f64 })
}

/// Tests whether two estimates are of the same location.
pub fn compare(first: Estimate, second: Estimate) -> Test {
    let variance = first.variance + second.variance;
    let freedom = variance * variance
        / (first.variance * first.variance / first.freedom
            + second.variance * second.variance / second.freedom);
    test(second.mean - first.mean, variance.sqrt(), freedom)
}

/// Tests whether the mean difference of pairs is zero, or returns `None` of too few pairs.
pub fn compare_pairs(differences: &[f64]) -> Option<Test> {
    let estimate = estimate(differences)?;
    Some(test(estimate.mean, estimate.variance.sqrt(), estimate.freedom))
}

/// Tests whether `value`, which is known with the squared standard error `variance`, is one more
/// value of the population of `values`. Returns `None` of too few values.
#[allow(clippy::cast_precision_loss, reason = "counts of runs are small")]
pub fn compare_one(values: &[f64], value: f64, variance: f64) -> Option<Test> {
    let count = values.len();
    if count < REPEATS_MIN {
        return None;
    }
    let middle = mean(values)?;
    let between = squares(values) / (count - 1) as f64;
    let one = between.max(variance).max(DEVIATION_MIN * DEVIATION_MIN);
    let error = (one * (1.0 + 1.0 / count as f64)).sqrt();
    Some(test(value - middle, error, (count - 1) as f64))
}

/// Returns the smallest true difference that a test with this error would have reported four times
/// out of five at the level `alpha`.
pub fn visible(error: f64, freedom: f64, alpha: f64) -> f64 {
    (quantile(1.0 - alpha / 2.0, freedom) + quantile(0.8, freedom)) * error
}

/// Returns Cliff's delta: how much more often a value of `second` is larger than one of `first`
/// than smaller, in `-1.0..=1.0`.
#[allow(clippy::cast_precision_loss, reason = "counts of repeats are small")]
pub fn dominance(first: &[f64], second: &[f64]) -> f64 {
    let mut sum = 0_i64;
    for a in first {
        for b in second {
            sum += i64::from(b > a) - i64::from(b < a);
        }
    }
    let pairs = first.len() * second.len();
    if pairs == 0 { 0.0 } else { sum as f64 / pairs as f64 }
}

/// Returns the bootstrap interval of a statistic: `resample` computes it from one resample. The
/// percentiles are widened for `count` values, the fewest of a side.
#[allow(clippy::cast_precision_loss, reason = "counts of repeats are small")]
pub fn interval(
    count: usize,
    level: f64,
    seed: u64,
    mut resample: impl FnMut(&mut fastrand::Rng) -> Option<f64>,
) -> Option<(f64, f64)> {
    if count < 2 {
        return None;
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let drawn: Option<Vec<f64>> = (0..RESAMPLES).map(|_| resample(&mut rng)).collect();
    let drawn = sorted(&drawn?);
    let freedom = (count - 1) as f64;
    let expanded = (count as f64 / freedom).sqrt() * quantile(f64::midpoint(1.0, level), freedom);
    let tail = Normal::standard().cdf(-expanded);
    let last = drawn.len() - 1;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of the number of resamples"
    )]
    let skip = ((tail * drawn.len() as f64) as usize).min(last / 2);
    Some((drawn[skip], drawn[last - skip]))
}

/// Returns `values` with those that a trimmed mean leaves out moved to the nearest that it keeps. A
/// resample of them cannot have an outlier several times, as one of the values themselves could.
pub fn winsorized(values: &[f64]) -> Vec<f64> {
    let sorted = sorted(values);
    let cut = trimmed(sorted.len());
    let Some(kept) = sorted.get(cut..sorted.len() - cut) else { return sorted };
    let (Some(low), Some(high)) = (kept.first(), kept.last()) else { return sorted };
    values.iter().map(|value| value.clamp(*low, *high)).collect()
}

/// Returns a resample of `values`, of the same length.
pub fn resampled(values: &[f64], rng: &mut fastrand::Rng) -> Vec<f64> {
    values.iter().map(|_| values[rng.usize(..values.len())]).collect()
}

/// Adjusts p-values for their number, by Benjamini and Hochberg: rejecting those of at most `q`
/// keeps the expected part of false ones among the rejected below `q`.
#[allow(clippy::cast_precision_loss, reason = "counts of rows are small")]
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut least = 1.0_f64;
    for (rank, index) in order.iter().enumerate().rev() {
        least = least.min(p[*index] * p.len() as f64 / (rank + 1) as f64);
        adjusted[*index] = least;
    }
    adjusted
}

/// Returns the mean, or `None` of nothing.
#[allow(clippy::cast_precision_loss, reason = "counts of repeats are small")]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Number of values that are trimmed from each end of `count` values.
fn trimmed(count: usize) -> usize {
    if count < TRIM_MIN { 0 } else { count / 5 }
}

fn test(difference: f64, error: f64, freedom: f64) -> Test {
    let p = if error > 0.0 {
        match StudentsT::new(0.0, 1.0, freedom) {
            Ok(t) => 2.0 * t.cdf(-(difference / error).abs()),
            Err(_) => 1.0,
        }
    } else {
        f64::from(u8::from(difference.abs() <= f64::EPSILON))
    };
    Test { difference, error, freedom, p: p.clamp(0.0, 1.0) }
}

/// The quantile of Student's t distribution.
fn quantile(at: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(at))
}

/// Sum of the squared distances from the mean.
fn squares(values: &[f64]) -> f64 {
    mean(values).map_or(0.0, |mean| values.iter().map(|v| (v - mean) * (v - mean)).sum())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests;
