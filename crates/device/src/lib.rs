//! Floor 1: sectors in, sectors out. Never retries, caches, or knows btrfs.
//!
//! A [`Device`] is a row of bytes that can be read, written, flushed and discarded by one blocking
//! call each. A [`QueuePair`] keeps many requests in flight on all devices of a volume at once:
//! over one `io_uring` where the kernel allows it, over a bounded pool of threads where it does
//! not.
//!
//! What is assumed of a medium:
//!
//! 1. A completed write is read back, by anyone, until something overwrites it.
//! 2. It survives a power cut only after a later [`Device::flush`] has returned.
//! 3. Between two flushes writes reach the medium in any order.
//! 4. Each aligned 512 bytes change wholly or not at all; anything larger may tear.
//! 5. What a discarded range reads as is not known.
//! 6. Any read may fail, and any read may return wrong bytes and call it success.

mod counters;
mod device;
mod error;
mod faulty;
mod file;
mod memory;
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
