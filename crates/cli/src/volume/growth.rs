//! The growth of a volume inside a larger file or device.

use std::path::Path;

use butternut::device::DeviceError;
use butternut_mkfs::Overlap;

/// What to do about a volume that would grow over something else.
pub(crate) const SMALLER: &str = "choose a smaller size";

/// Returns what a volume at `offset` would grow over in the same file or device, if its size became
/// `bytes`; `None` if it is nothing, or if the volume does not grow.
///
/// # Errors
/// The file or device cannot be opened or read.
pub(crate) fn overlap(
    path: &Path,
    offset: u64,
    (bytes_was, bytes): (u64, u64),
) -> Result<Option<String>, DeviceError> {
    if bytes <= bytes_was {
        return Ok(None);
    }
    let until = |bytes: u64| offset..offset.saturating_add(bytes);
    let range = until(bytes);
    let found = Overlap::find(path, &range, Some(&until(bytes_was)))?;
    Ok(found.map(|with| format!("bytes {} to {} overlap {with}", range.start, range.end)))
}
