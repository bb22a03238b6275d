//! Errors of space accounting, and the reason why a reservation or an allocation was not granted.

use crate::class::Class;
use butternut_format::refused::Refused;

/// A call that contradicts the recorded state of the space: the volume is damaged, or the caller
/// has a bug.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    #[error("block group {start} cannot be used")]
    Group {
        start: u64,
        #[source]
        refused: Refused,
    },
    #[error("{bytes} bytes at logical {start} are not whole sectors of one block group")]
    Outside { start: u64, bytes: u64 },
    /// The range was freed twice, or never allocated.
    #[error("{bytes} bytes at logical {start} are not allocated")]
    NotAllocated { start: u64, bytes: u64 },
    #[error("block group {start}: used: have {have}, want {want}")]
    Used { start: u64, have: u64, want: &'static str },
    #[error("device {devid}: {bytes} bytes at {start} overlap another extent, or the end")]
    DeviceExtent { devid: u64, start: u64, bytes: u64 },
    #[error("device {devid} is not known")]
    NoDevice { devid: u64 },
}

/// Why a reservation or an allocation was not granted, and what could free space for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of {class:?} space are not free")]
pub struct NoSpace {
    pub class: Class,
    /// The number of bytes that were requested.
    pub bytes: u64,
    /// Bytes that a commit would free.
    pub pinned_bytes: u64,
    /// Of these, the bytes of the class itself.
    pub own_pinned_bytes: u64,
    /// Whether the devices have space for another chunk of this class.
    pub can_add_chunk: bool,
    /// How often bytes of any class had become available until then: [`Space::has_returned`]
    /// compares it.
    ///
    /// [`Space::has_returned`]: crate::Space::has_returned
    pub(crate) returns: u64,
}
