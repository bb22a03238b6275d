//! [`DiskFile`]: an open disk, that is a block device or an image file, and the facts about it.
//!
//! 1. Reads and writes bypass the page cache (`O_DIRECT`) where the file allows it and the caller
//!    wants it; [`DiskFile::is_direct`] says which happened. Direct transfers must respect
//!    [`DiskFile::alignment`]; this file does not bounce.
//! 2. A writable open is exclusive, by whatever name the bytes are reached. On a block device
//!    `O_EXCL` keeps out kernel mounts and other exclusive openers; open-file-description locks, of
//!    the disk and of what it stands on ([`crate::block`]), keep out all that use this crate; and a
//!    loop device over the same bytes must not be mounted, nor open exclusively or for writing.
//!    (A loop device that is attached and mounted afterwards is not seen: the kernel asks nothing.)
//! 3. A read-only open takes the shared form of that lock: readers meet readers, but no writer
//!    starts under a reader and no reader under a writer, for a reader of a volume that changes
//!    sees trees that no longer exist. [`Sharing::Unlocked`] asks for such a look all the same.
//!    The kernel takes no such lock: reading a device that it has mounted is allowed.
//! 4. Both locks end with the last descriptor, however the process ends. The kernel takes a killed
//!    process's rings down a moment after the process: a lock that nobody is seen to hold is waited
//!    for, [`RELEASE_WAIT`] at most.
//! 5. Where locks do not exist (some network file systems), a reader goes without, and a writer is
//!    refused.
//!
//! Who holds a busy disk is found by [`crate::holder`].

use crate::block::{self, Layer, Window};
use crate::errno::Errno;
use crate::holder::{self, Holder};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, StatxFlags};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The alignment assumed for direct transfers where the kernel does not say.
const DIRECT_ALIGN_DEFAULT: u32 = 512;

/// The largest believable answer; beyond it the kernel's words are not trusted.
const DIRECT_ALIGN_MAX: u32 = 1 << 16;

/// How long a lock is waited for whose holder has ended, and how often it is tried.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

pub struct DiskFile {
    fd: OwnedFd,
    path: PathBuf,
    kind: DiskKind,
    bytes: u64,
    is_writable: bool,
    is_direct: bool,
    alignment: Alignment,
    logical_block_bytes: u32,
    cache: WriteCache,
    /// The locks of what a loop device stands on.
    _beneath: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    Image,
    BlockDevice { major: u32, minor: u32 },
}

/// How the disk is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDisk {
    pub writable: bool,
    /// Bypass the page cache if the file can.
    pub direct: bool,
    pub sharing: Sharing,
}

impl Default for OpenDisk {
    fn default() -> OpenDisk {
        OpenDisk { writable: false, direct: true, sharing: Sharing::Locked }
    }
}

/// Whether the lock of laws 2 and 3 is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Locked,
    /// For readers only: look even though somebody may be writing.
    Unlocked,
}

/// What a direct transfer must be a multiple of; ones for a buffered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Of the offset and the length.
    pub offset_bytes: u32,
    /// Of the memory's address.
    pub memory_bytes: u32,
}

impl Alignment {
    pub const BYTE: Alignment = Alignment { offset_bytes: 1, memory_bytes: 1 };
}

/// What lies between a completed write and the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCache {
    /// A completed write may be lost at a power cut until a flush. True where it is not known.
    pub is_volatile: bool,
    /// Single writes can go through the cache (force unit access).
    pub has_fua: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open {}", path.display())]
    Refused {
        path: PathBuf,
        #[source]
        cause: Errno,
    },
    #[error("{} is a {kind}, not a block device or an image file", path.display())]
    NotADisk { path: PathBuf, kind: &'static str },
    #[error("{} is busy: {holder}", path.display())]
    Busy { path: PathBuf, holder: Holder },
    #[error("{} is a read-only device", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{} cannot be locked, so a writable open would not be exclusive", path.display())]
    CannotLock {
        path: PathBuf,
        #[source]
        cause: Errno,
    },
}

impl OpenError {
    pub fn path(&self) -> &Path {
        match self {
            OpenError::Refused { path, .. }
            | OpenError::NotADisk { path, .. }
            | OpenError::Busy { path, .. }
            | OpenError::ReadOnly { path }
            | OpenError::CannotLock { path, .. } => path,
        }
    }

    pub fn errno(&self) -> Errno {
        match self {
            OpenError::Refused { cause, .. } | OpenError::CannotLock { cause, .. } => *cause,
            OpenError::NotADisk { .. } => Errno(libc::ENOTBLK),
            OpenError::Busy { .. } => Errno::BUSY,
            OpenError::ReadOnly { .. } => Errno(libc::EROFS),
        }
    }
}

impl DiskFile {
    /// Opens a disk; waits for a lock that nobody is seen to hold (law 4).
    pub fn open(path: &Path, how: OpenDisk) -> Result<DiskFile, OpenError> {
        let start = Instant::now();
        loop {
            match Self::open_once(path, how) {
                Err(OpenError::Busy { holder: Holder::Unknown, .. })
                    if start.elapsed() < RELEASE_WAIT =>
                {
                    std::thread::sleep(RELEASE_PAUSE);
                }
                decided => return decided,
            }
        }
    }

    fn open_once(path: &Path, how: OpenDisk) -> Result<DiskFile, OpenError> {
        let refused = |cause: Errno| OpenError::Refused { path: path.to_owned(), cause };
        // Asked before the open, because opening a fifo waits, and O_EXCL is for devices only.
        let stat = rustix::fs::stat(path).map_err(|cause| refused(cause.into()))?;
        let kind = disk_kind(path, &stat)?;
        let (fd, is_direct) = open_fd(path, kind, how)?;
        let after = rustix::fs::fstat(&fd).map_err(|cause| refused(cause.into()))?;
        if disk_kind(path, &after)? != kind
            || (after.st_dev, after.st_ino) != (stat.st_dev, stat.st_ino)
        {
            return Err(refused(Errno(libc::ESTALE)));
        }
        if how.writable
            && is_block_device(kind)
            && ioctl_value::<libc::c_int>(&fd, BLKROGET) == Ok(1)
        {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
        let beneath = claim(path, &fd, how)?;
        let bytes = disk_bytes(&fd, kind, &after).map_err(refused)?;
        let logical_block_bytes = match kind {
            DiskKind::Image => DIRECT_ALIGN_DEFAULT,
            DiskKind::BlockDevice { .. } => {
                rustix::fs::ioctl_blksszget(&fd).unwrap_or(DIRECT_ALIGN_DEFAULT)
            }
        };
        let alignment =
            if is_direct { direct_alignment(&fd, logical_block_bytes) } else { Alignment::BYTE };
        Ok(DiskFile {
            fd,
            path: path.to_owned(),
            kind,
            bytes,
            is_writable: how.writable,
            is_direct,
            alignment,
            logical_block_bytes,
            cache: write_cache(kind),
            _beneath: beneath,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many bytes the disk has now, which another process may have changed.
    pub fn bytes_now(&self) -> Result<u64, Errno> {
        let stat = rustix::fs::fstat(&self.fd)?;
        disk_bytes(&self.fd, self.kind, &stat)
    }

    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    pub fn logical_block_bytes(&self) -> u32 {
        self.logical_block_bytes
    }

    pub fn write_cache(&self) -> WriteCache {
        self.cache
    }

    /// Reads until `memory` is full or the file ends; says how many bytes came.
    pub fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while let Some(rest) = memory.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.fd, rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
            if self.is_direct && !done.is_multiple_of(self.alignment.offset_bytes as usize) {
                // Only the end of the file cuts a direct read short inside a block.
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `memory`.
    pub fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while let Some(rest) = memory.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.fd, rest, offset.saturating_add(done as u64)) {
                Ok(0) => return Err(Errno(libc::ENOSPC)),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }

    /// Returns when everything written before is on the medium.
    pub fn flush(&self) -> Result<(), Errno> {
        rustix::fs::fdatasync(&self.fd).map_err(Errno::from)
    }

    /// Tells the disk that a range holds nothing of value; what it reads as afterwards is the
    /// disk's affair.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        match self.kind {
            DiskKind::Image => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.fd, flags, offset, bytes).map_err(Errno::from)
            }
            DiskKind::BlockDevice { .. } => {
                let mut range = [offset, bytes];
                // SAFETY: BLKDISCARD reads two 64-bit integers from the pointer.
                let answer =
                    unsafe { libc::ioctl(self.fd.as_raw_fd(), BLKDISCARD, range.as_mut_ptr()) };
                if answer == 0 { Ok(()) } else { Err(Errno::last()) }
            }
        }
    }
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.is_writable { "read-write" } else { "read-only" };
        let lane = if self.is_direct { "direct" } else { "buffered" };
        let path = self.path.display();
        write!(f, "DiskFile({path}, {} bytes, {access}, {lane})", self.bytes)
    }
}

const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const BLKROGET: libc::c_ulong = 0x125e;

fn is_block_device(kind: DiskKind) -> bool {
    matches!(kind, DiskKind::BlockDevice { .. })
}

fn disk_kind(path: &Path, stat: &rustix::fs::Stat) -> Result<DiskKind, OpenError> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(DiskKind::Image),
        FileType::BlockDevice => {
            let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            return Ok(DiskKind::BlockDevice { major, minor });
        }
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::Unknown => "file of unknown type",
    };
    Err(OpenError::NotADisk { path: path.to_owned(), kind })
}

/// Opens, directly if that is wanted and possible.
fn open_fd(path: &Path, kind: DiskKind, how: OpenDisk) -> Result<(OwnedFd, bool), OpenError> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= if how.writable { OFlags::RDWR } else { OFlags::RDONLY };
    if how.writable && is_block_device(kind) {
        flags |= OFlags::EXCL;
    }
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    let mut opened = if how.direct { open(flags | OFlags::DIRECT) } else { open(flags) };
    let is_direct = how.direct && opened.is_ok();
    if how.direct && matches!(opened, Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP))
    {
        opened = open(flags);
    }
    match opened {
        Ok(fd) => Ok((fd, is_direct)),
        Err(rustix::io::Errno::BUSY) => {
            Err(OpenError::Busy { path: path.to_owned(), holder: holder::of_device(kind) })
        }
        Err(cause) => Err(OpenError::Refused { path: path.to_owned(), cause: cause.into() }),
    }
}

/// Takes the locks of laws 2 and 3, and looks for what needs none; returns the descriptors of the
/// locks beneath the disk.
fn claim(path: &Path, fd: &OwnedFd, how: OpenDisk) -> Result<Vec<OwnedFd>, OpenError> {
    if how.sharing == Sharing::Unlocked && !how.writable {
        return Ok(Vec::new());
    }
    lock(path, fd, how.writable, Window::ALL)?;
    let refused =
        |error: std::io::Error| OpenError::Refused { path: path.to_owned(), cause: error.into() };
    let meta = fd.try_clone().map(File::from).and_then(|file| file.metadata()).map_err(refused)?;
    let layers = block::chain(block::storage_of(&meta));
    let (mut beneath, mut unreachable) = (Vec::new(), Vec::new());
    for layer in layers.iter().skip(1) {
        let Some(below) = layer.path.as_deref().and_then(|path| open_beneath(path, layer)) else {
            unreachable.push(layer);
            continue;
        };
        let (below, can_write) = below;
        match lock(path, &below, how.writable && can_write, layer.window) {
            Err(busy @ OpenError::Busy { .. }) => return Err(busy),
            // Where there are no locks, the exclusive open of the device is what there is.
            Err(_) | Ok(()) => beneath.push(below),
        }
    }
    let user = if how.writable { holder::over_loop(&layers) } else { None };
    match user.or_else(|| holder::lock_beyond_reach(&layers, &unreachable, how.writable)) {
        Some(holder) => Err(OpenError::Busy { path: path.to_owned(), holder }),
        None => Ok(beneath),
    }
}

/// Opens the file beneath a loop device to lock it, for writing where that is allowed.
fn open_beneath(path: &Path, layer: &Layer) -> Option<(OwnedFd, bool)> {
    let open = |flags| {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        rustix::fs::open(path, flags, Mode::empty()).ok()
    };
    let opened = match open(OFlags::RDWR) {
        Some(fd) => (fd, true),
        None => (open(OFlags::RDONLY)?, false),
    };
    let file = File::from(opened.0);
    let is_it = file.metadata().is_ok_and(|meta| block::storage_of(&meta) == layer.storage);
    is_it.then(|| (file.into(), opened.1))
}

/// Takes the lock of a window of a file.
fn lock(path: &Path, fd: &OwnedFd, exclusive: bool, window: Window) -> Result<(), OpenError> {
    match lock_window(fd, exclusive, window) {
        Err(Errno(libc::EAGAIN | libc::EACCES)) => {
            let meta = fd.try_clone().map(File::from).and_then(|file| file.metadata());
            let holder = meta.map_or(Holder::Unknown, |meta| holder::of_lock(&meta));
            Err(OpenError::Busy { path: path.to_owned(), holder })
        }
        Err(cause) if exclusive => Err(OpenError::CannotLock { path: path.to_owned(), cause }),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn lock_window(fd: &OwnedFd, exclusive: bool, window: Window) -> Result<(), Errno> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let offset = |at: u64| libc::off_t::try_from(at).unwrap_or(libc::off_t::MAX);
    let mut lock = libc::flock {
        l_type: libc::c_short::try_from(kind).expect("lock types are 0 and 1"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("SEEK_SET is 0"),
        l_start: offset(window.start),
        // 0: to the end of the file, wherever that will be.
        l_len: if window.end == u64::MAX { 0 } else { offset(window.end - window.start) },
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads one `struct flock` from the pointer.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
    if answer == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn disk_bytes(fd: &OwnedFd, kind: DiskKind, stat: &rustix::fs::Stat) -> Result<u64, Errno> {
    match kind {
        DiskKind::Image => u64::try_from(stat.st_size).map_err(|_| Errno::INVALID),
        DiskKind::BlockDevice { .. } => ioctl_value::<u64>(fd, BLKGETSIZE64),
    }
}

/// A getter ioctl whose answer is one integer.
trait Integer: Default + Copy {}
impl Integer for u64 {}
impl Integer for libc::c_int {}

fn ioctl_value<T: Integer>(fd: &OwnedFd, request: libc::c_ulong) -> Result<T, Errno> {
    let mut value = T::default();
    // SAFETY: the requests above that are passed here write one integer of type T.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
    if answer == 0 { Ok(value) } else { Err(Errno::last()) }
}

fn direct_alignment(fd: &OwnedFd, logical_block_bytes: u32) -> Alignment {
    /// `STATX_DIOALIGN`, since Linux 6.1.
    const DIO_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
    let sane = |bytes: u32| bytes.is_power_of_two() && bytes <= DIRECT_ALIGN_MAX;
    let fallback = logical_block_bytes.max(DIRECT_ALIGN_DEFAULT);
    let assumed = Alignment { offset_bytes: fallback, memory_bytes: fallback };
    let Ok(facts) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, DIO_ALIGN) else {
        return assumed;
    };
    let (offset_bytes, memory_bytes) = (facts.stx_dio_offset_align, facts.stx_dio_mem_align);
    if facts.stx_mask & DIO_ALIGN.bits() != 0 && sane(offset_bytes) && sane(memory_bytes) {
        Alignment { offset_bytes, memory_bytes }
    } else {
        assumed
    }
}

/// Asks sysfs; a partition's facts are its disk's.
fn write_cache(kind: DiskKind) -> WriteCache {
    let unknown = WriteCache { is_volatile: true, has_fua: false };
    let DiskKind::BlockDevice { major, minor } = kind else { return unknown };
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let fact = |name: &str| {
        let own = std::fs::read_to_string(device.join("queue").join(name));
        own.or_else(|_| std::fs::read_to_string(device.join("../queue").join(name))).ok()
    };
    WriteCache {
        is_volatile: fact("write_cache").is_none_or(|word| word.trim() != "write through"),
        has_fua: fact("fua").is_some_and(|word| word.trim() == "1"),
    }
}
