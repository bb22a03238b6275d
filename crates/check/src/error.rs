//! Why nothing could be said about a volume.

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
    /// What the kernel is changing holds trees that no longer exist.
    #[error("{device} is in use: {holder}")]
    Mounted { device: String, holder: Holder },
    #[error("no threads to work with")]
    Threads(#[source] rayon::ThreadPoolBuildError),
}
