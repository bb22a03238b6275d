//! [`IdleFiles`]: files without a handle whose [`FileState`] memory keeps for a while.
//!
//! ```text
//! open --last handle closed--> idle --IDLE_FILES_MAX others became idle--> facts only
//!   ^                            |
//!   +---------- opened ----------+
//! ```
//!
//! A state is much larger than the rest of an inode's entry, and owns allocations of its own. The
//! inode table keeps an entry for every inode of late; if each kept the state of its file, memory
//! would grow with the number of files that were ever opened.
//!
//! Laws:
//!
//! 1. A state is dropped only if no handle is open on its file, the trees have everything in it,
//!    and no error of writeback in it waits for the next handle.
//! 2. At most [`IDLE_FILES_MAX`] files that are idle keep their state, and those that other threads
//!    have locked at the moment.
//! 3. No lock is waited for here, and no state is dropped with a lock held: dropping one may call
//!    anything below. The next state of the file may be in use by then: so a state has ended
//!    before it leaves its inode ([`FileState::end_if_clean`]), and drops no pages.

use crate::inode_table::InodeEntry;
use butternut_file::FileState;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Files without a handle that keep their state.
pub(crate) const IDLE_FILES_MAX: usize = 4096;

/// Files that may leave the list when one is added, so that it gets short again after files that
/// were locked stayed in it.
const LEAVE_PER_NOTE: usize = 2;

/// The files of one filesystem, those that became idle first at the front.
#[derive(Debug, Default)]
pub(crate) struct IdleFiles {
    list: Mutex<VecDeque<Weak<InodeEntry>>>,
}

/// Whether an inode is in the list, where it is once at most.
#[derive(Debug, Default)]
pub(crate) struct IsIdle(AtomicBool);

impl IdleFiles {
    /// Takes note of a file that lost its last handle, or that became clean without one. The caller
    /// has no inode locked.
    pub(crate) fn note(&self, entry: &Arc<InodeEntry>) {
        if entry.is_idle.0.swap(true, Ordering::SeqCst) {
            return;
        }
        self.list().push_back(Arc::downgrade(entry));
        for _ in 0..LEAVE_PER_NOTE {
            let Some(oldest) = self.pop() else { return };
            let Some(oldest) = oldest.upgrade() else { continue };
            // Before the look: what becomes idle behind it is noted again.
            oldest.is_idle.0.store(false, Ordering::SeqCst);
            match take_state(&oldest) {
                Ok(state) => drop(state),
                // Another thread is at it, and may leave it idle without a note.
                Err(Locked) => {
                    if !oldest.is_idle.0.swap(true, Ordering::SeqCst) {
                        self.list().push_back(Arc::downgrade(&oldest));
                    }
                }
            }
        }
    }

    /// How many files are in the list.
    pub(crate) fn len(&self) -> usize {
        self.list().len()
    }

    /// Takes the file that became idle first off the list, if that is too long.
    fn pop(&self) -> Option<Weak<InodeEntry>> {
        let mut list = self.list();
        if list.len() > IDLE_FILES_MAX { list.pop_front() } else { None }
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Weak<InodeEntry>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The inode is locked by another thread.
struct Locked;

/// Takes the state of a file that is idle (law 1). One that is not is noted again when it is.
fn take_state(entry: &InodeEntry) -> Result<Option<Box<FileState>>, Locked> {
    let mut body = entry.try_body_in_traffic().ok_or(Locked)?;
    let is_idle = !entry.is_held()
        && !entry.is_listed()
        && body.file.as_deref_mut().is_some_and(|f| !f.has_untold_error() && f.end_if_clean());
    Ok(if is_idle { body.file.take() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileId;
    use crate::inode_table::Body;

    fn entry(ino: u64) -> Arc<InodeEntry> {
        InodeEntry::new(FileId::new(5, ino), None, Body::default())
    }

    #[test]
    fn the_list_is_bounded_and_has_each_file_once_and_keeps_those_that_are_locked() {
        let idle = IdleFiles::default();
        let (locked, twice) = (entry(257), entry(258));
        let body = locked.try_body_in_traffic().unwrap();
        idle.note(&locked);
        idle.note(&twice);
        idle.note(&twice);
        assert_eq!(idle.list().len(), 2);
        let mut kept = Vec::new();
        for ino in 0..2 * IDLE_FILES_MAX as u64 {
            kept.push(entry(1000 + ino));
            idle.note(&kept[kept.len() - 1]);
            assert!(idle.list().len() <= IDLE_FILES_MAX + 1);
        }
        let has = |wanted: &Arc<InodeEntry>| {
            idle.list().iter().any(|one| one.upgrade().is_some_and(|one| Arc::ptr_eq(&one, wanted)))
        };
        assert!(has(&locked), "another thread may leave it idle without a note");
        assert!(!has(&twice) && !has(&kept[0]) && has(&kept[kept.len() - 1]));
        drop(body);
        idle.note(&twice);
        assert!(has(&twice), "a file that left the list is noted again");
    }
}
