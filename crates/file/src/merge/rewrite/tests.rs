//! Every way in which a range can overlap an item; then random rewrites against a model of blocks.

use super::*;
use butternut_format::file_extent::{Compression, DiskExtent, ExtentBody, ExtentRun, FileExtent};
use butternut_format::units::{Generation, Logical};
use proptest::prelude::*;

const K: u64 = 4096;
const OLD: Generation = Generation(7);

fn disk(number: u64, blocks: u64) -> DiskExtent {
    DiskExtent { logical: Logical(number << 30), bytes: blocks * K }
}

/// Blocks `from` to `to` of the file show extent `number`, of 16 blocks, from block `skip` on.
fn regular(from: u64, to: u64, number: u64, skip: u64) -> ExtentItem<'static> {
    let run = ExtentRun { offset: skip * K, num_bytes: (to - from) * K };
    let extent = FileExtent::regular(OLD, disk(number, 16), run);
    ExtentItem { start: from * K, extent, is_new: false }
}

fn preallocate(from: u64, to: u64, number: u64, skip: u64) -> ExtentItem<'static> {
    let run = ExtentRun { offset: skip * K, num_bytes: (to - from) * K };
    let extent = FileExtent::preallocated(OLD, disk(number, 16), run);
    ExtentItem { start: from * K, extent, is_new: false }
}

fn hole(from: u64, to: u64) -> ExtentItem<'static> {
    let extent = FileExtent::hole(OLD, (to - from) * K);
    ExtentItem { start: from * K, extent, is_new: false }
}

fn compressed(from: u64, to: u64, number: u64, skip: u64) -> ExtentItem<'static> {
    let mut item = regular(from, to, number, skip);
    item.extent.compression = Compression::Zstd;
    item.extent.ram_bytes = 32 * K;
    let disk = DiskExtent { logical: Logical(number << 30), bytes: 2 * K };
    let run = ExtentRun { offset: skip * K, num_bytes: (to - from) * K };
    item.extent.body = ExtentBody::Regular { disk, run };
    item
}

fn inline(bytes: u64) -> ExtentItem<'static> {
    let body = ExtentBody::Inline(&[]);
    let compression = Compression::None;
    let extent = FileExtent { generation: OLD, ram_bytes: bytes, compression, body };
    ExtentItem { start: 0, extent, is_new: false }
}

fn fresh(item: ExtentItem<'_>) -> ExtentItem<'_> {
    ExtentItem { is_new: true, ..item }
}

fn blocks(from: u64, to: u64) -> Range<u64> {
    from * K..to * K
}

fn reference(number: u64, first_block: i64, by: i64) -> (Reference, i64) {
    let offset = u64::try_from(first_block).unwrap_or(0) * K;
    (Reference { extent: disk(number, 16), offset }, by)
}

#[track_caller]
fn check(
    old: &[ExtentItem<'static>],
    dropped: Range<u64>,
    inserted: Vec<ExtentItem<'static>>,
    changes: Vec<(u64, Option<ExtentItem<'static>>)>,
    references: Vec<(Reference, i64)>,
    blocks_used: i64,
) {
    let have = plan(old, &[dropped], inserted, &[]).unwrap();
    assert_eq!(have, Rewrite { changes, references, bytes_used: blocks_used * 4096 });
}

/// A volume may have an empty item past the end of a file, and the file grows.
#[test]
fn an_empty_item_where_a_hole_begins_is_refused() {
    let old = [regular(0, 4, 1, 0), regular(6, 6, 2, 0)];
    let refused = plan(&old, &[], vec![], &[blocks(4, 16)]).unwrap_err();
    assert!(refused.to_string().starts_with("file offset of an extent item"), "{refused}");
}

#[test]
fn an_item_is_cut_at_its_front_back_or_middle_or_dropped() {
    let old = [regular(4, 12, 1, 2)];
    let front = regular(4, 6, 1, 2);
    check(&old, blocks(6, 20), vec![], vec![(4 * K, Some(front))], vec![], -6);
    let back = regular(10, 12, 1, 8);
    let changes = vec![(4 * K, None), (10 * K, Some(back))];
    check(&old, blocks(0, 10), vec![], changes, vec![], -6);
    let changes = vec![(4 * K, Some(front)), (10 * K, Some(back))];
    check(&old, blocks(6, 10), vec![], changes, vec![reference(1, 2, 1)], -4);
    check(&old, blocks(4, 12), vec![], vec![(4 * K, None)], vec![reference(1, 2, -1)], -8);
    check(&old, blocks(0, 4), vec![], vec![], vec![], 0);
    check(&old, blocks(12, 13), vec![], vec![], vec![], 0);
}

#[test]
fn inserted_items_replace_dropped_ranges() {
    let old = [regular(0, 8, 1, 0), regular(8, 16, 2, 8)];
    let inserted = fresh(regular(6, 10, 3, 0));
    let changes = vec![
        (0, Some(regular(0, 6, 1, 0))),
        (6 * K, Some(inserted)),
        (8 * K, None),
        (10 * K, Some(regular(10, 16, 2, 10))),
    ];
    check(&old, blocks(6, 10), vec![inserted], changes, vec![reference(3, 6, 1)], 0);
}

#[test]
fn a_compressed_item_keeps_its_whole_extent_when_cut() {
    let old = [compressed(0, 32, 1, 0)];
    let rewrite = plan(&old, &[blocks(8, 16)], vec![], &[]).unwrap();
    let want = vec![(0, Some(compressed(0, 8, 1, 0))), (16 * K, Some(compressed(16, 32, 1, 16)))];
    assert_eq!(rewrite.changes, want);
    assert_eq!(rewrite.references.iter().map(|(_, by)| *by).collect::<Vec<_>>(), [1]);
    assert_eq!(rewrite.bytes_used, -8 * 4096);
}

#[test]
fn a_clone_that_shows_an_extents_end_keeps_its_reference() {
    // The extent would start before the file does.
    let old = [regular(0, 4, 1, 12)];
    let offset = 0_u64.wrapping_sub(12 * K);
    let rewrite = plan(&old, &[blocks(0, 4)], vec![], &[]).unwrap();
    assert_eq!(rewrite.references, [(Reference { extent: disk(1, 16), offset }, -1)]);
    let rewrite = plan(&old, &[blocks(0, 2)], vec![], &[]).unwrap();
    assert_eq!(rewrite.references, []);
}

#[test]
fn written_preallocated_space_keeps_its_extent() {
    let old = [preallocate(0, 16, 1, 0)];
    let inserted = fresh(regular(4, 6, 1, 4));
    let changes = vec![
        (0, Some(preallocate(0, 4, 1, 0))),
        (4 * K, Some(inserted)),
        (6 * K, Some(preallocate(6, 16, 1, 6))),
    ];
    check(&old, blocks(4, 6), vec![inserted], changes, vec![reference(1, 0, 2)], 0);
    // The next write joins the first, and the number of items stays.
    let old = [preallocate(0, 4, 1, 0), regular(4, 6, 1, 4), preallocate(6, 16, 1, 6)];
    let inserted = fresh(regular(6, 7, 1, 6));
    let changes = vec![
        (4 * K, Some(fresh(regular(4, 7, 1, 4)))),
        (6 * K, None),
        (7 * K, Some(preallocate(7, 16, 1, 7))),
    ];
    check(&old, blocks(6, 7), vec![inserted], changes, vec![], 0);
    // All of it is written: it is one item again.
    let old = [regular(0, 4, 1, 0), preallocate(4, 6, 1, 4), regular(6, 16, 1, 6)];
    let inserted = fresh(regular(4, 6, 1, 4));
    let changes = vec![(0, Some(fresh(regular(0, 16, 1, 0)))), (4 * K, None), (6 * K, None)];
    check(&old, blocks(4, 6), vec![inserted], changes, vec![reference(1, 0, -2)], 0);
}

#[test]
fn neighbours_on_disk_of_two_extents_stay_two_items() {
    let old = [regular(0, 4, 1, 0)];
    let mut inserted = fresh(regular(4, 8, 1, 0));
    let extent = DiskExtent { logical: Logical((1 << 30) + 16 * K), bytes: 4 * K };
    inserted.extent = FileExtent::regular(OLD, extent, ExtentRun { offset: 0, num_bytes: 4 * K });
    let rewrite = plan(&old, &[blocks(4, 8)], vec![inserted], &[]).unwrap();
    assert_eq!(rewrite.changes, [(4 * K, Some(inserted))]);
}

#[test]
fn an_inline_item_is_dropped_as_a_whole() {
    let inserted = fresh(regular(0, 1, 1, 0));
    let old = [inline(1000)];
    let rewrite = plan(&old, &[blocks(0, 1)], vec![inserted], &[]).unwrap();
    assert_eq!(rewrite.changes, [(0, Some(inserted))]);
    assert_eq!(rewrite.bytes_used, 4096 - 1000);
    assert!(plan(&[inline(5000)], &[blocks(0, 1)], vec![], &[]).is_err());
    assert_eq!(plan(&old, &[blocks(1, 5)], vec![], &[]).unwrap(), Rewrite::default());
}

#[test]
fn empty_items_of_old_kernels_are_dropped_with_their_range() {
    let mut empty = hole(4, 4);
    empty.extent.ram_bytes = 0;
    let old = [regular(0, 4, 1, 0), empty, regular(6, 8, 2, 0)];
    let rewrite = plan(&old, &[blocks(4, 5)], vec![], &[]).unwrap();
    assert_eq!(rewrite.changes, [(4 * K, None)]);
    let rewrite = plan(&old, &[blocks(2, 4)], vec![], &[]).unwrap();
    assert_eq!(rewrite.changes, [(0, Some(regular(0, 2, 1, 0)))]);
}

#[test]
fn gaps_in_covered_ranges_become_holes() {
    let old = [regular(0, 4, 1, 0), preallocate(10, 12, 2, 0)];
    let rewrite = plan(&old, &[], vec![], &[blocks(4, 16)]).unwrap();
    let want = vec![(4 * K, Some(fresh(hole(4, 10)))), (12 * K, Some(fresh(hole(12, 16))))];
    let plain = |changes: Vec<(u64, Option<ExtentItem<'static>>)>| -> Vec<_> {
        changes.into_iter().map(|(at, item)| (at, item.map(|item| item.end()))).collect()
    };
    assert_eq!(plain(rewrite.changes), plain(want));
    // A hole punched beside a hole is one hole.
    let old = [hole(0, 4), regular(4, 8, 1, 0), hole(8, 12)];
    let rewrite = plan(&old, &[blocks(4, 8)], vec![], &[blocks(4, 8)]).unwrap();
    assert_eq!(plain(rewrite.changes), [(0, Some(12 * K)), (4 * K, None), (8 * K, None)]);
}

/// What one block of the file shows: kind, extent, and block of the extent.
type Block = Option<(u8, u64, u64)>;

const FILE_BLOCKS: u64 = 96;

#[derive(Clone, Debug)]
struct Plot {
    /// Length of the item, length of the gap before it, kind, and offset in its extent.
    items: Vec<(u64, u64, u8, u64)>,
    dropped: Vec<(u64, u64, bool)>,
    is_covered: bool,
}

fn plot() -> impl Strategy<Value = Plot> {
    let items = prop::collection::vec((1..9_u64, 0..3_u64, 0..4_u8, 0..8_u64), 0..12);
    let dropped = prop::collection::vec((0..8_u64, 1..9_u64, any::<bool>()), 1..8);
    (items, dropped, any::<bool>()).prop_map(|(items, dropped, is_covered)| Plot {
        items,
        dropped,
        is_covered,
    })
}

fn old_of(plot: &Plot) -> Vec<ExtentItem<'static>> {
    let (mut old, mut at) = (Vec::new(), 0);
    for (number, (len, gap, kind, skip)) in (1..).zip(&plot.items) {
        at += gap;
        let (from, to) = (at, at + len);
        at = to;
        // Every second item shows the same extent as the one before.
        let number = number / 2 + 1;
        old.push(match kind {
            0 => regular(from, to, number, *skip),
            1 => preallocate(from, to, number, *skip),
            2 => compressed(from, to, number, *skip),
            _ => hole(from, to),
        });
    }
    old
}

fn shown(items: &[ExtentItem<'_>]) -> Vec<Block> {
    let mut blocks = vec![None; usize::try_from(FILE_BLOCKS * 2).unwrap()];
    for item in items {
        let (kind, disk, run) = match item.extent.body {
            ExtentBody::Regular { disk, run } => (item.extent.compression.to_byte(), disk, run),
            ExtentBody::Preallocated { disk, run } => (9, disk, run),
            ExtentBody::Hole { .. } | ExtentBody::Inline(_) => continue,
        };
        for block in 0..run.num_bytes / K {
            let at = usize::try_from(item.start / K + block).unwrap();
            assert_eq!(blocks[at], None, "no overlaps");
            blocks[at] = Some((kind, disk.logical.0, run.offset / K + block));
        }
    }
    blocks
}

fn counts(items: &[ExtentItem<'_>]) -> BTreeMap<(u64, u64), i64> {
    let mut counts = BTreeMap::new();
    for reference in items.iter().filter_map(ExtentItem::reference) {
        *counts.entry((reference.extent.logical.0, reference.offset)).or_default() += 1;
    }
    counts
}

proptest! {
    #[test]
    fn blocks_references_and_byte_counts_match_the_model(plot in plot()) {
        let old = old_of(&plot);
        let (mut dropped, mut inserted, mut at) = (Vec::new(), Vec::new(), 0);
        for (number, (gap, len, is_filled)) in (100..).zip(&plot.dropped) {
            let range = blocks(at + gap, at + gap + len);
            at += gap + len;
            if *is_filled {
                inserted.push(fresh(regular(range.start / K, range.end / K, number, 0)));
            }
            dropped.push(range);
        }
        let covered = if plot.is_covered { vec![blocks(0, FILE_BLOCKS)] } else { vec![] };
        let rewrite = plan(&old, &dropped, inserted.clone(), &covered).unwrap();

        let mut want = shown(&old);
        for range in &dropped {
            for block in range.start / K..range.end / K {
                want[usize::try_from(block).unwrap()] = None;
            }
        }
        for (block, new) in shown(&inserted).into_iter().enumerate() {
            want[block] = new.or(want[block]);
        }
        let mut items: BTreeMap<u64, ExtentItem<'_>> =
            old.iter().map(|item| (item.start, *item)).collect();
        for (start, change) in &rewrite.changes {
            match change {
                Some(item) => {
                    prop_assert_eq!(item.start, *start);
                    items.insert(*start, *item);
                }
                None => prop_assert!(items.remove(start).is_some()),
            }
        }
        let new: Vec<ExtentItem<'_>> = items.into_values().collect();
        prop_assert_eq!(shown(&new), want);
        for pair in new.windows(2) {
            prop_assert!(pair[0].end() <= pair[1].start);
            prop_assert!(!plot.is_covered || pair[0].end() == pair[1].start);
        }
        let mut references = counts(&old);
        for (reference, by) in &rewrite.references {
            *references.entry((reference.extent.logical.0, reference.offset)).or_default() += by;
        }
        references.retain(|_, count| *count != 0);
        prop_assert_eq!(references, counts(&new));
        let used = |items: &[ExtentItem<'_>]| -> i64 {
            items.iter().map(|item| i64::try_from(item.bytes_used()).unwrap()).sum()
        };
        prop_assert_eq!(used(&old) + rewrite.bytes_used, used(&new));
    }
}

#[test]
fn the_bytes_of_crafted_extents_do_not_overflow() {
    let item = |start: u64| {
        let disk = DiskExtent { logical: Logical(1 << 30), bytes: 1 << 62 };
        let run = ExtentRun { offset: 0, num_bytes: 1 << 62 };
        ExtentItem { start, extent: FileExtent::regular(OLD, disk, run), is_new: false }
    };
    let old = [item(0), item(1 << 62), item(1 << 63)];
    let rewrite = plan(&old, std::slice::from_ref(&(0..u64::MAX)), Vec::new(), &[]).unwrap();
    assert_eq!(rewrite.changes.len(), 3);
    assert!(rewrite.bytes_used < 0);
}
