//! What happens when a device fails, or is full.

use crate::script::{Dice, compare};
use crate::volume::{create, fresh, inode, open, open_faulty, state, try_create};
use butternut_device::{Fault, FaultyDevice, Rule, When};
use butternut_file::{FILE_BYTES_MAX, FileEnd, FileError, FileState, Merging, Source};
use butternut_format::inode::{Inode, InodeFlags};
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

/// Why data was lost, if no handle was told.
fn untold(file: &FileState) -> Option<FileError> {
    file.view().check_errors(&file.view().error_cursor())
}

#[test]
fn a_write_that_fails_leaves_the_range_as_it_was_and_is_told_twice() {
    let inner = fresh(256);
    let device = Arc::new(FaultyDevice::new(Arc::clone(&inner), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let old = noise(1, 3 * MIB);
    assert_eq!(file.write_at(0, &old).unwrap(), old.len());
    commit(&source, &mut file);
    let told = file.view().error_cursor();

    let rule = device.add(Rule::everywhere(Fault::WriteError));
    let error = file.write_at(MIB as u64, &noise(2, MIB)).unwrap_err();
    assert!(matches!(error, FileError::Write { offset, .. } if offset == MIB as u64), "{error}");
    assert!(matches!(file.view().check_errors(&told), Some(FileError::Write { .. })));
    assert!(file.view().check_errors(&told).is_none(), "once");
    // A small one is taken, and lost when it is to go down.
    file.write_at(5000, &noise(3, 100)).unwrap();
    assert!(file.flush().is_err());
    assert!(matches!(file.view().check_errors(&told), Some(FileError::Write { .. })));
    compare(&source, &file, &old);
    device.remove(rule);
    // Nothing is left over, and the next writes are as good as ever.
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
fn a_write_that_fails_in_part_leaves_nothing_behind_the_end() {
    let device = Arc::new(FaultyDevice::new(fresh(256), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    // Half of the write goes to space that is set aside, half to new space.
    let mib = MIB as u64;
    file.allocate(mib..2 * mib, FileEnd::Stays, &mut |_| {}).unwrap();
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
        file.allocate(mib..2 * mib, FileEnd::Stays, &mut |_| {}).unwrap();
    }
}

#[test]
fn a_state_that_has_ended_leaves_the_pages_of_the_next_one() {
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

#[test]
fn only_what_could_not_be_written_is_lost() {
    let inner = fresh(256);
    let device = Arc::new(FaultyDevice::new(Arc::clone(&inner), 1));
    let source = open_faulty(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    let old = noise(1, 64 * 8192);
    file.write_at(0, &old).unwrap();
    commit(&source, &mut file);
    // Every second block is overwritten; the device refuses one block in five.
    for block in 0..64_u64 {
        file.write_at(block * 8192, &noise(100 + block, 4096)).unwrap();
    }
    let rule =
        device.add(Rule { range: 0..u64::MAX, when: When::OneIn(5), fault: Fault::WriteError });
    assert!(file.flush().is_err());
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
            assert!(bytes[at..at + 4096] == old[at..at + 4096], "the old bytes, whole");
            lost += 1;
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}

#[test]
fn a_full_volume_refuses_writes_before_it_takes_them() {
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
        // What was taken is kept.
        commit(&source, &mut file);
        assert!(untold(&file).is_none());
        compare(&source, &file, &want);
        // So are changes of what is there, as long as they need nothing.
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
fn trees_without_space_refuse_small_files_and_let_them_go() {
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
                // As whoever holds many of them does.
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
    let mut stamps: Vec<_> = files.iter().map(|_| |_: &mut Inode| {}).collect();
    let mut merging: Vec<Merging<'_>> =
        files.iter_mut().zip(&mut stamps).map(|(file, stamp)| Merging { file, stamp }).collect();
    FileState::merge_many(&mut merging).unwrap();
    assert!(files.iter().all(FileState::is_clean));
}

#[test]
fn space_that_was_set_aside_can_be_written_when_there_is_no_other() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    create(&source, 301, InodeFlags::default());
    let mut aside = state(&source, 300);
    aside.allocate(0..5_000_000, FileEnd::Moves, &mut |_| {}).unwrap();
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
        assert_eq!(aside.write_at(at as u64, &data).unwrap(), data.len());
        want[at..at + data.len()].copy_from_slice(&data);
    }
    compare(&source, &aside, &want);
    commit(&source, &mut aside);
    assert!(untold(&aside).is_none());
    compare(&source, &aside, &want);
}

#[test]
fn what_is_not_merged_takes_no_space_when_its_file_goes() {
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
fn a_state_can_be_shared_and_sent() {
    fn both<T: Send + Sync>() {}
    both::<FileState>();
}

#[test]
fn more_space_than_there_is_is_not_set_aside_at_all() {
    let device = fresh(192);
    let source = open(&device);
    create(&source, 300, InodeFlags::default());
    let mut file = state(&source, 300);
    file.write_at(0, &noise(1, 5000)).unwrap();
    for _ in 0..3 {
        let error = file.allocate(0..10 << 30, FileEnd::Moves, &mut |_| {}).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert_eq!(file.size(), 5000);
        // Nothing of it is kept: most of the volume can be had right after.
        file.allocate(0..70 << 20, FileEnd::Stays, &mut |_| {}).unwrap();
        assert!(file.bytes_used() >= 70 << 20);
        file.punch_hole(8192..1 << 40, &mut |_| {}).unwrap();
        commit(&source, &mut file);
        assert_eq!(inode(&source, 300).bytes_used, 8192);
    }
    compare(&source, &file, &noise(1, 5000));
}

#[test]
fn a_file_ends_where_offsets_do() {
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
        file.allocate(0..FILE_BYTES_MAX + 1, FileEnd::Stays, &mut |_| {}),
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
