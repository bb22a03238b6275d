//! Making in the volume what was found outside: one thread, in the order of the walk.
//!
//! 1. A directory that is being filled may be entered by its owner only, and hands nothing down; it
//!    gets its mode, ACLs and times when everything in it is made.
//! 2. What is made in a directory that was there before is freed of what that handed down.
//! 3. A file gets its times last.

use std::collections::HashMap;
use std::fs::File as HostFile;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, sync_channel};

use butternut::{
    FileId, FileKind, Filesystem, NewInode, Privileges, SetAttributes, SetTime, SetXattr, Time,
};

use super::super::change::failed;
use super::super::progress::Progress;
use super::super::write::write_all;
use super::entry::{Attributes, Content, Entry};
use super::scan::{Job, Read, Step};
use crate::failure::Failure;
use crate::output::json::Object;
use crate::output::text;

/// Bytes of a large file that are read and written together.
const PIECE_BYTES: u64 = 4 << 20;
/// Pieces that are read ahead.
const PIECES_AHEAD: usize = 4;
/// What directories hand down besides flags.
const HANDED_DOWN: [&[u8]; 3] =
    [b"system.posix_acl_access", b"system.posix_acl_default", b"btrfs.compression"];

/// What was copied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    pub(crate) bytes: u64,
}

impl Counts {
    pub(crate) fn put_into(self, object: Object) -> Object {
        object
            .put("files", self.files)
            .put("directories", self.directories)
            .put("links", self.links)
            .put("bytes", self.bytes)
    }
}

/// Whom copies belong to, and what time it is in them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    pub(crate) no_owner: bool,
    /// No time is later; access times, which depend on who looked, are those of modification.
    pub(crate) epoch: Option<Time>,
}

/// Where the top goes.
#[derive(Debug)]
pub(super) enum Top {
    /// Under this name in a directory that was there before.
    Named { dir: FileId, name: Vec<u8> },
    /// What is in it goes into this directory, which gets its attributes.
    Itself(FileId),
}

pub(super) struct Apply<'a> {
    pub(super) filesystem: &'a Filesystem,
    pub(super) rules: Rules,
    pub(super) progress: &'a Progress,
    pub(super) jobs: Sender<Job>,
    pub(super) top: Top,
    /// Files that the volume lies in, by device and inode number.
    pub(super) volume_files: &'a [(u64, u64)],
    folders: Vec<Folder>,
    links: HashMap<(u64, u64), FileId>,
    pub(super) counts: Counts,
}

/// A directory that is being filled.
struct Folder {
    id: FileId,
    path: Vec<u8>,
    attributes: Attributes,
    /// It was there before (law 2).
    is_old: bool,
}

impl<'a> Apply<'a> {
    pub(super) fn new(
        filesystem: &'a Filesystem,
        rules: Rules,
        progress: &'a Progress,
        jobs: Sender<Job>,
        top: Top,
        volume_files: &'a [(u64, u64)],
    ) -> Self {
        let (folders, links, counts) = (Vec::new(), HashMap::new(), Counts::default());
        Self { filesystem, rules, progress, jobs, top, volume_files, folders, links, counts }
    }

    /// Follows the walk to its end, or to the first failure.
    pub(super) fn run(&mut self, steps: &Receiver<Step>) -> Result<(), Failure> {
        for step in steps {
            match step {
                Step::Enter { name, path, attributes } => self.enter(&name, path, attributes)?,
                Step::Files { names, entries } => {
                    let entries = entries.recv().unwrap_or_default();
                    for (name, entry) in names.names.iter().zip(entries) {
                        self.file(&name.name, &names.path_of(name), entry)?;
                    }
                }
                Step::Leave => self.leave()?,
                Step::Failed(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Where something with this name goes: a directory, the name there, and whether the directory
    /// was there before.
    fn place<'n>(&'n self, name: &'n [u8]) -> (FileId, &'n [u8], bool) {
        match (self.folders.last(), &self.top) {
            (Some(folder), _) => (folder.id, name, folder.is_old),
            (None, Top::Named { dir, name }) => (*dir, name, true),
            (None, Top::Itself(dir)) => (*dir, name, true),
        }
    }

    fn enter(&mut self, name: &[u8], path: Vec<u8>, found: Attributes) -> Result<(), Failure> {
        if let (true, Top::Itself(id)) = (self.folders.is_empty(), &self.top) {
            let folder = Folder { id: *id, path, attributes: found, is_old: true };
            self.folders.push(folder);
            return Ok(());
        }
        let (dir, name, is_old) = self.place(name);
        let fs = self.filesystem;
        let made = fs.mkdir(dir, name, &self.new_inode(&found, 0o700)).and_then(|id| {
            if is_old {
                self.free(id, &found, 0o700)?;
            }
            Ok(id)
        });
        let id = made.map_err(|error| failed(&path, &error))?;
        self.counts.directories += 1;
        self.folders.push(Folder { id, path, attributes: found, is_old: false });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Failure> {
        let Some(Folder { id, path, attributes, is_old }) = self.folders.pop() else {
            return Ok(());
        };
        let finish = || -> butternut::Result<()> {
            if is_old {
                self.free(id, &attributes, attributes.permissions)?;
            }
            self.finish(id, &attributes, Some(attributes.permissions))
        };
        finish().map_err(|error| failed(&path, &error))
    }

    fn file(&mut self, name: &[u8], path: &[u8], read: Read) -> Result<(), Failure> {
        let entry = read.map_err(|error| Failure::io(text::escaped(path), &error))?;
        let Attributes { size, nlink, identity, kind, .. } = entry.attributes;
        if self.volume_files.contains(&identity) {
            return Err(Failure::new(text::escaped(path), "is the volume itself")
                .cure("keep the image outside of what is copied into it"));
        }
        let (dir, name, is_old) = self.place(name);
        if nlink > 1
            && let Some(id) = self.links.get(&identity)
        {
            let linked = self.filesystem.link(*id, dir, name);
            linked.map_err(|error| failed(path, &error))?;
            self.counts.links += 1;
            return Ok(());
        }
        self.progress.found(size);
        let id = self.make(dir, name, &entry, is_old).map_err(|error| failed(path, &error))?;
        if kind == FileKind::File {
            self.fill(id, path, &entry.attributes, entry.content)?;
        }
        let finished = self.finish(id, &entry.attributes, None);
        finished.map_err(|error| failed(path, &error))?;
        if nlink > 1 {
            self.links.insert(identity, id);
        }
        self.counts.files += 1;
        self.counts.bytes += if kind == FileKind::File { size } else { 0 };
        Ok(())
    }

    /// Makes an inode under a name.
    fn make(
        &self,
        dir: FileId,
        name: &[u8],
        entry: &Entry,
        is_old: bool,
    ) -> butternut::Result<FileId> {
        let Attributes { kind, rdev, permissions, .. } = entry.attributes;
        let new = self.new_inode(&entry.attributes, permissions);
        let fs = self.filesystem;
        let id = match (kind, &entry.content) {
            (FileKind::Symlink, Content::Text(target)) => fs.symlink(dir, name, target, &new)?,
            (FileKind::File, _) => fs.create(dir, name, &new)?,
            _ => fs.mknod(dir, name, &new, kind, rdev)?,
        };
        if is_old {
            self.free(id, &entry.attributes, permissions)?;
        }
        Ok(id)
    }

    fn new_inode(&self, found: &Attributes, permissions: u32) -> NewInode {
        let (uid, gid) = self.owner(found);
        NewInode { uid, gid, ..NewInode::new(permissions) }
    }

    fn owner(&self, found: &Attributes) -> (u32, u32) {
        if self.rules.no_owner { (0, 0) } else { (found.uid, found.gid) }
    }

    /// Law 2.
    fn free(&self, id: FileId, found: &Attributes, permissions: u32) -> butternut::Result<()> {
        let fs = self.filesystem;
        for name in fs.xattr_names(id)? {
            if HANDED_DOWN.contains(&name.as_slice()) {
                fs.remove_xattr(id, &name)?;
            }
        }
        let (uid, gid) = self.owner(found);
        let mode = (found.kind != FileKind::Symlink).then_some(permissions);
        let (uid, gid) = (Some(uid), Some(gid));
        fs.set_attributes(id, &SetAttributes { mode, uid, gid, ..SetAttributes::default() })?;
        Ok(())
    }

    /// Law 3; a mode goes before the ACLs, which are part of it.
    fn finish(&self, id: FileId, found: &Attributes, mode: Option<u32>) -> butternut::Result<()> {
        if mode.is_some() && !found.xattrs.is_empty() {
            self.filesystem.set_attributes(id, &SetAttributes { mode, ..Default::default() })?;
        }
        for (name, value) in &found.xattrs {
            self.filesystem.set_xattr(id, name, value, SetXattr::Either)?;
        }
        let (atime, mtime) = self.times(found);
        let (atime, mtime) = (Some(SetTime::At(atime)), Some(SetTime::At(mtime)));
        let mode = mode.filter(|_| found.xattrs.is_empty());
        let set = SetAttributes { mode, atime, mtime, ..SetAttributes::default() };
        self.filesystem.set_attributes(id, &set).map(drop)
    }

    fn times(&self, found: &Attributes) -> (Time, Time) {
        match self.rules.epoch {
            None => (found.atime, found.mtime),
            Some(epoch) => {
                let mtime = found.mtime.min(epoch);
                (mtime, mtime)
            }
        }
    }

    /// Writes what a file holds.
    fn fill(
        &self,
        id: FileId,
        path: &[u8],
        found: &Attributes,
        content: Content,
    ) -> Result<(), Failure> {
        let failed = |error: butternut::Error| failed(path, &error);
        if found.size == 0 {
            return Ok(());
        }
        let file = self.filesystem.open_file(id).map_err(failed)?;
        match content {
            Content::None | Content::Text(_) => {}
            Content::Pieces(pieces) => {
                for (offset, bytes) in pieces {
                    write_all(&file, offset, &bytes, Privileges::Keep).map_err(failed)?;
                }
                self.progress.done(found.size);
            }
            Content::Large(from, ranges) => {
                let mut done = 0;
                self.copy(from, ranges, |offset, bytes| {
                    write_all(&file, offset, bytes, Privileges::Keep).map_err(failed)?;
                    let now = offset + bytes.len() as u64;
                    self.progress.done(now - done);
                    done = now;
                    Ok(())
                })
                .map_err(|failure| {
                    failure.unwrap_or_else(|error| Failure::io(text::escaped(path), &error))
                })?;
                self.progress.done(found.size - done);
            }
        }
        if file.size() < found.size {
            file.truncate(found.size).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads a large file in pieces, some ahead, and hands them on in order.
    fn copy(
        &self,
        from: HostFile,
        ranges: Vec<Range<u64>>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Broken> {
        let from = Arc::new(from);
        let mut pieces = ranges.into_iter().flat_map(pieces);
        let mut ahead = std::collections::VecDeque::new();
        loop {
            while ahead.len() < PIECES_AHEAD
                && let Some(range) = pieces.next()
            {
                let (reply, bytes) = sync_channel(1);
                let (file, start) = (Arc::clone(&from), range.start);
                let job = Job::Piece(file, range, reply);
                self.jobs.send(job).map_err(|_| Broken::gone())?;
                ahead.push_back((start, bytes));
            }
            let Some((start, bytes)) = ahead.pop_front() else { return Ok(()) };
            let bytes = bytes.recv().map_err(|_| Broken::gone())?.map_err(Broken::Outside)?;
            write(start, &bytes).map_err(Broken::Inside)?;
        }
    }
}

/// Why a copy stopped.
enum Broken {
    Outside(std::io::Error),
    Inside(Failure),
}

impl Broken {
    fn gone() -> Self {
        Self::Outside(std::io::Error::other("the threads that read are gone"))
    }

    fn unwrap_or_else(self, outside: impl FnOnce(std::io::Error) -> Failure) -> Failure {
        match self {
            Self::Outside(error) => outside(error),
            Self::Inside(failure) => failure,
        }
    }
}

/// A range, cut at multiples of [`PIECE_BYTES`].
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min((start / PIECE_BYTES + 1) * PIECE_BYTES);
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_cover_the_range() {
        let check = |range: Range<u64>, want: &[Range<u64>]| {
            assert_eq!(pieces(range).collect::<Vec<_>>(), want);
        };
        let piece = PIECE_BYTES;
        check(5..5, &[]);
        check(5..piece + 1, &[5..piece, piece..piece + 1]);
        check(0..2 * piece, &[0..piece, piece..2 * piece]);
    }
}
