//! Tests which files making a volume creates, extends, refuses and leaves unchanged.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use butternut_device::{FileDevice, OpenDevice};
use butternut_mkfs::{MkfsError, MkfsOptions, Target};
use std::fs;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const SUPER: usize = 65536 + 64;

fn sized(mib: u64) -> MkfsOptions {
    MkfsOptions { bytes: Some(mib * MIB), ..MkfsOptions::default() }
}

fn at(path: PathBuf, offset: u64) -> Target {
    Target { path, offset, bytes: None }
}

#[test]
fn a_size_makes_a_file_or_extends_it_and_leaves_longer_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    at(path.clone(), 0).make(&sized(109)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 109 * MIB);
    let again = at(path.clone(), 0).make(&sized(200)).unwrap_err();
    assert!(matches!(again, MkfsError::InUse { .. }));
    assert_eq!(fs::metadata(&path).unwrap().len(), 109 * MIB, "not extended before it is refused");
    let force = MkfsOptions { overwrite: true, ..sized(200) };
    assert_eq!(at(path.clone(), 0).make(&force).unwrap().bytes, 200 * MIB);
    assert_eq!(fs::metadata(&path).unwrap().len(), 200 * MIB);
    let force = MkfsOptions { overwrite: true, ..sized(120) };
    assert_eq!(at(path.clone(), 0).make(&force).unwrap().bytes, 120 * MIB);
    assert_eq!(fs::metadata(&path).unwrap().len(), 200 * MIB);
}

#[test]
fn a_file_is_not_made_for_a_volume_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    let refused = at(path.clone(), 0).make(&sized(20)).unwrap_err();
    assert!(matches!(refused, MkfsError::TooSmall { .. }));
    assert!(!path.exists());
    let refused = at(path.clone(), 0).make(&MkfsOptions::default()).unwrap_err();
    assert!(matches!(refused, MkfsError::Device(_)), "without a size nothing is made");
    assert!(!path.exists());
}

#[test]
fn an_image_that_is_open_elsewhere_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img");
    fs::File::create(&path).unwrap().set_len(120 * MIB).unwrap();
    let reader = FileDevice::open(&path, &OpenDevice::default()).unwrap();
    for options in [MkfsOptions::default(), sized(300)] {
        let refused = at(path.clone(), 0).make(&options).unwrap_err();
        assert!(refused.to_string().contains(" is busy: "), "{refused}");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 120 * MIB);
    drop(reader);
    at(path, 0).make(&MkfsOptions::default()).unwrap();
}

#[test]
fn in_a_bigger_image_nothing_outside_the_window_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let (offset, bytes) = (3 * MIB, 110 * MIB);
    fs::write(&path, vec![0xa5; 130 << 20]).unwrap();
    at(path.clone(), offset).make(&sized(110)).unwrap();
    let image = fs::read(&path).unwrap();
    let (start, end) = (usize::try_from(offset).unwrap(), usize::try_from(offset + bytes).unwrap());
    assert_eq!(image[start + SUPER..][..8], *b"_BHRfS_M");
    assert!(image[..start].iter().chain(&image[end..]).all(|byte| *byte == 0xa5));
    assert!(image[end - (1 << 20)..end].iter().all(|byte| *byte == 0));
}
