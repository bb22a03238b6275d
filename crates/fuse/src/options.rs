//! Options of a mount. The command line parses what users type.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use butternut::FileId;

/// What the kernel caches of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// Reads and writes. The kernel sends dirty pages long after the write returned, so a write
    /// without space fails in writeback (decision 0026).
    WriteBack,
    /// Reads. A write returns when the library has the data, so it fails with ENOSPC itself. A file
    /// that is opened with `O_DIRECT` may have several writers at the same time.
    #[default]
    WriteThrough,
    /// Nothing, and the library caches no file data either.
    Nothing,
}

/// Whether a mount is synchronous, shared by all copies of the value. A remount changes it: the
/// kernel does not tell the process of the mount.
#[derive(Clone, Debug)]
pub struct Synchronous(Arc<AtomicBool>);

impl Synchronous {
    pub(crate) fn new(is_synchronous: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_synchronous)))
    }

    /// Records what a remount sets. Operations that begin after the call follow it.
    pub fn set(&self, is_synchronous: bool) {
        self.0.store(is_synchronous, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The options of one mount.
#[expect(clippy::struct_excessive_bools, reason = "each is a mount option that is on or off")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The source that mount tables show.
    pub source: String,
    /// Mount for writing. The filesystem must be open for writing too.
    pub is_writable: bool,
    /// Every write is durable before it returns.
    pub is_synchronous: bool,
    /// Users other than the one that mounted may use the mount. Implies permission checks.
    pub allow_other: bool,
    /// The kernel checks modes and ACLs also for the user that mounted.
    pub default_permissions: bool,
    /// Users may delete the subvolumes that belong to them.
    pub users_delete_subvolumes: bool,
    /// Device nodes can be opened.
    pub devices: bool,
    /// Set-user-id and set-group-id bits take effect.
    pub set_user_id: bool,
    /// Programs can be executed.
    pub execute: bool,
    /// Maximum number of threads that write file data at the same time, at least 1. Four more
    /// threads serve other requests.
    pub threads: usize,
    pub caching: Caching,
    /// For a mount by root: the top-level directory of the volume, and the path from it to the
    /// directory to mount. The volume can then be mounted on further mount points.
    pub top_level: Option<(FileId, PathBuf)>,
    /// All worker threads read requests, and the kernel decides which one it wakes.
    pub all_wait: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "butternut".to_owned(),
            is_writable: false,
            is_synchronous: false,
            allow_other: false,
            default_permissions: false,
            users_delete_subvolumes: false,
            devices: false,
            set_user_id: false,
            execute: true,
            threads: 2,
            caching: Caching::default(),
            top_level: None,
            all_wait: false,
        }
    }
}

impl Options {
    /// Returns whether the kernel checks modes and POSIX ACLs before it sends a request.
    ///
    /// Otherwise every user that can reach the mount reads everything, and writes it where the
    /// mount is writable. That is right for the owner of an image, which can change its bytes
    /// anyway, and for no other user. So `allow_other` implies the checks.
    pub fn checks_permissions(&self) -> bool {
        self.default_permissions || self.allow_other
    }
}
