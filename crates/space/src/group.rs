//! One block group: what of it is free, lent to a cluster, pinned or in use.
//!
//! ```text
//! bytes = free + in windows + pinned + excluded + taken
//! ```
//!
//! `taken` is not kept: it is the rest. `excluded` are bytes that are neither free nor used:
//! superblock copies, which the free space tree calls free.

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
    /// As in its item.
    pub used: u64,
    /// Logical ranges, sorted, without overlap. Neighbours may touch. What no extent item names is
    /// free here, as in the free space tree: superblock copies too.
    pub free: Vec<Range<u64>>,
    /// What is never handed out, though no extent names it:
    /// [`excluded_ranges`](crate::excluded_ranges) of the chunk.
    pub excluded: Vec<Range<u64>>,
    pub is_read_only: bool,
}

/// One group at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub start: Logical,
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    pub used: u64,
    pub free: u64,
    pub pinned: u64,
    /// Handed out and neither released nor pinned.
    pub taken: u64,
    pub is_read_only: bool,
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
    /// Sectors that windows of clusters hold: free, but not in `free`.
    pub(crate) lent: u64,
    pub(crate) pinned: Pinned,
    excluded: u64,
    /// Where superblock copies lie: sorted, and hardly ever any.
    copies: Vec<Run>,
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
        let copies: Vec<Run> =
            group.excluded.iter().filter_map(|range| run_in(start, range)).collect();
        let mut runs: Vec<Run> = Vec::with_capacity(group.free.len());
        let mut at = start;
        for range in &group.free {
            let good = whole(range.start) && whole(range.end) && range.start < range.end;
            require(good, "free range", format_args!("{range:?}"), "whole sectors")?;
            let inside = range.start >= at && range.end <= end;
            let want = format_args!("inside {at}..{end}").to_string();
            require(inside, "free range", format_args!("{range:?}"), want)?;
            for run in run_in(start, range).into_iter().flat_map(|run| without(run, &copies)) {
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
        let room = bytes.saturating_sub(group.used);
        let free_bytes = bytes_of(free.sectors());
        require(free_bytes <= room, "free bytes", free_bytes, format_args!("at most {room}"))?;
        Ok(Self {
            start,
            bytes,
            flags: group.flags,
            class,
            used: group.used,
            is_read_only: group.is_read_only,
            free,
            lent: 0,
            pinned: Pinned::default(),
            excluded: room.saturating_sub(free_bytes),
            copies,
        })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// Allocatable bytes, unless the group is read-only.
    pub(crate) fn free_bytes(&self) -> u64 {
        bytes_of(self.free.sectors().saturating_add(self.lent))
    }

    pub(crate) fn pinned_bytes(&self) -> u64 {
        bytes_of(self.pinned.sectors())
    }

    pub(crate) fn taken_bytes(&self) -> u64 {
        let other = self.free_bytes().saturating_add(self.pinned_bytes());
        self.bytes.saturating_sub(other.saturating_add(self.excluded))
    }

    /// Frees a run, but for what of it is never free. Returns the bytes that are free now.
    pub(crate) fn give_back(&mut self, run: Run) -> u64 {
        let before = self.free.sectors();
        let is_free = if self.copies.is_empty() {
            self.free.insert(run)
        } else {
            without(run, &self.copies).into_iter().all(|part| self.free.insert(part))
        };
        debug_assert!(is_free, "what is in use is not free");
        let sectors = self.free.sectors().saturating_sub(before);
        let never = u64::from(run.sectors).saturating_sub(sectors);
        self.excluded = self.excluded.saturating_add(bytes_of(never));
        bytes_of(sectors)
    }

    /// Nothing of it is in use, or will be needed.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0 && self.pinned.sectors() == 0 && self.taken_bytes() == 0
    }

    /// The sectors of a range of logical addresses, if all of it is in this group.
    pub(crate) fn run(&self, range: &Range<u64>) -> Option<Run> {
        (range.end <= self.end()).then(|| run_in(self.start, range)).flatten()
    }

    /// The logical addresses of a run.
    pub(crate) fn range(&self, run: Run) -> Range<u64> {
        let start = self.start.saturating_add(bytes_of(u64::from(run.start)));
        start..start.saturating_add(bytes_of(u64::from(run.sectors)))
    }

    /// An alignment in bytes of logical addresses, as one of this group's sectors.
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
            taken: self.taken_bytes(),
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

/// A run without some others, which are sorted.
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
