//! [`MountedFiles`]: the files of a mounted volume, as `ls`, `stat`, `find` and `cat` read them.
//!
//! ```text
//! butternut ls disk.img /dir       VOLUME and paths in it
//! butternut ls MOUNT /dir          the same of a mounted volume
//! butternut ls MOUNT/dir           VOLUME alone: the paths that are printed begin with it
//! ```
//!
//! 1. Everything is read by the calls that any program makes, with the permissions of the user.
//!    The devices of the volume are not opened.
//! 2. Paths are resolved below VOLUME as if it were the root directory: absolute symlinks and `..`
//!    do not lead out of it, as in a volume that is not mounted. What is mounted below it is
//!    another volume: it is listed, and not entered.
//! 3. Only directories and regular files are opened, and without waiting.
//! 4. A mount of this project shows file ids as inode numbers, and 1 for its root. The kernel's
//!    btrfs shows inode numbers of the subvolume, and a device number for each subvolume.
//! 5. What the caller may not find out is `None`: only root reads the items of inodes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use butternut::format::inode::{Inode, InodeFlags};
use butternut::format::key::ItemType;
use butternut::{FileId, FileKind, Follow, Time};
use butternut_sys::subvolume_calls;
use butternut_sys::tree_search_calls::search;
use butternut_sys::volume_calls::is_kernel_btrfs;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags, Statx, StatxAttributes,
    StatxFlags, StatxTimestamp, ioctl_getflags, openat, openat2, readlinkat, statx,
};
use rustix::io::Errno;

use super::{is_directory, is_in_mount, is_plain_file, parent};
use crate::commands::export::raise_open_files_limit;
use crate::commands::files::{Attributes, FileEntries, FileEntry, Files};
use crate::commands::import::xattrs_of_handle;
use crate::commands::walk::live::{BELOW, OPEN};
use crate::failure::Failure;
use crate::output::text;

/// The inode number of the root directory of each subvolume.
const ROOT_DIRECTORY: u64 = 256;
/// The inode number that a mount of this project shows for its root.
const MOUNT_ROOT: u64 = 1;

/// How paths are resolved (law 2).
const INSIDE: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_XDEV).union(ResolveFlags::NO_MAGICLINKS);
const BY_PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The flags that `FS_IOC_GETFLAGS` tells, as the kernel's btrfs stores them.
const TOLD: [(IFlags, InodeFlags); 10] = [
    (IFlags::COMPRESSED, InodeFlags::COMPRESS),
    // `FS_NOCOMP_FL`.
    (IFlags::from_bits_retain(0x400), InodeFlags::NOCOMPRESS),
    (IFlags::SYNC, InodeFlags::SYNC),
    (IFlags::IMMUTABLE, InodeFlags::IMMUTABLE),
    (IFlags::APPEND, InodeFlags::APPEND),
    (IFlags::NODUMP, InodeFlags::NODUMP),
    (IFlags::NOATIME, InodeFlags::NOATIME),
    (IFlags::DIRSYNC, InodeFlags::DIRSYNC),
    (IFlags::NOCOW, InodeFlags::NODATACOW),
    // `FS_VERITY_FL`.
    (IFlags::from_bits_retain(0x10_0000), InodeFlags::VERITY),
];

/// The directory, or the file, that VOLUME names in a mounted volume.
pub(crate) struct MountedFiles {
    volume: PathBuf,
    /// No paths in it are named.
    is_alone: bool,
    /// The directory, or that of the file.
    dir: File,
    is_kernels: bool,
    /// The subvolumes of the kernel's btrfs, by device number (law 4).
    subvolumes: RefCell<HashMap<(u32, u32), Option<u64>>>,
}

/// A file: that of a descriptor, or a name in a directory.
#[derive(Clone)]
pub(crate) struct MountedFile {
    at: Rc<File>,
    name: Option<Vec<u8>>,
}

/// A file that is read.
pub(crate) struct OpenFile {
    file: File,
    bytes: u64,
}

impl OpenFile {
    /// Returns the size in bytes, when the file was opened.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read_at(into, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl MountedFile {
    fn of(file: File) -> Self {
        Self { at: Rc::new(file), name: None }
    }

    fn statx(&self) -> Result<Statx, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        statx(&*self.at, OsStr::from_bytes(self.name.as_deref().unwrap_or_default()), flags, wanted)
    }

    /// Opens the file with these flags, but nothing that is mounted on it (law 2).
    fn open(&self, flags: OFlags) -> Result<File, Errno> {
        let opened = match &self.name {
            Some(name) => openat2(&*self.at, OsStr::from_bytes(name), flags, Mode::empty(), BELOW),
            None if flags.contains(OFlags::DIRECTORY) => {
                openat2(&*self.at, ".", flags, Mode::empty(), BELOW)
            }
            None => {
                let path = format!("/proc/self/fd/{}", self.at.as_raw_fd());
                openat(CWD, path, flags - OFlags::NOFOLLOW, Mode::empty())
            }
        };
        opened.map(File::from)
    }

    /// Opens a directory or a regular file for calls (law 3).
    fn open_for_calls(&self, kind: FileKind) -> Option<File> {
        let flags = match kind {
            FileKind::Directory => OPEN | DIRECTORY,
            FileKind::File => OPEN,
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return None,
        };
        self.open(flags).ok()
    }
}

impl MountedFiles {
    /// Opens the directory of a mounted volume that VOLUME names. Returns `None` for every other
    /// argument, and otherwise the paths to find: VOLUME itself, if no path in it is named.
    ///
    /// # Errors
    /// The directory is in no mounted btrfs volume, or cannot be opened.
    pub(crate) fn open(
        volume: &OsStr,
        paths: &[OsString],
    ) -> Result<Option<(Self, Vec<OsString>)>, Failure> {
        if is_directory(volume) { Self::of(volume, paths, true).map(Some) } else { Ok(None) }
    }

    /// As [`Self::open`]; without a path, VOLUME may also be a file in a mounted volume.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_any(
        volume: &OsStr,
        paths: &[OsString],
    ) -> Result<Option<(Self, Vec<OsString>)>, Failure> {
        if paths.is_empty() && is_plain_file(volume) {
            return Self::of(volume, paths, false).map(Some);
        }
        Self::open(volume, paths)
    }

    fn of(
        volume: &OsStr,
        paths: &[OsString],
        is_directory: bool,
    ) -> Result<(Self, Vec<OsString>), Failure> {
        let path = Path::new(volume);
        let shown = text::escaped(volume.as_bytes());
        let dir = if is_directory { path.to_path_buf() } else { parent(path) };
        if !is_in_mount(&dir) {
            return Err(Failure::new(shown, "is in no mounted btrfs volume")
                .hint("name an image file, a block device, or a directory of a mounted volume"));
        }
        let opened = openat(CWD, &dir, DIRECTORY, Mode::empty());
        let dir = File::from(opened.map_err(|errno| Failure::io(shown, &errno.into()))?);
        raise_open_files_limit();
        let is_kernels = is_kernel_btrfs(&dir);
        let (volume, is_alone) = (path.to_path_buf(), paths.is_empty());
        let paths = if is_alone { vec![volume.clone().into()] } else { paths.to_vec() };
        let subvolumes = RefCell::default();
        Ok((Self { volume, is_alone, dir, is_kernels, subvolumes }, paths))
    }

    /// Finds the file of a path that [`Self::open`] has returned.
    pub(crate) fn find(&self, path: &OsStr, follow: Follow) -> Result<MountedFile, Failure> {
        let kept = if follow == Follow::Last { BY_PATH } else { BY_PATH | OFlags::NOFOLLOW };
        let found = if !self.is_alone {
            let inside = if path.is_empty() { OsStr::new(".") } else { path };
            openat2(&self.dir, inside, kept, Mode::empty(), INSIDE)
        } else if self.volume.is_dir() {
            // A symlink to a directory names the directory.
            openat2(&self.dir, ".", BY_PATH, Mode::empty(), INSIDE)
        } else {
            openat(CWD, &self.volume, kept, Mode::empty())
        };
        let failure = |errno: Errno| {
            let failure = Failure::io(text::escaped(path.as_bytes()), &errno.into());
            let volume = text::escaped(self.volume.as_os_str().as_bytes());
            match errno {
                Errno::NOENT if !self.is_alone => {
                    failure.hint(format!("paths begin inside {volume}"))
                }
                Errno::XDEV => failure.hint(format!("it is in another mount, below {volume}")),
                _ => failure,
            }
        };
        found.map(|found| MountedFile::of(found.into())).map_err(failure)
    }

    /// Opens the regular file of a path that [`Self::open`] has returned.
    pub(crate) fn open_to_read(&self, path: &OsStr) -> Result<OpenFile, Failure> {
        let found = self.find(path, Follow::Last)?;
        let open = || -> Result<OpenFile, io::Error> {
            let stat = found.statx()?;
            let kind = FileType::from_raw_mode(stat.stx_mode.into());
            if kind == FileType::Directory {
                return Err(Errno::ISDIR.into());
            }
            if kind != FileType::RegularFile {
                return Err(io::Error::other("is not a regular file"));
            }
            let file = found.open(OPEN)?;
            let bytes = file.metadata()?.len();
            Ok(OpenFile { file, bytes })
        };
        open().map_err(|error| Self::failure(text::escaped(path.as_bytes()), &error))
    }

    /// Returns the extended attributes of a file.
    pub(crate) fn xattrs(id: &MountedFile) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if id.name.is_none() {
            return xattrs_of_handle(&id.at);
        }
        xattrs_of_handle(&id.open(BY_PATH | OFlags::NOFOLLOW)?)
    }

    /// Returns the subvolume and the inode number of a file (law 4).
    fn place(&self, id: &MountedFile, stat: &Statx) -> (Option<u64>, u64) {
        let ino = stat.stx_ino;
        let is_root = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if is_root && id.name.is_some() && Some(device_of(stat)) != self.device() {
            return (None, ino);
        }
        if !self.is_kernels {
            return match (ino, FileId::from_u64(ino)) {
                (MOUNT_ROOT, _) => (self.subvolume_of(id, FileKind::Directory), ROOT_DIRECTORY),
                (FileId::PLACEHOLDER_INO, _) | (_, None) => (None, ino),
                (_, Some(id)) => (Some(id.subvolume_id()), id.ino),
            };
        }
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        if let Some(known) = self.subvolumes.borrow().get(&device) {
            return (*known, ino);
        }
        let kind = FileKind::from_mode(stat.stx_mode.into());
        let found = kind.and_then(|kind| self.subvolume_of(id, kind));
        // Another file of the subvolume may tell more.
        if found.is_some() {
            self.subvolumes.borrow_mut().insert(device, found);
        }
        (found, ino)
    }

    /// Returns the device number of the directory.
    fn device(&self) -> Option<(u32, u32)> {
        let dir = MountedFile::of(self.dir.try_clone().ok()?);
        dir.statx().ok().map(|stat| device_of(&stat))
    }

    /// Returns the subvolume of a file by a call of its filesystem.
    fn subvolume_of(&self, id: &MountedFile, kind: FileKind) -> Option<u64> {
        let info = |file: &File| subvolume_calls::info(file.as_fd()).ok().map(|info| info.id);
        match id.open_for_calls(kind) {
            Some(file) => info(&file),
            // A directory may be the root of another subvolume than that of its parent.
            None if kind == FileKind::Directory => None,
            None if id.name.is_some() => info(&id.at),
            None => {
                let device = id.statx().ok().map(|stat| device_of(&stat));
                if device == self.device() { info(&self.dir) } else { None }
            }
        }
    }

    /// Returns the generation and the flags of an inode (law 5).
    fn details(&self, id: &MountedFile, attributes: &Attributes) -> (Option<u64>, Option<u64>) {
        let file = id.open_for_calls(attributes.kind);
        let told = file.as_ref().and_then(|file| ioctl_getflags(file).ok());
        let told = told.map(|told| {
            let set = TOLD.iter().filter(|(flag, _)| told.contains(*flag));
            set.fold(0, |flags, (_, flag)| flags | flag.0)
        });
        let stored = attributes.subvolume.and_then(|subvolume| {
            inode_item(file.as_ref().unwrap_or(&self.dir), subvolume, attributes.ino)
        });
        let flags = match (told, &stored) {
            (told, Some(stored)) => {
                let mask = TOLD.iter().fold(0, |mask, (_, flag)| mask | flag.0);
                Some(told.map_or(stored.flags.0, |told| stored.flags.0 & !mask | told))
            }
            (Some(told), None) => {
                let is_nodatacow = told & InodeFlags::NODATACOW.0 != 0;
                let is_file = attributes.kind == FileKind::File;
                let nodatasum = if is_file && is_nodatacow { InodeFlags::NODATASUM.0 } else { 0 };
                Some(told | nodatasum)
            }
            (None, None) => None,
        };
        (stored.map(|stored| stored.generation.0), flags)
    }
}

fn device_of(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

/// Reads an inode item, which only root may.
fn inode_item(file: &File, subvolume: u64, ino: u64) -> Option<Inode> {
    let mut found = None;
    let key = (ino, ItemType::INODE_ITEM.0, 0);
    let searched = search(file.as_fd(), subvolume, key..=key, &mut |_, data| {
        found = Inode::check(data).ok();
        ControlFlow::Break(())
    });
    searched.ok().and(found)
}

impl Files for MountedFiles {
    type Id = MountedFile;
    /// Device and inode.
    type Identity = ((u32, u32), u64);
    type Error = io::Error;

    fn attributes(&self, id: &MountedFile) -> io::Result<Attributes> {
        let stat = id.statx()?;
        let mode = u32::from(stat.stx_mode);
        let kind =
            FileKind::from_mode(mode).ok_or_else(|| io::Error::other("unknown file type"))?;
        let (subvolume, ino) = self.place(id, &stat);
        Ok(Attributes {
            subvolume,
            ino,
            file_id: subvolume.map(|subvolume| FileId::new(subvolume, ino).as_u64()),
            kind,
            mode,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            block_bytes: stat.stx_blksize,
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            atime: time(&stat.stx_atime),
            mtime: time(&stat.stx_mtime),
            ctime: time(&stat.stx_ctime),
            btime: time(&stat.stx_btime),
            generation: None,
            flags: None,
        })
    }

    fn all_attributes(&self, id: &MountedFile) -> io::Result<Attributes> {
        let attributes = self.attributes(id)?;
        let (generation, flags) = self.details(id, &attributes);
        Ok(Attributes { generation, flags, ..attributes })
    }

    fn target(&self, id: &MountedFile) -> io::Result<Vec<u8>> {
        let name = OsStr::from_bytes(id.name.as_deref().unwrap_or_default());
        Ok(readlinkat(&*id.at, name, Vec::new())?.into_bytes())
    }

    fn entries(
        &self,
        id: &MountedFile,
        with_dots: bool,
    ) -> io::Result<FileEntries<MountedFile, io::Error>> {
        let dir = match id.open(OPEN | DIRECTORY) {
            Ok(dir) => Rc::new(dir),
            // Law 2.
            Err(Errno::XDEV) => return Ok(Box::new(std::iter::empty())),
            Err(errno) => return Err(errno.into()),
        };
        let mut entries = Vec::new();
        for entry in Dir::read_from(&*dir)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => {
                    entries.push(Err(errno.into()));
                    break;
                }
            };
            let name = entry.file_name().to_bytes().to_vec();
            if !with_dots && matches!(name.as_slice(), b"." | b"..") {
                continue;
            }
            let id = MountedFile { at: Rc::clone(&dir), name: Some(name.clone()) };
            match kind_of(entry.file_type(), &id) {
                Ok(kind) => entries.push(Ok(FileEntry { name, id, kind })),
                // It was removed since.
                Err(Errno::NOENT) => {}
                Err(errno) => entries.push(Err(errno.into())),
            }
        }
        Ok(Box::new(entries.into_iter()))
    }

    fn ino(&self, id: &MountedFile) -> io::Result<u64> {
        Ok(self.place(id, &id.statx()?).1)
    }

    fn identity(&self, id: &MountedFile) -> io::Result<Self::Identity> {
        let stat = id.statx()?;
        Ok((device_of(&stat), stat.stx_ino))
    }

    fn is_subvolume_root(&self, id: &MountedFile) -> bool {
        id.statx().is_ok_and(|stat| self.place(id, &stat).1 == ROOT_DIRECTORY)
    }

    fn share_subvolume(&self, one: &MountedFile, other: &MountedFile) -> io::Result<bool> {
        let subvolume = |id: &MountedFile| -> io::Result<_> {
            let stat = id.statx()?;
            Ok((device_of(&stat), (!self.is_kernels).then(|| self.place(id, &stat).0)))
        };
        Ok(subvolume(one)? == subvolume(other)?)
    }

    fn too_deep() -> io::Error {
        Errno::NAMETOOLONG.into()
    }

    fn cycle() -> io::Error {
        Errno::LOOP.into()
    }

    fn text(error: &io::Error) -> String {
        crate::failure::io_text(error)
    }

    fn failure(what: String, error: &io::Error) -> Failure {
        Failure::io(what, error)
    }
}

/// Returns the kind of an entry, also where its directory does not tell it.
fn kind_of(told: FileType, id: &MountedFile) -> Result<FileKind, Errno> {
    if let Some(kind) = FileKind::from_mode(told.as_raw_mode()) {
        return Ok(kind);
    }
    FileKind::from_mode(id.statx()?.stx_mode.into()).ok_or(Errno::IO)
}

fn time(at: &StatxTimestamp) -> Time {
    Time { secs: at.tv_sec, nanos: at.tv_nsec }
}
