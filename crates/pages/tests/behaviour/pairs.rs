//! The table of the crate's header: each operation against each, where they meet in one order and
//! in the other. Those that meet in time are in the tests of interleavings.

use crate::{TAG, bring, cache, frame, key, mark, put};
use butternut_pages::{
    FilePages, Landing, PageCache, PageState, Patched, Reason, Stay, Tag, Tags, Writeback,
};

fn send(file: &FilePages) -> Vec<Writeback> {
    file.begin_writeback(&(0..u64::MAX), usize::MAX, Tags::ALL, Reason::Sync)
}

fn land(runs: Vec<Writeback>) {
    for run in runs {
        run.end(Landing::Written);
    }
}

fn patch(cache: &PageCache, file: &FilePages, page: u64, bytes: &[u8]) -> Patched {
    let mut spare = cache.frame();
    file.change().patch(page, 0, bytes, &mut spare, (TAG, Stay::Cached))
}

#[test]
fn a_page_goes_its_whole_way() {
    let cache = cache(64);
    let file = cache.file(key(1));
    bring(&cache, &file, 0..4, 1);
    assert_eq!(patch(&cache, &file, 1, &[7; 5]), Patched::Done);
    assert_eq!(patch(&cache, &file, 9, &[7; 5]), Patched::Absent);
    assert_eq!((file.state(1), cache.oldest_dirty(9)), (PageState::Dirty, vec![key(1)]));
    let mut runs = send(&file);
    assert_eq!((runs.len(), runs[0].pages(), file.state(1)), (1, 1..2, PageState::Written));
    assert!(cache.oldest_dirty(9).is_empty());
    assert_eq!(runs[0].frames()[0][3..7], [7, 7, 1, 1]);
    runs.remove(0).end(Landing::Written);
    assert_eq!((file.state(1), file.missing(0..9)), (PageState::Clean, Some(4..9)));
    let counters = cache.counters();
    assert_eq!((counters.cached_pages, counters.filled_pages), (4, 4));
    assert_eq!(counters.writeback_pages(Reason::Sync), 1);
}

#[test]
fn read_and_read() {
    let cache = cache(64);
    let file = cache.file(key(1));
    let first = file.claim(&(0..8)).unwrap();
    assert!(file.claim(&(2..8)).is_none(), "a page is read once");
    let second = file.claim(&(4..20)).map(|second| second.pages());
    assert_eq!(second, None, "the first missing page is being read");
    assert_eq!(file.claim(&(8..20)).unwrap().pages(), 8..20);
    drop(first);
    assert_eq!(file.claim(&(2..8)).unwrap().pages(), 2..8, "who gave up leaves it to others");
}

#[test]
fn read_and_write() {
    let cache = cache(64);
    let file = cache.file(key(1));
    let claimed = file.claim(&(0..4)).unwrap();
    put(&cache, &file, 2, 9);
    let old: Vec<_> = (0..4).map(|_| frame(&cache, 1)).collect();
    assert_eq!(claimed.complete(old, Stay::Cached), 3);
    assert_eq!((0..4).map(|page| mark(&file, page)).collect::<Vec<_>>(), [1, 1, 9, 1].map(Some));
    assert_eq!(cache.counters().spoiled_pages, 1);
    let held = file.page(1).unwrap().0;
    assert_eq!(patch(&cache, &file, 1, &[5; 4096]), Patched::Done);
    assert_eq!((held[0], mark(&file, 1)), (1, Some(5)), "who holds a page's bytes keeps them");
}

#[test]
fn read_and_direct_write_or_truncate() {
    let cache = cache(64);
    let file = cache.file(key(1));
    bring(&cache, &file, 0..4, 1);
    let claimed = file.claim(&(4..8)).unwrap();
    assert_eq!(file.invalidate(&(2..6)), 0);
    let old: Vec<_> = (0..4).map(|_| frame(&cache, 1)).collect();
    assert_eq!(claimed.complete(old, Stay::Cached), 2);
    assert_eq!(file.missing(0..8), Some(2..6));
}

#[test]
fn read_and_evict() {
    let cache = cache(64);
    let file = cache.file(key(1));
    bring(&cache, &file, 0..4, 1);
    let held = file.page(3).unwrap().0;
    while cache.shrink(8) > 0 {}
    assert_eq!((file.pages(), mark(&file, 3)), (1, Some(1)), "what is in use stays");
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
    put(&cache, &file, 1, 3);
    assert_eq!(file.next_newer(&(0..9)), Some(1), "a direct read sees that the disk is old");
    let runs = send(&file);
    assert_eq!((mark(&file, 1), file.next_newer(&(0..9))), (Some(3), Some(1)));
    land(runs);
    assert_eq!((mark(&file, 1), file.next_newer(&(0..9))), (Some(3), None));
}

#[test]
fn write_and_write() {
    let cache = cache(64);
    let file = cache.file(key(1));
    file.change().put(0, frame(&cache, 1), Tag::ALL[2], Stay::Cached);
    assert_eq!(patch(&cache, &file, 0, &[2; 4096]), Patched::Done);
    assert_eq!(file.page(0).unwrap().1, Some(Tag::ALL[2]), "a dirty page keeps its tag");
    assert_eq!((mark(&file, 0), file.dirty_pages()), (Some(2), 1));
}

#[test]
fn write_and_direct_write_or_truncate() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..8).for_each(|page| put(&cache, &file, page, 1));
    assert_eq!(file.invalidate(&(3..100)), 5, "what is cut never goes down");
    put(&cache, &file, 6, 2);
    let runs = send(&file);
    let pages: Vec<_> = runs.iter().map(Writeback::pages).collect();
    assert_eq!(pages, [0..3, 6..7]);
    land(runs);
    assert_eq!(file.newer_end(), 0);
}

#[test]
fn write_and_evict() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..8).for_each(|page| put(&cache, &file, page, 1));
    assert_eq!((cache.shrink(100), file.pages()), (0, 8));
    let runs = send(&file);
    assert_eq!((cache.shrink(100), file.pages()), (0, 8), "nor what is on its way");
    land(runs);
    assert_eq!((cache.shrink(100), file.pages()), (8, 0));
}

#[test]
fn write_and_writeback() {
    let cache = cache(64);
    let file = cache.file(key(1));
    put(&cache, &file, 0, 1);
    let runs = send(&file);
    assert_eq!(patch(&cache, &file, 0, &[2; 10]), Patched::Done);
    assert_eq!(file.state(0), PageState::WrittenDirty);
    assert_eq!(runs[0].frames()[0][0], 1, "what is on its way does not change");
    assert!(send(&file).is_empty(), "a page is on its way once");
    land(runs);
    assert_eq!(file.state(0), PageState::Dirty);
    let again = send(&file);
    assert_eq!(again[0].frames()[0][9..11], [2, 1]);
    land(again);
    let held = file.page(0).unwrap().0;
    let mut spare = None;
    let refused = file.change().patch(0, 0, &[3], &mut spare, (TAG, Stay::Cached));
    assert_eq!(refused, Patched::NoFrame, "bytes in use want other memory");
    assert_eq!((file.state(0), held[0]), (PageState::Clean, 2));
}

#[test]
fn truncate_and_writeback() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..4).for_each(|page| put(&cache, &file, page, 1));
    let runs = send(&file);
    put(&cache, &file, 5, 1);
    let cut = file.change().discard(&(2..9));
    assert_eq!((cut, file.state(3)), (1, PageState::Written), "what is on its way is waited for");
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| file.invalidate(&(2..9)));
        land(runs);
        cutter.join().unwrap();
    });
    assert_eq!(file.missing(0..9), Some(2..9));
}

#[test]
fn truncate_and_truncate_or_evict() {
    let cache = cache(64);
    let file = cache.file(key(1));
    bring(&cache, &file, 0..20, 1);
    assert_eq!((cache.shrink(5), file.pages()), (5, 15));
    file.invalidate(&(0..18));
    assert_eq!((file.invalidate(&(0..18)), file.pages()), (0, 2));
    assert_eq!((cache.shrink(9), file.pages()), (2, 0));
}

#[test]
fn writeback_and_fsync() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..8).for_each(|page| put(&cache, &file, page, 1));
    let mut background = file.begin_writeback(&(0..8), 4, Tags::ALL, Reason::Background);
    let rest = send(&file);
    assert_eq!((background[0].pages(), rest[0].pages()), (0..4, 4..8));
    let second = background[0].split_off(1);
    assert_eq!((background[0].pages(), second.pages()), (0..1, 1..4));
    land(background);
    land(rest);
    assert_eq!(file.next_newer(&(0..9)), Some(1));
    second.end(Landing::Again);
    assert_eq!((file.dirty_pages(), cache.oldest_dirty(1)), (3, vec![key(1)]));
    land(send(&file));
    file.wait_for_writeback(&(0..9));
    assert_eq!(file.next_newer(&(0..9)), None);
}

#[test]
fn a_writeback_that_fails_or_is_dropped() {
    let cache = cache(64);
    let file = cache.file(key(1));
    (0..4).for_each(|page| put(&cache, &file, page, 1));
    drop(send(&file));
    assert_eq!(file.dirty_pages(), 4, "what did not end is tried again");
    let runs = send(&file);
    put(&cache, &file, 1, 2);
    for run in runs {
        run.end(Landing::Lost);
    }
    assert_eq!((mark(&file, 0), mark(&file, 1), file.dirty_pages()), (None, Some(2), 1));
    assert_eq!(cache.counters().lost_pages, 4);
}

#[test]
fn runs_are_of_one_tag_and_in_order() {
    let cache = cache(64);
    let file = cache.file(key(1));
    for (page, tag) in [(9, 0), (1, 0), (0, 0), (2, 1), (3, 1), (17, 1), (16, 1)] {
        file.change().put(page, frame(&cache, 1), Tag::ALL[tag], Stay::Cached);
    }
    let mut change = file.change();
    change.set_tag(3, Tag::ALL[3]);
    let dirty: Vec<_> = change.dirty(0..17).map(|(page, _, _)| page).collect();
    assert_eq!(dirty, [0, 1, 2, 3, 9, 16]);
    drop(change);
    let tags = Tags::ALL.without(Tag::ALL[3]);
    let runs = file.begin_writeback(&(0..99), 99, tags, Reason::Sync);
    let ranges: Vec<_> = runs.iter().map(|run| (run.pages(), run.tag())).collect();
    let [zero, one, ..] = Tag::ALL;
    assert_eq!(ranges, [(0..2, zero), (2..3, one), (9..10, zero), (16..18, one)]);
    land(runs);
    assert_eq!((file.dirty_pages(), file.newer_end()), (1, 4));
}
