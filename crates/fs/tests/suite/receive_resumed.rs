//! Receives that are interrupted and go on: cut at each byte, after a crash, with another stream.

use crate::volume::{TestVolume, names, read};
use butternut::device::{Fault, Rule};
use butternut::format::stream::{Command, StreamVersion};
use butternut::format::uuid::Uuid;
use butternut::receive::{ReceiveReport, ReceiveServing, StreamEnd, StreamReader};
use butternut::server::FilesystemExt;
use butternut::{Error, FileId, Filesystem, MountOptions, NewInode, Result, SnapshotAccess};
use std::any::Any;
use std::cell::Cell;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const FIRST: Uuid = Uuid([1; 16]);
const SECOND: Uuid = Uuid([2; 16]);

fn stream(commands: &[Command<'_>]) -> Vec<u8> {
    let version = StreamVersion::Two;
    let mut bytes = version.encode().to_vec();
    for command in commands {
        command.encode(version, &mut bytes).unwrap();
    }
    bytes
}

fn first(data: &[u8]) -> Vec<u8> {
    stream(&[
        Command::Subvol { path: b"one", uuid: FIRST, ctransid: 7 },
        Command::SetXattr { path: b"", name: b"user.a", value: b"b" },
        Command::Mkfile { path: b"o1", ino: 257 },
        Command::Rename { path: b"o1", to: b"file" },
        Command::Write { path: b"file", offset: 0, data },
        Command::Mkdir { path: b"dir", ino: 258 },
        Command::Link { path: b"dir/hard", existing: b"file" },
        Command::End,
    ])
}

fn second() -> Vec<u8> {
    stream(&[
        Command::Snapshot {
            path: b"two",
            uuid: SECOND,
            ctransid: 9,
            clone_uuid: FIRST,
            clone_ctransid: 7,
        },
        Command::Unlink { path: b"dir/hard" },
        Command::Rename { path: b"file", to: b"dir/file" },
        Command::Truncate { path: b"dir/file", size: 5000 },
        Command::End,
    ])
}

fn resume(filesystem: &Filesystem, bytes: &[u8], report: &mut ReceiveReport) -> Result<()> {
    let mut reader = StreamReader::new(bytes);
    filesystem.receive_resumable(filesystem.root(), &mut reader, StreamEnd::Input, 100, report)
}

/// The message of an error with those of its causes.
fn said(error: &Error) -> String {
    let first: &dyn std::error::Error = error;
    let all = std::iter::successors(Some(first), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn assert_whole(filesystem: &Filesystem, data: &[u8]) {
    assert_eq!(names(filesystem, filesystem.root()), ["one", "two"]);
    assert_eq!(read(filesystem, "one/dir/hard"), data);
    assert_eq!(read(filesystem, "two/dir/file"), data[..5000]);
    let info = |name| {
        let id = filesystem.lookup(filesystem.root(), name).unwrap();
        filesystem.subvolume(id.subvolume).unwrap()
    };
    let (one, two) = (info(b"one"), info(b"two"));
    assert_eq!((one.received_uuid, one.parent_uuid, one.read_only), (FIRST.0, [0; 16], true));
    assert_eq!((two.received_uuid, two.parent_uuid), (SECOND.0, one.uuid));
    assert_eq!(filesystem.subvolumes().unwrap().len(), 2);
    let root = FileId::root_of(one.id);
    assert_eq!(filesystem.xattr_names(root).unwrap(), [b"user.a"]);
}

#[test]
fn a_receive_that_is_cut_anywhere_goes_on() {
    let data: Vec<u8> = (0..9000_u32).map(|at| u8::try_from(at / 3 % 251).unwrap()).collect();
    let whole = [first(&data), second()].concat();
    let (steps, last_steps) =
        if std::env::var_os("BUTTERNUT_LONG").is_some() { (1, 1) } else { (811, 23) };
    let last = (whole.len() - 200..whole.len()).step_by(last_steps);
    for cut in (0..whole.len()).step_by(steps).chain(last) {
        let volume = TestVolume::new();
        let filesystem = volume.open();
        let mut report = ReceiveReport::default();
        let ended = resume(&filesystem, &whole[..cut], &mut report);
        // The input may also end between the two streams.
        assert_eq!(ended.is_ok(), cut == first(&data).len(), "{cut}");
        assert!(report.unfinished.is_none());
        let filesystem = {
            filesystem.close().unwrap();
            volume.check();
            volume.open()
        };
        let done = report.subvolumes.len();
        let mut report = ReceiveReport::default();
        resume(&filesystem, &whole, &mut report).unwrap();
        assert_eq!(report.subvolumes.len() + done, 2, "{cut}");
        let filesystem = volume.reopen(filesystem);
        assert_whole(&filesystem, &data);
    }
}

/// A stream that keeps a copy of the volume, as a crash would leave it, at a byte.
struct Crashing<'a> {
    volume: &'a TestVolume,
    bytes: &'a [u8],
    at: usize,
    read: usize,
    copy: Option<TestVolume>,
}

impl std::io::Read for Crashing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.copy.is_none() && self.read >= self.at {
            self.copy = Some(self.volume.copy());
        }
        let read = std::io::Read::read(&mut self.bytes, buf)?;
        self.read += read;
        Ok(read)
    }
}

#[test]
fn a_receive_goes_on_after_a_crash() {
    let data: Vec<u8> = (0..9000_u32).map(|at| u8::try_from(at / 5 % 251).unwrap()).collect();
    let (first, second) = (first(&data), second());
    let whole = [&first[..], &second].concat();
    let steps = if std::env::var_os("BUTTERNUT_LONG").is_some() { 101 } else { 1501 };
    let borders = [first.len() - 60, first.len() - 5, first.len() + 70, whole.len() - 40];
    for at in (20..whole.len()).step_by(steps).chain(borders) {
        let volume = TestVolume::new();
        let filesystem = volume.open();
        let input = Crashing { volume: &volume, bytes: &whole, at, read: 0, copy: None };
        let mut reader = StreamReader::new(input);
        let (root, mut report) = (filesystem.root(), ReceiveReport::default());
        filesystem
            .receive_resumable(root, &mut reader, StreamEnd::Input, 100, &mut report)
            .unwrap();
        let crashed = reader.into_inner().copy.unwrap();
        drop(filesystem);
        crashed.check();
        let again = crashed.open();
        resume(&again, &whole, &mut ReceiveReport::default()).unwrap();
        let again = crashed.reopen(again);
        assert_whole(&again, &data);
    }
}

#[test]
fn another_stream_does_not_go_on() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let (old, new) = (first(&[1; 6000]), first(&[2; 6000]));
    let mut report = ReceiveReport::default();
    resume(&filesystem, &old[..old.len() - 5], &mut report).unwrap_err();
    assert_eq!(report.resumable, Some(7));
    let error = resume(&filesystem, &new, &mut ReceiveReport::default()).unwrap_err();
    assert!(said(&error).contains("it is another stream"), "{error:?}");
    resume(&filesystem, &old, &mut ReceiveReport::default()).unwrap();
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, filesystem.root()), ["one"]);
    assert_eq!(read(&filesystem, "one/file"), [1; 6000]);
}

/// A subvolume of the name that no checkpoint is related to is left as it is.
#[test]
fn a_subvolume_of_the_name_is_not_deleted() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let bytes = first(&[1; 6000]);
    resume(&filesystem, &bytes[..bytes.len() - 5], &mut ReceiveReport::default()).unwrap_err();
    let root = filesystem.root();
    let own = filesystem.create_subvolume(root, b"one", &crate::volume::new(0o755)).unwrap();
    resume(&filesystem, &bytes, &mut ReceiveReport::default()).unwrap_err();
    assert_eq!(filesystem.lookup(root, b"one").unwrap(), FileId::root_of(own));
    filesystem.delete_subvolume(root, b"one").unwrap();
    resume(&filesystem, &bytes, &mut ReceiveReport::default()).unwrap();
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, filesystem.root()), ["one"]);
}

/// The checkpoint that is made with the subvolume has the effects of one command. It is compared,
/// too: a full stream does not go on from the snapshot of an incremental one, nor the reverse.
#[test]
fn another_first_command_does_not_go_on() {
    let full = stream(&[
        Command::Subvol { path: b"two", uuid: SECOND, ctransid: 9 },
        Command::Mkfile { path: b"only", ino: 300 },
        Command::End,
    ]);
    let increment = second();
    for (interrupted, whole) in [(&increment, &full), (&full, &increment)] {
        let volume = TestVolume::new();
        let filesystem = volume.open();
        resume(&filesystem, &first(&[1; 6000]), &mut ReceiveReport::default()).unwrap();
        // Cut in the second command: what is kept is the command that begins the subvolume.
        let bytes: [u8; 4] = interrupted[17..21].try_into().unwrap();
        let second_command = 17 + 10 + usize::try_from(u32::from_le_bytes(bytes)).unwrap();
        let mut report = ReceiveReport::default();
        resume(&filesystem, &interrupted[..second_command + 3], &mut report).unwrap_err();
        assert_eq!(report.resumable, Some(1));
        // Today the full stream succeeds, and `two` has `file` and `dir` of the parent beside
        // `only`; it is read-only and listed as a complete copy of SECOND.
        let error = resume(&filesystem, whole, &mut ReceiveReport::default()).unwrap_err();
        assert!(said(&error).contains("it is another stream"), "{error:?}");
        resume(&filesystem, interrupted, &mut ReceiveReport::default()).unwrap();
    }
}

/// What refuses the name is found before anything is made: nothing reports a checkpoint of a
/// subvolume that was never begun, and nothing deletes it.
#[test]
fn a_name_that_a_file_has_leaves_no_checkpoint() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    filesystem.create(root, b"one", &crate::volume::new(0o644)).unwrap();
    let mut report = ReceiveReport::default();
    let refused = resume(&filesystem, &first(&[1; 6000]), &mut report).unwrap_err();
    assert!(said(&refused).contains("exists"), "{}", said(&refused));
    assert_eq!(report.resumable, None);
    assert_eq!(names(&filesystem, root), ["one"]);
    assert!(filesystem.subvolumes().unwrap().is_empty());
}

/// An input that waits once before its last `left` bytes.
struct Holding<'a> {
    bytes: &'a [u8],
    left: usize,
    reached: Sender<()>,
    goes_on: Receiver<()>,
}

impl Read for Holding<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.len() == self.left {
            self.left = usize::MAX;
            self.reached.send(()).unwrap();
            self.goes_on.recv().unwrap();
        }
        Read::read(&mut self.bytes, buf)
    }
}

#[test]
fn a_second_receive_deletes_nothing_that_the_first_has_completed() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let (root, bytes) = (filesystem.root(), first(&[7; 9000]));
    let left = stream(&[Command::End]).len() - stream(&[]).len();
    let (reached, is_reached) = channel();
    let (go_on, goes_on) = channel();
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let (filesystem, bytes) = (&filesystem, &bytes[..]);
        scope.spawn(move || {
            let mut reader = StreamReader::new(Holding { bytes, left, reached, goes_on });
            let mut report = ReceiveReport::default();
            let end = StreamEnd::Input;
            // As the process of a mount does for the first client.
            let hide = |_: &[u8]| -> Box<dyn Any> { Box::new(()) };
            let serving = ReceiveServing { hide: &hide, goes_on: &|| true };
            let received = filesystem.receive_serving(
                filesystem.root(),
                &mut reader,
                end,
                Some(1 << 20),
                &mut report,
                serving,
            );
            done.send(received.map(|()| report.subvolumes.len())).unwrap();
        });
        is_reached.recv().unwrap();
        // The second client. Hiding a name may wait for a program that holds the directory, and
        // meanwhile the first one completes.
        let (of_first, is_released) = (Cell::new(None), Cell::new(false));
        let hide = |name: &[u8]| -> Box<dyn Any> {
            if name == b"one" && !is_released.replace(true) {
                go_on.send(()).unwrap();
                of_first.set(Some(is_done.recv().unwrap()));
            }
            Box::new(())
        };
        let serving = ReceiveServing { hide: &hide, goes_on: &|| true };
        let mut report = ReceiveReport::default();
        let second = filesystem.receive_serving(
            root,
            &mut StreamReader::new(bytes),
            StreamEnd::Input,
            Some(1 << 20),
            &mut report,
            serving,
        );
        // The second is refused before it hides the name.
        let of_first = of_first.take().unwrap_or_else(|| {
            go_on.send(()).unwrap();
            is_done.recv().unwrap()
        });
        assert_eq!(of_first.unwrap(), 1, "the first has reported the subvolume");
        drop(second);
    });
    let one = filesystem.lookup(root, b"one").expect("what was received is there");
    assert!(filesystem.subvolume(one.subvolume).unwrap().read_only);
    volume.reopen(filesystem);
}

#[test]
fn no_program_changes_the_first_checkpoint() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let begin = Command::Subvol { path: b"one", uuid: FIRST, ctransid: 7 };
    let whole = first(&[1; 6000]);
    let cut = &whole[..stream(&[begin]).len() + 3];
    let mut report = ReceiveReport::default();
    resume(&filesystem, cut, &mut report).unwrap_err();
    assert_eq!(report.resumable, Some(1));
    let left = filesystem.subvolumes().unwrap().remove(0);
    // As a program of a mount does that walks over everything, or its user.
    let made = filesystem.create(FileId::root_of(left.id), b"intruder", &NewInode::new(0o644));
    drop(made);
    let resumed = resume(&filesystem, &whole, &mut ReceiveReport::default());
    drop(resumed);
    if let Ok(one) = filesystem.lookup(root, b"one") {
        let found = filesystem.lookup(one, b"intruder");
        assert!(found.is_err(), "it is listed as received from FIRST, and has another content");
    }
    assert!(left.read_only, "law 5 of receive/resume.rs");
    volume.reopen(filesystem);
}

/// Returns the only checkpoint in the root directory, and its name.
fn checkpoint(filesystem: &Filesystem) -> (u64, String) {
    let root = filesystem.root();
    let mut found = names(filesystem, root);
    found.retain(|name| name.starts_with(".butternut-receive"));
    assert_eq!(found.len(), 1, "{found:?}");
    let name = found.remove(0);
    (filesystem.lookup(root, name.as_bytes()).unwrap().subvolume, name)
}

/// As the owner of its root directory, which the stream sets, can do on a mount.
#[test]
fn a_checkpoint_that_was_changed_is_not_used_and_not_deleted() {
    let begin = stream(&[Command::Subvol { path: b"one", uuid: FIRST, ctransid: 7 }]);
    let whole = first(&[1; 6000]);
    for (cut, stays_writable) in [
        (begin.len() + 3, false),
        (begin.len() + 3, true),
        (whole.len() - 5, false),
        (whole.len() - 5, true),
    ] {
        let volume = TestVolume::new();
        let filesystem = volume.open();
        resume(&filesystem, &whole[..cut], &mut ReceiveReport::default()).unwrap_err();
        let (id, name) = checkpoint(&filesystem);
        filesystem.set_subvolume_read_only(id, false).unwrap();
        filesystem.create(FileId::root_of(id), b"intruder", &NewInode::new(0o644)).unwrap();
        if !stays_writable {
            filesystem.set_subvolume_read_only(id, true).unwrap();
        }
        // A change counts before its commit, too.
        let filesystem = if stays_writable {
            filesystem
        } else {
            filesystem.close().unwrap();
            volume.open()
        };
        // It begins anew, is interrupted after the same commands, and goes on from them.
        let mut report = ReceiveReport::default();
        resume(&filesystem, &whole[..cut], &mut report).unwrap_err();
        assert_eq!(report.changed, [name.as_bytes()]);
        assert!(report.resumable.is_some());
        let mut report = ReceiveReport::default();
        resume(&filesystem, &whole, &mut report).unwrap();
        assert_eq!(report.changed, [name.as_bytes()]);
        let filesystem = volume.reopen(filesystem);
        let root = filesystem.root();
        assert_eq!(checkpoint(&filesystem), (id, name));
        assert_eq!(filesystem.subvolume(id).unwrap().read_only, !stays_writable);
        filesystem.lookup(FileId::root_of(id), b"intruder").unwrap();
        let one = filesystem.lookup(root, b"one").unwrap();
        assert_eq!(names(&filesystem, one), ["dir", "file"]);
        assert_eq!(read(&filesystem, "one/dir/hard"), [1; 6000]);
    }
}

/// A program of a mount may have a file of it open for writing, and the kernel data of it that the
/// library has not.
#[test]
fn a_checkpoint_that_was_writable_is_not_used_and_not_deleted() {
    for is_read_only_again in [false, true] {
        let volume = TestVolume::new();
        let filesystem = volume.open();
        let whole = first(&[1; 6000]);
        let cut = &whole[..whole.len() - 5];
        resume(&filesystem, cut, &mut ReceiveReport::default()).unwrap_err();
        let (id, name) = checkpoint(&filesystem);
        filesystem.set_subvolume_read_only(id, false).unwrap();
        if is_read_only_again {
            filesystem.set_subvolume_read_only(id, true).unwrap();
        }
        let mut report = ReceiveReport::default();
        resume(&filesystem, &whole, &mut report).unwrap();
        assert_eq!(report.changed, [name.as_bytes()]);
        assert_eq!(checkpoint(&filesystem), (id, name));
        let is_writable = !filesystem.subvolume(id).unwrap().read_only;
        assert_eq!(is_writable, !is_read_only_again, "the receive has changed it");
        let filesystem = volume.reopen(filesystem);
        let one = filesystem.lookup(filesystem.root(), b"one").unwrap();
        assert_eq!(names(&filesystem, one), ["dir", "file"]);
    }
}

/// A program of a mount can do it with a descriptor that it has opened before.
#[test]
fn a_checkpoint_that_becomes_writable_during_the_receive_is_not_deleted() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let whole = first(&[1; 6000]);
    resume(&filesystem, &whole[..whole.len() - 5], &mut ReceiveReport::default()).unwrap_err();
    let (id, name) = checkpoint(&filesystem);
    let left = stream(&[Command::End]).len() - stream(&[]).len();
    let (reached, is_reached) = channel();
    let (go_on, goes_on) = channel();
    let mut report = ReceiveReport::default();
    std::thread::scope(|scope| {
        let receive = scope.spawn(|| {
            let mut reader = StreamReader::new(Holding { bytes: &whole, left, reached, goes_on });
            let (root, end) = (filesystem.root(), StreamEnd::Input);
            filesystem.receive_resumable(root, &mut reader, end, 1 << 20, &mut report)
        });
        is_reached.recv().unwrap();
        filesystem.set_subvolume_read_only(id, false).unwrap();
        filesystem.create(FileId::root_of(id), b"own", &NewInode::new(0o644)).unwrap();
        go_on.send(()).unwrap();
        receive.join().unwrap().unwrap();
    });
    assert_eq!(report.subvolumes.len(), 1);
    assert_eq!(report.changed, [name.as_bytes()]);
    let filesystem = volume.reopen(filesystem);
    assert_eq!(checkpoint(&filesystem), (id, name));
    filesystem.lookup(FileId::root_of(id), b"own").unwrap();
}

/// A user that may create in the directory can make a snapshot under the name of a checkpoint,
/// which another interrupted receive shows, as it shows the mark.
#[test]
fn a_snapshot_under_the_name_of_a_checkpoint_is_none() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let whole = first(&[1; 6000]);
    let cut = &whole[..whole.len() - 5];
    resume(&filesystem, cut, &mut ReceiveReport::default()).unwrap_err();
    let (id, name) = checkpoint(&filesystem);
    let mark = Uuid(filesystem.subvolume(id).unwrap().received_uuid);
    assert!(!mark.is_nil());
    filesystem.delete_subvolume(root, name.as_bytes()).unwrap();
    let elsewhere = filesystem.mkdir(root, b"elsewhere", &NewInode::new(0o755)).unwrap();
    let own = filesystem.create_subvolume(elsewhere, b"own", &NewInode::new(0o755)).unwrap();
    filesystem.create(FileId::root_of(own), b"evil", &NewInode::new(0o644)).unwrap();
    // The sender of a stream chooses the UUID.
    let marked = stream(&[
        Command::Subvol { path: b"marked", uuid: mark, ctransid: 7 },
        Command::Mkfile { path: b"evil", ino: 257 },
        Command::End,
    ]);
    let end = StreamEnd::Input;
    filesystem.receive(elsewhere, &mut StreamReader::new(&marked[..]), end).unwrap();
    let marked = filesystem.lookup(elsewhere, b"marked").unwrap().subvolume;
    for source in [own, marked] {
        let access = SnapshotAccess::ReadOnly;
        let forged = filesystem.snapshot(source, root, name.as_bytes(), access).unwrap();
        for bytes in [cut, &whole] {
            let mut report = ReceiveReport::default();
            drop(resume(&filesystem, bytes, &mut report));
            assert_eq!(report.changed, [name.as_bytes()]);
            let found = filesystem.lookup(root, name.as_bytes()).unwrap();
            assert_eq!(found.subvolume, forged, "it may be a backup of its user");
        }
        let one = filesystem.lookup(root, b"one").unwrap();
        assert_eq!(names(&filesystem, one), ["dir", "file"]);
        filesystem.delete_subvolume(root, b"one").unwrap();
        filesystem.delete_subvolume(root, name.as_bytes()).unwrap();
    }
    volume.reopen(filesystem);
}

/// Other threads commit meanwhile, and the cleaner deletes a large file that the stream removes.
#[test]
fn checkpoints_that_are_made_beside_other_writers_are_used() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let (root, data, large) = (filesystem.root(), [3; 4000], vec![4; 48 << 10]);
    let mut commands = vec![
        Command::Subvol { path: b"one", uuid: FIRST, ctransid: 7 },
        Command::Mkfile { path: b"large", ino: 257 },
    ];
    let write =
        |number: u64| Command::Write { path: b"large", offset: number * (48 << 10), data: &large };
    commands.extend((0..200).map(write));
    commands.push(Command::Unlink { path: b"large" });
    commands.push(Command::Mkfile { path: b"file", ino: 258 });
    let write = |number: u64| Command::Write { path: b"file", offset: number * 4000, data: &data };
    commands.extend((0..40).map(write));
    commands.push(Command::End);
    let whole = stream(&commands);
    let is_done = AtomicBool::new(false);
    let unlink = stream(&commands[..203]).len();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("other{}", number % 8);
                drop(filesystem.create(root, name.as_bytes(), &NewInode::new(0o644)));
                filesystem.sync().unwrap();
            }
        });
        for cut in [100 * (48 << 10), unlink, unlink + 30, whole.len() - 5_000, whole.len() - 5] {
            let mut report = ReceiveReport::default();
            let mut reader = StreamReader::new(&whole[..cut]);
            let end = StreamEnd::Input;
            filesystem.receive_resumable(root, &mut reader, end, 1 << 20, &mut report).unwrap_err();
            assert!(report.changed.is_empty(), "{cut}");
            assert!(report.resumable.is_some(), "{cut}");
            let (id, _) = checkpoint(&filesystem);
            let info = filesystem.subvolume(id).unwrap();
            assert!(info.changed_generation <= info.created_generation, "{cut}: {info:?}");
        }
        let mut report = ReceiveReport::default();
        resume(&filesystem, &whole, &mut report).unwrap();
        assert!(report.changed.is_empty());
        is_done.store(true, Ordering::Relaxed);
    });
    let one = filesystem.lookup(root, b"one").unwrap();
    assert_eq!(names(&filesystem, one), ["file"]);
    assert_eq!(filesystem.subvolumes().unwrap().len(), 1);
    volume.reopen(filesystem);
}

/// A receive completes a subvolume inside a commit: other threads see it before that is on disk.
#[test]
fn a_subvolume_counts_as_present_when_it_is_durable() {
    const SUPER_BLOCK: u64 = 64 << 10;
    let volume = TestVolume::new();
    let options = MountOptions::default().commit_seconds(0);
    let (device, filesystem) = volume.open_faulty(&options);
    let bytes = first(&[7; 9000]);
    let left = stream(&[Command::End]).len() - stream(&[]).len();
    let (reached, is_reached) = channel();
    let (go_on, goes_on) = channel();
    let after = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reader = StreamReader::new(Holding { bytes: &bytes, left, reached, goes_on });
            filesystem.receive(filesystem.root(), &mut reader, StreamEnd::Input).unwrap();
        });
        is_reached.recv().unwrap();
        device.add(Rule::at(SUPER_BLOCK..SUPER_BLOCK + 4096, Fault::HeldWrite));
        go_on.send(()).unwrap();
        device.wait_for_held_writes(1);
        scope.spawn(|| {
            // A call that does not wait returns before this.
            std::thread::sleep(Duration::from_millis(300));
            device.clear();
        });
        let mut report = ReceiveReport::default();
        resume(&filesystem, &bytes, &mut report).unwrap();
        assert_eq!(report.present, 1);
        volume.copy()
    });
    let crashed = after.open();
    let one = crashed.lookup(crashed.root(), b"one").unwrap();
    assert_eq!(crashed.subvolume(one.subvolume).unwrap().received_uuid, FIRST.0);
    drop(crashed);
    volume.reopen(filesystem);
}
