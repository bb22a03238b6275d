//! The end of writing on a filesystem that stays open for a moment, as when the kernel releases the
//! device of a mount: what came before is durable, and nothing is written afterwards.

#![allow(clippy::unwrap_used, dead_code, reason = "tests panic on failure; shared helpers")]

mod volume;

use butternut::server::FilesystemExt;
use std::thread;
use volume::{TestVolume, names, new};

#[test]
fn nothing_is_written_after_the_end_of_writes() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    let gone = fs.create(fs.root(), b"gone", &new(0o644)).unwrap();
    let open = fs.open_file(gone).unwrap();
    fs.unlink(fs.root(), b"gone").unwrap();
    // Syncs of other threads run meanwhile, as those of a control socket do.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| fs.sync().unwrap()));
        }
        file.write_at(0, &vec![7; 1 << 20]).unwrap();
        fs.end_writes().unwrap();
        let written = volume.devices()[0].counters().now();
        let copy = volume.copy();
        assert!(file.write_at(0, b"late").is_err());
        assert!(fs.create(fs.root(), b"late", &new(0o644)).is_err());
        // The last handle would delete the file.
        drop(open);
        fs.end_writes().unwrap();
        fs.sync().unwrap();
        file.sync_all().unwrap_or_default();
        let later = volume.devices()[0].counters().now() - written;
        assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
        let read = copy.open();
        assert_eq!(names(&read, read.root()), ["file"]);
        read.close().unwrap();
        copy.check();
    });
    let written = volume.devices()[0].counters().now();
    drop(file);
    fs.close().unwrap();
    let later = volume.devices()[0].counters().now() - written;
    assert_eq!((later.writes, later.flushes, later.discards), (0, 0, 0));
    volume.check();
}
