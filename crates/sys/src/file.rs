//! [`DiskFile`]: an open disk (a block device or an image file) and its properties.
//!
//! 1. Reads and writes bypass the page cache (`O_DIRECT`) if the file allows it and the caller
//!    requests it; [`DiskFile::is_direct`] returns whether they do. Direct transfers must respect
//!    [`DiskFile::alignment`]; this type does not use bounce buffers.
//! 2. A writable open is exclusive, by whatever name the bytes are reached. On a block device
//!    `O_EXCL` excludes kernel mounts and other exclusive opens. Open-file-description locks, on
//!    the disk and on the storage beneath it (`storage.rs`), exclude all users of this crate from
//!    the bytes of the window that is used ([`OpenDisk::window`]), as that of a partition.
//!    A loop device over the same bytes must not be mounted, nor be open exclusively or for
//!    writing. (A loop device that is attached and mounted afterwards is not detected: the kernel
//!    checks none of these locks. Nor is a loop device over a file of an overlay, where the disk is
//!    the file in the upper directory.)
//! 3. A read-only open takes the shared form of that lock: several readers may have a disk open,
//!    but a reader excludes writers and a writer excludes readers, because a reader of a volume
//!    that changes would follow pointers to trees that no longer exist. [`Sharing::Unlocked`] skips
//!    the lock. The kernel takes no such lock: a device that it has mounted can be opened
//!    read-only.
//! 4. Both locks end with the last descriptor, however the process ends, and not before the last
//!    write in flight: a request holds the open file that is locked. A ring holds the disks that it
//!    has registered. The kernel destroys the rings of a killed process slightly later than the
//!    process, when its last thread has ended: a thread that waits in the kernel, and cannot be
//!    killed, keeps the memory of the process, into which its rings are mapped
//!    ([`OpenDisk::may_register`]). So an open waits for a lock
//!    without a visible holder; for a process that has only a loop device over the same bytes open
//!    for writing, as losetup(8) and udev do for a moment; for a child process, which has the
//!    descriptors of this one until it executes its program; and for a process that has served FUSE
//!    mounts and serves none any more ([`Holder::release_wait`]).
//! 5. A block device that the caller has mounted with type `fuseblk` ([`OpenDisk::mounted`]) is
//!    opened without `O_EXCL`: the kernel's mount excludes what law 2 does, and would exclude the
//!    caller, too. The locks are taken all the same. When that mount has ended, the caller claims
//!    the device itself ([`DiskFile::claim`]).
//! 6. Where locks do not exist (some network filesystems), a read-only open continues without one,
//!    and a writable open fails.
//!
//! [`crate::holder`] finds what holds a busy disk.

pub use crate::storage::Window;

use crate::errno::Errno;
use crate::holder::{self, Holder, ReleaseWait};
use crate::storage::{self, Layer};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, StatxFlags};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Alignment of direct transfers, in bytes, that is assumed where the kernel reports none.
const DIRECT_ALIGN_DEFAULT: u32 = 512;

/// The largest plausible alignment in bytes; larger values from the kernel are ignored.
pub const DIRECT_ALIGN_MAX: u32 = 1 << 16;

/// An open block device or image file.
#[expect(clippy::struct_excessive_bools, reason = "properties, each on its own")]
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
    /// The disk was opened by law 5.
    is_mounted: bool,
    may_register: bool,
    /// The claim of [`DiskFile::claim`].
    claimed: OnceLock<OwnedFd>,
    /// The locks on the storage beneath a loop device.
    _beneath: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    Image,
    BlockDevice { major: u32, minor: u32 },
}

/// How to open a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDisk {
    pub writable: bool,
    /// Bypass the page cache if the file supports it.
    pub direct: bool,
    pub sharing: Sharing,
    /// The device number (major, minor) of a block device that the caller has mounted (law 5). It
    /// has no effect on another disk.
    pub mounted: Option<(u32, u32)>,
    /// The bytes of the disk that are used: only these are locked. The caller uses no others.
    pub window: Window,
    /// Rings may register the disk, which makes requests cheaper. A process whose threads may be
    /// unable to end must not do so (law 4).
    pub may_register: bool,
}

impl Default for OpenDisk {
    fn default() -> OpenDisk {
        let (sharing, window) = (Sharing::Locked, Window::ALL);
        let (mounted, may_register) = (None, true);
        OpenDisk { writable: false, direct: true, sharing, mounted, window, may_register }
    }
}

impl OpenDisk {
    /// Returns whether law 5 is for this disk.
    fn is_mounted(&self, kind: DiskKind) -> bool {
        self.mounted.is_some_and(|numbers| is_device(kind, numbers))
    }
}

/// Whether to take the lock of laws 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Locked,
    /// For readers only: open the disk although another process may be writing to it.
    Unlocked,
}

/// What direct transfers must be multiples of, in bytes. All ones for a buffered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of the offset and the length.
    pub offset_bytes: u32,
    /// Alignment of the memory address.
    pub memory_bytes: u32,
}

impl Alignment {
    pub const BYTE: Alignment = Alignment { offset_bytes: 1, memory_bytes: 1 };
}

/// The write cache of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCache {
    /// Whether a power cut may lose a completed write until the next flush. True where it is not
    /// known.
    pub is_volatile: bool,
    /// Whether single writes can bypass the cache (force unit access).
    pub has_fua: bool,
    /// Whether a durable write (`RWF_DSYNC`) makes everything durable that has completed before:
    /// the kernel writes and then flushes the whole cache, because the disk cannot bypass it.
    /// False where it is not known, for image files, for buffered writes (only their range leaves
    /// the page cache), and for a device over other devices (only those that hold the range are
    /// flushed).
    pub durable_write_flushes: bool,
}

impl WriteCache {
    /// Nothing is known.
    pub const UNKNOWN: Self =
        Self { is_volatile: true, has_fua: false, durable_write_flushes: false };
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
    #[error("this kernel permits no writes to {}, because it is mounted", path.display())]
    MountedOnly { path: PathBuf },
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
            | OpenError::MountedOnly { path }
            | OpenError::CannotLock { path, .. } => path,
        }
    }

    pub fn errno(&self) -> Errno {
        match self {
            OpenError::Refused { cause, .. } | OpenError::CannotLock { cause, .. } => *cause,
            OpenError::NotADisk { .. } => Errno(libc::ENOTBLK),
            OpenError::Busy { .. } | OpenError::MountedOnly { .. } => Errno::BUSY,
            OpenError::ReadOnly { .. } => Errno(libc::EROFS),
        }
    }
}

impl DiskFile {
    /// Opens a disk. Waits for a holder that ends by itself (law 4).
    ///
    /// # Errors
    /// The disk cannot be opened, is busy, or is not a disk.
    pub fn open(path: &Path, how: OpenDisk) -> Result<DiskFile, OpenError> {
        let mut wait = ReleaseWait::default();
        loop {
            match Self::open_once(path, how) {
                Err(OpenError::Busy { holder, .. }) if wait.wait_for(&holder) => {}
                decided => return decided,
            }
        }
    }

    fn open_once(path: &Path, how: OpenDisk) -> Result<DiskFile, OpenError> {
        let refused = |cause: Errno| OpenError::Refused { path: path.to_owned(), cause };
        // Checked before the open, because opening a FIFO blocks, and `O_EXCL` is for devices only.
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
        let beneath = lock_storage(path, &fd, how)?;
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
            cache: write_cache(kind, is_direct),
            is_mounted: how.is_mounted(kind),
            may_register: how.may_register,
            claimed: OnceLock::new(),
            _beneath: beneath,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    /// Returns the size in bytes at the time of the open.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the current size in bytes, which another process may have changed.
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

    /// Returns whether rings may register the disk ([`OpenDisk::may_register`]).
    pub(crate) fn may_register(&self) -> bool {
        self.may_register
    }

    pub fn logical_block_bytes(&self) -> u32 {
        self.logical_block_bytes
    }

    pub fn write_cache(&self) -> WriteCache {
        self.cache
    }

    /// Claims a block device exclusively that the caller's mount has held until now (law 5). Waits
    /// for at most `wait` until no other program holds it. Returns whether others could write to
    /// the disk meanwhile: nothing is done for other disks, which this process has held since the
    /// open.
    ///
    /// # Errors
    /// `EBUSY`: another program holds the device. It may have written to it.
    pub fn claim(&self, wait: Duration) -> Result<bool, Errno> {
        if !self.is_mounted {
            return Ok(false);
        }
        if self.claimed.get().is_some() {
            return Ok(true);
        }
        let start = Instant::now();
        let path = format!("/proc/thread-self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        loop {
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(fd) => {
                    self.claimed.get_or_init(|| fd);
                    return Ok(true);
                }
                Err(rustix::io::Errno::BUSY) if start.elapsed() < wait => {
                    std::thread::sleep(holder::RELEASE_PAUSE);
                }
                Err(cause) => return Err(cause.into()),
            }
        }
    }

    /// Reads until `memory` is full or the file ends. Returns the number of bytes read.
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
                // A direct read ends inside a block only at the end of the file.
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

    /// Returns when all earlier writes are on the medium.
    pub fn flush(&self) -> Result<(), Errno> {
        rustix::fs::fdatasync(&self.fd).map_err(Errno::from)
    }

    /// Discards a range: a block device trims it, an image gets a hole. What it reads as afterwards
    /// depends on the disk.
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
        let mode = if self.is_direct { "direct" } else { "buffered" };
        let path = self.path.display();
        write!(f, "DiskFile({path}, {} bytes, {access}, {mode})", self.bytes)
    }
}

const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const BLKROGET: libc::c_ulong = 0x125e;

fn is_block_device(kind: DiskKind) -> bool {
    matches!(kind, DiskKind::BlockDevice { .. })
}

fn is_device(kind: DiskKind, (major, minor): (u32, u32)) -> bool {
    kind == DiskKind::BlockDevice { major, minor }
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

/// Opens the file, with `O_DIRECT` if requested and supported.
fn open_fd(path: &Path, kind: DiskKind, how: OpenDisk) -> Result<(OwnedFd, bool), OpenError> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= if how.writable { OFlags::RDWR } else { OFlags::RDONLY };
    let is_mounted = how.is_mounted(kind);
    if how.writable && is_block_device(kind) && !is_mounted {
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
        // Only an exclusive open can meet a holder.
        Err(rustix::io::Errno::BUSY) if is_mounted => {
            Err(OpenError::MountedOnly { path: path.to_owned() })
        }
        Err(rustix::io::Errno::BUSY) => {
            Err(OpenError::Busy { path: path.to_owned(), holder: holder::of_block_device(kind) })
        }
        Err(cause) => Err(OpenError::Refused { path: path.to_owned(), cause: cause.into() }),
    }
}

/// Takes the locks of laws 2 and 3, and checks for users that take no such lock. Returns the
/// descriptors that hold the locks beneath the disk.
fn lock_storage(path: &Path, fd: &OwnedFd, how: OpenDisk) -> Result<Vec<OwnedFd>, OpenError> {
    if how.sharing == Sharing::Unlocked && !how.writable {
        return Ok(Vec::new());
    }
    lock(path, fd, how.writable, how.window)?;
    let refused =
        |error: std::io::Error| OpenError::Refused { path: path.to_owned(), cause: error.into() };
    let meta = fd.try_clone().map(File::from).and_then(|file| file.metadata()).map_err(refused)?;
    let mut layers = storage::chain(storage::storage_of(&meta), how.window);
    if let Some(disk) = layers.first() {
        let upper = storage::overlay::upper_file(fd, disk).map_err(refused)?;
        layers.extend(upper);
    }
    let (mut beneath, mut unreachable) = (Vec::new(), Vec::new());
    for (at, layer) in layers.iter().enumerate().skip(1) {
        // Several ways may lead to the same bytes, which are locked once.
        if layers[..at].iter().any(|other| other.is_same_window(layer)) {
            continue;
        }
        let Some(below) = layer.path.as_deref().and_then(|path| open_beneath(path, layer)) else {
            unreachable.push(layer);
            continue;
        };
        let (below, can_write) = below;
        match lock(path, &below, how.writable && can_write, layer.window) {
            Err(busy @ OpenError::Busy { .. }) => return Err(busy),
            // Without locks, only the exclusive open of the device protects it.
            Err(_) | Ok(()) => beneath.push(below),
        }
    }
    let user = if how.writable { holder::loop_device_user(&layers) } else { None };
    match user.or_else(|| holder::hidden_lock(&layers, &unreachable, how.writable)) {
        Some(holder) => Err(OpenError::Busy { path: path.to_owned(), holder }),
        None => Ok(beneath),
    }
}

/// Opens the file beneath a loop device or an overlay to lock it, for writing if permitted. Another
/// file that the path leads to, which any user may have put there, is not opened: the open of a
/// device can have an effect.
fn open_beneath(path: &Path, layer: &Layer) -> Option<(OwnedFd, bool)> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let found = File::from(found);
    let is_it = found.metadata().is_ok_and(|meta| storage::storage_of(&meta) == layer.storage);
    let own = is_it.then(|| format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let open = |flags| {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        rustix::fs::open(own.as_str(), flags, Mode::empty()).ok()
    };
    match open(OFlags::RDWR) {
        Some(fd) => Some((fd, true)),
        None => Some((open(OFlags::RDONLY)?, false)),
    }
}

/// Locks a window of a file.
fn lock(path: &Path, fd: &OwnedFd, exclusive: bool, window: Window) -> Result<(), OpenError> {
    match lock_window(fd, exclusive, window) {
        Err(Errno(libc::EAGAIN | libc::EACCES)) => {
            let meta = fd.try_clone().map(File::from).and_then(|file| file.metadata());
            let holder =
                meta.map_or(Holder::Unknown, |meta| holder::of_lock(&meta, exclusive, window));
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
        // 0: to the end of the file, also when it grows.
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

/// The result type of an ioctl that returns one integer.
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
    let Ok(status) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, DIO_ALIGN) else {
        return assumed;
    };
    let (offset_bytes, memory_bytes) = (status.stx_dio_offset_align, status.stx_dio_mem_align);
    if status.stx_mask & DIO_ALIGN.bits() != 0 && sane(offset_bytes) && sane(memory_bytes) {
        Alignment { offset_bytes, memory_bytes }
    } else {
        assumed
    }
}

/// Reads the properties of the write cache from sysfs.
fn write_cache(kind: DiskKind, is_direct: bool) -> WriteCache {
    let DiskKind::BlockDevice { major, minor } = kind else { return WriteCache::UNKNOWN };
    write_cache_of(Path::new(&format!("/sys/dev/block/{major}:{minor}")), is_direct)
}

/// Reads them from the folder of a block device. A partition has those of its disk.
fn write_cache_of(device: &Path, is_direct: bool) -> WriteCache {
    let is_disk = device.join("queue").exists();
    let disk = if is_disk { device.to_owned() } else { device.join("..") };
    let is = |name: &str, word| {
        let attribute = std::fs::read_to_string(disk.join("queue").join(name));
        attribute.is_ok_and(|attribute| attribute.trim() == word)
    };
    let beneath = std::fs::read_dir(disk.join("slaves"));
    let is_one_device = beneath.is_ok_and(|mut devices| devices.next().is_none());
    WriteCache {
        is_volatile: !is("write_cache", "write through"),
        has_fua: is("fua", "1"),
        durable_write_flushes: is_direct
            && is_one_device
            && is("write_cache", "write back")
            && is("fua", "0"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use std::fs;

    /// A device over other devices passes a durable write on to those that hold its range. The
    /// others keep what they have cached.
    #[test]
    fn a_durable_write_flushes_only_a_disk_that_is_one_device() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, part) = (folder.path().join("disk"), folder.path().join("disk/part"));
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(&part).unwrap();
        let set = |name: &str, word| fs::write(disk.join("queue").join(name), word).unwrap();
        set("write_cache", "write back\n");
        set("fua", "0\n");
        for device in [&disk, &part] {
            let flushes = |is_direct| write_cache_of(device, is_direct).durable_write_flushes;
            assert!(!flushes(true), "it is not known what is beneath");
            fs::create_dir_all(disk.join("slaves")).unwrap();
            assert!(flushes(true));
            assert!(!flushes(false), "other pages stay in the page cache");
            fs::create_dir(disk.join("slaves/sda")).unwrap();
            assert!(!flushes(true), "sda may not hold the range");
            fs::remove_dir_all(disk.join("slaves")).unwrap();
        }
        fs::create_dir(disk.join("slaves")).unwrap();
        set("fua", "1\n");
        let cache = write_cache_of(&part, true);
        assert_eq!(cache, WriteCache { has_fua: true, ..WriteCache::UNKNOWN });
        set("write_cache", "write through\n");
        assert!(!write_cache_of(&part, true).is_volatile);
    }
}
