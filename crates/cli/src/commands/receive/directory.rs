//! `receive --to-directory`: applies a full stream to plain directories.
//!
//! 1. Each subvolume is a new directory in DIR. Nothing outside of these directories is opened,
//!    created, changed or removed: a path of a stream is opened name by name, no symlink is
//!    followed, and the format refuses absolute paths and `..`.
//! 2. Only regular files are opened for reading and writing. A device, FIFO or socket that the
//!    stream has made is opened with `O_PATH`.
//! 3. An error names the command and its place in the stream. What has been made stays.
//! 4. Other users cannot enter the directory of a subvolume before its end ([`root`]).
//! 5. An attribute that belongs to btrfs or to a security module, and that the filesystem does not
//!    have, is left out with a note: the files are complete without it.
//! 6. Between subvolumes, no descriptor stays open.

mod copy;
mod root;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use butternut::Error;
use butternut::format::inode::{FileKind, Time};
use butternut::format::refused::{Refused, require};
use butternut::format::stream::{Command, components};
use butternut::format::uuid::Uuid;
use butternut::receive::{StreamEnd, decode_write};
use butternut_sys::verity_calls;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, chmod,
    fallocate, fstat, linkat, lremovexattr, lsetxattr, makedev, mkdirat, mknodat, openat, renameat,
    statat, symlinkat, syncfs, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::input::Input;
use crate::args::GlobalArgs;
use crate::failure::{Completion, Failure, Outcome, chain};
use crate::output::json::Object;
use crate::output::{Output, json, stderr_line, text};
use root::Root;

/// Flags that open a directory and refuse a symlink.
const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);
const SELINUX: &[u8] = b"security.selinux";
/// Flags that open a directory, which may be unreadable, and refuse a symlink.
const BY_PATH: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a command cannot be applied.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Stream(#[from] Refused),
    #[error(transparent)]
    Library(#[from] Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Unsupported(&'static str),
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The directory that subvolumes are made in.
struct Target {
    dir: OwnedFd,
    /// Its path, for notes.
    shown: String,
    /// The complete subvolumes, by their UUIDs.
    made: HashMap<Uuid, Made>,
    /// The one that the commands change.
    current: Option<Root>,
    /// The names of the complete subvolumes, in order.
    names: Vec<Vec<u8>>,
    is_root: bool,
    /// Which attributes have been left out (law 5).
    left_out: BTreeSet<&'static str>,
    is_quiet: bool,
}

/// The directory of a complete subvolume.
struct Made {
    name: Vec<u8>,
    /// Device and inode.
    identity: (u64, u64),
}

pub(super) fn run(global: &GlobalArgs, mut input: Input, dir: &Path, out: &mut Output) -> Outcome {
    let name = dir.display().to_string();
    let opened = openat(rustix::fs::CWD, dir, DIRECTORY - OFlags::NOFOLLOW, Mode::empty());
    let opened = opened.map_err(|errno| Failure::io(name.clone(), &errno.into()))?;
    let mut target = Target {
        dir: opened,
        shown: name.clone(),
        made: HashMap::new(),
        current: None,
        names: Vec::new(),
        is_root: geteuid().is_root(),
        left_out: BTreeSet::new(),
        is_quiet: global.quiet,
    };
    let applied = apply_all(&mut target, &mut input);
    let synced = syncfs(&target.dir).map_err(|errno| Failure::io(name.clone(), &errno.into()));
    let done = applied.and(synced);
    if target.names.is_empty() {
        // No subvolume is complete.
        done?;
        input.note_empty(global);
        return report(global, &target, out).map(|()| Completion::Success);
    }
    let reported = report(global, &target, out);
    done.and(reported).map(|()| Completion::Success)
}

/// Reports the complete subvolumes.
fn report(global: &GlobalArgs, target: &Target, out: &mut Output) -> Result<(), Failure> {
    let name = target.shown.as_str();
    if global.json {
        let names = target.names.iter().map(|name| Object::new().name("name", name).into());
        let subvolumes: Vec<serde_json::Value> = names.collect();
        let object = Object::new().put("directory", name).put("subvolumes", subvolumes);
        json::document(out, object)?;
    } else if global.verbose {
        for made in &target.names {
            stderr_line(&format!("{name}/{}: received", text::escaped(made)));
        }
    }
    Ok(())
}

fn apply_all(target: &mut Target, input: &mut Input) -> Result<(), Failure> {
    let name = input.name.clone();
    let failure = |error| Failure::of(name.clone(), &error);
    while input.stream.next_stream().map_err(failure)?.is_some() {
        loop {
            let (place, command) = input.stream.next_command().map_err(failure)?;
            target.apply(&command).map_err(|refusal| {
                let (what, path) = (command.name(), command.path().unwrap_or_default());
                let what = format!("{place}: {what} {}", path.escape_ascii());
                Failure::new(name.clone(), format!("{}: {}", what.trim_end(), chain(&refusal)))
            })?;
            if command == Command::End {
                break;
            }
        }
        if input.end == StreamEnd::Command {
            break;
        }
    }
    Ok(())
}

impl Target {
    fn apply(&mut self, command: &Command<'_>) -> Result<(), Refusal> {
        match *command {
            Command::Subvol { path, uuid, .. } => self.begin(path, uuid),
            Command::Snapshot { .. } => Err(Refusal::Unsupported(
                "the stream is incremental: receive it into a volume that has its parent",
            )),
            Command::UpdateExtent { .. } => {
                Err(Refusal::Unsupported("the stream has no data (btrfs send --no-data)"))
            }
            Command::Mkfile { .. }
            | Command::Mkdir { .. }
            | Command::Mknod { .. }
            | Command::Mkfifo { .. }
            | Command::Mksock { .. }
            | Command::Symlink { .. } => self.make(command),
            Command::Rename { .. }
            | Command::Link { .. }
            | Command::Unlink { .. }
            | Command::Rmdir { .. } => self.change_names(command),
            Command::Write { .. }
            | Command::Clone { .. }
            | Command::Truncate { .. }
            | Command::Fallocate { .. }
            | Command::EncodedWrite { .. } => self.change_data(command),
            Command::SetXattr { .. }
            | Command::RemoveXattr { .. }
            | Command::Chmod { .. }
            | Command::Chown { .. }
            | Command::Utimes { .. } => self.set(command),
            Command::Fileattr { .. } => Ok(()),
            Command::EnableVerity { path, algorithm, block_bytes, salt, signature } => {
                let file = open_file(self.root()?, path, OFlags::RDONLY)?;
                let hash = algorithm.into();
                let enable = verity_calls::Enable { hash, block_bytes, salt, signature };
                Ok(verity_calls::enable(file.as_fd(), &enable)?)
            }
            Command::End => self.finish(),
        }
    }

    /// Makes the directory of a subvolume.
    fn begin(&mut self, path: &[u8], uuid: Uuid) -> Result<(), Refusal> {
        // A stream with several subvolumes has one END command for all of them.
        self.finish()?;
        let names = components(path)?;
        let [name] = names.as_slice() else {
            return Err(Refused::new("path", path.escape_ascii(), "one name").into());
        };
        self.current = Some(Root::make(self.dir.as_fd(), name, uuid)?);
        Ok(())
    }

    /// Completes the current subvolume, if there is one.
    fn finish(&mut self) -> Result<(), Refusal> {
        let Some(root) = self.current.take() else { return Ok(()) };
        root.finish()?;
        let stat = fstat(root.dir())?;
        let made = Made { name: root.name.clone(), identity: (stat.st_dev, stat.st_ino) };
        self.made.insert(root.uuid, made);
        self.names.push(root.name);
        Ok(())
    }

    fn root(&self) -> Result<BorrowedFd<'_>, Refusal> {
        let missing = || Refused::new("command", "no subvolume", "subvol before all others");
        Ok(self.current.as_ref().ok_or_else(missing)?.dir())
    }

    /// Opens the directory of a subvolume of the stream that data is cloned from.
    fn source(&self, uuid: Uuid) -> Result<OwnedFd, Refusal> {
        if let Some(root) = self.current.as_ref().filter(|root| root.uuid == uuid) {
            return Ok(root.dir().try_clone_to_owned()?);
        }
        let missing = || Refused::new("CLONE_UUID", uuid, "a subvolume of this stream");
        let made = self.made.get(&uuid).ok_or_else(missing)?;
        let dir = openat(&self.dir, &made.name[..], BY_PATH, Mode::empty())?;
        let stat = fstat(&dir)?;
        if (stat.st_dev, stat.st_ino) != made.identity {
            return Err(Refusal::Unsupported("another directory has replaced the clone source"));
        }
        Ok(dir)
    }

    /// Opens the directory of a path, and returns it with the last name: `.` for the root of the
    /// subvolume.
    fn entry<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Refusal> {
        entry(self.root()?, path)
    }

    /// As [`Self::entry`], for a name that is made or removed.
    fn name<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Refusal> {
        require(!path.is_empty(), "path", "the root of the subvolume", "a name in it")?;
        self.entry(path)
    }

    /// Returns the mode of a file. Without the owner that the stream names, a program must not run
    /// as its owner or group.
    fn permissions(&self, mode: u32) -> Mode {
        Mode::from_raw_mode(mode & if self.is_root { 0o7777 } else { 0o1777 })
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn make(&self, command: &Command<'_>) -> Result<(), Refusal> {
        let (dir, name) = self.name(command.path().unwrap_or_default())?;
        let node = |kind: FileType, mode: u32, device: u64| {
            Ok(mknodat(&dir, name, kind, self.permissions(mode), device)?)
        };
        match *command {
            Command::Mkfile { .. } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)?;
                Ok(())
            }
            Command::Mkdir { .. } => Ok(mkdirat(&dir, name, Mode::RWXU)?),
            Command::Symlink { target, .. } => Ok(symlinkat(target, &dir, name)?),
            Command::Mkfifo { mode, .. } => node(FileType::Fifo, mode, 0),
            Command::Mksock { mode, .. } => node(FileType::Socket, mode, 0),
            Command::Mknod { mode, device, .. } => {
                let kind = match FileKind::from_mode(mode) {
                    Some(FileKind::CharDevice) => FileType::CharacterDevice,
                    Some(FileKind::BlockDevice) => FileType::BlockDevice,
                    _ => {
                        let have = format!("{mode:#o}");
                        return Err(Refused::new("MODE", have, "the type of a device").into());
                    }
                };
                node(kind, mode, makedev(device.major(), device.minor()))
            }
            _ => Ok(()),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn change_names(&self, command: &Command<'_>) -> Result<(), Refusal> {
        let (dir, name) = self.name(command.path().unwrap_or_default())?;
        match *command {
            Command::Rename { to, .. } => {
                let (to_dir, to_name) = self.name(to)?;
                renameat(&dir, name, &to_dir, to_name)?;
            }
            Command::Link { existing, .. } => {
                let (from, from_name) = self.name(existing)?;
                linkat(&from, from_name, &dir, name, AtFlags::empty())?;
            }
            Command::Unlink { .. } => unlinkat(&dir, name, AtFlags::empty())?,
            Command::Rmdir { .. } => unlinkat(&dir, name, AtFlags::REMOVEDIR)?,
            _ => {}
        }
        Ok(())
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn change_data(&self, command: &Command<'_>) -> Result<(), Refusal> {
        let path = command.path().unwrap_or_default();
        let file = open_file(self.root()?, path, OFlags::WRONLY)?;
        match *command {
            Command::Write { offset, data, .. } => file.write_all_at(data, offset)?,
            Command::EncodedWrite { offset, .. } => {
                file.write_all_at(&decode_write(command)?.unwrap_or_default(), offset)?;
            }
            Command::Clone { offset, len, clone_uuid, clone_path, clone_offset, .. } => {
                let source = self.source(clone_uuid)?;
                let source = open_file(source.as_fd(), clone_path, OFlags::RDONLY)?;
                copy::clone_range((&source, clone_offset), (&file, offset), len)?;
            }
            Command::Truncate { size, .. } => file.set_len(size)?,
            Command::Fallocate { mode, offset, len, .. } => {
                fallocate(&file, FallocateFlags::from_bits_retain(mode), offset, len)?;
            }
            _ => {}
        }
        Ok(())
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn set(&mut self, command: &Command<'_>) -> Result<(), Refusal> {
        let is_root = self.is_root;
        let mode = match *command {
            Command::Chmod { mode, .. } => self.permissions(mode),
            _ => Mode::empty(),
        };
        if self.current.as_mut().is_some_and(|root| root.defer(command, is_root, mode)) {
            return Ok(());
        }
        let (dir, name) = self.entry(command.path().unwrap_or_default())?;
        // The path of the entry for system calls that do not take a descriptor of its directory.
        let mut proc_path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        proc_path.extend_from_slice(name);
        match *command {
            Command::SetXattr { name: xattr, value, .. } => {
                let set = lsetxattr(proc_path.as_slice(), xattr, value, XattrFlags::empty());
                self.leave_out(xattr, set)?;
            }
            Command::RemoveXattr { name: xattr, .. } => {
                self.leave_out(xattr, lremovexattr(proc_path.as_slice(), xattr))?;
            }
            Command::Chmod { .. } => {
                // chmod(2) would follow a symlink: the descriptor is of the entry itself.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let entry = openat(&dir, name, flags, Mode::empty())?;
                chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), mode)?;
            }
            Command::Chown { uid, gid, .. } if is_root => {
                root::set_owner(dir.as_fd(), name, uid, gid)?;
            }
            Command::Utimes { atime, mtime, .. } => {
                let times =
                    Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
                utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Target {
    /// Passes the result of a change of an attribute on, unless the attribute may be left out
    /// (law 5).
    fn leave_out(&mut self, xattr: &[u8], changed: Result<(), Errno>) -> Result<(), Errno> {
        let Err(errno) = changed else { return Ok(()) };
        let is_btrfs = xattr.starts_with(b"btrfs.");
        let left_out = match errno {
            Errno::OPNOTSUPP if is_btrfs => "properties of btrfs (btrfs.*)",
            Errno::OPNOTSUPP if xattr == SELINUX => "labels of SELinux",
            Errno::PERM | Errno::ACCESS if xattr == SELINUX && !self.is_root => "labels of SELinux",
            _ => return Err(errno),
        };
        if self.left_out.insert(left_out) && !self.is_quiet {
            stderr_line(&format!("{}: note: {left_out} are left out", self.shown));
        }
        Ok(())
    }
}

/// Opens the directory of a path below `root`, and returns it with the last name.
fn entry<'p>(root: BorrowedFd<'_>, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Refusal> {
    let mut names = components(path)?;
    let name = names.pop().unwrap_or(b".");
    let mut at = root.try_clone_to_owned()?;
    for name in names {
        at = openat(&at, name, DIRECTORY, Mode::empty())?;
    }
    Ok((at, name))
}

/// Opens a regular file at a path below `root`.
fn open_file(root: BorrowedFd<'_>, path: &[u8], access: OFlags) -> Result<File, Refusal> {
    let (dir, name) = entry(root, path)?;
    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Refusal::Unsupported("not a regular file"));
    }
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(openat(&dir, name, flags, Mode::empty())?))
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() }
}
