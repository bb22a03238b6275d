//! RAID5 and RAID6 arithmetic: parity over GF(2^8), with the polynomial 0x11d and generator 2 that
//! Linux uses for md and btrfs.
//!
//! A row is `n` elements of equal length: the data elements in order, then P, then (with two
//! parities) Q.
//!
//! ```text
//! P = D0 + D1 + ... + Dk         Q = g^0 D0 + g^1 D1 + ... + g^k Dk         (+ is xor, g = 2)
//! ```
//!
//! Laws:
//! 1. Every element of a row is a linear combination of the remaining elements, as long as no more
//!    elements are lost than there are parities. [`recipe`] computes the coefficients; [`combine`]
//!    applies them to bytes.
//! 2. The vector loop gives the same bytes as the scalar loop; a test compares them.
//!
//! The caller knows which elements of a row are lost, and verifies the result.

use std::sync::LazyLock;

/// Maximum number of elements of a row: the coefficients of Q repeat after 255 data elements.
pub const ELEMENTS_MAX: usize = 255;

/// The number of parity elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parities {
    /// P only (RAID5).
    One,
    /// P and Q (RAID6).
    Two,
}

impl Parities {
    pub const fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The coefficients that compute one lost element from the remaining ones, in row order. An element
/// with coefficient zero is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    coefficients: Vec<u8>,
}

impl Recipe {
    pub fn coefficients(&self) -> &[u8] {
        &self.coefficients
    }
}

/// Returns the recipe for element `lost` of a row of `elements`, without using `also_lost` either.
/// Returns `None` if that many losses cannot be recovered, or an index is not in the row.
pub fn recipe(
    elements: usize,
    parities: Parities,
    lost: usize,
    also_lost: Option<usize>,
) -> Option<Recipe> {
    let data = elements.checked_sub(parities.count()).filter(|&data| data > 0)?;
    let other = also_lost.filter(|&other| other != lost);
    if elements > ELEMENTS_MAX || lost >= elements || other.is_some_and(|other| other >= elements) {
        return None;
    }
    let mut coefficients = vec![0; elements];
    let (p, q) = (data, data + 1);
    match parities {
        Parities::One if other.is_some() => return None,
        Parities::One => coefficients.fill(1),
        Parities::Two => match (lost, other) {
            (_, None) if lost == q => q_from_data(&mut coefficients, data),
            (_, None) => p_equation(&mut coefficients, data),
            (_, Some(other)) if lost < data && other == q => p_equation(&mut coefficients, data),
            (_, Some(other)) if lost < data && other == p => {
                q_equation(&mut coefficients, data, inverse(power(lost)));
            }
            (_, Some(other)) if lost < data => two_data(&mut coefficients, data, lost, other),
            (_, Some(other)) if other >= data && lost == p => p_equation(&mut coefficients, data),
            (_, Some(other)) if other >= data => q_from_data(&mut coefficients, data),
            (_, Some(other)) if lost == p => p_without(&mut coefficients, data, other),
            (_, Some(other)) => q_without(&mut coefficients, data, other),
        },
    }
    for absent in [Some(lost), other].into_iter().flatten() {
        coefficients[absent] = 0;
    }
    Some(Recipe { coefficients })
}

/// Writes the sum of `coefficient x element` to `out`.
///
/// # Panics
/// If an element with a coefficient is not as long as `out`, or there are fewer elements than
/// coefficients. Both lengths are the caller's own, never from a disk.
pub fn combine(recipe: &Recipe, row: &[&[u8]], out: &mut [u8]) {
    assert!(row.len() >= recipe.coefficients.len(), "a recipe needs its whole row");
    out.fill(0);
    for (&coefficient, element) in recipe.coefficients.iter().zip(row) {
        if coefficient != 0 {
            multiply_add(coefficient, element, out);
        }
    }
}

/// Computes P (and Q) of a row from its data.
///
/// # Panics
/// If the lengths differ.
pub fn generate(data: &[&[u8]], p: &mut [u8], q: Option<&mut [u8]>) {
    p.fill(0);
    for element in data {
        multiply_add(1, element, p);
    }
    if let Some(q) = q {
        q.fill(0);
        for (index, element) in data.iter().enumerate() {
            multiply_add(power(index), element, q);
        }
    }
}

/// Computes `out += coefficient x element`.
///
/// # Panics
/// If the lengths differ.
pub fn multiply_add(coefficient: u8, element: &[u8], out: &mut [u8]) {
    assert_eq!(element.len(), out.len(), "elements of a row have the same length");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as just checked.
        unsafe { avx2::multiply_add(coefficient, element, out) };
        return;
    }
    multiply_add_scalar(coefficient, element, out);
}

/// Computes the same as [`multiply_add`] without vector instructions, for other processors and for
/// the tests.
pub fn multiply_add_scalar(coefficient: u8, element: &[u8], out: &mut [u8]) {
    if coefficient == 1 {
        for (out, byte) in out.iter_mut().zip(element) {
            *out ^= byte;
        }
        return;
    }
    let (low, high) = nibble_products(coefficient);
    for (out, byte) in out.iter_mut().zip(element) {
        *out ^= low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)];
    }
}

/// Returns the product of two field elements.
pub fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let sum = usize::from(FIELD.log[usize::from(a)]) + usize::from(FIELD.log[usize::from(b)]);
    FIELD.power[sum % 255]
}

fn p_equation(coefficients: &mut [u8], data: usize) {
    coefficients[..=data].fill(1);
}

fn q_from_data(coefficients: &mut [u8], data: usize) {
    for (index, coefficient) in coefficients[..data].iter_mut().enumerate() {
        *coefficient = power(index);
    }
}

/// The Q equation times `scale`, without P.
fn q_equation(coefficients: &mut [u8], data: usize, scale: u8) {
    for (index, coefficient) in coefficients[..data].iter_mut().enumerate() {
        *coefficient = multiply(scale, power(index));
    }
    coefficients[data + 1] = scale;
}

/// Data `x` when data `y` is lost too: `a P + b Q + sum (a + b g^i) Di`, with `a = g^(y-x) /
/// (g^(y-x) + 1)` and `b = g^-x / (g^(y-x) + 1)`.
fn two_data(coefficients: &mut [u8], data: usize, x: usize, y: usize) {
    let distance = multiply(power(y), inverse(power(x)));
    let divisor = inverse(distance ^ 1);
    let a = multiply(distance, divisor);
    let b = multiply(inverse(power(x)), divisor);
    for (index, coefficient) in coefficients[..data].iter_mut().enumerate() {
        *coefficient = a ^ multiply(b, power(index));
    }
    coefficients[data] = a;
    coefficients[data + 1] = b;
}

/// P when data `y` is lost too: `y` is recovered from Q, then P is the sum.
fn p_without(coefficients: &mut [u8], data: usize, y: usize) {
    let scale = inverse(power(y));
    for (index, coefficient) in coefficients[..data].iter_mut().enumerate() {
        *coefficient = 1 ^ multiply(scale, power(index));
    }
    coefficients[data + 1] = scale;
}

/// Q when data `y` is lost too: `y` is recovered from P, then Q is the weighted sum.
fn q_without(coefficients: &mut [u8], data: usize, y: usize) {
    for (index, coefficient) in coefficients[..data].iter_mut().enumerate() {
        *coefficient = power(index) ^ power(y);
    }
    coefficients[data] = power(y);
}

fn power(exponent: usize) -> u8 {
    FIELD.power[exponent % 255]
}

/// Returns the inverse of a field element other than zero.
fn inverse(a: u8) -> u8 {
    FIELD.power[(255 - usize::from(FIELD.log[usize::from(a)])) % 255]
}

/// Returns `coefficient` times each low nibble, and times each high nibble.
fn nibble_products(coefficient: u8) -> ([u8; 16], [u8; 16]) {
    let mut low = [0; 16];
    let mut high = [0; 16];
    for nibble in 0..16_u8 {
        low[usize::from(nibble)] = multiply(coefficient, nibble);
        high[usize::from(nibble)] = multiply(coefficient, nibble << 4);
    }
    (low, high)
}

struct Field {
    power: [u8; 255],
    log: [u8; 256],
}

static FIELD: LazyLock<Field> = LazyLock::new(|| {
    let mut field = Field { power: [0; 255], log: [0; 256] };
    let mut value = 1_u8;
    for exponent in 0..255_u8 {
        field.power[usize::from(exponent)] = value;
        field.log[usize::from(value)] = exponent;
        value = (value << 1) ^ if value & 0x80 == 0 { 0 } else { 0x1d };
    }
    field
});

#[cfg(target_arch = "x86_64")]
#[expect(clippy::cast_ptr_alignment, reason = "the loads and stores here need no alignment")]
mod avx2 {
    use super::{multiply_add_scalar, nibble_products};
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
        _mm256_loadu_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi64,
        _mm256_storeu_si256, _mm256_xor_si256,
    };

    const LANE_BYTES: usize = 32;

    #[target_feature(enable = "avx2")]
    pub(super) fn multiply_add(coefficient: u8, element: &[u8], out: &mut [u8]) {
        let (low, high) = nibble_products(coefficient);
        let (low, high) = (broadcast(&low), broadcast(&high));
        let nibble = _mm256_set1_epi8(15);
        let (elements, element_rest) = element.as_chunks::<LANE_BYTES>();
        let (outs, out_rest) = out.as_chunks_mut::<LANE_BYTES>();
        for (element, out) in elements.iter().zip(outs) {
            let value = load(element);
            let product = if coefficient == 1 {
                value
            } else {
                let upper = _mm256_and_si256(_mm256_srli_epi64::<4>(value), nibble);
                let lower = _mm256_and_si256(value, nibble);
                _mm256_xor_si256(_mm256_shuffle_epi8(low, lower), _mm256_shuffle_epi8(high, upper))
            };
            let sum = _mm256_xor_si256(load(out), product);
            // SAFETY: `out` is 32 writable bytes, and the store needs no alignment.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast::<__m256i>(), sum) };
        }
        multiply_add_scalar(coefficient, element_rest, out_rest);
    }

    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; LANE_BYTES]) -> __m256i {
        // SAFETY: `bytes` is 32 readable bytes, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>()) }
    }

    #[target_feature(enable = "avx2")]
    fn broadcast(table: &[u8; 16]) -> __m256i {
        // SAFETY: `table` is 16 readable bytes, and the load needs no alignment.
        let half = unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) };
        _mm256_broadcastsi128_si256(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(data: &[Vec<u8>], parities: Parities) -> Vec<Vec<u8>> {
        let bytes = data[0].len();
        let mut row = data.to_vec();
        let (mut p, mut q) = (vec![0; bytes], vec![0; bytes]);
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        generate(&slices, &mut p, Some(&mut q));
        row.push(p);
        if parities == Parities::Two {
            row.push(q);
        }
        row
    }

    fn check_every_loss(row: &[Vec<u8>], parities: Parities) {
        let bytes = row[0].len();
        let others = |lost: usize| {
            let two = (0..row.len()).filter(move |&other| other != lost).map(Some);
            std::iter::once(None).chain(two.take(row.len() * (parities.count() - 1)))
        };
        for lost in 0..row.len() {
            for other in others(lost) {
                let junk = vec![0xa5; bytes];
                let left: Vec<&[u8]> = (0..row.len())
                    .map(|i| if i == lost || Some(i) == other { &junk } else { &row[i] })
                    .map(Vec::as_slice)
                    .collect();
                let recipe = recipe(row.len(), parities, lost, other).unwrap();
                let mut out = vec![0x5a; bytes];
                combine(&recipe, &left, &mut out);
                assert_eq!(out, row[lost], "lost {lost} and {other:?} of {}", row.len());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn losses_up_to_the_number_of_parities_are_recovered(
            elements in 1_usize..12,
            bytes in 1_usize..200,
            seed in any::<u64>(),
        ) {
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            };
            let data: Vec<Vec<u8>> =
                (0..elements).map(|_| (0..bytes).map(|_| next()).collect()).collect();
            check_every_loss(&row(&data, Parities::One), Parities::One);
            check_every_loss(&row(&data, Parities::Two), Parities::Two);
        }

        #[test]
        fn the_vector_loop_equals_the_scalar_loop(
            coefficient in any::<u8>(),
            element in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut vector: Vec<u8> = element.iter().map(|b| b.wrapping_mul(31)).collect();
            let mut scalar = vector.clone();
            multiply_add(coefficient, &element, &mut vector);
            multiply_add_scalar(coefficient, &element, &mut scalar);
            prop_assert_eq!(vector, scalar);
        }
    }

    #[test]
    fn the_field_is_the_one_of_linux_raid6() {
        assert_eq!(multiply(0x80, 2), 0x1d);
        assert_eq!(power(8), 0x1d);
        for a in 1..=255_u8 {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
        }
        // Compares the tables with the definition, shift and add.
        for (a, b) in (0..=255_u8).flat_map(|a| (0..=255_u8).map(move |b| (a, b))) {
            let mut want = 0;
            let mut term = a;
            for bit in 0..8 {
                if b >> bit & 1 == 1 {
                    want ^= term;
                }
                term = (term << 1) ^ if term & 0x80 == 0 { 0 } else { 0x1d };
            }
            assert_eq!(multiply(a, b), want, "{a} x {b}");
        }
    }

    #[test]
    fn more_losses_than_parities_have_no_recipe() {
        assert_eq!(recipe(4, Parities::One, 0, Some(1)), None);
        assert_eq!(recipe(4, Parities::One, 4, None), None);
        assert_eq!(recipe(4, Parities::Two, 0, Some(4)), None);
        assert_eq!(recipe(1, Parities::One, 0, None), None);
        assert_eq!(recipe(2, Parities::Two, 0, None), None);
        assert!(recipe(4, Parities::One, 0, Some(0)).is_some());
    }

    #[test]
    fn the_widest_row_is_recovered() {
        let data: Vec<Vec<u8>> = (0..=252_u8).map(|i| vec![i, i.rotate_left(3) ^ 0x55]).collect();
        let row = row(&data, Parities::Two);
        let left: Vec<&[u8]> = row.iter().map(Vec::as_slice).collect();
        for (lost, other) in [(0, 252), (251, 252), (252, 0), (100, 253), (100, 254)] {
            let recipe = recipe(row.len(), Parities::Two, lost, Some(other)).unwrap();
            let mut out = vec![0; 2];
            combine(&recipe, &left, &mut out);
            assert_eq!(out, row[lost]);
        }
    }
}
