//! Defragmentation of a file: its short extents are written again, as fewer and longer ones
//! (`BTRFS_IOC_DEFRAG_RANGE`).
//!
//! Laws:
//!
//! 1. No byte, no size and no time of the file changes, and no other file does. A crash leaves each
//!    part as it was, or written again. A call that fails has written some parts again.
//! 2. The extents are examined with the inode lock shared. Each part is then written under the
//!    exclusive lock, if the file still has the extents that were examined; the lock is released
//!    between parts. Where the file has changed, it is examined again, at most [`ATTEMPTS_MAX`]
//!    times in a row; then the part is left.
//! 3. An extent is shared if another inode refers to it, also one in another subvolume, or the same
//!    one in a snapshot. Other places of the same file do not count. The last commit decides that,
//!    so it is made first where an extent may be shared. A reference that was added since makes the
//!    extent changed (law 2). Where the references are too many to follow, it counts as shared.
//! 4. A file of a read-only subvolume is refused. No flag of a file refuses it: its bytes stay.
//! 5. Memory is bounded: at most [`WINDOW_EXTENTS`] extents are examined at a time, and one part is
//!    in memory. Space that parts had is reused after a commit, which a part that finds no space
//!    makes.

use crate::background::merger::MergeScope;
use crate::space::backref::Backrefs;
use crate::space::disk_usage;
use crate::{Compressor, Error, File, Result};
use butternut_file::{
    DefragmentRule, ExaminedExtent, Mapping, MappingKind, Mappings, RewritePart, Rewritten,
    count_extents, start_of_last_extent,
};
use butternut_format::extent::DataRef;
use butternut_format::file_extent::DiskExtent;
use butternut_format::inode::InodeFlags;
use butternut_format::units::{Generation, Ino, Logical, SECTOR_BYTES, TreeId, length};
use butternut_tree::DATA_EXTENT_BYTES_MAX;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The default threshold, in bytes: the kernel's.
const THRESHOLD: u64 = 256 << 10;
/// Maximum number of extents that are examined at a time.
const WINDOW_EXTENTS: usize = 4096;
/// How often a window is examined again because the file has changed (law 2).
const ATTEMPTS_MAX: u32 = 8;

/// What [`File::defragment`] does with extents that are shared with other files or snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedExtents {
    /// They are left alone.
    #[default]
    Keep,
    /// They are written again like others. This file then has data of its own, which takes space.
    Break,
}

/// What [`File::defragment`] writes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragmentOptions {
    range: Range<u64>,
    threshold: u64,
    compressor: Option<Compressor>,
    shared: SharedExtents,
}

/// The result of [`File::defragment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Defragmented {
    /// Bytes of the file that were written again.
    pub rewritten_bytes: u64,
    /// Number of extents in the range before. Those that are contiguous on disk count as one.
    pub extents_before: u64,
    /// Number of extents in the range afterwards.
    pub extents_after: u64,
    /// Bytes that were left alone because other files or snapshots share them.
    pub shared_bytes_left: u64,
    /// Bytes that were written again and were shared before: the file shares them no longer.
    pub unshared_bytes: u64,
}

impl Default for DefragmentOptions {
    fn default() -> Self {
        let (threshold, shared) = (THRESHOLD, SharedExtents::Keep);
        Self { range: 0..u64::MAX, threshold, compressor: None, shared }
    }
}

impl DefragmentOptions {
    /// Limits the call to a range of the file, in bytes. It is extended to whole blocks of 4096
    /// bytes.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Leaves extents of at least `bytes` bytes alone. 0 is the default of 256 KiB. More than 16
    /// MiB counts as 16 MiB.
    #[must_use]
    pub fn threshold(mut self, bytes: u64) -> Self {
        self.threshold = if bytes == 0 { THRESHOLD } else { bytes };
        self
    }

    /// Compresses all extents of the range, whatever their length, where that saves space. A file
    /// without checksums or copy-on-write is not compressed.
    #[must_use]
    pub fn compressor(mut self, compressor: Option<Compressor>) -> Self {
        self.compressor = compressor;
        self
    }

    /// Sets what happens to extents that are shared.
    #[must_use]
    pub fn shared(mut self, shared: SharedExtents) -> Self {
        self.shared = shared;
        self
    }
}

impl Defragmented {
    /// Adds the result of another call, for a file or a range of its own.
    pub fn add(&mut self, other: &Self) {
        let sum = |one: &mut u64, other: u64| *one = one.saturating_add(other);
        sum(&mut self.rewritten_bytes, other.rewritten_bytes);
        sum(&mut self.extents_before, other.extents_before);
        sum(&mut self.extents_after, other.extents_after);
        sum(&mut self.shared_bytes_left, other.shared_bytes_left);
        sum(&mut self.unshared_bytes, other.unshared_bytes);
    }
}

/// Extents of a file that follow one another.
struct Window {
    extents: Vec<ExaminedExtent>,
    /// What is planned: the last extent may only be a neighbour.
    range: Range<u64>,
    /// References of each extent that is not shared, and the last snapshot (law 3).
    references: HashMap<Logical, u64>,
    last_snapshot: Generation,
}

impl File {
    /// Writes short extents of the file again, as fewer and longer ones, with the rules of the
    /// kernel's `btrfs filesystem defragment`: an extent is left alone if it is at least as long as
    /// the threshold, or if it cannot be joined with the one before or behind it. So are holes,
    /// preallocated space and inline data. Other operations on the file go on between the parts, of
    /// at most 16 MiB. The new extents are durable like written data: after [`File::sync_all`] or
    /// the next commit.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], also for a read-only subvolume; no space; data that cannot be read or
    /// written. The contents of the file are the same also then, and the parts that were written
    /// again before stay.
    pub fn defragment(&self, options: &DefragmentOptions) -> Result<Defragmented> {
        self.defragment_while(options, &|| true)
    }

    /// As [`File::defragment`], as long as `goes_on` returns true, which is called before each
    /// part. Returns what was done until then.
    ///
    /// # Errors
    /// As [`File::defragment`].
    pub fn defragment_while(
        &self,
        options: &DefragmentOptions,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Defragmented> {
        let _watch = self.watch_panics();
        let pin = self.pin()?;
        let filesystem = pin.filesystem();
        let write_state = filesystem.may_begin()?;
        let writing = filesystem.begin()?;
        filesystem.writable_subvolume(&writing, self.id())?;
        drop(writing);
        // Dirty data gets its extents first.
        filesystem.write_back_one(write_state, pin.entry(), MergeScope::Whole)?;
        let flags = filesystem.attributes(pin.entry())?.flags;
        let is_plain = [InodeFlags::NODATACOW, InodeFlags::NODATASUM];
        let is_plain = is_plain.iter().any(|flag| flags.contains(*flag));
        let compressor = options.compressor.filter(|_| !is_plain);
        let range = options.range.start - options.range.start % SECTOR_BYTES
            ..options.range.end.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
        let mut done = Defragmented {
            extents_before: self.extents_in(&range, goes_on)?,
            ..Defragmented::default()
        };
        let rule = DefragmentRule {
            threshold: options.threshold,
            compresses: compressor.is_some(),
            keeps_shared: options.shared == SharedExtents::Keep,
        };
        self.defragment_windows(&range, (rule, compressor), goes_on, &mut done)?;
        done.extents_after = self.extents_in(&range, goes_on)?;
        Ok(done)
    }

    /// Defragments one window after the other.
    fn defragment_windows(
        &self,
        range: &Range<u64>,
        (rule, compressor): (DefragmentRule, Option<Compressor>),
        goes_on: &dyn Fn() -> bool,
        done: &mut Defragmented,
    ) -> Result<()> {
        // So far before the range may an extent begin that reaches into it.
        let mut start = range.start.saturating_sub(DATA_EXTENT_BYTES_MAX);
        let (mut from, mut reached, mut attempts) = (range.start, u64::MAX, 0);
        'windows: loop {
            if !goes_on() {
                return Ok(());
            }
            let window = self.examine(&rule, start, range, goes_on)?;
            if !goes_on() {
                return Ok(());
            }
            let wanted = from.max(window.range.start)..window.range.end;
            let (plan, reached_next) = rule.plan(&window.extents, &wanted, reached);
            for part in &plan.parts {
                if !goes_on() {
                    return Ok(());
                }
                let rewritten = self.with_space(|| self.rewrite(&window, part, compressor))?;
                let Range { start: part_start, end: part_end } = part.range();
                let bytes = part_end - part_start;
                if rewritten == Rewritten::Changed && attempts < ATTEMPTS_MAX {
                    attempts += 1;
                    let before = wanted.start..part_start;
                    let (before, _) = rule.plan(&window.extents, &before, reached);
                    done.shared_bytes_left += before.shared_bytes_left;
                    (from, reached) = (part_start, part_start);
                    continue 'windows;
                }
                attempts = 0;
                if rewritten == Rewritten::Done {
                    let shared = part.extents().iter().filter(|extent| extent.is_shared);
                    done.unshared_bytes += shared.map(|extent| extent.mapping.bytes).sum::<u64>();
                    done.rewritten_bytes += bytes;
                }
            }
            done.shared_bytes_left += plan.shared_bytes_left;
            if window.range.end >= range.end || window.range.end <= start {
                return Ok(());
            }
            (start, reached) = (window.range.end, reached_next);
            from = start.max(range.start);
        }
    }

    /// Writes a part again under the inode lock (law 2).
    fn rewrite(
        &self,
        window: &Window,
        part: &RewritePart,
        compressor: Option<Compressor>,
    ) -> Result<Rewritten> {
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let writing = filesystem.begin()?;
        let subvolume = filesystem.writable_subvolume(&writing, entry.id)?;
        let mut state = entry.lock();
        if !self.has_references_of(window, part)? {
            return Ok(Rewritten::Changed);
        }
        let inode = filesystem.attributes(entry)?;
        filesystem.alter_file_to(&writing, &subvolume, entry, &mut state, inode, |file, _, _| {
            Ok(file.rewrite(part, compressor)?)
        })
    }

    /// Returns the number of extents of a range: those that are counted while `goes_on` returns
    /// true.
    fn extents_in(&self, range: &Range<u64>, goes_on: &dyn Fn() -> bool) -> Result<u64> {
        let mut all = Mappings::of(self.view(), range.clone());
        let (mut count, mut last) = (0, None::<Mapping>);
        loop {
            if !goes_on() {
                return Ok(count);
            }
            let state = self.pin()?.entry().lock_shared();
            let some = all.by_ref().take(WINDOW_EXTENTS);
            let some = some.collect::<std::result::Result<Vec<Mapping>, _>>()?;
            drop(state);
            let Some(first) = some.first().copied() else { return Ok(count) };
            count += length(count_extents(&some));
            if let Some(last) = last {
                let apart = count_extents(&[last]) + count_extents(&[first]);
                count -= length(apart - count_extents(&[last, first]));
            }
            last = some.last().copied();
        }
    }

    /// Lists the extents of the file from byte `start` on, and finds out which are shared.
    fn examine(
        &self,
        rule: &DefragmentRule,
        start: u64,
        range: &Range<u64>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Window> {
        let mut all = Mappings::of(self.view(), start..u64::MAX);
        let mut mappings: Vec<Mapping> = Vec::new();
        let mut is_last = false;
        let state = self.pin()?.entry().lock_shared();
        while mappings.len() < WINDOW_EXTENTS && !is_last {
            let next = all.next().transpose()?;
            is_last = next.is_none_or(|mapping| mapping.offset >= range.end);
            mappings.extend(next);
        }
        drop(state);
        let end = if is_last { range.end } else { window_end(&mappings) };
        self.with_sharing(rule, mappings, start..end, goes_on)
    }

    /// Finds out which extents are shared (law 3): those that the rule may select. Those that are
    /// not examined, because `goes_on` has returned false, count as shared.
    fn with_sharing(
        &self,
        rule: &DefragmentRule,
        mappings: Vec<Mapping>,
        range: Range<u64>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Window> {
        let filesystem = self.pin()?.filesystem();
        let (forest, id) = (filesystem.forest(), self.id());
        let tree = TreeId(id.subvolume);
        let last_snapshot = forest.last_snapshot(tree)?;
        let is_selectable = |mapping: &Mapping| rule.compresses || mapping.bytes < rule.threshold;
        // In the order of the extent tree.
        let (mut unsure, mut references) = (BTreeMap::new(), HashMap::new());
        for mapping in mappings.iter().filter(|mapping| is_selectable(mapping)) {
            let Some((extent, generation, skip)) = in_tree(mapping) else {
                // Its merge makes the first reference, except for preallocated space, which has
                // some.
                if let Some(extent) = disk_extent(mapping) {
                    let known = forest.data_refs(extent.logical, extent.bytes)?.max(1);
                    references.entry(extent.logical).or_insert(known);
                }
                continue;
            };
            let offset = mapping.offset.wrapping_sub(skip);
            let reference = DataRef { tree, ino: Ino(id.ino), offset, count: 1 };
            // First: what is added after this is noticed.
            references.insert(extent.logical, forest.data_refs(extent.logical, extent.bytes)?);
            if generation <= last_snapshot
                || forest.is_shared(extent.logical, extent.bytes, &reference)?
            {
                unsure.insert(extent.logical, false);
            }
        }
        if !unsure.is_empty() {
            filesystem.commit()?;
            let mut search = Backrefs::new(filesystem)?;
            for (logical, is_shared) in &mut unsure {
                if !goes_on() {
                    *is_shared = true;
                    continue;
                }
                *is_shared = match disk_usage::is_shared(&mut search, *logical, id) {
                    Err(Error::LimitExceeded { .. }) => true,
                    found => found?,
                };
            }
        }
        references.retain(|logical, _| unsure.get(logical) != Some(&true));
        let examined = |mapping| {
            let at = in_tree(&mapping).map(|(extent, ..)| extent.logical);
            let is_shared = at.is_some_and(|at| unsure.get(&at) == Some(&true));
            ExaminedExtent { mapping, is_shared }
        };
        let extents = mappings.into_iter().map(examined).collect();
        Ok(Window { extents, range, references, last_snapshot })
    }

    /// Returns whether no reference was added to the extents of a part since they were examined.
    /// The caller holds the inode lock, so none is added meanwhile.
    fn has_references_of(&self, window: &Window, part: &RewritePart) -> Result<bool> {
        let forest = self.pin()?.filesystem().forest();
        if forest.last_snapshot(TreeId(self.id().subvolume))? != window.last_snapshot {
            return Ok(false);
        }
        for extent in part.extents() {
            let Some(disk) = disk_extent(&extent.mapping) else { continue };
            let known = window.references.get(&disk.logical);
            if let Some(known) = known
                && forest.data_refs(disk.logical, disk.bytes)? > *known
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the data extent that the tree has for a mapping, its generation, and the offset into it.
fn in_tree(mapping: &Mapping) -> Option<(DiskExtent, Generation, u64)> {
    match mapping.kind {
        MappingKind::Regular { extent, encoding, skip } => {
            encoding.is_in_tree().then_some((extent, encoding.generation, skip))
        }
        MappingKind::Hole
        | MappingKind::Preallocated { .. }
        | MappingKind::Inline { .. }
        | MappingKind::Buffered => None,
    }
}

/// Returns the data extent of a mapping, also one that is in no tree yet.
fn disk_extent(mapping: &Mapping) -> Option<DiskExtent> {
    match mapping.kind {
        MappingKind::Regular { extent, .. } => Some(extent),
        MappingKind::Hole
        | MappingKind::Preallocated { .. }
        | MappingKind::Inline { .. }
        | MappingKind::Buffered => None,
    }
}

/// Returns the end of a window that has no space for all extents: the last one, which may go on, is
/// only a neighbour.
fn window_end(mappings: &[Mapping]) -> u64 {
    let last = start_of_last_extent(mappings);
    let end = mappings.last().map_or(0, Mapping::end);
    if mappings.first().is_some_and(|first| first.offset < last) { last } else { end }
}
