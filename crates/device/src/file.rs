//! [`FileDevice`]: a block device or an image file, or a window of one.
//!
//! 1. A device is the window `[offset, offset + bytes)` of its file; bytes outside are not
//!    accessed, except by law 2. Only the window is locked, with the blocks that bounced writes at
//!    its ends may touch, so that volumes in several partitions of one image are open together.
//! 2. Transfers that the file does not support directly use a bounce buffer, which holds the whole
//!    blocks around the range. A bounced write reads the blocks first and writes them back; a lock
//!    serialises such writes, because two of them may change parts of the same block.
//! 3. A window that does not begin on a block boundary is opened without `O_DIRECT`, because every
//!    transfer would have to be bounced.

use crate::counters::Counters;
use crate::device::{Device, RingTarget};
use crate::error::{DeviceError, check_range, check_writable};
use butternut_sys::buffer::Buffer;
use butternut_sys::errno::Errno;
use butternut_sys::file::{
    Alignment, DIRECT_ALIGN_MAX, DiskFile, DiskKind, OpenDisk, Sharing, Window, WriteCache,
};
use butternut_sys::lock::{Mutex, rank};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Alignment of the offset of a window that allows direct I/O, in bytes.
const WINDOW_ALIGN: u64 = 4096;

/// Maximum size of a bounce buffer in bytes; longer transfers are split.
const BOUNCE_BYTES_MAX: usize = 1 << 20;

/// A block device or an image file, or a window of one.
#[derive(Debug)]
pub struct FileDevice {
    file: DiskFile,
    name: Box<str>,
    offset: u64,
    bytes: AtomicU64,
    /// The device ends where its file does.
    grows: bool,
    counters: Counters,
    /// Serialises bounced writes (law 2).
    bounced_writes: Mutex<(), rank::BouncedWrites>,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    pub writable: bool,
    /// The offset in the file where the device begins, in bytes.
    pub offset: u64,
    /// The size of the device in bytes; `None` means up to the end of the file.
    pub bytes: Option<u64>,
    /// Bypass the page cache if the file supports it.
    pub direct: bool,
    /// For readers, [`Sharing::Unlocked`] opens a volume that another process may be writing to.
    pub sharing: Sharing,
    /// The device number (major, minor) of a block device that the caller has mounted
    /// ([`OpenDisk::mounted`]).
    pub mounted: Option<(u32, u32)>,
    /// Rings may register the device ([`OpenDisk::may_register`]).
    pub may_register: bool,
}

impl Default for OpenDevice {
    fn default() -> OpenDevice {
        OpenDevice {
            writable: false,
            offset: 0,
            bytes: None,
            direct: true,
            sharing: Sharing::Locked,
            mounted: None,
            may_register: true,
        }
    }
}

/// Returns the blocks that hold the window (law 1), of the largest size that a file may have.
fn locked_window(how: &OpenDevice) -> Window {
    let block = u64::from(DIRECT_ALIGN_MAX);
    let window = Window::of(how.offset, how.bytes);
    let end = window.end.checked_next_multiple_of(block).unwrap_or(u64::MAX);
    Window { start: window.start - window.start % block, end }
}

impl FileDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// The file cannot be opened, is busy, or does not contain the window.
    pub fn open(path: &Path, how: &OpenDevice) -> Result<FileDevice, DeviceError> {
        let direct = how.direct && how.offset.is_multiple_of(WINDOW_ALIGN);
        let OpenDevice { writable, sharing, mounted, may_register, .. } = *how;
        let window = locked_window(how);
        let disk = OpenDisk { writable, direct, sharing, mounted, window, may_register };
        let file = DiskFile::open(path, disk).map_err(Arc::new)?;
        let name: Box<str> = path.to_string_lossy().into();
        let rest = file.bytes().checked_sub(how.offset);
        let bytes = how.bytes.or(rest).unwrap_or(0);
        if rest.is_none_or(|rest| bytes > rest) {
            let (offset, file_bytes) = (how.offset, file.bytes());
            return Err(DeviceError::Window { device: name, offset, bytes, file_bytes });
        }
        let (offset, counters, bounced_writes) = (how.offset, Counters::default(), Mutex::new(()));
        let (bytes, grows) = (AtomicU64::new(bytes), how.bytes.is_none());
        Ok(FileDevice { file, name, offset, bytes, grows, counters, bounced_writes })
    }

    /// Returns whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    /// Returns the size of the sectors of a block device in bytes; `None` for an image file.
    pub fn block_bytes(&self) -> Option<u32> {
        match self.file.kind() {
            DiskKind::Image => None,
            DiskKind::BlockDevice { .. } => Some(self.file.logical_block_bytes()),
        }
    }

    /// Returns the offset in the file where the device begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn is_aligned(&self, offset: u64, memory: &[u8]) -> bool {
        is_aligned(self.file.alignment(), self.offset + offset, memory)
    }

    /// Returns the offset and the length of the whole blocks around a range of the file.
    fn blocks_around(&self, offset: u64, bytes: u64) -> (u64, usize) {
        let block = u64::from(self.file.alignment().offset_bytes);
        let start = offset - offset % block;
        let end = (offset + bytes).next_multiple_of(block);
        (start, usize::try_from(end - start).expect("a part and two blocks"))
    }

    fn write_part(&self, offset: u64, memory: &[u8]) -> Result<(), Errno> {
        if self.is_aligned(offset, memory) {
            self.file.write_at(self.offset + offset, memory)
        } else {
            self.write_bounced(offset, memory)
        }
    }

    fn read_bounced(&self, offset: u64, memory: &mut [u8]) -> Result<(), Errno> {
        let mut at = self.offset + offset;
        for part in memory.chunks_mut(BOUNCE_BYTES_MAX) {
            let (start, bytes) = self.blocks_around(at, part.len() as u64);
            let mut bounce = Buffer::zeroed(bytes);
            let skip = usize::try_from(at - start).expect("less than a block");
            let read = self.file.read_at(start, &mut bounce)?;
            let wanted = bounce.get(skip..skip + part.len()).filter(|_| read >= skip + part.len());
            part.copy_from_slice(wanted.ok_or(Errno::NO_DATA)?);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_bounced(&self, offset: u64, memory: &[u8]) -> Result<(), Errno> {
        let _bounced_writes = self.bounced_writes.lock();
        let mut at = self.offset + offset;
        for part in memory.chunks(BOUNCE_BYTES_MAX) {
            let (start, bytes) = self.blocks_around(at, part.len() as u64);
            let mut bounce = Buffer::zeroed(bytes);
            let skip = usize::try_from(at - start).expect("less than a block");
            // Bytes beyond the end of the file stay zero. If the length of an image is not a
            // multiple of the block size, its last block is written whole, and the file then ends
            // on a block boundary.
            self.file.read_at(start, &mut bounce)?;
            bounce[skip..skip + part.len()].copy_from_slice(part);
            self.file.write_at(start, &bounce)?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn bytes_now(&self) -> u64 {
        let rest = self.file.bytes_now().unwrap_or(0).saturating_sub(self.offset);
        rest.min(self.bytes())
    }

    fn take_growth(&self) -> u64 {
        let rest = self.file.bytes_now().unwrap_or(0).saturating_sub(self.offset);
        if self.grows {
            self.bytes.fetch_max(rest, Ordering::Relaxed);
        }
        self.bytes()
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
            let read = self.file.read_at(self.offset + offset, memory);
            read.and_then(|read| if read == memory.len() { Ok(()) } else { Err(Errno::NO_DATA) })
        } else {
            self.read_bounced(offset, memory)
        };
        result.map_err(|cause| DeviceError::read(self, offset, memory.len() as u64, cause))
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_write(memory.len());
        let result = self.write_part(offset, memory);
        result.map_err(|cause| DeviceError::write(self, offset, memory.len() as u64, cause))
    }

    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<(), DeviceError> {
        let bytes = slices.iter().map(|slice| slice.len()).fold(0, usize::saturating_add);
        check_writable(self)?;
        check_range(self, offset, bytes as u64)?;
        self.counters.count_write(bytes);
        let mut at = offset;
        for slice in slices {
            let result = self.write_part(at, slice);
            result.map_err(|cause| DeviceError::write(self, offset, bytes as u64, cause))?;
            at += slice.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        self.file.flush().map_err(|cause| DeviceError::flush(self, cause))
    }

    fn claim(&self, wait: Duration) -> Result<bool, DeviceError> {
        let device = || self.name.clone();
        self.file.claim(wait).map_err(|cause| DeviceError::Claim { device: device(), cause })
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

/// Returns whether a file with this alignment can transfer `memory` at `offset` without a bounce.
pub(crate) fn is_aligned(alignment: Alignment, offset: u64, memory: &[u8]) -> bool {
    is_block_aligned(alignment, offset, memory.len() as u64)
        && memory.as_ptr().addr().is_multiple_of(alignment.memory_bytes as usize)
}

/// Returns whether a range consists of whole blocks.
pub(crate) fn is_block_aligned(alignment: Alignment, offset: u64, bytes: u64) -> bool {
    let block = u64::from(alignment.offset_bytes);
    offset.is_multiple_of(block) && bytes.is_multiple_of(block)
}
