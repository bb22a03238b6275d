//! [`FileDevice`]: a block device or an image file, or a window inside one.
//!
//! 1. A device is the window `[offset, offset + bytes)` of its file; nothing outside is touched.
//! 2. Transfers that the file cannot do directly are bounced: whole blocks around the range go
//!    through memory of our own. A bounced write reads the blocks at its edges first; a lock keeps
//!    two such writes apart, for both may hold a part of one block.
//! 3. A window that does not begin on a block boundary is opened without `O_DIRECT`, for every
//!    transfer in it would have to be bounced.

use crate::counters::Counters;
use crate::device::{Device, RingTarget};
use crate::error::{DeviceError, check_range, check_writable};
use butternut_sys::buffer::Buffer;
use butternut_sys::errno::Errno;
use butternut_sys::file::{Alignment, DiskFile, OpenDisk, Sharing, WriteCache};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Windows that begin on such a boundary can be read directly.
const WINDOW_ALIGN: u64 = 4096;

/// A longer bounced transfer goes in pieces of this size.
const BOUNCE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct FileDevice {
    file: DiskFile,
    name: Box<str>,
    offset: u64,
    bytes: u64,
    counters: Counters,
    edges: Mutex<()>,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    pub writable: bool,
    /// Where in the file the device begins.
    pub offset: u64,
    /// How long it is; to the end of the file if not said.
    pub bytes: Option<u64>,
    /// Bypass the page cache if the file can.
    pub direct: bool,
    /// For readers: [`Sharing::Unlocked`] looks at a volume that somebody may be writing.
    pub sharing: Sharing,
}

impl Default for OpenDevice {
    fn default() -> OpenDevice {
        let sharing = Sharing::Locked;
        OpenDevice { writable: false, offset: 0, bytes: None, direct: true, sharing }
    }
}

impl FileDevice {
    pub fn open(path: &Path, how: &OpenDevice) -> Result<FileDevice, DeviceError> {
        let direct = how.direct && how.offset.is_multiple_of(WINDOW_ALIGN);
        let disk = OpenDisk { writable: how.writable, direct, sharing: how.sharing };
        let file = DiskFile::open(path, disk).map_err(Arc::new)?;
        let name: Box<str> = path.to_string_lossy().into();
        let rest = file.bytes().checked_sub(how.offset);
        let bytes = how.bytes.or(rest).unwrap_or(0);
        if rest.is_none_or(|rest| bytes > rest) {
            let (offset, file_bytes) = (how.offset, file.bytes());
            return Err(DeviceError::Window { device: name, offset, bytes, file_bytes });
        }
        let (offset, counters, edges) = (how.offset, Counters::default(), Mutex::new(()));
        Ok(FileDevice { file, name, offset, bytes, counters, edges })
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    /// Where in its file the device begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn is_aligned(&self, offset: u64, memory: &[u8]) -> bool {
        is_aligned(self.file.alignment(), self.offset + offset, memory)
    }

    /// The blocks around a range of the file: where they begin, and how many bytes they are.
    fn blocks_around(&self, offset: u64, bytes: u64) -> (u64, usize) {
        let block = u64::from(self.file.alignment().offset_bytes);
        let start = offset - offset % block;
        let end = (offset + bytes).next_multiple_of(block);
        (start, usize::try_from(end - start).expect("a piece and two blocks"))
    }

    fn write_any(&self, offset: u64, memory: &[u8]) -> Result<(), Errno> {
        if self.is_aligned(offset, memory) {
            self.file.write_at(self.offset + offset, memory)
        } else {
            self.write_bounced(offset, memory)
        }
    }

    fn read_bounced(&self, offset: u64, memory: &mut [u8]) -> Result<(), Errno> {
        let mut at = self.offset + offset;
        for piece in memory.chunks_mut(BOUNCE_BYTES_MAX) {
            let (start, bytes) = self.blocks_around(at, piece.len() as u64);
            let mut bounce = Buffer::zeroed(bytes);
            let skip = usize::try_from(at - start).expect("less than a block");
            let came = self.file.read_at(start, &mut bounce)?;
            let wanted =
                bounce.get(skip..skip + piece.len()).filter(|_| came >= skip + piece.len());
            piece.copy_from_slice(wanted.ok_or(Errno::NO_DATA)?);
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn write_bounced(&self, offset: u64, memory: &[u8]) -> Result<(), Errno> {
        let _edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = self.offset + offset;
        for piece in memory.chunks(BOUNCE_BYTES_MAX) {
            let (start, bytes) = self.blocks_around(at, piece.len() as u64);
            let mut bounce = Buffer::zeroed(bytes);
            let skip = usize::try_from(at - start).expect("less than a block");
            // Bytes beyond the end of the file stay zero. The last block of an image whose length
            // is no multiple of the block is written whole: the file then ends on a block boundary.
            self.file.read_at(start, &mut bounce)?;
            bounce[skip..skip + piece.len()].copy_from_slice(piece);
            self.file.write_at(start, &bounce)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn bytes_now(&self) -> u64 {
        let rest = self.file.bytes_now().unwrap_or(0).saturating_sub(self.offset);
        rest.min(self.bytes)
    }

    fn is_writable(&self) -> bool {
        self.file.is_writable()
    }

    fn alignment(&self) -> Alignment {
        self.file.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.file.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_read(memory.len());
        let result = if self.is_aligned(offset, memory) {
            let came = self.file.read_at(self.offset + offset, memory);
            came.and_then(|came| if came == memory.len() { Ok(()) } else { Err(Errno::NO_DATA) })
        } else {
            self.read_bounced(offset, memory)
        };
        result.map_err(|cause| DeviceError::read(self, offset, memory.len() as u64, cause))
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_write(memory.len());
        let result = self.write_any(offset, memory);
        result.map_err(|cause| DeviceError::write(self, offset, memory.len() as u64, cause))
    }

    fn write_row_at(&self, offset: u64, row: &[&[u8]]) -> Result<(), DeviceError> {
        let bytes = row.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
        check_writable(self)?;
        check_range(self, offset, bytes as u64)?;
        self.counters.count_write(bytes);
        let mut at = offset;
        for piece in row {
            let result = self.write_any(at, piece);
            result.map_err(|cause| DeviceError::write(self, offset, bytes as u64, cause))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        self.file.flush().map_err(|cause| DeviceError::flush(self, cause))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, bytes)?;
        self.counters.count_discard();
        match self.file.discard(self.offset + offset, bytes) {
            Ok(()) | Err(Errno::NOT_SUPPORTED) => Ok(()),
            Err(cause) => Err(DeviceError::discard(self, offset, bytes, cause)),
        }
    }

    fn ring_target(&self) -> Option<RingTarget<'_>> {
        Some(RingTarget { file: &self.file, offset: self.offset })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Whether a file of this alignment can transfer `memory` at `offset` without a bounce.
pub(crate) fn is_aligned(alignment: Alignment, offset: u64, memory: &[u8]) -> bool {
    is_block_aligned(alignment, offset, memory.len() as u64)
        && memory.as_ptr().addr().is_multiple_of(alignment.memory_bytes as usize)
}

/// Whether a range is whole blocks.
pub(crate) fn is_block_aligned(alignment: Alignment, offset: u64, bytes: u64) -> bool {
    let block = u64::from(alignment.offset_bytes);
    offset.is_multiple_of(block) && bytes.is_multiple_of(block)
}
