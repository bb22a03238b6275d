//! The cleaner: the thread that frees deleted subvolumes, the orphans of read-only ones, and large
//! orphans that the threads which have removed their last names leave to it.
//!
//! Laws:
//!
//! 1. The thread does not keep the filesystem open. Closing the filesystem stops it after its
//!    current step and the small orphans that are queued, such as removed directories; the next
//!    open for writing goes on with the others.
//! 2. Subvolumes whose files are open are looked at again when an inode of theirs has no pin any
//!    more, and every few seconds, until they are free. One for whose deletion the volume has no
//!    space is looked at again when a commit has ended or a file has been deleted, but without a
//!    success after pauses that double up to those few seconds: each attempt may commit.
//! 3. Nothing waits for the thread, except a write to a full volume and an operation at the limit
//!    of a quota, which wait for orphans that are queued. What it cannot free is looked at
//!    again, as in law 2; an orphan, at the next open.
//! 4. Orphans go before subvolumes, also between two steps of freeing one: those that are queued by
//!    then, so that orphans which keep coming do not keep subvolumes waiting for ever.

use crate::background::cleaner_signal::{CleanerSignal, Look};
use crate::filesystem::Shared;
use crate::inode::orphans::is_large_orphan;
use crate::{Error, Filesystem, Result};
use butternut_format::units::Generation;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Pause before a subvolume with open files is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// The first pause after a second attempt without space (law 2).
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Cleaner {
    signal: Arc<CleanerSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts the thread. It begins with what the last use of the volume left.
    pub(crate) fn start(shared: &Arc<Shared>, signal: Arc<CleanerSignal>) -> Result<Self> {
        let (signal_of_thread, shared) = (Arc::clone(&signal), Arc::clone(shared));
        signal.start();
        signal.request();
        let run = move || {
            let _running = signal_of_thread.stop_at_end();
            let filesystem = Filesystem::for_thread(shared);
            let _watch = filesystem.forest().watch_panics();
            let (mut retry, mut no_space): (_, Option<NoSpace>) = (None, None);
            loop {
                let has_space = no_space.as_ref().map(|seen| || seen.may_have_ended(&filesystem));
                let has_space = has_space.as_ref().map(|call| -> &dyn Fn() -> bool { call });
                let Some(look) = signal_of_thread.wait(retry, has_space) else { break };
                filesystem.evict_in_background(&signal_of_thread);
                if look == Look::All {
                    let left = filesystem.clean_in_background(&signal_of_thread);
                    retry = (left != Left::Nothing).then(|| Instant::now() + RETRY);
                    no_space = (left == Left::NoSpace)
                        .then(|| NoSpace::after(no_space.as_ref(), &filesystem));
                }
            }
            filesystem.evict_small_ones(&signal_of_thread);
        };
        let thread = Builder::new().name("butternut-clean".into()).spawn(run);
        if thread.is_err() {
            signal.stop();
        }
        Ok(Self { signal, thread: Some(thread.map_err(Error::Committer)?) })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// What the cleaner has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// Subvolumes that are in use, or cannot be read now.
    Some,
    /// Subvolumes for whose deletion there is no space.
    NoSpace,
}

/// An attempt that has found no space (law 2).
#[derive(Debug)]
struct NoSpace {
    /// What the volume had freed by then.
    freed: Freed,
    at: Instant,
    pause: Duration,
}

/// What changes when a commit ends or a file is deleted.
type Freed = (Generation, u64);

impl NoSpace {
    fn after(last: Option<&Self>, filesystem: &Filesystem) -> Self {
        let pause = last.map_or(Duration::ZERO, |last| (last.pause * 2).max(PAUSE_MIN));
        Self { freed: filesystem.freed(), at: Instant::now(), pause: pause.min(RETRY) }
    }

    fn may_have_ended(&self, filesystem: &Filesystem) -> bool {
        self.at.elapsed() >= self.pause && filesystem.freed() != self.freed
    }
}

impl Filesystem {
    fn freed(&self) -> Freed {
        let write_state = self.shared.write_state.as_ref();
        let bytes = write_state.map_or(0, |write_state| write_state.signal.freed_bytes());
        (self.forest().committed_generation(), bytes)
    }

    /// Frees deleted subvolumes. Returns whether some are left that may become free later.
    fn clean_in_background(&self, signal: &CleanerSignal) -> Left {
        let goes_on = || {
            self.evict_in_background(signal);
            !signal.is_stopped() && self.may_begin().is_ok()
        };
        let left = self.clean_subvolumes_unless_another(&goes_on);
        match left {
            Ok(false) => Left::Nothing,
            Err(_) if self.may_begin().is_err() => Left::Nothing,
            Err(error) if error.is_no_space() => Left::NoSpace,
            // What cannot be read now may be readable later.
            Ok(true) | Err(_) => Left::Some,
        }
    }

    /// Deletes the orphans that are queued, except large ones.
    fn evict_small_ones(&self, signal: &CleanerSignal) {
        while let Some((entry, evicting)) = signal.next_eviction_at_end() {
            if !is_large_orphan(&entry) && self.may_begin().is_ok() {
                drop(self.evict_orphan_while(&entry, &|| true));
            }
            drop(evicting);
        }
    }

    /// Deletes the orphans that are queued.
    fn evict_in_background(&self, signal: &CleanerSignal) {
        let goes_on = || !signal.is_stopped();
        let until = signal.last();
        while let Some((entry, evicting)) = signal.next_eviction(until) {
            // If deleting fails, the next open for writing finds the orphan item.
            drop(self.evict_orphan_while(&entry, &goes_on));
            drop(evicting);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::background::cleaner_signal::{CleanerSignal, EvictBy, LARGE_MAX, QUEUED_MAX};
    use crate::server::FilesystemExt;
    use crate::{FileId, Filesystem, MountOptions, NewInode, SnapshotAccess};
    use butternut_device::{Device, MemoryDevice};
    use butternut_format::units::Ino;
    use butternut_mkfs::MkfsOptions;
    use butternut_names as names;
    use butternut_tree::EnospcInjector;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    fn device() -> Arc<dyn Device> {
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        Arc::new(device)
    }

    /// With a commit interval, there is a cleaner thread.
    fn open(device: &Arc<dyn Device>, commit_seconds: u32) -> Filesystem {
        let options = MountOptions::default().read_only(false).commit_seconds(commit_seconds);
        Filesystem::open_devices(vec![Arc::clone(device)], &options).unwrap()
    }

    /// Law 1, also for orphans of a read-only subvolume, of which there may be any number.
    #[test]
    fn closing_stops_the_deletion_of_the_orphans_of_a_read_only_subvolume() {
        let device = device();
        let fs = open(&device, 0);
        let root = fs.root();
        let sub = fs.create_subvolume(root, b"sub", &NewInode::new(0o755)).unwrap();
        let mut files = Vec::new();
        for number in 0..32 {
            let (dir, name) = (FileId::root_of(sub), number.to_string());
            let id = fs.create(dir, name.as_bytes(), &NewInode::new(0o755)).unwrap();
            files.push(fs.open_file(id).unwrap());
            fs.unlink(dir, name.as_bytes()).unwrap();
        }
        // As a crash during the snapshot leaves it: with its orphans.
        let sent = &fs.write_state().unwrap().sent;
        sent.add(&[sub + 1]);
        let snap = fs.snapshot(sub, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
        assert_eq!(snap, sub + 1);
        sent.remove(&[snap]);
        drop(files);
        fs.close().unwrap();

        let fs = open(&device, 3600);
        let write_state = Arc::clone(fs.write_state().unwrap());
        let stops_deletion = write_state.merges.exclude();
        fs.subvolume_tree(snap).unwrap();
        while !write_state.cleaner.has_taken_read_only() {
            thread::yield_now();
        }
        write_state.cleaner.stop();
        drop(stops_deletion);
        fs.close().unwrap();

        let options = MountOptions::default();
        let fs = Filesystem::open_devices(vec![device], &options).unwrap();
        let tree = fs.subvolume_tree(snap).unwrap();
        assert!(!names::orphans(&tree, Ino(0), 64).unwrap().is_empty());
    }

    /// Law 4: any user may remove directories all the time.
    #[test]
    fn a_deleted_subvolume_is_freed_while_orphans_are_queued_all_the_time() {
        const QUEUED: usize = 1000;
        let fs = open(&device(), 3600);
        let root = fs.root();
        fs.create_subvolume(root, b"sub", &NewInode::new(0o755)).unwrap();
        let other = fs.mkdir(root, b"other", &NewInode::new(0o755)).unwrap();
        let write_state = Arc::clone(fs.write_state().unwrap());
        let (cleaner, is_over) = (&write_state.cleaner, AtomicBool::new(false));
        // It has a name: an eviction is a transaction that changes nothing.
        let other = write_state.table.entry(other);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if cleaner.queued() < QUEUED {
                        drop(cleaner.begin_eviction(&other, EvictBy::Cleaner));
                    }
                }
            });
            while cleaner.queued() < QUEUED / 2 {
                thread::yield_now();
            }
            fs.delete_subvolume(root, b"sub").unwrap();
            while !fs.deleted_subvolumes().unwrap().is_empty() {
                thread::yield_now();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        fs.close().unwrap();
    }

    /// FORGET is served by threads that metadata reads need, any number of them.
    #[test]
    fn a_pin_that_is_dropped_in_the_background_waits_for_no_deletion_behind_many_others() {
        let fs = open(&device(), 3600);
        let root = fs.root();
        let id = fs.mkdir(root, b"dir", &NewInode::new(0o755)).unwrap();
        let pin = FilesystemExt::pin(&fs, id).unwrap().unwrap();
        fs.rmdir(root, b"dir").unwrap();
        let other = fs.mkdir(root, b"other", &NewInode::new(0o755)).unwrap();
        let write_state = fs.write_state().unwrap();
        // It has a name, so its evictions change nothing.
        let other = write_state.table.entry(other);
        let stops_eviction = write_state.merges.exclude();
        // As a caller that deletes a large file, and others whose files are queued behind it.
        let alone = write_state.cleaner.begin_eviction(&other, EvictBy::Caller);
        for _ in 0..=LARGE_MAX {
            drop(write_state.cleaner.begin_eviction(&other, EvictBy::Caller));
        }
        thread::spawn(move || pin.unpin_in_background()).join().unwrap();
        drop(alone);
        drop(stops_eviction);
        fs.close().unwrap();
    }

    #[test]
    fn operations_help_with_small_orphans_while_many_are_queued() {
        let fs = open(&device(), 0);
        let entry = fs.write_state().unwrap().table.entry(fs.root());
        let signal = CleanerSignal::default();
        signal.start();
        for _ in 0..QUEUED_MAX {
            assert!(signal.begin_eviction(&entry, EvictBy::Cleaner).is_none());
        }
        assert!(signal.next_to_help().is_none(), "the cleaner deletes them alone");
        assert!(signal.begin_eviction(&entry, EvictBy::Cleaner).is_none());
        let helped = signal.next_to_help();
        assert!(helped.is_some() && signal.queued() == QUEUED_MAX);
        assert!(signal.next_to_help().is_none());
        let alone = signal.begin_eviction(&entry, EvictBy::Caller);
        assert!(alone.is_some() && signal.begin_eviction(&entry, EvictBy::Caller).is_none());
        assert!(signal.next_to_help().is_none(), "the last one is large");
    }

    /// Less than the pause before a retry.
    const SOON: Duration = Duration::from_secs(4);

    fn wait_until_freed(fs: &Filesystem) -> Duration {
        let since = Instant::now();
        while !fs.deleted_subvolumes().unwrap().is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        since.elapsed()
    }

    /// Opens a file in a subvolume, and deletes the subvolume.
    fn open_in_deleted(fs: &Filesystem) -> crate::File {
        let root = fs.root();
        let sub = fs.create_subvolume(root, b"sub", &NewInode::new(0o755)).unwrap();
        let file = fs.create(FileId::root_of(sub), b"file", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(file).unwrap();
        fs.delete_subvolume(root, b"sub").unwrap();
        while !fs.write_state().unwrap().cleaner.has_left() {
            thread::yield_now();
        }
        file
    }

    #[test]
    fn a_deleted_subvolume_is_freed_when_its_last_file_is_closed() {
        let fs = open(&device(), 3600);
        let file = open_in_deleted(&fs);
        drop(file);
        let waited = wait_until_freed(&fs);
        assert!(waited < SOON, "{waited:?}");
        fs.close().unwrap();
    }

    /// Space that another operation frees, and that a commit makes free.
    #[test]
    fn a_deletion_without_space_goes_on_when_space_is_freed() {
        for commits in [false, true] {
            let injector = EnospcInjector::default();
            let options = MountOptions::default().read_only(false).commit_seconds(3600);
            let options = options.enospc_injector(Some(injector.clone()));
            let fs = Filesystem::open_devices(vec![device()], &options).unwrap();
            let other = fs.create(fs.root(), b"other", &NewInode::new(0o644)).unwrap();
            fs.open_file(other).unwrap().write_at(0, &vec![1; 1 << 20]).unwrap();
            fs.sync().unwrap();
            let file = open_in_deleted(&fs);
            injector.fail_from(1);
            drop(file);
            while injector.failed() == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(500));
            injector.fail_none();
            thread::sleep(Duration::from_millis(500));
            assert!(!fs.deleted_subvolumes().unwrap().is_empty(), "nothing was freed");
            if commits {
                fs.mkdir(fs.root(), b"dir", &NewInode::new(0o755)).unwrap();
                fs.sync().unwrap();
            } else {
                fs.unlink(fs.root(), b"other").unwrap();
            }
            let waited = wait_until_freed(&fs);
            assert!(waited < Duration::from_secs(3), "{waited:?}");
            fs.close().unwrap();
        }
    }
}
