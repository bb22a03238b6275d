//! Panics in the middle of changes and of commits: nothing of them reaches the volume, and nothing
//! waits for ever.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]
#![allow(clippy::panic, reason = "a panic is what is tested")]

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

fn still() -> Time {
    Time::default()
}

/// Puts items in, and commits them.
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

/// Whether nothing is written any more, because of a panic.
fn is_ended(forest: &Arc<Forest>) -> bool {
    let is_panic = |error: &TreeError| {
        let TreeError::ReadOnly { cause } = error else { return false };
        matches!(**cause, TreeError::Panicked)
    };
    let commit = forest.commit().unwrap_err();
    let join = forest.join(Need::items(1)).unwrap_err();
    is_panic(&commit) && is_panic(&join) && forest.write_error().is_some_and(|e| is_panic(&e))
}

#[test]
fn a_panic_inside_a_change_ends_all_writing_and_commits_nothing_of_it() {
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
        ("in a removal of many", |forest| {
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
        ("in a decision", |forest| {
            let handle = forest.join(Need::items(4)).unwrap();
            let edit = handle.tree(TreeId::FS).unwrap();
            edit.remove(&xattr(3, 200).0).unwrap();
            edit.alter(&xattr(9, 200).0, &mut |_| -> Alter { panic!("while it is decided") })
                .unwrap();
        }),
        ("before any edit", |forest| {
            let _handle = forest.join(Need::items(4)).unwrap();
            panic!("with a handle open");
        }),
    ];
    for (name, change) in changes {
        let device = fresh();
        let forest = open(&device, still);
        let before = filled(&forest);
        catch_unwind(AssertUnwindSafe(|| change(&forest))).unwrap_err();
        assert!(is_ended(&forest), "{name}");
        drop(forest);
        assert_eq!(all(&open(&device, still)), before, "{name}");
    }
}

#[test]
fn a_panic_in_one_thread_ends_writing_for_the_others_and_no_commit_waits_for_it() {
    let device = fresh();
    let forest = open(&device, still);
    let before = filled(&forest);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let handle = forest.join(Need::items(4)).unwrap();
            handle.tree(TreeId::FS).unwrap().remove(&xattr(3, 200).0).unwrap();
            panic!("while others want to commit");
        });
        let committers: Vec<_> = (0..3).map(|_| scope.spawn(|| forest.commit())).collect();
        changer.join().unwrap_err();
        for committer in committers {
            // One that came before the change had nothing to commit.
            drop(committer.join().unwrap());
        }
    });
    assert!(is_ended(&forest));
    drop(forest);
    assert_eq!(all(&open(&device, still)), before);
}

static CLOCK_PANICS: AtomicBool = AtomicBool::new(false);

fn panicking() -> Time {
    assert!(!CLOCK_PANICS.load(Ordering::SeqCst), "the clock, which a commit looks at");
    Time::default()
}

#[test]
fn a_panic_in_a_commit_ends_all_writing_and_the_next_commit_does_not_go_on_with_it() {
    let device = fresh();
    let forest = open(&device, panicking);
    let before = filled(&forest);
    let handle = forest.join(Need::items(4)).unwrap();
    handle.tree(TreeId::FS).unwrap().remove(&xattr(3, 200).0).unwrap();
    drop(handle);
    CLOCK_PANICS.store(true, Ordering::SeqCst);
    catch_unwind(AssertUnwindSafe(|| forest.commit())).unwrap_err();
    CLOCK_PANICS.store(false, Ordering::SeqCst);
    assert!(is_ended(&forest));
    drop(forest);
    assert_eq!(all(&open(&device, still)), before);
}

#[test]
fn a_handle_that_is_dropped_while_its_thread_panics_for_another_reason_ends_nothing() {
    struct Tidy<'a>(&'a Arc<Forest>);
    impl Drop for Tidy<'_> {
        fn drop(&mut self) {
            let handle = self.0.join(Need::items(1)).unwrap();
            let (key, item) = xattr(6000, 100);
            handle.tree(TreeId::FS).unwrap().insert(&key, &item).unwrap();
        }
    }
    let device = fresh();
    let forest = open(&device, still);
    filled(&forest);
    catch_unwind(AssertUnwindSafe(|| {
        let _tidy = Tidy(&forest);
        panic!("elsewhere");
    }))
    .unwrap_err();
    assert!(forest.write_error().is_none());
    forest.commit().unwrap();
}
