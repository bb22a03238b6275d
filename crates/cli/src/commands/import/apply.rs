//! Creates the files of the source in the volume, on one thread, in the order of the walk.
//!
//! 1. While a directory is filled, only its owner can enter it, and its entries inherit nothing.
//!    Its mode, ACLs and times are set when it is complete.
//! 2. What a new file inherits from a directory that existed before is removed.
//! 3. The times of a file are set last.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File as HostFile;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, sync_channel};

use butternut::{Error, FileId, FileKind, Filesystem, Privileges};
use rustix::io::Errno;

use super::super::progress::Progress;
use super::super::transaction::failed;
use super::super::write::write_all;
use super::create::{Create, NotFinished, Rules, is_attribute_too_large};
use super::entry::{Attributes, Content};
use super::scan::{Job, Read, Step};
use crate::failure::Failure;
use crate::output::json::Object;
use crate::output::text;

/// Bytes per read and write of a large file.
const READ_BYTES: u64 = 4 << 20;
/// Maximum number of reads ahead.
const READS_AHEAD_MAX: usize = 4;

/// Counts of copied files.
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

/// The destination of the source.
#[derive(Debug)]
pub(super) enum Top {
    /// This name in an existing directory.
    Named { dir: FileId, name: Vec<u8> },
    /// This existing directory: it gets the contents and attributes of the source.
    Itself(FileId),
}

pub(super) struct Apply<'a> {
    pub(super) filesystem: &'a Filesystem,
    create: Create<'a>,
    pub(super) progress: &'a Progress,
    pub(super) jobs: Sender<Job>,
    pub(super) top: Top,
    /// Device and inode number of the image files of the volume.
    pub(super) volume_files: &'a [(u64, u64)],
    /// The paths of the source, and of its copy in the volume, for messages.
    pub(super) tops: (Vec<u8>, Vec<u8>),
    /// Set when the volume has no space left.
    pub(super) is_full: Cell<bool>,
    directories: Vec<OpenDirectory>,
    links: HashMap<(u64, u64), FileId>,
    pub(super) counts: Counts,
}

/// A directory that is being filled.
struct OpenDirectory {
    id: FileId,
    path: Vec<u8>,
    attributes: Attributes,
    /// It existed before (law 2).
    existed: bool,
}

impl<'a> Apply<'a> {
    pub(super) fn new(
        filesystem: &'a Filesystem,
        rules: Rules,
        progress: &'a Progress,
        jobs: Sender<Job>,
        (top, tops): (Top, (Vec<u8>, Vec<u8>)),
        volume_files: &'a [(u64, u64)],
    ) -> Self {
        let (directories, links, counts) = (Vec::new(), HashMap::new(), Counts::default());
        Self {
            filesystem,
            create: Create { filesystem, rules },
            progress,
            jobs,
            top,
            volume_files,
            tops,
            is_full: Cell::new(false),
            directories,
            links,
            counts,
        }
    }

    /// Describes an error at a path of the source. A name that exists is one in the volume, and so
    /// is one that cannot be made in a read-only subvolume.
    fn failed(&self, path: &[u8], error: &Error) -> Failure {
        if error.errno() == Errno::NOSPC.raw_os_error() && !is_attribute_too_large(error) {
            self.is_full.set(true);
        }
        if !matches!(error, Error::Exists | Error::ReadOnly { .. }) {
            return failed(path, error);
        }
        let (source, copy) = &self.tops;
        let below = path.strip_prefix(source.as_slice()).unwrap_or(path);
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let there = if below.is_empty() { copy.clone() } else { text::joined(copy, below) };
        failed(&there, error)
    }

    /// Applies the steps of the walk until its end or the first failure.
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

    /// Returns the directory and name of a new entry, and whether the directory existed before.
    fn target<'n>(&'n self, name: &'n [u8]) -> (FileId, &'n [u8], bool) {
        match (self.directories.last(), &self.top) {
            (Some(directory), _) => (directory.id, name, directory.existed),
            (None, Top::Named { dir, name }) => (*dir, name, true),
            (None, Top::Itself(dir)) => (*dir, name, true),
        }
    }

    fn enter(&mut self, name: &[u8], path: Vec<u8>, found: Attributes) -> Result<(), Failure> {
        if let (true, Top::Itself(id)) = (self.directories.is_empty(), &self.top) {
            let directory = OpenDirectory { id: *id, path, attributes: found, existed: true };
            self.directories.push(directory);
            return Ok(());
        }
        let (dir, name, existed) = self.target(name);
        let fs = self.filesystem;
        let made = fs.mkdir(dir, name, &self.create.new_inode(&found, 0o700)).and_then(|id| {
            if existed {
                self.create.remove_inherited(id, &found, 0o700)?;
            }
            Ok(id)
        });
        let id = made.map_err(|error| self.failed(&path, &error))?;
        self.counts.directories += 1;
        self.directories.push(OpenDirectory { id, path, attributes: found, existed: false });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Failure> {
        let Some(OpenDirectory { id, path, attributes, existed }) = self.directories.pop() else {
            return Ok(());
        };
        let finish = || -> Result<(), NotFinished> {
            if existed {
                self.create.remove_inherited(id, &attributes, attributes.permissions)?;
            }
            self.create.finish(id, &attributes, Some(attributes.permissions))
        };
        let finished = finish();
        finished.map_err(|why| why.described(&path, |path, error| self.failed(path, error)))
    }

    fn file(&mut self, name: &[u8], path: &[u8], read: Read) -> Result<(), Failure> {
        let entry = read.map_err(|error| Failure::io(text::escaped(path), &error))?;
        let Attributes { size, nlink, identity, kind, .. } = entry.attributes;
        if self.volume_files.contains(&identity) {
            return Err(Failure::new(text::escaped(path), "is the volume itself")
                .hint("keep the image outside of the source"));
        }
        let (dir, name, existed) = self.target(name);
        if nlink > 1
            && let Some(id) = self.links.get(&identity)
        {
            let linked = self.filesystem.link(*id, dir, name);
            linked.map_err(|error| self.failed(path, &error))?;
            self.counts.links += 1;
            return Ok(());
        }
        self.progress.found(size);
        let target = if let Content::Text(target) = &entry.content { target } else { &[][..] };
        let made = self.create.make(dir, name, &entry.attributes, target, existed);
        let id = made.map_err(|error| self.failed(path, &error))?;
        if kind == FileKind::File {
            self.fill(id, path, &entry.attributes, entry.content)?;
        }
        let finished = self.create.finish(id, &entry.attributes, None);
        finished.map_err(|why| why.described(path, |path, error| self.failed(path, error)))?;
        if nlink > 1 {
            self.links.insert(identity, id);
        }
        self.counts.files += 1;
        let bytes = if kind == FileKind::File { size } else { 0 };
        self.counts.bytes = self.counts.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Writes the data of a file.
    fn fill(
        &self,
        id: FileId,
        path: &[u8],
        found: &Attributes,
        content: Content,
    ) -> Result<(), Failure> {
        let failed = |error: Error| self.failed(path, &error);
        if found.size == 0 {
            return Ok(());
        }
        let file = self.filesystem.open_file(id).map_err(failed)?;
        match content {
            Content::None | Content::Text(_) => {}
            Content::Small(parts) => {
                for (offset, bytes) in parts {
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
        if file.len() < found.size {
            file.truncate(found.size).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads a large file in parts, up to [`READS_AHEAD_MAX`] ahead, and writes them in order.
    fn copy(
        &self,
        from: HostFile,
        ranges: Vec<Range<u64>>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), CopyError> {
        let from = Arc::new(from);
        let mut parts = ranges.into_iter().flat_map(parts);
        let mut ahead = std::collections::VecDeque::new();
        loop {
            while ahead.len() < READS_AHEAD_MAX
                && let Some(range) = parts.next()
            {
                let (reply, bytes) = sync_channel(1);
                let (file, start) = (Arc::clone(&from), range.start);
                let job = Job::ReadRange(file, range, reply);
                self.jobs.send(job).map_err(|_| CopyError::readers_ended())?;
                ahead.push_back((start, bytes));
            }
            let Some((start, bytes)) = ahead.pop_front() else { return Ok(()) };
            let bytes =
                bytes.recv().map_err(|_| CopyError::readers_ended())?.map_err(CopyError::Read)?;
            write(start, &bytes).map_err(CopyError::Write)?;
        }
    }
}

/// Why a copy stopped.
enum CopyError {
    Read(std::io::Error),
    Write(Failure),
}

impl CopyError {
    fn readers_ended() -> Self {
        Self::Read(std::io::Error::other("the reader threads have ended"))
    }

    fn unwrap_or_else(self, outside: impl FnOnce(std::io::Error) -> Failure) -> Failure {
        match self {
            Self::Read(error) => outside(error),
            Self::Write(failure) => failure,
        }
    }
}

/// Splits a range at multiples of [`READ_BYTES`].
fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min((start / READ_BYTES + 1) * READ_BYTES);
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_cover_the_range() {
        let check = |range: Range<u64>, want: &[Range<u64>]| {
            assert_eq!(parts(range).collect::<Vec<_>>(), want);
        };
        let part = READ_BYTES;
        check(5..5, &[]);
        check(5..part + 1, &[5..part, part..part + 1]);
        check(0..2 * part, &[0..part, part..2 * part]);
    }
}
