//! Ghosts: pages that were evicted not long ago, as fingerprints.
//!
//! A page that comes back while its ghost is about was evicted too early, and goes where the hot
//! ones are.
//!
//! 1. Memory is fixed when the table is made: 8 bytes a ghost.
//! 2. A ghost is gone after as many others as the table reaches back, if not sooner.
//! 3. Two pages may share a fingerprint: once in 2^29 look-ups one is taken for the other, which
//!    costs a place in the wrong queue.

const WAYS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Ghost {
    /// 0: none.
    print: u32,
    since: u32,
}

#[derive(Debug)]
pub(crate) struct Ghosts {
    buckets: Box<[[Ghost; WAYS]]>,
    clock: u32,
    reach: u32,
}

impl Ghosts {
    /// A table that reaches back `reach` evictions.
    pub(crate) fn new(reach: usize) -> Self {
        // A third more places than ghosts: few are pushed out by their neighbours.
        let buckets = (reach / 3).max(1);
        let reach = u32::try_from(reach).unwrap_or(u32::MAX / 2);
        Self { buckets: vec![[Ghost::default(); WAYS]; buckets].into(), clock: 0, reach }
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        self.clock = self.clock.wrapping_add(1);
        let (clock, ghost) = (self.clock, Ghost { print: print(hash), since: self.clock });
        let bucket = self.bucket(hash);
        let age = |ghost: &Ghost| match ghost.print {
            0 => u32::MAX,
            print if print == self::print(hash) => u32::MAX - 1,
            _ => clock.wrapping_sub(ghost.since).min(u32::MAX - 2),
        };
        if let Some(oldest) = bucket.iter_mut().max_by_key(|ghost| age(ghost)) {
            *oldest = ghost;
        }
    }

    /// Whether there is such a ghost. It is gone then.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let (clock, reach) = (self.clock, self.reach);
        let mut bucket = self.bucket(hash).iter_mut();
        let Some(ghost) = bucket.find(|ghost| ghost.print == print(hash)) else { return false };
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

/// Never 0.
fn print(hash: u64) -> u32 {
    u32::try_from(hash & 0xffff_ffff).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any mixing will do.
    fn mix(number: u64) -> u64 {
        (number ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    #[test]
    fn recent_ghosts_are_known_once_and_old_ones_are_not() {
        let mut ghosts = Ghosts::new(1000);
        for number in 0..3000 {
            ghosts.insert(mix(number));
        }
        let recent = (2500..3000).filter(|number| ghosts.take(mix(*number))).count();
        assert!(recent > 450, "{recent} of 500 recent ghosts are known");
        assert_eq!((2500..3000).filter(|number| ghosts.take(mix(*number))).count(), 0);
        assert_eq!((0..2000).filter(|number| ghosts.take(mix(*number))).count(), 0);
    }
}
