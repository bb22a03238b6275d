//! [`Traffic`]: requests on a file that are in flight beyond the call that made them.
//!
//! ```text
//! shared lock, begin --> in flight, no lock held --> end
//!                             ^
//! lock alone, wait -----------+  completes them itself
//! ```
//!
//! Laws:
//!
//! 1. A request in flight shares the file as a reader does. It begins under the caller's shared
//!    lock; whoever has the lock alone finds none once he has waited ([`Traffic::wait`]), and none
//!    begins before he lets go.
//! 2. Who waits completes what is in flight himself ([`Help`]): nothing depends on the thread that
//!    made a request.
//! 3. Space that the file stops showing while others may read it is retired: it becomes free when
//!    somebody has the file alone.
//! 4. A block is never newer in memory than on disk while a direct write of it is in flight. A
//!    direct write of such a block does not begin ([`crate::direct`]); a change that makes a block
//!    dirty first waits, with the inode locked exclusively, until the direct writes of that block
//!    have completed ([`Traffic::wait_for_writes`]). Otherwise the block could be completed from
//!    bytes that the direct write then replaces, and writeback would restore these old bytes.
//! 5. Two direct writes of one block that go to the same place on disk are in flight together only
//!    where there is one copy of it: the copies could end up different.
//!
//! What each lane does when it meets a direct write in flight on the same blocks:
//!
//! | lane | lock | what it waits for | bytes of the block afterwards |
//! |---|---|---|---|
//! | direct write, to new space | shared | nothing | of the write that completed last |
//! | direct write, in place | shared | law 5 | of one of the two, whole |
//! | direct read | shared | nothing | old or new, whole |
//! | cached or uncached write, whole block | exclusive | the block (law 4) | the cached write's |
//! | the same, part of a block | exclusive | the block (law 4) | both: the part lies over it |
//! | write from the kernel's cache, under 512 KiB | exclusive | the block (law 4) | the cache's |
//! | the same, 512 KiB and more | exclusive | the file (law 1) | the cache's |
//! | append; growth of an inline file | exclusive | the last, or first, block (law 4) | both |
//! | the same with `NOWAIT` | exclusive, tried | refused (EAGAIN) | the direct write's |
//! | punch, zero, fallocate | exclusive | the file (law 1) | zeroes where they are punched |
//! | truncate | exclusive | the file (law 1) | the direct write's, before the new end |
//! | copy: its source | shared | nothing | unchanged |
//! | copy: its target | exclusive | as a cached write | the copy's |
//! | writeback of dirty blocks | exclusive, to begin | nothing: law 4 keeps them apart | - |
//! | merge, fsync, commit | exclusive | the file (law 1) | the direct write's |
//! | merge of a part | exclusive, then shared | the file, then nothing | of the last write |

use crate::source::Source;
use butternut_format::units::SECTOR_BYTES;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long a waiter lets one queue's requests take before he looks at the others.
const PATIENCE: Duration = Duration::from_micros(500);

/// Somebody who has requests in flight.
pub trait Help: Debug + Send + Sync {
    /// Hands to the devices what was queued and completes what they have finished, waiting for
    /// some of it at most so long. Must not wait for the lock of any file.
    fn help(&self, patience: Duration);

    /// Gives back space that is held for requests to come.
    fn give_back_space(&self);
}

/// Everybody who has requests in flight on some file of a volume.
#[derive(Debug, Default)]
pub(crate) struct Helpers(Mutex<Vec<Weak<dyn Help>>>);

/// The requests in flight on one file.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    requests: AtomicU64,
    /// Blocks that writes in flight will bring, and extents.
    blocks: AtomicU64,
    extents: AtomicU64,
    writes: Mutex<WritesInFlight>,
    retired: Mutex<Vec<Range<u64>>>,
}

/// The byte ranges of the direct writes in flight. Slots are reused: in a steady state nothing is
/// allocated.
#[derive(Debug, Default)]
struct WritesInFlight {
    slots: Vec<Range<u64>>,
    free: Vec<usize>,
}

/// Names a direct write in flight.
#[derive(Debug)]
pub(crate) struct WriteSlot(usize);

impl WritesInFlight {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        // A free slot has an empty range.
        self.slots.iter().any(|other| other.start < range.end && range.start < other.end)
    }

    fn enter(&mut self, range: Range<u64>) -> WriteSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(0..0);
            self.slots.len() - 1
        });
        if let Some(place) = self.slots.get_mut(slot) {
            *place = range;
        }
        WriteSlot(slot)
    }

    fn leave(&mut self, slot: &WriteSlot) {
        if let Some(place) = self.slots.get_mut(slot.0) {
            *place = 0..0;
            self.free.push(slot.0);
        }
    }
}

impl Helpers {
    pub(crate) fn add(&self, helper: Weak<dyn Help>) {
        let mut all = self.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(helper);
    }

    /// Those who are there now.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Help>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// After a panic: each entry of the list is whole, and was added by itself.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Help>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    pub(crate) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self) {
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes that a direct write of whole blocks is in flight.
    pub(crate) fn begin_write(&self, range: Range<u64>) -> WriteSlot {
        let mut writes = self.writes();
        self.count_write(&range);
        writes.enter(range)
    }

    /// As [`Self::begin_write`], unless a direct write of some of these blocks is in flight.
    pub(crate) fn begin_exclusive_write(&self, range: Range<u64>) -> Option<WriteSlot> {
        let mut writes = self.writes();
        if writes.overlaps(&range) {
            return None;
        }
        self.count_write(&range);
        Some(writes.enter(range))
    }

    fn count_write(&self, range: &Range<u64>) {
        // The one step that can panic, for a range that is none, comes first.
        let blocks = blocks_of(range);
        self.begin();
        self.blocks.fetch_add(blocks, Ordering::AcqRel);
        self.extents.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a direct write has completed. It was begun with this range.
    pub(crate) fn end_write(&self, slot: &WriteSlot, range: &Range<u64>) {
        self.writes().leave(slot);
        self.blocks.fetch_sub(blocks_of(range), Ordering::AcqRel);
        self.extents.fetch_sub(1, Ordering::AcqRel);
        self.end();
    }

    /// Returns whether a direct write of some of these blocks is in flight.
    pub(crate) fn has_writes(&self, range: &Range<u64>) -> bool {
        self.extents.load(Ordering::Acquire) > 0 && self.writes().overlaps(range)
    }

    /// Waits until no direct write of these blocks is in flight, and completes those of other
    /// threads meanwhile. None begins while the caller has the inode locked exclusively; a caller
    /// that shares it looks again afterwards.
    pub(crate) fn wait_for_writes(&self, source: &Source, range: &Range<u64>) {
        help_until(source, &|| !self.has_writes(range));
    }

    /// After a panic: nothing that is done under the lock panics between its first change and its
    /// last.
    fn writes(&self) -> MutexGuard<'_, WritesInFlight> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks and extents of writes in flight.
    pub(crate) fn coming(&self) -> (u64, u64) {
        (self.blocks.load(Ordering::Acquire), self.extents.load(Ordering::Acquire))
    }

    fn is_quiet(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Law 1. The caller has the file alone.
    pub(crate) fn wait(&self, source: &Source) {
        help_until(source, &|| self.is_quiet());
    }

    /// Law 3.
    pub(crate) fn retire(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let mut ranges = ranges.into_iter().peekable();
        if ranges.peek().is_some() {
            self.retired().extend(ranges);
        }
    }

    /// What may become free. The caller has the file alone, and nobody reads ahead in it.
    pub(crate) fn take_retired(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.retired())
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired().is_empty()
    }

    /// After a panic: each range in the list was retired, and one that is not in it stays in use.
    fn retired(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn blocks_of(range: &Range<u64>) -> u64 {
    (range.end - range.start) / SECTOR_BYTES
}

/// Completes requests of every queue until it is so.
fn help_until(source: &Source, is_so: &dyn Fn() -> bool) {
    while !is_so() {
        for helper in source.helpers().all() {
            if is_so() {
                return;
            }
            helper.help(PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_in_flight_are_known_by_their_ranges_until_they_end() {
        let traffic = Traffic::default();
        let one = traffic.begin_write(4096..8192);
        let other = traffic.begin_write(4096..12288);
        assert!(traffic.has_writes(&(8000..8001)) && !traffic.has_writes(&(0..4096)));
        assert!(traffic.begin_exclusive_write(8192..16384).is_none());
        assert_eq!(traffic.coming(), (3, 2));
        traffic.end_write(&other, &(4096..12288));
        assert!(traffic.has_writes(&(4096..4097)) && !traffic.has_writes(&(8192..12288)));
        let third = traffic.begin_exclusive_write(8192..16384).expect("nothing is in flight there");
        traffic.end_write(&one, &(4096..8192));
        traffic.end_write(&third, &(8192..16384));
        assert_eq!(traffic.coming(), (0, 0));
        assert!(!traffic.has_writes(&(0..u64::MAX)));
    }
}
