//! Deletions on a volume whose metadata is full, and whose extents lie in another order than the
//! items that refer to them: each reference that goes may change a leaf of its own in the extent
//! tree, and one in the checksum tree. The commit needs space for all of them, which the growth of
//! the volume has left.

use crate::volume::{TestVolume, new};
use butternut::format::checksum::ChecksumKind;
use butternut::format::chunk::Profile;
use butternut::{FileId, Filesystem, Privileges, SetAttributes};
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

fn delete_on_full_volume(mebibytes: u64, deletion: Deletion) {
    let options = MkfsOptions {
        csum: ChecksumKind::Sha256,
        metadata: Some(Profile::Single),
        ..MkfsOptions::default()
    };
    let volume = TestVolume::of(mebibytes << 20, &options);
    let fs = volume.open();
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    let sub = fs.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let id = fs.create(FileId::root_of(sub), b"file", &new(0o644)).unwrap();
    allocate_for_data(&fs, dir);
    let blocks = (mebibytes << 20) / BLOCK;
    let written = write_scattered(&fs, id, blocks);
    assert!(written > blocks / 8 && written < blocks, "metadata ended at {written} of {blocks}");
    (0..3).for_each(|round| fill_metadata(&fs, dir, round));
    assert!(fs.write_error().is_none(), "filled: {:?}", fs.write_error());
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
