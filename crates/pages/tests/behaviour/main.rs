//! What the page cache does, by its public functions.

mod pairs;

use butternut_pages::{CacheLimits, FileKey, PageCache};

pub(crate) fn cache(pages: usize) -> PageCache {
    PageCache::new(CacheLimits::of(pages * 4096))
}

pub(crate) fn key(ino: u64) -> FileKey {
    FileKey { tree: 5, ino }
}
