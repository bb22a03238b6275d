//! Change points of a series: where its level changes for good.
//!
//! E-divisive means, as Apache Otava has them: of all pairs of neighbouring segments the split with
//! the largest energy distance is the candidate; it counts when few random orders of the values
//! within the segments so far have as large a distance; then both halves are searched.
//!
//! Source: Matteson and James, "A nonparametric approach for multiple change point analysis of
//! multivariate data" (2014). For segments X of n and Y of m values, the distance is
//!
//! ```text
//! q(X, Y) = 2/(m+n) sum |x - y| - 2m/((m+n)(n-1)) sum |x - x'| - 2n/((m+n)(m-1)) sum |y - y'|
//! ```
//!
//! Laws:
//!
//! 1. A change point is the index of the first value of the new level.
//! 2. At most [`VALUES_MAX`] values are searched, the last ones.
//! 3. The same series and seed give the same change points.

use super::statistics;

/// Most values that are searched. The memory is their square, eight bytes each.
pub const VALUES_MAX: usize = 512;

/// Random orders of a significance test.
pub const PERMUTATIONS: u32 = 199;

/// A place at which the level changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    /// Index of the first value of the new level.
    pub index: usize,
    /// The energy distance of the split.
    pub distance: f64,
    /// Part of the random orders with as large a distance.
    pub p: f64,
}

/// A change point with its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Index of the first value of the new level.
    pub index: usize,
    /// The new level to the one before it.
    pub ratio: f64,
}

/// A segment that was searched, and its best split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub index: usize,
    pub distance: f64,
}

/// Returns the change points of `values`, by index.
pub fn find(values: &[f64], p_max: f64, seed: u64) -> Vec<ChangePoint> {
    let skipped = values.len().saturating_sub(VALUES_MAX);
    let values = &values[skipped..];
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut found: Vec<ChangePoint> = Vec::new();
    // Each round adds a change point, and there are fewer of them than values.
    while let Some(candidate) = best(values, &found) {
        let p = significance(values, &found, candidate.distance, &mut rng);
        if p > p_max {
            break;
        }
        let at = found.partition_point(|point| point.index < candidate.index);
        let Candidate { index, distance } = candidate;
        found.insert(at, ChangePoint { index, distance, p });
    }
    for point in &mut found {
        point.index += skipped;
    }
    found
}

/// Returns the change points of the positive `values` at which the level changes by at least the
/// part `effect`: of those that [`find`] returns at 5 %, the smallest is dropped, and the levels
/// are those of what is left, until all are as large.
pub fn notable(values: &[f64], effect: f64, seed: u64) -> Vec<Change> {
    let mut found = find(values, 0.05, seed);
    // Each round drops a change point.
    loop {
        let changes = changes(values, &found);
        let size = |change: &Change| change.ratio.ln().abs();
        let least =
            (0..changes.len()).min_by(|a, b| size(&changes[*a]).total_cmp(&size(&changes[*b])));
        match least {
            Some(least) if (changes[least].ratio - 1.0).abs() < effect => drop(found.remove(least)),
            Some(_) | None => return changes,
        }
    }
}

/// The change points with the ratios of the medians on both sides.
fn changes(values: &[f64], found: &[ChangePoint]) -> Vec<Change> {
    let levels: Vec<f64> = segments(values.len(), found)
        .into_iter()
        .map(|(start, end)| statistics::median(&values[start..end]).unwrap_or(0.0))
        .collect();
    let ratio = |pair: &[f64]| if pair[0] > 0.0 { pair[1] / pair[0] } else { 1.0 };
    let ratios = levels.windows(2).map(ratio);
    found.iter().zip(ratios).map(|(p, ratio)| Change { index: p.index, ratio }).collect()
}

/// Returns the best split of `values`, or `None` of fewer than two.
pub fn candidate(values: &[f64]) -> Option<Candidate> {
    let sums = Sums::new(values);
    let mut best: Option<Candidate> = None;
    for split in 1..values.len() {
        for end in split + 1..=values.len() {
            let distance = sums.distance(split, end);
            if best.is_none_or(|best| distance > best.distance) {
                best = Some(Candidate { index: split, distance });
            }
        }
    }
    best
}

/// The best split of all segments between the change points found so far.
fn best(values: &[f64], found: &[ChangePoint]) -> Option<Candidate> {
    let mut best: Option<Candidate> = None;
    for (start, end) in segments(values.len(), found) {
        let Some(candidate) = candidate(&values[start..end]) else { continue };
        if best.is_none_or(|best| candidate.distance > best.distance) {
            best = Some(Candidate { index: candidate.index + start, ..candidate });
        }
    }
    best
}

fn significance(
    values: &[f64],
    found: &[ChangePoint],
    distance: f64,
    rng: &mut fastrand::Rng,
) -> f64 {
    let mut shuffled = values.to_vec();
    let mut as_large = 0_u32;
    for _ in 0..PERMUTATIONS {
        for (start, end) in segments(values.len(), found) {
            rng.shuffle(&mut shuffled[start..end]);
        }
        let other = best(&shuffled, found);
        as_large += u32::from(other.is_some_and(|other| other.distance >= distance));
    }
    f64::from(as_large) / f64::from(PERMUTATIONS + 1)
}

fn segments(length: usize, found: &[ChangePoint]) -> Vec<(usize, usize)> {
    let ends = found.iter().map(|point| point.index).chain([length]);
    let starts = [0].into_iter().chain(found.iter().map(|point| point.index));
    starts.zip(ends).collect()
}

/// Sums of the distances of all pairs of values with indices below a pair of bounds.
struct Sums {
    width: usize,
    /// `sums[i * width + j]`: over pairs with the first index below `i` and the second below `j`.
    sums: Vec<f64>,
}

impl Sums {
    fn new(values: &[f64]) -> Self {
        let width = values.len() + 1;
        let mut sums = vec![0.0; width * width];
        for (i, a) in values.iter().enumerate() {
            let mut line = 0.0;
            for (j, b) in values.iter().enumerate() {
                line += (a - b).abs();
                sums[(i + 1) * width + j + 1] = sums[i * width + j + 1] + line;
            }
        }
        Self { width, sums }
    }

    /// The energy distance of the values below `split` and those from there to below `end`.
    #[allow(clippy::cast_precision_loss, reason = "lengths of series are small")]
    fn distance(&self, split: usize, end: usize) -> f64 {
        let sum = |i: usize, j: usize| self.sums[i * self.width + j];
        let (n, m) = (split as f64, (end - split) as f64);
        let across = sum(split, end) - sum(split, split);
        // Each pair is in the square twice.
        let first = sum(split, split) / 2.0;
        let second = 0.5 * (sum(end, end) - 2.0 * sum(split, end) + sum(split, split));
        let both = m + n;
        let mut distance = 2.0 / both * across;
        if n > 1.0 {
            distance -= 2.0 * m / (both * (n - 1.0)) * first;
        }
        if m > 1.0 {
            distance -= 2.0 * n / (both * (m - 1.0)) * second;
        }
        distance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Fixture {
        name: String,
        series: Vec<f64>,
        index: usize,
        distance: f64,
        /// Change points of five seeds, each.
        points: Vec<Vec<usize>>,
    }

    /// The fixtures are what Apache Otava finds; `lab/fixtures/make_otava.py` makes them.
    fn fixtures() -> Vec<Fixture> {
        serde_json::from_str(include_str!("../../fixtures/otava.json")).expect("fixtures")
    }

    #[test]
    fn candidates_are_those_of_apache_otava() {
        for fixture in fixtures() {
            let have = candidate(&fixture.series).expect("a candidate");
            assert_eq!(have.index, fixture.index, "{}", fixture.name);
            let away = (have.distance - fixture.distance).abs();
            assert!(away <= 1e-9 * fixture.distance.abs().max(1.0), "{}", fixture.name);
        }
    }

    /// The random orders differ, so the seeds of one side differ among themselves where a change is
    /// at the limit; the sets of results must overlap, and agree where Otava agrees with itself.
    #[test]
    fn change_points_are_those_of_apache_otava() {
        for fixture in fixtures() {
            let ours: Vec<Vec<usize>> = (0..5).map(|seed| indices(&fixture.series, seed)).collect();
            assert!(
                ours.iter().any(|points| fixture.points.contains(points)),
                "{}: have {ours:?}, want {:?}",
                fixture.name,
                fixture.points
            );
            if fixture.points.windows(2).all(|pair| pair[0] == pair[1]) {
                let equal = ours.iter().filter(|points| **points == fixture.points[0]).count();
                assert!(equal >= 4, "{}: {ours:?}, {:?}", fixture.name, fixture.points[0]);
            }
        }
    }

    fn indices(series: &[f64], seed: u64) -> Vec<usize> {
        find(series, 0.05, seed).iter().map(|point| point.index).collect()
    }

    #[test]
    fn series_too_short_or_flat_have_no_change_points() {
        for series in [&[][..], &[1.0], &[1.0, 2.0], &[3.0; 40]] {
            assert!(find(series, 0.05, 1).is_empty(), "{series:?}");
        }
    }

    #[test]
    fn changes_too_small_to_matter_are_dropped() {
        let mut series = [100.0, 100.1].repeat(10);
        series.extend([101.0, 101.1].repeat(10));
        series.extend([90.0, 90.1].repeat(10));
        assert_eq!(find(&series, 0.05, 1).len(), 2);
        let changes = notable(&series, 0.02, 1);
        assert_eq!(changes.len(), 1);
        assert!(changes[0].index == 40 && (changes[0].ratio - 0.9).abs() < 0.01, "{changes:?}");
        assert_eq!(notable(&series, 0.005, 1).len(), 2);
        assert!(notable(&[0.0; 30], 0.02, 1).is_empty());
    }

    #[test]
    fn of_a_long_series_the_last_values_are_searched() {
        let mut series = vec![1.0; 300];
        series.extend([2.0; 20]);
        let whole = find(&series, 0.05, 1);
        assert_eq!(whole[0].index, 300);
        let mut long = vec![1.0; VALUES_MAX];
        long.extend([2.0; 20]);
        assert_eq!(find(&long, 0.05, 1)[0].index, VALUES_MAX);
    }
}
