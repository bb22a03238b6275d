//! Readers of references that are being applied, and keyed references behind free offsets.

use super::item::{ExtentItem, checked_count, keyed_bytes};
use super::keyed::find;
use super::{Content, Ref, References};
use crate::{Forest, ForestOptions, Need, TreeError};
use butternut_device::{Device, MemoryDevice};
use butternut_format::extent::DataRef;
use butternut_format::key::Key;
use butternut_format::units::{Generation, Ino, Logical, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;

fn data(ino: u64) -> DataRef {
    DataRef { tree: TreeId::FS, ino: Ino(ino), offset: 0, count: 1 }
}

fn forest() -> Arc<Forest> {
    let device = MemoryDevice::new("memory", 256 << 20);
    butternut_mkfs::make(&device, &MkfsOptions::default()).expect("a fresh volume");
    let device: Arc<dyn Device> = Arc::new(device);
    let volume = Volume::open(vec![device], OpenOptions::default()).expect("a volume");
    Forest::open_writable(Arc::new(volume), ForestOptions::default()).expect("a forest")
}

#[test]
fn references_stay_visible_until_they_are_in_the_tree() {
    let mut references = References::default();
    let (low, high) = (Logical(1 << 20), Logical(2 << 20));
    for at in [low, high] {
        references.change(at, 4096, Content::Data, Ref::data(data(300)), 1);
    }
    let heads = references.take();
    assert_eq!(heads.len(), 2);
    let seen =
        |references: &References, at| references.pending_refs(at, None).map(|pending| pending.sum);
    assert_eq!((seen(&references, low), seen(&references, high)), (Some(1), Some(1)));
    // A change made while they are applied is added to them.
    references.change(high, 4096, Content::Data, Ref::data(data(300)), 1);
    let before = references.pending_refs(high, None).expect("no batch is being written");
    assert_eq!(before.sum, 2);
    references.begin_batch();
    assert_eq!(seen(&references, low), None, "no sum while a batch is being written");
    assert!(!references.is_current(&before));
    references.end_batch(high);
    assert!(!references.is_current(&before), "a batch was written in between");
    assert_eq!((seen(&references, low), seen(&references, high)), (Some(0), Some(2)));
    references.begin_batch();
    references.end_batch(Logical(u64::MAX));
    assert_eq!(seen(&references, high), Some(1));
    assert_eq!(references.take().len(), 1);
    references.take();
    assert_eq!(seen(&references, high), Some(0));
}

/// It is not known how much of a failed batch is in the tree: a count might include parts twice.
#[test]
fn after_a_failed_batch_reading_a_count_returns_the_error() {
    let mut references = References::default();
    let at = Logical(1 << 20);
    references.change(at, 4096, Content::Data, Ref::data(data(300)), 1);
    references.take();
    references.begin_batch();
    assert!(references.pending_refs(at, None).is_none());

    let forest = forest();
    let handle = forest.join(Need::items(8)).expect("space");
    handle.add_data_extent(Logical(1 << 30), 4096, data(300));
    let refs = || forest.data_refs(Logical(1 << 30), 4096);
    assert_eq!(refs().expect("a count"), 1);
    let running = forest.running().expect("a writable forest");
    running.references().take();
    assert_eq!(refs().expect("a count"), 1);
    running.references().begin_batch();
    handle.abort(crate::TreeError::Panicked);
    assert!(refs().is_err());
    assert!(forest.is_shared(Logical(1 << 30), 4096, &data(300)).is_err());
}

#[test]
fn a_keyed_reference_is_found_behind_free_offsets() {
    let forest = forest();
    let handle = forest.join(Need::items(8)).expect("space");
    let tree = handle.tree(TreeId::EXTENT).expect("the extent tree");
    let at = Logical(1 << 40);
    // A reference whose hash collided with those of others, which have been removed.
    let (wanted, other) = (Ref::data(data(400)), Ref::data(data(401)));
    let key = wanted.key(at);
    let behind = |more: u64| Key { offset: key.offset + more, ..key };
    tree.insert(&behind(3), &keyed_bytes(wanted, 7)).expect("space");
    let search = || find(&mut tree.tree().cursor(), at, wanted).expect("a search");
    assert_eq!(search(), (behind(3), Some(7)));
    // Another reference at the hash itself, if the order of the hashes allows that.
    if other.key(at).offset <= key.offset {
        tree.insert(&key, &keyed_bytes(other, 1)).expect("space");
        assert_eq!(search(), (behind(3), Some(7)));
    }
    tree.remove(&behind(3)).expect("a removal");
    let (free, count) = search();
    assert!(count.is_none() && tree.tree().find(&free).expect("a search").is_none());
    tree.remove(&key).expect("a removal");
    assert_eq!(search(), (key, None));
    // The extent tree is inconsistent now and must not be committed.
    handle.abort(TreeError::Panicked);
}

#[test]
fn counts_are_exact_or_refused() {
    let reference = Ref::data(data(300));
    assert_eq!(checked_count(reference, 5, -5).expect("a count"), 0);
    assert_eq!(
        checked_count(reference, u64::from(u32::MAX) - 1, 1).expect("a count"),
        u64::from(u32::MAX)
    );
    assert!(checked_count(reference, 5, -6).is_err());
    assert!(checked_count(reference, u64::from(u32::MAX), 1).is_err());
    assert!(checked_count(Ref::Tree(TreeId::FS), 1, 1).is_err());
    let mut item = ExtentItem::new(Content::Data, Generation(7), true);
    item.insert_inline(reference, 2).expect("a count");
    assert!(item.change_inline(reference, -3).is_err());
    assert!(item.change_inline(reference, -2).expect("a count") && item.has_no_inline());
    assert!(!item.change_inline(reference, -1).expect("it is not inline"));
}

#[test]
fn an_extent_with_count_zero_and_a_reference_is_refused() {
    const BYTES: u64 = 4096;
    let forest = forest();
    let range = forest.allocate_data(BYTES, BYTES, Cluster(9), Wait::Block).expect("space");
    let at = range.start();
    let handle = forest.join(Need::items(8)).expect("space");
    handle.add_data_extent(range.start(), range.bytes(), data(300));
    drop(handle);
    forest.commit().expect("a consistent volume");
    // A keyed reference that the count does not include.
    let handle = forest.join(Need::items(8)).expect("space");
    let other = Ref::data(data(301));
    let tree = handle.tree(TreeId::EXTENT).expect("the extent tree");
    tree.insert(&other.key(at), &keyed_bytes(other, 1)).expect("space");
    handle.drop_data_ref(at, BYTES, data(300));
    drop(handle);
    let refused = forest.commit().expect_err("a keyed item would stay over free space");
    let message = butternut_volume::chain(&refused);
    assert!(message.contains("further references"), "{message}");
    assert!(forest.write_error().is_some());
}

/// The log may have the addition, also where the drop cancels it.
#[test]
fn a_dropped_reference_counts_until_its_commit() {
    const BYTES: u64 = 4096;
    let forest = forest();
    let range = forest.allocate_data(BYTES, BYTES, Cluster(9), Wait::Block).expect("space");
    let at = range.start();
    let change = |change: &dyn Fn(&crate::Handle)| {
        let handle = forest.join(Need::items(8)).expect("space");
        change(&handle);
    };
    let is_shared = |ino| forest.is_shared(at, BYTES, &data(ino)).expect("an answer");
    change(&|handle| handle.add_data_extent(at, BYTES, data(300)));
    forest.commit().expect("a commit");
    assert!(!is_shared(300));
    change(&|handle| {
        handle.add_data_ref(at, BYTES, data(301));
        handle.drop_data_ref(at, BYTES, data(301));
    });
    assert!(is_shared(300), "the drop of another reference is not durable");
    forest.commit().expect("a commit");
    assert!(!is_shared(300));
    // A drop of its own reference does not count.
    change(&|handle| {
        handle.add_data_ref(at, BYTES, data(300));
        handle.drop_data_ref(at, BYTES, data(300));
    });
    assert!(!is_shared(300));
}
