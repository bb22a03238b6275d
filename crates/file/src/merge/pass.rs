//! [`MergePass`]: one pass of shared merges over a file, after which all is in the trees that was
//! pending when it began.
//!
//! ```text
//! offsets   0 ......... merged_to ......................... end ......... end of the file
//! pending   only newer            what was there, or newer      only newer
//! ```
//!
//! Laws:
//!
//! 1. What was pending at the beginning and ends after `merged_to` is still pending, or newer data
//!    is. A part merges the extents that end after `merged_to`, also one that begins before it: a
//!    write may have been joined to older data.
//! 2. A pass does not speak for blocks that are dirty at its beginning, nor for extents of another
//!    merge that has failed since, wherever they are.
//! 3. `merged_to` grows with each part, and `end`, where the last extent ended that was pending at
//!    the beginning, does not. So a pass ends while other threads write, also one that writes
//!    just ahead of it to the end of the file.

use super::SharedMerge;
use crate::state::FileState;

/// A pass over a file that other threads read and write direct.
#[derive(Debug)]
pub struct MergePass {
    merged_to: u64,
    end: u64,
    merges_aborted: u64,
}

/// What comes next in a pass.
#[derive(Debug)]
pub enum PassStep {
    /// This part is to be merged, by [`FileState::merge_shared`].
    Part(SharedMerge),
    /// All is in the trees that was pending at the beginning (law 2).
    Done,
    /// The file must be locked exclusively to be merged.
    Exclusive,
}

impl FileState {
    /// Begins a pass of shared merges. Returns `None` for a file with dirty blocks (law 2). The
    /// caller holds the inode lock exclusively, and no acknowledged write is in flight.
    pub fn begin_pass(&self) -> Option<MergePass> {
        let is_dirty = self.shared.pages().next_newer(&(0..u64::MAX)).is_some();
        let overlay = self.shared.overlay();
        let (end, merges_aborted) = (overlay.pending_end(), overlay.merges_aborted());
        (!is_dirty).then_some(MergePass { merged_to: 0, end, merges_aborted })
    }

    /// Begins the next part of a pass. The caller holds the inode lock exclusively until it merges
    /// the part, and then at least shared.
    pub fn next_of_pass(&mut self, pass: &mut MergePass) -> PassStep {
        let overlay = self.shared.overlay();
        let is_aborted = overlay.merges_aborted() != pass.merges_aborted;
        let first = overlay.first_ending_after(pass.merged_to);
        let is_done = first.is_none_or(|start| start >= pass.end);
        drop(overlay);
        if is_aborted {
            return PassStep::Exclusive;
        }
        if is_done {
            return PassStep::Done;
        }
        let Some(part) = self.begin_shared_merge_from(pass.merged_to) else {
            return PassStep::Exclusive;
        };
        let Some((start, last)) = part.pending_extents.last() else {
            return PassStep::Exclusive;
        };
        let end = start.saturating_add(last.bytes);
        debug_assert!(pass.merged_to < end, "law 3");
        pass.merged_to = end;
        PassStep::Part(part)
    }
}
