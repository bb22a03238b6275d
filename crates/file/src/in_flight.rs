//! [`InFlightTable`]: the requests on one file that outlive the call that submitted them.
//!
//! ```text
//! shared inode lock, begin --> in flight, no lock held --> end
//!                                   ^
//! exclusive inode lock, drain ------+  completes the requests itself
//! ```
//!
//! Laws:
//!
//! 1. A request in flight shares the file like a reader. It begins while the caller holds the inode
//!    lock shared. A thread that holds the lock exclusively and has drained the file
//!    ([`InFlightTable::drain`]) finds no request in flight, and none begins before it unlocks.
//! 2. A thread that drains a file completes the requests of queues itself, through
//!    [`RequestOwner`]: progress does not depend on the thread that submitted a request. Only a
//!    writeback batch is completed by the thread that holds it, and that thread waits for no inode
//!    lock ([`crate::writeback::batch`]).
//! 3. Space that the file no longer shows while readers without its lock may still read it is not
//!    freed at once. Its free is deferred until a thread holds the inode lock exclusively and has
//!    drained the file. That thread takes the space, and may free it when it has unlocked.
//! 4. A block is never newer in memory than on disk while a direct write of it is in flight. A
//!    direct write of such a block does not begin ([`crate::direct`]); a change that makes a block
//!    dirty first waits, with the inode locked exclusively, until the direct writes of that block
//!    have completed ([`InFlightTable::wait_for_writes`]). Otherwise the block could be filled from
//!    bytes that the direct write then replaces, and writeback would restore these old bytes.
//! 5. Two direct writes of one block to the same place on disk are in flight together only where
//!    the profile keeps a single copy of it. Otherwise the devices may order the writes
//!    differently, and the copies would differ.
//!
//! What each lane does when it meets a direct write in flight on the same blocks:
//!
//! | lane | inode lock | what it waits for | bytes of the block afterwards |
//! |---|---|---|---|
//! | direct write, to new space | shared | nothing | of the write that completed last |
//! | direct write, in place | shared | law 5 | of one of the two, whole |
//! | direct read | shared | nothing | old or new, whole |
//! | cached or uncached write, whole block | exclusive | the block (law 4) | the cached write's |
//! | cached or uncached write, part of a block | exclusive | the block (law 4) | both, merged |
//! | write from the kernel's cache, under 512 KiB | exclusive | the block (law 4) | the cache's |
//! | write from the kernel's cache, 512 KiB or more | exclusive | the file (law 1) | the cache's |
//! | append; growth of an inline file | exclusive | the last, or first, block (law 4) | both |
//! | any of these writes with `NOWAIT` | exclusive, tried | fails (EAGAIN) | the direct write's |
//! | punch, zero, fallocate | exclusive | the file (law 1) | zeroes in the punched range |
//! | truncate | exclusive | the file (law 1) | the direct write's, before the new end |
//! | clone, dedupe: both files | exclusive | both files (law 1) | a clone's target: the clone's |
//! | copy: its source | shared | nothing | unchanged |
//! | copy: its target | exclusive | as a cached write | the copy's |
//! | copy of whole blocks | exclusive | as a clone | the copy's |
//! | writeback of dirty blocks | exclusive, to begin | nothing: law 4 keeps them apart | - |
//! | merge, fsync, commit | exclusive | the file (law 1) | the direct write's |
//! | shared merge | exclusive, then shared | the file, then nothing | of the last write |

use butternut_format::units::{DiskRange, SECTOR_BYTES};
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a draining thread lets one owner complete requests before it turns to the next owner.
const OWNER_TIMEOUT: Duration = Duration::from_micros(500);

/// The shortest pause between two looks at a request that only its own thread completes, which may
/// wait for a commit meanwhile.
const ROUND_MIN: Duration = Duration::from_micros(50);

/// Owns requests in flight (a queue, a flusher), and completes them for a thread that drains a
/// file.
pub trait RequestOwner: Debug + Send + Sync {
    /// Submits the queued requests and completes those that the devices have finished; an owner
    /// whose requests only its own thread completes waits for that thread. Waits at most `timeout`
    /// for the first of them. Must not lock any inode.
    fn complete_some(&self, timeout: Duration);

    /// Frees the space that is allocated for requests which have not begun.
    fn release_space(&self);
}

/// The owners of the requests in flight on all files of a volume.
#[derive(Debug, Default)]
pub(crate) struct RequestOwners(Mutex<Vec<Weak<dyn RequestOwner>>, rank::RequestOwners>);

/// The requests in flight on one file.
#[derive(Debug, Default)]
pub(crate) struct InFlightTable {
    requests: AtomicU64,
    /// Blocks and extents that the writes in flight will add to the overlay.
    blocks: AtomicU64,
    extents: AtomicU64,
    writes: Mutex<WritesInFlight, rank::WritesInFlight>,
    deferred_frees: Mutex<Vec<DiskRange>, rank::DeferredFrees>,
    /// Bytes of these ranges.
    deferred_bytes: AtomicU64,
}

/// The byte ranges of the direct writes in flight. Slots are reused: in a steady state nothing is
/// allocated.
#[derive(Debug, Default)]
struct WritesInFlight {
    slots: Vec<Range<u64>>,
    free: Vec<usize>,
}

/// Identifies a direct write in flight.
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

impl RequestOwners {
    pub(crate) fn add(&self, owner: Weak<dyn RequestOwner>) {
        let mut all = self.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(owner);
    }

    /// Returns the owners that still exist.
    pub(crate) fn all(&self) -> Vec<Arc<dyn RequestOwner>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// After a panic: each entry of the list is whole, and was added by itself.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn RequestOwner>>> {
        self.0.lock()
    }
}

impl InFlightTable {
    pub(crate) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self) {
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Records that a direct write of whole blocks is in flight.
    pub(crate) fn begin_write(&self, range: Range<u64>) -> WriteSlot {
        let mut writes = self.writes();
        self.count_write(&range);
        writes.enter(range)
    }

    /// Records a direct write like [`Self::begin_write`], unless one of some of these blocks is in
    /// flight.
    pub(crate) fn begin_exclusive_write(&self, range: Range<u64>) -> Option<WriteSlot> {
        let mut writes = self.writes();
        if writes.overlaps(&range) {
            return None;
        }
        self.count_write(&range);
        Some(writes.enter(range))
    }

    fn count_write(&self, range: &Range<u64>) {
        // The subtraction panics for an inverted range, so it comes before the first change.
        let blocks = blocks_of(range);
        self.begin();
        self.blocks.fetch_add(blocks, Ordering::AcqRel);
        self.extents.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that a direct write has completed. It was begun with this range.
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
    pub(crate) fn wait_for_writes(&self, request_owners: &RequestOwners, range: &Range<u64>) {
        complete_until(request_owners, &|| !self.has_writes(range));
    }

    /// After a panic: nothing that is done under the lock panics between its first change and its
    /// last.
    fn writes(&self) -> MutexGuard<'_, WritesInFlight> {
        self.writes.lock()
    }

    /// Returns how many blocks and how many extents the writes in flight will add to the overlay.
    pub(crate) fn writes_in_flight(&self) -> (u64, u64) {
        (self.blocks.load(Ordering::Acquire), self.extents.load(Ordering::Acquire))
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Waits until no request is in flight, and completes requests meanwhile (law 1). The caller
    /// holds the inode lock exclusively.
    pub(crate) fn drain(&self, request_owners: &RequestOwners) {
        complete_until(request_owners, &|| self.is_idle());
    }

    /// Defers the free of these ranges (law 3).
    pub(crate) fn defer_free(&self, ranges: impl IntoIterator<Item = DiskRange>) {
        let mut ranges = ranges.into_iter().peekable();
        if ranges.peek().is_some() {
            let mut frees = self.deferred_frees();
            for range in ranges {
                self.deferred_bytes.fetch_add(range.bytes(), Ordering::Relaxed);
                frees.push(range);
            }
        }
    }

    /// Takes the ranges that can be freed now. The caller holds the inode lock exclusively, has
    /// drained the file and has waited for its readahead.
    pub(crate) fn take_deferred_frees(&self) -> Vec<DiskRange> {
        let mut frees = self.deferred_frees();
        self.deferred_bytes.store(0, Ordering::Relaxed);
        std::mem::take(&mut *frees)
    }

    /// Returns the bytes of the ranges that are to be freed.
    pub(crate) fn deferred_bytes(&self) -> u64 {
        self.deferred_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn has_deferred_frees(&self) -> bool {
        !self.deferred_frees().is_empty()
    }

    /// After a panic: the free of each range in the list was deferred. A range that is missing
    /// stays allocated.
    fn deferred_frees(&self) -> MutexGuard<'_, Vec<DiskRange>> {
        self.deferred_frees.lock()
    }
}

fn blocks_of(range: &Range<u64>) -> u64 {
    (range.end - range.start) / SECTOR_BYTES
}

/// Completes requests of all owners until `is_done`.
fn complete_until(request_owners: &RequestOwners, is_done: &dyn Fn() -> bool) {
    while !is_done() {
        let began = Instant::now();
        for owner in request_owners.all() {
            if is_done() {
                return;
            }
            owner.complete_some(OWNER_TIMEOUT);
        }
        // Owners without requests return at once.
        let left = ROUND_MIN.saturating_sub(began.elapsed());
        if !left.is_zero() && !is_done() {
            std::thread::sleep(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is asked for progress, and never makes any.
    #[derive(Debug, Default)]
    struct Idle(AtomicU64);

    impl RequestOwner for Idle {
        fn complete_some(&self, _: Duration) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn release_space(&self) {}
    }

    #[test]
    fn a_wait_for_another_thread_pauses_between_looks() {
        let owners = RequestOwners::default();
        let idle = Arc::new(Idle::default());
        let owner: Weak<dyn RequestOwner> = Arc::<Idle>::downgrade(&idle);
        owners.add(owner);
        let began = Instant::now();
        complete_until(&owners, &|| idle.0.load(Ordering::Relaxed) == 100);
        assert!(began.elapsed() >= ROUND_MIN * 99);
    }

    #[test]
    fn writes_in_flight_are_found_by_range_until_they_end() {
        let in_flight = InFlightTable::default();
        let one = in_flight.begin_write(4096..8192);
        let other = in_flight.begin_write(4096..12288);
        assert!(in_flight.has_writes(&(8000..8001)) && !in_flight.has_writes(&(0..4096)));
        assert!(in_flight.begin_exclusive_write(8192..16384).is_none());
        assert_eq!(in_flight.writes_in_flight(), (3, 2));
        in_flight.end_write(&other, &(4096..12288));
        assert!(in_flight.has_writes(&(4096..4097)) && !in_flight.has_writes(&(8192..12288)));
        let third =
            in_flight.begin_exclusive_write(8192..16384).expect("nothing is in flight there");
        in_flight.end_write(&one, &(4096..8192));
        in_flight.end_write(&third, &(8192..16384));
        assert_eq!(in_flight.writes_in_flight(), (0, 0));
        assert!(!in_flight.has_writes(&(0..u64::MAX)));
    }
}
