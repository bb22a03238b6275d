//! Panics inside changes and commits: they make the forest read-only, none of their changes reaches
//! the volume, and no thread waits for ever.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
#![allow(clippy::panic, reason = "the test panics on purpose")]

mod xattrs;

use butternut_device::{Device, MemoryDevice};
use butternut_format::inode::Time;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_tree::{Alter, Forest, ForestOptions, Need, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use xattrs::{all, xattr};

fn fresh() -> Arc<dyn Device> {
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    Arc::new(device)
}

fn open(device: &Arc<dyn Device>, clock: fn() -> Time) -> Arc<Forest> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
    let options = ForestOptions { clock, ..ForestOptions::default() };
    Forest::open_writable(Arc::new(volume), options).expect("a writable forest")
}

fn fixed_clock() -> Time {
    Time::default()
}

/// Inserts items and commits them.
fn filled(forest: &Arc<Forest>) -> BTreeMap<Key, Vec<u8>> {
    let items: BTreeMap<_, _> = (0..800).map(|number| xattr(number, 200)).collect();
    let handle = forest.join(Need::items(800)).unwrap();
    for (key, item) in &items {
        handle.tree(TreeId::FS).unwrap().insert(key, item).unwrap();
    }
    drop(handle);
    forest.commit().unwrap();
    items
}

/// Whether the forest is read-only because of a panic.
fn is_read_only(forest: &Arc<Forest>) -> bool {
    let is_panic = |error: &TreeError| {
        let TreeError::ReadOnly { cause } = error else { return false };
        matches!(**cause, TreeError::Panicked)
    };
    let commit = forest.commit().unwrap_err();
    let join = forest.join(Need::items(1)).unwrap_err();
    is_panic(&commit) && is_panic(&join) && forest.write_error().is_some_and(|e| is_panic(&e))
}

#[test]
fn a_panic_inside_a_change_makes_the_forest_read_only_and_commits_nothing_of_it() {
    type Change = fn(&Arc<Forest>);
    let changes: [(&str, Change); 5] = [
        ("between two edits", |forest| {
            let handle = forest.join(Need::items(4)).unwrap();
            let (key, item) = xattr(5000, 100);
            handle.tree(TreeId::FS).unwrap().insert(&key, &item).unwrap();
            panic!("after the first of two edits");
        }),
        ("in an update", |forest| {
            let handle = forest.join(Need::items(4)).unwrap();
            let edit = handle.tree(TreeId::FS).unwrap();
            edit.update(&xattr(7, 200).0, &mut |data| {
                data.fill(0);
                panic!("while an item is changed");
            })
            .unwrap();
        }),
        ("in a removal of a range", |forest| {
            let handle = forest.join(Need::items(4)).unwrap();
            let mut seen = 0;
            let key = |offset| Key::new(256, ItemType::XATTR_ITEM, offset);
            let range = key(0)..key(u64::MAX);
            let edit = handle.tree(TreeId::FS).unwrap();
            edit.remove_range(range, &mut |_, _| {
                seen += 1;
                assert!(seen < 300, "in the middle of a removal");
            })
            .unwrap();
        }),
        ("in an alter callback", |forest| {
            let handle = forest.join(Need::items(4)).unwrap();
            let edit = handle.tree(TreeId::FS).unwrap();
            edit.remove(&xattr(3, 200).0).unwrap();
            edit.alter(&xattr(9, 200).0, &mut |_| -> Alter { panic!("in the callback") }).unwrap();
        }),
        ("before any edit", |forest| {
            let _handle = forest.join(Need::items(4)).unwrap();
            panic!("with a handle open");
        }),
    ];
    for (name, change) in changes {
        let device = fresh();
        let forest = open(&device, fixed_clock);
        let before = filled(&forest);
        catch_unwind(AssertUnwindSafe(|| change(&forest))).unwrap_err();
        assert!(is_read_only(&forest), "{name}");
        drop(forest);
        assert_eq!(all(&open(&device, fixed_clock)), before, "{name}");
    }
}

#[test]
fn a_panic_in_one_thread_fails_the_commits_of_other_threads() {
    let device = fresh();
    let forest = open(&device, fixed_clock);
    let before = filled(&forest);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let handle = forest.join(Need::items(4)).unwrap();
            handle.tree(TreeId::FS).unwrap().remove(&xattr(3, 200).0).unwrap();
            panic!("while other threads commit");
        });
        let committers: Vec<_> = (0..3).map(|_| scope.spawn(|| forest.commit())).collect();
        changer.join().unwrap_err();
        for committer in committers {
            // A commit that ran before the change had nothing to commit and succeeds.
            drop(committer.join().unwrap());
        }
    });
    assert!(is_read_only(&forest));
    drop(forest);
    assert_eq!(all(&open(&device, fixed_clock)), before);
}

static CLOCK_PANICS: AtomicBool = AtomicBool::new(false);

fn panicking() -> Time {
    assert!(!CLOCK_PANICS.load(Ordering::SeqCst), "the clock, which a commit reads");
    Time::default()
}

#[test]
fn a_panic_in_a_commit_makes_the_forest_read_only() {
    let device = fresh();
    let forest = open(&device, panicking);
    let before = filled(&forest);
    let handle = forest.join(Need::items(4)).unwrap();
    handle.tree(TreeId::FS).unwrap().remove(&xattr(3, 200).0).unwrap();
    drop(handle);
    CLOCK_PANICS.store(true, Ordering::SeqCst);
    catch_unwind(AssertUnwindSafe(|| forest.commit())).unwrap_err();
    CLOCK_PANICS.store(false, Ordering::SeqCst);
    assert!(is_read_only(&forest));
    drop(forest);
    assert_eq!(all(&open(&device, fixed_clock)), before);
}

#[test]
fn a_handle_opened_and_dropped_during_an_unrelated_panic_changes_nothing_else() {
    struct Tidy<'a>(&'a Arc<Forest>);
    impl Drop for Tidy<'_> {
        fn drop(&mut self) {
            let handle = self.0.join(Need::items(1)).unwrap();
            let (key, item) = xattr(6000, 100);
            handle.tree(TreeId::FS).unwrap().insert(&key, &item).unwrap();
        }
    }
    let device = fresh();
    let forest = open(&device, fixed_clock);
    filled(&forest);
    catch_unwind(AssertUnwindSafe(|| {
        let _tidy = Tidy(&forest);
        panic!("elsewhere");
    }))
    .unwrap_err();
    assert!(forest.write_error().is_none());
    forest.commit().unwrap();
}
