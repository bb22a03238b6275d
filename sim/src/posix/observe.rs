//! Reads everything that system calls show of a directory.

use super::context;
use crate::bytes::Bytes;
use crate::content::{BLOCK_BYTES, Digest};
use crate::operation::{Moment, flags};
use crate::tree::{Kind, Node, Tree};
use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The maximum size that Linux allows for a list of xattr names and for a value, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The inode numbers of the root directory of each subvolume and of the empty directory that a
/// snapshot has in the place of a subvolume, and the bits of an inode number.
const SUBVOLUME_ROOT: u64 = 256;
const PLACEHOLDER: u64 = 2;
const SUBVOLUME_SHIFT: u32 = 40;

pub(super) fn tree(root: &Path, open: &BTreeMap<u8, OwnedFd>) -> Result<Tree> {
    let mut nodes = BTreeMap::new();
    visit(root, (&Bytes::default(), 0), &mut nodes)?;
    let mut slots = BTreeMap::new();
    for (slot, file) in open {
        let at = Bytes(format!("open {slot}").into_bytes());
        let path =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)));
        let stat = stat(&path, AtFlags::empty()).map_err(|e| context(e, "statx", &at))?;
        let mut node = from_statx(&stat);
        node.xattrs = xattrs(&path, true)?;
        contents(file, &mut node, &at)?;
        slots.insert(*slot, node);
    }
    Ok(Tree::from_numbered(nodes, slots))
}

/// Adds everything at and below a path. `subvolume` distinguishes the inode numbers of the
/// subvolume that has the parent directory from those of others.
fn visit(
    root: &Path,
    (at, subvolume): (&Bytes, u64),
    nodes: &mut BTreeMap<Bytes, (Node, u64)>,
) -> Result<()> {
    let path =
        if at.0.is_empty() { root.to_path_buf() } else { root.join(OsStr::from_bytes(&at.0)) };
    let stat = stat(&path, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| context(e, "statx", at))?;
    let mut node = from_statx(&stat);
    node.xattrs = xattrs(&path, false).with_context(|| format!("xattrs of {at}"))?;
    let kind = node.kind;
    match kind {
        Kind::File => contents(&open(&path).map_err(|e| context(e, "open", at))?, &mut node, at)?,
        Kind::Directory => {
            let dir = open(&path).map_err(|e| context(e, "open", at))?;
            node.flags = shown_flags(&dir);
        }
        Kind::Symlink => {
            let target = rustix::fs::readlink(&path, Vec::new());
            node.target = Bytes(target.map_err(|e| context(e, "readlink", at))?.into_bytes());
        }
        Kind::Fifo | Kind::Character | Kind::Block | Kind::Socket => {}
    }
    let is_subvolume = stat.stx_ino == SUBVOLUME_ROOT && !at.0.is_empty();
    let subvolume = if is_subvolume { nodes.len() as u64 } else { subvolume };
    // All placeholders of snapshots show one number.
    let is_placeholder = stat.stx_ino == PLACEHOLDER;
    let own = if is_placeholder { u64::MAX - nodes.len() as u64 } else { stat.stx_ino };
    nodes.insert(at.clone(), (node, own | subvolume << SUBVOLUME_SHIFT));
    if kind == Kind::Directory {
        for entry in std::fs::read_dir(&path).with_context(|| format!("listing {at}"))? {
            let entry = entry.with_context(|| format!("listing {at}"))?;
            let below = at.join(entry.file_name().as_bytes());
            visit(root, (&below, subvolume), nodes)?;
        }
    }
    Ok(())
}

fn stat(path: &Path, how: AtFlags) -> rustix::io::Result<Statx> {
    rustix::fs::statx(CWD, path, how | AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, how | OFlags::NOATIME, Mode::empty())
}

fn from_statx(stat: &Statx) -> Node {
    let moment =
        |time: rustix::fs::StatxTimestamp| Some(Moment { secs: time.tv_sec, nanos: time.tv_nsec });
    let mode = u32::from(stat.stx_mode);
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile | FileType::Unknown => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::CharacterDevice => Kind::Character,
        FileType::BlockDevice => Kind::Block,
        FileType::Socket => Kind::Socket,
    };
    Node {
        kind,
        mode: mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        nlink: u64::from(stat.stx_nlink),
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        content: Digest::default(),
        target: Bytes::default(),
        xattrs: BTreeMap::new(),
        flags: None,
        atime: moment(stat.stx_atime),
        mtime: moment(stat.stx_mtime),
        twin: Bytes::default(),
        number: 0,
    }
}

fn xattrs(path: &Path, is_followed: bool) -> Result<BTreeMap<Bytes, Bytes>> {
    let mut memory = vec![0; XATTR_BYTES_MAX];
    let bytes = if is_followed {
        rustix::fs::listxattr(path, &mut memory[..])
    } else {
        rustix::fs::llistxattr(path, &mut memory[..])
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        // Of a file that is open in a deleted subvolume, a mount shows none.
        Err(Errno::OPNOTSUPP | Errno::STALE) => 0,
        Err(errno) => return Err(errno).context("listxattr"),
    };
    let names: Vec<Vec<u8>> =
        memory[..bytes].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    let mut all = BTreeMap::new();
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        let text = OsStr::from_bytes(&name);
        let bytes = if is_followed {
            rustix::fs::getxattr(path, text, &mut memory[..])
        } else {
            rustix::fs::lgetxattr(path, text, &mut memory[..])
        };
        let bytes = bytes.with_context(|| format!("getxattr {}", Bytes(name.clone())))?;
        all.insert(Bytes(name), Bytes(memory[..bytes].to_vec()));
    }
    Ok(all)
}

fn shown_flags(file: &OwnedFd) -> Option<u32> {
    rustix::fs::ioctl_getflags(file).ok().map(|shown| shown.bits() & flags::ALL)
}

/// Reads all data ranges that `SEEK_DATA` and `SEEK_HOLE` return, and small files whole.
fn contents(file: &OwnedFd, node: &mut Node, at: &Bytes) -> Result<()> {
    const WHOLE_BYTES_MAX: u64 = 1 << 20;
    node.flags = shown_flags(file);
    let mut digest = Digest::default();
    let mut next = 0;
    while next < node.size {
        let start = if node.size <= WHOLE_BYTES_MAX {
            next
        } else {
            match rustix::fs::seek(file, SeekFrom::Data(next)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(context(errno, "SEEK_DATA", at)),
            }
        };
        let end = if node.size <= WHOLE_BYTES_MAX {
            node.size
        } else {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start));
            end.map_err(|errno| context(errno, "SEEK_HOLE", at))?
        };
        ensure!(start >= next && end > start && end <= node.size, "{at}: data {start}..{end}");
        // Digests are of whole blocks; a data range of an unaligned file may begin and end
        // anywhere.
        let block_bytes = BLOCK_BYTES as u64;
        let mut block = (start / block_bytes).max(next.div_ceil(block_bytes));
        while block * block_bytes < end {
            let mut memory = [0; BLOCK_BYTES];
            let want = block_bytes.min(node.size - block * block_bytes);
            let want = usize::try_from(want).expect("a block");
            let mut done = 0;
            while done < want {
                let from = block * block_bytes + done as u64;
                let transferred = rustix::io::pread(file, &mut memory[done..want], from);
                let transferred = transferred.map_err(|errno| context(errno, "pread", at))?;
                ensure!(transferred > 0, "{at}: ends at {from}, before its size");
                done += transferred;
            }
            digest.add(block, &memory[..want]);
            block += 1;
        }
        next = end;
    }
    node.content = digest;
    Ok(())
}
