//! Sending from volumes that are damaged or hostile: no path leads out of the subvolume, and only
//! damage of the subvolume itself prevents a stream.

use crate::leaf::{edit_items, owner, rewrite};
use crate::volume::{TestVolume, new};
use butternut::format::key::ItemType;
use butternut::format::refused::Refused;
use butternut::format::stream::Command;
use butternut::receive::StreamReader;
use butternut::{
    Error, FileId, Filesystem, MountOptions, RenameFlags, Result, SendOptions, SnapshotAccess,
};

const NODE_BYTES: usize = 16384;
const INODE_REF: u8 = 12;
const EXTENT_TREE: u64 = 2;

fn open_for_reading(volume: &TestVolume) -> Filesystem {
    Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap()
}

fn snapshot(fs: &Filesystem, source: u64, name: &[u8]) -> u64 {
    fs.snapshot(source, fs.root(), name, SnapshotAccess::ReadOnly).unwrap()
}

fn send(volume: &TestVolume, subvolume: u64, parent: Option<u64>) -> Result<Vec<u8>> {
    let mut stream = Vec::new();
    let options = SendOptions::default().parent(parent);
    open_for_reading(volume).send(subvolume, &options, &mut stream).map(|()| stream)
}

fn commands(stream: &[u8]) -> Vec<&'static str> {
    let mut reader = StreamReader::new(stream);
    let mut names = Vec::new();
    reader.next_stream().unwrap();
    loop {
        let (_, command) = reader.next_command().unwrap();
        if command == Command::End {
            return names;
        }
        names.push(command.name());
    }
}

fn refused_path(result: Result<Vec<u8>>) -> Refused {
    match result {
        Err(Error::StreamPath(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

/// `btrfs receive` would follow `..`, as root.
#[test]
fn names_that_lead_out_of_the_subvolume_are_not_sent() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let w = fs.create_subvolume(fs.root(), b"w", &new(0o755)).unwrap();
    let dir = fs.mkdir(FileId::root_of(w), b"dd", &new(0o755)).unwrap();
    let a = snapshot(&fs, w, b"a");
    fs.create(dir, b"new", &new(0o644)).unwrap();
    let b = snapshot(&fs, w, b"b");
    fs.close().unwrap();
    send(&volume, b, Some(a)).unwrap();
    let crafted = volume.with_leaves(|block| {
        edit_items(block, |(_, kind), data| {
            if kind == INODE_REF && data.ends_with(b"dd") {
                let at = data.len() - 2;
                data[at..].copy_from_slice(b"..");
            }
            true
        })
    });
    let want = "command mkfile: path: have ../new, want no . or .. in a path";
    assert_eq!(refused_path(send(&crafted, b, Some(a))).to_string(), want);
    let want = "command mkdir: path: have .., want no . or .. in a path";
    assert_eq!(refused_path(send(&crafted, b, None)).to_string(), want);
}

/// A receiver follows a symbolic link in the middle of a path.
#[test]
fn a_name_in_a_symbolic_link_is_not_sent() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let w = fs.create_subvolume(fs.root(), b"w", &new(0o755)).unwrap();
    let root = FileId::root_of(w);
    let link = fs.symlink(root, b"link", b"/etc", &new(0o777)).unwrap();
    let dir = fs.mkdir(root, b"dir", &new(0o755)).unwrap();
    let file = fs.create(dir, b"file", &new(0o644)).unwrap();
    let a = snapshot(&fs, w, b"a");
    fs.close().unwrap();
    let crafted = volume.with_leaves(|block| {
        rewrite(block, |items| {
            for (key, _) in items {
                let is_it = key.objectid == file.ino && key.item_type == ItemType::INODE_REF;
                if is_it && key.offset == dir.ino {
                    key.offset = link.ino;
                }
            }
        })
    });
    let error = send(&crafted, a, None).unwrap_err();
    let Error::Corrupt { source, .. } = error else { panic!("{error:?}") };
    let want =
        format!("inode {}: names: have names in what is no directory, want a directory", link.ino);
    assert_eq!(source.to_string(), want);
}

/// The extent tree leads to files to clone from, which only makes a stream smaller.
#[test]
fn a_damaged_extent_tree_does_not_prevent_a_stream() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let w = fs.create_subvolume(fs.root(), b"w", &new(0o755)).unwrap();
    let file = fs.create(FileId::root_of(w), b"file", &new(0o644)).unwrap();
    fs.open_file(file).unwrap().write_all_at(0, &vec![7; 300_000]).unwrap();
    let a = snapshot(&fs, w, b"a");
    fs.close().unwrap();
    let whole = send(&volume, a, None).unwrap();
    let mut image = volume.image();
    let fsid = image[65536 + 0x20..65536 + 0x30].to_vec();
    let mut damaged = 0;
    for at in (1 << 20..image.len() - NODE_BYTES).step_by(NODE_BYTES) {
        let block = &mut image[at..at + NODE_BYTES];
        if block[0x20..0x30] == fsid && owner(block) == EXTENT_TREE {
            block[NODE_BYTES - 1] ^= 1;
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    let damaged = TestVolume::of_image(&image);
    assert!(open_for_reading(&damaged).inspect().tree_roots().is_ok());
    let sent = send(&damaged, a, None).unwrap();
    assert_eq!(commands(&sent), commands(&whole));
    assert_eq!(sent, whole);
}

/// A user that may create names in the root directory of a subvolume can guess numbers.
#[test]
fn names_that_a_user_has_made_do_not_prevent_a_stream() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let w = fs.create_subvolume(fs.root(), b"w", &new(0o755)).unwrap();
    let root = FileId::root_of(w);
    fs.mkdir(root, b"x", &new(0o755)).unwrap();
    let d = fs.mkdir(root, b"d", &new(0o755)).unwrap();
    let generation = fs.stat(d).unwrap().generation;
    let a = snapshot(&fs, w, b"a");
    for number in 0..1 << 16 {
        let name = format!("o{}-{generation}-{number}", d.ino);
        fs.create(root, name.as_bytes(), &new(0o644)).unwrap();
    }
    fs.rename((root, b"d"), (root, b"e"), RenameFlags::default()).unwrap();
    fs.rename((root, b"x"), (root, b"d"), RenameFlags::default()).unwrap();
    let b = snapshot(&fs, w, b"b");
    fs.close().unwrap();
    send(&volume, b, Some(a)).unwrap();
}
