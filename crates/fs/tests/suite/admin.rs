//! Operations on the whole volume (label, size, free space), and abandoned changes.

use crate::volume::{TestVolume, names, new};
use butternut::{Filesystem, MountOptions};
use butternut_mkfs::{BlockGroupFlags, MkfsOptions, Profile};

fn open_without_commits(volume: &TestVolume) -> Filesystem {
    let options =
        MountOptions::default().read_only(false).commit_seconds(0).commits_for_space(false);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

#[test]
fn abandon_leaves_the_volume_unchanged() {
    let volume = TestVolume::new();
    let fs = open_without_commits(&volume);
    fs.create(fs.root(), b"kept", &new(0o644)).unwrap();
    fs.sync().unwrap();
    let file = fs.create(fs.root(), b"left", &new(0o644)).unwrap();
    // More than fits in memory: it is written back, and no tree refers to it.
    let file = fs.open_file(file).unwrap();
    for chunk in 0..24_u64 {
        file.write_at(chunk << 22, &vec![7; 4 << 20]).unwrap();
    }
    drop(file);
    for number in 0..100_u64 {
        let name = format!("small{number}");
        let id = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
        fs.open_file(id).unwrap().write_at(0, &vec![1; 1 << 20]).unwrap();
    }
    fs.abandon();
    assert_eq!(fs.create(fs.root(), b"late", &new(0o644)).unwrap_err().errno(), 30);
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, fs.root()), ["kept"]);
}

#[test]
fn changes_on_a_full_volume_can_be_abandoned() {
    let volume = TestVolume::new();
    let fs = open_without_commits(&volume);
    let file = fs.open_file(fs.create(fs.root(), b"old", &new(0o644)).unwrap()).unwrap();
    file.write_at(0, &vec![7; 100 << 20]).unwrap();
    fs.sync().unwrap();
    fs.unlink(fs.root(), b"old").unwrap();
    drop(file);
    let file = fs.open_file(fs.create(fs.root(), b"new", &new(0o644)).unwrap()).unwrap();
    let mut at = 0;
    let error = loop {
        match file.write_at(at, &vec![7; 4 << 20]) {
            Ok(written) => at += u64::try_from(written).unwrap(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), 28, "{error}");
    fs.abandon();
    drop(file);
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, fs.root()), ["old"]);
}

#[test]
fn a_volume_shrinks_to_its_minimum_size_and_no_further() {
    let volume = TestVolume::new();
    let fs = open_without_commits(&volume);
    let file = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.open_file(file).unwrap().write_at(0, &vec![7; 60 << 20]).unwrap();
    fs.sync().unwrap();
    let least = fs.size_min(1).unwrap();
    assert!((60 << 20..512 << 20).contains(&least), "{least}");
    assert!(fs.resize(1, least - 4096).is_err());
    fs.resize(1, least).unwrap();
    let fs = volume.reopen(fs);
    assert_eq!(fs.devices()[0].total_bytes, least);
}

#[test]
fn label_and_size_are_those_of_the_last_commit() {
    let volume = TestVolume::new();
    let fs = open_without_commits(&volume);
    fs.set_label(b"new name").unwrap();
    fs.resize(1, 400 << 20).unwrap();
    assert!(fs.set_label(&[b'x'; 256]).is_err() && fs.resize(1, 600 << 20).is_err());
    let fs = volume.reopen(fs);
    assert_eq!(fs.super_block().label(), b"new name");
    assert_eq!(fs.devices()[0].total_bytes, 400 << 20);
    let fs = open_without_commits(&volume);
    assert!(fs.trim(4096).unwrap() > 300 << 20);
    fs.set_label(b"").unwrap();
    fs.abandon();
    let fs = volume.reopen(fs);
    assert_eq!(fs.super_block().label(), b"new name");
}

#[test]
fn statfs_counts_uncommitted_changes() {
    let volume = TestVolume::new();
    let fs = open_without_commits(&volume);
    let before = fs.statfs().unwrap();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![7; 8 << 20]).unwrap();
    let during = fs.statfs().unwrap();
    assert!(during.blocks_free <= before.blocks_free - 2048, "{before:?} {during:?}");
    drop(file);
    fs.unlink(fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    let after = fs.statfs().unwrap();
    assert!(after.blocks_free + 100 > before.blocks_free, "{before:?} {after:?}");
    fs.resize(1, 400 << 20).unwrap();
    fs.set_label(b"small").unwrap();
    assert_eq!((fs.statfs().unwrap().blocks, fs.label()), ((400 << 20) / 4096, b"small".to_vec()));
    let fs = volume.reopen(fs);
    assert_eq!(fs.statfs().unwrap().blocks, (400 << 20) / 4096);
}

/// Behind its end, a volume leaves the superblock copies that it has written before.
#[test]
fn a_volume_that_was_made_smaller_than_a_superblock_copy_is_clean() {
    let options = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
    let volume = TestVolume::of(128 << 20, &options);
    let fs = volume.open();
    fs.resize(1, fs.size_min(1).unwrap()).unwrap();
    fs.sync().unwrap();
    assert!(fs.size_min(1).unwrap() < 64 << 20, "{}", fs.size_min(1).unwrap());
    volume.reopen(fs);
}

/// A shrink is done or refused; in both cases the volume stays writable.
#[test]
fn no_shrink_ends_a_volume() {
    for (metadata, bytes) in [(Profile::Dup, 512 << 20), (Profile::Single, 300 << 20)] {
        let options = MkfsOptions { metadata: Some(metadata), ..MkfsOptions::default() };
        let volume = TestVolume::of(bytes, &options);
        let fs = volume.open();
        for number in 0..40_u8 {
            let id = fs.create(fs.root(), &[b'a' + number], &new(0o644)).unwrap();
            fs.open_file(id).unwrap().write_at(0, &vec![number; 1 << 20]).unwrap();
        }
        fs.sync().unwrap();
        for number in 10..40_u8 {
            fs.unlink(fs.root(), &[b'a' + number]).unwrap();
        }
        let mut refused = 0;
        for step in 1..90 {
            let size = bytes.saturating_sub(step * (7 << 20)).max(4096 * step);
            let done = fs.resize(1, size);
            refused += usize::from(done.is_err());
            let id = fs.create(fs.root(), format!("new {step}").as_bytes(), &new(0o644));
            if let Ok(id) = id {
                fs.open_file(id).unwrap().write_at(0, &[7; 5000]).ok();
            }
            fs.sync().unwrap();
            assert!(fs.is_writable(), "{metadata:?}, {size} bytes: {done:?}");
        }
        assert!(refused > 0);
        fs.close().unwrap();
        volume.check();
    }
}

/// Returns for each chunk of data whether it is of profile dup.
fn data_profiles(fs: &Filesystem) -> Vec<bool> {
    let chunks = fs.inspect().chunks();
    let data = chunks.iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    data.map(|chunk| chunk.flags.contains(BlockGroupFlags::DUP)).collect()
}

/// A shrink may remove the only data group, which is empty. The data that is written later has as
/// many copies as before.
#[test]
fn data_keeps_its_profile_when_a_shrink_removes_the_last_group() {
    let options = MkfsOptions { data: Some(Profile::Dup), ..MkfsOptions::default() };
    let volume = TestVolume::of(1 << 30, &options);
    let fs = volume.open();
    assert_eq!(data_profiles(&fs), [true]);
    // No file has data yet. The data group lies behind those of the trees.
    fs.resize(1, fs.size_min(1).unwrap()).unwrap();
    fs.resize(1, 1 << 30).unwrap();
    fs.sync().unwrap();
    let file = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.open_file(file).unwrap().write_at(0, &vec![7; 8 << 20]).unwrap();
    fs.sync().unwrap();
    let found = data_profiles(&fs);
    assert!(!found.is_empty() && found.iter().all(|is_dup| *is_dup), "{found:?}");
    volume.reopen(fs);
}

/// A shrink that removes the last data group adds another one before the end, or is refused.
#[test]
fn a_shrink_replaces_the_last_group_of_a_profile_or_is_refused() {
    let options = MkfsOptions { data: Some(Profile::Dup), ..MkfsOptions::default() };
    let volume = TestVolume::of(1 << 30, &options);
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    for at in 0..20_u64 {
        file.write_at(at << 23, &vec![7; 8 << 20]).unwrap();
    }
    drop(file);
    fs.sync().unwrap();
    assert!(data_profiles(&fs).len() > 1);
    fs.unlink(fs.root(), b"file").unwrap();
    // Commits remove all empty data groups but the newest.
    for label in [b"a", b"b", b"c"] {
        fs.set_label(label).unwrap();
        fs.sync().unwrap();
    }
    assert_eq!(data_profiles(&fs), [true]);
    let (mut bytes, mut replaced) = (fs.size_min(1).unwrap(), 0);
    loop {
        bytes -= 8 << 20;
        if fs.resize(1, bytes).is_err() {
            break;
        }
        replaced += 1;
        fs.sync().unwrap();
        assert_eq!(data_profiles(&fs), [true], "{bytes} bytes");
    }
    assert!(replaced > 0, "there is space before the newest group");
    assert!(fs.is_writable());
    assert_eq!(data_profiles(&fs), [true], "the refusal left it");
    fs.resize(1, 1 << 30).unwrap();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.open_file(id).unwrap().write_at(0, &vec![7; 8 << 20]).unwrap();
    fs.sync().unwrap();
    assert!(data_profiles(&fs).iter().all(|is_dup| *is_dup));
    volume.reopen(fs);
}
