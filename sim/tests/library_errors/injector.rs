//! A device that fails one request of one kind, and counts the requests of each kind. A reservation
//! is failed by the ENOSPC injector that the volume on the device is opened with.

use butternut::EnospcInjector;
use butternut_device::{Counters, Device, DeviceError};
use butternut_sys::errno::Errno;
use butternut_sys::file::{Alignment, WriteCache};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A reservation of space, which the ENOSPC injector fails.
    Reservation,
    MetadataRead,
    DataRead,
    DataWrite,
    MetadataWrite,
    Flush,
    /// A read of data and all that follow, so that none is successful when it is repeated.
    DataReads,
    /// A write of data and all that follow.
    DataWrites,
    /// A read of metadata by a volume that keeps no tree block in memory.
    UncachedRead,
}

impl Kind {
    /// The errors that a call may return when such a request has failed.
    pub(crate) fn errnos(self) -> &'static [i32] {
        if self == Self::Reservation { &[28] } else { &[5, 30] }
    }

    pub(crate) const ALL: [Self; 9] = [
        Self::Reservation,
        Self::MetadataRead,
        Self::DataRead,
        Self::DataWrite,
        Self::MetadataWrite,
        Self::Flush,
        Self::DataReads,
        Self::DataWrites,
        Self::UncachedRead,
    ];

    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::MetadataRead | Self::UncachedRead | Self::DataRead | Self::DataReads)
    }

    pub(crate) fn is_data_write(self) -> bool {
        matches!(self, Self::DataWrite | Self::DataWrites)
    }

    fn is_lasting(self) -> bool {
        matches!(self, Self::DataReads | Self::DataWrites)
    }
}

const KINDS: usize = Kind::ALL.len();
const IO: i32 = 5;

#[derive(Debug)]
pub(crate) struct Injector {
    inner: Arc<dyn Device>,
    /// The range that holds data. Metadata is outside of it.
    data: Range<u64>,
    counts: [AtomicU64; KINDS],
    /// The number of the request to fail, counted from 1 when it was armed; 0 for none.
    nth: [AtomicU64; KINDS],
    struck: AtomicU64,
    is_paused: AtomicBool,
    enospc: EnospcInjector,
}

impl Injector {
    pub(crate) fn new(inner: Arc<dyn Device>, data: Range<u64>) -> Self {
        let (counts, nth, struck, is_paused) = Default::default();
        Self { inner, data, counts, nth, struck, is_paused, enospc: EnospcInjector::default() }
    }

    /// Returns the injector for the options of the volume.
    pub(crate) fn enospc(&self) -> &EnospcInjector {
        &self.enospc
    }

    /// Fails the `nth` request of a kind, counted from 1 from now on. Of reservations, each `nth`.
    pub(crate) fn arm(&self, kind: Kind, nth: u64) {
        if kind == Kind::Reservation {
            self.enospc.fail_every(nth);
            return;
        }
        self.counts[place(kind)].store(0, Ordering::SeqCst);
        self.nth[place(kind)].store(nth, Ordering::SeqCst);
    }

    pub(crate) fn disarm(&self) {
        self.enospc.fail_none();
        self.nth.iter().for_each(|nth| nth.store(0, Ordering::SeqCst));
    }

    /// Stops or resumes counting and failing requests.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
    }

    /// Returns whether a request has failed.
    pub(crate) fn is_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst) + self.enospc.failed() > 0
    }

    fn fails(&self, kind: Kind) -> bool {
        if self.is_paused.load(Ordering::SeqCst) {
            return false;
        }
        let count = self.counts[place(kind)].fetch_add(1, Ordering::SeqCst) + 1;
        let nth = self.nth[place(kind)].load(Ordering::SeqCst);
        let fails = count == nth || nth > 0 && count > nth && kind.is_lasting();
        if fails {
            self.struck.fetch_add(1, Ordering::SeqCst);
        }
        fails
    }
}

fn place(kind: Kind) -> usize {
    Kind::ALL.iter().position(|known| *known == kind).expect("all are there")
}

impl Device for Injector {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn alignment(&self) -> Alignment {
        self.inner.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.inner.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        let is_data = self.data.contains(&offset);
        let fails = if is_data {
            self.fails(Kind::DataRead) | self.fails(Kind::DataReads)
        } else {
            self.fails(Kind::MetadataRead) | self.fails(Kind::UncachedRead)
        };
        if fails {
            let (device, bytes, cause) = (self.name().into(), memory.len() as u64, Errno(IO));
            return Err(DeviceError::Read { device, offset, bytes, cause });
        }
        self.inner.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        let is_data = self.data.contains(&offset);
        let fails = if is_data {
            self.fails(Kind::DataWrite) | self.fails(Kind::DataWrites)
        } else {
            self.fails(Kind::MetadataWrite)
        };
        if fails {
            let (device, bytes, cause) = (self.name().into(), memory.len() as u64, Errno(IO));
            return Err(DeviceError::Write { device, offset, bytes, cause });
        }
        self.inner.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.fails(Kind::Flush) {
            return Err(DeviceError::Flush { device: self.name().into(), cause: Errno(IO) });
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}
