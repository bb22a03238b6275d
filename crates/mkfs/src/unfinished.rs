//! [`Unfinished`]: the device of a volume that is being filled. Its superblocks are in memory,
//! so that on the device there is no volume until it is complete.
//!
//! 1. A write of a whole superblock stays in memory until [`Unfinished::finish`], and every read
//!    sees it. All other writes go to the device.
//! 2. [`Unfinished::finish`] flushes the device, and then writes the superblocks, the first copy
//!    last, with a flush before and after it. From then on all writes go to the device.
//! 3. A copy behind the end of the volume, which may have become smaller, is older than the others,
//!    and is not written. The device has none there: old ones were wiped when the volume was made.
//! 4. There is no file for a ring: it would write past this device.

use arc_swap::ArcSwapOption;
use butternut_device::{Alignment, Counters, Device, DeviceError, FileDevice, WriteCache};
use butternut_format::super_block::{COPY_OFFSETS, RawSuperBlock, SUPER_BLOCK_BYTES};
use butternut_format::units::length;
use butternut_sys::buffer::Buffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::FromBytes;

/// A device whose volume is not complete yet.
#[derive(Debug)]
pub struct Unfinished {
    device: FileDevice,
    /// The superblock copies that were written last, in the order of [`COPY_OFFSETS`].
    copies: [ArcSwapOption<Vec<u8>>; COPY_OFFSETS.len()],
    is_finished: AtomicBool,
}

impl Unfinished {
    pub(crate) fn new(device: FileDevice) -> Self {
        Self { device, copies: Default::default(), is_finished: AtomicBool::new(false) }
    }

    /// Writes the superblocks: the device has a volume from now on (law 2). The caller has ended
    /// all other writes.
    ///
    /// # Errors
    /// A write or flush fails. The device then has the whole volume, or none.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.device.flush()?;
        let end = self.volume_end();
        for (copy, offset) in COPY_OFFSETS.into_iter().enumerate().rev() {
            let Some(bytes) = self.copies[copy].load_full() else { continue };
            if copy == 0 {
                self.device.flush()?;
            } else if offset + length(SUPER_BLOCK_BYTES) >= end {
                continue;
            }
            let mut memory = Buffer::zeroed(SUPER_BLOCK_BYTES);
            memory.copy_from_slice(&bytes);
            self.device.write_at(offset, &memory)?;
        }
        self.is_finished.store(true, Ordering::Release);
        self.device.flush()
    }

    /// Returns whether the device has the volume: [`Unfinished::finish`] has written the first copy
    /// of the superblock.
    pub fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    /// Returns the size of the volume on this device, which the first copy has.
    fn volume_end(&self) -> u64 {
        let first = self.copies[0].load_full();
        let raw = first.as_deref().and_then(|bytes| RawSuperBlock::ref_from_bytes(bytes).ok());
        raw.map_or(0, |raw| raw.dev_item.total_bytes.get())
    }
}

impl Device for Unfinished {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn bytes_now(&self) -> u64 {
        self.device.bytes_now()
    }

    fn take_growth(&self) -> u64 {
        self.device.take_growth()
    }

    fn is_writable(&self) -> bool {
        self.device.is_writable()
    }

    fn alignment(&self) -> Alignment {
        self.device.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.device.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, memory)?;
        if self.is_finished() {
            return Ok(());
        }
        let end = offset + length(memory.len());
        for (copy, at) in COPY_OFFSETS.into_iter().enumerate() {
            let Some(bytes) = self.copies[copy].load_full() else { continue };
            let (from, to) = (at.max(offset), (at + length(bytes.len())).min(end));
            if from < to {
                let place = |start: u64| to_index(from - start)..to_index(to - start);
                memory[place(offset)].copy_from_slice(&bytes[place(at)]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        let copy = COPY_OFFSETS.iter().position(|at| *at == offset);
        match copy.filter(|_| memory.len() == SUPER_BLOCK_BYTES && !self.is_finished()) {
            Some(copy) => {
                self.copies[copy].store(Some(Arc::new(memory.to_vec())));
                Ok(())
            }
            None => self.device.write_at(offset, memory),
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.device.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.device.counters()
    }
}

/// A place in memory: it is less than the length of a slice.
fn to_index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_device::OpenDevice;
    use zerocopy::{FromZeros, IntoBytes};

    #[test]
    fn superblocks_are_written_when_the_volume_is_complete() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("image");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let device = Unfinished::new(FileDevice::open(&path, &how).unwrap());
        let on_disk = |at: usize| std::fs::read(&path).unwrap()[at];
        device.write_at(COPY_OFFSETS[0], &[7; SUPER_BLOCK_BYTES]).unwrap();
        device.write_at(0, &[8; 4096]).unwrap();
        assert_eq!((on_disk(64 << 10), on_disk(0)), (0, 8));
        let mut seen = vec![0; 4096 * 3];
        device.read_at(COPY_OFFSETS[0] - 4096, &mut seen).unwrap();
        assert_eq!((seen[4095], seen[4096], seen[8191], seen[8192]), (0, 7, 7, 0));
        assert!(!device.is_finished());
        device.finish().unwrap();
        assert!(device.is_finished());
        assert_eq!(on_disk(64 << 10), 7);
        device.write_at(COPY_OFFSETS[0], &[9; SUPER_BLOCK_BYTES]).unwrap();
        assert_eq!(on_disk(64 << 10), 9);
    }
    #[test]
    fn a_copy_behind_the_end_of_a_smaller_volume_is_not_written() {
        for (bytes, wanted) in [(60 << 20, 0), ((64 << 20) + 4096, 0), ((64 << 20) + 8192, 7)] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(100 << 20).unwrap();
            let how = OpenDevice { writable: true, ..OpenDevice::default() };
            let device = Unfinished::new(FileDevice::open(file.path(), &how).unwrap());
            device.write_at(COPY_OFFSETS[1], &[7; SUPER_BLOCK_BYTES]).unwrap();
            let mut first = RawSuperBlock::new_zeroed();
            first.dev_item.total_bytes.set(bytes);
            device.write_at(COPY_OFFSETS[0], first.as_bytes()).unwrap();
            device.finish().unwrap();
            let mut found = [0];
            device.read_at(COPY_OFFSETS[1], &mut found).unwrap();
            assert_eq!(found, [wanted], "{bytes} bytes");
        }
    }
}
