//! [`CheckError`]: why a volume could not be checked.

use butternut_device::{DeviceError, Holder};
use butternut_volume::VolumeError;

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No superblock, devices missing, devices that do not belong together.
    #[error("the volume cannot be opened")]
    Volume(#[source] VolumeError),
    #[error("a device cannot be opened")]
    Device {
        #[source]
        source: DeviceError,
    },
    /// The volume is mounted and written, so that blocks change while they are read.
    #[error("{device} is in use: {holder}")]
    Mounted { device: String, holder: Holder },
    /// Of a volume that is written to.
    #[error("the superblocks are of several commits, or of one before {since}")]
    Changing { since: u64 },
    #[error("cannot start the threads")]
    Threads(#[source] rayon::ThreadPoolBuildError),
}
