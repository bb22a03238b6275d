//! [`StreamInProgress`]: keeps the subvolumes of a stream as they are, on a volume that is open for
//! writing.
//!
//! Laws:
//!
//! 1. From the begin of a stream to its end, the subvolume, its parent and its clone sources stay
//!    read-only, and none of them is deleted: such calls fail as in the kernel. No orphan in them
//!    is deleted either, so their trees do not change. That holds for the parent and the clone
//!    sources of a stream that is received, too, from the first command that names them on
//!    (`receive/source.rs`).
//! 2. A stream begins while operations that write and merges are excluded, as deletions and changes
//!    of subvolumes do ([`crate::subvolume`]). So such a call comes before the stream, which fails
//!    then, or finds it. Nothing is excluded while the stream is made.
//! 3. At the end of a stream, the cleaner looks for the orphans that were left.

use crate::write_state::WriteState;
use crate::{Filesystem, Result};

/// The subvolumes of one stream, which do not change until this is dropped.
#[derive(Debug)]
pub(crate) struct StreamInProgress<'a> {
    write_state: &'a WriteState,
    ids: Vec<u64>,
}

impl Drop for StreamInProgress<'_> {
    fn drop(&mut self) {
        self.write_state.sent.remove(&self.ids);
        for id in &self.ids {
            self.write_state.cleaner.request_orphans(*id);
        }
    }
}

impl Filesystem {
    /// Begins a stream of subvolumes. Returns `None` on a volume that is open for reading only.
    ///
    /// # Errors
    /// One of them does not exist, or is writable.
    pub(crate) fn begin_stream(&self, ids: Vec<u64>) -> Result<Option<StreamInProgress<'_>>> {
        let Some(write_state) = &self.shared.write_state else { return Ok(None) };
        // Finding their paths may wait for devices: at first with nothing excluded.
        for id in &ids {
            self.sendable(*id)?;
        }
        let excluded = write_state.snapshots.exclude_writes();
        let alone = write_state.merges.exclude();
        for id in &ids {
            self.sendable(*id)?;
        }
        write_state.sent.add(&ids);
        drop(alone);
        drop(excluded);
        Ok(Some(StreamInProgress { write_state, ids }))
    }
}
