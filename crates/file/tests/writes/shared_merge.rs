//! Shared merges: direct writes that complete meanwhile are seen, and nothing else changes.

use crate::volume::{create, fresh, inode, open, open_device_to_read, state};

use butternut_device::Device;
use butternut_file::{AllocationRun, FileState, FileView, Source};
use butternut_format::inode::InodeFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_sys::wait::Wait;
use butternut_tree::Need;
use butternut_volume::DataWrite;
use std::sync::Arc;

const INO: u64 = 300;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

struct Rig {
    device: Arc<dyn Device>,
    source: Source,
    allocation: AllocationRun,
    file: FileState,
    bytes: Vec<u8>,
    last: u8,
}

impl Rig {
    /// A file whose data is in its tree, with pending extents over every other block of most of it.
    fn new() -> Self {
        let device = fresh(256);
        let source = open(&device);
        create(&source, INO, InodeFlags::default());
        let mut file = state(&source, INO);
        let bytes = vec![1; BLOCKS * BLOCK];
        file.write_at(0, &bytes).unwrap();
        file.merge(&mut |_| {}).unwrap();
        source.forest().commit().unwrap();
        let allocation = AllocationRun::new(&source, 1);
        let mut rig = Self { device, source, allocation, file, bytes, last: 1 };
        for block in (1..40).step_by(2) {
            rig.write(block, 1);
        }
        rig
    }

    /// A direct write of blocks whose contents differ from all earlier ones.
    fn write(&mut self, first: usize, blocks: usize) {
        self.last += 1;
        let range = first * BLOCK..(first + blocks) * BLOCK;
        let place = &mut self.bytes[range.clone()];
        place.fill(self.last);
        let range = range.start as u64..range.end as u64;
        let write =
            self.file.begin_direct_write(&range, &mut self.allocation, Wait::Block).unwrap();
        let write = write.expect("space");
        let volume = self.source.forest().volume();
        let mut rows = [DataWrite::new(write.logical(), place)];
        volume.write_data(&mut rows);
        rows[0].result.as_ref().unwrap();
        let mut checksums = Vec::new();
        volume.checksum(place, &mut checksums);
        write.complete(&self.source, &checksums);
    }

    fn assert_reads(&self) {
        assert!(read(&self.source, self.file.view()) == self.bytes);
    }

    /// A volume that is opened now shows the committed data.
    fn assert_committed(mut self) {
        self.file.merge(&mut |_| {}).unwrap();
        self.assert_reads();
        self.source.forest().commit().unwrap();
        let source = open_device_to_read(&self.device);
        let file = state(&source, INO);
        assert!(read(&source, file.view()) == self.bytes);
    }
}

fn read(source: &Source, view: &FileView) -> Vec<u8> {
    let mut have = vec![0; BLOCKS * BLOCK];
    assert_eq!(source.read_at(view, 0, &mut have).unwrap(), have.len());
    have
}

#[test]
fn direct_writes_during_a_shared_merge_are_seen_and_kept() {
    let mut rig = Rig::new();
    let merge = rig.file.begin_shared_merge().expect("pending extents in new space");
    // Over an extent that is being merged, over parts of two, beside them, and over another direct
    // write.
    rig.write(3, 1);
    rig.write(6, 2);
    rig.write(2, 1);
    rig.write(3, 1);
    rig.assert_reads();
    rig.file.merge_shared(&merge, &mut |_| {}).unwrap();
    rig.assert_reads();
    assert_eq!(rig.file.pending_writes(), 4, "blocks 2 and 3, 6 and 7 are in no tree yet");
    rig.write(9, 3);
    rig.assert_committed();
}

#[test]
fn a_failed_shared_merge_changes_nothing() {
    let mut rig = Rig::new();
    let pending = rig.file.pending_writes();
    let merge = rig.file.begin_shared_merge().expect("pending extents in new space");
    rig.write(3, 1);
    // The inode item is missing during the merge.
    let key = Key::new(INO, ItemType::INODE_ITEM, 0);
    let forest = rig.source.forest().clone();
    let item = forest.tree(TreeId::FS).unwrap().unwrap().find(&key).unwrap().unwrap();
    let item = item.data().to_vec();
    let handle = forest.join(Need::items(1)).unwrap();
    handle.tree(TreeId::FS).unwrap().remove(&key).unwrap();
    drop(handle);
    rig.file.merge_shared(&merge, &mut |_| {}).unwrap_err();
    let handle = forest.join(Need::items(1)).unwrap();
    handle.tree(TreeId::FS).unwrap().put(&key, &item).unwrap();
    drop(handle);
    rig.assert_reads();
    assert_eq!(rig.file.pending_writes(), pending);
    rig.file.drain();
    rig.assert_committed();
}

#[test]
fn a_partial_merge_grows_the_file_no_further_than_its_data_on_disk() {
    let mut rig = Rig::new();
    rig.file.merge(&mut |_| {}).unwrap();
    rig.write(1, 1);
    let before = rig.bytes.len();
    // In memory only: past the end, and from the middle of a block on.
    rig.bytes.extend([9; 3 * BLOCK + 100]);
    rig.file.write_at(before as u64, &rig.bytes[before..]).unwrap();
    rig.file.merge_part(&mut |_| {}).unwrap().expect("a block is on disk and in no tree");
    rig.source.forest().commit().unwrap();
    let reader = open_device_to_read(&rig.device);
    assert_eq!(inode(&reader, INO).size, before as u64, "there is no data past that on disk");
    rig.file.merge(&mut |_| {}).unwrap();
    rig.source.forest().commit().unwrap();
    let reader = open_device_to_read(&rig.device);
    assert_eq!(inode(&reader, INO).size, rig.bytes.len() as u64);
}
