//! Unit tests of [`UncachedBacklog`] with real time, which the model checker of
//! `tests/interleavings` does not have.

use crate::uncached_backlog::UncachedBacklog;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_wait_is_bounded_while_other_threads_take_pages() {
    const AT_MOST: Duration = Duration::from_millis(100);
    const DISTURBED: Duration = Duration::from_secs(20);
    let backlog = UncachedBacklog::default();
    backlog.queue(None, 1000);
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let is_below = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The pages come back at once, so the writer is woken and never finds fewer.
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < DISTURBED {
                backlog.queue(None, backlog.take(1, || usize::MAX).pages);
                std::thread::sleep(AT_MOST / 20);
            }
        });
        let is_below = backlog.wait_until_below(10, AT_MOST);
        is_over.store(true, Ordering::Relaxed);
        is_below
    });
    assert!(!is_below);
    assert!(began.elapsed() < DISTURBED, "the wait ended with the disturbance only");
}
