//! Receiving send streams that the tests make: complete ones, damaged ones, and ones that want
//! what no stream may have. The volume is in memory, and checked when it is closed.

use crate::volume::{TestVolume, failing_data, names, new, place, read};
use butternut::device::{Fault, FaultyDevice, Rule};
use butternut::format::inode::{DeviceNumber, Time};
use butternut::format::stream::{Command, StreamCompression, StreamVersion};
use butternut::format::uuid::Uuid;
use butternut::receive::{
    ReceiveReport, ReceiveServing, ReceivedSubvolume, StreamEnd, StreamReader,
};
use butternut::server::FilesystemExt;
use butternut::{Error, FileId, FileKind, Filesystem, Follow, MountOptions, Result, SetXattr};

const SOURCE: Uuid = Uuid([1; 16]);
const SECOND: Uuid = Uuid([2; 16]);

fn stream(version: StreamVersion, commands: &[Command<'_>]) -> Vec<u8> {
    let mut bytes = version.encode().to_vec();
    for command in commands {
        command.encode(version, &mut bytes).unwrap();
    }
    bytes
}

fn receive(filesystem: &Filesystem, bytes: &[u8]) -> Result<Vec<ReceivedSubvolume>> {
    filesystem.receive(filesystem.root(), &mut StreamReader::new(bytes), StreamEnd::Input)
}

/// Receives commands of version 2, after a `SUBVOL` and before an `END`. Returns the error's text.
fn refusal(filesystem: &Filesystem, commands: &[Command<'_>]) -> String {
    let mut all = vec![Command::Subvol { path: b"sub", uuid: SOURCE, ctransid: 7 }];
    all.extend(commands);
    all.push(Command::End);
    let error = receive(filesystem, &stream(StreamVersion::Two, &all)).unwrap_err();
    assert_eq!(filesystem.subvolumes().unwrap(), [], "the incomplete subvolume is deleted");
    text(&error)
}

fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn time(secs: i64) -> Time {
    Time { secs, nanos: 5 }
}

/// A full stream with one of each command that a full stream may have.
fn full() -> Vec<Command<'static>> {
    let mode = 0o644;
    vec![
        Command::Subvol { path: b"one", uuid: SOURCE, ctransid: 7 },
        Command::Chmod { path: b"", mode: 0o750 },
        Command::SetXattr { path: b"", name: b"btrfs.compression", value: b"zstd" },
        Command::Mkdir { path: b"o257-7-0", ino: 257 },
        Command::Rename { path: b"o257-7-0", to: b"dir" },
        Command::Mkfile { path: b"o258-7-0", ino: 258 },
        Command::Rename { path: b"o258-7-0", to: b"dir/file" },
        Command::Link { path: b"hard", existing: b"dir/file" },
        Command::Write { path: b"dir/file", offset: 0, data: b"contents" },
        Command::Write { path: b"dir/file", offset: 8, data: b" and more" },
        Command::Truncate { path: b"dir/file", size: 12 },
        Command::SetXattr { path: b"dir/file", name: b"user.name", value: b"value" },
        Command::Chown { path: b"dir/file", uid: 12, gid: 34 },
        Command::Chmod { path: b"dir/file", mode: 0o4755 },
        Command::Utimes {
            path: b"dir/file",
            atime: time(-9),
            mtime: time(99),
            ctime: time(9),
            otime: None,
        },
        Command::Symlink { path: b"link", ino: 259, target: b"/etc/passwd" },
        Command::Mknod {
            path: b"node",
            ino: 260,
            device: DeviceNumber::new(300, 70000),
            mode: FileKind::CharDevice.mode_bits() | 0o600,
        },
        Command::Mkfifo { path: b"fifo", ino: 261, device: DeviceNumber::default(), mode },
        Command::Mksock { path: b"socket", ino: 262, device: DeviceNumber::default(), mode },
        Command::Mkfile { path: b"clone", ino: 263 },
        Command::Clone {
            path: b"clone",
            offset: 4096,
            len: 8,
            clone_uuid: SOURCE,
            clone_ctransid: 7,
            clone_path: b"dir/file",
            clone_offset: 4,
        },
        Command::End,
    ]
}

/// The addresses of the first `count` blocks of a file.
fn places(filesystem: &Filesystem, path: &str, count: u64) -> Vec<u64> {
    let file = filesystem.open_path(path.as_bytes()).unwrap();
    (0..count).map(|block| place(&file, 4096 * block)).collect()
}

/// Clones from another subvolume and from the received one, with whole blocks and without.
#[test]
fn clones_of_whole_blocks_are_shared() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let byte = |at: u32| u8::try_from(at / 7 % 251).unwrap();
    let data: Vec<u8> = (0..5 * 4096 + 100).map(byte).collect();
    let source = [
        Command::Subvol { path: b"one", uuid: SOURCE, ctransid: 7 },
        Command::Mkfile { path: b"file", ino: 257 },
        Command::Write { path: b"file", offset: 0, data: &data },
        Command::End,
    ];
    receive(&filesystem, &stream(StreamVersion::One, &source)).unwrap();
    let clone = |path, uuid, from: &'static [u8], from_offset, len| Command::Clone {
        path,
        offset: 0,
        len,
        clone_uuid: uuid,
        clone_ctransid: if uuid == SOURCE { 7 } else { 9 },
        clone_path: from,
        clone_offset: from_offset,
    };
    let bytes = u64::try_from(data.len()).unwrap();
    let clones = [
        Command::Subvol { path: b"two", uuid: SECOND, ctransid: 9 },
        Command::Mkfile { path: b"all", ino: 257 },
        clone(b"all", SOURCE, b"file", 0, bytes),
        Command::Mkfile { path: b"own", ino: 258 },
        clone(b"own", SECOND, b"all", 4096, 8192),
        Command::Mkfile { path: b"part", ino: 259 },
        clone(b"part", SOURCE, b"file", 100, 8192),
        Command::Chmod { path: b"all", mode: 0o4755 },
        Command::End,
    ];
    receive(&filesystem, &stream(StreamVersion::One, &clones)).unwrap();
    let filesystem = volume.reopen(filesystem);
    let file = places(&filesystem, "one/file", 6);
    assert_eq!(places(&filesystem, "two/all", 6), file);
    assert_eq!(places(&filesystem, "two/own", 2), file[1..3]);
    assert!(places(&filesystem, "two/part", 2).iter().all(|place| !file.contains(place)));
    assert_eq!(read(&filesystem, "two/all"), data);
    assert_eq!(read(&filesystem, "two/own"), data[4096..3 * 4096]);
    assert_eq!(read(&filesystem, "two/part"), data[100..100 + 8192]);
}

#[test]
fn a_full_stream_and_one_that_continues_it() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let received = receive(&filesystem, &stream(StreamVersion::One, &full())).unwrap();
    assert_eq!((received[0].id, received[0].is_snapshot), (256, false));
    let info = filesystem.subvolume(256).unwrap();
    assert_eq!((info.received_uuid, info.sent_generation, info.read_only), ([1; 16], 7, true));
    assert!(info.received_generation > 0 && info.received.secs > 0);
    assert_eq!(read(&filesystem, "one/hard"), b"contents and");
    assert_eq!(read(&filesystem, "one/clone")[4096..], *b"ents and");
    let resolve = |path: &str| filesystem.resolve(path.as_bytes(), Follow::NotLast).unwrap();
    let stat = filesystem.stat(resolve("one/dir/file")).unwrap();
    assert_eq!((stat.mode & 0o7777, stat.uid, stat.gid, stat.nlink), (0o4755, 12, 34, 2));
    assert_eq!((stat.atime.secs, stat.mtime.secs), (-9, 99));
    assert_eq!(filesystem.xattr_names(resolve("one/dir/file")).unwrap(), [b"user.name"]);
    assert_eq!(filesystem.stat(resolve("one/node")).unwrap().rdev, (300, 70000));
    let second = [
        Command::Snapshot {
            path: b"two",
            uuid: SECOND,
            ctransid: 9,
            clone_uuid: SOURCE,
            clone_ctransid: 7,
        },
        Command::Unlink { path: b"hard" },
        Command::Rename { path: b"dir", to: b"renamed" },
        Command::RemoveXattr { path: b"renamed/file", name: b"user.name" },
        Command::Fallocate { path: b"renamed/file", mode: 3, offset: 0, len: 3 },
        Command::Mkdir { path: b"empty", ino: 264 },
        Command::Rmdir { path: b"empty" },
        Command::Clone {
            path: b"renamed/file",
            offset: 12,
            len: 12,
            clone_uuid: SOURCE,
            clone_ctransid: 7,
            clone_path: b"dir/file",
            clone_offset: 0,
        },
        Command::End,
    ];
    let received = receive(&filesystem, &stream(StreamVersion::Two, &second)).unwrap();
    assert_eq!((received[0].id, received[0].is_snapshot), (257, true));
    let filesystem = volume.reopen(filesystem);
    let info = filesystem.subvolume(257).unwrap();
    assert_eq!((info.received_uuid, info.sent_generation), ([2; 16], 9));
    assert_eq!(info.parent_uuid, filesystem.subvolume(256).unwrap().uuid);
    assert_eq!(read(&filesystem, "two/renamed/file"), b"\0\0\0tents andcontents and");
    let root = FileId::root_of(257);
    assert_eq!(names(&filesystem, root), ["clone", "fifo", "link", "node", "renamed", "socket"]);
}

#[test]
fn streams_follow_one_another_and_end_where_they_are_told_to() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let empty = |path, uuid| {
        let subvol = Command::Subvol { path, uuid, ctransid: 7 };
        stream(StreamVersion::Two, &[subvol, Command::End])
    };
    let both = [empty(b"a", SOURCE), empty(b"b", SECOND)].concat();
    let root = filesystem.root();
    let first = filesystem.receive(root, &mut StreamReader::new(&*both), StreamEnd::Command);
    assert_eq!(first.unwrap().len(), 1);
    filesystem.delete_subvolume(root, b"a").unwrap();
    assert_eq!(receive(&filesystem, &both).unwrap().len(), 2);
    // With `btrfs send -e`, subvolumes of one stream follow one another.
    let one = [
        Command::Subvol { path: b"c", uuid: Uuid([3; 16]), ctransid: 7 },
        Command::Mkfile { path: b"f", ino: 257 },
        Command::Subvol { path: b"d", uuid: Uuid([4; 16]), ctransid: 7 },
        Command::End,
    ];
    assert_eq!(receive(&filesystem, &stream(StreamVersion::One, &one)).unwrap().len(), 2);
    let error = receive(&filesystem, b"").unwrap_err();
    assert_eq!(
        text(&error),
        "header of the stream at byte 0: reading: the stream is refused: bytes: have 0, want 17, \
         the input ends"
    );
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, FileId::root_of(5)), ["a", "b", "c", "d"]);
}

/// A stream that keeps a copy of the volume, as a crash would leave it, before its last command.
struct CopyBeforeEnd<'a> {
    volume: &'a TestVolume,
    parts: Vec<&'a [u8]>,
    copy: Option<TestVolume>,
}

impl std::io::Read for CopyBeforeEnd<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let Some(part) = self.parts.first_mut() else { return Ok(0) };
        if part.is_empty() {
            self.parts.remove(0);
            self.copy.get_or_insert_with(|| self.volume.copy());
            return self.read(buf);
        }
        std::io::Read::read(part, buf)
    }
}

#[test]
fn a_crash_before_the_end_leaves_no_parent() {
    const END_BYTES: usize = 10;
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let bytes = stream(StreamVersion::Two, &full());
    let (commands, end) = bytes.split_at(bytes.len() - END_BYTES);
    let input = CopyBeforeEnd { volume: &volume, parts: vec![commands, end], copy: None };
    let mut input = StreamReader::new(input);
    filesystem.receive(filesystem.root(), &mut input, StreamEnd::Input).unwrap();
    let crashed = input.into_inner().copy.unwrap();
    crashed.check();
    let again = crashed.open();
    let info = &again.subvolumes().unwrap()[0];
    assert_eq!((info.received_uuid, info.read_only), ([0; 16], false));
    let snapshot = Command::Snapshot {
        path: b"two",
        uuid: SECOND,
        ctransid: 9,
        clone_uuid: SOURCE,
        clone_ctransid: 7,
    };
    assert!(receive(&again, &stream(StreamVersion::One, &[snapshot, Command::End])).is_err());
    drop(again);
    let whole = volume.copy();
    drop(filesystem);
    whole.check();
    let again = whole.open();
    let info = &again.subvolumes().unwrap()[0];
    assert_eq!((info.received_uuid, info.read_only), ([1; 16], true));
}

/// A rename over another file writes the data back, as other threads can at any time, and succeeds
/// although the data is lost.
#[test]
fn a_subvolume_whose_data_was_lost_is_not_received() {
    for seconds in [0, 3600] {
        let volume = TestVolume::new();
        let options = MountOptions::default().commit_seconds(seconds);
        let (device, filesystem) = volume.open_faulty(&options);
        let data = vec![7; 65536];
        let commands = [
            Command::Mkfile { path: b"a", ino: 257 },
            Command::Mkfile { path: b"b", ino: 258 },
            Command::Write { path: b"a", offset: 0, data: &data },
            Command::Rename { path: b"a", to: b"b" },
        ];
        let rule = device.add(failing_data(&filesystem));
        let why = refusal(&filesystem, &commands);
        assert!(why.contains("Input/output error"), "{why}");
        device.remove(rule);
        // The subvolume has gone, but no sync has returned the loss.
        assert_eq!(filesystem.sync().unwrap_err().errno(), 5);
        filesystem.sync().unwrap();
        let whole = [
            &[Command::Subvol { path: b"sub", uuid: SOURCE, ctransid: 7 }][..],
            &commands,
            &[Command::End],
        ];
        receive(&filesystem, &stream(StreamVersion::Two, &whole.concat())).unwrap();
        let filesystem = volume.reopen(filesystem);
        assert_eq!(read(&filesystem, "sub/b"), data);
    }
}

/// What is complete stays, also if a later stream is damaged.
#[test]
fn a_stream_that_fails_reports_the_subvolumes_before_it() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let whole = stream(StreamVersion::Two, &full());
    let input = [&whole, &b"no stream"[..]].concat();
    let (mut input, mut report) = (StreamReader::new(&*input), ReceiveReport::default());
    let root = filesystem.root();
    let error =
        filesystem.receive_with(root, &mut input, StreamEnd::Input, &mut report).unwrap_err();
    assert!(text(&error).contains("bytes: have 9, want 17"), "{}", text(&error));
    let made: Vec<&[u8]> = report.subvolumes.iter().map(|made| &made.name[..]).collect();
    assert_eq!(made, [b"one"]);
    assert!(report.unfinished.is_none());
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, FileId::root_of(5)), ["one"]);
}

/// An incomplete subvolume that cannot be deleted stays, which the caller learns.
#[test]
fn a_stream_that_fails_reports_what_cannot_be_deleted() {
    let volume = TestVolume::new();
    let (device, filesystem) = volume.open_faulty(&MountOptions::default());
    let commands = [
        Command::Subvol { path: b"sub", uuid: SOURCE, ctransid: 7 },
        Command::Mkfile { path: b"f", ino: 257 },
    ];
    let bytes = stream(StreamVersion::Two, &commands);
    // The stream ends without an end command, and the deletion cannot be committed.
    let input = FailWhenRead { device: &device, bytes: &bytes };
    let (mut input, mut report) = (StreamReader::new(input), ReceiveReport::default());
    let root = filesystem.root();
    let error =
        filesystem.receive_with(root, &mut input, StreamEnd::Input, &mut report).unwrap_err();
    assert!(text(&error).contains("ends without an end command"), "{}", text(&error));
    assert_eq!(report.subvolumes, []);
    assert_eq!(report.unfinished.unwrap().name, b"sub");
}

/// A stream at whose end all writes to the device begin to fail.
struct FailWhenRead<'a> {
    device: &'a FaultyDevice,
    bytes: &'a [u8],
}

impl std::io::Read for FailWhenRead<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() {
            self.device.add(Rule::everywhere(Fault::WriteError));
        }
        std::io::Read::read(&mut self.bytes, buf)
    }
}

#[test]
fn new_inodes_inherit_nothing() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let acl = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\x01\0\0\0\
        \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    let commands = [
        Command::Subvol { path: b"sub", uuid: SOURCE, ctransid: 7 },
        Command::SetXattr { path: b"", name: b"system.posix_acl_default", value: acl },
        Command::SetXattr { path: b"", name: b"btrfs.compression", value: b"zstd" },
        Command::Mkfile { path: b"f", ino: 257 },
        Command::Mkdir { path: b"d", ino: 258 },
        Command::End,
    ];
    receive(&filesystem, &stream(StreamVersion::Two, &commands)).unwrap();
    // The directory that the subvolume is made in has the same attributes.
    let root = filesystem.root();
    filesystem.set_xattr(root, b"system.posix_acl_default", acl, SetXattr::Either).unwrap();
    filesystem.set_xattr(root, b"btrfs.compression", b"zstd", SetXattr::Either).unwrap();
    let commands = [
        Command::Subvol { path: b"bare", uuid: SECOND, ctransid: 7 },
        Command::Mkfile { path: b"f", ino: 257 },
        Command::End,
    ];
    receive(&filesystem, &stream(StreamVersion::Two, &commands)).unwrap();
    for path in [&b"sub/f"[..], b"sub/d", b"bare", b"bare/f"] {
        let id = filesystem.resolve(path, Follow::Last).unwrap();
        assert_eq!(filesystem.xattr_names(id).unwrap(), Vec::<Vec<u8>>::new());
    }
    volume.reopen(filesystem);
}

/// Makes a stream of an `ENCODED_WRITE` of these values.
fn encoded(data: &[u8], [bytes, offset, part]: [u64; 3]) -> [Command<'_>; 2] {
    [
        Command::Mkfile { path: b"f", ino: 257 },
        Command::EncodedWrite {
            path: b"f",
            offset: 0,
            unencoded_file_len: part,
            unencoded_len: bytes,
            unencoded_offset: offset,
            compression: StreamCompression::Zstd,
            encryption: 0,
            data,
        },
    ]
}

#[test]
fn compressed_data_is_bounded_and_checked() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let refused = |data: &[u8], sizes| refusal(&filesystem, &encoded(data, sizes));
    assert!(refused(b"", [1 << 40, 0, 1]).ends_with("have 1099511627776, want at most 131072"));
    assert!(refused(b"", [4096, 4000, 97]).ends_with("have 4000 + 97, want 4096"));
    assert!(refused(b"", [4096, u64::MAX, 2]).ends_with("+ 2, want 4096"));
    assert!(refused(b"no frame of zstd", [4096, 0, 4096]).contains("zstd"));
    let command = Command::EncodedWrite {
        path: b"f",
        offset: 0,
        unencoded_file_len: 1,
        unencoded_len: 1,
        unencoded_offset: 0,
        compression: StreamCompression::Lzo64K,
        encryption: 0,
        data: b"",
    };
    let refused = refusal(&filesystem, &[Command::Mkfile { path: b"f", ino: 257 }, command]);
    assert!(
        refused.ends_with("COMPRESSION: have Lzo64K, want a sector size of 4 KiB"),
        "{refused}"
    );
    volume.reopen(filesystem);
}

#[test]
fn no_command_leaves_its_subvolume() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    let outside = filesystem.create(root, b"outside", &new(0o644)).unwrap();
    let dir = filesystem.mkdir(root, b"dir", &new(0o755)).unwrap();
    let link = Command::Symlink { path: b"up", ino: 257, target: b".." };
    let absolute = Command::Symlink { path: b"top", ino: 258, target: b"/dir" };
    let evil: [&[u8]; 8] = [
        b"../outside",
        b"/outside",
        b"a/../../outside",
        b"./outside",
        b"up/outside",
        b"top/x",
        b"",
        b"x\0y",
    ];
    for path in evil {
        let commands = [
            Command::Mkfile { path, ino: 259 },
            Command::Mkdir { path, ino: 259 },
            Command::Rename { path: b"up", to: path },
            Command::Link { path, existing: b"up" },
            Command::Unlink { path },
            Command::Rmdir { path },
            Command::Write { path, offset: 0, data: b"x" },
            Command::Symlink { path, ino: 259, target: b"x" },
        ];
        for command in commands {
            let refused = refusal(&filesystem, &[link, absolute, command]);
            assert!(refused.starts_with("command 4 at byte "), "{refused}");
        }
    }
    // A write through a symlink does not reach its target, and a symlink has no data of its own.
    let write = Command::Write { path: b"up", offset: 0, data: b"x" };
    assert!(refusal(&filesystem, &[link, write]).contains("wrong kind of file"));
    for path in [&b"a/b"[..], b"..", b"", b"/a", b"x\0y"] {
        let subvol = Command::Subvol { path, uuid: SECOND, ctransid: 7 };
        let bytes = stream(StreamVersion::Two, &[subvol, Command::End]);
        let refused = text(&receive(&filesystem, &bytes).unwrap_err());
        assert!(refused.starts_with("command 1 at byte 17: subvol "), "{refused}");
    }
    assert_eq!(names(&filesystem, root), ["dir", "outside"]);
    assert_eq!(names(&filesystem, dir), Vec::<String>::new());
    assert_eq!(filesystem.stat(outside).unwrap().size, 0);
    volume.reopen(filesystem);
}

#[test]
fn what_cannot_be_applied_is_refused_with_its_reason() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let refused = |command| refusal(&filesystem, &[command]);
    let update = Command::UpdateExtent { path: b"f", offset: 0, len: 1 };
    assert!(refused(update).contains("have no data (btrfs send --no-data)"));
    let node = Command::Mknod { path: b"n", ino: 257, device: DeviceNumber::default(), mode: 0 };
    assert!(refused(node).ends_with("MODE: have 0o0, want the type of a device"));
    assert!(refused(Command::Unlink { path: b"f" }).ends_with("no such file or directory"));
    let snapshot = Command::Snapshot {
        path: b"two",
        uuid: SECOND,
        ctransid: 9,
        clone_uuid: Uuid([9; 16]),
        clone_ctransid: 7,
    };
    let bytes = stream(StreamVersion::One, &[snapshot, Command::End]);
    let error = text(&receive(&filesystem, &bytes).unwrap_err());
    let want = "command 1 at byte 17: snapshot two: the stream is refused: CLONE_UUID: have no \
        such subvolume, want a read-only subvolume with the UUID or received UUID \
        09090909-0909-0909-0909-090909090909";
    assert_eq!(error, want);
    let write = Command::Unlink { path: b"f" };
    let error = receive(&filesystem, &stream(StreamVersion::One, &[write])).unwrap_err();
    assert!(text(&error).ends_with("want subvol or snapshot before all other commands"));
    // A parent that was changed after it was received is not one any more.
    receive(&filesystem, &stream(StreamVersion::One, &full())).unwrap();
    filesystem.set_subvolume_read_only(filesystem.subvolumes().unwrap()[0].id, false).unwrap();
    let snapshot = Command::Snapshot {
        path: b"two",
        uuid: SECOND,
        ctransid: 9,
        clone_uuid: SOURCE,
        clone_ctransid: 7,
    };
    assert!(receive(&filesystem, &stream(StreamVersion::One, &[snapshot])).is_err());
    let subvol = Command::Subvol { path: b"one", uuid: SECOND, ctransid: 9 };
    let error = receive(&filesystem, &stream(StreamVersion::One, &[subvol])).unwrap_err();
    assert!(matches!(error, Error::Receive { source, .. } if matches!(*source, Error::Exists)));
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, FileId::root_of(5)), ["one"]);
}

#[test]
fn a_parent_is_found_by_the_transaction_that_was_sent() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    for (path, ctransid, name) in [(&b"old"[..], 5, b"a"), (b"new", 7, b"b"), (b"newer", 9, b"c")] {
        let commands = [
            Command::Subvol { path, uuid: SOURCE, ctransid },
            Command::Mkfile { path: name, ino: 257 },
            Command::End,
        ];
        receive(&filesystem, &stream(StreamVersion::One, &commands)).unwrap();
    }
    let snapshot = Command::Snapshot {
        path: b"two",
        uuid: SECOND,
        ctransid: 9,
        clone_uuid: SOURCE,
        clone_ctransid: 7,
    };
    let made =
        receive(&filesystem, &stream(StreamVersion::One, &[snapshot, Command::End])).unwrap();
    let filesystem = volume.reopen(filesystem);
    assert_eq!(names(&filesystem, FileId::root_of(made[0].id)), ["b"]);
}

#[test]
fn every_damaged_and_every_cut_stream_is_refused() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let keep = filesystem.create(filesystem.root(), b"keep", &new(0o644)).unwrap();
    filesystem.set_xattr(keep, b"user.a", b"b", SetXattr::Either).unwrap();
    let bytes = stream(StreamVersion::Two, &full());
    for at in 0..bytes.len() {
        let cut = receive(&filesystem, &bytes[..at]).unwrap_err();
        assert!(matches!(cut, Error::Receive { .. }), "cut at {at}: {cut:?}");
        // Version 3 has the same commands.
        let mut damaged = bytes.clone();
        damaged[at] ^= if at == 13 { 4 } else { 1 << (at % 8) };
        let error = receive(&filesystem, &damaged).unwrap_err();
        assert!(matches!(error, Error::Receive { .. }), "byte {at}: {error:?}");
        assert_eq!(names(&filesystem, filesystem.root()), ["keep"]);
    }
    receive(&filesystem, &bytes).unwrap();
    let filesystem = volume.reopen(filesystem);
    assert_eq!(read(&filesystem, "one/dir/file"), b"contents and");
}

/// An input that, at its end, moves the subvolume that is being received away, and makes another
/// one under its name.
struct Swapping<'a> {
    bytes: &'a [u8],
    filesystem: &'a Filesystem,
    innocent: Option<u64>,
}

impl std::io::Read for Swapping<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = std::io::Read::read(&mut self.bytes, buf)?;
        if read == 0 && !buf.is_empty() && self.innocent.is_none() {
            let root = self.filesystem.root();
            let flags = butternut::RenameFlags::default();
            self.filesystem.rename((root, b"sub"), (root, b"moved"), flags).unwrap();
            let made = self.filesystem.create_subvolume(root, b"sub", &new(0o755)).unwrap();
            self.filesystem.create(FileId::root_of(made), b"precious", &new(0o644)).unwrap();
            self.innocent = Some(made);
        }
        Ok(read)
    }
}

/// Only the subvolume that the stream has made is deleted when the stream fails, not the one that
/// has its name by then.
#[test]
fn a_stream_that_fails_deletes_no_other_subvolume_of_the_name() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let root = filesystem.root();
    // Without an END command.
    let commands = [
        Command::Subvol { path: b"sub", uuid: SOURCE, ctransid: 7 },
        Command::Mkfile { path: b"file", ino: 257 },
    ];
    let bytes = stream(StreamVersion::Two, &commands);
    let input = Swapping { bytes: &bytes, filesystem: &filesystem, innocent: None };
    let mut reader = StreamReader::new(input);
    let mut report = ReceiveReport::default();
    filesystem.receive_with(root, &mut reader, StreamEnd::Input, &mut report).unwrap_err();
    let innocent = reader.into_inner().innocent.unwrap();
    assert_eq!(filesystem.lookup(root, b"sub").unwrap(), FileId::root_of(innocent));
    filesystem.lookup(FileId::root_of(innocent), b"precious").unwrap();
    // It was not deleted under its new name, either, so the caller learns of it.
    let moved = filesystem.lookup(root, b"moved").is_ok();
    assert_eq!(moved, report.unfinished.is_some());
    volume.reopen(filesystem);
}

/// An input that, once `left` bytes are left, tries to make the subvolume `one` writable, and to
/// delete it. The reader takes no byte ahead, so all commands before have been applied.
struct Changing<'a> {
    bytes: &'a [u8],
    left: usize,
    filesystem: &'a Filesystem,
    source: u64,
    tries: Vec<Result<()>>,
}

impl std::io::Read for Changing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.len() == self.left && self.tries.is_empty() {
            let writable = self.filesystem.set_subvolume_read_only(self.source, false);
            if writable.is_ok() {
                let file = self.filesystem.open_path(b"one/file").unwrap();
                file.write_all_at(4096, &[9; 4096]).unwrap();
            }
            let deleted = self.filesystem.delete_subvolume(self.filesystem.root(), b"one");
            self.tries = vec![writable, deleted.map(|_| ())];
        }
        std::io::Read::read(&mut self.bytes, buf)
    }
}

#[test]
fn the_parent_and_the_sources_of_clones_do_not_change_while_they_are_used() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let data: Vec<u8> = [[1; 4096], [2; 4096]].concat();
    let source = [
        Command::Subvol { path: b"one", uuid: SOURCE, ctransid: 7 },
        Command::Mkfile { path: b"file", ino: 257 },
        Command::Write { path: b"file", offset: 0, data: &data },
        Command::End,
    ];
    let source = receive(&filesystem, &stream(StreamVersion::One, &source)).unwrap()[0].id;
    let clone = |path, clone_offset| Command::Clone {
        path,
        offset: 0,
        len: 4096,
        clone_uuid: SOURCE,
        clone_ctransid: 7,
        clone_path: b"file",
        clone_offset,
    };
    let (path, uuid, ctransid) = (b"two", SECOND, 9);
    let (clone_uuid, clone_ctransid) = (SOURCE, 7);
    let begins = [
        Command::Subvol { path, uuid, ctransid },
        Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid },
    ];
    for begin in begins {
        let commands = [
            begin,
            Command::Mkfile { path: b"a", ino: 300 },
            clone(b"a", 0),
            Command::Mkfile { path: b"b", ino: 301 },
            clone(b"b", 4096),
            Command::End,
        ];
        let bytes = stream(StreamVersion::One, &commands);
        // After the command that first refers to the source.
        let first = if matches!(begin, Command::Snapshot { .. }) { 1 } else { 3 };
        let left = bytes.len() - stream(StreamVersion::One, &commands[..first]).len();
        let tries = Vec::new();
        let input = Changing { bytes: &bytes, left, filesystem: &filesystem, source, tries };
        let mut reader = StreamReader::new(input);
        filesystem.receive(filesystem.root(), &mut reader, StreamEnd::Input).unwrap();
        let tries = reader.into_inner().tries;
        assert!(
            tries.iter().all(|tried| matches!(tried, Err(Error::NotPermitted { .. }))),
            "{tries:?}"
        );
        assert_eq!(tries.len(), 2);
        assert_eq!(read(&filesystem, "two/a"), [1; 4096]);
        assert_eq!(read(&filesystem, "two/b"), [2; 4096]);
        filesystem.delete_subvolume(filesystem.root(), b"two").unwrap();
    }
    // Without an END command: the source is released.
    let (uuid, ctransid) = (Uuid([3; 16]), 9);
    let fails = [Command::Subvol { path: b"three", uuid, ctransid }, clone(b"absent", 0)];
    receive(&filesystem, &stream(StreamVersion::One, &fails)).unwrap_err();
    filesystem.set_subvolume_read_only(source, false).unwrap();
    filesystem.delete_subvolume(filesystem.root(), b"one").unwrap();
    volume.reopen(filesystem);
}

/// One command may copy any amount of data: its length is in the stream, and not the data.
#[test]
fn a_server_ends_a_receive_in_the_midst_of_a_command() {
    const MIB: u64 = 1 << 20;
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let data = vec![1; 1 << 15];
    let write = |at: u64| Command::Write { path: b"f", offset: at << 15, data: &data };
    let clone = |path, offset, len| Command::Clone {
        path,
        offset,
        len,
        clone_uuid: SOURCE,
        clone_ctransid: 7,
        clone_path: b"f",
        clone_offset: 0,
    };
    let mut commands = vec![
        Command::Subvol { path: b"sub", uuid: SOURCE, ctransid: 7 },
        Command::Mkfile { path: b"f", ino: 257 },
        Command::Mkfile { path: b"g", ino: 258 },
    ];
    commands.extend((0..32).map(write));
    commands.extend((0..5).map(|shift| clone(b"f", MIB << shift, MIB << shift)));
    // Not at the same place in the blocks: it is copied.
    commands.extend([clone(b"g", 1, 32 * MIB), Command::End]);
    let bytes = stream(StreamVersion::One, &commands);
    let (root, hide) = (filesystem.root(), |_: &[u8]| -> Box<dyn std::any::Any> { Box::new(()) });
    for stops_after in [Some(3), None] {
        let calls = std::cell::Cell::new(0);
        let begun = std::cell::Cell::new(0);
        let goes_on = || {
            calls.set(calls.get() + 1);
            // Shared clones call it, too.
            if begun.get() == 0 && filesystem.open_path(b"sub/g").is_ok_and(|g| !g.is_empty()) {
                begun.set(calls.get());
            }
            stops_after.is_none_or(|steps| begun.get() == 0 || calls.get() < begun.get() + steps)
        };
        let mut reader = StreamReader::new(&bytes[..]);
        let mut report = ReceiveReport::default();
        let end = StreamEnd::Input;
        let serving = ReceiveServing { hide: &hide, goes_on: &goes_on };
        let received =
            filesystem.receive_serving(root, &mut reader, end, None, &mut report, serving);
        if stops_after.is_some() {
            let Error::Receive { source, .. } = received.unwrap_err() else { panic!() };
            let Error::StreamInput(error) = &*source else { panic!("{source:?}") };
            assert_eq!(error.raw_os_error(), Some(125), "ECANCELED");
            assert!(report.unfinished.is_none());
            assert!(names(&filesystem, root).is_empty());
        } else {
            received.unwrap();
            assert!(calls.get() >= 32, "{} calls", calls.get());
        }
    }
    volume.reopen(filesystem);
}
