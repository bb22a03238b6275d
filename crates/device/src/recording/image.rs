//! [`CrashImage`]: possible contents of a medium after a power cut, as a writable device.
//!
//! All images of a recording share the base and the durable pages. An image owns the pages of the
//! writes that were not durable, and of writes to the image itself. Writes to an image are durable
//! immediately; to crash a recovery, wrap the image in another
//! [`RecordingDevice`](crate::RecordingDevice).

use super::pages::{Layered, PAGE_BYTES, Page, Pages};
use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range};
use butternut_sys::lock::{RwLock, rank};
use std::sync::Arc;

/// Possible contents of a medium after a power cut.
#[derive(Debug)]
pub struct CrashImage {
    name: Box<str>,
    base: Arc<dyn Device>,
    durable: Arc<Pages>,
    own: RwLock<Pages, rank::CrashImage>,
    counters: Counters,
}

impl CrashImage {
    pub(super) fn new(base: Arc<dyn Device>, durable: Arc<Pages>, own: Pages) -> CrashImage {
        let name = format!("{} after a crash", base.name()).into();
        CrashImage { name, base, durable, own: RwLock::new(own), counters: Counters::default() }
    }

    /// Calls `each` with the offset and the bytes of every 4096-byte page that may differ from the
    /// base. A copy of the base, overwritten with these pages, equals this image.
    pub fn for_each_changed_page<E>(
        &self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let own = self.own.read();
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
        let own = self.own.read();
        own.read(&Layered(&self.durable, &self.base), offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_write(memory.len());
        let mut own = self.own.write();
        own.write(&Layered(&self.durable, &self.base), offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        check_range(self, offset, bytes)?;
        self.counters.count_discard();
        let mut own = self.own.write();
        own.discard(&Layered(&self.durable, &self.base), offset, bytes)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
