//! Data that the kernel has cached in write-back mode and not sent.
//!
//! Owns the decision which files may have such data, and makes the kernel send it. A caller that
//! needs the data in the filesystem (a snapshot, a commit before the end of the mount) writes it
//! back first.
//!
//! 1. It ends: a program that appends for ever keeps no caller waiting, because the range is
//!    limited when the files are listed.
//! 2. Worker threads must serve the WRITE requests meanwhile, so no worker waits here: its reply
//!    is deferred.

use std::os::fd::OwnedFd;

use butternut::FileId;

use crate::connection;
use crate::door::Door;

/// Maximum number of bytes that the kernel appends to a file before it sends some of them: it
/// limits the dirty pages of a FUSE mount to a few percent of what may be dirty.
const UNSENT_BYTES_MAX: u64 = 1 << 30;

/// Files that are open for writing, as ids of their nodes with the ends of the ranges to send.
pub(super) struct UnsentData(Vec<(u64, u64)>);

impl UnsentData {
    /// Returns whether no file can have such data.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the kernel write back its dirty pages of the files, and waits for that.
    pub(super) fn write_back(&self, device: &OwnedFd) {
        for (node, end) in &self.0 {
            connection::invalidate_page_range(device, *node, &(0..*end));
        }
    }
}

impl Door {
    /// Lists the files open for writing that `is_wanted` selects.
    pub(super) fn unsent_data(&self, is_wanted: impl Fn(FileId) -> bool) -> UnsentData {
        let wanted = self.handles.open_for_write().into_iter().filter(|id| is_wanted(*id));
        let end = |id| {
            let size = self.filesystem.stat(id).map_or(0, |stat| stat.size);
            size.saturating_add(UNSENT_BYTES_MAX)
        };
        UnsentData(wanted.map(|id| (self.nodes.node_id(id), end(id))).collect())
    }

    /// Makes the kernel write back its dirty pages of every file that is open for writing, and
    /// waits for that.
    pub(crate) fn write_back_kernel_pages(&self) {
        self.unsent_data(|_| true).write_back(&self.device);
    }
}
