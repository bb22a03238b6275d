//! A full cache does not allocate memory.

use crate::{cache, fill, key, mark};
use butternut_pages::{CacheMode, ReadOptions};
use butternut_sys::allocations::allocations_of;

#[test]
fn a_hit_allocates_nothing() {
    let cache = cache(64);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..32, 1);
    let mut buf = vec![0; 32 * 4096];
    let (allocations, read) = allocations_of(|| file.read(0, &mut buf, ReadOptions::CACHED));
    assert_eq!((allocations, read), (0, buf.len()));
}

#[test]
fn inserting_into_a_full_cache_allocates_almost_nothing() {
    let cache = cache(1024);
    let file = cache.file(key(1));
    fill(&cache, &file, 0..4096, 1);
    let (allocations, ()) = allocations_of(|| {
        for page in 4096..8192 {
            let claimed = file.claim(&(page..page + 1)).unwrap();
            let frame = cache.frame().unwrap();
            claimed.complete([frame], CacheMode::Cached);
        }
    });
    assert!(mark(&file, 8191).is_some());
    assert!(allocations < 4096 / 20, "{allocations} allocations for 4096 pages");
}
