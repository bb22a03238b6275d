//! Makes the manifest of a directory through system calls.
//!
//! It uses nothing specific to btrfs, so it treats a kernel mount, a Butternut mount and an
//! exported tree alike. It reads names, `statx`, links, extended attributes, attribute flags, every
//! byte of content, and the data ranges. It changes nothing: files are opened with `O_NOATIME`
//! where that is permitted, and attributes are read before content.

use crate::manifest::{
    Bytes, Entry, Kind, Manifest, Moment, PIECE_BYTES, Piece, hash, pieces_to_read,
};
use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The maximum size of a list of xattr names, and of a value, in Linux.
const XATTR_BYTES_MAX: usize = 64 * 1024;

/// Returns the manifest of everything under `root`.
pub fn walk(root: &Path) -> Result<Manifest> {
    let mut walker = Walker {
        piece: vec![0; usize::try_from(PIECE_BYTES)?],
        xattr: vec![0; XATTR_BYTES_MAX],
        entries: Vec::new(),
    };
    walker.visit(root, &Bytes::default(), 0)?;
    Ok(Manifest::from_identified(walker.entries))
}

struct Walker {
    piece: Vec<u8>,
    xattr: Vec<u8>,
    entries: Vec<(Entry, (u64, u64))>,
}

impl Walker {
    fn visit(&mut self, at: &Path, path: &Bytes, order: u32) -> Result<()> {
        let (entry, identity) =
            self.entry(at, path.clone(), order).with_context(|| format!("reading {path}"))?;
        let is_directory = entry.kind == Kind::Directory;
        self.entries.push((entry, identity));
        if !is_directory {
            return Ok(());
        }
        let listing = std::fs::read_dir(at).with_context(|| format!("listing {path}"))?;
        for (order, child) in listing.enumerate() {
            let child = child.with_context(|| format!("listing {path}"))?;
            let name = child.file_name();
            let below = joined(path, name.as_bytes());
            self.visit(&child.path(), &below, u32::try_from(order)?)?;
        }
        Ok(())
    }

    fn entry(&mut self, at: &Path, path: Bytes, order: u32) -> Result<(Entry, (u64, u64))> {
        let stat = rustix::fs::statx(
            CWD,
            at,
            AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )
        .context("statx")?;
        let mut entry = from_statx(&stat, path, order);
        entry.xattrs = self.xattrs(at)?;
        match entry.kind {
            Kind::Symlink => {
                let target = rustix::fs::readlink(at, Vec::new()).context("readlink")?;
                entry.target = Some(Bytes(target.into_bytes()));
            }
            Kind::File => self.contents(at, &mut entry)?,
            Kind::Directory => entry.flags = flags(&open(at)?),
            Kind::Character | Kind::Block | Kind::Fifo | Kind::Socket | Kind::Unknown => {}
        }
        let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
        Ok((entry, (device, stat.stx_ino)))
    }

    fn xattrs(&mut self, at: &Path) -> Result<BTreeMap<Bytes, Bytes>> {
        let bytes = match rustix::fs::llistxattr(at, &mut self.xattr[..]) {
            Ok(bytes) => bytes,
            Err(Errno::OPNOTSUPP) => 0,
            Err(errno) => return Err(errno).context("llistxattr"),
        };
        let names: Vec<Vec<u8>> =
            self.xattr[..bytes].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        let mut all = BTreeMap::new();
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            let c_name = CString::new(name.clone())?;
            let bytes = rustix::fs::lgetxattr(at, c_name.as_c_str(), &mut self.xattr[..])
                .with_context(|| format!("lgetxattr {}", Bytes(name.clone())))?;
            all.insert(Bytes(name), Bytes(self.xattr[..bytes].to_vec()));
        }
        Ok(all)
    }

    fn contents(&mut self, at: &Path, entry: &mut Entry) -> Result<()> {
        let file = open(at).context("open")?;
        entry.flags = flags(&file);
        entry.data = data_ranges(&file, entry.size)?;
        for offset in pieces_to_read(entry.size, &entry.data) {
            let want = usize::try_from(PIECE_BYTES.min(entry.size - offset))?;
            entry.pieces.push((offset, read_piece(&file, offset, &mut self.piece[..want])?));
        }
        let past = rustix::io::pread(&file, &mut self.piece[..1], entry.size).context("pread")?;
        ensure!(past == 0, "a read at the end of the file returned {past} bytes");
        Ok(())
    }
}

fn from_statx(stat: &Statx, path: Bytes, order: u32) -> Entry {
    let moment =
        |time: rustix::fs::StatxTimestamp| Moment { secs: time.tv_sec, nanos: time.tv_nsec };
    let mode = u32::from(stat.stx_mode);
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Entry {
        path,
        kind: kind(FileType::from_raw_mode(mode)),
        mode: mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        nlink: u64::from(stat.stx_nlink),
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        atime: moment(stat.stx_atime),
        mtime: moment(stat.stx_mtime),
        ctime: moment(stat.stx_ctime),
        btime: has_btime.then(|| moment(stat.stx_btime)),
        ino: stat.stx_ino,
        twin: Bytes::default(),
        blocks: stat.stx_blocks,
        order,
        target: None,
        xattrs: BTreeMap::new(),
        flags: None,
        pieces: Vec::new(),
        data: Vec::new(),
    }
}

fn kind(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::Character,
        FileType::BlockDevice => Kind::Block,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Unknown => Kind::Unknown,
    }
}

fn open(at: &Path) -> rustix::io::Result<OwnedFd> {
    let quiet = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::open(at, quiet | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(at, quiet, Mode::empty()),
        other => other,
    }
}

fn flags(file: &OwnedFd) -> Option<u32> {
    rustix::fs::ioctl_getflags(file).ok().map(|flags| flags.bits())
}

/// Returns the data ranges that `SEEK_DATA` and `SEEK_HOLE` find.
fn data_ranges(file: &OwnedFd, size: u64) -> Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno).context("SEEK_DATA"),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).context("SEEK_HOLE")?;
        ensure!(start >= at && end > start, "data {start}..{end} found from {at}");
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

fn read_piece(file: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<Piece> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset + u64::try_from(done)?;
        match rustix::io::pread(file, &mut buf[done..], at) {
            Ok(0) => anyhow::bail!("the file ends at {at}, before its size"),
            Ok(bytes) => done += bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Ok(Piece::Errno(errno.raw_os_error())),
        }
    }
    Ok(Piece::Hash(hash(buf)))
}

/// Returns `path` with one more component.
pub fn joined(path: &Bytes, name: &[u8]) -> Bytes {
    let mut joined = path.0.clone();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    Bytes(joined)
}

/// Returns the file system path of a manifest path under `root`.
pub fn under(root: &Path, path: &Bytes) -> std::path::PathBuf {
    if path.0.is_empty() { root.to_path_buf() } else { root.join(OsStr::from_bytes(&path.0)) }
}
