//! Data that the kernel has cached and not sent: writes in write-back mode, and stores to mappings.
//!
//! Makes the kernel send it; which files may have such data is decided in `send_unsent`. A caller
//! that needs the data in the filesystem (a snapshot, a sync of the volume, a commit before the end
//! of the mount) writes it back first. The kernel does that only as a part of dropping the pages:
//! `FUSE_NOTIFY_INVAL_INODE`, which does not take its inode lock.
//!
//! 1. Worker threads must serve the WRITE requests meanwhile, so no worker waits here: its reply
//!    is deferred.
//! 2. The kernel knows the size of a file in write-back mode, and this process does not. So the
//!    pages at all offsets are written back.
//! 3. It ends beside programs that write. The walk goes through a file in pieces, the last one
//!    first, and forward inside of a piece. It follows a program that appends to the end of one
//!    piece at most: an eighth of the offset, or 1 GiB.
//! 4. On a mount that writes through, no pages are dropped while programs go on. A write(2) changes
//!    its page, unlocks it, and sends it then. If the page was dropped in between, a reader would
//!    fill it with the old bytes, which then stay, and a store to a mapping of the page would write
//!    them back over the write. Such a mount has no unsent writes. It may have unsent stores to
//!    mappings, and a program that needs them in a snapshot, or in a sync of the volume, calls
//!    msync(2) before.
//! 5. Where the mount ends, they are sent on every mount: afterwards they would be lost, and no
//!    reader comes.
//! 6. The kernel does not repeat a WRITE request that fails, as on a full volume: the data is lost.
//!    A caller learns of every loss of the files that it needs during its call, and where the mount
//!    ends, of all files. Its call begins before it waits for a thread, or for the walk of another
//!    caller ([`LossWatch`]).
//! 7. The files are listed when the walk through them begins. A call that waits for that keeps no
//!    list, since users may have any number of such calls. The kernel has sent everything of a file
//!    when it releases the last handle that was open for writing, so nothing is missed of a file
//!    that is closed meanwhile.
//!
//! With write-back caching, the kernel writes through the pages of a write(2) that removes a
//! set-user-id bit. Law 4 concerns the one write that removes it: a sync of the volume or a
//! snapshot at the same time may leave its pages stale.
//!
//! A request for which the kernel holds its inode lock excludes write(2), so it may drop the pages
//! of its file on every mount (`deferred`).
//!
//! [`LossWatch`]: crate::door::lost_writes::LossWatch

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use butternut::FileId;

use crate::connection;
use crate::errno::{Errno, ErrnoResult};
use crate::handles::Handles;
use crate::handles::fills::Fills;
use crate::nodes::Nodes;

/// The end of all offsets of a file.
const OFFSETS_END: u64 = i64::MAX.cast_unsigned();
/// Minimum length of a piece of the walk, in bytes, and the number of pieces between an offset and
/// its double.
const PIECE_BYTES_MIN: u64 = 1 << 30;
const PIECES_PER_DOUBLING: u64 = 8;

/// The nodes of files that are open for writing.
#[derive(Default)]
pub(super) struct UnsentData {
    nodes: Vec<u64>,
}

/// Lists the files that may have unsent data, also in a thread without the door (law 7).
#[derive(Clone)]
pub(super) struct UnsentFiles {
    pub(super) handles: Arc<Handles>,
    pub(super) nodes: Arc<Nodes>,
    /// Whether files may have any (law 4).
    pub(super) may_exist: bool,
}

/// One file that may have unsent data, with its losses since the call began.
pub(super) struct UnsentFile {
    node: u64,
    fills: Arc<Fills>,
    /// The number of its lost writes when the call began.
    before: u64,
}

impl UnsentFiles {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        !self.may_exist || !self.handles.has_open_for_write()
    }

    /// Lists all.
    pub(super) fn all(&self) -> UnsentData {
        self.those(|_| true)
    }

    /// Lists those of some subvolumes.
    pub(super) fn of_subvolumes(&self, subvolumes: &HashSet<u64>) -> UnsentData {
        self.those(|id| subvolumes.contains(&id.subvolume))
    }

    fn those(&self, some: impl Fn(FileId) -> bool) -> UnsentData {
        if !self.may_exist {
            return UnsentData::default();
        }
        let files = self.handles.open_for_write(some);
        UnsentData { nodes: files.into_iter().map(|id| self.nodes.node_id(id)).collect() }
    }

    /// Returns one file, if it may have unsent data.
    pub(super) fn file(&self, id: FileId) -> Option<UnsentFile> {
        if !self.may_exist || !self.handles.is_open_for_write(id) {
            return None;
        }
        let fills = self.handles.fills(id)?;
        let before = fills.lost_writes();
        Some(UnsentFile { node: self.nodes.node_id(id), fills, before })
    }
}

impl UnsentData {
    /// Makes the kernel write back its dirty pages of the files, and waits for that. Each caller
    /// checks its own losses (law 6).
    pub(super) fn send(&self, device: &OwnedFd) {
        self.nodes.iter().for_each(|node| send_file(device, *node));
    }
}

impl UnsentFile {
    /// Makes the kernel write back its dirty pages of the file, and waits for that.
    ///
    /// # Errors
    /// `EIO`: the kernel has lost writes of the file since the call began (law 6).
    pub(super) fn write_back(&self, device: &OwnedFd) -> ErrnoResult<()> {
        send_file(device, self.node);
        if self.fills.lost_writes() == self.before { Ok(()) } else { Err(Errno::EIO) }
    }
}

fn send_file(device: &OwnedFd, node: u64) {
    for piece in pieces() {
        connection::invalidate_page_range(device, node, &piece);
    }
}

/// Returns the pieces of the walk through a file (law 3).
fn pieces() -> impl Iterator<Item = Range<u64>> {
    let mut end = OFFSETS_END + 1;
    std::iter::from_fn(move || {
        let last = end.checked_sub(1)?;
        let bytes = (1 << last.max(1).ilog2()) / PIECES_PER_DOUBLING;
        let piece = end - bytes.max(PIECE_BYTES_MIN)..end.min(OFFSETS_END);
        end = piece.start;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_walk_cover_all_offsets_once_from_the_last_to_the_first() {
        let pieces: Vec<Range<u64>> = pieces().collect();
        assert_eq!(pieces.first().map(|piece| piece.end), Some(OFFSETS_END));
        assert_eq!(pieces.last(), Some(&(0..PIECE_BYTES_MIN)));
        assert!(pieces.windows(2).all(|pair| pair[1].end == pair[0].start));
        assert!(pieces.len() < 256, "{} calls for one file", pieces.len());
        for piece in &pieces {
            let bytes = piece.end - piece.start;
            assert!(bytes <= PIECE_BYTES_MIN.max(piece.start / PIECES_PER_DOUBLING), "{piece:?}");
            assert!(piece.start.is_multiple_of(4096), "{piece:?}");
        }
    }
}
