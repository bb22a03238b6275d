//! What tells a file or block device from others, whatever its path.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Returns what identities of devices begin with, for a file or block device: what follows is the
/// offset of the volume.
pub(crate) fn device_identity(meta: &Metadata) -> String {
    if meta.file_type().is_block_device() {
        format!("device {} at ", meta.rdev())
    } else {
        format!("file {} {} at ", meta.dev(), meta.ino())
    }
}
