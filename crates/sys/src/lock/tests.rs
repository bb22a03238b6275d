//! Unit tests of the locks: poison, the order of ranks in debug builds, and waiting.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

type Outer = Mutex<u32, rank::WorkerQueue>;
type Inner = RwLock<u32, rank::Arena>;

/// Poisons what `lock` locks.
fn poison(lock: impl FnOnce() + Send) {
    thread::scope(|scope| assert!(scope.spawn(lock).join().is_err()));
}

#[test]
fn a_poisoned_lock_is_recovered_and_recorded() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    poison(|| {
        let _guards = (outer.lock(), inner.write());
        panic!("a test of poison");
    });
    assert!(outer.is_poisoned() && inner.is_poisoned());
    assert_eq!((*outer.lock(), *inner.read()), (1, 2));
    assert_eq!(*inner.write(), 2);
    let mut records = 0;
    assert_eq!(*outer.lock_or_else(|value| *value += 10), 11);
    assert_eq!(*inner.read_or_else(|_| records += 1), 2);
    assert_eq!(*inner.write_or_else(|_| records += 1), 2);
    assert_eq!(inner.try_read_or_else(|_| records += 1).map(|value| *value), Some(2));
    assert_eq!(inner.try_write_or_else(|_| records += 1).map(|value| *value), Some(2));
    assert_eq!(records, 4);
    assert_eq!(outer.try_lock().map(|value| *value), Some(11));
    assert_eq!(outer.into_inner(), 11);
}

#[test]
fn a_healthy_lock_is_not_recorded() {
    let outer = Outer::default();
    drop(outer.lock_or_else(|_| panic!("not poisoned")));
    let _guard = outer.lock();
    thread::scope(|scope| assert!(scope.spawn(|| outer.try_lock().is_none()).join().unwrap()));
}

#[test]
fn ranks_are_in_the_order_of_the_table() {
    assert!(rank::Inode::RANK < rank::Gate::RANK);
    assert!(rank::Gate::RANK < rank::Arena::RANK);
    assert!(rank::Arena::RANK == rank::Arena::RANK);
    assert_eq!(rank::Inode::RANK.to_string(), "Inode");
}

#[test]
fn a_condvar_waits_with_the_lock_released() {
    let pair = Arc::new((Outer::new(0), Condvar::new()));
    let other = Arc::clone(&pair);
    let mut guard = pair.0.lock();
    let thread = thread::spawn(move || {
        *other.0.lock() = 5;
        other.1.notify_all();
    });
    while *guard == 0 {
        guard = pair.1.wait(guard);
    }
    assert_eq!(*guard, 5);
    let (guard, waited) = pair.1.wait_timeout_while(guard, Duration::ZERO, |value| *value == 5);
    assert!(waited.timed_out());
    drop(pair.1.wait_timeout(guard, Duration::ZERO));
    thread.join().unwrap();
}

/// Whether taking locks in this way panics.
fn is_refused(take: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(take)).is_err()
}

#[cfg(debug_assertions)]
#[test]
fn an_earlier_rank_or_the_same_one_is_refused() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    let (same_outer, same_inner) = (Outer::new(1), Inner::new(2));
    assert!(!is_refused(|| drop((outer.lock(), inner.read()))));
    assert!(is_refused(|| drop((inner.read(), outer.lock()))));
    assert!(is_refused(|| drop((outer.lock(), same_outer.lock()))));
    assert!(is_refused(|| drop((inner.read(), same_inner.read()))));
    assert!(!is_refused(|| drop((outer.lock(), same_outer.lock_nested()))));
    assert!(!is_refused(|| drop((inner.read(), same_inner.read_nested()))));
    assert!(!is_refused(|| drop((inner.write(), same_inner.write_nested_or_else(|_| ())))));
    assert!(is_refused(|| drop((inner.write(), outer.lock_nested()))));
    // An attempt may be made in any order, and what it took counts as held.
    assert!(!is_refused(|| drop((inner.read(), outer.try_lock()))));
    assert!(is_refused(|| drop((same_inner.try_read_or_else(|_| ()), outer.lock()))));
}

#[cfg(debug_assertions)]
#[test]
fn guards_dropped_in_any_order_are_no_longer_held() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    let (outer_guard, inner_guard) = (outer.lock(), inner.write());
    drop(outer_guard);
    assert!(is_refused(|| drop(outer.lock())));
    let shared = RwLockWriteGuard::downgrade(inner_guard);
    assert!(is_refused(|| drop(outer.lock())));
    drop(shared);
    assert!(!is_refused(|| drop((outer.lock(), inner.read()))));
}

#[cfg(debug_assertions)]
#[test]
fn a_mark_counts_as_a_lock_of_its_rank() {
    type OuterMark = Mark<rank::WorkerQueue>;
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    assert!(!OuterMark::is_held());
    let mark = OuterMark::new();
    assert!(OuterMark::is_held());
    assert!(is_refused(|| drop(outer.lock())));
    assert!(is_refused(|| drop(OuterMark::new())));
    assert!(!is_refused(|| drop(inner.read())));
    drop(mark);
    assert!(!OuterMark::is_held());
    assert!(is_refused(|| drop((inner.read(), OuterMark::new()))));
    assert!(!is_refused(|| drop(outer.lock())));
}

#[cfg(not(debug_assertions))]
#[test]
fn release_builds_check_no_order() {
    let (outer, inner) = (Outer::new(1), Inner::new(2));
    assert!(!is_refused(|| drop((inner.read(), outer.lock()))));
}
