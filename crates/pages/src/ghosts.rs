//! Ghost entries: fingerprints of pages that were recently evicted from the small queue.
//!
//! A page that is read again while it has a ghost entry was evicted too early, so it is admitted to
//! the main queue.
//!
//! Laws:
//!
//! 1. The memory of the table is fixed: 8 bytes for each entry.
//! 2. An entry expires after as many evictions as the table reaches back, or earlier if its bucket
//!    is full.
//! 3. Two pages may have the same fingerprint, in about one of 2^30 lookups. The effect is that a
//!    page is admitted to the wrong queue.

const WAYS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Ghost {
    /// The fingerprint; 0 marks an empty entry.
    fingerprint: u32,
    since: u32,
}

#[derive(Debug)]
pub(crate) struct Ghosts {
    buckets: Box<[[Ghost; WAYS]]>,
    clock: u32,
    reach: u32,
}

impl Ghosts {
    /// Makes a table that reaches back `reach` evictions.
    pub(crate) fn new(reach: usize) -> Self {
        // A third more entries than evictions, so that few buckets are full.
        let buckets = (reach / 3).max(1);
        let reach = u32::try_from(reach).unwrap_or(u32::MAX / 2);
        Self { buckets: vec![[Ghost::default(); WAYS]; buckets].into(), clock: 0, reach }
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        self.clock = self.clock.wrapping_add(1);
        let (clock, ghost) =
            (self.clock, Ghost { fingerprint: fingerprint(hash), since: self.clock });
        let bucket = self.bucket(hash);
        let age = |ghost: &Ghost| match ghost.fingerprint {
            0 => u32::MAX,
            fingerprint if fingerprint == self::fingerprint(hash) => u32::MAX - 1,
            _ => clock.wrapping_sub(ghost.since).min(u32::MAX - 2),
        };
        if let Some(oldest) = bucket.iter_mut().max_by_key(|ghost| age(ghost)) {
            *oldest = ghost;
        }
    }

    /// Removes the entry of a page. Returns whether there was one that had not expired.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let (clock, reach) = (self.clock, self.reach);
        let mut bucket = self.bucket(hash).iter_mut();
        let Some(ghost) = bucket.find(|ghost| ghost.fingerprint == fingerprint(hash)) else {
            return false;
        };
        let is_recent = clock.wrapping_sub(ghost.since) < reach;
        *ghost = Ghost::default();
        is_recent
    }

    fn bucket(&mut self, hash: u64) -> &mut [Ghost; WAYS] {
        let count = u64::try_from(self.buckets.len()).unwrap_or(1);
        let number = usize::try_from((hash >> 32) % count).unwrap_or(0);
        &mut self.buckets[number]
    }
}

/// Returns the fingerprint of a hash, never 0.
fn fingerprint(hash: u64) -> u32 {
    u32::try_from(hash & 0xffff_ffff).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spreads consecutive numbers over all hashes.
    fn mix(number: u64) -> u64 {
        (number ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    #[test]
    fn recent_ghosts_are_found_once_and_old_ghosts_expire() {
        let mut ghosts = Ghosts::new(1000);
        for number in 0..3000 {
            ghosts.insert(mix(number));
        }
        let recent = (2500..3000).filter(|number| ghosts.take(mix(*number))).count();
        assert!(recent > 450, "{recent} of 500 recent ghosts are found");
        assert_eq!((2500..3000).filter(|number| ghosts.take(mix(*number))).count(), 0);
        assert_eq!((0..2000).filter(|number| ghosts.take(mix(*number))).count(), 0);
    }
}
