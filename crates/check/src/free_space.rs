//! Compares the free space tree with the allocated extents.
//!
//! 1. Every block group has one free space info, and every info and free range is of a block
//!    group. Those below the first block group are not looked at: mkfs.btrfs leaves the ones of its
//!    temporary block groups behind.
//! 2. The free ranges of a block group, after merging adjacent ones, are its range without its
//!    extents.
//! 3. `extent_count` is the number of merged free ranges. A block group has either extents or
//!    bitmaps, as its flags say, and no two of its extents are adjacent.

use crate::blocks::{Block, Reader};
use crate::finding::Kind;
use crate::misplaced::misplaced;
use crate::sink::Sink;
use crate::spans::Spans;
use crate::walk::Survey;
use butternut_format::block_group::BlockGroup;
use butternut_format::free_space::{FreeBitmap, FreeRange, FreeSpaceInfo, check_extent};
use butternut_format::key::ItemType;
use butternut_format::units::TreeId;

/// Contents of the free space tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeSpace {
    infos: Vec<FreeSpaceInfo>,
    free: Spans,
    /// Items in key order, to check the form of each group's items.
    items: Vec<FreeItem>,
    is_lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct FreeItem {
    start: u64,
    is_bitmap: bool,
}

pub(crate) struct FreeSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
}

impl FreeSurvey<'_> {
    fn add(&self, range: FreeRange, out: &mut Spans) {
        if let Err(end) = out.push(range.logical.0, range.end().0, false) {
            self.overlap(range.logical.0, end);
        }
    }

    fn overlap(&self, start: u64, end: u64) {
        let want = format!("at least {end}, where the range before ends");
        let sink = self.reader.sink();
        sink.add(Kind::FreeSpaceCount, "tree free space", "range", start, want);
    }
}

impl Survey for FreeSurvey<'_> {
    type Out = FreeSpace;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> FreeSpace {
        let mut out = FreeSpace::default();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            let start = key.objectid;
            match key.item_type {
                ItemType::FREE_SPACE_INFO => out.infos.extend(FreeSpaceInfo::check(key, data)),
                ItemType::FREE_SPACE_EXTENT => {
                    if let Ok(range) = check_extent(key, data) {
                        self.add(range, &mut out.free);
                        out.items.push(FreeItem { start, is_bitmap: false });
                    }
                }
                ItemType::FREE_SPACE_BITMAP => {
                    if let Ok(bitmap) = FreeBitmap::check(key, data) {
                        bitmap.ranges().for_each(|range| self.add(range, &mut out.free));
                        out.items.push(FreeItem { start, is_bitmap: true });
                    }
                }
                _ => misplaced(self.reader, TreeId::FREE_SPACE, leaf, key),
            }
        }
        out
    }

    fn join(&self, left: &mut FreeSpace, right: FreeSpace) {
        left.infos.extend(right.infos);
        left.items.extend(right.items);
        left.is_lost |= right.is_lost;
        if let Err((start, end)) = left.free.append(right.free) {
            self.overlap(start, end);
        }
    }

    fn lost(&self) -> FreeSpace {
        FreeSpace { is_lost: true, ..FreeSpace::default() }
    }
}

/// Compares free space with the block groups and their extents.
pub(crate) fn check(free: &FreeSpace, groups: &[BlockGroup], spans: &Spans, sink: &Sink<'_>) {
    if free.is_lost {
        return;
    }
    let mut infos = free.infos.iter().peekable();
    for group in groups {
        while infos.next_if(|info| info.group.logical < group.logical).is_some() {}
        if let Some(info) = infos.peek().filter(|info| info.group.logical == group.logical) {
            check_group(free, info, group, spans, sink);
        } else {
            let place = format!("block group {}", group.logical);
            sink.add(Kind::FreeSpaceGroup, place, "free space info", "none", "one");
        }
    }
    check_outside(free, groups, sink);
}

/// Checks laws 2 and 3.
fn check_group(
    free: &FreeSpace,
    info: &FreeSpaceInfo,
    group: &BlockGroup,
    spans: &Spans,
    sink: &Sink<'_>,
) {
    let (start, end) = (group.logical.0, group.logical.0.saturating_add(group.bytes));
    let place = format!("free space of block group {start}");
    let mut ranges = 0_u64;
    let mut allocated = spans.within(start, end).peekable();
    let mut at = start;
    for range in free.free.within(start, end) {
        ranges += 1;
        // Extents must cover everything between the last free range and this one.
        while let Some(span) = allocated.next_if(|span| span.start < range.start) {
            if span.start > at {
                missing(&place, at, span.start, sink);
            }
            at = at.max(span.end);
        }
        if range.start > at {
            missing(&place, at, range.start, sink);
        }
        let overlap = at.min(range.end).saturating_sub(range.start);
        if overlap > 0 {
            allocated_space(&place, range.start, overlap, sink);
        }
        while let Some(span) = allocated.next_if(|span| span.start < range.end) {
            allocated_space(&place, span.start, span.end.min(range.end) - span.start, sink);
            at = at.max(span.end);
        }
        at = at.max(range.end);
    }
    for span in allocated {
        if span.start > at {
            missing(&place, at, span.start, sink);
        }
        at = at.max(span.end);
    }
    if end > at {
        missing(&place, at, end, sink);
    }
    check_form(free, info, (start, end), ranges, sink);
}

fn check_form(
    free: &FreeSpace,
    info: &FreeSpaceInfo,
    (start, end): (u64, u64),
    ranges: u64,
    sink: &Sink<'_>,
) {
    let place = format!("free space of block group {start}");
    if u64::from(info.extent_count) != ranges {
        sink.add(Kind::FreeSpaceCount, &place, "extent_count", info.extent_count, ranges);
    }
    let first = free.items.partition_point(|item| item.start < start);
    let items = free.items.iter().skip(first).take_while(|item| item.start < end);
    let mut extents = 0_u64;
    for item in items {
        extents += 1;
        if item.is_bitmap != info.is_bitmaps {
            let form = |is_bitmap| if is_bitmap { "bitmap" } else { "extent" };
            let place = format!("{place}: item {}", item.start);
            sink.add(
                Kind::FreeSpaceCount,
                place,
                "form",
                form(item.is_bitmap),
                form(info.is_bitmaps),
            );
            return;
        }
    }
    if !info.is_bitmaps && extents != ranges {
        let want = format!("{ranges}, after merging adjacent ranges");
        sink.add(Kind::FreeSpaceCount, place, "items", extents, want);
    }
}

/// Reports infos and free ranges outside of all block groups. Those below the first block group are
/// left out: they belong to the temporary block groups of mkfs.btrfs. Neither the kernel nor mkfs
/// removes them, no chunk is allocated there again, and `btrfs check` does not report them.
fn check_outside(free: &FreeSpace, groups: &[BlockGroup], sink: &Sink<'_>) {
    let first = groups.first().map_or(0, |group| group.logical.0);
    let is_stray = |info: &&FreeSpaceInfo| {
        let (start, bytes) = (info.group.logical, info.group.bytes);
        let at = groups.binary_search_by_key(&start, |group| group.logical).ok();
        start.0.saturating_add(bytes) > first
            && at.and_then(|at| groups.get(at)).is_none_or(|group| group.bytes != bytes)
    };
    let infos = free.infos.iter().filter(is_stray).count();
    let mut known = Spans::default();
    for group in groups {
        // Overlapping groups are reported elsewhere.
        let end = group.logical.0.saturating_add(group.bytes);
        known.push(group.logical.0, end, false).unwrap_or_default();
    }
    let bytes: u64 = free
        .free
        .iter()
        .map(|range| {
            let start = range.start.max(first);
            let bytes = range.end.saturating_sub(start);
            bytes.saturating_sub(known.covered(start, range.end.max(start)))
        })
        .fold(0, u64::saturating_add);
    if infos > 0 || bytes > 0 {
        let have = format!("{infos} infos, {bytes} bytes");
        let field = "of no block group";
        sink.add(Kind::FreeSpaceNoGroup, "tree free space", field, have, "none");
    }
}

fn missing(place: &str, start: u64, end: u64, sink: &Sink<'_>) {
    let have = format!("nothing of {start} + {}", end.saturating_sub(start));
    sink.add(Kind::FreeSpaceMissing, place, "free ranges", have, "it, as no extent covers it");
}

fn allocated_space(place: &str, start: u64, bytes: u64, sink: &Sink<'_>) {
    let have = format!("{start} + {bytes}");
    sink.add(Kind::FreeSpaceAllocated, place, "free ranges", have, "no allocated space");
}
