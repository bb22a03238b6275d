//! What the page cache costs, in nanoseconds a page.
//!
//! Goals: a hit costs little more than the copy; a page that comes into a full cache, and pushes
//! another out, costs less than the copy into it; a page that goes through a write and a writeback
//! likewise. Non-goal: comparing machines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its numbers, and stops at the first surprise"
)]

use butternut_pages::{
    CacheLimits, FileKey, FilePages, Finding, Landing, PageCache, Reason, Stay, Tag, Tags,
};
use std::hint::black_box;
use std::time::Instant;

const CACHE_PAGES: u64 = 16 << 10;
const CALLS: u64 = 200_000;

fn main() {
    let cache = PageCache::new(CacheLimits::of(64 << 20));
    let file = cache.file(FileKey { tree: 5, ino: 1 });
    report("come into an empty cache", CACHE_PAGES, || come(&cache, &file, 0, CACHE_PAGES, 1));
    report("come one by one and push another out", CALLS, || {
        come(&cache, &file, CACHE_PAGES, CALLS, 1);
    });
    report("come 64 at once and push others out", CALLS, || {
        come(&cache, &file, CACHE_PAGES + CALLS, CALLS, 64);
    });
    let first = 2 * CALLS + 1000;
    let mut buf = vec![0; 256 << 10];
    let mut random = 88_172_645_463_325_252_u64;
    report("find, one at a time at random", CALLS, || {
        for _ in 0..CALLS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (first + random % 10_000) * 4096;
            black_box(file.read(at, &mut buf[..4096], Finding::CACHED));
        }
    });
    report("find, 64 at once", CALLS, || {
        for call in 0..CALLS / 64 {
            let at = (first + call * 64 % 10_000) * 4096;
            black_box(file.read(at, &mut buf, Finding::CACHED));
        }
    });
    report("write, bring down and drop behind", CALLS, || {
        let dirty = cache.file(FileKey { tree: 5, ino: 2 });
        for start in (0..CALLS).step_by(256) {
            for page in start..start + 256 {
                let mut frame = cache.frame().unwrap();
                frame.bytes_mut().unwrap().copy_from_slice(&buf[..4096]);
                dirty.change().put(page, frame, Tag::default(), Stay::Uncached);
            }
            let pages = start..start + 256;
            for run in dirty.begin_writeback(&pages, 256, Tags::ALL, Reason::Uncached) {
                run.end(Landing::Written);
            }
        }
    });
    println!("{:?}", cache.counters());
}

fn come(cache: &PageCache, file: &FilePages, first: u64, pages: u64, at_once: u64) {
    let mut frames = Vec::new();
    for start in (first..first + pages).step_by(usize::try_from(at_once).unwrap()) {
        let claimed = file.claim(&(start..start + at_once)).unwrap();
        frames.extend((0..at_once).map(|_| cache.frame().unwrap()));
        claimed.complete(frames.drain(..), Stay::Cached);
    }
}

fn report(what: &str, pages: u64, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    println!("{what}: {:.0} ns", start.elapsed().as_nanos() as f64 / pages as f64);
}
