//! [`RecordingDevice`]: a test device that records all writes, flushes and discards, so that a test
//! can simulate a power cut at any point.
//!
//! It is a copy-on-write layer over a base that it never writes. [`Recording`] is a snapshot of its
//! log; [`Crashes`] enumerates the states that a power cut may leave, each as a [`CrashImage`].
//!
//! # The fault model
//!
//! Flushes divide the log into gaps. A crash has a position: everything before it in the log was
//! issued, nothing after it was.
//!
//! | request | state after the crash |
//! |---|---|
//! | a write before the last flush that precedes the position | complete |
//! | a write after that flush | complete, absent or torn, each independently |
//! | a torn write | any subset of its aligned 512-byte sectors, or of its 4096-byte blocks |
//! | two such writes to the same bytes | either one may be the later |
//! | a discard after that flush | applied or not; if applied, the range holds junk (below) |
//! | a write after the position | absent |
//!
//! A flush that was issued and did not return guarantees nothing: this is the crash just before it.
//! [`Device`] has no FUA writes: a durable write is a write and a flush. The model has no device
//! that returns from a flush too early, and no 512-byte sector that tears.
//!
//! The first and the last MiB of a discarded range read as junk from then on, in the recording too.
//! The bytes between them stay as they are. [`Device::discard`] allows both.

mod crashes;
mod image;
mod pages;

pub use crashes::{Crash, CrashOptions, Crashes, Fate, Pivotal};
pub use image::CrashImage;

use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range};
use butternut_sys::lock::{RwLock, rank};
use pages::{Lower, Pages};
use std::sync::Arc;

/// A device that records what is done to it.
#[derive(Debug)]
pub struct RecordingDevice {
    base: Arc<dyn Device>,
    state: RwLock<State, rank::RecordingDevice>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct State {
    pages: Pages,
    log: Vec<Record>,
}

/// One request; its index in the log is its sequence number.
#[derive(Clone, PartialEq, Eq)]
pub enum Record {
    Write { offset: u64, bytes: Arc<[u8]> },
    Flush,
    Discard { offset: u64, bytes: u64 },
}

/// A snapshot of a log and its base. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recording {
    base: Arc<dyn Device>,
    log: Arc<[Record]>,
}

impl RecordingDevice {
    /// Makes a recording device, which is writable whatever the base is. The base must not change
    /// afterwards.
    pub fn new(base: Arc<dyn Device>) -> RecordingDevice {
        RecordingDevice { base, state: RwLock::default(), counters: Counters::default() }
    }

    /// Returns the number of records in the log. Data of a sync that has returned must survive
    /// every crash at this position or a later one.
    pub fn position(&self) -> usize {
        self.state.read().log.len()
    }

    /// Returns a snapshot of the log.
    pub fn recording(&self) -> Recording {
        let state = self.state.read();
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

    /// Returns the device contents after all requests before `position` have reached the medium.
    pub fn image_at(&self, position: usize) -> Result<CrashImage, DeviceError> {
        let mut pages = Pages::default();
        for record in self.log.iter().take(position) {
            record.apply(&mut pages, &self.base)?;
        }
        Ok(CrashImage::new(Arc::clone(&self.base), Arc::new(pages), Pages::default()))
    }
}

impl Record {
    fn apply(&self, pages: &mut Pages, lower: &impl Lower) -> Result<(), DeviceError> {
        match self {
            Record::Write { offset, bytes } => pages.write(lower, *offset, bytes),
            Record::Discard { offset, bytes } => pages.discard(lower, *offset, *bytes),
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
        let state = self.state.read();
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
    /// Adds a record to the log and to the pages under one lock, so that both have the same order.
    fn append(&self, record: Record) -> Result<(), DeviceError> {
        let mut state = self.state.write();
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
