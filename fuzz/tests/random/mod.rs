//! Pseudo-random inputs, and settings from the environment.

/// A pseudo-random generator, so that a seed always gives the same bytes.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns up to `max` bytes: noise, small numbers or runs, since noise alone reaches little
    /// code.
    #[allow(dead_code, reason = "not every test uses it")]
    pub(crate) fn input(&mut self, max: usize) -> Vec<u8> {
        let len = usize::try_from(self.next()).expect("a 64-bit machine") % max;
        let style = self.next() % 3;
        (0..len)
            .map(|_| {
                let byte = self.next();
                match style {
                    0 => byte.to_le_bytes()[0],
                    1 if !byte.is_multiple_of(4) => 0,
                    _ => (byte % 16).to_le_bytes()[0],
                }
            })
            .collect()
    }
}

/// Returns the number in an environment variable.
pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

pub(crate) fn rounds(default: u64) -> u64 {
    setting("BUTTERNUT_FUZZ_ROUNDS").unwrap_or(default)
}
