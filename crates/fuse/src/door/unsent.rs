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
//!    ends, of all files. Its call begins when it lists the files ([`UnsentData::add`]), not when a
//!    thread walks through them: a caller may wait for the walk of another one meanwhile.
//!
//! With write-back caching, the kernel writes through the pages of a write(2) that removes a
//! set-user-id bit. Law 4 concerns the one write that removes it: a sync of the volume or a
//! snapshot at the same time may leave its pages stale.
//!
//! A request for which the kernel holds its inode lock excludes write(2), so it may drop the pages
//! of its file on every mount (`deferred`).

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use butternut::FileId;

use crate::connection;
use crate::errno::{Errno, ErrnoResult};
use crate::handles::fills::Fills;

/// The end of all offsets of a file.
const OFFSETS_END: u64 = i64::MAX.cast_unsigned();
/// Minimum length of a piece of the walk, in bytes, and the number of pieces between an offset and
/// its double.
const PIECE_BYTES_MIN: u64 = 1 << 30;
const PIECES_PER_DOUBLING: u64 = 8;

/// Files that are open for writing.
#[derive(Default)]
pub(super) struct UnsentData {
    files: Vec<UnsentFile>,
}

struct UnsentFile {
    id: FileId,
    node: u64,
    lost: LostWrites,
}

/// Notices the writes of some files that the kernel loses after the call began.
#[derive(Default)]
pub(super) struct LossWatch(Vec<LostWrites>);

/// The lost writes of one file.
#[derive(Clone)]
struct LostWrites {
    /// They count them.
    fills: Arc<Fills>,
    /// Their number when the call began.
    before: u64,
}

impl UnsentData {
    /// Adds a file: its node, and its fills.
    pub(super) fn add(&mut self, id: FileId, node: u64, fills: Arc<Fills>) {
        let before = fills.lost_writes();
        self.files.push(UnsentFile { id, node, lost: LostWrites { fills, before } });
    }

    /// Returns what notices the losses of the call that has listed these files.
    pub(super) fn losses(&self) -> LossWatch {
        LossWatch(self.files.iter().map(|file| file.lost.clone()).collect())
    }

    /// Returns those of some subvolumes.
    pub(super) fn of_subvolumes(mut self, subvolumes: &HashSet<u64>) -> Self {
        self.files.retain(|file| subvolumes.contains(&file.id.subvolume));
        self
    }

    /// Returns that of one file, if it has any.
    pub(super) fn of_file(mut self, id: FileId) -> Self {
        self.files.retain(|file| file.id == id);
        self
    }

    /// Returns that of the files of both.
    pub(super) fn join(mut self, other: Self) -> Self {
        let known: HashSet<FileId> = self.files.iter().map(|file| file.id).collect();
        self.files.extend(other.files.into_iter().filter(|file| !known.contains(&file.id)));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Makes the kernel write back its dirty pages of the files, and waits for that.
    ///
    /// # Errors
    /// `EIO`: the kernel has lost writes of these files since they were listed (law 6).
    pub(super) fn write_back(&self, device: &OwnedFd) -> ErrnoResult<()> {
        self.send(device);
        self.losses().check()
    }

    /// Makes the kernel write back its dirty pages of the files, and waits for that. Each caller
    /// checks its own losses.
    pub(super) fn send(&self, device: &OwnedFd) {
        for file in &self.files {
            for piece in pieces() {
                connection::invalidate_page_range(device, file.node, &piece);
            }
        }
    }
}

impl LossWatch {
    /// Fails if the kernel has lost writes since the call began.
    ///
    /// # Errors
    /// `EIO` (law 6).
    pub(super) fn check(&self) -> ErrnoResult<()> {
        let has_lost = self.0.iter().any(|file| file.fills.lost_writes() != file.before);
        if has_lost { Err(Errno::EIO) } else { Ok(()) }
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
    /// As where one caller waits for the walk of another one.
    #[test]
    fn a_call_notices_the_losses_after_it_began_and_before_the_walk() {
        let fills = Arc::new(Fills::default());
        let list = || {
            let mut unsent = UnsentData::default();
            unsent.add(FileId::new(5, 257), 1, Arc::clone(&fills));
            unsent
        };
        let earlier = list();
        fills.count_lost_write();
        let later = list();
        let (of_earlier, of_later) = (earlier.losses(), later.losses());
        assert_eq!(of_earlier.check(), Err(Errno::EIO));
        assert_eq!(of_later.check(), Ok(()), "it was lost before the call");
        assert_eq!(earlier.join(later).losses().check(), Err(Errno::EIO));
        fills.count_lost_write();
        assert_eq!(of_later.check(), Err(Errno::EIO));
    }
}
