//! Merges in steps of files whose compressed extents are shown in parts: an extent keeps its space
//! as long as any part of it is shown.

use crate::compression::{noise, text};
use crate::volume::{create, fresh, open_device_to_read, open_with_injector, state};
use butternut_device::Device;
use butternut_file::{FileState, Source};
use butternut_format::file_extent::Compression;
use butternut_format::inode::InodeFlags;
use butternut_tree::EnospcInjector;
use std::ops::Range;
use std::sync::Arc;

const INO: u64 = 300;
const FILLER: u64 = 301;
/// Bytes of a compressed extent.
const EXTENT: usize = 128 << 10;
/// In each extent, a block is written again here. It leaves two parts of the extent.
const CUT: usize = 60 << 10;
const BLOCK: usize = 4096;
/// Pending extents of one step of a partial merge.
const STEP: usize = 1024;

/// A file with compressed extents that are pending, and its bytes.
struct Rig {
    device: Arc<dyn Device>,
    source: Source,
    file: FileState,
    bytes: Vec<u8>,
}

impl Rig {
    /// The first `whole` of `extents` extents stay whole; each of the others becomes three pending
    /// extents.
    fn new(whole: usize, extents: usize, injector: &EnospcInjector) -> Self {
        let device = fresh(256);
        let source = open_with_injector(&device, injector);
        create(&source, INO, InodeFlags::COMPRESS);
        let mut file = state(&source, INO);
        file.set_property(Some(Compression::Zstd));
        let bytes = vec![0; extents * EXTENT];
        let mut rig = Self { device, source, file, bytes };
        rig.write(0, &text(extents * EXTENT));
        for number in whole..extents {
            rig.file.write_at((number * EXTENT + CUT) as u64, &noise(BLOCK)).unwrap();
            rig.bytes[number * EXTENT + CUT..][..BLOCK].copy_from_slice(&noise(BLOCK));
        }
        rig.file.write_back().unwrap();
        rig
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.file.write_at(at as u64, bytes).unwrap();
        self.file.write_back().unwrap();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn punch(&mut self, range: Range<usize>) {
        self.bytes[range.clone()].fill(0);
        self.file.punch_hole(range.start as u64..range.end as u64, &mut |_| {}).unwrap();
    }

    fn merge_part(&mut self) {
        self.file.merge_part(&mut |_| {}).unwrap().expect("pending extents");
    }

    /// A commit succeeds, and a volume that is opened now shows the file.
    fn assert_committed(mut self) {
        assert!(read(&self.source, &self.file) == self.bytes);
        self.file.merge(&mut |_| {}).unwrap();
        self.source.forest().commit().expect("every extent has its references");
        let source = open_device_to_read(&self.device);
        assert!(read(&source, &state(&source, INO)) == self.bytes);
    }
}

fn read(source: &Source, file: &FileState) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    assert_eq!(source.read_at(file.view(), 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Fills the volume with other data.
pub(crate) fn fill(source: &Source) {
    create(source, FILLER, InodeFlags::default());
    let mut filler = state(source, FILLER);
    for step in [1 << 20, 64 << 10, BLOCK] {
        while filler.write_at(filler.size(), &noise(step)).is_ok_and(|done| done == step) {}
        filler.merge(&mut |_| {}).ok();
        source.forest().commit().unwrap();
    }
}

#[test]
fn the_rest_of_an_extent_that_was_punched_after_a_partial_merge_keeps_its_space() {
    let mut rig = Rig::new(0, 400, &EnospcInjector::default());
    rig.merge_part();
    // The step ends after the first of this extent's three pending extents, or before it.
    let last = STEP / 3 * EXTENT;
    rig.punch(last..last + CUT);
    rig.source.forest().commit().unwrap();
    rig.source.forest().commit().unwrap();
    fill(&rig.source);
    rig.assert_committed();
}

#[test]
fn an_extent_that_was_punched_after_a_partial_merge_is_committed() {
    let mut rig = Rig::new(0, 400, &EnospcInjector::default());
    rig.merge_part();
    let last = STEP / 3 * EXTENT;
    rig.punch(last..last + CUT);
    rig.assert_committed();
}

#[test]
fn an_extent_that_was_written_where_a_partial_merge_ended_is_committed() {
    let mut rig = Rig::new(400, 400, &EnospcInjector::default());
    // The size is in the tree, so that the second partial merge begins where the first ended.
    let size = rig.bytes.len() as u64;
    rig.file.truncate(size + 1, &mut |_| {}).unwrap();
    rig.bytes.push(0);
    for number in 0..400 {
        rig.write(number * EXTENT, &text(EXTENT));
        rig.write(number * EXTENT + CUT, &noise(BLOCK));
    }
    rig.merge_part();
    // The last extent of the first step, or the next one. A part of it begins before the end of the
    // first step, and another one after it.
    let last = STEP / 3 * EXTENT;
    for at in [last - EXTENT, last] {
        rig.write(at, &text(EXTENT));
        rig.write(at + CUT + 2 * BLOCK, &noise(BLOCK));
    }
    rig.merge_part();
    // Another one, if anything is left.
    rig.file.merge_part(&mut |_| {}).unwrap();
    rig.punch(last - EXTENT + CUT..last);
    rig.punch(last + CUT..last + EXTENT);
    rig.assert_committed();
}

/// Merges one step, which is shorter than the file, and punches the first part of each extent.
fn assert_committed_after_one_step(fail_before: impl Fn(&EnospcInjector)) {
    const EXTENTS: usize = 100;
    let injector = EnospcInjector::default();
    let mut rig = Rig::new(0, EXTENTS, &injector);
    fail_before(&injector);
    let before = rig.file.pending_writes();
    rig.file.merge(&mut |_| injector.fail_every(1)).unwrap_err();
    assert!((1..before).contains(&rig.file.pending_writes()), "one step was merged");
    injector.fail_none();
    for number in 0..EXTENTS {
        rig.punch(number * EXTENT..number * EXTENT + CUT);
    }
    rig.assert_committed();
}

#[test]
fn extents_are_committed_after_a_merge_that_a_lack_of_space_cut_short() {
    assert_committed_after_one_step(EnospcInjector::fail_none);
}

#[test]
fn extents_are_committed_after_a_merge_on_a_full_volume_that_was_cut_short() {
    assert_committed_after_one_step(EnospcInjector::fail_growth);
}
