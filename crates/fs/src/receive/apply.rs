//! [`Receiver`]: applies the commands of a stream to subvolumes.

use super::data::{clone_range, count_cloned, count_extents, fallocate};
use super::in_progress::ReceiveInProgress;
use super::limits::Limits;
use super::resume::{Checkpoint, Progress};
use super::serving::{HiddenName, ReceiveServing, check};
use super::source::Source;
use super::{ReceiveReport, ReceivedSubvolume, Unfinished, decode_write};
use crate::{
    Error, File, FileId, FileKind, Filesystem, NewInode, RenameFlags, Result, SetAttributes,
    SetTime, SetXattr, SnapshotAccess, SubvolumeInfo, VerityHash, VerityOptions,
};
use butternut_format::inode::{DeviceNumber, Time};
use butternut_format::refused::{Refused, require};
use butternut_format::stream::{Command, components};
use butternut_format::uuid::Uuid;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// Permission bits of new inodes until the stream sets them.
const FILE_PERMISSIONS: u32 = 0o600;
const DIRECTORY_PERMISSIONS: u32 = 0o700;
const PERMISSIONS: u32 = 0o7777;

/// Receives the subvolumes of a stream.
#[derive(Debug)]
pub(super) struct Receiver<'a, 'r> {
    filesystem: &'a Filesystem,
    /// The directory in which the subvolumes are made.
    dir: FileId,
    current: Option<Current>,
    /// The subvolumes that the commands of the current one refer to, its parent among them.
    sources: HashMap<Uuid, Source<'a>>,
    /// Set while the current subvolume has checkpoints.
    in_progress: Option<ReceiveInProgress<'a>>,
    pub(super) report: &'r mut ReceiveReport,
    /// Make a checkpoint after this number of bytes of the stream; `None` makes none.
    checkpoint_bytes: Option<u64>,
    /// The commands are of a subvolume that is complete, and are not applied.
    is_present: bool,
    /// The commands since the one that began the subvolume.
    progress: Progress,
    /// A server receives, for the programs of a mount.
    serving: Option<ReceiveServing<'a>>,
    limits: Limits,
}

/// The subvolume that the commands change.
#[derive(Debug)]
struct Current {
    id: u64,
    name: Vec<u8>,
    uuid: Uuid,
    ctransid: u64,
    is_snapshot: bool,
    /// The checkpoints, the last one last; empty if there are to be none.
    checkpoints: Vec<Checkpoint>,
    /// The commands whose effects the subvolume has.
    applied: Progress,
    /// Bytes of the stream since the last checkpoint.
    bytes: u64,
    /// The UUID of the parent; `None` if it is the subvolume's origin.
    parent_uuid: Option<Uuid>,
    /// The file of the last write, which the next one often has, too.
    open: Option<(Vec<u8>, File)>,
    /// The name is hidden until this is dropped.
    hidden: Option<HiddenName>,
}

impl<'a, 'r> Receiver<'a, 'r> {
    pub(super) fn new(
        filesystem: &'a Filesystem,
        dir: FileId,
        checkpoint_bytes: Option<u64>,
        limits: Limits,
        report: &'r mut ReceiveReport,
    ) -> Self {
        let (progress, sources) = (Progress::default(), HashMap::new());
        let (current, is_present, serving, in_progress) = (None, false, None, None);
        Self {
            filesystem,
            dir,
            current,
            sources,
            in_progress,
            report,
            checkpoint_bytes,
            is_present,
            progress,
            serving,
            limits,
        }
    }

    /// Hides the names of subvolumes until they are complete, or deleted, and asks whether to go on
    /// while a command takes long.
    pub(super) fn serving(self, serving: ReceiveServing<'a>) -> Self {
        Self { serving: Some(serving), ..self }
    }

    /// Applies a command of the stream that has `bytes` bytes, or skips it where the subvolume has
    /// its effects. `checksum` is its stored checksum.
    pub(super) fn next(&mut self, command: &Command<'_>, checksum: u32, bytes: u64) -> Result<()> {
        self.limits.add_stream(bytes);
        let begins = matches!(command, Command::Subvol { .. } | Command::Snapshot { .. });
        if begins || *command == Command::End {
            self.is_present = false;
            if let Some(current) = &self.current
                && self.progress.commands < current.applied.commands
            {
                self.progress.require(current.applied)?;
            }
        }
        if begins {
            // The last subvolume is complete before the commands of the next one are counted.
            self.finish()?;
            self.progress = Progress::default();
        }
        if *command != Command::End {
            self.progress.add(checksum);
        }
        if self.is_present {
            return Ok(());
        }
        if let Some(current) = &self.current
            && *command != Command::End
            && self.progress.commands <= current.applied.commands
        {
            let is_last = self.progress.commands == current.applied.commands;
            return if is_last { self.progress.require(current.applied) } else { Ok(()) };
        }
        self.apply(command)?;
        let Some(current) = &mut self.current else { return Ok(()) };
        current.applied = if begins { current.applied } else { self.progress };
        current.bytes += bytes;
        if self.checkpoint_bytes.is_some_and(|limit| current.bytes >= limit) {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Makes a checkpoint, and deletes the one before it.
    fn checkpoint(&mut self) -> Result<()> {
        let filesystem = self.filesystem;
        let Some(current) = &mut self.current else { return Ok(()) };
        current.bytes = 0;
        current.open = None;
        let last = current.checkpoints.last();
        if last.is_none_or(|last| current.applied.commands <= last.progress.commands) {
            return Ok(());
        }
        filesystem.require_written(current.id)?;
        filesystem.wait_for_orphans_of(current.id)?;
        let name = filesystem.free_checkpoint_name(self.dir, current.applied, current.uuid)?;
        let _hidden = self.serving.map(|serving| serving.hide_name(&name));
        let mark = current.applied.mark(current.uuid);
        filesystem.create_checkpoint(Some(current.id), (self.dir, &name), mark)?;
        let found = filesystem.checkpoints(self.dir, current.uuid, self.serving)?;
        self.report.add_changed(found.changed);
        current.checkpoints = filesystem.keep_last(self.dir, found.usable, self.report)?;
        Ok(())
    }

    /// Ends a receive that has failed: keeps the commands that are applied, if it can be resumed,
    /// and deletes the subvolume that is not complete. One that cannot be deleted stays writable,
    /// so no stream uses it as its parent, and is reported.
    pub(super) fn interrupt(&mut self) {
        if let Some(current) = &self.current
            && current.applied == self.progress
        {
            // Without this checkpoint, more commands are applied again; the first error is
            // reported.
            self.checkpoint().unwrap_or_default();
        }
        if let Some(current) = &self.current {
            let last = current.checkpoints.last();
            self.report.resumable = last.map(|last| last.progress.commands);
        }
        self.report.unfinished = self.discard();
    }

    /// Deletes the subvolume that is not complete. One that cannot be deleted stays writable, so no
    /// stream uses it as its parent, and is returned.
    fn discard(&mut self) -> Option<Unfinished> {
        let Current { id, name, open, hidden, .. } = self.current.take()?;
        self.sources.clear();
        drop(open);
        // Another thread may have given the name to another subvolume.
        let deleted = match self.filesystem.delete_subvolume_of_id(self.dir, &name, id) {
            // Another thread has deleted it.
            Err(Error::NotFound) if self.filesystem.is_deleted(id) => Ok(()),
            deleted => deleted,
        };
        // Others may have the name now.
        let is_hidden = hidden.is_some();
        drop(hidden);
        // On a mount, the cleaner frees the space, with that of all others.
        let clean = || if is_hidden { Ok(Vec::new()) } else { self.filesystem.clean_subvolumes() };
        let cleaned = deleted.and_then(|()| clean());
        // The caller may abandon what is not committed, and with it the space. Lost data of other
        // files is left for a call that returns the error.
        let committed = cleaned.and_then(|_| self.filesystem.sync_names());
        self.in_progress = None;
        committed.err().map(|error| Unfinished { name, error })
    }

    /// Applies one command.
    pub(super) fn apply(&mut self, command: &Command<'_>) -> Result<()> {
        match *command {
            Command::Subvol { path, uuid, ctransid } => self.begin(path, uuid, ctransid, None),
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                self.begin(path, uuid, ctransid, Some((clone_uuid, clone_ctransid)))
            }
            Command::End => self.finish(),
            Command::UpdateExtent { .. } => Err(Error::Stream(Refused::new(
                "stream",
                "no data (btrfs send --no-data)",
                "the data of the files",
            ))),
            Command::Write { .. }
            | Command::EncodedWrite { .. }
            | Command::Clone { .. }
            | Command::Fallocate { .. } => self.write(command),
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
            Command::SetXattr { .. }
            | Command::RemoveXattr { .. }
            | Command::Truncate { .. }
            | Command::Chmod { .. }
            | Command::Chown { .. }
            | Command::Utimes { .. }
            | Command::Fileattr { .. } => self.set(command),
            Command::EnableVerity { .. } => self.seal(command),
        }
    }

    /// Begins a subvolume: an empty one, or a snapshot of `parent`.
    fn begin(
        &mut self,
        path: &[u8],
        uuid: Uuid,
        ctransid: u64,
        parent: Option<(Uuid, u64)>,
    ) -> Result<()> {
        self.sources.clear();
        require(!uuid.is_nil(), "UUID", uuid, "not zero").map_err(Error::Stream)?;
        let names = components(path).map_err(Error::Stream)?;
        let [name] = names.as_slice() else {
            let refused = Refused::new("path", path.escape_ascii(), "one name");
            return Err(Error::Stream(refused));
        };
        let is_resumable = self.checkpoint_bytes.is_some();
        // That of the last subvolume ends first.
        self.in_progress = None;
        if is_resumable {
            self.in_progress = Some(ReceiveInProgress::begin(
                &self.filesystem.write_state()?.receives,
                (self.dir, uuid),
            )?);
        }
        if is_resumable && self.is_complete(name, uuid, ctransid)? {
            self.is_present = true;
            self.report.present += 1;
            return Ok(());
        }
        let source = match parent {
            None => None,
            Some((uuid, ctransid)) => {
                let found = self.source(uuid, ctransid)?;
                Some((found.id, Uuid(found.uuid)))
            }
        };
        let mut checkpoints = Vec::new();
        if is_resumable {
            checkpoints = self.prepare(name, uuid, source.map(|(id, _)| id))?;
        }
        let last = checkpoints.last();
        // Of one command: no later one is skipped, so nothing else compares it (law 2 of `resume`).
        if let Some(last) = last.filter(|last| last.progress.commands <= self.progress.commands) {
            self.progress.require(last.progress)?;
        }
        // A name that exists stays visible.
        if self.serving.is_some() && self.filesystem.lookup(self.dir, name).is_ok() {
            return Err(self.name_taken(name, uuid)?);
        }
        let hidden = self.serving.map(|serving| serving.hide_name(name));
        let kept_as_it_is = last.map(|last| self.filesystem.keep_checkpoint(last)).transpose()?;
        let origin = last.map(|last| last.id).or(source.map(|(id, _)| id));
        let access = SnapshotAccess::ReadWrite;
        let made = match origin {
            None => self.filesystem.create_subvolume(self.dir, name, &NewInode::new(0o755)),
            Some(origin) => self.filesystem.snapshot(origin, self.dir, name, access),
        };
        drop(kept_as_it_is);
        // The checkpoint stays.
        let kept = last.map(|last| last.progress.commands);
        let id = self.made(made, kept, (name, uuid))?;
        let applied = last.map_or(self.progress, |last| last.progress);
        let parent_uuid = last.map(|_| source.map_or(Uuid([0; 16]), |(_, uuid)| uuid));
        let (name, is_snapshot) = (name.to_vec(), parent.is_some());
        let (bytes, open) = (0, None);
        self.current = Some(Current {
            id,
            name,
            uuid,
            ctransid,
            is_snapshot,
            checkpoints,
            applied,
            bytes,
            parent_uuid,
            open,
            hidden,
        });
        // The first commands may have given the root attributes.
        let is_new = !is_snapshot && applied == self.progress;
        if is_new { self.strip(FileId::root_of(id)) } else { Ok(()) }
    }

    /// Returns whether the subvolume is complete, and durable. Its checkpoints are deleted then.
    fn is_complete(&mut self, name: &[u8], uuid: Uuid, ctransid: u64) -> Result<bool> {
        let found = self.filesystem.received_at(self.dir, name)?;
        let is_complete = found.is_some_and(|info| {
            info.read_only && info.received_uuid == uuid.0 && info.sent_generation == ctransid
        });
        if is_complete {
            // Memory shows what another receive completes before its commit is on disk.
            self.filesystem.commit()?;
            let left = self.filesystem.checkpoints(self.dir, uuid, self.serving)?;
            self.report.add_changed(left.changed);
            self.filesystem.delete_checkpoints(self.dir, &left.usable, self.report)?;
        }
        Ok(is_complete)
    }

    /// Deletes what a crash has left of a subvolume, and returns the checkpoint to go on from: a
    /// new one if there is none.
    fn prepare(&mut self, name: &[u8], uuid: Uuid, source: Option<u64>) -> Result<Vec<Checkpoint>> {
        let filesystem = self.filesystem;
        let found = filesystem.checkpoints(self.dir, uuid, self.serving)?;
        self.report.add_changed(found.changed);
        let mut found = found.usable;
        if let Some(info) = filesystem.received_at(self.dir, name)? {
            if !found.iter().any(|checkpoint| checkpoint.is_of(&info)) {
                return Err(self.name_taken(name, uuid)?);
            }
            let _hidden = self.serving.map(|serving| serving.hide_name(name));
            filesystem.delete_subvolume_of_id(self.dir, name, info.id)?;
        }
        if found.is_empty() {
            let name = filesystem.free_checkpoint_name(self.dir, self.progress, uuid)?;
            let _hidden = self.serving.map(|serving| serving.hide_name(&name));
            let mark = self.progress.mark(uuid);
            filesystem.create_checkpoint(source, (self.dir, &name), mark)?;
            found = filesystem.checkpoints(self.dir, uuid, self.serving)?.usable;
        }
        filesystem.keep_last(self.dir, found, self.report)
    }

    /// Records, where a subvolume could not be made, how many commands are kept for a resumed
    /// receive.
    fn made(
        &mut self,
        made: Result<u64>,
        kept: Option<u64>,
        (name, uuid): (&[u8], Uuid),
    ) -> Result<u64> {
        if made.is_err() {
            self.report.resumable = kept;
        }
        match made {
            Err(Error::Exists) => Err(self.name_taken(name, uuid)?),
            made => made,
        }
    }

    /// Returns the error of a name that an entry has: it may be what an interrupted receive of the
    /// same source has left.
    fn name_taken(&self, name: &[u8], uuid: Uuid) -> Result<Error> {
        let info = self.filesystem.received_at(self.dir, name)?;
        let is_complete = |info: &SubvolumeInfo| info.read_only || info.received_uuid != [0; 16];
        let Some(info) = info.filter(|info| !is_complete(info)) else { return Ok(Error::Exists) };
        let found = self.filesystem.checkpoints(self.dir, uuid, self.serving)?;
        let is_resumable = found.usable.iter().any(|checkpoint| checkpoint.is_of(&info));
        // Its checkpoint has no mark of this version: an older version, or a program, has written
        // it.
        let is_left = is_resumable || !found.changed.is_empty();
        Ok(if is_left { Error::IncompleteReceive { is_resumable } } else { Error::Exists })
    }

    /// Removes the attributes of a new inode: it has inherited them from its directory, where the
    /// source may have none.
    fn strip(&self, id: FileId) -> Result<()> {
        let names = self.filesystem.xattr_names(id)?;
        names.iter().try_for_each(|name| self.filesystem.remove_xattr(id, name))
    }

    /// Completes the current subvolume, if there is one.
    fn finish(&mut self) -> Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        current.open = None;
        let Current { id, uuid, ctransid, parent_uuid, .. } = *current;
        self.filesystem.set_received(id, uuid, ctransid, parent_uuid)?;
        let Some(Current { id, name, uuid, is_snapshot, checkpoints, .. }) = self.current.take()
        else {
            return Ok(());
        };
        let received = ReceivedSubvolume { id, name, uuid: uuid.0, is_snapshot };
        self.report.subvolumes.push(received);
        self.sources.clear();
        self.filesystem.delete_checkpoints(self.dir, &checkpoints, self.report)
    }

    fn current(&mut self) -> Result<&mut Current> {
        self.current.as_mut().ok_or_else(|| {
            let want = "subvol or snapshot before all other commands";
            Error::Stream(Refused::new("command", "no subvolume", want))
        })
    }

    /// Returns the inode at a path of subvolume `subvolume`. Nothing is followed.
    fn find(&self, subvolume: u64, path: &[u8]) -> Result<FileId> {
        let names = components(path).map_err(Error::Stream)?;
        let root = FileId::root_of(subvolume);
        names.into_iter().try_fold(root, |dir, name| self.lookup(dir, name))
    }

    /// Returns the inode of a name. A subvolume inside the one that a stream names is no part of
    /// it.
    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<FileId> {
        let found = self.filesystem.lookup(dir, name)?;
        if found.subvolume == dir.subvolume { Ok(found) } else { Err(Error::CrossesSubvolumes) }
    }

    /// Returns the inode at a path of the current subvolume.
    fn inode(&mut self, path: &[u8]) -> Result<FileId> {
        let subvolume = self.current()?.id;
        self.find(subvolume, path)
    }

    /// Returns the directory and the name of a path of the current subvolume.
    fn entry<'p>(&mut self, path: &'p [u8]) -> Result<(FileId, &'p [u8])> {
        let current = self.current()?;
        current.open = None;
        let root = FileId::root_of(current.id);
        let mut names = components(path).map_err(Error::Stream)?;
        let name = names.pop().ok_or_else(|| {
            Error::Stream(Refused::new("path", "the root of the subvolume", "a name in it"))
        })?;
        let find = |dir, name: &[u8]| self.lookup(dir, name);
        Ok((names.into_iter().try_fold(root, find)?, name))
    }

    /// Returns the file at a path of the current subvolume.
    fn file(&mut self, path: &[u8]) -> Result<&File> {
        let open = self.current()?.open.take();
        let opened = match open {
            Some((of, file)) if of == path => (of, file),
            _ => {
                let id = self.inode(path)?;
                (path.to_vec(), self.filesystem.open_file(id)?)
            }
        };
        let (_, file) = self.current()?.open.insert(opened);
        Ok(file)
    }

    fn clone_source(&mut self, uuid: Uuid, ctransid: u64) -> Result<u64> {
        let current = self.current()?;
        if current.uuid == uuid { Ok(current.id) } else { Ok(self.source(uuid, ctransid)?.id) }
    }

    /// Returns a subvolume that the stream refers to, which stays as it is from the first command
    /// that refers to it until the current subvolume is complete or deleted.
    fn source(&mut self, uuid: Uuid, ctransid: u64) -> Result<&Source<'a>> {
        Ok(match self.sources.entry(uuid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                place.insert(self.filesystem.keep_source("CLONE_UUID", uuid, ctransid)?)
            }
        })
    }

    /// Returns what a command that takes long calls after each of its steps.
    fn goes_on(&self) -> impl Fn() -> bool + use<'a> {
        let (limits, serving) = (self.limits.clone(), self.serving);
        move || limits.goes_on() && serving.is_none_or(|serving| (serving.goes_on)())
    }

    /// Applies a command that writes data.
    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn write(&mut self, command: &Command<'_>) -> Result<()> {
        match *command {
            Command::Write { path, offset, data } => self.file(path)?.write_all_at(offset, data),
            Command::EncodedWrite { path, offset, .. } => {
                let data = decode_write(command)?.unwrap_or_default();
                self.file(path)?.write_all_at(offset, &data)
            }
            Command::Clone {
                path,
                offset,
                len,
                clone_uuid,
                clone_ctransid,
                clone_path,
                clone_offset,
            } => {
                let subvolume = self.clone_source(clone_uuid, clone_ctransid)?;
                let source = self.filesystem.open_file(self.find(subvolume, clone_path)?)?;
                let end = clone_offset.checked_add(len).ok_or_else(|| {
                    Error::Stream(Refused::new("CLONE_OFFSET + CLONE_LEN", "above 2^64", "less"))
                })?;
                let (range, goes_on) = (clone_offset..end, self.goes_on());
                self.limits.add_extents(|most| count_cloned(offset, &source, &range, most))?;
                clone_range(self.file(path)?, offset, &source, range, &goes_on)
            }
            Command::Fallocate { path, mode, offset, len } => {
                let id = self.file(path)?.id();
                self.count_freed(id, offset..offset.saturating_add(len))?;
                fallocate(self.file(path)?, mode, offset, len)
            }
            _ => Ok(()),
        }
    }

    /// Applies a command that makes an inode.
    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn make(&mut self, command: &Command<'_>) -> Result<()> {
        let filesystem = self.filesystem;
        let (dir, name) = self.entry(command.path().unwrap_or_default())?;
        let node = |kind: FileKind, mode: u32, device: DeviceNumber| {
            let new = NewInode::new(mode & PERMISSIONS);
            filesystem.mknod(dir, name, &new, kind, (device.major(), device.minor()))
        };
        let id = match *command {
            Command::Mkfile { .. } => {
                filesystem.create(dir, name, &NewInode::new(FILE_PERMISSIONS))
            }
            Command::Mkdir { .. } => {
                filesystem.mkdir(dir, name, &NewInode::new(DIRECTORY_PERMISSIONS))
            }
            Command::Symlink { target, .. } => {
                filesystem.symlink(dir, name, target, &NewInode::new(0o777))
            }
            Command::Mkfifo { mode, .. } => node(FileKind::Fifo, mode, DeviceNumber::default()),
            Command::Mksock { mode, .. } => node(FileKind::Socket, mode, DeviceNumber::default()),
            Command::Mknod { device, mode, .. } => {
                let kind = FileKind::from_mode(mode);
                let is_device = [Some(FileKind::CharDevice), Some(FileKind::BlockDevice)];
                let kind =
                    kind.filter(|kind| is_device.contains(&Some(*kind))).ok_or_else(|| {
                        let have = format!("{mode:#o}");
                        Error::Stream(Refused::new("MODE", have, "the type of a device"))
                    })?;
                node(kind, mode, device)
            }
            _ => return Ok(()),
        }?;
        self.strip(id)
    }

    /// Applies a command that changes names of inodes that exist.
    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn change_names(&mut self, command: &Command<'_>) -> Result<()> {
        let filesystem = self.filesystem;
        let (dir, name) = self.entry(command.path().unwrap_or_default())?;
        match *command {
            Command::Rename { to, .. } => {
                let to = self.entry(to)?;
                filesystem.rename((dir, name), to, RenameFlags::default())
            }
            Command::Link { existing, .. } => filesystem.link(self.inode(existing)?, dir, name),
            Command::Unlink { .. } => {
                self.count_freed(filesystem.lookup(dir, name)?, 0..u64::MAX)?;
                filesystem.unlink(dir, name)
            }
            Command::Rmdir { .. } => filesystem.rmdir(dir, name),
            _ => Ok(()),
        }
    }

    /// Counts the extents of a range that a command frees, if the inode is a file.
    fn count_freed(&self, id: FileId, range: Range<u64>) -> Result<()> {
        self.limits.add_extents(|most| {
            if self.filesystem.stat(id)?.kind != FileKind::File {
                return Ok(0);
            }
            count_extents(&self.filesystem.open_file(id)?, range, most)
        })
    }

    /// Seals a file by fs-verity.
    fn seal(&mut self, command: &Command<'_>) -> Result<()> {
        let Command::EnableVerity { path, algorithm, block_bytes, salt, signature } = *command
        else {
            return Ok(());
        };
        let hash = VerityHash::check(algorithm).map_err(Error::Stream)?;
        let options = VerityOptions::default().hash(hash).block_bytes(block_bytes);
        let options = options.salt(salt).signature(signature);
        let file = self.filesystem.open_file(self.inode(path)?)?;
        let (bytes, parameters) = (file.len(), options.parameters()?);
        let hashes_bytes = parameters.shape(bytes).map_or(u64::MAX, |shape| shape.bytes());
        self.limits.add_seal(bytes, hashes_bytes).map_err(Error::Stream)?;
        let goes_on = self.goes_on();
        let sealed = file.enable_verity_while(&options, &goes_on);
        check(&goes_on)?;
        sealed
    }

    /// Applies a command that sets attributes.
    #[expect(clippy::wildcard_enum_match_arm, reason = "`apply` has chosen the commands")]
    fn set(&mut self, command: &Command<'_>) -> Result<()> {
        let filesystem = self.filesystem;
        let id = self.inode(command.path().unwrap_or_default())?;
        let none = SetAttributes::default();
        let at = |time: Time| Some(SetTime::At(time.into()));
        let set = match *command {
            Command::SetXattr { name, value, .. } => {
                return filesystem.set_xattr(id, name, value, SetXattr::Either);
            }
            Command::RemoveXattr { name, .. } => return filesystem.remove_xattr(id, name),
            Command::Truncate { size, .. } => {
                self.count_freed(id, size..u64::MAX)?;
                SetAttributes::size(size)
            }
            Command::Chmod { mode, .. } => SetAttributes { mode: Some(mode & PERMISSIONS), ..none },
            Command::Chown { uid, gid, .. } => {
                SetAttributes { uid: Some(uid), gid: Some(gid), ..none }
            }
            Command::Utimes { atime, mtime, .. } => {
                SetAttributes { atime: at(atime), mtime: at(mtime), ..none }
            }
            // `FILEATTR`: a full stream has no flags, so an incremental one has a part of them.
            // btrfs-receive(8) ignores the command, too.
            _ => return Ok(()),
        };
        filesystem.set_attributes(id, &set).map(drop)
    }
}
