//! The merger: moves what files have in memory (pending extents, inline data, attributes) into the
//! trees, many files in one transaction.
//!
//! A sync and a commit need what was acknowledged before they began ([`MergeScope::Acknowledged`]).
//! A file that other threads write faster than it is merged is merged in one pass, with its lock
//! shared, and stays dirty. It is locked exclusively only for the rest, if little is left.
//!
//! A failure to write data back is returned by the call that has written it, with a flusher and
//! without: a caller that needs the data on the devices, as a snapshot does, goes no further. The
//! same data may be in a batch of another thread, which is the one that gets the failure. So such a
//! caller also names the position in the errors of the volume from which on no file of its
//! subvolume may have lost data ([`Filesystem::write_back_subvolume`]).

use crate::file::alter::update_item;
use crate::inode::table::{InodeEntry, InodeState, LockedInodes};
use crate::sync::{RwLockReadGuard, RwLockWriteGuard};
use crate::write_state::WriteState;
use crate::{Error, FileId, Filesystem, Result};
use butternut_file::{ErrorCursor, FileState, MergeFile, PassStep, SharedMerge};
use butternut_format::inode::Inode;
use butternut_format::units::{Ino, TreeId};
use butternut_pages::WritebackReason;
use butternut_tree::Need;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files in one batch, whose inode locks are held together.
const FILES_PER_BATCH: usize = 128;

/// Writes of a file that may be pending when it is locked exclusively to merge the rest. Few with
/// assertions, so that tests leave more.
const PENDING_LEFT: u64 = if cfg!(debug_assertions) { 4 } else { 1 << 10 };

/// How much of a file is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeScope {
    Whole,
    /// What was acknowledged when the merge began, at least. What direct writes add meanwhile may
    /// stay pending.
    Acknowledged,
    /// Some of its pending extents.
    Part,
}

/// The attributes to write to a file's inode item, and the item as written.
struct ItemUpdate {
    attributes: Inode,
    item: Option<Inode>,
}

impl Filesystem {
    /// Writes the data of all dirty files back and merges it. Continues after a failure, and
    /// returns the first one.
    pub(crate) fn write_back_all(&self, write_state: &WriteState, scope: MergeScope) -> Result<()> {
        let mut result = Ok(());
        let mut from = FileId::new(0, 0);
        loop {
            let batch = write_state.dirty_from(from, FILES_PER_BATCH);
            let Some(last) = batch.last() else { return result };
            from = FileId::new(last.id.subvolume, last.id.ino.saturating_add(1));
            let written = self.write_back_batch(write_state, &batch, scope);
            result = result.and(written);
        }
    }

    /// Writes the data of the dirty files of one subvolume back and merges it, as
    /// [`Self::write_back_all`].
    ///
    /// # Errors
    /// The first failure; data of a file of the subvolume that was lost after `since`, whichever
    /// thread has written it. Its handles, and syncs of all files, report it all the same.
    pub(crate) fn write_back_subvolume(
        &self,
        write_state: &WriteState,
        id: u64,
        since: &ErrorCursor,
    ) -> Result<()> {
        self.write_back_files(write_state, id, |_| true)?;
        let lost = self.shared.source.error_in_tree(TreeId(id), since);
        lost.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Writes the data of the open files of one subvolume back and merges it, as
    /// [`Self::write_back_all`].
    pub(crate) fn write_back_open_files(&self, write_state: &WriteState, id: u64) -> Result<()> {
        self.write_back_files(write_state, id, InodeEntry::is_pinned)
    }

    pub(crate) fn write_back_files(
        &self,
        write_state: &WriteState,
        id: u64,
        is_wanted: impl Fn(&InodeEntry) -> bool,
    ) -> Result<()> {
        let mut result = Ok(());
        let mut from = FileId::new(id, 0);
        loop {
            let mut batch = write_state.dirty_from(from, FILES_PER_BATCH);
            batch.retain(|entry| entry.id.subvolume == id);
            let Some(last) = batch.last() else { return result };
            from = FileId::new(id, last.id.ino.saturating_add(1));
            batch.retain(|entry| is_wanted(entry));
            let written = self.write_back_batch(write_state, &batch, MergeScope::Whole);
            result = result.and(written);
        }
    }

    pub(crate) fn write_back_one(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
        scope: MergeScope,
    ) -> Result<()> {
        self.write_back_batch(write_state, std::slice::from_ref(entry), scope)
    }

    /// Merges pending extents of a file until at most as many writes are pending as `left` says, of
    /// the number that may be pending. It merges at most `parts_max` parts: other threads may write
    /// as fast. Releases the inode lock between one part and the next.
    pub(crate) fn merge_down_to(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
        left: impl Fn(u64) -> u64,
        parts_max: u64,
    ) -> Result<()> {
        let has_more = || {
            let state = entry.lock_shared();
            let file = state.file.as_deref();
            file.is_some_and(|file| file.pending_writes() > left(file.pending_writes_max()))
        };
        for _ in 0..parts_max {
            if !has_more() {
                break;
            }
            let merges = write_state.merges.share();
            let is_merged = merge_some(entry);
            drop(merges);
            if !is_merged? {
                self.write_back_one(write_state, entry, MergeScope::Part)?;
            }
        }
        Ok(())
    }

    /// Writes files back and merges them, in ascending order of their ids. Most of their data is
    /// written back and merged before they are locked exclusively.
    fn write_back_batch(
        &self,
        write_state: &WriteState,
        batch: &[Arc<InodeEntry>],
        scope: MergeScope,
    ) -> Result<()> {
        let mut written = Ok(());
        let mut stay_dirty: Vec<FileId> = Vec::new();
        if scope != MergeScope::Part {
            if self.shared.source.has_flusher() {
                written = self.flush_files(batch, WritebackReason::Sync);
            }
            for entry in batch {
                // What fails here fails again below, or not at all.
                let is_passed = merge_pass(write_state, entry).unwrap_or(false);
                if is_passed && scope == MergeScope::Acknowledged {
                    stay_dirty.push(entry.id);
                    // No write to a dirty file asks for the next commit.
                    write_state.signal.changed();
                }
            }
        }
        if stay_dirty.is_empty() {
            return written.and(self.merge_files(write_state, batch, scope));
        }
        let rest = batch.iter().filter(|entry| !stay_dirty.contains(&entry.id));
        let rest: Vec<_> = rest.cloned().collect();
        if rest.is_empty() {
            return written;
        }
        written.and(self.merge_files(write_state, &rest, scope))
    }

    /// Merges files, in ascending order of their ids.
    pub(crate) fn merge_files(
        &self,
        write_state: &WriteState,
        batch: &[Arc<InodeEntry>],
        scope: MergeScope,
    ) -> Result<()> {
        let merges = write_state.merges.share();
        let entries: Vec<&InodeEntry> = batch.iter().map(|entry| &**entry).collect();
        let mut locked = LockedInodes::lock(&entries);
        let states = entries.iter().copied().zip(locked.iter_mut());
        let result = self.merge_locked(write_state, states, scope);
        drop(locked);
        drop(merges);
        for entry in batch.iter().filter(|entry| !entry.is_listed() && !entry.is_pinned()) {
            write_state.idle.add(entry);
        }
        result
    }

    /// Merges files whose inodes the caller has locked exclusively and drained. The caller excludes
    /// the deletion of their subvolumes.
    pub(crate) fn merge_locked<'a>(
        &self,
        write_state: &WriteState,
        states: impl Iterator<Item = (&'a InodeEntry, &'a mut InodeState)>,
        scope: MergeScope,
    ) -> Result<()> {
        let mut files: Vec<(&InodeEntry, &mut FileState, ItemUpdate)> = Vec::new();
        let mut stale_flags: Vec<&mut bool> = Vec::new();
        for (entry, state) in states {
            let InodeState { file, is_item_stale, .. } = state;
            if let (Some(file), Some(attributes)) = (file, entry.cached()) {
                files.push((entry, &mut **file, ItemUpdate { attributes, item: None }));
                stale_flags.push(is_item_stale.get_mut());
            } else {
                write_state.mark_clean(entry);
            }
        }
        let mut result = merge(&mut files, scope);
        for ((entry, file, update), is_stale) in files.iter_mut().zip(stale_flags) {
            let ItemUpdate { mut attributes, item } = *update;
            if let Some(Inode { flags, transid, .. }) = item {
                attributes = Inode { flags, transid, ..attributes };
                *is_stale = false;
            }
            (attributes.size, attributes.bytes_used) = (file.size(), file.bytes_used());
            entry.set(attributes);
            if *is_stale {
                let written = self.write_item(write_state, entry, &mut attributes);
                *is_stale = written.is_err();
                result = result.and(written);
            }
            if !*is_stale && file.is_clean() {
                write_state.mark_clean(entry);
            }
        }
        result
    }

    /// Writes the inode item of a file whose data is in the trees already.
    fn write_item(
        &self,
        write_state: &WriteState,
        entry: &InodeEntry,
        attributes: &mut Inode,
    ) -> Result<()> {
        let subvolume = self.writable_subvolume(write_state, entry.id)?;
        // The item exists, so the tree does not grow: it is written at the limit of a quota, too.
        self.change(write_state, &subvolume, Need::items(1).deleting(), |change| {
            attributes.transid = change.moment.generation;
            change.put(Ino(entry.id.ino), attributes)
        })?;
        entry.set(*attributes);
        Ok(())
    }
}

/// Merges what is pending of a file in one pass, while other threads read the file and write it
/// direct. Returns whether all that was acknowledged before is in the trees, and much has been
/// added since; if not, the file must be locked exclusively.
fn merge_pass(write_state: &WriteState, entry: &InodeEntry) -> Result<bool> {
    let pending = || entry.lock_shared().file.as_deref().map_or(0, FileState::pending_writes);
    if pending() <= PENDING_LEFT {
        return Ok(false);
    }
    let (state, replaced) = entry.lock_to_free();
    let begun = state.file.as_deref().and_then(FileState::begin_pass);
    drop(state);
    if let Some(replaced) = replaced {
        replaced.release();
    }
    let Some(mut pass) = begun else { return Ok(false) };
    // Each part writes the attributes, too.
    let (mut has_parts, mut is_done) = (false, false);
    loop {
        let merges = write_state.merges.share();
        let is_merged = merge_shared(entry, |file| match file.next_of_pass(&mut pass) {
            PassStep::Part(part) => Some(part),
            PassStep::Done => {
                is_done = true;
                None
            }
            PassStep::Exclusive => None,
        });
        drop(merges);
        if !is_merged? {
            return Ok(has_parts && is_done && pending() > PENDING_LEFT);
        }
        has_parts = true;
    }
}

/// Merges some of a file's pending extents, as [`merge_shared`].
fn merge_some(entry: &InodeEntry) -> Result<bool> {
    merge_shared(entry, FileState::begin_shared_merge)
}

/// Merges the part of a file's pending extents that `begin` takes, while other threads read the
/// file and write it direct. Returns whether there was such a part; if not, the file must be locked
/// exclusively.
fn merge_shared(
    entry: &InodeEntry,
    begin: impl FnOnce(&mut FileState) -> Option<SharedMerge>,
) -> Result<bool> {
    let (state, replaced) = entry.lock_to_free();
    let taken = begin_part(entry, state, begin);
    if let Some(replaced) = replaced {
        replaced.release();
    }
    let Some((state, part, attributes)) = taken else { return Ok(false) };
    let Some(file) = &state.file else { return Ok(false) };
    let mut item = attributes;
    let merged = file.merge_shared(&part, &mut |inode| item = update_item(inode, &attributes));
    match &merged {
        Ok(_) => entry.update(|inode| {
            (inode.flags, inode.transid) = (item.flags, item.transid);
            inode.bytes_used = file.bytes_used();
        }),
        Err(_) => state.is_item_stale.store(true, Ordering::Release),
    }
    merged?;
    Ok(true)
}

/// Takes a part of a file's pending extents, and the attributes that go with it. Returns `None`,
/// and unlocks the file, if there is no such part.
fn begin_part<'a>(
    entry: &'a InodeEntry,
    mut state: RwLockWriteGuard<'a, InodeState>,
    begin: impl FnOnce(&mut FileState) -> Option<SharedMerge>,
) -> Option<(RwLockReadGuard<'a, InodeState>, SharedMerge, Inode)> {
    let attributes = entry.cached()?;
    let part = begin(state.file.as_deref_mut()?)?;
    // A thread that changes the attributes from now on sets this again.
    *state.is_item_stale.get_mut() = false;
    Some((RwLockWriteGuard::downgrade(state), part, attributes))
}

fn merge(files: &mut [(&InodeEntry, &mut FileState, ItemUpdate)], scope: MergeScope) -> Result<()> {
    let mut updates: Vec<_> = Vec::with_capacity(files.len());
    let mut states: Vec<&mut FileState> = Vec::with_capacity(files.len());
    for (_, file, ItemUpdate { attributes, item }) in files {
        states.push(file);
        let attributes = *attributes;
        updates.push(move |inode: &mut Inode| *item = Some(update_item(inode, &attributes)));
    }
    if scope == MergeScope::Part {
        let mut parts = states.into_iter().zip(&mut updates);
        return Ok(parts.try_for_each(|(file, update)| file.merge_part(update).map(drop))?);
    }
    let mut merging: Vec<MergeFile<'_>> = states
        .into_iter()
        .zip(&mut updates)
        .map(|(file, update)| MergeFile { file, update })
        .collect();
    FileState::merge_many(&mut merging).map(drop).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use crate::{Filesystem, MountOptions, NewInode, SnapshotAccess};
    use butternut_device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
    use butternut_format::chunk::BlockGroupFlags;
    use butternut_mkfs::MkfsOptions;
    use butternut_pages::WritebackReason;
    use std::sync::Arc;
    use std::thread;

    /// The other thread may be a flusher, the committer, or a writer over the dirty limits.
    #[test]
    fn data_that_another_thread_loses_during_the_call_is_an_error_of_the_call() {
        for is_snapshot in [true, false] {
            let memory = Arc::new(MemoryDevice::new("memory", 256 << 20));
            butternut_mkfs::make(&*memory, &MkfsOptions::default()).unwrap();
            let device = Arc::new(FaultyDevice::new(memory as Arc<dyn Device>, 1));
            let options = MountOptions::default().read_only(false).commit_seconds(0);
            let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
            let fs = Filesystem::open_devices(devices, &options).unwrap();
            let (root, new) = (fs.root(), NewInode::new(0o755));
            let sub = fs.create_subvolume(root, b"sub", &new).unwrap();
            let id = fs.create(crate::FileId::root_of(sub), b"file", &new).unwrap();
            let file = fs.open_file(id).unwrap();
            let end = move |fs: &Filesystem| {
                if is_snapshot {
                    fs.snapshot(sub, root, b"snap", SnapshotAccess::ReadOnly).map(drop)
                } else {
                    fs.set_subvolume_read_only(sub, true)
                }
            };
            file.write_at(0, &vec![1; 100_000]).unwrap();
            fs.sync().unwrap();
            file.write_at(0, &vec![2; 100_000]).unwrap();

            let chunks = fs.inspect().chunks();
            let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
            let data = chunks.iter().find(|chunk| is_data(chunk.flags)).unwrap();
            let at = data.stripes[0].1..data.stripes[0].1 + data.bytes;
            device.add(Rule::at(at.clone(), Fault::WriteError));
            let held = device.add(Rule::at(at, Fault::HeldWrite));
            let entry = fs.write_state().unwrap().table.entry(id);
            let (flusher, of_flusher) = (fs.clone(), Arc::clone(&entry));
            let flushing =
                thread::spawn(move || flusher.flush_files(&[of_flusher], WritebackReason::Sync));
            device.wait_for_held_writes(1);
            let caller = fs.clone();
            let ending = thread::spawn(move || end(&caller));
            // The call has the inode locked, and waits for the batch of the other thread.
            while entry.try_lock_shared().is_some() && !ending.is_finished() {
                thread::yield_now();
            }
            assert!(device.remove(held));
            assert!(flushing.join().unwrap().is_err());
            let error = ending.join().unwrap().unwrap_err();
            assert_eq!(error.errno(), 5, "{error:?}");
            assert!(fs.lookup(root, b"snap").is_err());
            assert!(!fs.subvolume(sub).unwrap().read_only);
            device.clear();

            // An earlier loss does not refuse later calls, and each handle reports it once.
            end(&fs).unwrap();
            assert_eq!(file.sync_all().unwrap_err().errno(), 5);
            file.sync_all().unwrap();
            assert_eq!(fs.sync().unwrap_err().errno(), 5);
            drop(file);
            fs.close().unwrap();
        }
    }
}
