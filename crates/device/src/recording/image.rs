//! [`CrashImage`]: what a medium may hold after the power went, as a device of its own.
//!
//! The base and the pages that were durable are shared with all other images of the recording; an
//! image owns what became of the writes that were not durable, and what is written to it
//! afterwards. Its own writes are durable at once: to crash a recovery, wrap the image in a
//! [`RecordingDevice`](crate::RecordingDevice) again.

use super::pages::{Over, PAGE_BYTES, Page, Pages};
use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range};
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Debug)]
pub struct CrashImage {
    name: Box<str>,
    base: Arc<dyn Device>,
    durable: Arc<Pages>,
    own: RwLock<Pages>,
    counters: Counters,
}

impl CrashImage {
    pub(super) fn new(base: Arc<dyn Device>, durable: Arc<Pages>, own: Pages) -> CrashImage {
        let name = format!("{} after a crash", base.name()).into();
        CrashImage { name, base, durable, own: RwLock::new(own), counters: Counters::default() }
    }

    /// Calls `each` with every page of 4096 bytes that may differ from the base, and its offset:
    /// a copy of the base with these written over it is this image.
    pub fn for_each_changed_page<E>(
        &self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        let mut merged: std::collections::BTreeMap<u64, &Arc<Page>> = self.durable.iter().collect();
        merged.extend(own.iter());
        for (page, bytes) in merged {
            let offset = page * PAGE_BYTES as u64;
            let rest = usize::try_from(self.bytes() - offset).unwrap_or(usize::MAX);
            each(offset, &bytes[..rest.min(PAGE_BYTES)])?;
        }
        Ok(())
    }
}

impl Device for CrashImage {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.base.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_read(memory.len());
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        own.read(&Over(&self.durable, &self.base), offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_write(memory.len());
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        own.write(&Over(&self.durable, &self.base), offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        check_range(self, offset, bytes)?;
        self.counters.count_discard();
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        own.discard(&Over(&self.durable, &self.base), offset, bytes)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
