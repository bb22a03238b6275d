//! Floor 1: block devices. Reads, writes, flushes and discards bytes of devices; never retries or
//! caches, and knows nothing of btrfs.
//!
//! A [`Device`] is a fixed number of bytes that are read, written, flushed and discarded by one
//! blocking call each. A [`QueuePair`] keeps many requests in flight on all devices of a volume:
//! over one `io_uring` where the kernel allows it, over a bounded pool of threads where it does
//! not.
//!
//! Assumptions about a device:
//!
//! 1. A completed write is seen by every later read, until the bytes are overwritten.
//! 2. A write survives a power cut only after a later [`Device::flush`] has returned.
//! 3. Between two flushes, writes reach the medium in any order.
//! 4. Each aligned 512 bytes change completely or not at all; anything larger may be torn.
//! 5. The contents of a discarded range are undefined.
//! 6. Any read may fail, and any read may return wrong bytes with success.

mod counters;
mod device;
mod error;
mod faulty;
mod file;
mod memory;
pub mod partitions;
mod queue;
mod recording;
mod request;

pub use butternut_sys::file::{Alignment, OpenError, Sharing, WriteCache};
pub use butternut_sys::holder::Holder;
pub use counters::{Counters, Counts};
pub use device::{Device, RingTarget};
pub use error::DeviceError;
pub use faulty::{Fault, FaultCounts, FaultyDevice, Rule, RuleId, When};
pub use file::{FileDevice, OpenDevice};
pub use memory::MemoryDevice;
pub use queue::{Backend, QueueOptions, QueuePair, RingUse};
pub use recording::{
    Crash, CrashImage, CrashOptions, Crashes, Fate, Pivotal, Record, Recording, RecordingDevice,
};
pub use request::{Completion, ReadInto, Request, RequestKind, WriteFrom};
