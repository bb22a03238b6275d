//! Which data of files that share extents a stream has, and what it clones.

use crate::volume::{TestVolume, new};
use butternut::format::stream::Command;
use butternut::receive::StreamReader;
use butternut::{FileId, Filesystem, MountOptions, SendOptions, SnapshotAccess};

const SIZE: u64 = 100_000;
const BLOCKS: u64 = 98_304;

/// What a stream does with a range of a file.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Cloned(u64, u64),
    Written(u64, u64),
}

/// Returns what a stream does with the ranges of a file.
#[expect(clippy::wildcard_enum_match_arm, reason = "of the many commands, two are looked at")]
fn ranges(stream: &[u8], name: &[u8]) -> Vec<Sent> {
    let mut reader = StreamReader::new(stream);
    let mut sent = Vec::new();
    reader.next_stream().unwrap();
    loop {
        match reader.next_command().unwrap().1 {
            Command::Clone { path, offset, len, .. } if path == name => {
                sent.push(Sent::Cloned(offset, len));
            }
            Command::Write { path, offset, data } if path == name => {
                sent.push(Sent::Written(offset, data.len() as u64));
            }
            Command::End => return sent,
            _ => {}
        }
    }
}

/// A clone may end inside a block where both files end, as in the kernel.
#[test]
fn the_last_block_of_a_file_is_cloned_from_the_last_block_of_another() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let root = FileId::root_of(fs.create_subvolume(fs.root(), b"w", &new(0o755)).unwrap());
    let make = |name: &[u8]| fs.open_file(fs.create(root, name, &new(0o644)).unwrap()).unwrap();
    let source = make(b"source");
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    source.write_all_at(0, &bytes).unwrap();
    for (name, size) in [("whole", SIZE), ("shorter", SIZE - 1), ("longer", SIZE + 1)] {
        let copy = make(name.as_bytes());
        copy.clone_range(0, &source, 0, SIZE).unwrap();
        if size != SIZE {
            copy.truncate(size).unwrap();
        }
    }
    fs.sync().unwrap();
    let snapshot =
        |name| fs.snapshot(root.subvolume, fs.root(), name, SnapshotAccess::ReadOnly).unwrap();
    let a = snapshot(&b"a"[..]);
    make(b"later").clone_range(0, &source, 0, SIZE).unwrap();
    let b = snapshot(b"b");
    drop(source);
    fs.close().unwrap();
    let fs = Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap();
    let send = |id, parent| {
        let mut stream = Vec::new();
        fs.send(id, &SendOptions::default().parent(parent), &mut stream).unwrap();
        stream
    };
    let whole = send(a, None);
    let but_last = |size| vec![Sent::Cloned(0, BLOCKS), Sent::Written(BLOCKS, size - BLOCKS)];
    assert_eq!(ranges(&whole, b"whole"), [Sent::Cloned(0, SIZE)]);
    assert_eq!(ranges(&whole, b"shorter"), but_last(SIZE - 1));
    assert_eq!(ranges(&whole, b"longer"), but_last(SIZE + 1));
    assert_eq!(ranges(&send(b, Some(a)), b"later"), [Sent::Cloned(0, SIZE)]);
}
