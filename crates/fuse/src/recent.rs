//! Files that are being read: the kernel opens nothing here, so reads find their file by number.
//!
//! All threads share one handle per file, so that a read does not begin with opening it. What is
//! here is bounded, and losing it costs one look-up. Files are told apart by their ids: a number
//! may become another file's while this is asked.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use butternut::{File, FileId, Result};

/// Files read at the same time, beyond which some are looked up again.
const FILES_MAX: usize = 32;

/// The files that were read last, the newest first.
#[derive(Default)]
pub(crate) struct Recent {
    files: Mutex<VecDeque<File>>,
}

impl Recent {
    /// A file, opened with `open` where it is not among the last.
    pub(crate) fn file(&self, id: FileId, open: impl FnOnce() -> Result<File>) -> Result<File> {
        let known = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let at = files.iter().position(|file| file.id() == id);
            if let Some(at) = at {
                files.swap(0, at);
            }
            at.and_then(|_| files.front().cloned())
        };
        if let Some(file) = known {
            return Ok(file);
        }
        let file = open()?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = if files.len() >= FILES_MAX { files.pop_back() } else { None };
        files.push_front(file.clone());
        // Ending a file waits for what is read ahead of it: not under the lock.
        drop(files);
        drop(dropped);
        Ok(file)
    }

    /// The kernel has forgotten the file.
    pub(crate) fn forget(&self, id: FileId) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let at = files.iter().position(|file| file.id() == id);
        let dropped = at.and_then(|at| files.remove(at));
        drop(files);
        drop(dropped);
    }
}
