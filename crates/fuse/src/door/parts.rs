//! [`Parts`]: a change of file data below the kernel's page cache, where the kernel must drop the
//! pages first.
//!
//! Readers may fill the pages again and again. So the change is applied in parts: a part is halved,
//! down to one page, until no page of it is filled during an invalidation; the next one is twice as
//! long.

use std::ops::Range;
use std::os::fd::OwnedFd;

use crate::connection;
use crate::errno::ErrnoResult;
use crate::handles::fills::{ApplyingWrite, Fills, StalePages};

/// Invalidations per part of a change, after which the part is halved. Dirty pages need two.
const ROUNDS_MAX: u32 = 4;
const PAGE_BYTES: u64 = 4096;

/// A range of a file that changes.
pub(super) struct Parts<'a> {
    pub(super) fills: &'a Fills,
    pub(super) device: &'a OwnedFd,
    pub(super) node: u64,
    pub(super) range: Range<u64>,
    /// Whether a call that changes less than the range succeeds, as a short write or copy.
    pub(super) may_be_short: bool,
}

impl Parts<'_> {
    /// Applies the change after the kernel has dropped the pages. `begin` begins a further part,
    /// and `apply` applies one and returns how many of its bytes it has changed. Returns how many
    /// bytes were changed from the start on. A change that may be short fails only if none was.
    pub(super) fn apply_after(
        &self,
        stale: StalePages,
        begin: for<'f> fn(&'f Fills, Range<u64>) -> Result<ApplyingWrite<'f>, StalePages>,
        apply: impl Fn(Range<u64>) -> ErrnoResult<u64>,
    ) -> ErrnoResult<u64> {
        let Range { start, end } = self.range;
        let (mut part, mut rounds) = (start..end, 0);
        let mut result = Err(stale);
        loop {
            match result {
                Err(stale) => {
                    connection::invalidate_page_range(self.device, self.node, &stale.pages);
                    rounds += 1;
                    if rounds > ROUNDS_MAX {
                        (part.end, rounds) = (half(&part), 0);
                    }
                    result = self.fills.begin_write_after(&stale, part.clone());
                }
                Ok(applying) => {
                    let bytes = part.end - part.start;
                    let done = apply(part.clone());
                    drop(applying);
                    if done.is_err() && (part.start == start || !self.may_be_short) {
                        return done;
                    }
                    let at = part.start.saturating_add(done.unwrap_or(0));
                    if at < part.end || at >= end {
                        return Ok(at - start);
                    }
                    let next = at.saturating_add(bytes.saturating_mul(2)).min(end);
                    (part, rounds) = (at..next, 0);
                    result = begin(self.fills, part.clone());
                }
            }
        }
    }
}

/// Returns the end of the first half of a range, page-aligned and at least one page long.
pub(super) fn half(of: &Range<u64>) -> u64 {
    let middle = (of.start + (of.end - of.start) / 2) / PAGE_BYTES * PAGE_BYTES;
    let first_end = (of.start / PAGE_BYTES + 1) * PAGE_BYTES;
    middle.max(first_end).min(of.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_halved_down_to_one_page() {
        assert_eq!(half(&(0..1 << 20)), 1 << 19);
        assert_eq!(half(&(100..3 * 4096)), 4096);
        assert_eq!(half(&(4000..4200)), 4096);
        assert_eq!(half(&(0..4096)), 4096);
        assert_eq!(half(&(8..16)), 16);
        assert_eq!(half(&(5000..5000 + 4096)), 8192);
    }
}
