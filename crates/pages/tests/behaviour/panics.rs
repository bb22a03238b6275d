//! Panics while the pages of a file are changed.

use crate::{TAG, cache, frame, key, mark, put};
use butternut_pages::Stay;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_panic_in_a_change_is_known_to_whatever_uses_the_pages_after_it() {
    let cache = cache(64);
    let (file, other) = (cache.file(key(1)), cache.file(key(2)));
    put(&cache, &file, 0, 7);
    put(&cache, &other, 0, 8);
    let second = frame(&cache, 9);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut change = file.change();
        change.put(1, second, TAG, Stay::Cached);
        panic!("between the second page of a write and the third");
    }));
    assert!(panicked.is_err());
    assert_eq!(mark(&other, 0), Some(8));
    assert!(!cache.is_poisoned(), "nothing has used the pages yet");
    assert!(file.is_poisoned() && cache.is_poisoned() && other.is_poisoned());
    // Reads go on.
    assert_eq!((mark(&file, 0), mark(&file, 1), mark(&file, 2)), (Some(7), Some(9), None));
}

#[test]
fn a_change_that_is_made_while_the_thread_panics_for_another_reason_is_whole() {
    struct Tidy<'a>(&'a butternut_pages::FilePages);
    impl Drop for Tidy<'_> {
        fn drop(&mut self) {
            self.0.change().discard(&(0..1));
        }
    }
    let cache = cache(64);
    let file = cache.file(key(1));
    put(&cache, &file, 0, 7);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _tidy = Tidy(&file);
        panic!("elsewhere");
    }));
    assert!(panicked.is_err());
    assert!(!file.is_poisoned());
    assert_eq!(file.dirty_pages(), 0);
}
