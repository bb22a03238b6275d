//! [`RecordingDevice`]: a device that remembers everything that was done to it, so that the power
//! can be cut afterwards, at every place and in every way.
//!
//! It lies copy-on-write over a base that it never writes. [`Recording`] is a snapshot of its log;
//! [`Crashes`] walks through what a power cut may leave of it, each as a [`CrashImage`].
//!
//! # The fault model
//!
//! The log is cut into gaps by its flushes. A crash has a position: everything before it in the log
//! was issued, nothing after it was.
//!
//! | what | after the crash |
//! |---|---|
//! | a write before the last flush that precedes the position | is there, whole |
//! | a write after that flush | is there, is not, or is torn: each on its own |
//! | a torn write | any set of its aligned 512-byte sectors, or of its 4096-byte blocks, is there |
//! | two such writes to the same bytes | either may be the one that lasts |
//! | a discard after that flush | happened or did not; if it did, the range holds junk |
//! | a write after the position | is not there |
//!
//! A flush that was issued and did not return promises nothing: that is the crash just before it.
//! The contract of [`Device`] has no FUA: a durable write is a write and a flush. Not modelled: a
//! device that returns from a flush too early, and sectors of 512 bytes that tear.
//!
//! A discarded range reads as junk from then on, in the recording too ([`Device::discard`]).

mod crashes;
mod image;
mod pages;

pub use crashes::{Crash, CrashOptions, Crashes, Fate, Pivotal};
pub use image::CrashImage;

use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range};
use pages::Pages;
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Debug)]
pub struct RecordingDevice {
    base: Arc<dyn Device>,
    state: RwLock<State>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct State {
    pages: Pages,
    log: Vec<Record>,
}

/// One thing that was done; its place in the log is its sequence number.
#[derive(Clone, PartialEq, Eq)]
pub enum Record {
    Write { offset: u64, bytes: Arc<[u8]> },
    Flush,
    Discard { offset: u64, bytes: u64 },
}

/// A snapshot of a log over its base. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recording {
    base: Arc<dyn Device>,
    log: Arc<[Record]>,
}

impl RecordingDevice {
    /// Writable whatever the base is; the base must not change from now on.
    pub fn new(base: Arc<dyn Device>) -> RecordingDevice {
        RecordingDevice { base, state: RwLock::default(), counters: Counters::default() }
    }

    /// How many records the log holds. A sync that has returned promises everything to crashes at
    /// this position and later ones.
    pub fn position(&self) -> usize {
        self.state.read().unwrap_or_else(PoisonError::into_inner).log.len()
    }

    pub fn recording(&self) -> Recording {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        Recording { base: Arc::clone(&self.base), log: state.log.as_slice().into() }
    }
}

impl Recording {
    pub fn log(&self) -> &[Record] {
        &self.log
    }

    pub fn base(&self) -> &Arc<dyn Device> {
        &self.base
    }

    /// What the medium holds when everything before `position` reached it.
    pub fn image_at(&self, position: usize) -> Result<CrashImage, DeviceError> {
        let mut pages = Pages::default();
        for record in self.log.iter().take(position) {
            record.apply(&mut pages, &self.base)?;
        }
        Ok(CrashImage::new(Arc::clone(&self.base), Arc::new(pages), Pages::default()))
    }
}

impl Record {
    fn apply(&self, pages: &mut Pages, under: &impl pages::Under) -> Result<(), DeviceError> {
        match self {
            Record::Write { offset, bytes } => pages.write(under, *offset, bytes),
            Record::Discard { offset, bytes } => pages.discard(under, *offset, *bytes),
            Record::Flush => Ok(()),
        }
    }
}

impl Device for RecordingDevice {
    fn name(&self) -> &str {
        self.base.name()
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
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.pages.read(&self.base, offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        self.counters.count_write(memory.len());
        let record = Record::Write { offset, bytes: memory.into() };
        self.append(record)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        self.append(Record::Flush)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        check_range(self, offset, bytes)?;
        self.counters.count_discard();
        self.append(Record::Discard { offset, bytes })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl RecordingDevice {
    /// In the log and in the pages at one instant, so that both have the same order.
    fn append(&self, record: Record) -> Result<(), DeviceError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        record.apply(&mut state.pages, &self.base)?;
        state.log.push(record);
        Ok(())
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Record::Write { offset, bytes } => write!(f, "write {offset}+{}", bytes.len()),
            Record::Flush => f.write_str("flush"),
            Record::Discard { offset, bytes } => write!(f, "discard {offset}+{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests;
