//! Open files: reads, holes, extents.

use crate::{FileId, Filesystem, Result, Stat};
use std::ops::Range;

/// A file open for reading. Cheap to clone; any number of threads may read through one at once.
#[derive(Clone, Debug)]
pub struct File {
    pub(crate) stat: Stat,
}

/// One of the reads of [`File::read_many`].
#[derive(Debug)]
pub struct ReadAt<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
    /// Set by the call: how many bytes of `buf` were filled.
    pub result: Result<usize>,
}

/// How an extent's bytes are packed on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Zlib,
    Lzo,
    Zstd,
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
}

/// The extents of a range of a file, without gaps: holes are extents too.
pub struct Extents {
    pub(crate) never: std::convert::Infallible,
}

impl Iterator for Extents {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.never {}
    }
}

impl Filesystem {
    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`](crate::Error::IsDirectory) for a directory,
    /// [`Error::WrongKind`](crate::Error::WrongKind) for other kinds.
    pub fn open_file(&self, id: FileId) -> Result<File> {
        self.not_yet(id)
    }
}

impl File {
    /// Reads into `buf` from `offset`, any alignment. The result is short only at the end of the
    /// file: 0 at or past it.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _ = (offset, buf);
        Err(crate::Error::Unsupported { what: "reading files" })
    }

    /// Many independent reads at once, each with its own result.
    pub fn read_many(&self, reads: &mut [ReadAt<'_>]) {
        for read in reads {
            read.result = self.read_at(read.offset, read.buf);
        }
    }

    /// The first offset at or after `offset` that holds data, or `None` where only a hole, or
    /// nothing, follows (`lseek` says `ENXIO`).
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        let _ = offset;
        Err(crate::Error::Unsupported { what: "seeking" })
    }

    /// The first offset at or after `offset` that is in a hole; the end of the file is one.
    /// `None` past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        let _ = offset;
        Err(crate::Error::Unsupported { what: "seeking" })
    }

    /// What the range is made of. Ends at the end of the file.
    pub fn extents(&self, range: Range<u64>) -> Result<Extents> {
        let _ = range;
        Err(crate::Error::Unsupported { what: "extents" })
    }

    /// The attributes, as they were when the file was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.stat.size
    }
}
