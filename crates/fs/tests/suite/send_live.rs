//! Streams of a volume that is open for writing and in use: they equal those of the same volume
//! opened for reading later, and what they are made of does not change meanwhile.

use crate::volume::{TestVolume, new};
use butternut::{
    Error, FileId, Filesystem, MountOptions, SendOptions, SendProtocol, SnapshotAccess,
};
use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// An output that calls a function before it takes each part.
struct Watched<F> {
    bytes: Vec<u8>,
    before: F,
}

impl<F: FnMut()> Write for Watched<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.before)();
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a volume without the thread that deletes the orphan of a snapshot after its stream: the
/// snapshot's transaction is another one then.
fn open(volume: &TestVolume) -> Filesystem {
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    Filesystem::open_devices(volume.devices(), &options).unwrap()
}

fn snapshot(fs: &Filesystem, source: u64, name: &[u8]) -> u64 {
    fs.snapshot(source, fs.root(), name, SnapshotAccess::ReadOnly).unwrap()
}

fn write(fs: &Filesystem, dir: FileId, name: &str, bytes: &[u8]) {
    let id = fs.create(dir, name.as_bytes(), &new(0o644)).unwrap();
    fs.open_file(id).unwrap().write_at(0, bytes).unwrap();
}

/// Fills a subvolume and changes it: two snapshots, and an orphan that the second one has.
fn fill(fs: &Filesystem) -> (u64, u64, u64) {
    let w = fs.create_subvolume(fs.root(), b"w", &new(0o755)).unwrap();
    let root = FileId::root_of(w);
    for number in 0..200_usize {
        write(fs, root, &format!("f{number}"), &vec![number as u8; 1000 * (number % 40)]);
    }
    let a = snapshot(fs, w, b"a");
    for number in (0..200_usize).step_by(3) {
        fs.unlink(root, format!("f{number}").as_bytes()).unwrap();
        write(fs, root, &format!("g{number}"), &vec![number as u8; 3000 * (number % 40)]);
    }
    let orphan = fs.create(root, b"orphan", &new(0o644)).unwrap();
    let open = fs.open_file(orphan).unwrap();
    open.write_at(0, &vec![1; 100_000]).unwrap();
    fs.unlink(root, b"orphan").unwrap();
    let b = snapshot(fs, w, b"b");
    drop(open);
    (w, a, b)
}

fn of(parent: u64, others: &[u64]) -> SendOptions {
    let options = SendOptions::default().parent(Some(parent)).clone_sources(others.to_vec());
    options.protocol(SendProtocol::Two)
}

/// As by a client that was killed while the trees are read, which writes nothing.
#[test]
fn a_stream_that_is_not_wanted_any_more_ends_before_its_first_byte() {
    const CALLS: u32 = 4;
    let volume = TestVolume::new();
    let fs = open(&volume);
    let (_, a, b) = fill(&fs);
    for parent in [None, Some(a)] {
        let calls = Cell::new(0);
        let goes_on = || {
            calls.set(calls.get() + 1);
            calls.get() < CALLS
        };
        let mut sent = Vec::new();
        let options = SendOptions::default().parent(parent);
        let ended = fs.send_while(b, &options, &mut sent, &goes_on).unwrap_err();
        assert!(matches!(ended, Error::StreamOutput(_)), "{ended:?}");
        assert_eq!(ended.errno(), 125, "ECANCELED");
        assert_eq!((calls.get(), sent.len()), (CALLS, 0), "{parent:?}");
    }
    fs.delete_subvolume(fs.root(), b"b").unwrap();
    fs.close().unwrap();
}

#[test]
fn what_is_being_sent_is_not_deleted_and_does_not_become_writable() {
    let volume = TestVolume::new();
    let fs = open(&volume);
    let (w, a, b) = fill(&fs);
    let c = snapshot(&fs, w, b"c");
    let mut is_first = true;
    let before = || {
        if !std::mem::take(&mut is_first) {
            return;
        }
        for (id, name) in [(a, b"a"), (b, b"b"), (c, b"c")] {
            let deleted = fs.delete_subvolume(fs.root(), name);
            assert!(matches!(deleted, Err(Error::NotPermitted { .. })), "{deleted:?}");
            let changed = fs.set_subvolume_read_only(id, false);
            assert!(matches!(changed, Err(Error::NotPermitted { .. })), "{changed:?}");
            fs.set_subvolume_read_only(id, true).unwrap();
        }
        // Others can be, and the orphan is left.
        let other = snapshot(&fs, b, b"d");
        fs.set_subvolume_read_only(other, false).unwrap();
        fs.delete_subvolume(fs.root(), b"d").unwrap();
        fs.clean_subvolumes().unwrap();
    };
    let mut out = Watched { bytes: Vec::new(), before };
    fs.send(b, &of(a, &[c]), &mut out).unwrap();
    let sent = out.bytes;
    let not_sendable = fs.send(w, &SendOptions::default(), &mut Vec::new());
    assert!(matches!(not_sendable, Err(Error::NotPermitted { .. })), "{not_sendable:?}");
    fs.close().unwrap();
    let reader = Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap();
    let mut later = Vec::new();
    reader.send(b, &of(a, &[c]), &mut later).unwrap();
    assert!(sent == later);
    drop(reader);
    let fs = volume.open();
    fs.set_subvolume_read_only(a, false).unwrap();
    for name in [b"a", b"b", b"c"] {
        fs.delete_subvolume(fs.root(), name).unwrap();
    }
    fs.close().unwrap();
}

/// A stream that fails ends as one that succeeds.
#[test]
fn a_subvolume_whose_stream_has_failed_can_be_deleted() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let (_, a, _) = fill(&fs);
    let mut none: &mut [u8] = &mut [];
    let failed = fs.send(a, &SendOptions::default(), &mut none);
    assert!(matches!(failed, Err(Error::StreamOutput(_))), "{failed:?}");
    fs.delete_subvolume(fs.root(), b"a").unwrap();
    fs.close().unwrap();
}

/// Steps of a load that another thread waits for; `None` when the load has ended.
struct Steps {
    done: Mutex<Option<u64>>,
    next: Condvar,
}

/// Ends a load, also one that panics.
struct Load<'a>(&'a Steps);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        *self.0.done.lock().unwrap() = None;
        self.0.next.notify_all();
    }
}

impl Steps {
    fn step(&self) {
        if let Some(done) = &mut *self.done.lock().unwrap() {
            *done += 1;
        }
        self.next.notify_all();
    }

    fn wait_for_two(&self) {
        let done = self.done.lock().unwrap();
        let Some(until) = done.map(|done| done + 2) else { return };
        drop(self.next.wait_while(done, |done| done.is_some_and(|done| done < until)).unwrap());
    }
}

/// Writes, snapshots, deletions and commits, until the stream has ended.
fn load(fs: &Filesystem, w: u64, steps: &Steps, is_sent: &AtomicBool) {
    let _load = Load(steps);
    let root = FileId::root_of(w);
    let mut number = 0;
    while !is_sent.load(Ordering::Acquire) {
        let name = format!("load{number}");
        write(fs, root, &name, &vec![2; 50_000]);
        let file = fs.open_path(format!("w/f{}", 1 + 3 * (number % 60)).as_bytes()).unwrap();
        file.write_at(0, &vec![u8::try_from(number % 251).unwrap(); 8192]).unwrap();
        fs.snapshot(w, fs.root(), name.as_bytes(), SnapshotAccess::ReadWrite).unwrap();
        fs.delete_subvolume(fs.root(), name.as_bytes()).unwrap();
        fs.unlink(root, name.as_bytes()).unwrap();
        fs.sync().unwrap();
        number += 1;
        steps.step();
    }
}

#[test]
fn a_stream_of_a_volume_in_use_equals_one_of_the_volume_at_rest() {
    let volume = TestVolume::new();
    let fs = open(&volume);
    let (w, a, b) = fill(&fs);
    let c = snapshot(&fs, w, b"c");
    let (steps, is_sent) =
        (Steps { done: Mutex::new(Some(0)), next: Condvar::new() }, AtomicBool::new(false));
    let sent = thread::scope(|scope| {
        let loading = scope.spawn(|| load(&fs, w, &steps, &is_sent));
        let mut parts = 0_u32;
        let before = || {
            // At some places of the stream, space is freed and used again.
            if parts.is_multiple_of(40) {
                steps.wait_for_two();
            }
            parts += 1;
        };
        let mut out = Watched { bytes: Vec::new(), before };
        let sent = fs.send(b, &of(a, &[c]), &mut out).map(|()| out.bytes);
        is_sent.store(true, Ordering::Release);
        loading.join().unwrap();
        sent.unwrap()
    });
    fs.close().unwrap();
    let reader = Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap();
    let mut later = Vec::new();
    reader.send(b, &of(a, &[c]), &mut later).unwrap();
    assert!(sent == later, "{} bytes instead of {}", sent.len(), later.len());
}
