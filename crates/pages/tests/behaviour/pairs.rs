//! The table of the crate's header: each operation against each.

use crate::{cache, key};
use butternut_pages::{Finding, Landing, PageState, Patched, Reason, Stay, Tag, Tags};

const TAG: Tag = Tag::ALL[0];

#[test]
fn a_page_goes_its_whole_way() {
    let cache = cache(64);
    let file = cache.file(key(1));
    let claimed = file.claim(&(0..4)).unwrap();
    assert_eq!(claimed.pages(), 0..4);
    assert!(file.claim(&(0..4)).is_none(), "once at a time");
    let frames: Vec<_> = (0..4u8)
        .map(|mark| {
            let mut frame = cache.frame().unwrap();
            frame.bytes_mut().unwrap().fill(mark);
            frame
        })
        .collect();
    assert_eq!(claimed.complete(frames, Stay::Cached), 4);
    let mut buf = vec![9; 20_000];
    assert_eq!(file.read(4095, &mut buf, Finding::CACHED), 3 * 4096 + 1);
    assert_eq!((buf[0], buf[1], buf[4097], buf[12288]), (0, 1, 2, 3));

    let mut spare = cache.frame();
    let mut change = file.change();
    assert_eq!(change.patch(1, 10, &[7; 5], &mut spare, (TAG, Stay::Cached)), Patched::Done);
    assert_eq!(change.patch(9, 10, &[7; 5], &mut spare, (TAG, Stay::Cached)), Patched::Absent);
    drop(change);
    assert_eq!(file.state(1), PageState::Dirty);
    assert_eq!(cache.oldest_dirty(9), [key(1)]);
    let runs = file.begin_writeback(&(0..100), 100, Tags::ALL, Reason::Sync);
    assert_eq!((runs.len(), runs[0].pages()), (1, 1..2));
    assert_eq!(file.state(1), PageState::Written);
    assert!(cache.oldest_dirty(9).is_empty());
    for run in runs {
        assert_eq!(run.frames()[0][9..16], [1, 7, 7, 7, 7, 7, 1]);
        run.end(Landing::Written);
    }
    assert_eq!(file.state(1), PageState::Clean);
    assert_eq!(file.invalidate(&(0..2)), 0);
    assert_eq!(file.missing(0..4), Some(0..2));
    assert_eq!(cache.counters().cached_pages, 2);
}
