//! Direct reads and writes: where their sectors are, and what becomes of a file when they are down.
//!
//! ```text
//! read     place                     -> the device -> verified by who reaps it
//! write    begin (space, promise)    -> the device -> land (a patch), or fail
//! ```
//!
//! Both begin under the caller's shared lock, and are in flight without it ([`crate::traffic`]).
//!
//! Laws:
//!
//! 1. A direct read is of whole sectors that lie together on disk as they are; whatever else a file
//!    is made of is read by [`Source::read_at`].
//! 2. A direct write replaces whole blocks inside the file, none of which is dirty in memory, nor
//!    becomes so before it has completed (law 4 of [`crate::traffic`]). It changes neither the
//!    file's size nor what is in memory only.
//! 3. While it is in flight the range reads as before; when it has landed, as it was written. Two
//!    in flight on the same blocks land in some order, block by block whole.
//! 4. Data with checksums never goes where somebody may be reading, or where another write of the
//!    same blocks may go at the same time.
//! 5. Everything that landing needs is held before the write begins: space on disk, space of the
//!    trees. What it frees is retired.

use crate::dirty::pages_of;
use crate::error::FileError;
use crate::live::{Layer, Live};
use crate::overlay::{EXTENT_BYTES_MAX, Patch, Place};
use crate::place::Target;
use crate::plain;
use crate::source::{REGION_BYTES, Source, in_memory};
use crate::state::FileState;
use crate::traffic::WriteSlot;
use crate::view::FileView;
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_space::Cluster;
use std::ops::Range;
use std::sync::Arc;

/// Space that one writer takes at once, for writes to come: they lie together.
const RUN_BYTES: u64 = 1 << 20;
/// Of a long write, what counts as one.
const PENDING_BYTES: u64 = 16 << 10;
/// Of clusters, those that are not queues' ([`FileState::cluster`]).
const CLUSTERS_BEFORE: u64 = 1 << 16;

/// Where whole sectors are, all in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPlace {
    pub logical: Logical,
    /// Their digests were appended.
    pub has_digests: bool,
    /// Everything was in memory.
    pub is_cached: bool,
}

/// What a direct write may wait for before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Trees are read, chunks made and transactions committed, where that is needed.
    Any,
    /// Nothing: what is not to be had at once is not had.
    None,
}

/// A request on a file that is in flight; it ends when this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Live>);

/// A direct write that has begun.
#[derive(Debug)]
pub struct DirectWrite {
    live: Arc<Live>,
    slot: WriteSlot,
    start: u64,
    bytes: u64,
    target: Target,
    logical: Logical,
    /// Where the block group starts that new space is in.
    group: Logical,
}

/// Space that a writer holds for his next writes.
#[derive(Debug)]
pub struct DirectRoom {
    source: Source,
    cluster: Cluster,
    run: Range<u64>,
    group: Logical,
}

impl Source {
    /// Where the sectors of `range` are (law 1), and whether their digests were appended; `None`
    /// where they are not sectors in one run. The caller shares the file.
    pub fn direct_place(
        &self,
        view: &FileView,
        range: &Range<u64>,
        digests: &mut Vec<u8>,
    ) -> Result<Option<DirectPlace>, FileError> {
        if let Some(live) = view.live() {
            match live.layer(range, digests) {
                Layer::Written { logical, end, has_digests } => {
                    let is_whole = end >= range.end && has_digests == view.has_sums();
                    let place = DirectPlace { logical, has_digests, is_cached: true };
                    return Ok(is_whole.then_some(place));
                }
                Layer::Tree { end } if end >= range.end => {}
                Layer::Dirty { .. } | Layer::Packed { .. } | Layer::Tree { .. } => return Ok(None),
            }
        }
        let mut is_cached = true;
        let Some(logical) = self.run_in_tree(view, range, &mut is_cached)? else {
            return Ok(None);
        };
        let mut has_digests = false;
        if view.has_sums() {
            let sectors = in_memory((range.end - range.start) / SECTOR_BYTES);
            let found = self.sums().gather_noting(logical, sectors, digests, &mut is_cached)?;
            if found < sectors {
                return Ok(None);
            }
            has_digests = true;
        }
        Ok(Some(DirectPlace { logical, has_digests, is_cached }))
    }

    /// Where a range starts on disk, if the tree has it as sectors in one run.
    fn run_in_tree(
        &self,
        view: &FileView,
        range: &Range<u64>,
        is_cached: &mut bool,
    ) -> Result<Option<Logical>, FileError> {
        let mut start: Option<Logical> = None;
        let mut at = range.start;
        while at < range.end {
            let map = self.plain_map(view, at / REGION_BYTES, is_cached)?;
            let Some((logical, bytes)) = plain::find(&map, at) else { return Ok(None) };
            if start.is_some_and(|start| start.0 + (at - range.start) != logical.0) {
                return Ok(None);
            }
            start.get_or_insert(logical);
            at = at.saturating_add(bytes).min(range.end);
        }
        Ok(start)
    }
}

impl FileView {
    /// Takes note of a request that is in flight from now on. The caller shares the file; `None`
    /// where nobody can have it alone.
    pub fn begin_request(&self) -> Option<InFlight> {
        let live = self.live()?;
        live.traffic().begin();
        Some(InFlight(Arc::clone(live)))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.traffic().end();
    }
}

impl FileState {
    /// Waits until nothing is in flight, and frees what was retired. The caller has the file alone,
    /// and no handle open.
    pub fn quiet(&self) {
        self.live.traffic().wait(&self.source);
        if self.live.traffic().has_retired() {
            self.live.quiesce();
            let retired = self.live.traffic().take_retired();
            self.release(retired);
        }
    }

    /// Waits until no direct write is in flight on the blocks of `range`, which are about to become
    /// dirty (law 4 of [`crate::traffic`]). Whatever the file has of them is to be read afterwards.
    pub(crate) fn wait_for_direct_writes(&self, blocks: &Range<u64>) {
        self.live.traffic().wait_for_writes(&self.source, blocks);
    }

    /// Begins a direct write of the blocks of `range`, or says that it needs the file alone, or
    /// more patience. The caller shares the file, and has no handle open.
    ///
    /// # Errors
    /// Trees that cannot be read. No space is no error here: who has the file alone may find some.
    pub fn begin_direct_write(
        &self,
        range: &Range<u64>,
        room: &mut DirectRoom,
        patience: Patience,
    ) -> Result<Option<DirectWrite>, FileError> {
        let is_plain = range.start.is_multiple_of(SECTOR_BYTES)
            && range.end.is_multiple_of(SECTOR_BYTES)
            && !range.is_empty()
            && range.end - range.start <= EXTENT_BYTES_MAX
            && range.end <= self.size();
        let is_newer = self.live.pages().next_newer(&pages_of(range)).is_some();
        if !is_plain || is_newer {
            return Ok(None);
        }
        let Some(target) = self.single_target(range, patience)? else { return Ok(None) };
        let Some(target) = self.stable_target(target) else { return Ok(None) };
        let Some(slot) = self.enter_flight(range, target, patience) else { return Ok(None) };
        let (bytes, live) = (range.end - range.start, Arc::clone(&self.live));
        let (logical, group) = (target.place().unwrap_or_default(), Logical::default());
        let mut write =
            DirectWrite { live, slot, start: range.start, bytes, target, logical, group };
        if target == Target::New {
            // Counted already: of two that begin at once, each makes sure of both.
            let is_promised = self.promise_shared(patience);
            let space = if is_promised { room.take(bytes, patience) } else { None };
            let Some(space) = space else { return Ok(None) };
            (write.logical, write.group) = (Logical(space.start), room.group);
        }
        Ok(Some(write))
    }

    /// Notes that a direct write is in flight, in the order that law 5 of [`crate::traffic`] wants;
    /// `None` where it would have to wait for another, and may not.
    fn enter_flight(
        &self,
        range: &Range<u64>,
        target: Target,
        patience: Patience,
    ) -> Option<WriteSlot> {
        let traffic = self.live.traffic();
        let has_copies = |logical| {
            let chunks = self.source.forest().volume().chunks();
            chunks.find(logical).is_none_or(|layout| layout.facts().copies > 1)
        };
        if !target.place().is_some_and(has_copies) {
            return Some(traffic.begin_write(range.clone()));
        }
        loop {
            let slot = traffic.begin_exclusive_write(range.clone());
            if slot.is_some() || patience == Patience::None {
                return slot;
            }
            traffic.wait_for_writes(&self.source, range);
        }
    }

    /// Where data may go while other threads read what is there, or write it too. The first write
    /// with checksums into space that is set aside needs the file alone.
    fn stable_target(&self, target: Target) -> Option<Target> {
        match target {
            Target::SetAside { .. } if self.live.has_sums() => None,
            Target::SetAside { .. } | Target::New | Target::Over(_) => Some(target),
        }
    }

    fn has_patch(&self, range: &Range<u64>) -> bool {
        self.live.overlay().find_patch(range.start, range.end) != Err(range.end)
    }

    /// Writes that are down, or on their way, and in no tree yet; long ones count for each 16 KiB:
    /// the space of what they replace is not free before.
    pub fn pending_writes(&self) -> u64 {
        let overlay = self.live.overlay();
        let down = length(overlay.patch_count()).max(overlay.patch_bytes() / PENDING_BYTES);
        self.live.traffic().coming().1 + down
    }

    /// The target of all of a range, if it has only one.
    fn single_target(
        &self,
        range: &Range<u64>,
        patience: Patience,
    ) -> Result<Option<Target>, FileError> {
        if !self.may_be_in_place() {
            return Ok(Some(Target::New));
        }
        // A patch lies in space of its own, or where the tree has it set aside.
        let has_patch = self.has_patch(range);
        if let Some(target) = self.live.known_target(range).filter(|_| !has_patch) {
            return Ok(Some(target));
        }
        if patience == Patience::None {
            return Ok(None);
        }
        if has_patch {
            let [(_, target)] = self.targets(range)?[..] else { return Ok(None) };
            return Ok(Some(target));
        }
        // What lies around it will be asked for next.
        let start = range.start - range.start % REGION_BYTES;
        let end = range.end.next_multiple_of(REGION_BYTES).min(self.size());
        let end = end - end % SECTOR_BYTES;
        let stamp = self.live.stamp();
        let targets = self.targets(&(start..end.max(range.end)))?;
        self.live.learn_targets(stamp, &targets);
        let whole = |part: &Range<u64>| part.start <= range.start && range.end <= part.end;
        let found = targets.iter().find(|(part, _)| whole(part));
        Ok(found.map(|(part, target)| target.advanced(range.start - part.start)))
    }
}

impl DirectRoom {
    /// No space yet. Writers who write side by side have different numbers.
    pub fn new(source: &Source, writer: u64) -> Self {
        let cluster = Cluster(CLUSTERS_BEFORE.saturating_add(writer));
        Self { source: source.clone(), cluster, run: 0..0, group: Logical::default() }
    }

    /// A run of so many bytes, in one block group; it follows the one before if it can.
    fn take(&mut self, bytes: u64, patience: Patience) -> Option<Range<u64>> {
        if self.run.end - self.run.start < bytes {
            self.give_back();
            let forest = self.source.forest();
            let (least, most) = (SECTOR_BYTES, bytes.max(RUN_BYTES));
            let run = match patience {
                Patience::Any => forest.allocate_data(least, most, self.cluster).ok()?,
                Patience::None => forest.allocate_data_at_once(least, most, self.cluster)?,
            };
            let chunks = forest.volume().chunks();
            self.group = chunks.find(Logical(run.start))?.logical();
            self.run = run;
        }
        let end = self.run.start.checked_add(bytes).filter(|end| *end <= self.run.end);
        let Some(end) = end else {
            self.give_back();
            return None;
        };
        let taken = self.run.start..end;
        self.run.start = end;
        Some(taken)
    }

    /// What is left is free for others.
    pub fn give_back(&mut self) {
        let run = std::mem::replace(&mut self.run, 0..0);
        if !run.is_empty() {
            // Refused only on a volume that is not written.
            self.source.forest().release_data(run).ok();
        }
    }
}

impl Drop for DirectRoom {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl DirectWrite {
    /// Where on disk it goes.
    pub fn logical(&self) -> Logical {
        self.logical
    }

    /// Whether it goes to new space: writes that do lie together.
    pub fn is_new(&self) -> bool {
        self.target == Target::New
    }

    pub fn wants_digests(&self) -> bool {
        self.live.has_sums()
    }

    /// The write is down on every copy; `digests` are of its sectors, if it wants any.
    pub fn land(&self, source: &Source, digests: &[u8]) {
        let place = match self.target {
            Target::New => Place::New { logical: self.logical, group: self.group },
            Target::SetAside { extent, skip } => Place::SetAside { extent, skip },
            Target::Over(_) => {
                source.forest().volume().note_in_place();
                self.forget_clean();
                return;
            }
        };
        let patch = Patch::new(self.bytes, place, digests.to_vec());
        let freed = self.live.overlay_mut().insert(self.start, patch);
        self.live.traffic().retire(freed);
        self.forget_clean();
    }

    /// What memory has of the range is older than the disk, but for what is dirty.
    fn forget_clean(&self) {
        self.live.touch();
        let pages = pages_of(&self.range());
        self.live.pages().change().discard_clean(&pages);
        debug_assert_eq!(self.live.pages().next_newer(&pages), None, "law 4 of `traffic`");
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    /// The write is not down: the range reads as before, or, where it was written in place, as it
    /// is there.
    pub fn fail(&self, source: &Source) {
        self.forget_clean();
        if self.target == Target::New {
            let space = self.logical.0..self.logical.0.saturating_add(self.bytes);
            source.forest().release_data(space).ok();
        }
    }
}

impl Drop for DirectWrite {
    fn drop(&mut self) {
        self.live.traffic().end_write(&self.slot, &self.range());
    }
}
