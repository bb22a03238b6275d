//! One block group: which of its bytes are free, in a cluster's window, pinned or allocated.
//!
//! ```text
//! bytes = free + in windows + pinned + excluded + allocated
//! ```
//!
//! `allocated` is not stored: it is the rest. `excluded` bytes are neither free nor used: those of
//! superblock copies, which the free space tree counts as free, and on a damaged volume those that
//! were neither used nor free when the group was added.

use crate::class::Class;
use crate::error::SpaceError;
use crate::free::{Alignment, FreeExtents, Run};
use crate::pinned::Pinned;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Logical, SECTOR_BYTES};
use std::ops::Range;

/// A block group as the trees describe it.
#[derive(Clone, Debug)]
pub struct Group {
    pub start: Logical,
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    /// Used bytes, as in the block group item.
    pub used: u64,
    /// Logical ranges, sorted, without overlap; they may touch. As in the free space tree, every
    /// byte that no extent item names is free here, those of superblock copies too.
    pub free: Vec<Range<u64>>,
    /// Ranges that are never allocated, although no extent item names them:
    /// [`excluded_ranges`](crate::excluded_ranges) of the chunk.
    pub excluded: Vec<Range<u64>>,
    pub is_read_only: bool,
}

/// The state of one group at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub start: Logical,
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    pub used: u64,
    pub free: u64,
    pub pinned: u64,
    /// Allocated, and neither released nor pinned since.
    pub allocated: u64,
    pub is_read_only: bool,
    /// The number of free runs.
    pub fragments: usize,
}

#[derive(Debug)]
pub(crate) struct BlockGroup {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) class: Class,
    pub(crate) used: u64,
    pub(crate) is_read_only: bool,
    pub(crate) free: FreeExtents,
    /// Sectors in windows and recycled runs of clusters: free, but not in `free`.
    pub(crate) in_windows: u64,
    pub(crate) pinned: Pinned,
    excluded: u64,
    /// Whether bytes were neither used nor free when the group was added, other than superblock
    /// copies: then `used` may be too low, and the group is never empty.
    has_unaccounted: bool,
    /// Superblock copies in this group, sorted. Few groups have any.
    super_copies: Vec<Run>,
}

impl BlockGroup {
    pub(crate) fn check(group: &Group, class: Class) -> Result<Self, SpaceError> {
        let start = group.start.0;
        Self::check_laws(group, class).map_err(|refused| SpaceError::Group { start, refused })
    }

    fn check_laws(group: &Group, class: Class) -> Result<Self, Refused> {
        let (start, bytes) = (group.start.0, group.bytes);
        let whole = |value: u64| value.is_multiple_of(SECTOR_BYTES);
        require(whole(start), "start", start, "sector aligned")?;
        require(whole(bytes) && bytes > 0, "length", bytes, "whole sectors")?;
        let end = start.checked_add(bytes);
        let end = end.ok_or_else(|| Refused::new("length", bytes, "inside the address space"))?;
        let sectors = u32::try_from(sectors_of(bytes)).unwrap_or(u32::MAX);
        require(sectors < u32::MAX >> 1, "length", bytes, "less than 8 TiB")?;
        require(group.used <= bytes, "used", group.used, format_args!("at most {bytes}"))?;
        let super_copies: Vec<Run> =
            group.excluded.iter().filter_map(|range| run_in(start, range)).collect();
        let mut runs: Vec<Run> = Vec::with_capacity(group.free.len());
        let mut at = start;
        for range in &group.free {
            let good = whole(range.start) && whole(range.end) && range.start < range.end;
            require(good, "free range", format_args!("{range:?}"), "whole sectors")?;
            let inside = range.start >= at && range.end <= end;
            let want = format_args!("inside {at}..{end}").to_string();
            require(inside, "free range", format_args!("{range:?}"), want)?;
            for run in run_in(start, range).into_iter().flat_map(|run| without(run, &super_copies))
            {
                match runs.last_mut() {
                    Some(last) if last.end() == run.start => {
                        last.sectors = last.sectors.saturating_add(run.sectors);
                    }
                    Some(_) | None => runs.push(run),
                }
            }
            at = range.end;
        }
        let free = FreeExtents::of_sorted(runs);
        let unused = bytes.saturating_sub(group.used);
        let free_bytes = bytes_of(free.sectors());
        require(free_bytes <= unused, "free bytes", free_bytes, format_args!("at most {unused}"))?;
        let excluded = unused.saturating_sub(free_bytes);
        let copies = super_copies.iter().map(|run| u64::from(run.sectors)).sum();
        Ok(Self {
            start,
            bytes,
            flags: group.flags,
            class,
            used: group.used,
            is_read_only: group.is_read_only,
            free,
            in_windows: 0,
            pinned: Pinned::default(),
            excluded,
            has_unaccounted: excluded > bytes_of(copies),
            super_copies,
        })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// Allocatable bytes, unless the group is read-only.
    pub(crate) fn free_bytes(&self) -> u64 {
        bytes_of(self.free.sectors().saturating_add(self.in_windows))
    }

    pub(crate) fn pinned_bytes(&self) -> u64 {
        bytes_of(self.pinned.sectors())
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        let other = self.free_bytes().saturating_add(self.pinned_bytes());
        self.bytes.saturating_sub(other.saturating_add(self.excluded))
    }

    /// Frees a run, except for superblock copies in it. Returns the bytes that became free.
    pub(crate) fn release(&mut self, run: Run) -> u64 {
        let before = self.free.sectors();
        let is_free = if self.super_copies.is_empty() {
            self.free.insert(run)
        } else {
            without(run, &self.super_copies).into_iter().all(|part| self.free.insert(part))
        };
        debug_assert!(is_free, "an allocated run is not free");
        let sectors = self.free.sectors().saturating_sub(before);
        let excluded = u64::from(run.sectors).saturating_sub(sectors);
        self.excluded = self.excluded.saturating_add(bytes_of(excluded));
        debug_assert!(
            self.free_bytes() + self.pinned_bytes() + self.excluded <= self.bytes,
            "law 3 of the crate"
        );
        bytes_of(sectors)
    }

    /// Whether no byte is used, pinned or allocated.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_unaccounted
            && self.used == 0
            && self.pinned.sectors() == 0
            && self.allocated_bytes() == 0
    }

    /// Returns the sectors of a range of logical addresses, if all of it is in this group.
    pub(crate) fn run(&self, range: &Range<u64>) -> Option<Run> {
        (range.end <= self.end()).then(|| run_in(self.start, range)).flatten()
    }

    /// Returns the logical addresses of a run.
    pub(crate) fn range(&self, run: Run) -> Range<u64> {
        let start = self.start.saturating_add(bytes_of(u64::from(run.start)));
        start..start.saturating_add(bytes_of(u64::from(run.sectors)))
    }

    /// Converts an alignment of logical addresses, in bytes, to one of this group's sectors.
    pub(crate) fn alignment(&self, align: u64) -> Alignment {
        let unit = u32::try_from(sectors_of(align)).unwrap_or(1).max(1);
        let mask = u64::from(unit.saturating_sub(1));
        let origin = u32::try_from(sectors_of(self.start) & mask).unwrap_or(0);
        Alignment { origin, unit }
    }

    pub(crate) fn status(&self) -> GroupStatus {
        GroupStatus {
            start: Logical(self.start),
            bytes: self.bytes,
            flags: self.flags,
            used: self.used,
            free: self.free_bytes(),
            pinned: self.pinned_bytes(),
            allocated: self.allocated_bytes(),
            is_read_only: self.is_read_only,
            fragments: self.free.len(),
        }
    }
}

pub(crate) fn sectors_of(bytes: u64) -> u64 {
    bytes.div_euclid(SECTOR_BYTES)
}

pub(crate) fn bytes_of(sectors: u64) -> u64 {
    sectors.saturating_mul(SECTOR_BYTES)
}

/// Returns the parts of a run that lie outside `others`, which are sorted.
fn without(run: Run, others: &[Run]) -> Vec<Run> {
    let mut parts = Vec::with_capacity(others.len().saturating_add(1));
    let mut at = run.start;
    for other in others.iter().filter(|other| other.start < run.end() && other.end() > run.start) {
        parts.push(Run { start: at, sectors: other.start.saturating_sub(at) });
        at = other.end();
    }
    parts.push(Run { start: at, sectors: run.end().saturating_sub(at) });
    parts.retain(|part| part.sectors > 0);
    parts
}

fn run_in(start: u64, range: &Range<u64>) -> Option<Run> {
    let whole = range.start.is_multiple_of(SECTOR_BYTES) && range.end.is_multiple_of(SECTOR_BYTES);
    let from = range.start.checked_sub(start).filter(|_| whole && range.start < range.end)?;
    let bytes = range.end.checked_sub(range.start)?;
    let from = u32::try_from(sectors_of(from)).ok()?;
    Some(Run { start: from, sectors: u32::try_from(sectors_of(bytes)).ok()? })
}
