//! [`PosixSubject`]: a directory of this machine as a subject, through system calls.
//!
//! 1. It runs as root, so the kernel's permission checks refuse nothing.
//! 2. It never opens a device, fifo or socket: I/O on these does not reach the filesystem.
//! 3. It sets the process's umask to 0 once.
//! 4. Linux has no uncached lane on btrfs: such requests are cached ones.
//! 5. The test that mounts the filesystem passes a function that mounts it again; the directory may
//!    change.

mod lanes;
mod observe;
mod subvolumes;

use crate::bytes::Bytes;
use crate::content::pattern;
use crate::model::Rules;
use crate::operation::{
    Allocating, File, Lane, Moment, Operation, Outcome, Renaming, Seeking, Setting, Special,
};
use crate::subject::Subject;
use crate::tree::Tree;
use anyhow::Result;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const UTIME_OMIT: i64 = rustix::fs::UTIME_OMIT;

/// Unmounts, mounts again, and returns the new path of the root.
pub type Remount<'a> = Box<dyn FnMut() -> Result<PathBuf> + 'a>;

pub struct PosixSubject<'a> {
    root: PathBuf,
    open: BTreeMap<u8, OwnedFd>,
    remount: Remount<'a>,
    rules: Rules,
}

type Answer<T> = Result<T, Errno>;

impl<'a> PosixSubject<'a> {
    pub fn new(root: PathBuf, remount: Remount<'a>) -> PosixSubject<'a> {
        rustix::process::umask(Mode::empty());
        PosixSubject { root, open: BTreeMap::new(), remount, rules: Rules::default() }
    }

    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> PosixSubject<'a> {
        self.rules = rules;
        self
    }

    fn path(&self, at: &Bytes) -> PathBuf {
        if at.0.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(&at.0)) }
    }

    /// Returns the file type at a path; a symlink is not followed.
    fn kind(&self, at: &Bytes) -> Answer<FileType> {
        let stat = rustix::fs::statat(CWD, self.path(at), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    /// Opens what law 2 allows.
    fn open_file(&self, at: &Bytes, how: OFlags) -> Answer<OwnedFd> {
        match self.kind(at)? {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR),
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        rustix::fs::open(self.path(at), how | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
    }

    fn with_file<T>(
        &self,
        file: &File,
        how: OFlags,
        run: impl FnOnce(&OwnedFd) -> Answer<T>,
    ) -> Answer<T> {
        match file {
            File::Open(slot) => run(self.open.get(slot).ok_or(Errno::BADF)?),
            File::At(at) => run(&self.open_file(at, how)?),
        }
    }

    fn answer(&mut self, operation: &Operation) -> Answer<Outcome> {
        if let Some(done) = self.name_operation(operation) {
            return done.map(|()| Outcome::Done);
        }
        if let Some(done) = self.attribute_operation(operation) {
            return done.map(|()| Outcome::Done);
        }
        if let Some(done) = self.subvolume_operation(operation) {
            return done;
        }
        self.data_operation(operation)
    }

    fn name_operation(&mut self, operation: &Operation) -> Option<Answer<()>> {
        Some(match operation {
            Operation::Create { at, mode } => {
                let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::open(self.path(at), how, mode_of(*mode)).map(drop)
            }
            Operation::Mkdir { at, mode } => {
                rustix::fs::mkdirat(CWD, self.path(at), mode_of(*mode))
            }
            Operation::Mknod { at, kind, mode, major, minor } => {
                let kind = match kind {
                    Special::Fifo => FileType::Fifo,
                    Special::Character => FileType::CharacterDevice,
                    Special::Block => FileType::BlockDevice,
                    Special::Socket => FileType::Socket,
                };
                let device = rustix::fs::makedev(*major, *minor);
                rustix::fs::mknodat(CWD, self.path(at), kind, mode_of(*mode), device)
            }
            Operation::Symlink { at, target } => {
                rustix::fs::symlinkat(OsStr::from_bytes(&target.0), CWD, self.path(at))
            }
            Operation::Link { from, to } => {
                rustix::fs::linkat(CWD, self.path(from), CWD, self.path(to), AtFlags::empty())
            }
            Operation::Unlink { at } => rustix::fs::unlinkat(CWD, self.path(at), AtFlags::empty()),
            Operation::Rmdir { at } => rustix::fs::unlinkat(CWD, self.path(at), AtFlags::REMOVEDIR),
            Operation::Rename { from, to, how } => self.rename(from, to, *how),
            Operation::Tmpfile { dir, mode, slot } => self.tmpfile(dir, *mode, *slot),
            Operation::LinkOpen { slot, to } => self.link_open(*slot, to),
            Operation::Open { at, slot } => {
                self.open.remove(slot);
                let opened = self.open_file(at, OFlags::RDWR);
                opened.map(|file| drop(self.open.insert(*slot, file)))
            }
            Operation::Close { slot } => self.open.remove(slot).map(drop).ok_or(Errno::BADF),
            _ => return None,
        })
    }

    fn rename(&self, from: &Bytes, to: &Bytes, how: Renaming) -> Answer<()> {
        let flags = match how {
            Renaming::Plain => RenameFlags::empty(),
            Renaming::NoReplace => RenameFlags::NOREPLACE,
            Renaming::Exchange => RenameFlags::EXCHANGE,
            Renaming::Whiteout => RenameFlags::WHITEOUT,
        };
        rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)
    }

    fn tmpfile(&mut self, dir: &Bytes, mode: u32, slot: u8) -> Answer<()> {
        self.open.remove(&slot);
        match self.kind(dir)? {
            FileType::Directory => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NOTDIR),
        }
        let how = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.path(dir), how, mode_of(mode))?;
        self.open.insert(slot, file);
        Ok(())
    }

    fn link_open(&self, slot: u8, to: &Bytes) -> Answer<()> {
        let file = self.open.get(&slot).ok_or(Errno::BADF)?;
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, from, CWD, self.path(to), AtFlags::SYMLINK_FOLLOW)
    }

    fn attribute_operation(&self, operation: &Operation) -> Option<Answer<()>> {
        Some(match operation {
            Operation::Chmod { at, mode } => self.chmod(at, *mode),
            Operation::Chown { at, uid, gid } => rustix::fs::chownat(
                CWD,
                self.path(at),
                uid.map(Uid::from_raw),
                gid.map(Gid::from_raw),
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            Operation::Times { at, atime, mtime } => {
                let times = Timestamps {
                    last_access: timespec(*atime),
                    last_modification: timespec(*mtime),
                };
                rustix::fs::utimensat(CWD, self.path(at), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Operation::SetXattr { at, name, bytes, seed, how } => {
                let value = pattern(*seed, usize::try_from(*bytes).expect("fits memory"));
                let how = match how {
                    Setting::Any => XattrFlags::empty(),
                    Setting::Create => XattrFlags::CREATE,
                    Setting::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(self.path(at), OsStr::from_bytes(&name.0), &value, how)
            }
            Operation::RemoveXattr { at, name } => {
                rustix::fs::lremovexattr(self.path(at), OsStr::from_bytes(&name.0))
            }
            Operation::SetAcl { at, is_default, acl } => {
                let name =
                    if *is_default { crate::acl::DEFAULT_NAME } else { crate::acl::ACCESS_NAME };
                let path = self.path(at);
                match acl {
                    Some(acl) => {
                        let value = acl.to_xattr();
                        rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty())
                    }
                    None => rustix::fs::lremovexattr(path, name),
                }
            }
            Operation::SetFlags { at, flags } => self.set_flags(at, *flags),
            _ => return None,
        })
    }

    fn chmod(&self, at: &Bytes, mode: u32) -> Answer<()> {
        // chmod follows symlinks, and a symlink has no mode of its own.
        if self.kind(at)? == FileType::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::fs::chmodat(CWD, self.path(at), mode_of(mode), AtFlags::empty())
    }

    fn set_flags(&self, at: &Bytes, flags: u32) -> Answer<()> {
        match self.kind(at)? {
            FileType::RegularFile | FileType::Directory => {}
            _ => return Err(Errno::NOTTY),
        }
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(self.path(at), how, Mode::empty())?;
        rustix::fs::ioctl_setflags(file, IFlags::from_bits_retain(flags))
    }

    fn data_operation(&self, operation: &Operation) -> Answer<Outcome> {
        match operation {
            Operation::Write { file, offset, bytes, seed, lane } => {
                self.write(file, (*offset, *bytes), *seed, *lane)?;
            }
            Operation::Append { at, bytes, seed } => {
                self.append(&File::At(at.clone()), *bytes, *seed, Lane::Cached)?;
            }
            Operation::Truncate { file, size } => {
                self.with_file(file, OFlags::WRONLY, |file| rustix::fs::ftruncate(file, *size))?;
            }
            Operation::Fallocate { file, how, offset, bytes } => {
                let how = allocating(*how);
                self.with_file(file, OFlags::WRONLY, |file| {
                    rustix::fs::fallocate(file, how, *offset, *bytes)
                })?;
            }
            Operation::Read { file, offset, bytes, lane } => {
                return self.read(file, *offset, *bytes, *lane);
            }
            Operation::Batch { requests } => return Ok(Outcome::Batch(self.batch(requests))),
            Operation::Seek { file, what, offset } => {
                let from = match what {
                    Seeking::Data => SeekFrom::Data(*offset),
                    Seeking::Hole => SeekFrom::Hole(*offset),
                };
                let seek = |file: &OwnedFd| rustix::fs::seek(file, from);
                return self.with_file(file, OFlags::RDONLY, seek).map(Outcome::Found);
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                return self.with_file(from, OFlags::RDONLY, |from| {
                    self.with_file(to, OFlags::WRONLY, |to| {
                        copy((from, *from_offset), (to, *to_offset), *bytes)
                    })
                });
            }
            Operation::Fsync { file } => {
                self.with_file(file, OFlags::RDONLY, |file| rustix::fs::fsync(file))?;
            }
            Operation::Sync => {
                let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
                rustix::fs::syncfs(rustix::fs::open(&self.root, how, Mode::empty())?)?;
            }
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

impl Subject for PosixSubject<'_> {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome> {
        if *operation == Operation::Reopen {
            self.open.clear();
            self.root = (self.remount)()?;
            return Ok(Outcome::Done);
        }
        Ok(match self.answer(operation) {
            Ok(outcome) => outcome,
            Err(errno) => Outcome::Failed(errno.raw_os_error()),
        })
    }

    fn rules(&self) -> Rules {
        self.rules
    }

    fn tree(&mut self) -> Result<Tree> {
        observe::tree(&self.root, &self.open)
    }
}

fn mode_of(mode: u32) -> Mode {
    Mode::from_raw_mode(mode)
}

fn timespec(moment: Option<Moment>) -> Timespec {
    match moment {
        Some(moment) => Timespec { tv_sec: moment.secs, tv_nsec: i64::from(moment.nanos) },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    }
}

fn allocating(how: Allocating) -> FallocateFlags {
    match how {
        Allocating::Allocate => FallocateFlags::empty(),
        Allocating::KeepSize => FallocateFlags::KEEP_SIZE,
        Allocating::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Allocating::ZeroRange => FallocateFlags::ZERO_RANGE,
        Allocating::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

/// Copies as a single call would that copies everything: the source ends where it ended at the
/// start.
fn copy(from: (&OwnedFd, u64), to: (&OwnedFd, u64), bytes: u64) -> Answer<Outcome> {
    let size = u64::try_from(rustix::fs::fstat(from.0)?.st_size).unwrap_or(0);
    let mut rest = bytes.min(size.saturating_sub(from.1));
    let (mut from_offset, mut to_offset) = (from.1, to.1);
    let mut done = 0;
    loop {
        let len = usize::try_from(if done == 0 { bytes } else { rest }).expect("fits memory");
        let copied = rustix::fs::copy_file_range(
            from.0.as_fd(),
            Some(&mut from_offset),
            to.0.as_fd(),
            Some(&mut to_offset),
            len,
        )? as u64;
        done += copied;
        rest = rest.saturating_sub(copied);
        if copied == 0 || rest == 0 {
            return Ok(Outcome::Copied(done));
        }
    }
}

/// Turns an error of observing the tree into a failure of the test.
fn context(errno: Errno, what: &str, at: &Bytes) -> anyhow::Error {
    anyhow::anyhow!("{what} {at}: {errno}")
}
