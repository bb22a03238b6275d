//! Floor 6: an independent reader of everything on a volume, the oracle of the other crates.
//!
//! It walks every tree itself, over `volume`, and compares whatever the format says twice: extents
//! with who uses them, block groups with chunks and devices, free space with what is allocated,
//! checksums with files, names with inodes. It never uses `tree`, `file`, `names`, `space` or `fs`:
//! a mistake there must not be repeated here.
//!
//! [`check`] returns a [`Report`]; damage is in the report, and an error means that nothing could
//! be said at all. Nothing is ever written.

mod error;
mod finding;
mod options;
mod report;

pub use error::CheckError;
pub use finding::{Finding, Kind, Severity};
pub use options::{CheckOptions, Progress};
pub use report::{Counts, Report};

use butternut_device::Device;
use std::sync::Arc;

/// Checks the volume on these devices.
pub fn check(
    devices: Vec<Arc<dyn Device>>,
    _options: &CheckOptions<'_>,
) -> Result<Report, CheckError> {
    drop(devices);
    Err(CheckError::Unsupported)
}
