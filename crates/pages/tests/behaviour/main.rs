//! Behaviour of the page cache, through its public functions.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod allocations;
mod limits;
mod model;
mod pairs;
mod panics;
mod uncached;

use butternut_pages::{CacheLimits, CacheMode, FileKey, FilePages, PageCache, ReadOptions, Tag};
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

/// A frame filled with one byte.
pub(crate) fn frame(cache: &PageCache, mark: u8) -> Frame {
    let mut frame = cache.frame().unwrap();
    frame.bytes_mut().unwrap().fill(mark);
    frame
}

/// Reads pages into the cache, each filled with one byte.
pub(crate) fn fill(cache: &PageCache, file: &FilePages, pages: std::ops::Range<u64>, mark: u8) {
    let mut left = pages.clone();
    while let Some(claimed) = file.claim(&left) {
        left.start = claimed.pages().end;
        let frames: Vec<Frame> = claimed.pages().map(|_| frame(cache, mark)).collect();
        claimed.complete(frames, CacheMode::Cached);
    }
}

pub(crate) fn write_page(cache: &PageCache, file: &FilePages, page: u64, mark: u8) {
    let frame = frame(cache, mark);
    file.change().write_page(page, frame, TAG, CacheMode::Cached);
}

/// The byte that a present page is filled with.
pub(crate) fn mark(file: &FilePages, page: u64) -> Option<u8> {
    let mut buf = [0; 4096];
    let read = file.read(page * 4096, &mut buf, ReadOptions::CACHED);
    assert!(read == 0 || (read == 4096 && buf.iter().all(|byte| *byte == buf[0])));
    (read > 0).then_some(buf[0])
}
