//! A device of a mounted volume, as its process tells other programs of it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::volume::identity::device_identity;

/// A device of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldDevice {
    #[serde(serialize_with = "path_bytes", deserialize_with = "path_of_bytes")]
    pub(crate) path: PathBuf,
    /// The same as the caller of the mount typed it, and as the library reports it.
    pub(crate) typed: String,
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

/// A path need not be UTF-8, which the format of the socket is.
fn path_bytes<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(serializer)
}

fn path_of_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Vec::deserialize(deserializer).map(|bytes| OsString::from_vec(bytes).into())
}
