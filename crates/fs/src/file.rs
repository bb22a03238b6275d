//! Open files: reads, holes, extents. What changes a file is in `data`.
//!
//! Where the filesystem is open for writing, every read shares the inode's lock (`inode_table`).

use crate::checks::Checks;
use crate::data::Times;
use crate::held::Held;
use crate::inode_table::Body;
use crate::lane_counters::LaneCounters;
use crate::latency::{Operation, Timed};
use crate::{Error, FileId, FileKind, Filesystem, NewInode, Result, Stat};
use butternut_file::{self as data, FileView, Mapping, MappingKind, Mappings, Source, Stream};
use butternut_format::units::Ino;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, RwLockReadGuard};

pub use butternut_format::file_extent::Compression;

/// An open file. Cheap to clone; any number of threads may read and write through one at once. It
/// keeps the volume open and its inode in being, also without a name, and reads ahead where reads
/// follow one another: open a file once for each reader that goes through it from start to end, and
/// clone it for readers that share a place.
#[derive(Clone)]
pub struct File {
    shared: Arc<Opened>,
    filesystem: Filesystem,
    /// There where the filesystem is open for writing.
    pub(crate) held: Option<Arc<Held>>,
    pub(crate) times: Times,
    pub(crate) checks: Checks,
}

struct Opened {
    id: FileId,
    stream: Stream,
}

/// One of the reads of [`File::read_many`].
#[derive(Debug)]
pub struct ReadAt<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
    /// Set by the call: how many bytes of `buf` were filled.
    pub result: Result<usize>,
}

/// A range of a file and where its bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file, in bytes.
    pub offset: u64,
    pub bytes: u64,
    pub kind: ExtentKind,
}

/// Where the bytes of an [`Extent`] live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Nothing is stored: zeros.
    Hole,
    /// Space is set aside at `logical`, and reads as zeros.
    Prealloc { logical: u64 },
    /// In the tree itself.
    Inline { compression: Compression },
    /// In the data extent at `logical`, of `disk_bytes` on disk and `ram_bytes` unpacked; this
    /// range starts `extent_offset` bytes into the unpacked extent.
    Regular {
        logical: u64,
        disk_bytes: u64,
        ram_bytes: u64,
        extent_offset: u64,
        compression: Compression,
    },
    /// In memory, written and not yet on disk.
    Buffered,
}

/// The extents of a range of a file, without gaps: holes are extents too. Ends after the first
/// error.
#[derive(Debug)]
pub struct Extents {
    mappings: Mappings,
    file: File,
}

impl<'a> ReadAt<'a> {
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, result: Ok(0) }
    }
}

impl Iterator for Extents {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        let _body = self.file.shared_lock();
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
        let Some(held) = self.hold(id)? else {
            let view = self.view(id)?;
            return Ok(self.file(id, view, None));
        };
        self.open_held(held)
    }

    /// Makes a file without a name and opens it: it goes with its last handle, unless
    /// [`Filesystem::link`] gives it a name before. `dir` is the directory that it inherits of.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn open_unnamed(&self, dir: FileId, new: &NewInode) -> Result<File> {
        let entry = self.make_unnamed(dir, new)?;
        self.open_held(self.held(entry))
    }

    fn open_held(&self, held: Held) -> Result<File> {
        let tree = self.tree_of(held.id())?;
        let view = {
            let mut body = held.entry().body_mut();
            self.file_state(&tree, held.entry(), &mut body)?.view().clone()
        };
        Ok(self.file(held.id(), view, Some(Arc::new(held))))
    }

    fn file(&self, id: FileId, view: FileView, held: Option<Arc<Held>>) -> File {
        let stream = Stream::new(self.shared.source.clone(), view);
        let shared = Arc::new(Opened { id, stream });
        File { shared, filesystem: self.clone(), held, times: Times::Now, checks: Checks::EachTime }
    }

    /// The bytes of a symlink, at most `bytes_max`.
    pub(crate) fn symlink_text(&self, id: FileId, bytes_max: u64) -> Result<Vec<u8>> {
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
    /// Reads into `buf` from `offset`, any alignment, and says how many bytes came: 0 at or past
    /// the end of the file, fewer than asked where the file ends, or where what follows is damaged
    /// (a read that starts there fails). What `buf` holds behind them is undefined.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _timed = self.timed(Operation::CachedRead);
        let _body = self.shared_lock();
        Ok(self.shared.stream.read_at(offset, buf)?)
    }

    /// As [`File::read_at`], for bytes that are not asked for again: memory keeps nothing of them
    /// that others did not bring there.
    pub fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _timed = self.timed(Operation::CachedRead);
        let _body = self.shared_lock();
        Ok(self.shared.stream.read_uncached(offset, buf)?)
    }

    /// As [`File::read_at`], past the page cache, but for what is in memory only.
    pub fn read_direct(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _timed = self.timed(Operation::DirectRead);
        self.lane_counters().dio_read_general.add();
        let _body = self.shared_lock();
        self.read_in_flight(offset, buf)
    }

    /// Many independent reads, handed to the devices together; each has its own result.
    pub fn read_many(&self, reads: &mut [ReadAt<'_>]) {
        let _timed = self.timed(Operation::CachedRead);
        let _body = self.shared_lock();
        let mut batch: Vec<data::ReadAt<'_>> =
            reads.iter_mut().map(|read| data::ReadAt::new(read.offset, &mut *read.buf)).collect();
        self.source().read_many(self.view(), &mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| read.result).collect();
        for (read, result) in reads.iter_mut().zip(results) {
            read.result = result.map_err(Error::from);
        }
    }

    /// The first offset at or after `offset` that holds data, or `None` where only a hole, or
    /// nothing, follows (`lseek` says `ENXIO`).
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        let _body = self.shared_lock();
        Ok(data::seek_data(self.view(), offset)?)
    }

    /// The first offset at or after `offset` that is in a hole; the end of the file is one.
    /// `None` at or past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        let _body = self.shared_lock();
        Ok(data::seek_hole(self.view(), offset)?)
    }

    /// What the range is made of. Ends with the file and its extents. While the file is written,
    /// what was written behind the listing's back may be in it or not.
    pub fn extents(&self, range: Range<u64>) -> Extents {
        Extents { mappings: Mappings::of(self.view(), range), file: self.clone() }
    }

    /// The attributes.
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub fn stat(&self) -> Result<Stat> {
        self.filesystem.stat(self.shared.id)
    }

    pub fn id(&self) -> FileId {
        self.shared.id
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.view().size()
    }

    /// Measures an operation on the file, until it is dropped.
    pub(crate) fn timed(&self, operation: Operation) -> Timed<'_> {
        self.filesystem.timed(operation)
    }

    fn shared_lock(&self) -> Option<RwLockReadGuard<'_, Body>> {
        self.held.as_ref().map(|held| held.entry().body())
    }

    pub(crate) fn view(&self) -> &FileView {
        self.shared.stream.view()
    }

    pub(crate) fn source(&self) -> &Source {
        self.shared.stream.source()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.shared.stream
    }

    pub(crate) fn lane_counters(&self) -> &LaneCounters {
        &self.filesystem.shared.counters
    }

    pub(crate) fn stability(&self) -> crate::DirectStability {
        self.filesystem.switches().direct_stability
    }

    /// Reads what a request in flight is to read, which shares the file already.
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
        MappingKind::Regular { extent, packing, skip } => ExtentKind::Regular {
            logical: extent.logical.0,
            disk_bytes: extent.bytes,
            ram_bytes: packing.ram_bytes,
            extent_offset: skip,
            compression: packing.compression,
        },
        MappingKind::Buffered => ExtentKind::Buffered,
    };
    Extent { offset: mapping.offset, bytes: mapping.bytes, kind }
}
