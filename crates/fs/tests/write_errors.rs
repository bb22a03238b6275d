//! Devices that fail while they are written to: what was promised stays, nothing more is written,
//! and what can be read is read.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(dead_code, reason = "what volumes of tests share, not every test uses")]

mod volume;

use butternut::device::{Device, Fault, FaultyDevice, Rule};
use butternut::{Filesystem, MountOptions, RenameFlags, SetAttributes, SetXattr};
use std::error::Error;
use std::sync::Arc;
use volume::{TestVolume, names, new};

fn faulty(volume: &TestVolume) -> (Arc<FaultyDevice>, Filesystem) {
    let device = Arc::new(FaultyDevice::new(volume.devices().remove(0), 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = MountOptions { read_only: false, ..MountOptions::default() };
    (device, Filesystem::open_devices(devices, &options).unwrap())
}

fn causes(error: &dyn Error) -> String {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn after_a_commit_that_failed_nothing_is_written_and_all_is_read() {
    for fault in [Fault::WriteError, Fault::FlushError] {
        let volume = TestVolume::new();
        let (device, fs) = faulty(&volume);
        let root = fs.root();
        let id = fs.create(root, b"kept", &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, b"kept").unwrap();
        fs.sync().unwrap();
        fs.create(root, b"lost", &new(0o644)).unwrap();
        device.add(Rule::everywhere(fault));
        assert_eq!(fs.sync().unwrap_err().errno(), 5);
        device.clear();

        assert!(!fs.is_writable());
        let error = fs.create(root, b"more", &new(0o644)).unwrap_err();
        assert_eq!(error.errno(), 30, "{error:?}");
        assert!(causes(&error).contains("memory: cannot "), "{}", causes(&error));
        let errnos = [
            fs.unlink(root, b"kept").unwrap_err().errno(),
            fs.rename((root, b"kept"), (root, b"x"), RenameFlags::default()).unwrap_err().errno(),
            fs.set_attributes(id, &SetAttributes::size(0)).unwrap_err().errno(),
            fs.set_xattr(id, b"user.a", b"b", SetXattr::Either).unwrap_err().errno(),
            file.write_at(0, b"x").unwrap_err().errno(),
            fs.sync().unwrap_err().errno(),
        ];
        assert_eq!(errnos, [30; 6]);
        let mut bytes = [0; 8];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), 4);
        assert_eq!(names(&fs, root), ["kept", "lost"]);

        drop(file);
        drop(fs);
        volume.check();
        let fs = volume.open();
        assert_eq!(names(&fs, root), ["kept"]);
        volume.reopen(fs);
    }
}

#[test]
fn data_that_cannot_be_written_is_told_to_who_syncs_its_file() {
    let volume = TestVolume::new();
    let (device, fs) = faulty(&volume);
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &[7; 8192]).unwrap();
    fs.sync().unwrap();
    file.write_at(0, &[8; 8192]).unwrap();
    device.add(Rule::everywhere(Fault::WriteError));
    assert_eq!(file.sync_all().unwrap_err().errno(), 5);
    device.clear();
    let mut bytes = [0; 8192];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8192], "the range reads as before");
    drop((file, fs));
    volume.check();
}
