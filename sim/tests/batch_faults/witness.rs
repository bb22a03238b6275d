//! A device that records which blocks were written, and whether the writes succeeded.

use butternut_device::{Counters, Device, DeviceError, FaultyDevice};
use butternut_sim::content::read_digest;
use butternut_sys::file::{Alignment, WriteCache};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;

#[derive(Debug)]
pub(crate) struct Witness {
    pub(crate) faulty: Arc<FaultyDevice>,
    /// Whether the last write of a block succeeded, by the hash of its bytes.
    blocks: Mutex<HashMap<u64, bool>>,
    /// The range that holds data.
    data: Range<u64>,
}

impl Witness {
    pub(crate) fn new(faulty: Arc<FaultyDevice>, data: Range<u64>) -> Witness {
        Witness { faulty, blocks: Mutex::default(), data }
    }

    /// Returns whether these bytes are on the device, or `None` if they were never written.
    pub(crate) fn is_on_device(&self, bytes: &[u8]) -> Option<bool> {
        let blocks = self.blocks.lock().unwrap();
        let each: Option<Vec<bool>> =
            bytes.chunks(BLOCK).map(|block| blocks.get(&read_digest(block)).copied()).collect();
        each.map(|each| each.iter().all(|is_on_device| *is_on_device))
    }
}

impl Device for Witness {
    fn name(&self) -> &str {
        self.faulty.name()
    }

    fn bytes(&self) -> u64 {
        self.faulty.bytes()
    }

    fn is_writable(&self) -> bool {
        self.faulty.is_writable()
    }

    fn alignment(&self) -> Alignment {
        self.faulty.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.faulty.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.faulty.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        let result = self.faulty.write_at(offset, memory);
        if self.data.contains(&offset) {
            let mut blocks = self.blocks.lock().unwrap();
            for block in memory.chunks(BLOCK) {
                blocks.insert(read_digest(block), result.is_ok());
            }
        }
        result
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.faulty.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.faulty.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.faulty.counters()
    }
}
