//! The page cache under many orders of thread steps: its own sources, compiled with locks and
//! atomics that a scheduler controls. A deadlock, a lost wakeup or a stale page fails the test,
//! which prints the order of steps that led to it.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    reason = "the sources are those of the library, of which a test uses a part; it stops at the \
              first surprise"
)]

#[path = "../../src/cache.rs"]
mod cache;
#[path = "../../src/change.rs"]
mod change;
#[path = "../../src/counters.rs"]
mod counters;
#[path = "../../src/dirty.rs"]
mod dirty;
#[path = "../../src/eventcount.rs"]
mod eventcount;
#[path = "../../src/file_key.rs"]
mod file_key;
#[path = "../../src/file_pages.rs"]
mod file_pages;
#[path = "../../src/fill.rs"]
mod fill;
#[path = "../../src/filling.rs"]
mod filling;
#[path = "../../src/flusher.rs"]
mod flusher;
#[path = "../../src/ghosts.rs"]
mod ghosts;
#[path = "../../src/index.rs"]
mod index;
#[path = "../../src/page_group.rs"]
mod page_group;
#[path = "../../src/poison.rs"]
mod poison;
#[path = "../../src/replacement.rs"]
mod replacement;
#[path = "../../src/tag.rs"]
mod tag;
#[path = "../../src/throttle.rs"]
mod throttle;
#[path = "../../src/uncached_backlog.rs"]
mod uncached_backlog;
#[path = "../../src/writeback.rs"]
mod writeback;

/// Replaces the module `sync` of the library.
#[path = "../../../sys/tests/scheduled/mod.rs"]
mod sync;

mod flushers;
mod races;

pub use cache::{CacheLimits, PageCache};
pub use change::Change;
pub use file_key::FileKey;
pub use file_pages::{FilePages, ReadOptions};
pub use flusher::{UncachedFlush, WritebackWork};
pub use index::{CacheMode, PageWrite, WritebackResult};
pub use page_group::PageState;
pub use tag::{Tag, Tags};

use butternut_sys::frames::Frame;
use counters::WritebackReason;
use shuttle::sync::Mutex;
use std::sync::Arc;

pub const TAG: Tag = Tag::ALL[0];
pub const KEY: FileKey = FileKey { tree: 5, ino: 257 };

/// A cache, and a disk with one byte for each page.
#[derive(Clone, Debug)]
pub struct World {
    pub cache: PageCache,
    pub disk: Arc<Mutex<Vec<u8>>>,
}

impl World {
    pub fn new(cache_pages: usize, disk: &[u8]) -> Self {
        let cache = PageCache::new(CacheLimits::of(cache_pages * 4096));
        Self { cache, disk: Arc::new(Mutex::new(disk.to_vec())) }
    }

    pub fn file(&self) -> FilePages {
        self.cache.file(KEY)
    }

    pub fn frame(&self, mark: u8) -> Frame {
        let mut frame = self.cache.frame().expect("the test is small");
        frame.bytes_mut().expect("a new frame has one user").fill(mark);
        frame
    }

    pub fn on_disk(&self, page: u64) -> u8 {
        self.disk.lock().unwrap()[usize::try_from(page).unwrap()]
    }

    pub fn write(&self, file: &FilePages, page: u64, mark: u8, mode: CacheMode) {
        let frame = self.frame(mark);
        file.change().write_page(page, frame, TAG, mode);
    }

    /// Reads a page, from the cache or from the disk into the cache.
    pub fn read(&self, file: &FilePages, page: u64) -> u8 {
        let mut buf = [0; 4096];
        loop {
            if file.read(page * 4096, &mut buf, ReadOptions::CACHED) == buf.len() {
                assert!(
                    buf.iter().all(|byte| *byte == buf[0]),
                    "a page has the bytes of one write"
                );
                return buf[0];
            }
            let Some(claimed) = file.claim(&(page..page + 1)) else {
                file.wait_for_fills(&(page..page + 1));
                continue;
            };
            let mark = self.on_disk(page);
            claimed.complete([self.frame(mark)], CacheMode::Cached);
            return mark;
        }
    }

    /// Writes back the dirty pages of the file, once.
    pub fn flush(&self, file: &FilePages) -> usize {
        let runs = file.begin_writeback(&(0..100), 100, Tags::ALL, WritebackReason::Sync);
        let mut pages = 0;
        for run in runs {
            for (page, frame) in run.pages().zip(run.frames()) {
                self.disk.lock().unwrap()[usize::try_from(page).unwrap()] = frame[0];
                assert!(
                    frame.iter().all(|byte| *byte == frame[0]),
                    "bytes under writeback are stable"
                );
                pages += 1;
            }
            run.end(WritebackResult::Written);
        }
        pages
    }

    /// Checks the counts of a cache that no thread uses any more.
    pub fn check_idle(&self) {
        let counters = self.cache.counters();
        assert_eq!((counters.dirty_pages, counters.in_writeback_pages), (0, 0));
        let file = self.file();
        file.change().check();
        assert_eq!(file.pages(), counters.cached_pages);
        file.invalidate(&(0..u64::MAX));
        assert_eq!(self.cache.counters().cached_pages, 0);
    }
}

/// Runs a test in `rounds` random orders of steps, and in as many with few preemptions.
pub fn explore(rounds: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), rounds);
    shuttle::check_pct(test, rounds, 3);
}
