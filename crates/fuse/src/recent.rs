//! Files that are being read: the kernel opens nothing here, so reads find their file by number.
//!
//! All threads share one handle per file, so that a read does not begin with opening it. What is
//! here is bounded, and losing it costs one look-up.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use butternut::{File, Result};

/// Files read at the same time, beyond which some are looked up again.
const FILES_MAX: usize = 32;

/// The files that were read last, the newest first.
#[derive(Default)]
pub(crate) struct Recent {
    files: Mutex<VecDeque<(u64, File)>>,
}

impl Recent {
    /// The file of a node, opened with `open` where it is not among the last.
    pub(crate) fn file(&self, node: u64, open: impl FnOnce() -> Result<File>) -> Result<File> {
        let known = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let at = files.iter().position(|(number, _)| *number == node);
            if let Some(at) = at {
                files.swap(0, at);
            }
            at.and_then(|_| files.front().map(|(_, file)| file.clone()))
        };
        if let Some(file) = known {
            return Ok(file);
        }
        let file = open()?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = if files.len() >= FILES_MAX { files.pop_back() } else { None };
        files.push_front((node, file.clone()));
        // Ending a file waits for what is read ahead of it: not under the lock.
        drop(files);
        drop(dropped);
        Ok(file)
    }

    /// The kernel has forgotten the node.
    pub(crate) fn forget(&self, node: u64) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let at = files.iter().position(|(number, _)| *number == node);
        let dropped = at.and_then(|at| files.remove(at));
        drop(files);
        drop(dropped);
    }
}
