//! The table in the crate's documentation: each operation against each, in both orders. Operations
//! that overlap in time are in the interleaving tests.

use crate::{TAG, cache, fill, frame, key, mark, write_page};
use butternut_pages::{
    CacheMode, FilePages, PageCache, PageState, PageWrite, Tag, Tags, WritebackPages,
    WritebackReason, WritebackResult,
};

fn begin_all(file: &FilePages) -> Vec<WritebackPages> {
    file.begin_writeback(&(0..u64::MAX), usize::MAX, Tags::ALL, WritebackReason::Sync)
}

fn end_all(runs: Vec<WritebackPages>) {
    for run in runs {
        run.end(WritebackResult::Written);
    }
}

fn write_bytes(cache: &PageCache, file: &FilePages, page: u64, bytes: &[u8]) -> PageWrite {
    let mut spare = cache.frame();
    file.change().write_bytes(page, 0, bytes, &mut spare, (TAG, CacheMode::Cached))
}

#[test]
fn a_page_passes_through_every_state() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..4, 1);
    assert_eq!(write_bytes(&cache, &file, 1, &[7; 5]), PageWrite::Done);
    assert_eq!(write_bytes(&cache, &file, 9, &[7; 5]), PageWrite::Absent);
    assert_eq!((file.state(1), cache.oldest_dirty(9)), (PageState::Dirty, vec![key(1)]));
    let mut runs = begin_all(&file);
    assert_eq!((runs.len(), runs[0].pages(), file.state(1)), (1, 1..2, PageState::Writeback));
    assert!(cache.oldest_dirty(9).is_empty());
    assert_eq!(runs[0].frames()[0][3..7], [7, 7, 1, 1]);
    runs.remove(0).end(WritebackResult::Written);
    assert_eq!((file.state(1), file.missing(0..9)), (PageState::Clean, Some(4..9)));
    let counters = cache.counters();
    assert_eq!((counters.cached_pages, counters.filled_pages), (4, 4));
    assert_eq!(counters.writeback_pages(WritebackReason::Sync), 1);
}

#[test]
fn read_and_read() {
    let cache = cache(64);
    let file = cache.file(key(1));
    let first = file.claim(&(0..8)).unwrap();
    assert!(file.claim(&(2..8)).is_none(), "a page is in one fill");
    let second = file.claim(&(4..20)).map(|second| second.pages());
    assert_eq!(second, None, "the first absent page is in a fill");
    assert_eq!(file.claim(&(8..20)).unwrap().pages(), 8..20);
    drop(first);
    assert_eq!(file.claim(&(2..8)).unwrap().pages(), 2..8, "a dropped fill can be claimed again");
}

#[test]
fn read_and_write() {
    let cache = cache(64);
    let file = cache.file(key(1));
    let claimed = file.claim(&(0..4)).unwrap();
    write_page(&cache, &file, 2, 9);
    let old: Vec<_> = (0..4).map(|_| frame(&cache, 1)).collect();
    assert_eq!(claimed.complete(old, CacheMode::Cached), 3);
    assert_eq!((0..4).map(|page| mark(&file, page)).collect::<Vec<_>>(), [1, 1, 9, 1].map(Some));
    assert_eq!(cache.counters().spoiled_pages, 1);
    let held = file.page(1).unwrap().0;
    assert_eq!(write_bytes(&cache, &file, 1, &[5; 4096]), PageWrite::Done);
    assert_eq!((held[0], mark(&file, 1)), (1, Some(5)), "a held frame keeps its bytes");
}

#[test]
fn read_and_direct_write_or_truncate() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..4, 1);
    let claimed = file.claim(&(4..8)).unwrap();
    assert_eq!(file.invalidate(&(2..6)), 0);
    let old: Vec<_> = (0..4).map(|_| frame(&cache, 1)).collect();
    assert_eq!(claimed.complete(old, CacheMode::Cached), 2);
    assert_eq!(file.missing(0..8), Some(2..6));
}

#[test]
fn read_and_evict() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..4, 1);
    let held = file.page(3).unwrap().0;
    while cache.shrink(8) > 0 {}
    assert_eq!((file.pages(), mark(&file, 3)), (1, Some(1)), "a page in use stays");
    drop(held);
    while file.pages() > 0 {
        cache.shrink(1);
    }
    assert_eq!(mark(&file, 3), None);
}

#[test]
fn read_or_direct_read_and_writeback() {
    let cache = cache(64);
    let file = cache.file(key(1));
    write_page(&cache, &file, 1, 3);
    assert_eq!(
        file.next_newer(&(0..9)),
        Some(1),
        "a direct read finds the page newer than the disk"
    );
    let runs = begin_all(&file);
    assert_eq!((mark(&file, 1), file.next_newer(&(0..9))), (Some(3), Some(1)));
    end_all(runs);
    assert_eq!((mark(&file, 1), file.next_newer(&(0..9))), (Some(3), None));
}

#[test]
fn write_and_write() {
    let cache = cache(64);
    let file = cache.file(key(1));
    file.change().write_page(0, frame(&cache, 1), Tag::ALL[2], CacheMode::Cached);
    assert_eq!(write_bytes(&cache, &file, 0, &[2; 4096]), PageWrite::Done);
    assert_eq!(file.page(0).unwrap().1, Some(Tag::ALL[2]), "a dirty page keeps its tag");
    assert_eq!((mark(&file, 0), file.dirty_pages()), (Some(2), 1));
}

#[test]
fn write_and_direct_write_or_truncate() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..8).for_each(|page| write_page(&cache, &file, page, 1));
    assert_eq!(file.invalidate(&(3..100)), 5, "a truncated page is never written back");
    write_page(&cache, &file, 6, 2);
    let runs = begin_all(&file);
    let pages: Vec<_> = runs.iter().map(WritebackPages::pages).collect();
    assert_eq!(pages, [0..3, 6..7]);
    end_all(runs);
    assert_eq!(file.newer_end(), 0);
}

#[test]
fn write_and_evict() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..8).for_each(|page| write_page(&cache, &file, page, 1));
    assert_eq!((cache.shrink(100), file.pages()), (0, 8));
    let runs = begin_all(&file);
    assert_eq!((cache.shrink(100), file.pages()), (0, 8), "a page under writeback is not evicted");
    end_all(runs);
    assert_eq!((cache.shrink(100), file.pages()), (8, 0));
}

#[test]
fn write_and_writeback() {
    let cache = cache(64);
    let file = cache.file(key(1));
    write_page(&cache, &file, 0, 1);
    let runs = begin_all(&file);
    assert_eq!(write_bytes(&cache, &file, 0, &[2; 10]), PageWrite::Done);
    assert_eq!(file.state(0), PageState::WritebackDirty);
    assert_eq!(runs[0].frames()[0][0], 1, "bytes under writeback do not change");
    assert!(begin_all(&file).is_empty(), "a page is in one run at a time");
    end_all(runs);
    assert_eq!(file.state(0), PageState::Dirty);
    let again = begin_all(&file);
    assert_eq!(again[0].frames()[0][9..11], [2, 1]);
    end_all(again);
    let held = file.page(0).unwrap().0;
    let mut spare = None;
    let refused = file.change().write_bytes(0, 0, &[3], &mut spare, (TAG, CacheMode::Cached));
    assert_eq!(refused, PageWrite::NoFrame, "a frame in use needs a spare");
    assert_eq!((file.state(0), held[0]), (PageState::Clean, 2));
}

#[test]
fn truncate_and_writeback() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..4).for_each(|page| write_page(&cache, &file, page, 1));
    let runs = begin_all(&file);
    write_page(&cache, &file, 5, 1);
    let removed = file.change().remove(&(2..9));
    assert_eq!(
        (removed, file.state(3)),
        (1, PageState::Writeback),
        "a page under writeback is not removed"
    );
    std::thread::scope(|scope| {
        let truncater = scope.spawn(|| file.invalidate(&(2..9)));
        end_all(runs);
        truncater.join().unwrap();
    });
    assert_eq!(file.missing(0..9), Some(2..9));
}

#[test]
fn truncate_and_truncate_or_evict() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..20, 1);
    assert_eq!((cache.shrink(5), file.pages()), (5, 15));
    file.invalidate(&(0..18));
    assert_eq!((file.invalidate(&(0..18)), file.pages()), (0, 2));
    assert_eq!((cache.shrink(9), file.pages()), (2, 0));
}

#[test]
fn writeback_and_fsync() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..8).for_each(|page| write_page(&cache, &file, page, 1));
    let mut background = file.begin_writeback(&(0..8), 4, Tags::ALL, WritebackReason::Background);
    let rest = begin_all(&file);
    assert_eq!((background[0].pages(), rest[0].pages()), (0..4, 4..8));
    let second = background[0].split_off(1);
    assert_eq!((background[0].pages(), second.pages()), (0..1, 1..4));
    end_all(background);
    end_all(rest);
    assert_eq!(file.next_newer(&(0..9)), Some(1));
    second.end(WritebackResult::Redirty);
    assert_eq!((file.dirty_pages(), cache.oldest_dirty(1)), (3, vec![key(1)]));
    end_all(begin_all(&file));
    file.wait_for_writeback(&(0..9));
    assert_eq!(file.next_newer(&(0..9)), None);
}

#[test]
fn failed_and_dropped_writeback() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..4).for_each(|page| write_page(&cache, &file, page, 1));
    drop(begin_all(&file));
    assert_eq!(file.dirty_pages(), 4, "a dropped run is dirty again");
    let runs = begin_all(&file);
    write_page(&cache, &file, 1, 2);
    for run in runs {
        run.end(WritebackResult::Lost);
    }
    assert_eq!((mark(&file, 0), mark(&file, 1), file.dirty_pages()), (None, Some(2), 1));
    assert_eq!(cache.counters().lost_pages, 4);
}

#[test]
fn a_run_has_one_tag_and_runs_are_in_order() {
    let cache = cache(64);
    let file = cache.file(key(1));
    for (page, tag) in [(9, 0), (1, 0), (0, 0), (2, 1), (3, 1), (17, 1), (16, 1)] {
        file.change().write_page(page, frame(&cache, 1), Tag::ALL[tag], CacheMode::Cached);
    }
    let mut change = file.change();
    change.set_tag(3, Tag::ALL[3]);
    let dirty: Vec<_> = change.dirty(0..17).map(|(page, _, _)| page).collect();
    assert_eq!(dirty, [0, 1, 2, 3, 9, 16]);
    drop(change);
    let tags = Tags::ALL.without(Tag::ALL[3]);
    let runs = file.begin_writeback(&(0..99), 99, tags, WritebackReason::Sync);
    let ranges: Vec<_> = runs.iter().map(|run| (run.pages(), run.tag())).collect();
    let [zero, one, ..] = Tag::ALL;
    assert_eq!(ranges, [(0..2, zero), (2..3, one), (9..10, zero), (16..18, one)]);
    end_all(runs);
    assert_eq!((file.dirty_pages(), file.newer_end()), (1, 4));
}
