//! Offsets, lengths, sizes and modes at the edges of layouts.

use super::Generator;

/// Sizes in bytes at which layouts change: sectors, inline limits, compressed extents, readahead.
const EDGES: [u64; 12] =
    [0, 512, 2048, 3900, 4096, 8192, 12_288, 16_384, 65_536, 131_072, 262_144, 1 << 20];

/// Offsets that make a file almost all hole.
const FAR: [u64; 3] = [1 << 24, 1 << 32, 1 << 40];

/// Maximum length of a copy that ends with a file. The model has the bytes of a copy in memory, and
/// files can be larger than memory.
const COPIED_MAX: u64 = 1 << 20;

impl Generator {
    /// Returns a number at or near an edge.
    fn near_edge(&mut self) -> u64 {
        let few = if self.random.one_in(3) { EDGES.len() } else { 8 };
        let edge = EDGES[self.random.index(few)];
        match self.random.below(6) {
            0 => edge + 1,
            1 => edge.saturating_sub(1),
            2 => edge + self.random.below(4096),
            _ => edge,
        }
    }

    pub(super) fn offset(&mut self, size: u64) -> u64 {
        match self.random.below(16) {
            0..=5 => self.near_edge(),
            6 => size,
            7 => size.saturating_sub(self.near_edge()),
            8..=9 => size.next_multiple_of(4096),
            10 if self.random.one_in(12) => *self.random.pick(&FAR),
            _ => self.random.below(size.max(1)),
        }
    }

    pub(super) fn length(&mut self) -> u64 {
        match self.random.below(8) {
            0..=2 => self.random.below(5000),
            3 if self.random.one_in(4) => self.random.below(400_000),
            _ => self.near_edge().min(200_000 + self.random.below(100_000)),
        }
    }

    /// Returns the offsets and the length of a copy from a file of `size` bytes: half of the copies
    /// have whole blocks that can be shared, and some of these end with the file.
    pub(super) fn for_copy(
        &mut self,
        size: u64,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> (u64, u64, u64) {
        if self.random.one_in(2) {
            return (from, to, bytes);
        }
        let skip = if self.random.one_in(4) { from % 4096 } else { 0 };
        let from = from - from % 4096 + skip;
        let rest = size.saturating_sub(from);
        let bytes = if self.random.one_in(3) && rest <= COPIED_MAX { rest } else { bytes };
        (from, to - to % 4096 + skip, bytes)
    }

    pub(super) fn new_size(&mut self, size: u64) -> u64 {
        match self.random.below(8) {
            0..=1 => 0,
            2..=4 => self.near_edge(),
            5 => size + self.random.below(10_000),
            6 if self.random.one_in(8) => *self.random.pick(&FAR),
            _ => self.random.below(size.max(1)),
        }
    }

    pub(super) fn mode(&mut self) -> u32 {
        *self.random.pick(&[
            0o644, 0o755, 0o600, 0o777, 0o000, 0o4755, 0o2755, 0o1777, 0o2644, 0o6777, 0o070, 0o7,
        ])
    }
}
