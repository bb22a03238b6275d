//! [`File`]: an open file, with its reads, seeks and extents.
//!
//! | module | content |
//! |---|---|
//! | `path` | opens and creates files by their paths |
//! | `cursor` | a position for `std::io`, and transfers of whole buffers |
//! | `alter` | changes of a file's data under its inode lock, and its attributes |
//! | `write` | writes, `fallocate` and syncs of a file |
//! | `allocation_runs` | space that is allocated ahead for direct writes |
//! | `clone` | ranges that share their extents |
//! | `copy` | copies, which share extents where they can |
//! | `defragment` | extents that are written again as fewer ones |
//! | `direct` | direct writes that share the inode lock |
//! | `flag_checks` | when a handle checks the flags of its inode |
//! | `sharing` | which extents of a file are shared |
//! | `verity` | fs-verity: seals a file, and reads what was stored for it |
//!
//! On a filesystem that is open for writing, every blocking read holds the inode lock shared
//! (`inode/table.rs`).

pub(crate) mod allocation_runs;
pub(crate) mod alter;
pub(crate) mod clone;
mod copy;
pub(crate) mod cursor;
pub(crate) mod defragment;
pub(crate) mod direct;
pub(crate) mod flag_checks;
mod path;
mod sharing;
pub(crate) mod verity;
pub(crate) mod write;

use crate::error::is_refused;
use crate::file::alter::Times;
use crate::inode::pin::Pin;
use crate::inode::table::InodeState;
use crate::stats::lane_counters::LaneCounters;
use crate::stats::latency::{Operation, Timed};
use crate::sync::RwLockReadGuard;
use crate::{Error, FileId, FileKind, Filesystem, NewInode, Result, Stat};
use butternut_file::{
    self as data, ErrorCursor, FileView, Mapping, MappingKind, Mappings, Source, Stream,
};
use butternut_format::file_extent::DiskExtent;
use butternut_format::units::{Ino, Logical};
use butternut_pages::CacheMode;
use butternut_sys::wait::Wait;
use butternut_tree::PanicWatch;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use butternut_format::file_extent::Compression;

/// An open file. It is cheap to clone, and any number of threads may read and write through one
/// handle at once. It keeps the volume open, pins its inode, and reads ahead of sequential and
/// strided reads. The readahead state belongs to the handle and its clones: open a file once for
/// each sequential reader, and clone the handle for threads that continue each other's reads.
#[derive(Clone)]
pub struct File {
    shared: Arc<Opened>,
    filesystem: Filesystem,
    /// `None` on a filesystem that is open for reading only.
    pub(crate) pin: Option<Arc<Pin>>,
    pub(crate) times: Times,
    pub(crate) checks: Checks,
}

/// When a handle checks the flags of its inode (law 1 of `flag_checks`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Checks {
    #[default]
    EachTime,
    AtOpen,
    /// At the open, which was for appending to an append-only file (law 2 there).
    AtOpenToAppend,
}

struct Opened {
    id: FileId,
    stream: Stream,
    /// Which writeback errors of the file this handle has returned (`errseq_t`).
    errors: ErrorCursor,
}

/// One read of [`File::read_many`].
#[derive(Debug)]
pub struct ReadAt<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
    /// Set by the call: the number of bytes of `buf` that were filled.
    pub result: Result<usize>,
}

/// A range of a file, and where its bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub bytes: u64,
    pub kind: ExtentKind,
}

/// Where the bytes of an [`Extent`] are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Nothing is stored; reads as zeros.
    Hole,
    /// Space is preallocated at `logical`; reads as zeros.
    Prealloc { logical: u64 },
    /// In the tree itself (an inline extent).
    Inline { compression: Compression },
    /// In the data extent at `logical`, of `disk_bytes` bytes on disk and `ram_bytes` bytes
    /// uncompressed. This range starts `extent_offset` bytes into the uncompressed extent.
    Regular {
        logical: u64,
        disk_bytes: u64,
        ram_bytes: u64,
        extent_offset: u64,
        compression: Compression,
    },
    /// Dirty in memory and not on disk yet (delayed allocation).
    Buffered,
}

/// The extents of a range of a file, without gaps: holes are extents too. The iterator ends after
/// its first error.
#[derive(Debug)]
pub struct Extents {
    mappings: Mappings,
    file: File,
}

impl<'a> ReadAt<'a> {
    /// Returns a read of the whole of `buf` from `offset`.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, result: Ok(0) }
    }
}

impl Iterator for Extents {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        let _state = self.file.shared_lock();
        let mapping = self.mappings.next()?;
        Some(mapping.map(extent).map_err(Error::from))
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

impl Filesystem {
    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for a directory, [`Error::WrongKind`] for other kinds.
    pub fn open_file(&self, id: FileId) -> Result<File> {
        let stat = self.stat(id)?;
        match stat.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return Err(Error::WrongKind { want: "a regular file" }),
        }
        let Some(pin) = self.pin(id)? else {
            let view = self.view(id)?;
            view.check_verity()?;
            return Ok(self.file(id, view, None));
        };
        self.open_pinned(pin)
    }

    /// Creates a file without a name and opens it (`O_TMPFILE`). It is deleted with its last
    /// handle, unless [`Filesystem::link`] gives it a name first. It inherits from the directory
    /// `dir`, which may be a removed one that is still pinned.
    pub fn open_unnamed(&self, dir: FileId, new: &NewInode) -> Result<File> {
        let entry = self.make_unnamed(dir, new)?;
        self.open_pinned(self.new_pin(entry))
    }

    fn open_pinned(&self, pin: Pin) -> Result<File> {
        let view = match pin.entry().view() {
            Some(view) => view,
            None => self.make_view(&pin)?,
        };
        view.check_verity()?;
        Ok(self.file(pin.id(), view, Some(Arc::new(pin))))
    }

    fn make_view(&self, pin: &Pin) -> Result<FileView> {
        let tree = self.tree_of(pin.id())?;
        let mut state = pin.entry().lock();
        Ok(self.file_state(&tree, pin.entry(), &mut state, Wait::Block)?.view().clone())
    }

    fn file(&self, id: FileId, view: FileView, pin: Option<Arc<Pin>>) -> File {
        let errors = view.error_cursor();
        let stream = Stream::new(self.shared.source.clone(), view);
        let shared = Arc::new(Opened { id, stream, errors });
        File { shared, filesystem: self.clone(), pin, times: Times::Now, checks: Checks::EachTime }
    }

    /// Returns the target of a symbolic link, cut off at `bytes_max` bytes.
    pub(crate) fn symlink_text(&self, id: FileId, bytes_max: u64) -> Result<Vec<u8>> {
        // A thread that deletes the inode has it locked exclusively.
        let write_state = self.shared.write_state.as_ref();
        let entry = write_state.map(|write_state| write_state.table.entry(id));
        let _state = entry.as_ref().map(|entry| entry.lock_shared());
        let view = self.view(id)?;
        let bytes = usize::try_from(view.size().min(bytes_max)).unwrap_or(0);
        let mut text = vec![0; bytes];
        let read = self.shared.source.read_at(&view, 0, &mut text)?;
        text.truncate(read);
        Ok(text)
    }

    fn view(&self, id: FileId) -> Result<FileView> {
        let inode = self.inode(id)?;
        Ok(FileView::new(self.tree_of(id)?, Ino(id.ino), &inode))
    }
}

impl File {
    /// Reads into `buf` from `offset`, with any alignment, and returns the number of bytes read.
    /// That is 0 at or past the end of the file. It is less than the length of `buf` at the end of
    /// the file, or in front of damaged data; a read that starts there fails. The rest of `buf` is
    /// unspecified.
    ///
    /// # Errors
    /// Data or metadata that cannot be read, or that no mirror has with a matching checksum.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(offset, buf, CacheMode::Cached, Wait::Block)
    }

    /// As [`File::read_at`], and leaves no pages in the cache that were not there before
    /// (`RWF_DONTCACHE`).
    pub fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(offset, buf, CacheMode::Uncached, Wait::Block)
    }

    /// As [`File::read_at`] or [`File::read_uncached`]. With [`Wait::NoWait`] it fails with
    /// [`Error::WouldBlock`] unless all bytes are in memory.
    pub(crate) fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        stay: CacheMode,
        wait: Wait,
    ) -> Result<usize> {
        let timed = self.timed(Operation::CachedRead);
        let entry = self.pin.as_ref().map(|pin| pin.entry());
        let state = entry.map(|entry| entry.lock_shared_as(wait)).transpose();
        let read = state.and_then(|_state| Ok(self.shared.stream.read(offset, buf, stay, wait)?));
        if is_refused(&read) {
            timed.forget();
        }
        read
    }

    /// As [`File::read_at`], from the devices past the page cache, except for data that is dirty in
    /// memory.
    pub fn read_direct(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _timed = self.timed(Operation::DirectRead);
        self.lane_counters().dio_read_general.add();
        let _state = self.shared_lock();
        self.read_in_flight(offset, buf)
    }

    /// Submits many independent reads to the devices together. Each has its own result.
    pub fn read_many(&self, reads: &mut [ReadAt<'_>]) {
        let _timed = self.timed(Operation::CachedRead);
        let _state = self.shared_lock();
        let mut batch: Vec<data::ReadAt<'_>> =
            reads.iter_mut().map(|read| data::ReadAt::new(read.offset, &mut *read.buf)).collect();
        self.source().read_many(self.view(), &mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| read.result).collect();
        for (read, result) in reads.iter_mut().zip(results) {
            read.result = result.map_err(Error::from);
        }
    }

    /// Returns the first offset at or after `offset` that holds data; `None` if only holes follow,
    /// or nothing (`ENXIO` of `lseek`).
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        let _state = self.shared_lock();
        Ok(data::seek_data(self.view(), offset)?)
    }

    /// Returns the first offset at or after `offset` that is in a hole. The end of the file counts
    /// as one. Returns `None` at or past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        let _state = self.shared_lock();
        Ok(data::seek_hole(self.view(), offset)?)
    }

    /// Returns the extents of a range, up to the end of the file and its extents. Writes that
    /// happen while the iterator is in use may be in it or not.
    pub fn extents(&self, range: Range<u64>) -> Extents {
        Extents { mappings: Mappings::of(self.view(), range), file: self.clone() }
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// The inode cannot be read.
    pub fn metadata(&self) -> Result<Stat> {
        self.filesystem.stat(self.shared.id)
    }

    /// Returns the id of the file's inode.
    pub fn id(&self) -> FileId {
        self.shared.id
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.view().size()
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Measures an operation on the file, until the result is dropped.
    pub(crate) fn timed(&self, operation: Operation) -> Timed<'_> {
        self.filesystem.timed(operation)
    }

    /// Makes the volume read-only if the thread panics while the result exists.
    pub(crate) fn watch_panics(&self) -> PanicWatch<'_> {
        self.filesystem.forest().watch_panics()
    }

    fn shared_lock(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.pin.as_ref().map(|pin| pin.entry().lock_shared())
    }

    pub(crate) fn view(&self) -> &FileView {
        self.shared.stream.view()
    }

    /// Fails once for every loss of the file's data that this handle has not returned yet.
    pub(crate) fn check_errors(&self) -> Result<()> {
        let lost = self.view().check_errors(&self.shared.errors);
        lost.map_or(Ok(()), |error| Err(error.into()))
    }

    pub(crate) fn source(&self) -> &Source {
        self.shared.stream.source()
    }

    pub(crate) fn lane_counters(&self) -> &LaneCounters {
        &self.filesystem.shared.counters
    }

    pub(crate) fn stability(&self) -> crate::DirectStability {
        self.filesystem.tunables().direct_stability
    }

    /// Reads the data extent that a range of the file at `offset` refers to, as it is stored:
    /// compressed, if it is compressed.
    pub(crate) fn read_stored(&self, offset: u64, logical: u64, bytes: u64) -> Result<Vec<u8>> {
        let extent = DiskExtent { logical: Logical(logical), bytes };
        Ok(self.source().read_stored(self.view(), offset, extent)?)
    }

    /// Reads for a request in flight, which shares the file already.
    pub(crate) fn read_in_flight(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.source().read_at(self.view(), offset, buf)?)
    }
}

fn extent(mapping: Mapping) -> Extent {
    let kind = match mapping.kind {
        MappingKind::Hole => ExtentKind::Hole,
        MappingKind::Preallocated { extent, skip } => {
            ExtentKind::Prealloc { logical: extent.logical.0.saturating_add(skip) }
        }
        MappingKind::Inline { compression, .. } => ExtentKind::Inline { compression },
        MappingKind::Regular { extent, encoding, skip } => ExtentKind::Regular {
            logical: extent.logical.0,
            disk_bytes: extent.bytes,
            ram_bytes: encoding.ram_bytes,
            extent_offset: skip,
            compression: encoding.compression,
        },
        MappingKind::Buffered => ExtentKind::Buffered,
    };
    Extent { offset: mapping.offset, bytes: mapping.bytes, kind }
}
