//! [`CommitReason`]: why an fsync commits.

/// Why an fsync commits instead of writing to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommitReason {
    /// The log is switched off.
    Off,
    /// The running transaction has added a chunk.
    NewChunk,
    /// The running transaction has set a feature bit of the superblock.
    NewFeature,
    /// Too many items changed.
    TooMuch,
    /// No metadata space for log blocks.
    NoSpace,
    /// An earlier log write of the transaction failed.
    WriteFailed,
    /// A device has failed writes that are not on record, or is stale.
    DeviceFailed,
    /// Names changed in a way that the log cannot express.
    Names,
    /// A tree could not be read.
    Unreadable,
    /// The running transaction may have sealed the file by fs-verity.
    Sealed,
}

impl CommitReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Off,
        Self::NewChunk,
        Self::NewFeature,
        Self::TooMuch,
        Self::NoSpace,
        Self::WriteFailed,
        Self::DeviceFailed,
        Self::Names,
        Self::Unreadable,
        Self::Sealed,
    ];

    /// Returns the name of the reason in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NewChunk => "new_chunk",
            Self::NewFeature => "new_feature",
            Self::TooMuch => "too_much",
            Self::NoSpace => "no_space",
            Self::WriteFailed => "write_failed",
            Self::DeviceFailed => "device_failed",
            Self::Names => "names",
            Self::Unreadable => "unreadable",
            Self::Sealed => "sealed",
        }
    }
}
