//! Deletions and overwrites on a volume whose metadata is full, and whose extents lie in another
//! order than the items that refer to them: each reference that goes may change a leaf of its own
//! in the extent tree, and one in the checksum tree. The commit needs space for all of them, which
//! the growth of the volume has left.

use crate::volume::{TestVolume, new};
use butternut::format::checksum::ChecksumKind;
use butternut::format::chunk::Profile;
use butternut::{Allocate, FileId, Filesystem, Privileges, SetAttributes};
use butternut_mkfs::MkfsOptions;

const BLOCK: u64 = 4096;

/// Writes between two syncs.
const WRITES_PER_SYNC: u64 = 8000;

#[derive(Clone, Copy, Debug)]
enum Deletion {
    Subvolume,
    Unlink,
    Truncate,
}

fn fill(mut step: impl FnMut(u64) -> butternut::Result<()>) -> u64 {
    for number in 0.. {
        if let Err(error) = step(number) {
            assert_eq!(error.errno(), 28, "step {number}: {error:?}");
            return number;
        }
    }
    unreachable!("no volume is unlimited")
}

/// Takes all unallocated space for data, so that no chunk of metadata can be added later.
fn allocate_for_data(fs: &Filesystem, dir: FileId) {
    let names: Vec<_> = (0..).map(|number: u32| format!("data {number}")).take(4096).collect();
    let count = fill(|number| {
        let name = &names[usize::try_from(number).unwrap()];
        let id = fs.create(dir, name.as_bytes(), &new(0o644))?;
        fs.open_file(id)?.write_at(0, &vec![7; 1 << 20]).map(drop)
    });
    fs.sync().unwrap();
    // A file in each group keeps it.
    for number in (0..=count).filter(|number| number % 10 > 0) {
        fs.unlink(dir, names[usize::try_from(number).unwrap()].as_bytes()).ok();
    }
    fs.sync().unwrap();
}

/// Writes the blocks of a file in an order that has no runs, each to an extent of its own.
fn write_scattered(fs: &Filesystem, file: FileId, blocks: u64) -> u64 {
    let file = fs.open_file(file).unwrap();
    file.truncate(blocks * BLOCK).unwrap();
    for number in 0..blocks {
        // The factor has no common divisor with the power of two.
        let at = number.wrapping_mul(40_503) % blocks * BLOCK;
        let synced = if number % WRITES_PER_SYNC == 0 { file.sync_all() } else { Ok(()) };
        let written = file.write_direct(at, &[9; 4096], Privileges::Keep);
        if let Err(error) = synced.and(written) {
            assert_eq!(error.errno(), 28, "block {number}: {error:?}");
            return number;
        }
    }
    blocks
}

/// Fills what is left of the metadata with small files.
fn fill_metadata(fs: &Filesystem, dir: FileId, round: u32) {
    fill(|number| {
        let id = fs.create(dir, format!("small {round} {number}").as_bytes(), &new(0o644))?;
        fs.open_file(id)?.write_at(0, &[3; 1900]).map(drop)
    });
    fs.sync().unwrap();
}

/// A volume whose metadata is full, with one file of scattered extents in a subvolume.
struct FullVolume {
    volume: TestVolume,
    fs: Filesystem,
    dir: FileId,
    sub: u64,
    file: FileId,
}

/// Options with which a small volume has much to change in its checksum tree.
fn large_checksums() -> MkfsOptions {
    let metadata = Some(Profile::Single);
    MkfsOptions { csum: ChecksumKind::Sha256, metadata, ..MkfsOptions::default() }
}

fn fill_volume(mebibytes: u64, options: &MkfsOptions) -> FullVolume {
    let volume = TestVolume::of(mebibytes << 20, options);
    let fs = volume.open();
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    let sub = fs.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let file = fs.create(FileId::root_of(sub), b"file", &new(0o644)).unwrap();
    allocate_for_data(&fs, dir);
    let blocks = (mebibytes << 20) / BLOCK;
    let written = write_scattered(&fs, file, blocks);
    assert!(written > blocks / 8 && written < blocks, "metadata ended at {written} of {blocks}");
    (0..3).for_each(|round| fill_metadata(&fs, dir, round));
    assert!(fs.write_error().is_none(), "filled: {:?}", fs.write_error());
    FullVolume { volume, fs, dir, sub, file }
}

fn delete_on_full_volume(mebibytes: u64, deletion: Deletion) {
    let FullVolume { volume, fs, dir, sub, file: id } = fill_volume(mebibytes, &large_checksums());
    let root = fs.root();
    match deletion {
        Deletion::Subvolume => fs.delete_subvolume(root, b"sub").map(drop).unwrap(),
        Deletion::Unlink => fs.unlink(FileId::root_of(sub), b"file").unwrap(),
        Deletion::Truncate => fs.set_attributes(id, &SetAttributes::size(0)).map(drop).unwrap(),
    }
    let left = fs.clean_subvolumes();
    assert!(matches!(&left, Ok(left) if left.is_empty()), "{mebibytes} MiB: {left:?}");
    fs.sync().unwrap();
    assert!(fs.write_error().is_none(), "{deletion:?}: {:?}", fs.write_error());
    fs.create(dir, b"new", &new(0o644)).unwrap();
    fs.unlink(dir, b"new").unwrap();
    volume.reopen(fs);
}

#[test]
fn a_subvolume_of_scattered_extents_is_deleted_on_a_full_volume() {
    for mebibytes in [64, 100, 128, 160, 192, 256] {
        delete_on_full_volume(mebibytes, Deletion::Subvolume);
    }
}

#[test]
fn a_file_of_scattered_extents_is_deleted_on_a_full_volume() {
    for mebibytes in [64, 128, 192] {
        delete_on_full_volume(mebibytes, Deletion::Unlink);
        delete_on_full_volume(mebibytes, Deletion::Truncate);
    }
}

/// Writes a file of scattered extents again, in long ones. Each replaces the items and references
/// of many, and the commit changes as many leaves, which a replay of the log does as well.
#[test]
fn long_writes_over_scattered_extents_are_kept_on_a_full_volume() {
    const CHUNK: usize = 1 << 20;
    let volumes = [
        (128, large_checksums(), 100, 1),
        (128, large_checksums(), 60, 8),
        (256, large_checksums(), 160, 8),
        (512, MkfsOptions::default(), 300, 8),
        (512, MkfsOptions::default(), 470, 16),
    ];
    for (mebibytes, options, left, writes) in volumes {
        let FullVolume { volume, fs, dir, file: id, .. } = fill_volume(mebibytes, &options);
        fs.set_attributes(id, &SetAttributes::size(left << 20)).unwrap();
        fs.sync().unwrap();
        let file = fs.open_file(id).unwrap();
        let data = vec![5; CHUNK];
        let accepted = (0..writes).take_while(|number| {
            let written = file.write_direct(number << 20, &data, Privileges::Keep);
            written.is_ok_and(|bytes| bytes == CHUNK)
        });
        let accepted = accepted.count();
        let what = format!("{mebibytes} MiB, {accepted} of {writes} writes");
        file.sync_all().unwrap_or_else(|error| panic!("{what}: {error:?}"));
        // What a crash leaves now.
        let crashed = volume.copy();
        fs.sync().unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert!(fs.write_error().is_none(), "{what}: {:?}", fs.write_error());
        if let Err(error) = fs.create(dir, b"new", &new(0o644)) {
            assert_eq!(error.errno(), 28, "{what}: {error:?}");
        }
        volume.reopen(fs);
        for volume in [&crashed, &volume] {
            let fs = volume.open();
            let file = fs.open_file(id).unwrap();
            let mut have = vec![0; CHUNK];
            for number in 0..accepted {
                let at = u64::try_from(number * CHUNK).unwrap();
                assert_eq!(file.read_at(at, &mut have).unwrap(), CHUNK);
                assert!(have == data, "{what}: write {number}");
            }
            drop(file);
            volume.reopen(fs);
        }
    }
}

/// One node is as large as the items of many writes that were accepted together.
#[test]
fn scattered_writes_to_large_nodes_are_kept_on_a_full_volume() {
    let options = MkfsOptions {
        node_bytes: Some(64 << 10),
        metadata: Some(Profile::Single),
        ..MkfsOptions::default()
    };
    let volume = TestVolume::of(128 << 20, &options);
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    allocate_for_data(&fs, dir);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let blocks = (128 << 20) / BLOCK;
    let place = |number: u64| number.wrapping_mul(40_503) % blocks * BLOCK;
    let accepted =
        fill(|number| file.write_direct(place(number), &[9; 4096], Privileges::Keep).map(drop));
    file.sync_all().unwrap();
    let crashed = volume.copy();
    fs.sync().unwrap();
    drop(file);
    volume.reopen(fs);
    for volume in [&crashed, &volume] {
        let fs = volume.open();
        let file = fs.open_file(id).unwrap();
        let mut have = [0; 4096];
        for number in 0..accepted {
            file.read_at(place(number), &mut have).unwrap();
            assert_eq!(have, [9; 4096], "write {number} of {accepted}");
        }
        drop(file);
        volume.reopen(fs);
    }
}

#[test]
fn holes_are_punched_into_scattered_extents_on_a_full_volume() {
    let FullVolume { volume, fs, file: id, .. } = fill_volume(128, &large_checksums());
    let file = fs.open_file(id).unwrap();
    file.allocate(0..64 << 20, Allocate::PunchHole).unwrap();
    drop(file);
    volume.reopen(fs);
}
