//! Open files of a mount without handles: the kernel sends no OPEN there, and a READ names only the
//! node.
//!
//! All threads share one open file per inode, so that a READ does not open it again. The cache is
//! bounded; a file that was dropped is opened again by the next READ. Its key is the file id,
//! because a node id can become another file's during the call.

use butternut_sys::lock::{Mutex, rank};
use std::collections::VecDeque;

use butternut::{File, FileId, Result};

/// Maximum number of open files.
const FILES_MAX: usize = 32;

/// The files that were read last, the most recent one first.
#[derive(Default)]
pub(crate) struct OpenCache {
    files: Mutex<VecDeque<File>, rank::OpenCache>,
}

impl OpenCache {
    /// Returns the open file of an id, opened by `open` where it is not cached.
    pub(crate) fn get_or_open(
        &self,
        id: FileId,
        open: impl FnOnce() -> Result<File>,
    ) -> Result<File> {
        let cached = {
            let mut files = self.files.lock();
            let at = files.iter().position(|file| file.id() == id);
            if let Some(at) = at {
                files.swap(0, at);
            }
            at.and_then(|_| files.front().cloned())
        };
        if let Some(file) = cached {
            return Ok(file);
        }
        let file = open()?;
        let mut files = self.files.lock();
        let dropped = if files.len() >= FILES_MAX { files.pop_back() } else { None };
        files.push_front(file.clone());
        // Not under the lock: dropping a file waits for its readahead.
        drop(files);
        drop(dropped);
        Ok(file)
    }

    /// Drops a file that the kernel has forgotten.
    pub(crate) fn forget(&self, id: FileId) {
        let mut files = self.files.lock();
        let at = files.iter().position(|file| file.id() == id);
        let dropped = at.and_then(|at| files.remove(at));
        drop(files);
        drop(dropped);
    }
}
