//! Reads one file of the source, on one of several threads.
//!
//! 1. A file is opened relative to its directory, and a symlink is not followed. A file that is not
//!    regular is opened with `O_PATH` only.
//! 2. Of small files all data is read, without holes. Of large files only the data ranges are
//!    determined.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

use butternut::{FileKind, Time};
use rustix::fs::{
    Mode, OFlags, SeekFrom, fgetxattr, flistxattr, flistxattr_query, getxattr, listxattr, major,
    minor, openat, readlinkat, seek,
};
use rustix::io::Errno;

/// Files up to this size are read at once.
pub(super) const SMALL_BYTES: u64 = 128 << 10;
const SECTOR_BYTES: u64 = 4096;
/// Maximum size of the list of attribute names, and of a value (kernel limits).
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Namespaces of attributes that are copied, besides ACLs.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// A file of the source, of any type.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) attributes: Attributes,
    pub(super) content: Content,
}

/// The attributes of the copy.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) kind: FileKind,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: (u32, u32),
    pub(super) size: u64,
    pub(super) nlink: u64,
    /// Device and inode number, which identify names of the same file.
    pub(super) identity: (u64, u64),
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug)]
pub(super) enum Content {
    None,
    /// The target of a symlink.
    Text(Vec<u8>),
    /// The data of a small file, by offset.
    Small(Vec<(u64, Vec<u8>)>),
    /// A large file, and its data ranges.
    Large(File, Vec<Range<u64>>),
}

/// What is read of each file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadOptions {
    pub(super) xattrs: bool,
}

impl Entry {
    /// Reads an entry of a directory. `is_file` is whether its directory entry has the type of a
    /// regular file.
    pub(super) fn read(
        dir: BorrowedFd<'_>,
        name: &[u8],
        is_file: bool,
        options: ReadOptions,
    ) -> io::Result<Self> {
        if is_file {
            let file = File::from(open_to_read(dir, name, OFlags::NONBLOCK)?);
            let meta = file.metadata()?;
            if !meta.is_file() {
                return Err(replaced());
            }
            let xattrs = if options.xattrs { xattrs_of_open(&file)? } else { Vec::new() };
            let attributes = Attributes::of(&meta, xattrs);
            let content = content(file, &meta)?;
            return Ok(Self { attributes, content });
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = File::from(openat(dir, name, flags, Mode::empty())?);
        let meta = handle.metadata()?;
        if meta.is_file() || meta.is_dir() {
            return Err(replaced());
        }
        let xattrs = if options.xattrs { xattrs_of_handle(&handle)? } else { Vec::new() };
        let attributes = Attributes::of(&meta, xattrs);
        let content = if attributes.kind == FileKind::Symlink {
            Content::Text(readlinkat(&handle, "", Vec::new())?.into_bytes())
        } else {
            Content::None
        };
        Ok(Self { attributes, content })
    }
}

fn replaced() -> io::Error {
    io::Error::other("the file was replaced while it was read")
}

impl Attributes {
    /// Reads the attributes of an open directory.
    pub(super) fn of_directory(dir: &File, options: ReadOptions) -> io::Result<Self> {
        let xattrs = if options.xattrs { xattrs_of_open(dir)? } else { Vec::new() };
        Ok(Self::of(&dir.metadata()?, xattrs))
    }

    fn of(meta: &Metadata, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        let kind = meta.file_type();
        let kind = if kind.is_dir() {
            FileKind::Directory
        } else if kind.is_symlink() {
            FileKind::Symlink
        } else if kind.is_char_device() {
            FileKind::CharDevice
        } else if kind.is_block_device() {
            FileKind::BlockDevice
        } else if kind.is_fifo() {
            FileKind::Fifo
        } else if kind.is_socket() {
            FileKind::Socket
        } else {
            FileKind::File
        };
        let time =
            |secs, nanos: i64| Time { secs, nanos: u32::try_from(nanos).unwrap_or_default() };
        Self {
            kind,
            permissions: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: (major(meta.rdev()), minor(meta.rdev())),
            size: meta.size(),
            nlink: meta.nlink(),
            identity: (meta.dev(), meta.ino()),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            xattrs,
        }
    }
}

/// Opens a file with `O_NOATIME`, if the user may.
pub(super) fn open_to_read(
    dir: impl AsFd,
    name: impl rustix::path::Arg + Copy,
    more: OFlags,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    match openat(&dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => Ok(openat(&dir, name, flags, Mode::empty())?),
        opened => Ok(opened?),
    }
}

fn content(file: File, meta: &Metadata) -> io::Result<Content> {
    let size = meta.size();
    if size == 0 {
        return Ok(Content::None);
    }
    // Preallocated space takes blocks but reads as a hole, so the block count does not show it.
    // Files of one sector are not examined.
    let is_sparse = size > SECTOR_BYTES || meta.blocks().saturating_mul(512) < size;
    let ranges =
        if is_sparse { data_ranges(&file, size)? } else { std::iter::once(0..size).collect() };
    if size > SMALL_BYTES {
        return Ok(Content::Large(file, ranges));
    }
    let parts = ranges.into_iter().map(|range| Ok((range.start, read_range(&file, &range)?)));
    Ok(Content::Small(parts.collect::<io::Result<_>>()?))
}

/// Reads all bytes of a range.
pub(super) fn read_range(file: &File, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let bytes = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, range.start).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return io::Error::other("the file was truncated while it was read");
        }
        error
    })?;
    Ok(buffer)
}

/// Returns the data ranges of a file.
fn data_ranges(file: &File, size: u64) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            // The server of a FUSE mount may answer anything.
            Ok(start) => start.max(at),
            Err(Errno::NXIO) => break,
            // The filesystem does not support SEEK_DATA.
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        if end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

fn xattrs_of_open(file: &File) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have none; the size query needs no buffer.
    if matches!(flistxattr_query(file), Ok(0) | Err(Errno::NOTSUP)) {
        return Ok(Vec::new());
    }
    let mut list = vec![0; XATTR_BYTES_MAX];
    let bytes = flistxattr(file, list.as_mut_slice())?;
    values(&list[..bytes], |name, value| fgetxattr(file, name, value))
}

/// Reads the attributes of a file that is open with `O_PATH`. The path in `/proc` leads to this
/// file itself, also if it is a symlink.
pub(in super::super) fn xattrs_of_handle(handle: &File) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let mut list = vec![0; XATTR_BYTES_MAX];
    let bytes = match listxattr(path.as_str(), list.as_mut_slice()) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        bytes => bytes?,
    };
    values(&list[..bytes], |name, value| getxattr(path.as_str(), name, value))
}

fn values(
    list: &[u8],
    read: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    let is_wanted = |name: &&[u8]| {
        NAMESPACES.iter().any(|space| name.starts_with(space)) || ACLS.contains(name)
    };
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in list.split(|byte| *byte == 0).filter(is_wanted) {
        match read(name, &mut value) {
            // Many are kept at a time, so each takes only its own length.
            Ok(bytes) => found.push((name.to_vec(), value[..bytes].to_vec())),
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, RenameFlags, XattrFlags, mknodat, renameat_with, setxattr};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn a_file_that_is_replaced_gives_no_attributes_to_another() {
        let scratch = tempfile::tempdir().unwrap();
        let (name, other) = (scratch.path().join("name"), scratch.path().join("other"));
        mknodat(CWD, &name, FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::write(&other, "data").unwrap();
        setxattr(&other, "user.of_the_file", b"value", XattrFlags::empty()).unwrap();
        let (dir, is_over) = (File::open(scratch.path()).unwrap(), AtomicBool::new(false));
        let (mut read, mut wrong) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &name, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                }
            });
            for _ in 0..50_000 {
                let found = Entry::read(dir.as_fd(), b"name", false, ReadOptions { xattrs: true });
                let Ok(Entry { attributes, .. }) = found else { continue };
                read += 1;
                let is_whole = attributes.kind == FileKind::Fifo && attributes.xattrs.is_empty();
                wrong += u32::from(!is_whole);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(read > 0 && wrong == 0, "{wrong} of {read}");
    }

    /// As root, a symlink can have attributes.
    #[test]
    fn attributes_of_a_symlink_are_not_those_of_its_target() {
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("target");
        std::fs::write(&target, "data").unwrap();
        setxattr(&target, "user.of_the_target", b"value", XattrFlags::empty()).unwrap();
        std::os::unix::fs::symlink("target", scratch.path().join("link")).unwrap();
        let dir = File::open(scratch.path()).unwrap();
        let entry = Entry::read(dir.as_fd(), b"link", false, ReadOptions { xattrs: true });
        let Entry { attributes, content } = entry.unwrap();
        assert!(attributes.xattrs.is_empty(), "{attributes:?}");
        assert!(matches!(content, Content::Text(target) if target == b"target"));
    }
}
