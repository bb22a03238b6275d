//! [`LibrarySubject`]: the library on a device, as a subject.
//!
//! In Linux the VFS checks names, kinds and permissions before it calls a filesystem. The library
//! stands below these checks, so they are made here in the VFS's way. Every other result is the
//! library's.

mod batch;
mod observe;
mod subvolumes;

use crate::bytes::Bytes;
use crate::content::{pattern, read_digest};
use crate::crash::workload::Engine;
use crate::errno;
use crate::model::Rules;
use crate::operation::{
    Allocating, File, Lane, Moment, Operation, Outcome, Renaming, Seeking, Setting, Special, flags,
};
use crate::subject::Subject;
use crate::tree::Tree;
use crate::volume;
use anyhow::{Context, Result};
use butternut::{
    Allocate, AttributeFlags, Compress, EnospcInjector, FileId, FileKind, Filesystem, MountOptions,
    NewInode, Privileges, RenameFlags, SetAttributes, SetTime, SetXattr, Stat, Time, Tunables,
};
use butternut_device::Device;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME_BYTES_MAX: usize = 255;
const XATTR_VALUE_BYTES_MAX: u64 = 65_536;

/// Commits happen only when a script has one, so that a run is reproducible. In seconds.
const COMMIT_SECONDS: u32 = 1 << 30;

pub struct LibrarySubject {
    device: Arc<dyn Device>,
    options: MountOptions,
    filesystem: Option<Filesystem>,
    open: BTreeMap<u8, butternut::File>,
    /// Created for the first batch.
    queue: Option<batch::Batches>,
}

type Answer<T> = Result<T, i32>;

/// The library as an engine for crash tests, with compressed writes.
#[derive(Clone, Copy, Debug)]
pub struct CompressingEngine(pub Compress);

impl Engine for CompressingEngine {
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Subject>> {
        let options = LibrarySubject::committing().compress(Some(self.0));
        Ok(Box::new(LibrarySubject::open_as(device, options)?))
    }

    fn check(&self, device: &Arc<dyn Device>) -> Result<()> {
        volume::check_crashed(device)
    }
}

/// The library as an engine for crash tests. A sync of a file commits, so a crash leaves one of the
/// states that the model had; the crashes of a log have judges of their own.
#[derive(Clone, Copy, Debug, Default)]
pub struct LibraryEngine;

impl Engine for LibraryEngine {
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Subject>> {
        Ok(Box::new(LibrarySubject::open_as(device, LibrarySubject::committing())?))
    }

    fn check(&self, device: &Arc<dyn Device>) -> Result<()> {
        volume::check_crashed(device)
    }
}

fn failed(error: &butternut::Error) -> i32 {
    error.errno()
}

trait IntoAnswer<T> {
    fn into_answer(self) -> Answer<T>;
}

impl<T> IntoAnswer<T> for Result<T, butternut::Error> {
    fn into_answer(self) -> Answer<T> {
        self.map_err(|error| failed(&error))
    }
}

impl LibrarySubject {
    pub fn open(device: Arc<dyn Device>) -> Result<LibrarySubject> {
        Self::open_as(device, Self::options())
    }

    /// Opens a volume whose file data is compressed.
    pub fn open_compressing(
        device: Arc<dyn Device>,
        compress: Option<Compress>,
    ) -> Result<LibrarySubject> {
        Self::open_as(device, Self::options().compress(compress))
    }

    /// Opens a volume whose reservations the injector can fail.
    pub fn open_with_injector(
        device: Arc<dyn Device>,
        enospc_injector: &EnospcInjector,
    ) -> Result<LibrarySubject> {
        let enospc_injector = Some(enospc_injector.clone());
        Self::open_as(device, Self::options().enospc_injector(enospc_injector))
    }

    /// Returns the options of a subject whose syncs commit.
    fn committing() -> MountOptions {
        Self::options().tunables(Tunables::default().log_tree(false))
    }

    /// Returns the options of a subject; tests change some of them.
    pub fn options() -> MountOptions {
        MountOptions::default().read_only(false).commit_seconds(COMMIT_SECONDS).workers(1)
    }

    /// Opens a volume with these options, now and at each [`Operation::Reopen`].
    pub fn open_as(device: Arc<dyn Device>, options: MountOptions) -> Result<LibrarySubject> {
        let open = BTreeMap::new();
        let mut subject = LibrarySubject { device, options, filesystem: None, open, queue: None };
        subject.mount()?;
        Ok(subject)
    }

    /// Returns whether the volume can be changed, that is, no commit has failed.
    pub fn is_writable(&self) -> bool {
        self.filesystem().is_writable()
    }

    fn mount(&mut self) -> Result<()> {
        let devices = vec![Arc::clone(&self.device)];
        self.filesystem = Some(Filesystem::open_devices(devices, &self.options)?);
        Ok(())
    }

    fn filesystem(&self) -> &Filesystem {
        self.filesystem.as_ref().expect("open between operations")
    }

    fn stat(&self, id: FileId) -> Answer<Stat> {
        self.filesystem().stat(id).into_answer()
    }

    /// Looks up one component of a path as the VFS does.
    fn step(&self, dir: FileId, name: &[u8]) -> Answer<FileId> {
        match self.stat(dir)?.kind {
            FileKind::Directory => {}
            // The VFS follows it, and no symlink has an existing target.
            FileKind::Symlink => return Err(errno::NOT_FOUND),
            _ => return Err(errno::NOT_DIRECTORY),
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(errno::NAME_TOO_LONG);
        }
        self.filesystem().lookup(dir, name).into_answer()
    }

    fn parent<'a>(&self, at: &'a Bytes) -> Answer<(FileId, &'a [u8])> {
        let mut components = at.components();
        let name = components.next_back().ok_or(errno::INVALID)?;
        let mut dir = self.filesystem().root();
        for component in components {
            dir = self.step(dir, component)?;
        }
        match self.stat(dir)?.kind {
            FileKind::Directory => Ok((dir, name)),
            FileKind::Symlink => Err(errno::NOT_FOUND),
            _ => Err(errno::NOT_DIRECTORY),
        }
    }

    fn lookup(&self, at: &Bytes) -> Answer<FileId> {
        if at.0.is_empty() {
            return Ok(self.filesystem().root());
        }
        let (dir, name) = self.parent(at)?;
        self.step(dir, name)
    }

    /// Opens a regular file by name. For writing, the VFS's checks of immutable and append-only
    /// files are made.
    fn open_file(&self, at: &Bytes, how: Opening) -> Answer<butternut::File> {
        let id = self.lookup(at)?;
        match self.stat(id)?.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(errno::IS_DIRECTORY),
            FileKind::Symlink => return Err(errno::LOOP),
            _ => return Err(errno::NO_ADDRESS),
        }
        self.may_open(id, how)?;
        self.filesystem().open_file(id).into_answer()
    }

    /// Makes the VFS's checks of what an open file may be used for, in its order.
    fn may_open(&self, id: FileId, how: Opening) -> Answer<()> {
        if how == Opening::Read {
            return Ok(());
        }
        let flags = self.flags(id)?;
        if flags & flags::IMMUTABLE != 0 {
            return Err(errno::NOT_PERMITTED);
        }
        self.may_change_subvolume(id)?;
        if how == Opening::Write && flags & flags::APPEND != 0 {
            return Err(errno::NOT_PERMITTED);
        }
        Ok(())
    }

    fn flags(&self, id: FileId) -> Answer<u32> {
        Ok(self.filesystem().attribute_flags(id).into_answer()?.0)
    }

    fn with_file<T>(
        &self,
        file: &File,
        how: Opening,
        run: impl FnOnce(&butternut::File) -> Answer<T>,
    ) -> Answer<T> {
        match file {
            File::Open(slot) => run(self.open.get(slot).ok_or(errno::BAD_FILE)?),
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
        if let Operation::Batch { requests } = operation {
            return self.batch(requests).map(Outcome::Batch);
        }
        self.data_operation(operation)
    }

    fn name_operation(&mut self, operation: &Operation) -> Option<Answer<()>> {
        Some(match operation {
            Operation::Create { at, mode } => self.make(at, |filesystem, dir, name| {
                filesystem.create(dir, name, &NewInode::new(*mode)).into_answer().map(drop)
            }),
            Operation::Mkdir { at, mode } => self.make(at, |filesystem, dir, name| {
                filesystem.mkdir(dir, name, &NewInode::new(mode & 0o1777)).into_answer().map(drop)
            }),
            Operation::Mknod { at, kind, mode, major, minor } => {
                let kind = match kind {
                    Special::Fifo => FileKind::Fifo,
                    Special::Character => FileKind::CharDevice,
                    Special::Block => FileKind::BlockDevice,
                    Special::Socket => FileKind::Socket,
                };
                self.make(at, |filesystem, dir, name| {
                    let made =
                        filesystem.mknod(dir, name, &NewInode::new(*mode), kind, (*major, *minor));
                    made.into_answer().map(drop)
                })
            }
            Operation::Symlink { at, target } => self.make(at, |filesystem, dir, name| {
                let made = filesystem.symlink(dir, name, &target.0, &NewInode::new(0o777));
                made.into_answer().map(drop)
            }),
            Operation::Link { from, to } => self.lookup(from).and_then(|id| self.link(id, to)),
            Operation::Unlink { at } => {
                self.make(at, |filesystem, dir, name| filesystem.unlink(dir, name).into_answer())
            }
            Operation::Rmdir { at } => {
                self.make(at, |filesystem, dir, name| filesystem.rmdir(dir, name).into_answer())
            }
            Operation::Rename { from, to, how } => self.rename(from, to, *how),
            Operation::Tmpfile { dir, mode, slot } => self.tmpfile(dir, *mode, *slot),
            Operation::LinkOpen { slot, to } => {
                let open = self.open.get(slot).map(butternut::File::id).ok_or(errno::BAD_FILE);
                open.and_then(|id| self.link(id, to))
            }
            Operation::Open { at, slot } => {
                self.open.remove(slot);
                let opened = self.open_file(at, Opening::Write);
                opened.map(|file| drop(self.open.insert(*slot, file)))
            }
            Operation::Close { slot } => self.open.remove(slot).map(drop).ok_or(errno::BAD_FILE),
            _ => return None,
        })
    }

    fn make(
        &self,
        at: &Bytes,
        call: impl FnOnce(&Filesystem, FileId, &[u8]) -> Answer<()>,
    ) -> Answer<()> {
        let (dir, name) = self.parent(at)?;
        call(self.filesystem(), dir, name)
    }

    fn link(&self, id: FileId, to: &Bytes) -> Answer<()> {
        self.make(to, |filesystem, dir, name| filesystem.link(id, dir, name).into_answer())
    }

    fn rename(&self, from: &Bytes, to: &Bytes, how: Renaming) -> Answer<()> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        let flags = RenameFlags {
            no_replace: how == Renaming::NoReplace,
            exchange: how == Renaming::Exchange,
            whiteout: (how == Renaming::Whiteout).then_some((0, 0)),
        };
        self.filesystem().rename(from, to, flags).into_answer()
    }

    fn tmpfile(&mut self, dir: &Bytes, mode: u32, slot: u8) -> Answer<()> {
        self.open.remove(&slot);
        let dir = self.lookup(dir)?;
        match self.stat(dir)?.kind {
            FileKind::Directory => {}
            FileKind::Symlink => return Err(errno::LOOP),
            _ => return Err(errno::NOT_DIRECTORY),
        }
        let file = self.filesystem().open_unnamed(dir, &NewInode::new(mode)).into_answer()?;
        self.open.insert(slot, file);
        Ok(())
    }

    fn attribute_operation(&self, operation: &Operation) -> Option<Answer<()>> {
        Some(match operation {
            Operation::Chmod { at, mode } => self.lookup(at).and_then(|id| {
                if self.stat(id)?.kind == FileKind::Symlink {
                    return Err(errno::NOT_SUPPORTED);
                }
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                self.set_attributes(id, &set)
            }),
            Operation::Chown { at, uid, gid } => self.lookup(at).and_then(|id| {
                // The model has no exception for any caller.
                let privileges = Privileges::Strip;
                let set =
                    SetAttributes { uid: *uid, gid: *gid, privileges, ..SetAttributes::default() };
                self.set_attributes(id, &set)
            }),
            Operation::Times { at, atime, mtime } => self.lookup(at).and_then(|id| {
                let (atime, mtime) = (atime.map(set_time), mtime.map(set_time));
                let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
                self.set_attributes(id, &set)
            }),
            Operation::SetXattr { at, name, bytes, seed, how } => {
                let how = match how {
                    Setting::Any => SetXattr::Either,
                    Setting::Create => SetXattr::Create,
                    Setting::Replace => SetXattr::Replace,
                };
                self.for_xattr(at, name, *bytes).and_then(|id| {
                    let value = pattern(*seed, usize::try_from(*bytes).expect("fits memory"));
                    self.filesystem().set_xattr(id, &name.0, &value, how).into_answer()
                })
            }
            Operation::RemoveXattr { at, name } => self
                .for_xattr(at, name, 0)
                .and_then(|id| self.filesystem().remove_xattr(id, &name.0).into_answer()),
            Operation::SetAcl { at, is_default, acl } => {
                let value = acl.as_ref().map(crate::acl::Acl::to_xattr);
                self.set_acl(at, *is_default, value)
            }
            Operation::SetFlags { at, flags } => self.lookup(at).and_then(|id| {
                match self.stat(id)?.kind {
                    FileKind::File | FileKind::Directory => {}
                    _ => return Err(errno::NOT_A_TTY),
                }
                self.filesystem().set_attribute_flags(id, AttributeFlags(*flags)).into_answer()
            }),
            _ => return None,
        })
    }

    fn set_attributes(&self, id: FileId, set: &SetAttributes) -> Answer<()> {
        self.filesystem().set_attributes(id, set).into_answer().map(drop)
    }

    /// Makes the VFS's checks of an xattr's name, its size and the kind of its inode.
    fn for_xattr(&self, at: &Bytes, name: &Bytes, bytes: u64) -> Answer<FileId> {
        if name.0.len() > NAME_BYTES_MAX {
            return Err(errno::OUT_OF_RANGE);
        }
        if bytes > XATTR_VALUE_BYTES_MAX {
            return Err(errno::TOO_BIG);
        }
        let id = self.lookup(at)?;
        let bears = matches!(self.stat(id)?.kind, FileKind::File | FileKind::Directory);
        if name.0.starts_with(b"user.") && !bears {
            return Err(errno::NOT_PERMITTED);
        }
        Ok(id)
    }

    fn set_acl(&self, at: &Bytes, is_default: bool, value: Option<Vec<u8>>) -> Answer<()> {
        let id = self.lookup(at)?;
        let kind = self.stat(id)?.kind;
        if self.flags(id)? & (flags::IMMUTABLE | flags::APPEND) != 0 {
            return Err(errno::NOT_PERMITTED);
        }
        if kind == FileKind::Symlink {
            return Err(errno::NOT_SUPPORTED);
        }
        if is_default && kind != FileKind::Directory {
            return if value.is_some() { Err(errno::ACCESS) } else { Ok(()) };
        }
        let name = if is_default { crate::acl::DEFAULT_NAME } else { crate::acl::ACCESS_NAME };
        let filesystem = self.filesystem();
        match value {
            Some(value) => {
                filesystem.set_xattr(id, name.as_bytes(), &value, SetXattr::Either).into_answer()
            }
            // Removing an ACL that does not exist succeeds.
            None => match filesystem.remove_xattr(id, name.as_bytes()).into_answer() {
                Err(errno::NO_DATA) => Ok(()),
                other => other,
            },
        }
    }

    fn data_operation(&self, operation: &Operation) -> Answer<Outcome> {
        match operation {
            Operation::Write { file, offset, bytes, seed, lane } => {
                let memory = pattern(*seed, usize::try_from(*bytes).expect("fits memory"));
                self.with_file(file, Opening::Write, |file| {
                    write_all(file, *offset, &memory, *lane)
                })?;
            }
            Operation::Append { at, bytes, seed } => {
                let memory = pattern(*seed, usize::try_from(*bytes).expect("fits memory"));
                let file = self.open_file(at, Opening::Append)?;
                let mut rest = &memory[..];
                while !rest.is_empty() {
                    let (_, written) = file.append(rest, Privileges::Keep).into_answer()?;
                    rest = &rest[written..];
                }
            }
            Operation::Truncate { file, size } => {
                self.with_file(file, Opening::Write, |file| file.truncate(*size).into_answer())?;
            }
            Operation::Fallocate { file, how, offset, bytes } => {
                let range = *offset..offset + bytes;
                let how = allocating(*how);
                self.with_file(file, Opening::Write, |file| {
                    file.allocate(range, how).into_answer()
                })?;
            }
            Operation::Read { file, offset, bytes, lane } => {
                let memory = self.with_file(file, Opening::Read, |file| {
                    read_all(file, *offset, *bytes, *lane)
                })?;
                let (bytes, digest) = (memory.len() as u64, read_digest(&memory));
                return Ok(Outcome::Read { bytes, digest });
            }
            Operation::Seek { file, what, offset } => {
                let found = self.with_file(file, Opening::Read, |file| match what {
                    Seeking::Data => file.seek_data(*offset).into_answer(),
                    Seeking::Hole => file.seek_hole(*offset).into_answer(),
                })?;
                return found.map(Outcome::Found).ok_or(errno::NO_ADDRESS);
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                return self.with_file(from, Opening::Read, |from| {
                    self.with_file(to, Opening::Write, |to| {
                        let copied = to.copy_range(*to_offset, from, *from_offset, *bytes);
                        copied.into_answer().map(Outcome::Copied)
                    })
                });
            }
            Operation::Fsync { file } => {
                self.with_file(file, Opening::Read, |file| file.sync_all().into_answer())?;
            }
            Operation::Sync => self.filesystem().sync().into_answer()?,
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

/// The purpose of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    Read,
    Append,
    Write,
}

impl Subject for LibrarySubject {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome> {
        if *operation == Operation::Reopen {
            self.open.clear();
            self.queue = None;
            self.filesystem.take().context("is open")?.close()?;
            self.mount()?;
            return Ok(Outcome::Done);
        }
        Ok(self.answer(operation).unwrap_or_else(Outcome::Failed))
    }

    fn rules(&self) -> Rules {
        let compression = self
            .options
            .compress
            .map_or(Rules::default().compression, |compress| compress.compressor.name());
        let node_bytes = self.filesystem().super_block().node_bytes();
        Rules {
            guards_open_files: true,
            checks_subvolumes_first: true,
            shows_xattrs_of_deleted: false,
            node_bytes,
            compression,
        }
    }

    fn tree(&mut self) -> Result<Tree> {
        observe::tree(self.filesystem(), &self.open)
    }
}

fn set_time(moment: Moment) -> SetTime {
    SetTime::At(Time { secs: moment.secs, nanos: moment.nanos })
}

fn allocating(how: Allocating) -> Allocate {
    match how {
        Allocating::Allocate => Allocate::Extend,
        Allocating::KeepSize => Allocate::KeepSize,
        Allocating::PunchHole => Allocate::PunchHole,
        Allocating::ZeroRange => Allocate::Zero,
        Allocating::ZeroRangeKeepSize => Allocate::ZeroKeepSize,
    }
}

fn write_all(file: &butternut::File, offset: u64, memory: &[u8], lane: Lane) -> Answer<()> {
    let mut done = 0;
    loop {
        let (at, rest) = (offset + done as u64, &memory[done..]);
        let written = match lane {
            Lane::Cached => file.write_at(at, rest),
            Lane::Direct => file.write_direct(at, rest, Privileges::Keep),
            Lane::Uncached => file.write_uncached(at, rest, Privileges::Keep),
        };
        done += written.into_answer()?;
        if done == memory.len() {
            return Ok(());
        }
    }
}

fn read_all(file: &butternut::File, offset: u64, bytes: u64, lane: Lane) -> Answer<Vec<u8>> {
    let mut memory = vec![0; usize::try_from(bytes).expect("fits memory")];
    let mut done = 0;
    while done < memory.len() {
        let (at, rest) = (offset + done as u64, &mut memory[done..]);
        let transferred = match lane {
            Lane::Cached => file.read_at(at, rest),
            Lane::Direct => file.read_direct(at, rest),
            Lane::Uncached => file.read_uncached(at, rest),
        };
        let transferred = transferred.into_answer()?;
        if transferred == 0 {
            break;
        }
        done += transferred;
    }
    memory.truncate(done);
    Ok(memory)
}
