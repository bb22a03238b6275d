//! Writers and commits beside a resize that hides space of a device.

use super::tests::{fresh, open, put, take_metadata};
use crate::{Need, TreeError};
use butternut_format::units::DevId;
use butternut_space::Class;
use butternut_sys::wait::Wait;
use std::thread;
use std::time::{Duration, Instant};

const DEVICE: DevId = DevId(1);

/// Long enough for another thread to begin what it is to do, or to fail.
const A_WHILE: Duration = Duration::from_millis(200);

/// A resize waits for the handles, to commit: whether a chunk is in use is not known before that.
#[test]
fn a_shrink_that_chunks_in_use_refuse_hides_no_space() {
    let forest = open(&fresh(512 << 20));
    let space = &forest.running().expect("writable").space;
    put(&forest, 0..2000);
    let handle = forest.join(Need::items(1)).expect("space");
    thread::scope(|scope| {
        let resizing = scope.spawn(|| forest.resize(DEVICE, 8 << 20));
        let end = Instant::now() + A_WHILE;
        while Instant::now() < end {
            let plan = space.plan_chunk(Class::Data, space.next_chunk_flags(Class::Data), 0);
            let plan = plan.expect("space behind the end that is refused");
            space.release_chunk(&plan.chunk, plan.stripe_bytes);
        }
        drop(handle);
        let refused = resizing.join().expect("no panic").expect_err("chunks in use");
        assert!(matches!(refused, TreeError::Invalid(_)), "{refused:?}");
    });
}

#[test]
fn a_reservation_without_space_waits_for_a_resize() {
    let forest = open(&fresh(512 << 20));
    let running = forest.running().expect("writable");
    let resizing = running.resizes.begin();
    let next_end = running.space.begin_resize(DEVICE, 1 << 20).expect("the device");
    let bytes = running.space.totals(Class::Metadata).free + 1;
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| forest.reserve_metadata(bytes, Wait::Block).map(|held| held.bytes()));
        thread::sleep(A_WHILE);
        drop(next_end);
        drop(resizing);
        let held = waiting.join().expect("no panic");
        assert_eq!(held.expect("space in a new chunk"), bytes);
    });
}

#[test]
fn a_thread_that_resizes_does_not_wait_for_itself() {
    let forest = open(&fresh(512 << 20));
    let running = forest.running().expect("writable");
    let _resizing = running.resizes.begin();
    assert!(!running.resizes.wait_for_another(A_WHILE));
}

/// Reservations are estimates: a commit that needs a chunk must not fail for a resize, which may
/// fail.
#[test]
fn a_commit_adds_a_chunk_behind_the_next_end_if_there_is_no_space_before_it() {
    let forest = open(&fresh(512 << 20));
    let running = forest.running().expect("writable");
    let space = &running.space;
    put(&forest, 0..2000);
    let handle = forest.join(Need::items(1)).expect("space");
    // No chunk has space before it.
    let next_end = space.begin_resize(DEVICE, 1 << 20).expect("the device");
    let taken = take_metadata(&forest);
    let before = space.totals(Class::Metadata).bytes;
    drop(handle);
    forest.commit().expect("a commit that adds a chunk");
    assert!(space.totals(Class::Metadata).bytes > before, "a chunk was added");
    drop(next_end);
    for range in taken {
        space.release(range).expect("an allocated range");
    }
}
