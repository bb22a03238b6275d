//! Rewrites: the change of a file's extent items, computed without I/O.
//!
//! The old items, the dropped ranges and the inserted items give the new items. The difference
//! between old and new items is what changes in the tree and in the reference counts of extents.
//!
//! ```text
//! old      |--- A ---|      |--------- B ---------|
//! dropped      |------------------|
//! inserted     |= N ==|
//! new      |-A-|= N ==|hole?      |------ B ------|      A and B keep their extents
//! ```
//!
//! Laws:
//!
//! 1. Data outside the dropped ranges reads as before.
//! 2. Every item that shows a data extent is one reference to it. References change by exactly the
//!    difference in the numbers of such items.
//! 3. Inserted items are joined with their neighbours where one item can represent both; other
//!    neighbours are left as they are.
//! 4. Covered ranges have no gaps afterwards: hole items fill them.
//!
//! The old items must include every item that touches a dropped or covered range.

use crate::merge::extent_item::{ExtentItem, Reference};
use butternut_format::refused::Refused;
use std::collections::BTreeMap;
use std::ops::Range;

/// The change of the items of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewrite<'a> {
    /// In file order: the new item at an offset, or `None` where the item is removed.
    pub(crate) changes: Vec<(u64, Option<ExtentItem<'a>>)>,
    /// Changes of reference counts. Increases come first.
    pub(crate) references: Vec<(Reference, i64)>,
    /// Added to the inode's byte count.
    pub(crate) bytes_used: i64,
}

/// Plans a rewrite. All lists are in file order, without overlaps; the inserted items lie within
/// the dropped ranges.
pub(crate) fn plan<'a>(
    old: &[ExtentItem<'a>],
    dropped: &[Range<u64>],
    inserted: Vec<ExtentItem<'a>>,
    covered: &[Range<u64>],
) -> Result<Rewrite<'a>, Refused> {
    let mut items = remains(old, dropped)?;
    items.extend(inserted);
    items.sort_by_key(|item| item.start);
    fill_gaps(&mut items, covered);
    join_neighbours(&mut items);
    // An empty item of the volume may begin where another one does.
    let overlap = items
        .array_windows()
        .find(|[before, after]| before.end() > after.start || before.start == after.start);
    if let Some([before, after]) = overlap {
        let want = format_args!("above {} and not below {}", before.start, before.end());
        return Err(Refused::new("file offset of an extent item", after.start, want));
    }
    Ok(difference(old, items))
}

/// The parts of the old items that are not dropped.
fn remains<'a>(
    old: &[ExtentItem<'a>],
    dropped: &[Range<u64>],
) -> Result<Vec<ExtentItem<'a>>, Refused> {
    let mut left = Vec::with_capacity(old.len());
    for item in old {
        let mut rest = Some(*item);
        let first = dropped.partition_point(|range| range.end <= item.start);
        for range in dropped
            .iter()
            .skip(first)
            .take_while(|range| range.start <= item.start.max(item.end().saturating_sub(1)))
        {
            let Some(now) = rest.take() else { break };
            if range.start >= now.end().max(now.start.saturating_add(1)) {
                rest = Some(now);
                break;
            }
            let (front, back) = now.without(range)?;
            left.extend(front);
            rest = back;
        }
        left.extend(rest);
    }
    Ok(left)
}

/// Adds hole items for the gaps in `covered` (law 4). The items are sorted.
fn fill_gaps(items: &mut Vec<ExtentItem<'_>>, covered: &[Range<u64>]) {
    let mut holes = Vec::new();
    for range in covered {
        let mut at = range.start;
        let first = items.partition_point(|item| item.end() <= range.start);
        for item in items.iter().skip(first) {
            if item.start >= range.end {
                break;
            }
            if item.start > at {
                holes.push(ExtentItem::hole(at..item.start));
            }
            at = at.max(item.end());
        }
        if at < range.end {
            holes.push(ExtentItem::hole(at..range.end));
        }
    }
    if !holes.is_empty() {
        items.extend(holes);
        items.sort_by_key(|item| item.start);
    }
}

/// Joins new items with their neighbours (law 3).
fn join_neighbours(items: &mut Vec<ExtentItem<'_>>) {
    items.dedup_by(|next, item| (item.is_new || next.is_new) && item.join(next));
}

fn difference<'a>(old: &[ExtentItem<'a>], new: Vec<ExtentItem<'a>>) -> Rewrite<'a> {
    let mut rewrite = Rewrite::default();
    let mut references: BTreeMap<(u64, u64), (Reference, i64)> = BTreeMap::new();
    let mut count = |item: &ExtentItem<'_>, by: i64| {
        let bytes = i64::try_from(item.bytes_used()).unwrap_or(0).saturating_mul(by);
        rewrite.bytes_used = rewrite.bytes_used.saturating_add(bytes);
        if let Some(reference) = item.reference() {
            let key = (reference.extent.logical.0, reference.offset);
            references.entry(key).or_insert((reference, 0)).1 += by;
        }
    };
    let mut old = old.iter().peekable();
    for item in new {
        while let Some(dropped) = old.next_if(|dropped| dropped.start < item.start) {
            count(dropped, -1);
            rewrite.changes.push((dropped.start, None));
        }
        let was = old.next_if(|was| was.start == item.start);
        if was.is_some_and(|was| *was == item) {
            continue;
        }
        was.inspect(|was| count(was, -1));
        count(&item, 1);
        rewrite.changes.push((item.start, Some(item)));
    }
    for dropped in old {
        count(dropped, -1);
        rewrite.changes.push((dropped.start, None));
    }
    rewrite.references = references.into_values().filter(|(_, by)| *by != 0).collect();
    rewrite.references.sort_by_key(|(_, by)| *by < 0);
    rewrite
}

#[cfg(test)]
mod tests;
