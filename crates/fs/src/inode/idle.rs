//! [`IdleFiles`]: closed files whose [`FileState`] is kept for a while.
//!
//! ```text
//! open --last pin dropped--> idle --IDLE_FILES_MAX others became idle--> attributes only
//!   ^                          |      |                                    ^
//!   +--------- opened ---------+      +--its data was lost--> failed ------+
//!                                               FAILED_FILES_MAX others failed
//! ```
//!
//! A file state is much larger than the rest of an inode's entry, and owns allocations of its own.
//! The inode table keeps an entry for every recently used inode. If each kept the state of its
//! file, memory would grow with the number of files that were ever opened.
//!
//! Laws:
//!
//! 1. A state is dropped only if its file is not pinned and the trees have everything in it. If an
//!    error of writeback in it is left to report, the state is kept longer, and the error is then
//!    left to a sync of all files and to the close of the volume.
//! 2. At most [`IDLE_FILES_MAX`] idle files keep their state, at most [`FAILED_FILES_MAX`] of which
//!    such an error is left, and besides them those that other threads have locked at the moment.
//! 3. No inode lock is waited for here, and no state is dropped with a lock held: dropping one may
//!    call any lower crate. The next state of the file may be in use by then. So a state has ended
//!    before it leaves its inode ([`FileState::end_if_clean`]), and drops no pages.
//! 4. An entry may leave the inode table while this list looks at it, and the inode may have its
//!    next entry. Its state has ended then (law 1 of [`super::table`]).

use crate::inode::table::InodeEntry;
use butternut_file::FileState;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Idle files that keep their state.
pub(crate) const IDLE_FILES_MAX: usize = 4096;

/// Files that keep their state, beyond the idle ones, for an error that no handle has returned.
pub(crate) const FAILED_FILES_MAX: usize = 4096;

/// Files that may leave the list when one is added. It is more than one, so that a list that grew
/// because files were locked becomes short again.
const EVICTIONS_PER_ADD: usize = 2;

/// The idle files of one filesystem, the least recently closed first.
#[derive(Debug, Default)]
pub(crate) struct IdleFiles {
    list: Mutex<VecDeque<Weak<InodeEntry>>, rank::IdleFiles>,
    /// Those that left the list with an error that no handle has returned, the first to do so
    /// first.
    failed: Mutex<VecDeque<Weak<InodeEntry>>, rank::IdleFiles>,
}

/// Whether an inode is in the lists, each of which holds it at most once.
#[derive(Debug, Default)]
pub(crate) struct IsIdle {
    idle: AtomicBool,
    failed: AtomicBool,
}

/// What happens to a state with an error of writeback that no handle has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unreported {
    Keep,
    /// The volume has the error (law 1).
    Drop,
}

/// The result of [`take_state`].
enum Taken {
    State(Box<FileState>),
    /// The file is not idle, or has no state. It is added again when it is idle.
    Nothing,
    /// It has an error that no handle has returned.
    Failed,
    /// The inode is locked by another thread.
    Locked,
}

impl IdleFiles {
    /// Adds a file that lost its last pin, or that became clean without one. The caller has no
    /// inode locked.
    pub(crate) fn add(&self, entry: &Arc<InodeEntry>) {
        if entry.is_idle.idle.swap(true, Ordering::SeqCst) {
            return;
        }
        self.list().push_back(Arc::downgrade(entry));
        for _ in 0..EVICTIONS_PER_ADD {
            let Some(oldest) = self.pop() else { return };
            let Some(oldest) = oldest.upgrade() else { continue };
            // Cleared before the check: a file that becomes idle after the check is added again.
            oldest.is_idle.idle.store(false, Ordering::SeqCst);
            match take_state(&oldest, Unreported::Keep) {
                Taken::State(file) => drop(file),
                Taken::Nothing => {}
                Taken::Failed => self.add_failed(&oldest),
                // The thread that holds the lock may leave the file idle without adding it.
                Taken::Locked => {
                    if !oldest.is_idle.idle.swap(true, Ordering::SeqCst) {
                        self.list().push_back(Arc::downgrade(&oldest));
                    }
                }
            }
        }
    }

    /// Adds a file that has left the list with an error, and drops the state of the first one if
    /// there are too many.
    fn add_failed(&self, entry: &Arc<InodeEntry>) {
        if entry.is_idle.failed.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut failed = self.failed.lock();
        failed.push_back(Arc::downgrade(entry));
        let first = if failed.len() > FAILED_FILES_MAX { failed.pop_front() } else { None };
        drop(failed);
        let Some(first) = first.and_then(|first| first.upgrade()) else { return };
        first.is_idle.failed.store(false, Ordering::SeqCst);
        match take_state(&first, Unreported::Drop) {
            Taken::State(file) => drop(file),
            Taken::Nothing | Taken::Failed => {}
            Taken::Locked => {
                if !first.is_idle.failed.swap(true, Ordering::SeqCst) {
                    self.failed.lock().push_back(Arc::downgrade(&first));
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

/// Takes the state of an idle file (law 1).
fn take_state(entry: &InodeEntry, unreported: Unreported) -> Taken {
    let Some(mut state) = entry.try_lock_without_drain() else { return Taken::Locked };
    let is_in_use = entry.is_pinned() || entry.is_listed();
    let Some(file) = state.file.as_deref_mut().filter(|_| !is_in_use) else {
        return Taken::Nothing;
    };
    if file.has_unreported_error() && unreported == Unreported::Keep {
        return Taken::Failed;
    }
    let has_ended = file.end_if_clean();
    if has_ended {
        entry.clear_view();
    }
    state.file.take_if(|_| has_ended).map_or(Taken::Nothing, Taken::State)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::table::InodeState;
    use crate::{FileId, Filesystem, MountOptions, NewInode};
    use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
    use butternut_format::chunk::BlockGroupFlags;
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

    /// One thread evicts an entry from a full table, another has it from the list of idle files,
    /// and a third opens and writes the file anew before the second looks at the state.
    #[test]
    fn an_idle_entry_that_has_left_the_table_takes_no_pages_along() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        // Without a committer there is no flusher, so the pages stay dirty.
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
        let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[1; 8192]).unwrap();
        fs.sync().unwrap();
        drop(file);
        let table = &fs.write_state().unwrap().table;
        let old = table.entry(id);
        let mut state = old.try_lock_without_drain().unwrap();
        assert!(state.file.as_mut().unwrap().end_if_clean());
        drop(state);
        table.remove(&old);
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[2; 8192]).unwrap();
        drop(take_state(&old, Unreported::Keep));
        drop(old);
        let mut have = [0; 8192];
        file.read_exact_at(0, &mut have).unwrap();
        assert!(have == [2; 8192], "the write is lost");
        file.sync_all().unwrap();
        file.read_exact_at(0, &mut have).unwrap();
        assert!(have == [2; 8192], "the write is lost, and the sync has succeeded");
    }

    /// What is lost and never asked for takes no memory for ever.
    #[test]
    fn files_whose_data_was_lost_and_that_nothing_syncs_are_bounded() {
        const FILES: usize = IDLE_FILES_MAX + FAILED_FILES_MAX + 512;
        let memory = Arc::new(MemoryDevice::new("memory", 512 << 20));
        butternut_mkfs::make(&*memory, &MkfsOptions::default()).unwrap();
        let device = Arc::new(FaultyDevice::new(memory as Arc<dyn Device>, 1));
        let options =
            MountOptions::default().read_only(false).commit_seconds(0).inode_cache_entries(64);
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let fs = Filesystem::open_devices(devices, &options).unwrap();
        let chunks = fs.inspect().chunks();
        let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
        let data = chunks.iter().find(|chunk| is_data(chunk.flags)).unwrap();
        let at = data.stripes[0].1..data.stripes[0].1 + data.bytes;
        device.add(Rule::at(at, Fault::WriteError));
        let mut ids = Vec::new();
        for number in 0..FILES {
            let name = number.to_string();
            let id = fs.create(fs.root(), name.as_bytes(), &NewInode::new(0o644)).unwrap();
            fs.open_file(id).unwrap().write_at(0, &[1; 4096]).unwrap();
            ids.push(id);
            if number % 64 == 63 {
                // The errors are returned here. Those of the files are left for their handles.
                fs.sync().unwrap_err();
            }
        }
        let table = &fs.write_state().unwrap().table;
        let has_state = |entry: &Arc<InodeEntry>| entry.lock().file.is_some();
        let states = table.entries_in(fs.root().subvolume).iter().filter(|e| has_state(e)).count();
        assert!(states <= IDLE_FILES_MAX + FAILED_FILES_MAX + 1, "{states} states");
        // The error of the first one is left to the sync of all files.
        fs.open_file(ids[0]).unwrap().sync_all().unwrap();
        fs.open_file(ids[FILES - 1]).unwrap().sync_all().unwrap_err();
    }
}
