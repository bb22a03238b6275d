//! Commands of a send stream: what is encoded decodes to the same, a stream of the kernel is
//! encoded to the same bytes, and damaged bytes are refused.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use butternut_format::inode::{DeviceNumber, Time};
use butternut_format::stream::{
    COMMAND_BYTES_MAX, COMMAND_BYTES_MAX_VERSION_1, COMMAND_HEADER_BYTES, Command,
    STREAM_HEADER_BYTES, StreamCompression, StreamVersion, command_bytes,
};
use butternut_format::uuid::Uuid;
use proptest::prelude::*;

/// The first commands of a stream that Linux 6.18 wrote with `btrfs send --proto 2`: `SUBVOL`,
/// `CHOWN`, `CHMOD`, `MKDIR` and `RENAME`.
const KERNEL: &[u8] = b"btrfs-stream\0\x02\0\0\0\
    \x26\0\0\0\x01\0\xa4\xc2\x87\xc9\x0f\0\x02\0s1\x01\0\x10\0\
    \x38\x83\x63\x51\xc5\x65\x4f\x44\x9d\xaa\xe4\xe9\xd0\x4b\x31\x39\
    \x02\0\x08\0\x0b\0\0\0\0\0\0\0\
    \x1c\0\0\0\x13\0\x02\x37\x2d\x8c\x0f\0\0\0\x06\0\x08\0\0\0\0\0\0\0\0\0\
    \x07\0\x08\0\0\0\0\0\0\0\0\0\
    \x10\0\0\0\x12\0\x59\x55\x75\x35\x0f\0\0\0\x05\0\x08\0\xed\x01\0\0\0\0\0\0\
    \x18\0\0\0\x04\0\xbf\xa2\x72\x0d\x0f\0\x08\0o257-9-0\x03\0\x08\0\x01\x01\0\0\0\0\0\0\
    \x11\0\0\0\x09\0\xe8\x60\x95\x36\x0f\0\x08\0o257-9-0\x10\0\x01\0d";

/// Decodes a whole stream.
fn decode(bytes: &[u8]) -> Result<Vec<Command<'_>>, Box<dyn std::error::Error>> {
    let (header, mut rest) =
        bytes.split_first_chunk::<STREAM_HEADER_BYTES>().ok_or("shorter than a header")?;
    let version = StreamVersion::decode(header)?;
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let header = rest.first_chunk::<COMMAND_HEADER_BYTES>().ok_or("half a header")?;
        let bytes = command_bytes(version, header)?;
        let (command, after) = rest.split_at_checked(bytes).ok_or("half a command")?;
        commands.push(Command::decode(version, command)?);
        rest = after;
    }
    Ok(commands)
}

fn encode(version: StreamVersion, commands: &[Command<'_>]) -> Vec<u8> {
    let mut bytes = version.encode().to_vec();
    for command in commands {
        command.encode(version, &mut bytes).unwrap();
    }
    bytes
}

fn refusal(version: StreamVersion, command: Command<'_>) -> String {
    let mut out = b"kept".to_vec();
    let refused = command.encode(version, &mut out).unwrap_err().to_string();
    assert_eq!(out, b"kept");
    refused
}

/// Makes one command of every kind from the same values.
fn commands(
    [path, other, data]: [&[u8]; 3],
    [a, b, c, d]: [u64; 4],
    small: u32,
    version: StreamVersion,
) -> Vec<Command<'_>> {
    let uuid = Uuid([7; 16]);
    let device = DeviceNumber(u64::from(small));
    let time =
        |secs: u64| Time { secs: i64::from_le_bytes(secs.to_le_bytes()), nanos: small % 1000 };
    let otime = (version != StreamVersion::One).then(|| time(d));
    let compression = StreamCompression::Lzo64K;
    let mut commands = vec![
        Command::Subvol { path, uuid, ctransid: a },
        Command::Snapshot { path, uuid, ctransid: a, clone_uuid: uuid, clone_ctransid: b },
        Command::Mkfile { path, ino: a },
        Command::Mkdir { path, ino: a },
        Command::Mknod { path, ino: a, device, mode: small },
        Command::Mkfifo { path, ino: a, device, mode: small },
        Command::Mksock { path, ino: a, device, mode: small },
        Command::Symlink { path, ino: a, target: other },
        Command::Rename { path, to: other },
        Command::Link { path, existing: other },
        Command::Unlink { path },
        Command::Rmdir { path },
        Command::SetXattr { path, name: other, value: data },
        Command::RemoveXattr { path, name: other },
        Command::Write { path, offset: a, data },
        Command::Clone {
            path,
            offset: a,
            len: b,
            clone_uuid: uuid,
            clone_ctransid: c,
            clone_path: other,
            clone_offset: d,
        },
        Command::Truncate { path, size: a },
        Command::Chmod { path, mode: small },
        Command::Chown { path, uid: small, gid: !small },
        Command::Utimes { path, atime: time(a), mtime: time(b), ctime: time(c), otime },
        Command::End,
        Command::UpdateExtent { path, offset: a, len: b },
    ];
    if version != StreamVersion::One {
        commands.extend([
            Command::Fallocate { path, mode: small, offset: a, len: b },
            Command::Fileattr { path, flags: a },
            Command::EncodedWrite {
                path,
                offset: a,
                unencoded_file_len: b,
                unencoded_len: c,
                unencoded_offset: d,
                compression,
                encryption: 0,
                data,
            },
        ]);
    }
    commands
}

fn versions() -> impl Strategy<Value = StreamVersion> {
    prop_oneof![Just(StreamVersion::One), Just(StreamVersion::Two), Just(StreamVersion::Three)]
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same(
        version in versions(),
        path in prop::collection::vec(any::<u8>(), 0..300),
        other in prop::collection::vec(any::<u8>(), 0..300),
        data in prop::collection::vec(any::<u8>(), 0..5000),
        numbers in any::<[u64; 4]>(),
        small in any::<u32>(),
    ) {
        let commands = commands([&path, &other, &data], numbers, small, version);
        let bytes = encode(version, &commands);
        prop_assert_eq!(decode(&bytes).unwrap(), commands);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        version in versions(),
        cmd in 0..30_u16,
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        drop(Command::decode(version, &sealed(cmd, &rest)));
        prop_assert!(Command::decode(version, &rest).is_err());
    }

    #[test]
    fn a_changed_attribute_is_decoded_or_refused(
        version in versions(), at in any::<usize>(), to in any::<u8>(), which in any::<usize>(),
    ) {
        let all = commands([b"a/b", b"c", b"data"], [1, 2, 3, 4], 5, version);
        let mut bytes = Vec::new();
        all[which % all.len()].encode(version, &mut bytes).unwrap();
        let rest = &mut bytes[COMMAND_HEADER_BYTES..];
        if !rest.is_empty() {
            let at = at % rest.len();
            rest[at] = to;
        }
        let bytes = sealed(all[which % all.len()].number(), rest);
        if let Ok(command) = Command::decode(version, &bytes) {
            let mut again = Vec::new();
            command.encode(version, &mut again).unwrap();
            prop_assert_eq!(Command::decode(version, &again).unwrap(), command);
        }
    }
}

/// Returns a command of any bytes with a valid header.
fn sealed(cmd: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(rest.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(cmd.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(rest);
    let mut crc = 0_u32;
    for byte in &bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    bytes[6..10].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_stream_of_the_kernel_is_encoded_to_the_same_bytes() {
    let commands = decode(KERNEL).unwrap();
    let uuid = Uuid::parse("38836351-c565-4f44-9daa-e4e9d04b3139").unwrap();
    let want = [
        Command::Subvol { path: b"s1", uuid, ctransid: 11 },
        Command::Chown { path: b"", uid: 0, gid: 0 },
        Command::Chmod { path: b"", mode: 0o755 },
        Command::Mkdir { path: b"o257-9-0", ino: 257 },
        Command::Rename { path: b"o257-9-0", to: b"d" },
    ];
    assert_eq!(commands, want);
    assert_eq!(encode(StreamVersion::Two, &commands), KERNEL);
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let whole = decode(KERNEL).unwrap();
    for cut in 0..KERNEL.len() {
        if let Ok(commands) = decode(&KERNEL[..cut]) {
            assert_eq!(commands, whole[..commands.len()], "a cut between commands");
        }
    }
    for at in 0..KERNEL.len() {
        for bit in 0..8 {
            let mut bytes = KERNEL.to_vec();
            bytes[at] ^= 1 << bit;
            // The version decides about DATA only, which these commands do not have.
            let same = (13..17).contains(&at) && decode(&bytes).is_ok_and(|same| same == whole);
            assert!(same || decode(&bytes).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn version_1_has_no_commands_of_version_2() {
    let one = StreamVersion::One;
    let fallocate = Command::Fallocate { path: b"f", mode: 0, offset: 0, len: 1 };
    let want = "fallocate: cmd: have 23, want 1 to 22 in version 1";
    assert_eq!(refusal(one, fallocate), want);
    let mut bytes = Vec::new();
    fallocate.encode(StreamVersion::Two, &mut bytes).unwrap();
    let refused = Command::decode(one, &bytes).unwrap_err().to_string();
    assert_eq!(refused, "cmd: have 23, want 1 to 22 in version 1");
    let time = Time::default();
    let (path, otime) = (b"f".as_slice(), Some(time));
    let utimes = Command::Utimes { path, atime: time, mtime: time, ctime: time, otime };
    assert_eq!(refusal(one, utimes), "utimes: OTIME: have a time, want none in version 1");
}

#[test]
fn enable_verity_is_of_version_3() {
    let command = Command::EnableVerity {
        path: b"dir/file",
        algorithm: 1,
        block_bytes: 4096,
        salt: b"",
        signature: b"signed",
    };
    let mut bytes = Vec::new();
    command.encode(StreamVersion::Three, &mut bytes).unwrap();
    let decoded = Command::decode(StreamVersion::Three, &bytes).unwrap();
    assert_eq!((decoded, decoded.name()), (command, "enable_verity"));
    let refused = Command::decode(StreamVersion::Two, &sealed(26, b"")).unwrap_err().to_string();
    assert_eq!(refused, "cmd: have 26, want 1 to 25 in version 2");
}

#[test]
fn a_header_of_another_kind_or_version_is_refused() {
    let mut header = StreamVersion::Two.encode();
    header[13] = 4;
    let refused = StreamVersion::decode(&header).unwrap_err().to_string();
    assert_eq!(refused, "version: have 4, want 1 to 3");
    header[0] = b'x';
    let refused = StreamVersion::decode(&header).unwrap_err();
    assert_eq!(refused.field(), "magic");
}

#[test]
fn sizes_are_limited_by_the_version() {
    let write = |bytes: usize, version: StreamVersion| {
        let data = vec![1; bytes];
        let command = Command::Write { path: b"f", offset: 0, data: &data };
        let mut out = Vec::new();
        command.encode(version, &mut out).map(|()| out.len())
    };
    // The header, the path, the offset and the header of the data.
    let (one, two) = (10 + 5 + 12 + 4, 10 + 5 + 12 + 2);
    let max = COMMAND_BYTES_MAX_VERSION_1;
    assert_eq!(write(max - one, StreamVersion::One), Ok(max));
    let refused = write(max - one + 1, StreamVersion::One).unwrap_err().to_string();
    assert_eq!(refused, "write: bytes: have 65537, want 10 to 65536");
    assert_eq!(write(COMMAND_BYTES_MAX - two, StreamVersion::Two), Ok(COMMAND_BYTES_MAX));
    assert!(write(COMMAND_BYTES_MAX - two + 1, StreamVersion::Two).is_err());
    let header = *sealed(15, b"").first_chunk::<COMMAND_HEADER_BYTES>().unwrap();
    let mut huge = header;
    huge[..4].copy_from_slice(&[0xff; 4]);
    assert_eq!(command_bytes(StreamVersion::Two, &header), Ok(10));
    assert!(command_bytes(StreamVersion::Two, &huge).is_err());
    let long = vec![b'x'; 65536];
    let refused = refusal(StreamVersion::Two, Command::Unlink { path: &long });
    assert_eq!(refused, "unlink: PATH: have 65536 bytes, want at most 65535 bytes");
}

#[test]
fn attributes_are_found_by_their_kind() {
    let decoded = |cmd, rest: &[u8]| {
        let bytes = sealed(cmd, rest);
        Command::decode(StreamVersion::One, &bytes).map(|command| format!("{command:?}"))
    };
    let text = |cmd, rest: &[u8]| decoded(cmd, rest).unwrap_err().to_string();
    // The order does not matter, and an attribute of another command is ignored.
    let size_first = b"\x04\0\x08\0\x09\0\0\0\0\0\0\0\x0f\0\x01\0f\x0d\0\0\0";
    let want = format!("{:?}", Command::Truncate { path: b"f", size: 9 });
    assert_eq!(decoded(17, size_first), Ok(want));
    assert_eq!(text(17, b"\x0f\0\x01\0f"), "truncate: SIZE: have no such attribute, want one");
    assert_eq!(text(11, b"\x0f\0\x02\0f"), "unlink: attribute 15: len: have 2, want at most 1");
    assert_eq!(
        text(11, b"\x0f\0\0\0\x0f\0\0\0"),
        "unlink: attribute: have 15 twice, want each kind once"
    );
    assert_eq!(text(11, b"\0\0\0\0"), "unlink: attribute: have 0, want 1 to 35");
    assert_eq!(text(11, b"\x24\0\0\0"), "unlink: attribute: have 36, want 1 to 35");
    assert_eq!(text(17, b"\x0f\0\0\0\x04\0\x02\0ab"), "truncate: SIZE: have 2 bytes, want 8 bytes");
}
