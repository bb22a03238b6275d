//! What the page cache does, by its public functions.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod allocations;
mod limits;
mod model;
mod pairs;
mod panics;
mod uncached;

use butternut_pages::{CacheLimits, FileKey, FilePages, Finding, PageCache, Stay, Tag};
use butternut_sys::allocations::CountingAllocator;
use butternut_sys::frames::Frame;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

pub(crate) const TAG: Tag = Tag::ALL[0];

pub(crate) fn cache(pages: usize) -> PageCache {
    PageCache::new(CacheLimits::of(pages * 4096))
}

pub(crate) fn key(ino: u64) -> FileKey {
    FileKey { tree: 5, ino }
}

/// A frame that is all one byte.
pub(crate) fn frame(cache: &PageCache, mark: u8) -> Frame {
    let mut frame = cache.frame().unwrap();
    frame.bytes_mut().unwrap().fill(mark);
    frame
}

/// Reads pages for the cache; each is all one byte.
pub(crate) fn bring(cache: &PageCache, file: &FilePages, pages: std::ops::Range<u64>, mark: u8) {
    let mut left = pages.clone();
    while let Some(claimed) = file.claim(&left) {
        left.start = claimed.pages().end;
        let frames: Vec<Frame> = claimed.pages().map(|_| frame(cache, mark)).collect();
        claimed.complete(frames, Stay::Cached);
    }
}

pub(crate) fn put(cache: &PageCache, file: &FilePages, page: u64, mark: u8) {
    let frame = frame(cache, mark);
    file.change().put(page, frame, TAG, Stay::Cached);
}

/// The byte that a page is made of, if it is there.
pub(crate) fn mark(file: &FilePages, page: u64) -> Option<u8> {
    let mut buf = [0; 4096];
    let read = file.read(page * 4096, &mut buf, Finding::CACHED);
    assert!(read == 0 || (read == 4096 && buf.iter().all(|byte| *byte == buf[0])));
    (read > 0).then_some(buf[0])
}
