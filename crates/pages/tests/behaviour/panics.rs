//! Panics during a change of a file's pages.

use crate::{TAG, cache, frame, key, mark, write_page};
use butternut_pages::CacheMode;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_panic_in_a_change_poisons_the_cache() {
    let cache = cache(64);
    let (file, other) = (cache.file(key(1)), cache.file(key(2)));
    write_page(&cache, &file, 0, 7);
    write_page(&cache, &other, 0, 8);
    let second = frame(&cache, 9);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut change = file.change();
        change.write_page(1, second, TAG, CacheMode::Cached);
        panic!("between the second page of a write and the third");
    }));
    assert!(panicked.is_err());
    assert_eq!(mark(&other, 0), Some(8));
    assert!(!cache.is_poisoned(), "nothing has used the pages yet");
    assert!(file.is_poisoned() && cache.is_poisoned() && other.is_poisoned());
    // Reads still work.
    assert_eq!((mark(&file, 0), mark(&file, 1), mark(&file, 2)), (Some(7), Some(9), None));
}

#[test]
fn a_change_made_while_unwinding_does_not_poison() {
    struct RemovePageOnDrop<'a>(&'a butternut_pages::FilePages);
    impl Drop for RemovePageOnDrop<'_> {
        fn drop(&mut self) {
            self.0.change().remove(&(0..1));
        }
    }
    let cache = cache(64);
    let file = cache.file(key(1));
    write_page(&cache, &file, 0, 7);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = RemovePageOnDrop(&file);
        panic!("elsewhere");
    }));
    assert!(panicked.is_err());
    assert!(!file.is_poisoned());
    assert_eq!(file.dirty_pages(), 0);
}
