//! What readers see of references that are being applied, and keyed references behind gaps.

use super::item::{ExtentItem, counted, keyed_bytes};
use super::keyed::find;
use super::{Content, Ref, References};
use crate::{Forest, ForestOptions, Need, TreeError};
use butternut_device::{Device, MemoryDevice};
use butternut_format::extent::DataRef;
use butternut_format::key::Key;
use butternut_format::units::{Generation, Ino, Logical, TreeId};
use butternut_mkfs::MkfsOptions;
use butternut_space::Cluster;
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
fn references_that_are_applied_are_seen_until_they_are_in_the_tree() {
    let mut references = References::default();
    let (low, high) = (Logical(1 << 20), Logical(2 << 20));
    for at in [low, high] {
        references.change(at, 4096, Content::Data, Ref::data(data(300)), 1);
    }
    let heads = references.take();
    assert_eq!(heads.len(), 2);
    let seen = |references: &References, at| references.look(at).map(|look| look.sum);
    assert_eq!((seen(&references, low), seen(&references, high)), (Some(1), Some(1)));
    // What comes while they are applied counts besides.
    references.change(high, 4096, Content::Data, Ref::data(data(300)), 1);
    let before = references.look(high).expect("no batch is under way");
    assert_eq!(before.sum, 2);
    references.begin_batch();
    assert_eq!(seen(&references, low), None, "neither here nor there");
    assert!(!references.still(&before));
    references.end_batch(high);
    assert!(!references.still(&before), "the tree is not as it was");
    assert_eq!((seen(&references, low), seen(&references, high)), (Some(0), Some(2)));
    references.begin_batch();
    references.end_batch(Logical(u64::MAX));
    assert_eq!(seen(&references, high), Some(1));
    assert_eq!(references.take().len(), 1);
    references.take();
    assert_eq!(seen(&references, high), Some(0));
}

/// How much of a batch that failed is in the tree is not known: a count could have some of it
/// twice.
#[test]
fn behind_a_batch_that_failed_there_are_no_counts_but_the_error_that_ended_writing() {
    let mut references = References::default();
    let at = Logical(1 << 20);
    references.change(at, 4096, Content::Data, Ref::data(data(300)), 1);
    references.take();
    references.begin_batch();
    assert!(references.look(at).is_none());

    let forest = forest();
    let handle = forest.join(Need::items(8)).expect("space");
    handle.claim_data(1 << 30..(1 << 30) + 4096, data(300));
    let refs = || forest.data_refs(Logical(1 << 30), 4096);
    assert_eq!(refs().expect("a count"), 1);
    let running = forest.running().expect("a forest for writing");
    running.references().take();
    assert_eq!(refs().expect("a count"), 1);
    running.references().begin_batch();
    handle.abort(crate::TreeError::Panicked);
    assert!(refs().is_err());
    assert!(forest.is_shared(Logical(1 << 30), 4096, &data(300)).is_err());
}

#[test]
fn a_keyed_reference_is_found_behind_the_gaps_that_others_left() {
    let forest = forest();
    let handle = forest.join(Need::items(8)).expect("space");
    let tree = handle.tree(TreeId::EXTENT).expect("the extent tree");
    let at = Logical(1 << 40);
    // Two references whose hashes collided once with others that are gone, of one that is there.
    let (wanted, other) = (Ref::data(data(400)), Ref::data(data(401)));
    let key = wanted.key(at);
    let behind = |more: u64| Key { offset: key.offset + more, ..key };
    tree.insert(&behind(3), &keyed_bytes(wanted, 7)).expect("room");
    let look = || find(&mut tree.tree().cursor(), at, wanted).expect("a search");
    assert_eq!(look(), (behind(3), Some(7)));
    // A stranger at the hash itself, as far as this one's hash allows that.
    if other.key(at).offset <= key.offset {
        tree.insert(&key, &keyed_bytes(other, 1)).expect("room");
        assert_eq!(look(), (behind(3), Some(7)));
    }
    tree.remove(&behind(3)).expect("a removal");
    let (free, count) = look();
    assert!(count.is_none() && tree.tree().find(&free).expect("a search").is_none());
    tree.remove(&key).expect("a removal");
    assert_eq!(look(), (key, None));
    // What the extent tree holds now is nothing that a commit could write.
    handle.abort(TreeError::Panicked);
}

#[test]
fn counts_are_exact_or_refused() {
    let reference = Ref::data(data(300));
    assert_eq!(counted(reference, 5, -5).expect("a count"), 0);
    assert_eq!(
        counted(reference, u64::from(u32::MAX) - 1, 1).expect("a count"),
        u64::from(u32::MAX)
    );
    assert!(counted(reference, 5, -6).is_err());
    assert!(counted(reference, u64::from(u32::MAX), 1).is_err());
    assert!(counted(Ref::Tree(TreeId::FS), 1, 1).is_err());
    let mut item = ExtentItem::new(Content::Data, Generation(7), true);
    item.insert_inline(reference, 2).expect("a count");
    assert!(item.change_inline(reference, -3).is_err());
    assert!(item.change_inline(reference, -2).expect("a count") && item.is_bare());
    assert!(!item.change_inline(reference, -1).expect("it is not inline"));
}

#[test]
fn an_extent_that_loses_its_count_before_its_references_is_refused() {
    const BYTES: u64 = 4096;
    let forest = forest();
    let range = forest.allocate_data(BYTES, BYTES, Cluster(9)).expect("space");
    let at = Logical(range.start);
    let handle = forest.join(Need::items(8)).expect("space");
    handle.claim_data(range, data(300));
    drop(handle);
    forest.commit().expect("a sound volume");
    // A keyed reference that the count does not know.
    let handle = forest.join(Need::items(8)).expect("space");
    let other = Ref::data(data(301));
    let tree = handle.tree(TreeId::EXTENT).expect("the extent tree");
    tree.insert(&other.key(at), &keyed_bytes(other, 1)).expect("room");
    handle.drop_data_ref(at, BYTES, data(300));
    drop(handle);
    let refused = forest.commit().expect_err("a keyed item would stay over free space");
    let told = butternut_volume::chain(&refused);
    assert!(told.contains("references that are left"), "{told}");
    assert!(forest.write_error().is_some());
}
