//! Tests of estimates and tests, against figures of textbooks and of scipy.

use super::*;

fn near(have: f64, want: f64) {
    assert!((have - want).abs() <= 1e-6 * want.abs().max(1.0), "have {have}, want {want}");
}

/// The figures are those of
/// `scipy.stats.ttest_ind(a, b, equal_var=False, trim=0.2)` and, for three values, `trim=0`.
#[test]
fn the_trimmed_test_agrees_with_scipy() {
    let a = [4.61, 4.58, 4.65, 4.60, 4.20, 4.63, 4.59, 4.62, 4.66, 4.57];
    let b = [4.55, 4.50, 4.57, 4.52, 4.54, 4.56, 4.90, 4.51, 4.53, 4.58];
    let test = compare(estimate(&a).expect("ten"), estimate(&b).expect("ten"));
    near(test.p, SCIPY_TRIMMED);
    let test = compare(estimate(&a[..3]).expect("three"), estimate(&b[..3]).expect("three"));
    near(test.p, SCIPY_WELCH);
}

const SCIPY_TRIMMED: f64 = 0.005_142_322_376_366_008;
const SCIPY_WELCH: f64 = 0.065_151_183_665_236_15;

#[test]
fn few_values_are_not_judged() {
    assert_eq!(estimate(&[1.0, 2.0]), None);
    assert_eq!(compare_pairs(&[0.1, 0.2]), None);
    assert_eq!(compare_one(&[1.0, 2.0], 3.0, 0.0), None);
    assert_eq!((median(&[]), location(&[]), mean(&[])), (None, None, None));
}

#[test]
fn one_outlier_in_five_values_does_not_move_the_location() {
    near(location(&[1.0, 2.0, 3.0, 4.0, 1e9]).expect("five"), 3.0);
    near(location(&[1.0, 2.0, 3.0, 6.0]).expect("four"), 3.0);
}

/// The worked example of Benjamini and Hochberg (1995), section 3.2: four of fifteen are rejected.
#[test]
fn false_discoveries_are_controlled_as_in_the_paper() {
    let p = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0,
    ];
    let adjusted = adjusted(&p);
    assert_eq!(adjusted.iter().filter(|p| **p <= 0.05).count(), 4);
    near(adjusted[3], 0.0095 * 15.0 / 4.0);
    assert!(adjusted.windows(2).all(|pair| pair[0] <= pair[1]));
}

#[test]
fn dominance_counts_pairs() {
    near(dominance(&[1.0, 2.0], &[3.0, 4.0]), 1.0);
    near(dominance(&[3.0, 4.0], &[1.0, 2.0]), -1.0);
    near(dominance(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
    near(dominance(&[], &[1.0]), 0.0);
}

#[test]
fn values_that_repeat_exactly_are_not_taken_for_exact() {
    let flat = estimate(&[4.6; 3]).expect("three");
    assert!(flat.variance > 0.0);
    assert!(compare(flat, Estimate { mean: 4.6005, ..flat }).p > 0.5);
    assert!(compare(flat, Estimate { mean: 4.7, ..flat }).p < 1e-4);
}

/// Of intervals of 95 % on five lognormal values, between 92 and 99 % hold the true location.
#[test]
fn intervals_hold_the_true_value_as_often_as_they_say() {
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut held, trials) = (0, 300);
    for seed in 0..trials {
        let values: Vec<f64> = (0..8).map(|_| normal(&mut rng)).collect();
        let (low, high) =
            interval(8, 0.95, seed, |rng| location(&resampled(&values, rng))).expect("eight");
        held += u64::from(low <= 0.0 && 0.0 <= high);
    }
    assert!((trials * 92 / 100..=trials * 99 / 100).contains(&held), "{held} of {trials}");
}

fn normal(rng: &mut fastrand::Rng) -> f64 {
    let (u, v) = (1.0 - rng.f64(), rng.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[test]
fn the_visible_effect_grows_with_noise_and_shrinks_with_repeats() {
    assert!(visible(0.02, 4.0, 0.05) > visible(0.01, 4.0, 0.05));
    assert!(visible(0.01, 4.0, 0.05) > visible(0.01, 20.0, 0.05));
    assert!(visible(0.01, 4.0, 0.001) > visible(0.01, 4.0, 0.05));
}
