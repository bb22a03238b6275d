//! [`MkfsError`]: why making a volume failed.

use crate::overlap::Overlap;
use crate::signature::Signature;
use butternut_device::DeviceError;
use butternut_sys::errno::Errno;
use std::ops::Range;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum MkfsError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot make {} {bytes} bytes long", path.display())]
    Extend {
        path: PathBuf,
        bytes: u64,
        #[source]
        cause: Errno,
    },
    #[error("offset and size together exceed the maximum file size")]
    OffsetTooLarge,
    #[error("the device is read-only")]
    ReadOnly,
    #[error("it is a zoned device, which is not supported")]
    Zoned,
    #[error("it holds {signature}")]
    InUse { signature: Signature },
    /// The range is that of the new volume in the file or device, in bytes.
    #[error("bytes {} to {} overlap {with}", range.start, range.end)]
    Overlaps { range: Range<u64>, with: Overlap },
    #[error("{bytes} bytes are too few: {what} needs at least {bytes_min} bytes")]
    TooSmall { bytes: u64, bytes_min: u64, what: String },
    #[error("a volume of {bytes} bytes does not fit on the {device_bytes} bytes of the device")]
    TooLarge { bytes: u64, device_bytes: u64 },
    #[error("node size {bytes}: want a power of two from 4096 to 65536")]
    NodeSize { bytes: u32 },
    #[error("node size {bytes}: mixed groups need nodes of the sector size, 4096 bytes")]
    MixedNodeSize { bytes: u32 },
    #[error("mixed groups hold data and metadata, so both need the same profile")]
    MixedProfiles,
    #[error("profile {name}: a volume on one device must be single or dup")]
    Profile { name: &'static str },
    #[error("feature {name} is not known")]
    FeatureUnknown { name: String },
    #[error("feature {name} is not supported")]
    FeatureUnsupported { name: String },
    #[error("block-group-tree needs {missing}")]
    FeatureMissing { missing: &'static str },
    #[error("quota and squota exclude each other")]
    TwoQuotas,
    #[error("a label has at most 255 bytes, this one has {bytes}")]
    LabelTooLong { bytes: usize },
    #[error("a label holds no NUL and no newline")]
    LabelBytes,
    #[error("cannot get random numbers for a new UUID")]
    Random(#[source] Errno),
}
