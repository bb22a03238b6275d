//! [`IdleFiles`]: closed files whose [`FileState`] is kept for a while.
//!
//! ```text
//! open --last pin dropped--> idle --IDLE_FILES_MAX others became idle--> attributes only
//!   ^                          |
//!   +--------- opened ---------+
//! ```
//!
//! A file state is much larger than the rest of an inode's entry, and owns allocations of its own.
//! The inode table keeps an entry for every recently used inode. If each kept the state of its
//! file, memory would grow with the number of files that were ever opened.
//!
//! Laws:
//!
//! 1. A state is dropped only if its file is not pinned, the trees have everything in it, and no
//!    error of writeback in it is left to report.
//! 2. At most [`IDLE_FILES_MAX`] idle files keep their state, and besides them those that other
//!    threads have locked at the moment.
//! 3. No inode lock is waited for here, and no state is dropped with a lock held: dropping one may
//!    call any lower crate. The next state of the file may be in use by then. So a state has ended
//!    before it leaves its inode ([`FileState::end_if_clean`]), and drops no pages.

use crate::inode::table::InodeEntry;
use butternut_file::FileState;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Idle files that keep their state.
pub(crate) const IDLE_FILES_MAX: usize = 4096;

/// Files that may leave the list when one is added. It is more than one, so that a list that grew
/// because files were locked becomes short again.
const EVICTIONS_PER_ADD: usize = 2;

/// The idle files of one filesystem, the least recently closed first.
#[derive(Debug, Default)]
pub(crate) struct IdleFiles {
    list: Mutex<VecDeque<Weak<InodeEntry>>, rank::IdleFiles>,
}

/// Whether an inode is in the list, which holds it at most once.
#[derive(Debug, Default)]
pub(crate) struct IsIdle(AtomicBool);

impl IdleFiles {
    /// Adds a file that lost its last pin, or that became clean without one. The caller has no
    /// inode locked.
    pub(crate) fn add(&self, entry: &Arc<InodeEntry>) {
        if entry.is_idle.0.swap(true, Ordering::SeqCst) {
            return;
        }
        self.list().push_back(Arc::downgrade(entry));
        for _ in 0..EVICTIONS_PER_ADD {
            let Some(oldest) = self.pop() else { return };
            let Some(oldest) = oldest.upgrade() else { continue };
            // Cleared before the check: a file that becomes idle after the check is added again.
            oldest.is_idle.0.store(false, Ordering::SeqCst);
            match take_state(&oldest) {
                Ok(file) => drop(file),
                // The thread that holds the lock may leave the file idle without adding it.
                Err(Locked) => {
                    if !oldest.is_idle.0.swap(true, Ordering::SeqCst) {
                        self.list().push_back(Arc::downgrade(&oldest));
                    }
                }
            }
        }
    }

    /// Returns the number of files in the list.
    pub(crate) fn len(&self) -> usize {
        self.list().len()
    }

    /// Removes the first file of the list if the list is too long.
    fn pop(&self) -> Option<Weak<InodeEntry>> {
        let mut list = self.list();
        if list.len() > IDLE_FILES_MAX { list.pop_front() } else { None }
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Weak<InodeEntry>>> {
        self.list.lock()
    }
}

/// The inode is locked by another thread.
struct Locked;

/// Takes the state of an idle file (law 1). A file that is not idle is added again when it is.
fn take_state(entry: &InodeEntry) -> Result<Option<Box<FileState>>, Locked> {
    let mut state = entry.try_lock_without_drain().ok_or(Locked)?;
    let is_idle = !entry.is_pinned()
        && !entry.is_listed()
        && state.file.as_deref_mut().is_some_and(|f| !f.has_unreported_error() && f.end_if_clean());
    Ok(if is_idle { state.file.take() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::table::InodeState;
    use crate::{FileId, Filesystem, MountOptions, NewInode};
    use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
    use butternut_mkfs::MkfsOptions;

    fn entry(ino: u64) -> Arc<InodeEntry> {
        InodeEntry::new(FileId::new(5, ino), None, InodeState::default())
    }

    #[test]
    fn the_list_is_bounded_and_keeps_locked_files() {
        let idle = IdleFiles::default();
        let (locked, twice) = (entry(257), entry(258));
        let state = locked.try_lock_without_drain().unwrap();
        idle.add(&locked);
        idle.add(&twice);
        idle.add(&twice);
        assert_eq!(idle.list().len(), 2);
        let mut kept = Vec::new();
        for ino in 0..2 * IDLE_FILES_MAX as u64 {
            kept.push(entry(1000 + ino));
            idle.add(&kept[kept.len() - 1]);
            assert!(idle.list().len() <= IDLE_FILES_MAX + 1);
        }
        let has = |wanted: &Arc<InodeEntry>| {
            idle.list().iter().any(|one| one.upgrade().is_some_and(|one| Arc::ptr_eq(&one, wanted)))
        };
        assert!(has(&locked), "a locked file stays listed");
        assert!(!has(&twice) && !has(&kept[0]) && has(&kept[kept.len() - 1]));
        drop(state);
        idle.add(&twice);
        assert!(has(&twice), "a file that left the list can be added again");
    }

    /// The error of a file that was closed is left for the next handle that syncs it.
    #[test]
    fn an_error_that_no_handle_has_returned_outlives_many_other_inodes() {
        for others in [0, 2000] {
            let memory = Arc::new(MemoryDevice::new("memory", 256 << 20));
            butternut_mkfs::make(&*memory, &MkfsOptions::default()).unwrap();
            let device = Arc::new(FaultyDevice::new(memory, 1));
            let options =
                MountOptions::default().read_only(false).commit_seconds(0).inode_cache_entries(64);
            let dynamic: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
            let fs = Filesystem::open_devices(vec![dynamic], &options).unwrap();
            let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            let rule = device.add(Rule::everywhere(Fault::WriteError));
            file.write_at(0, &vec![1; 1 << 20]).unwrap_err();
            device.remove(rule);
            drop(file);
            for other in 0..others {
                let name = format!("other {other}");
                fs.create(fs.root(), name.as_bytes(), &NewInode::new(0o644)).unwrap();
            }
            let file = fs.open_file(id).unwrap();
            assert!(file.sync_all().is_err(), "{others} other inodes");
            file.sync_all().unwrap();
        }
    }
}
