//! Volumes filled to the last byte, with data and with names, emptied, and filled again.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(dead_code, reason = "what volumes of tests share, not every test uses")]

mod volume;

use butternut::{Allocate, FileId, Filesystem, SetAttributes, SetXattr};
use butternut_mkfs::MkfsOptions;
use volume::{TestVolume, names, new};

const ROUNDS: u32 = 4;

fn small(mixed: bool) -> TestVolume {
    let mut options = MkfsOptions::default();
    if mixed {
        options.features.choose("mixed-bg").unwrap();
    }
    TestVolume::of(if mixed { 64 << 20 } else { 112 << 20 }, &options)
}

/// Does something over and over, until there is no space for more. How often it was done.
fn fill(mut step: impl FnMut(u32) -> butternut::Result<()>) -> u32 {
    for number in 0.. {
        if let Err(error) = step(number) {
            assert_eq!(error.errno(), 28, "step {number}: {error:?}");
            return number;
        }
    }
    unreachable!("no volume is endless")
}

fn empty(fs: &Filesystem, dir: FileId) {
    for name in names(fs, dir) {
        fs.unlink(dir, name.as_bytes()).unwrap();
    }
}

fn rounds(volume: &TestVolume, mut round: impl FnMut(&Filesystem, FileId) -> u32) {
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    let mut counts = Vec::new();
    for number in 0..ROUNDS {
        counts.push(round(&fs, dir));
        if number % 2 == 1 {
            fs.sync().unwrap();
        }
        empty(&fs, dir);
        if number % 3 == 1 {
            fs.sync().unwrap();
            volume.copy().check();
        }
    }
    assert!(counts.iter().all(|count| *count > counts[0] / 2), "{counts:?}");
    fs.rmdir(fs.root(), b"dir").unwrap();
    volume.reopen(fs);
}

#[test]
fn a_volume_is_filled_with_names() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            fill(|number| {
                let name = format!("{number:0200}");
                fs.create(dir, name.as_bytes(), &new(0o644)).map(drop)
            })
        });
    }
}

#[test]
fn a_volume_is_filled_with_small_files() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            fill(|number| {
                let id = fs.create(dir, format!("{number}").as_bytes(), &new(0o644))?;
                let bytes = 1 + usize::try_from(number).unwrap() % 9000;
                let written = fs.open_file(id)?.write_at(0, &vec![7; bytes])?;
                assert!(written > 0);
                Ok(())
            })
        });
    }
}

#[test]
fn a_volume_is_filled_with_one_file_that_is_cut() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            let id = fs.create(dir, b"file", &new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            let count =
                fill(|number| file.write_at(u64::from(number) << 16, &[7; 1 << 14]).map(drop));
            fs.set_attributes(id, &SetAttributes::size(5000)).unwrap();
            fs.sync().unwrap();
            let again = fill(|number| {
                let at = u64::from(number) << 18;
                file.allocate(at..at + (1 << 18), Allocate::KeepSize)
            });
            assert!(again > 10, "{again}");
            count
        });
    }
}

#[test]
fn a_volume_is_filled_with_attributes() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            let id = fs.create(dir, b"file", &new(0o644)).unwrap();
            let size = if mixed { 3000 } else { 15_000 };
            fill(|number| {
                let name = format!("user.{number}");
                fs.set_xattr(id, name.as_bytes(), &vec![7; size], SetXattr::Either)
            })
        });
    }
}
