//! Searches for the files of an extent, while a subvolume that refers to it is half deleted: its
//! nodes still name leaves that are freed.

use crate::volume::{TestVolume, new};
use butternut::{Allocate, ExtentKind, Filesystem, MountOptions, SnapshotAccess};
use butternut_mkfs::MkfsOptions;
use std::cell::Cell;

/// Opens a volume without a thread that commits or cleans.
fn open(volume: &TestVolume) -> Filesystem {
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

/// Makes a subvolume `one` with a file of one extent, and its snapshot `two`; then `one` changes
/// every second block. Returns both, and the address of the extent.
fn share_an_extent(fs: &Filesystem, blocks: u64) -> (u64, u64, u64) {
    let root = fs.root();
    let one = fs.create_subvolume(root, b"one", &new(0o755)).unwrap();
    let file = fs.create_path(b"one/file", &new(0o644)).unwrap();
    file.allocate(0..blocks * 4096, Allocate::Extend).unwrap();
    fs.sync().unwrap();
    let two = fs.snapshot(one, root, b"two", SnapshotAccess::ReadWrite).unwrap();
    for block in (0..blocks).step_by(2) {
        file.write_at(block * 4096, &[7; 4096]).unwrap();
    }
    fs.sync().unwrap();
    let of_two = fs.open_path(b"two/file").unwrap();
    let whole = of_two.extents(0..4096).next().unwrap().unwrap();
    let ExtentKind::Prealloc { logical } = whole.kind else { panic!("{whole:?}") };
    (one, two, logical)
}

/// Deletes a subvolume, and frees a part of its blocks, in so many steps.
fn delete_a_part(fs: &Filesystem, name: &[u8], id: u64, steps: u32) {
    fs.delete_subvolume(fs.root(), name).unwrap();
    let left = Cell::new(steps);
    fs.clean_subvolumes_while(&|| left.replace(left.get().saturating_sub(1)) > 0).unwrap();
    assert_eq!(fs.deleted_subvolumes().unwrap(), [id]);
}

/// Opens the volume again: the cache is empty, and what was freed has other contents.
fn open_again(volume: &TestVolume, fs: Filesystem) -> Filesystem {
    fs.close().unwrap();
    let fs = open(volume);
    fs.trim(0).unwrap();
    fs
}

fn assert_no_damage(fs: &Filesystem) {
    let errors: u64 =
        fs.stats().devices.iter().map(|d| d.corruption_errors + d.generation_errors).sum();
    assert_eq!(errors, 0, "a freed block was read and counted as damage");
}

/// A search for the files of an extent does not read what a deletion has freed.
#[test]
fn a_search_for_files_reads_no_leaf_that_a_deletion_has_freed() {
    const BLOCKS: u64 = 4096;
    let volume = TestVolume::new();
    let fs = open(&volume);
    let (one, two, logical) = share_an_extent(&fs, BLOCKS);
    delete_a_part(&fs, b"one", one, 1);
    let fs = open_again(&volume, fs);
    let owners = fs.owners_of_logical(logical, true).unwrap();
    assert!(owners.iter().any(|owner| owner.subvolume == two), "{owners:?}");
    assert_no_damage(&fs);
    drop(volume.reopen(fs));
}

/// Items in such leaves stand for no reference any more.
#[test]
fn an_address_leads_to_all_files_while_a_subvolume_with_its_items_is_freed() {
    const BLOCKS: u64 = 4096;
    let volume = TestVolume::new();
    let fs = open(&volume);
    let root = fs.root();
    let r = fs.create_subvolume(root, b"r", &new(0o755)).unwrap();
    let file = fs.create_path(b"r/file", &new(0o644)).unwrap();
    file.allocate(0..BLOCKS * 4096, Allocate::Extend).unwrap(); // E
    fs.sync().unwrap();
    // E is shared, so that nothing is written in place to it.
    fs.snapshot(r, root, b"base", SnapshotAccess::ReadOnly).unwrap();
    // About 20 leaves, each with 104 items of E.
    for block in (1..BLOCKS).step_by(2) {
        file.write_at(block * 4096, &[7; 4096]).unwrap();
    }
    fs.sync().unwrap();
    let s = fs.snapshot(r, root, b"s", SnapshotAccess::ReadWrite).unwrap();
    // `r` copies the first leaves; it owns the others, which `s` shares.
    for block in (1..1400).step_by(2) {
        file.write_at(block * 4096, &[8; 4096]).unwrap();
    }
    fs.sync().unwrap();
    let first = file.extents(0..4096).next().unwrap().unwrap();
    let ExtentKind::Prealloc { logical } = first.kind else { panic!("{first:?}") };
    drop(file);
    let owners = || {
        let all = fs.owners_of_logical(logical, true).unwrap();
        all.into_iter().filter(|owner| owner.subvolume == s).count()
    };
    let before = owners();
    assert!(before > 1000, "{before}");
    // Two or three steps of about eight: the first leaves are freed, which only `r` has.
    delete_a_part(&fs, b"r", r, 3);
    fs.sync().unwrap();
    assert_eq!(owners(), before);
    drop(volume.reopen(fs));
}

/// The search goes up through a node whose first leaf is freed: nodes of 4 KiB make three levels.
#[test]
fn a_search_for_the_roots_of_a_node_reads_no_leaf_that_a_deletion_has_freed() {
    const BLOCKS: u64 = 16384;
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    let volume = TestVolume::of(512 << 20, &options);
    let fs = open(&volume);
    let (one, two, logical) = share_an_extent(&fs, BLOCKS);
    // More leaves than one node of 4 KiB names: so the root is no parent of leaves.
    assert!(fs.tree_stats(one).unwrap().levels > 2);
    // One step: about 20 of the (60 to 121) leaves below the first node.
    delete_a_part(&fs, b"one", one, 1);
    let fs = open_again(&volume, fs);
    let owners = fs.owners_of_logical(logical, true).unwrap();
    assert!(owners.iter().any(|owner| owner.subvolume == two), "{owners:?}");
    assert!(owners.iter().any(|owner| owner.subvolume == one), "{owners:?}");
    assert_no_damage(&fs);
    drop(volume.reopen(fs));
}

#[test]
fn the_shape_of_a_tree_that_is_being_deleted_is_that_of_what_is_left() {
    const BLOCKS: u64 = 4096;
    let volume = TestVolume::new();
    let fs = open(&volume);
    let root = fs.root();
    let one = fs.create_subvolume(root, b"one", &new(0o755)).unwrap();
    let file = fs.create_path(b"one/file", &new(0o644)).unwrap();
    for block in (0..BLOCKS).step_by(2) {
        file.write_at(block * 4096, &[7; 4096]).unwrap();
    }
    drop(file);
    fs.sync().unwrap();
    delete_a_part(&fs, b"one", one, 1);
    let fs = open_again(&volume, fs);
    // Either refuses it, or shows what is left; it is no damage.
    match fs.tree_stats(one) {
        Ok(_) | Err(butternut::Error::NotFound) => {}
        Err(error) => panic!("{error:?}"),
    }
    assert_no_damage(&fs);
}
