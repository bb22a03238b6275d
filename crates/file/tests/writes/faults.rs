//! Failing devices, and full volumes.

use crate::script::{Dice, compare};
use crate::volume::{
    create, fresh, inode, open, open_faulty, open_with_injector, put, state, subvolume, try_create,
};
use butternut_device::{Device, Fault, FaultyDevice, Rule, When};
use butternut_file::{
    FILE_BYTES_MAX, FallocateSize, FileError, FileState, MergeFile, Source, Stream,
};
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_pages::WritebackReason;
use butternut_space::Cluster;
use butternut_sys::wait::Wait;
use butternut_tree::EnospcInjector;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| dice.next().to_le_bytes()).take(bytes).collect()
}

fn commit(source: &Source, file: &mut FileState) {
    file.merge(&mut |_| {}).unwrap();
    source.forest().commit().unwrap();
}

/// The last writeback error, if no handle has reported it.
fn unreported(file: &FileState) -> Option<FileError> {
    file.view().check_errors(&file.view().error_cursor())
}

#[test]
fn a_failed_write_leaves_the_range_unchanged_and_is_reported_twice() {
    let inner = fresh(256);
    let device = Arc::new(FaultyDevice::new(Arc::clone(&inner), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let old = noise(1, 3 * MIB);
    assert_eq!(file.write_at(0, &old).unwrap(), old.len());
    commit(&source, &mut file);
    let cursor = file.view().error_cursor();

    let rule = device.add(Rule::everywhere(Fault::WriteError));
    let error = file.write_at(MIB as u64, &noise(2, MIB)).unwrap_err();
    assert!(matches!(error, FileError::Write { offset, .. } if offset == MIB as u64), "{error}");
    assert!(matches!(file.view().check_errors(&cursor), Some(FileError::Write { .. })));
    assert!(file.view().check_errors(&cursor).is_none(), "once");
    // A small write is accepted, and lost in writeback.
    file.write_at(5000, &noise(3, 100)).unwrap();
    assert!(file.write_back().is_err());
    assert!(matches!(file.view().check_errors(&cursor), Some(FileError::Write { .. })));
    compare(&source, &file, &old);
    device.remove(rule);
    // Nothing is left over, and later writes succeed.
    assert!(file.is_clean());
    let new = noise(4, 2 * MIB);
    file.write_at(0, &new).unwrap();
    commit(&source, &mut file);
    let mut want = old;
    want[..new.len()].copy_from_slice(&new);
    compare(&source, &file, &want);
    drop(file);
    drop(source);
    let source = open(&inner);
    compare(&source, &state(&source, 300), &want);
}

#[test]
fn a_partly_failed_write_leaves_nothing_past_the_end() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    // Half of the write goes to preallocated space, half to new space.
    let mib = MIB as u64;
    file.allocate(mib..2 * mib, FallocateSize::Keep, &mut |_| {}).unwrap();
    commit(&source, &mut file);
    for failing in 0..2 {
        let when = When::Nth(failing);
        let rule = device.add(Rule { range: 0..u64::MAX, when, fault: Fault::WriteError });
        assert!(file.write_at(0, &noise(1, 2 * MIB)).is_err());
        device.remove(rule);
        assert_eq!(file.size(), 0);
        file.truncate(2 * mib, &mut |_| {}).unwrap();
        compare(&source, &file, &vec![0; 2 * MIB]);
        commit(&source, &mut file);
        compare(&source, &file, &vec![0; 2 * MIB]);
        file.truncate(0, &mut |_| {}).unwrap();
        file.allocate(mib..2 * mib, FallocateSize::Keep, &mut |_| {}).unwrap();
    }
}

#[test]
fn a_state_that_has_ended_keeps_the_pages_of_the_next_one() {
    let source = open(&fresh(256));
    create(&source, 300, InodeFlags::default());
    let mut old = state(&source, 300);
    let data = noise(1, 9000);
    old.write_at(0, &data).unwrap();
    assert!(!old.end_if_clean());
    commit(&source, &mut old);
    assert!(old.end_if_clean());
    let mut next = state(&source, 300);
    let data = noise(2, 9000);
    next.write_at(0, &data).unwrap();
    drop(old);
    compare(&source, &next, &data);
}

/// The list of idle files may look once more at a state that has left the inode table.
#[test]
fn a_state_that_has_ended_and_is_looked_at_again_keeps_the_pages_of_the_next_one() {
    let source = open(&fresh(256));
    create(&source, 300, InodeFlags::default());
    let mut old = state(&source, 300);
    old.write_at(0, &noise(1, 9000)).unwrap();
    commit(&source, &mut old);
    assert!(old.end_if_clean());
    let mut next = state(&source, 300);
    let data = noise(2, 9000);
    next.write_at(0, &data).unwrap();
    // The dirty pages of `next` have the same key.
    assert!(old.end_if_clean());
    drop(old);
    compare(&source, &next, &data);
    commit(&source, &mut next);
    compare(&source, &next, &data);
}

#[test]
fn only_blocks_that_could_not_be_written_are_lost() {
    let inner = fresh(256);
    let device = Arc::new(FaultyDevice::new(Arc::clone(&inner), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let old = noise(1, 64 * 8192);
    file.write_at(0, &old).unwrap();
    commit(&source, &mut file);
    // Every second block is overwritten; the device fails one write in five.
    for block in 0..64_u64 {
        file.write_at(block * 8192, &noise(100 + block, 4096)).unwrap();
    }
    let rule =
        device.add(Rule { range: 0..u64::MAX, when: When::OneIn(5), fault: Fault::WriteError });
    assert!(file.write_back().is_err());
    device.remove(rule);
    commit(&source, &mut file);
    let mut bytes = vec![0; old.len()];
    source.read_at(file.view(), 0, &mut bytes).unwrap();
    let (mut kept, mut lost) = (0, 0);
    for block in 0..64 {
        let at = block * 8192;
        assert_eq!(bytes[at + 4096..at + 8192], old[at + 4096..at + 8192]);
        let new = noise(100 + block as u64, 4096);
        if bytes[at..at + 4096] == new {
            kept += 1;
        } else {
            assert!(bytes[at..at + 4096] == old[at..at + 4096], "all old bytes");
            lost += 1;
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}

#[test]
fn a_full_volume_refuses_writes_before_it_accepts_their_data() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    create(&source, 301, InodeFlags::default());
    let mut small = state(&source, 301);
    small.write_at(0, &noise(9, 10_000)).unwrap();
    for round in 0..6 {
        let mut file = state(&source, 300);
        let mut want = Vec::new();
        let error = loop {
            let data = noise(round * 1000 + want.len() as u64, [MIB, 7000][(round % 2) as usize]);
            match file.write_at(want.len() as u64, &data) {
                Ok(written) => want.extend_from_slice(&data[..written]),
                Err(error) => break error,
            }
        };
        assert!(error.is_no_space(), "{error}");
        assert!(want.len() > 40 * MIB, "round {round}: {}", want.len());
        // Accepted data is kept.
        commit(&source, &mut file);
        assert!(unreported(&file).is_none());
        compare(&source, &file, &want);
        // Changes that need no space succeed.
        file.truncate(want.len() as u64 - 4321, &mut |_| {}).unwrap();
        want.truncate(want.len() - 4321);
        compare(&source, &file, &want);
        file.truncate(0, &mut |_| {}).unwrap();
        source.forest().commit().unwrap();
        assert_eq!(inode(&source, 300).bytes_used, 0);
    }
    commit(&source, &mut small);
    compare(&source, &small, &noise(9, 10_000));
}

#[test]
fn full_trees_refuse_small_files_and_allow_truncation() {
    let device = fresh(160);
    let source = open(&device);
    for round in 0..3 {
        let mut files: Vec<FileState> = Vec::new();
        let error = loop {
            let ino = 1000 + files.len() as u64;
            if let Err(error) = try_create(&source, ino) {
                break FileError::from(error);
            }
            let mut file = state(&source, ino);
            match file.write_at(0, &noise(ino + round, 2000)) {
                Ok(written) => assert_eq!(written, 2000),
                Err(error) => break error,
            }
            files.push(file);
            if files.len().is_multiple_of(1000) {
                // As an owner of many files does.
                merge_all(&mut files);
            }
        };
        assert!(error.is_no_space(), "{error}");
        assert!(files.len() > 5000, "round {round}: {}", files.len());
        merge_all(&mut files);
        source.forest().commit().unwrap();
        for (number, file) in (0..).zip(&files).step_by(97) {
            compare(&source, file, &noise(1000 + number + round, 2000));
        }
        for file in &mut files {
            file.truncate(0, &mut |_| {}).unwrap();
        }
        source.forest().commit().unwrap();
    }
}

fn merge_all(files: &mut [FileState]) {
    let mut updates: Vec<_> = files.iter().map(|_| |_: &mut Inode| {}).collect();
    let mut merging: Vec<MergeFile<'_>> = files
        .iter_mut()
        .zip(&mut updates)
        .map(|(file, update)| MergeFile { file, update })
        .collect();
    FileState::merge_many(&mut merging).unwrap();
    assert!(files.iter().all(FileState::is_clean));
}

#[test]
fn preallocated_space_can_be_written_on_a_full_volume() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    create(&source, 301, InodeFlags::default());
    let mut preallocated = state(&source, 300);
    preallocated.allocate(0..5_000_000, FallocateSize::Extend, &mut |_| {}).unwrap();
    let mut filler = state(&source, 301);
    let data = vec![7; MIB];
    while filler.write_at(filler.size(), &data).is_ok() {}
    while filler.write_at(filler.size(), &data[..4096]).is_ok() {}
    commit(&source, &mut filler);
    let mut want = vec![0; 5_000_000];
    let mut dice = Dice::new(5);
    for number in 0..200 {
        let at = dice.below(4_900_000) as usize;
        let data = noise(number, 1 + dice.below(20_000) as usize);
        assert_eq!(preallocated.write_at(at as u64, &data).unwrap(), data.len());
        want[at..at + data.len()].copy_from_slice(&data);
    }
    compare(&source, &preallocated, &want);
    commit(&source, &mut preallocated);
    assert!(unreported(&preallocated).is_none());
    compare(&source, &preallocated, &want);
}

#[test]
fn dropping_a_state_frees_the_space_of_unmerged_data() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    for round in 0..20 {
        let mut file = state(&source, 300);
        file.write_at(0, &noise(round, 30 * MIB)).unwrap();
        file.write_at(40 << 20, &noise(round, 5000)).unwrap();
        assert!(source.dirty_bytes() > 0);
        drop(file);
        assert_eq!(source.dirty_bytes(), 0);
    }
    assert_eq!(state(&source, 300).size(), 0);
}

#[test]
fn a_state_is_send_and_sync() {
    fn both<T: Send + Sync>() {}
    both::<FileState>();
}

#[test]
fn a_preallocation_that_does_not_fit_allocates_nothing() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    file.write_at(0, &noise(1, 5000)).unwrap();
    for _ in 0..3 {
        let error = file.allocate(0..10 << 30, FallocateSize::Extend, &mut |_| {}).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert_eq!(file.size(), 5000);
        // No space is left allocated: most of the volume can be preallocated right after.
        file.allocate(0..70 << 20, FallocateSize::Keep, &mut |_| {}).unwrap();
        assert!(file.bytes_used() >= 70 << 20);
        file.punch_hole(8192..1 << 40, &mut |_| {}).unwrap();
        commit(&source, &mut file);
        assert_eq!(inode(&source, 300).bytes_used, 8192);
    }
    compare(&source, &file, &noise(1, 5000));
}

#[test]
fn a_file_ends_at_the_largest_offset() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let last = FILE_BYTES_MAX - 5000;
    assert_eq!(file.write_at(last, &noise(1, 5000)).unwrap(), 5000);
    assert_eq!(file.size(), FILE_BYTES_MAX);
    let too_far = [
        file.write_at(FILE_BYTES_MAX, b"x").map(drop),
        file.write_at(u64::MAX, b"xy").map(drop),
        file.truncate(FILE_BYTES_MAX + 1, &mut |_| {}),
        file.allocate(0..FILE_BYTES_MAX + 1, FallocateSize::Keep, &mut |_| {}),
        file.punch_hole(0..u64::MAX, &mut |_| {}),
    ];
    for result in too_far {
        assert!(matches!(result, Err(FileError::TooLarge { .. })), "{result:?}");
    }
    commit(&source, &mut file);
    let mut bytes = vec![0; 6000];
    assert_eq!(source.read_at(file.view(), last, &mut bytes).unwrap(), 5000);
    assert!(bytes[..5000] == noise(1, 5000));
    file.truncate(100, &mut |_| {}).unwrap();
    file.truncate(FILE_BYTES_MAX, &mut |_| {}).unwrap();
    commit(&source, &mut file);
    assert_eq!(inode(&source, 300).size, FILE_BYTES_MAX);
}

#[test]
fn a_first_block_that_was_lost_leaves_no_inline_item_beside_extents() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let mut want = noise(1, 1500);
    file.write_at(0, &want).unwrap();
    commit(&source, &mut file);
    let first_is_inline = || {
        let key = Key::new(300, ItemType::EXTENT_DATA, 0);
        let item = subvolume(&source).find(&key).unwrap().unwrap();
        let extent = FileExtent::check(item.data(), 0).unwrap();
        matches!(extent.body, ExtentBody::Inline(_))
    };
    assert!(first_is_inline());
    let new = noise(2, 5000);
    file.write_at(8192, &new).unwrap();
    let rule = device.add(Rule::everywhere(Fault::WriteError));
    let (batch, planned) = file.start_writeback(4096, WritebackReason::Sync);
    planned.unwrap();
    assert!(batch.unwrap().write_and_complete().is_err());
    device.remove(rule);
    commit(&source, &mut file);
    assert!(!first_is_inline());
    want.resize(8192, 0);
    want.extend_from_slice(&new);
    compare(&source, &file, &want);
}

#[test]
fn a_failed_write_in_place_leaves_no_stale_page() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    let flags = InodeFlags::default().with(InodeFlags::NODATACOW).with(InodeFlags::NODATASUM);
    create(&source, 300, flags);
    let mut file = state(&source, 300);
    file.write_at(0, &noise(1, 32768)).unwrap();
    commit(&source, &mut file);
    let stream = Stream::new(source.clone(), file.view().clone());
    let mut bytes = vec![0; 32768];
    let cached = || source.pages().counters().cached_pages;
    for (at, lost) in [(0_u64, 4), (16384, 2)] {
        stream.read_at(0, &mut bytes).unwrap();
        assert_eq!(cached(), 8);
        // A device that reports an error may have written the blocks, or some of them.
        let rule = device.add(Rule::everywhere(Fault::WriteError));
        assert!(file.write_direct(at, &noise(2, 4096 * lost)).is_err());
        device.remove(rule);
        assert_eq!(cached(), 8 - lost, "the pages of the range are unknown");
    }
    assert_eq!(stream.read_at(0, &mut bytes).unwrap(), bytes.len());
}

#[test]
fn a_file_whose_item_has_an_impossible_size_can_be_changed() {
    for size in [u64::MAX, u64::MAX - 4000, FILE_BYTES_MAX + 1] {
        let source = open(&fresh(192));
        put(&source, 300, &Inode { size, ..inode(&source, 256) }).unwrap();
        let mut file = state(&source, 300);
        assert_eq!(file.size(), FILE_BYTES_MAX);
        assert!(file.is_clean(), "nothing is newer than the tree");
        file.punch_hole(0..1 << 20, &mut |_| {}).unwrap();
        file.write_at(5000, &noise(1, 5000)).unwrap();
        file.punch_hole(0..6000, &mut |_| {}).unwrap();
        commit(&source, &mut file);
        assert_eq!(inode(&source, 300).size, FILE_BYTES_MAX);
        file.truncate(8000, &mut |_| {}).unwrap();
        commit(&source, &mut file);
        let mut want = noise(1, 5000);
        want.splice(..0, vec![0; 5000]);
        want[..6000].fill(0);
        compare(&source, &file, &want[..8000]);
    }
}

#[test]
fn a_range_that_is_zeroed_behind_inline_data_is_zeroed_or_refused_without_space() {
    for (blocks, compression) in
        (3..9).flat_map(|blocks| [(blocks, None), (blocks, Some(Compression::Zstd))])
    {
        let source = open(&fresh(192));
        create(&source, 300, InodeFlags::default());
        let mut file = state(&source, 300);
        file.set_property(compression);
        file.write_at(0, &noise(1, 1800)).unwrap();
        commit(&source, &mut file);
        let forest = source.forest();
        let mut taken = Vec::new();
        while let Ok(space) = forest.allocate_data(4096, 4 << 20, Cluster(0), Wait::Block) {
            taken.push(space);
        }
        // Little more, or less, than the range needs.
        let last = taken.pop().unwrap();
        forest.release_data(last.part(0, blocks * 4096).unwrap()).unwrap();
        let mut want = noise(1, 1800);
        if file.zero_range(1000..20_000, FallocateSize::Extend, &mut |_| {}).is_ok() {
            want.truncate(1000);
            want.resize(20_000, 0);
        }
        assert!(blocks < 8 || want.len() == 20_000);
        compare(&source, &file, &want);
        commit(&source, &mut file);
        assert!(file.is_clean());
        compare(&source, &file, &want);
    }
}

#[test]
fn a_direct_write_that_loses_its_last_bytes_ends_with_its_whole_blocks() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let mut want = noise(1, 8192);
    file.write_at(0, &want).unwrap();
    commit(&source, &mut file);
    let new = noise(2, 4096 + 100);
    // The whole block is the first write of the device, the rest the second.
    let (range, when) = (0..u64::MAX, When::Nth(1));
    let rule = device.add(Rule { range, when, fault: Fault::WriteError });
    assert_eq!(file.write_direct(8192, &new).unwrap(), 4096);
    device.remove(rule);
    want.extend_from_slice(&new[..4096]);
    compare(&source, &file, &want);
    // Nothing is in front of the bytes that are lost.
    let rule = device.add(Rule::everywhere(Fault::WriteError));
    assert!(file.write_direct(12_288 + 50, &new).is_err());
    device.remove(rule);
    commit(&source, &mut file);
    compare(&source, &file, &want);
}

/// A direct write that is not aligned and fails in the middle: a reservation is refused, so that
/// the file is merged there, or a device loses a block.
#[test]
fn a_direct_write_that_fails_leaves_nothing_behind_the_end() {
    const END: usize = 4 * 4096;
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let injector = EnospcInjector::default();
    let source = open_with_injector(&(Arc::clone(&device) as Arc<dyn Device>), &injector);
    let cases = [false, true].into_iter();
    let cases = cases.flat_map(|it| (1..12).map(move |nth| (it, nth)));
    for (number, ((is_preallocated, nth), lost)) in
        (400..).zip(cases.flat_map(|case| (0..4).map(move |lost| (case, lost))))
    {
        let what = format!("{is_preallocated}, reservation {nth}, device write {lost}");
        create(&source, number, InodeFlags::default());
        let mut file = state(&source, number);
        if is_preallocated {
            file.allocate(0..END as u64, FallocateSize::Keep, &mut |_| {}).unwrap();
            file.merge(&mut |_| {}).unwrap();
        }
        let (range, when) = (0..u64::MAX, When::Nth(lost));
        let rule = device.add(Rule { range, when, fault: Fault::WriteError });
        injector.fail_every(nth);
        // The end of a block, a whole block, and the begin of a block.
        let written = file.write_direct(50, &[7; 4046 + 4096 + 100]);
        injector.fail_none();
        device.remove(rule);
        let size = usize::try_from(file.size()).unwrap();
        file.truncate(END as u64, &mut |_| {}).unwrap();
        let mut have = vec![9; END];
        assert_eq!(source.read_at(file.view(), 0, &mut have).unwrap(), END);
        assert!(have[size..].iter().all(|byte| *byte == 0), "{what}: behind byte {size}");
        if let Ok(written) = written {
            assert!(have[50..50 + written].iter().all(|byte| *byte == 7), "{what}: lost");
        }
    }
}

/// The zeroes at the new end are a write like any other.
#[test]
fn the_zeroes_of_a_truncation_that_are_lost_are_reported_and_no_other_block_changes() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let old = noise(1, 8192);
    file.write_at(0, &old).unwrap();
    commit(&source, &mut file);
    let cursor = file.view().error_cursor();
    file.truncate(100, &mut |_| {}).unwrap();
    // The end moves past a block that is dirty.
    file.write_at(20_000, b"x").unwrap();
    let mut want = old[..100].to_vec();
    want.resize(20_000, 0);
    want.push(b'x');
    compare(&source, &file, &want);
    let rule = device.add(Rule::everywhere(Fault::WriteError));
    assert!(file.write_back().is_err());
    assert!(matches!(file.view().check_errors(&cursor), Some(FileError::Write { .. })));
    device.remove(rule);
    commit(&source, &mut file);
    let mut have = vec![9; 20_001];
    assert_eq!(source.read_at(file.view(), 0, &mut have).unwrap(), have.len());
    assert!(have[..100] == want[..100] && have[4096..].iter().all(|byte| *byte == 0));
}
