//! Targets for send streams: the decoder of commands, and the reception of whole streams.
//!
//! ```text
//! stream_command  = version 1 | command 2 | attributes
//! volume_received = seed 1 | version 1 | step 12 | step 12 | ...
//! step            = command 1 | path 1 | other path 1 | length 1 | offset 4 | damage 4
//! damage          = kind 1 | value 1 | offset 2
//! ```
//!
//! A damaged command has a valid checksum, so that the damage reaches the decoder.
//!
//! Laws:
//!
//! 1. A command is refused, or the bytes that encode it decode to the same command.
//! 2. A stream is received or refused within a bounded number of device requests. The volume is
//!    clean afterwards.
//! 3. The directory has one new entry for each complete subvolume, which is read-only, and no other
//!    change: a stream that fails leaves no subvolume, and no path leaves a subvolume.

use crate::changing::{ScratchDevice, is_clean, writing};
use crate::seed::{PatchedDevice, WRITABLE_SEEDS};
use crate::volume::READS_MAX;
use butternut::device::Device;
use butternut::receive::{ReceiveReport, StreamEnd, StreamReader};
use butternut::{FIRST_ENTRY, Filesystem};
use butternut_format::checksum::crc32c_register;
use butternut_format::inode::{DeviceNumber, Time};
use butternut_format::stream::{COMMAND_HEADER_BYTES, Command, StreamCompression, StreamVersion};
use butternut_format::uuid::Uuid;
use std::collections::BTreeSet;
use std::sync::Arc;

const STEP_BYTES: usize = 12;

/// Maximum number of commands of a stream, its first one and its last one not counted.
const STEPS_MAX: usize = 64;

/// Paths of commands. Most are short, so that commands meet on the same ones.
const PATHS: [&[u8]; 16] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"a/a",
    b"a/b",
    b"d/a",
    b"d/d",
    b"d/d/a",
    b"",
    b"..",
    b"d/../../a",
    b"/a",
    b".",
    b"a//b",
    b"d/",
];

/// Number of [`PATHS`], from the first one on, that do not leave a subvolume.
const ORDINARY: usize = 9;

/// Names of subvolumes, one of them invalid.
const SUBVOLUMES: [&[u8]; 5] = [b"one", b"two", b"three", b"four", b"../five"];

const XATTRS: [&[u8]; 6] = [
    b"user.a",
    b"user.b",
    b"security.capability",
    b"system.posix_acl_access",
    b"btrfs.compression",
    b"none",
];

/// Result of a stream, for tests that count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The input is too short.
    Short,
    Refused,
    Complete,
}

fn version_of(byte: u8) -> StreamVersion {
    [StreamVersion::One, StreamVersion::Two, StreamVersion::Three][usize::from(byte % 3)]
}

/// Writes the length and the checksum of the command into its header.
fn seal(command: &mut [u8]) {
    let len = u32::try_from(command.len() - COMMAND_HEADER_BYTES).unwrap_or(u32::MAX);
    command[..4].copy_from_slice(&len.to_le_bytes());
    command[6..10].fill(0);
    let crc = crc32c_register(0, &[command]);
    command[6..10].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes a command with any attributes (law 1).
pub(crate) fn command(input: &[u8]) {
    let [version, low, high, attributes @ ..] = input else { return };
    let version = version_of(*version);
    let mut bytes = vec![0; COMMAND_HEADER_BYTES];
    (bytes[4], bytes[5]) = (low % 32, high / 64);
    bytes.extend_from_slice(attributes);
    seal(&mut bytes);
    let Ok(command) = Command::decode(version, &bytes) else { return };
    let mut again = Vec::new();
    command.encode(version, &mut again).expect("what was decoded can be encoded");
    let decoded = Command::decode(version, &again).expect("what was encoded can be decoded");
    assert_eq!(decoded, command);
}

/// One command of a crafted stream, and its damage.
struct Step<'a> {
    command: u8,
    path: &'a [u8],
    other: &'a [u8],
    /// The byte that chooses `other`, for values that are not paths.
    choice: usize,
    len: usize,
    offset: u64,
    damage: [u8; 4],
}

impl<'a> Step<'a> {
    fn of(bytes: &[u8; STEP_BYTES]) -> Self {
        let path = |byte: u8| -> &'a [u8] {
            let count = if byte < 240 { ORDINARY } else { PATHS.len() };
            PATHS[usize::from(byte) % count]
        };
        Self {
            command: bytes[0],
            path: path(bytes[1]),
            other: path(bytes[2]),
            choice: bytes[2].into(),
            len: usize::from(bytes[3]) * 129,
            offset: u64::from(u32::from_le_bytes([bytes[4], bytes[5], bytes[6], 0])),
            damage: [bytes[8], bytes[9], bytes[10], bytes[11]],
        }
    }

    /// A number that is mostly small, and sometimes beyond every limit.
    fn number(&self) -> u64 {
        if self.choice < 250 { self.offset } else { u64::MAX - self.offset }
    }

    fn command(&self, data: &'a [u8], subvolumes: usize) -> Command<'a> {
        let (path, other, offset) = (self.path, self.other, self.number());
        let (ino, device, mode) = (offset, DeviceNumber(offset), 0o60644);
        let len = u64::try_from(self.len).unwrap_or(0);
        let clone_uuid = uuid_of(self.choice % subvolumes.max(1));
        match self.command % 28 {
            0..=2 => Command::Mkfile { path, ino },
            3 | 4 => Command::Mkdir { path, ino },
            5 => Command::Mknod { path, ino, device, mode },
            6 => Command::Mkfifo { path, ino, device, mode },
            7 => Command::Mksock { path, ino, device, mode },
            8 => Command::Symlink { path, ino, target: other },
            9 => Command::Rename { path, to: other },
            10 => Command::Link { path, existing: other },
            11 => Command::Unlink { path },
            12 => Command::Rmdir { path },
            13 => {
                let name = XATTRS[self.choice % XATTRS.len()];
                Command::SetXattr { path, name, value: data.get(..self.len / 8).unwrap_or(data) }
            }
            14 => Command::RemoveXattr { path, name: XATTRS[self.choice % XATTRS.len()] },
            15..=17 => Command::Write { path, offset, data },
            18 | 19 => Command::Clone {
                path,
                offset: offset & !4095,
                len: len & !4095,
                clone_uuid,
                clone_ctransid: 1,
                clone_path: other,
                clone_offset: 0,
            },
            20 => Command::Truncate { path, size: offset },
            21 => Command::Chmod { path, mode },
            22 => Command::Chown { path, uid: 1, gid: u32::try_from(ino).unwrap_or(u32::MAX) },
            _ => self.more(data, len),
        }
    }

    fn more(&self, data: &'a [u8], len: u64) -> Command<'a> {
        let (path, offset) = (self.path, self.number());
        match self.command % 28 {
            23 => {
                let time = Time { secs: offset.cast_signed(), nanos: 1 };
                Command::Utimes { path, atime: time, mtime: time, ctime: time, otime: None }
            }
            24 => {
                let mode = u32::from(self.damage[3] % 8);
                Command::Fallocate { path, mode, offset, len }
            }
            25 => Command::Fileattr { path, flags: offset },
            26 => Command::EncodedWrite {
                path,
                offset: offset & !4095,
                unencoded_file_len: len,
                unencoded_len: len.next_multiple_of(4096),
                unencoded_offset: self.offset % 3 * 512,
                compression: StreamCompression::Zstd,
                encryption: 0,
                data,
            },
            _ => Command::End,
        }
    }

    /// Replaces a byte of the attributes of one command in eight, and cuts one in 128.
    fn damage(&self, command: &mut Vec<u8>) {
        let [kind, value, low, high] = self.damage;
        let at = usize::from(u16::from_le_bytes([low, high]));
        if kind >= 34 || command.len() == COMMAND_HEADER_BYTES {
            return;
        }
        let at = COMMAND_HEADER_BYTES + at % (command.len() - COMMAND_HEADER_BYTES);
        if kind < 2 {
            command.truncate(at);
        } else {
            command[at] = value;
        }
        seal(command);
    }
}

fn uuid_of(subvolume: usize) -> Uuid {
    Uuid([u8::try_from(subvolume % 200).unwrap_or(0) + 1; 16])
}

/// A stream under construction.
struct Crafted {
    version: StreamVersion,
    bytes: Vec<u8>,
    subvolumes: usize,
}

impl Crafted {
    fn push(&mut self, command: &Command<'_>, step: Option<&Step<'_>>) {
        let mut bytes = Vec::new();
        // A version does not have every command.
        if command.encode(self.version, &mut bytes).is_ok() {
            if let Some(step) = step {
                step.damage(&mut bytes);
            }
            self.bytes.extend_from_slice(&bytes);
        }
    }

    /// Begins a stream: every second subvolume is a snapshot of the one before it, and the others
    /// have two files and a directory.
    fn begin(&mut self) {
        self.bytes.extend_from_slice(&self.version.encode());
        let (at, ctransid) = (self.subvolumes, 1);
        let (path, uuid) = (SUBVOLUMES[at % SUBVOLUMES.len()], uuid_of(at));
        let command = if at % 2 == 0 {
            Command::Subvol { path, uuid, ctransid }
        } else {
            let clone_uuid = uuid_of(at - 1);
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid: 1 }
        };
        self.push(&command, None);
        self.subvolumes += 1;
        if at % 2 == 0 {
            let ino = 257;
            let plain = [7; 5000];
            self.push(&Command::Mkfile { path: b"a", ino }, None);
            self.push(&Command::Mkfile { path: b"b", ino }, None);
            self.push(&Command::Mkdir { path: b"d", ino }, None);
            self.push(&Command::Write { path: b"a", offset: 0, data: &plain }, None);
        }
    }
}

/// Builds the stream that the steps describe.
fn craft(version: StreamVersion, steps: &[u8]) -> Vec<u8> {
    let mut crafted = Crafted { version, bytes: Vec::new(), subvolumes: 0 };
    crafted.begin();
    let (steps, _) = steps.as_chunks::<STEP_BYTES>();
    for bytes in steps.iter().take(STEPS_MAX) {
        let step = Step::of(bytes);
        let plain = vec![bytes[4]; step.len];
        let packed = zstd::encode_all(plain.as_slice(), 1).unwrap_or_default();
        let data = if step.command % 28 == 26 { &packed } else { &plain };
        let command = step.command(data, crafted.subvolumes);
        crafted.push(&command, Some(&step));
        if command == Command::End {
            crafted.begin();
        }
    }
    crafted.push(&Command::End, None);
    crafted.bytes
}

fn names(fs: &Filesystem) -> BTreeSet<Vec<u8>> {
    let entries = fs.read_dir(fs.root(), FIRST_ENTRY).expect("the directory of a clean volume");
    entries.map(|entry| entry.expect("an entry of a clean volume").name).collect()
}

pub(crate) fn receiving(input: &[u8]) {
    received(input);
}

/// Receives the stream of one input, and panics if a law is broken.
pub fn received(input: &[u8]) -> Received {
    let [seed, version, steps @ ..] = input else { return Received::Short };
    let seed = &WRITABLE_SEEDS[usize::from(*seed) % WRITABLE_SEEDS.len()];
    let device = Arc::new(ScratchDevice::new(PatchedDevice::new(seed, READS_MAX)));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let fs = Filesystem::open_devices(devices, &writing()).expect("the seed can be written");
    let stream = craft(version_of(*version), steps);
    let mut expected = names(&fs);
    let mut report = ReceiveReport::default();
    let mut reader = StreamReader::new(stream.as_slice());
    let ended = fs.receive_with(fs.root(), &mut reader, StreamEnd::Input, &mut report);
    assert!(!device.is_over(), "too many device requests: {ended:?}");
    assert!(report.unfinished.is_none(), "{ended:?}: {:?}", report.unfinished);
    let listed = fs.subvolumes().expect("the subvolumes of a clean volume");
    for subvolume in &report.subvolumes {
        assert!(expected.insert(subvolume.name.clone()), "{subvolume:?} existed");
        let info = listed.iter().find(|info| info.id == subvolume.id);
        assert!(info.is_some_and(|info| info.read_only), "{subvolume:?}: {info:?}");
    }
    assert_eq!(names(&fs), expected, "{ended:?}");
    assert!(fs.is_writable(), "{ended:?}: the volume became read-only");
    drop((reader, fs));
    if let Err(finding) = is_clean(&device, true) {
        panic!("{ended:?}: {finding}");
    }
    if ended.is_ok() { Received::Complete } else { Received::Refused }
}
