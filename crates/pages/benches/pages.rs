//! The cost of page cache operations, in nanoseconds for each page.
//!
//! Goals: a hit costs little more than the copy. Inserting a page into a full cache costs less than
//! the copy into it, and so does a write with its writeback. Not a goal: comparing machines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its numbers, and stops at the first surprise"
)]

use butternut_pages::{
    CacheLimits, CacheMode, FileKey, FilePages, PageCache, ReadOptions, Tag, Tags, WritebackReason,
    WritebackResult,
};
use std::hint::black_box;
use std::time::Instant;

const CACHE_PAGES: u64 = 16 << 10;
const CALLS: u64 = 200_000;

fn main() {
    let cache = PageCache::new(CacheLimits::of(64 << 20));
    let file = cache.file(FileKey { tree: 5, ino: 1 });
    report("insert into an empty cache", CACHE_PAGES, || insert(&cache, &file, 0, CACHE_PAGES, 1));
    report("insert 1 page and evict another", CALLS, || {
        insert(&cache, &file, CACHE_PAGES, CALLS, 1);
    });
    report("insert 64 pages and evict others", CALLS, || {
        insert(&cache, &file, CACHE_PAGES + CALLS, CALLS, 64);
    });
    let first = 2 * CALLS + 1000;
    let mut buf = vec![0; 256 << 10];
    let mut random = 88_172_645_463_325_252_u64;
    report("read 1 page, at random", CALLS, || {
        for _ in 0..CALLS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (first + random % 10_000) * 4096;
            black_box(file.read(at, &mut buf[..4096], ReadOptions::CACHED));
        }
    });
    report("read 64 pages", CALLS, || {
        for call in 0..CALLS / 64 {
            let at = (first + call * 64 % 10_000) * 4096;
            black_box(file.read(at, &mut buf, ReadOptions::CACHED));
        }
    });
    report("write, write back and drop behind", CALLS, || {
        let dirty = cache.file(FileKey { tree: 5, ino: 2 });
        for start in (0..CALLS).step_by(256) {
            for page in start..start + 256 {
                let mut frame = cache.frame().unwrap();
                frame.bytes_mut().unwrap().copy_from_slice(&buf[..4096]);
                dirty.change().write_page(page, frame, Tag::default(), CacheMode::Uncached);
            }
            let pages = start..start + 256;
            for run in dirty.begin_writeback(&pages, 256, Tags::ALL, WritebackReason::Uncached) {
                run.end(WritebackResult::Written);
            }
        }
    });
    println!("{:?}", cache.counters());
}

fn insert(cache: &PageCache, file: &FilePages, first: u64, pages: u64, pages_each: u64) {
    let mut frames = Vec::new();
    for start in (first..first + pages).step_by(usize::try_from(pages_each).unwrap()) {
        let claimed = file.claim(&(start..start + pages_each)).unwrap();
        frames.extend((0..pages_each).map(|_| cache.frame().unwrap()));
        claimed.complete(frames.drain(..), CacheMode::Cached);
    }
}

fn report(what: &str, pages: u64, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    println!("{what}: {:.0} ns", start.elapsed().as_nanos() as f64 / pages as f64);
}
