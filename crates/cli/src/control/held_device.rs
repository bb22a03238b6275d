//! A device of a mounted volume, as its process tells other programs of it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::volume::identity::device_identity;

/// A device of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldDevice {
    pub(crate) path: PathBuf,
    /// Where the volume begins in it, in bytes.
    pub(crate) offset: u64,
    /// Where it ends there, in bytes from its beginning; `None` at the end of the file or device.
    pub(crate) bytes: Option<u64>,
    /// Which file or device was found there when the volume was mounted.
    pub(crate) identity: String,
}

impl HeldDevice {
    /// Whether the path still names the file or device of the volume.
    pub(crate) fn is_there(&self) -> bool {
        let found = std::fs::metadata(&self.path).ok();
        found.is_some_and(|found| device_identity(&found) == self.identity)
    }
}
