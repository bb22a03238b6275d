//! Why bytes cannot be had, or cannot be given back.

use crate::class::Class;
use butternut_format::refused::Refused;

/// What the caller holds does not fit what is known here: a damaged volume, or a mistake.
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
    /// Freed twice, or never allocated.
    #[error("{bytes} bytes at logical {start} are not in use")]
    NotTaken { start: u64, bytes: u64 },
    #[error("block group {start}: used: have {have}, want {want}")]
    Used { start: u64, have: u64, want: &'static str },
    #[error("device {devid}: {bytes} bytes at {start} overlap another extent, or the end")]
    DeviceExtent { devid: u64, start: u64, bytes: u64 },
    #[error("device {devid} is not known")]
    NoDevice { devid: u64 },
}

/// A ticket that cannot be granted now, and what could help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes of {class:?} space are not free")]
pub struct NoSpace {
    pub class: Class,
    pub wanted: u64,
    /// Bytes that a commit would set free.
    pub pinned_bytes: u64,
    /// Another chunk of this class could be allocated.
    pub unallocated: bool,
}
