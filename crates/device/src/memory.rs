//! [`MemoryDevice`]: a sparse device in memory. Chunks that were never written use no memory, and
//! forks share the chunks that neither has written since.

use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range, check_writable};
use butternut_sys::lock::{RwLock, rank};
use std::sync::Arc;

const CHUNK_BYTES: usize = 64 << 10;

/// A chunk; `None` reads as zeroes.
type Chunk = RwLock<Option<Arc<[u8]>>, rank::MemoryDevice>;

/// A sparse device in memory.
#[derive(Debug)]
pub struct MemoryDevice {
    name: Box<str>,
    bytes: u64,
    is_writable: bool,
    chunks: Chunks,
    counters: Counters,
}

struct Chunks(Box<[Chunk]>);

impl MemoryDevice {
    /// Makes a writable device of `bytes` zero bytes.
    pub fn new(name: &str, bytes: u64) -> MemoryDevice {
        let count = usize::try_from(bytes.div_ceil(CHUNK_BYTES as u64));
        let count = count.expect("a 64-bit machine");
        let chunks = Chunks((0..count).map(|_| RwLock::new(None)).collect());
        let counters = Counters::default();
        MemoryDevice { name: name.into(), bytes, is_writable: true, chunks, counters }
    }

    /// Makes a writable device with a copy of `image`.
    pub fn copy_of(name: &str, image: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(name, image.len() as u64);
        for (chunk, bytes) in device.chunks.0.iter().zip(image.chunks(CHUNK_BYTES)) {
            if bytes.iter().any(|byte| *byte != 0) {
                *chunk.write() = Some(padded(bytes));
            }
        }
        device
    }

    /// Makes a writable device with the bytes that this one has now, without copying them. A chunk
    /// is copied when one of the two is written.
    #[must_use]
    pub fn fork(&self) -> MemoryDevice {
        let chunks = self.chunks.0.iter().map(|chunk| RwLock::new(chunk.read().clone())).collect();
        let (name, counters) = (self.name.clone(), Counters::default());
        let chunks = Chunks(chunks);
        MemoryDevice { name, bytes: self.bytes, is_writable: true, chunks, counters }
    }

    /// Returns the device with the same bytes, read-only.
    #[must_use]
    pub fn read_only(self) -> MemoryDevice {
        MemoryDevice { is_writable: false, ..self }
    }

    /// Calls `each` with the number of every chunk in a range, the part of the range inside the
    /// chunk, and the part of the caller's memory.
    fn for_each_chunk(
        offset: u64,
        len: usize,
        mut each: impl FnMut(usize, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let mut at = usize::try_from(offset).expect("the range is inside the device");
        let mut done = 0;
        while done < len {
            let inside = at % CHUNK_BYTES;
            let bytes = (CHUNK_BYTES - inside).min(len - done);
            each(at / CHUNK_BYTES, inside..inside + bytes, done..done + bytes);
            at += bytes;
            done += bytes;
        }
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_read(memory.len());
        Self::for_each_chunk(offset, memory.len(), |chunk, inside, outside| {
            let chunk = self.chunks.0[chunk].read();
            match chunk.as_deref() {
                Some(bytes) => memory[outside].copy_from_slice(&bytes[inside]),
                None => memory[outside].fill(0),
            }
        });
        Ok(())
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_write(memory.len());
        Self::for_each_chunk(offset, memory.len(), |chunk, inside, outside| {
            let mut chunk = self.chunks.0[chunk].write();
            let bytes = Arc::make_mut(chunk.get_or_insert_with(|| padded(&[])));
            bytes[inside].copy_from_slice(&memory[outside]);
        });
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, bytes)?;
        self.counters.count_discard();
        let len = usize::try_from(bytes).expect("the range is inside the device");
        Self::for_each_chunk(offset, len, |chunk, inside, _| {
            let mut chunk = self.chunks.0[chunk].write();
            if inside.len() == CHUNK_BYTES {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut() {
                Arc::make_mut(bytes)[inside].fill(0);
            }
        });
        Ok(())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} chunks of {CHUNK_BYTES} bytes", self.0.len())
    }
}

fn padded(bytes: &[u8]) -> Arc<[u8]> {
    // One allocation, which budgets of a volume on such a device count.
    let mut chunk: Arc<[u8]> = std::iter::repeat_n(0, CHUNK_BYTES).collect();
    Arc::make_mut(&mut chunk)[..bytes.len()].copy_from_slice(bytes);
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_back_and_the_rest_is_zero() {
        let device = MemoryDevice::new("m", 200_000);
        let pattern: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        device.write_at(50_001, &pattern).unwrap();
        let mut all = vec![1; 200_000];
        device.read_at(0, &mut all).unwrap();
        assert!(all[..50_001].iter().chain(&all[150_001..]).all(|byte| *byte == 0));
        assert_eq!(all[50_001..150_001], pattern[..]);
        let copy = MemoryDevice::copy_of("c", &all);
        device.discard(60_000, 80_000).unwrap();
        device.read_at(60_000, &mut all[..80_000]).unwrap();
        assert!(all[..80_000].iter().all(|byte| *byte == 0));
        copy.read_at(50_001, &mut all[..100_000]).unwrap();
        assert_eq!(all[..100_000], pattern[..]);
    }

    #[test]
    fn a_fork_and_its_origin_do_not_see_each_others_writes() {
        let device = MemoryDevice::new("m", 200_000);
        device.write_at(0, &vec![1; 100_000]).unwrap();
        let fork = device.fork();
        device.write_at(10, &[2]).unwrap();
        fork.write_at(20, &[3]).unwrap();
        fork.discard(90_000, 10_000).unwrap();
        let read = |device: &MemoryDevice, at| {
            let mut byte = [9];
            device.read_at(at, &mut byte).unwrap();
            byte[0]
        };
        let places = [5, 10, 20, 95_000, 150_000];
        assert_eq!(places.map(|at| read(&device, at)), [1, 2, 1, 1, 0]);
        assert_eq!(places.map(|at| read(&fork, at)), [1, 1, 3, 0, 0]);
    }

    #[test]
    fn ranges_beyond_the_end_and_writes_to_a_read_only_device_fail() {
        let device = MemoryDevice::new("m", 1000);
        let refused = device.read_at(999, &mut [0; 2]).unwrap_err();
        assert_eq!(refused.to_string(), "m: 2 bytes at 999 are beyond the end, 1000");
        assert!(matches!(
            device.read_at(u64::MAX, &mut [0; 2]),
            Err(DeviceError::OutOfRange { .. })
        ));
        let device = device.read_only();
        assert!(matches!(device.write_at(0, &[1]), Err(DeviceError::ReadOnly { .. })));
        assert!(matches!(device.discard(0, 1), Err(DeviceError::ReadOnly { .. })));
    }
}
