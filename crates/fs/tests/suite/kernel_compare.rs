//! Compares a volume read through the library with the kernel's mount of it, entry by entry.

use butternut::{FIRST_ENTRY, FileId, FileKind, Filesystem, ReadAt, Stat};
use rustix::fs::{self, AtFlags, StatxFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PLACEHOLDER_INO: u64 = 2;

fn seconds(time: fs::StatxTimestamp) -> (i64, u32) {
    (time.tv_sec, time.tv_nsec)
}

/// Returns the attributes of an inode in a form that both sides can be compared in.
fn ours(stat: &Stat) -> Vec<(&'static str, String)> {
    let changed = if stat.ino == PLACEHOLDER_INO { None } else { Some((stat.mtime, stat.ctime)) };
    let changed = changed.map(|(m, c)| ((m.secs, m.nanos), (c.secs, c.nanos)));
    vec![
        ("ino", stat.ino.to_string()),
        ("mode", format!("{:o}", stat.mode)),
        ("owner", format!("{}:{}", stat.uid, stat.gid)),
        ("size", stat.size.to_string()),
        ("blocks", stat.blocks.to_string()),
        ("block size", stat.block_bytes.to_string()),
        ("nlink", stat.nlink.to_string()),
        ("rdev", format!("{:?}", stat.rdev)),
        ("atime", format!("{:?}", (stat.atime.secs, stat.atime.nanos))),
        ("mtime, ctime", format!("{changed:?}")),
        ("btime", format!("{:?}", (stat.btime.secs, stat.btime.nanos))),
    ]
}

fn kernels(path: &Path) -> Vec<(&'static str, String)> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = fs::statx(fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, flags).unwrap();
    let changed = if stat.stx_ino == PLACEHOLDER_INO {
        None
    } else {
        Some((seconds(stat.stx_mtime), seconds(stat.stx_ctime)))
    };
    vec![
        ("ino", stat.stx_ino.to_string()),
        ("mode", format!("{:o}", stat.stx_mode)),
        ("owner", format!("{}:{}", stat.stx_uid, stat.stx_gid)),
        ("size", stat.stx_size.to_string()),
        ("blocks", stat.stx_blocks.to_string()),
        ("block size", stat.stx_blksize.to_string()),
        ("nlink", stat.stx_nlink.to_string()),
        ("rdev", format!("{:?}", (stat.stx_rdev_major, stat.stx_rdev_minor))),
        ("atime", format!("{:?}", seconds(stat.stx_atime))),
        ("mtime, ctime", format!("{changed:?}")),
        ("btime", format!("{:?}", seconds(stat.stx_btime))),
    ]
}

fn kernel_xattr_names(path: &Path) -> Vec<Vec<u8>> {
    let mut list = vec![0; 65536];
    let bytes = fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    names
}

fn kernel_xattr(path: &Path, name: &[u8]) -> Vec<u8> {
    let mut value = vec![0; 65536];
    let name = OsString::from_vec(name.to_vec());
    let bytes = fs::lgetxattr(path, name.as_os_str(), &mut value[..]).unwrap();
    value.truncate(bytes);
    value
}

fn compare_xattrs(filesystem: &Filesystem, id: FileId, path: &Path) {
    let mut names = filesystem.xattr_names(id).unwrap();
    names.sort();
    assert_eq!(names, kernel_xattr_names(path), "attributes of {}", path.display());
    for name in names {
        let have = filesystem.xattr(id, &name).unwrap();
        assert_eq!(
            have,
            kernel_xattr(path, &name),
            "{} of {}",
            name.escape_ascii(),
            path.display()
        );
    }
}

fn compare_data(filesystem: &Filesystem, id: FileId, path: &Path) {
    let ours = filesystem.open_file(id).unwrap();
    let mut theirs = File::open(path).unwrap();
    let (mut have, mut want) = (vec![0; 300_000], vec![0; 300_000]);
    let mut offset = 0;
    loop {
        let read = ours.read_at(offset, &mut have).unwrap();
        let mut filled = 0;
        while filled < read {
            let more = theirs.read(&mut want[filled..read]).unwrap();
            assert_ne!(more, 0, "{} ends early", path.display());
            filled += more;
        }
        assert!(have[..read] == want[..read], "{} differs past {offset}", path.display());
        if read == 0 {
            assert_eq!(theirs.read(&mut want).unwrap(), 0, "{} is longer", path.display());
            break;
        }
        offset += read as u64;
    }
    compare_scattered(&ours, &theirs, path);
    compare_holes(&ours, &theirs, path);
}

/// Compares many parallel reads of odd lengths at odd offsets, some of them past the end.
fn compare_scattered(ours: &butternut::File, theirs: &File, path: &Path) {
    let mut memory = vec![[0_u8; 7001]; 16];
    let step = ours.len() / 13 + 1;
    let places: Vec<u64> = (0..16).map(|number| number * step).collect();
    let reads = places.iter().zip(&mut memory);
    let mut reads: Vec<_> = reads.map(|(at, buf)| ReadAt::new(*at, buf)).collect();
    ours.read_many(&mut reads);
    for read in reads {
        let mut want = [0; 7001];
        let bytes = read.result.unwrap();
        let left = ours.len().saturating_sub(read.offset);
        assert_eq!(bytes as u64, left.min(7001), "{} at {}", path.display(), read.offset);
        theirs.read_exact_at(&mut want[..bytes], read.offset).unwrap();
        assert!(read.buf[..bytes] == want[..bytes], "{} at {}", path.display(), read.offset);
    }
}

fn compare_holes(ours: &butternut::File, theirs: &File, path: &Path) {
    let mut offset = 0;
    loop {
        let data = fs::seek(theirs, fs::SeekFrom::Data(offset)).ok();
        assert_eq!(
            ours.seek_data(offset).unwrap(),
            data,
            "data of {} past {offset}",
            path.display()
        );
        let Some(data) = data else { return };
        let hole = fs::seek(theirs, fs::SeekFrom::Hole(data)).ok();
        assert_eq!(ours.seek_hole(data).unwrap(), hole, "hole of {} past {data}", path.display());
        let Some(hole) = hole else { return };
        offset = hole;
    }
}

/// Compares a directory and everything below it; returns the number of inodes.
pub(crate) fn compare(filesystem: &Filesystem, id: FileId, path: &Path) -> u64 {
    let stat = filesystem.stat(id).unwrap();
    assert_eq!(ours(&stat), kernels(path), "{}", path.display());
    compare_xattrs(filesystem, id, path);
    match stat.kind {
        FileKind::File => compare_data(filesystem, id, path),
        FileKind::Symlink => {
            let target = std::fs::read_link(path).unwrap();
            assert_eq!(filesystem.read_link(id).unwrap(), target.as_os_str().as_bytes());
        }
        FileKind::Directory => return 1 + compare_entries(filesystem, id, path),
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {}
    }
    1
}

fn compare_entries(filesystem: &Filesystem, id: FileId, path: &Path) -> u64 {
    let entries: Vec<_> =
        filesystem.read_dir(id, FIRST_ENTRY).unwrap().collect::<Result<_, _>>().unwrap();
    let names: Vec<_> = entries.iter().map(|e| OsString::from_vec(e.name.clone())).collect();
    let kernel = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names, kernel.collect::<Vec<_>>(), "entries of {}", path.display());
    let mut seen = 0;
    for (entry, name) in entries.iter().zip(&names) {
        assert_eq!(filesystem.lookup(id, &entry.name).unwrap(), entry.id);
        if entry.kind == FileKind::Directory {
            assert_eq!(filesystem.parent(entry.id).unwrap(), id, "{}", path.join(name).display());
        }
        seen += compare(filesystem, entry.id, &path.join(name));
    }
    seen
}
