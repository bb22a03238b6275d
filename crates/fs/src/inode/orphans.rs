//! The deletion of orphans: of inodes without a name when their last pin is dropped, and of those
//! that the last use of the volume left.
//!
//! The laws are those of `inode/pin.rs`, and these:
//!
//! 1. An orphan is deleted in a read-only subvolume too, as in the kernel. No name leads to it, so
//!    nothing that the subvolume shows changes.
//! 2. A deletion holds `merges` shared, so meanwhile its subvolume is not deleted and does not
//!    become read-only or writable. An orphan may have any number of extents, so between two steps
//!    the deletion holds nothing, and lets threads go first that wait to exclude it. Then it looks
//!    up again what may have changed: the subvolume, and whether the orphan is still there.
//! 3. A large orphan may be deleted by the cleaner thread, some time after its last name or pin is
//!    gone (law 1 of `background/cleaner_signal.rs`).
//! 4. No orphan is deleted while its subvolume is being sent (`send/in_progress.rs`).
//! 5. A file with a name has an orphan item while fs-verity is being enabled on it. What an
//!    interrupted call left is removed as orphans are, and the file stays (`sealing`).
//! 6. From its first step on, an orphan that is deleted cannot be pinned or read, unless its
//!    deletion fails: then it is left for the next open, and can be read until then.

mod sealing;

use crate::background::cleaner_signal::EvictBy;
use crate::inode::id::ROOT_DIRECTORY;
use crate::inode::table::{InodeEntry, InodeState};
use crate::names::unlink::DELETE_BYTES_MAX;
use crate::write_state::{LeftOrphans, WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::FileState;
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, ReadItems};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that deleting an inode without data may change, for a usual number of extended attributes.
/// With more, blocks are freed rather than added.
const ITEMS_OF_DELETION: u32 = 8;

/// Orphan items that one search returns.
const ORPHANS_PER_BATCH: usize = 256;

/// The subvolume of orphans that are deleted.
#[derive(Clone, Copy, Debug)]
enum Owner<'a> {
    /// The caller opens it for writing: it is not deleted, and does not become read-only.
    Opening(&'a WritableSubvolume),
    /// That of an inode. It is looked up for each step, because it may be deleted, or become
    /// read-only or writable, between two of them.
    Shared(FileId),
}

impl Owner<'_> {
    fn id(&self) -> TreeId {
        match self {
            Self::Opening(subvolume) => subvolume.id,
            Self::Shared(id) => TreeId(id.subvolume),
        }
    }
}

impl Filesystem {
    /// Deletes an orphan, unless it is pinned, or leaves it to the cleaner thread (law 3). A thread
    /// that is to wait for no device leaves all to it.
    pub(crate) fn evict_orphan(&self, entry: &Arc<InodeEntry>, by: EvictBy) -> Result<()> {
        if !is_large_orphan(entry) && by == EvictBy::Caller {
            return self.evict_orphan_while(entry, &|| true);
        }
        let write_state = self.write_state()?;
        let Some(evicting) = write_state.cleaner.begin_eviction(entry, by) else { return Ok(()) };
        let deleted = self.evict_orphan_while(entry, &|| true);
        drop(evicting);
        deleted
    }

    /// Deletes an orphan, unless it is pinned, as long as `goes_on` returns true, which is called
    /// between two steps.
    pub(crate) fn evict_orphan_while(
        &self,
        entry: &InodeEntry,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        self.delete_orphan(self.write_state()?, Owner::Shared(entry.id), entry, goes_on)
    }

    /// Deletes the orphans of a read-only subvolume, which no operation that writes opens: those
    /// that a snapshot has from its source, and those that the last use of the volume left.
    pub(crate) fn delete_orphans_of_read_only(&self, write_state: &WriteState, id: u64) {
        self.delete_orphans_of_read_only_while(write_state, id, &|| true);
    }

    /// As [`Self::delete_orphans_of_read_only`], as long as `goes_on` returns true, which is called
    /// between two steps. What is left then is deleted after the next open.
    pub(crate) fn delete_orphans_of_read_only_while(
        &self,
        write_state: &WriteState,
        id: u64,
        goes_on: &dyn Fn() -> bool,
    ) {
        let found = self.subvolume_tree(id).map(|tree| names::orphans(&tree, Ino(0), 1));
        if matches!(found, Ok(Ok(found)) if found.is_empty()) {
            return;
        }
        let owner = Owner::Shared(FileId::root_of(id));
        if let Some(left) = self.delete_orphans(write_state, owner, goes_on) {
            write_state.record_left_orphans(left);
        }
    }

    /// Runs one step of a deletion in the subvolume of the orphan.
    fn in_owner<R>(
        &self,
        write_state: &WriteState,
        owner: Owner<'_>,
        step: impl FnOnce(&WritableSubvolume) -> Result<R>,
    ) -> Result<R> {
        match owner {
            Owner::Opening(subvolume) => step(subvolume),
            Owner::Shared(id) => {
                let merges = write_state.merges.share_after_waiting();
                if write_state.sent.has(id.subvolume) {
                    return Err(Error::Busy);
                }
                // Before any inode lock: if nothing has been written to the subvolume yet, this
                // deletes its orphans and locks each of them.
                let subvolume = self.subvolume_of_orphan(write_state, id)?;
                let done = step(&subvolume);
                drop(merges);
                done
            }
        }
    }

    /// Returns the subvolume of an orphan that is to be deleted, which may be read-only. The caller
    /// holds `merges` shared.
    fn subvolume_of_orphan(
        &self,
        write_state: &WriteState,
        id: FileId,
    ) -> Result<Arc<WritableSubvolume>> {
        match self.writable_subvolume(write_state, id) {
            Err(Error::ReadOnly { .. }) => write_state.closed_subvolume(id, || {
                WritableSubvolume::new(TreeId(id.subvolume), self.tree_of(id)?)
            }),
            found => found,
        }
    }

    /// Frees space of a file's data, in one step. Returns where the file ends now, or `None` if
    /// nothing is left.
    fn drop_data(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        ino: Ino,
        (inode, state): (&Inode, &mut InodeState),
        below: u64,
    ) -> Result<Option<u64>> {
        if inode.kind != FileKind::File {
            return Ok(None);
        }
        if state.file.is_none() && inode.size == 0 && inode.bytes_used == 0 {
            return Ok(None);
        }
        let mut file = state.file.take().unwrap_or_else(|| {
            Box::new(FileState::new(&self.shared.source, &subvolume.tree, ino, inode))
        });
        file.discard();
        let before = file.bytes_used();
        if file.size() == 0 && before == 0 {
            return Ok(None);
        }
        let end = file.drop_last_items(below)?;
        write_state.signal.freed(before.saturating_sub(file.bytes_used()));
        state.file = Some(file);
        Ok(end)
    }

    /// Deletes all orphans of a subvolume as long as `goes_on` returns true. Skips an inode that
    /// cannot be deleted, which is left for the next open; returns what was left. Where the
    /// subvolume is being sent, this ends: at the end of the stream, its orphans are looked for
    /// again, so none is left.
    fn delete_orphans(
        &self,
        write_state: &WriteState,
        owner: Owner<'_>,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<LeftOrphans> {
        let mut left: Option<LeftOrphans> = None;
        let (id, mut from) = (owner.id(), Some(Ino(0)));
        while let Some(start) = from.take() {
            let found = self.in_owner(write_state, owner, |subvolume| {
                Ok(names::orphans(&subvolume.tree, start, ORPHANS_PER_BATCH)?)
            });
            let found = match found {
                Ok(found) => found,
                // The subvolume is being sent, or was deleted, and its blocks will be freed.
                Err(Error::Busy | Error::Stale { .. }) => break,
                Err(error) => {
                    LeftOrphans::add(&mut left, id, None, error);
                    break;
                }
            };
            for ino in &found {
                // An orphan can be open by its id: then its last pin deletes it.
                let entry = write_state.table.entry(FileId::new(id.0, ino.0));
                match self.delete_orphan(write_state, owner, &entry, goes_on) {
                    Ok(()) | Err(Error::Stale { .. }) => continue,
                    // The root of a subvolume is busy for another reason: a crafted orphan item.
                    Err(Error::Busy) if ino.0 != ROOT_DIRECTORY => return left,
                    Err(error) => LeftOrphans::add(&mut left, id, Some(*ino), error),
                }
                if self.forest().write_error().is_some() || !goes_on() {
                    return left;
                }
            }
            from = found.last().and_then(|last| last.0.checked_add(1)).map(Ino);
        }
        left
    }

    /// Deletes the orphans that the last use of the volume left in a subvolume that is opened for
    /// writing. Returns what could not be deleted.
    pub(crate) fn delete_orphans_at_open(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
    ) -> Option<LeftOrphans> {
        self.delete_orphans(write_state, Owner::Opening(subvolume), &|| true)
    }

    /// Deletes an orphan, unless it is pinned, as long as `goes_on` returns true.
    fn delete_orphan(
        &self,
        write_state: &WriteState,
        owner: Owner<'_>,
        entry: &InodeEntry,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut below = Some(u64::MAX);
        while let Some(end) = below.filter(|_| goes_on()) {
            // Each step ends below the one before.
            below = self.in_owner(write_state, owner, |subvolume| {
                self.delete_orphan_step(write_state, subvolume, entry, end)
            })?;
        }
        Ok(())
    }

    /// Deletes the last items of an orphan or, if they are few, the whole orphan. Returns where its
    /// data ends now, or `None` if nothing is left to do.
    fn delete_orphan_step(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        below: u64,
    ) -> Result<Option<u64>> {
        let mut state = entry.lock();
        if entry.is_being_sealed() || entry.is_pinned() && !has_name(subvolume, entry)? {
            return Ok(None);
        }
        let left = self.delete_locked_orphan(write_state, subvolume, (entry, &mut state), below);
        if left.is_err() {
            // An inode that was given a name meanwhile stays as it is in memory.
            entry.set_unread_if_deleted();
        }
        left
    }

    fn delete_locked_orphan(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        (entry, state): (&InodeEntry, &mut InodeState),
        below: u64,
    ) -> Result<Option<u64>> {
        let ino = Ino(entry.id.ino);
        // Another thread may have deleted it between two steps. Then there is no item.
        let inode = names::inode(&subvolume.tree, ino)?;
        let deleted = inode.as_ref().filter(|inode| inode.nlink == 0);
        if let Some(inode) = deleted {
            require_deletable(subvolume, ino, inode)?;
            // No other thread uses it from here on, also between two steps.
            entry.set_deleted();
            entry.clear_view();
            let data = (inode, &mut *state);
            let end = self.drop_data(write_state, subvolume, ino, data, below)?;
            if end.is_some() {
                return Ok(end);
            }
        }
        if self.drop_verity_items(write_state, subvolume, ino, inode.as_ref())? {
            // The data is gone.
            return Ok(Some(0));
        }
        self.change(write_state, subvolume, Need::items(ITEMS_OF_DELETION).deleting(), |change| {
            if let Some(inode) = deleted {
                change.delete_inode(ino, inode.kind)?;
            }
            change.step(names::remove_orphan(&change.edit, ino)).map(drop)
        })?;
        if deleted.is_some() {
            write_state.forget(entry, state);
        }
        Ok(None)
    }
}

/// Whether the inode of an orphan item has a name: only the item, and what it guards, is removed.
fn has_name(subvolume: &WritableSubvolume, entry: &InodeEntry) -> Result<bool> {
    let inode = names::inode(&subvolume.tree, Ino(entry.id.ino))?;
    Ok(inode.is_some_and(|inode| inode.nlink > 0))
}

/// Whether an orphan has so much data that its deletion may take long.
pub(crate) fn is_large_orphan(entry: &InodeEntry) -> bool {
    let bytes = |inode: Inode| inode.size.max(inode.bytes_used);
    let is_large = |inode: Inode| inode.kind == FileKind::File && bytes(inode) > DELETE_BYTES_MAX;
    entry.cached().is_some_and(is_large)
}

/// Refuses the root of a subvolume, and a directory that has entries but no name.
fn require_deletable(subvolume: &WritableSubvolume, ino: Ino, inode: &Inode) -> Result<()> {
    if inode.kind != FileKind::Directory {
        return Ok(());
    }
    if ino.0 == ROOT_DIRECTORY {
        return Err(Error::Busy);
    }
    require_no_entries(subvolume, ino)
}

/// Refuses a directory whose deletion would leave entry items without an inode. That includes
/// entries that only their hash finds, which only a damaged or crafted volume has.
pub(crate) fn require_no_entries(subvolume: &WritableSubvolume, dir: Ino) -> Result<()> {
    let first = subvolume.tree.first_from(&Key::new(dir.0, ItemType::DIR_ITEM, 0));
    match first.map_err(names::NamesError::from)? {
        Some((key, _)) if key.objectid == dir.0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::SnapshotAccess;
    use crate::{
        EnospcInjector, FileId, Filesystem, MountOptions, NewInode, QgroupLimits, RenameFlags,
    };
    use butternut_device::{Device, MemoryDevice};
    use butternut_format::quota::QgroupId;
    use butternut_format::units::Ino;
    use butternut_mkfs::MkfsOptions;
    use butternut_names as names;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::thread;

    /// More extents than several steps of a deletion drop.
    const EXTENTS: u64 = 2000;

    fn filesystem() -> Filesystem {
        filesystem_with(MountOptions::default().commit_seconds(0))
    }

    /// With a commit interval, there is a cleaner thread.
    fn filesystem_with(options: MountOptions) -> Filesystem {
        let options = options.read_only(false);
        Filesystem::open_devices(vec![device()], &options).unwrap()
    }

    fn device() -> Arc<dyn Device> {
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        Arc::new(device)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            thread::yield_now();
        }
    }

    /// Limits a subvolume to what it uses.
    fn limit_to_usage(fs: &Filesystem, sub: u64) {
        let quotas = fs.quotas().unwrap().unwrap();
        let used = quotas.groups.iter().find(|group| group.id.0 == sub).unwrap().usage.referenced;
        let limits = QgroupLimits { referenced: Some(used), exclusive: None };
        fs.limit_qgroup(QgroupId(sub), limits).unwrap();
    }

    /// Removes two large files while deletions are stopped: the first thread waits for its
    /// deletion, and the second file is queued.
    fn remove_two(
        fs: &Filesystem,
        dir: FileId,
        two: [&'static [u8]; 2],
    ) -> [thread::JoinHandle<()>; 2] {
        two.map(|name| {
            let remover = fs.clone();
            let removing = thread::spawn(move || remover.unlink(dir, name).unwrap());
            wait_until(|| fs.lookup(dir, name).is_err());
            wait_until(|| name == two[0] || removing.is_finished());
            removing
        })
    }

    /// Writes a new file in another thread.
    fn write_new(fs: &Filesystem) -> thread::JoinHandle<crate::Result<usize>> {
        let writer = fs.clone();
        thread::spawn(move || {
            let id = writer.create(writer.root(), b"new", &NewInode::new(0o644)).unwrap();
            writer.open_file(id).unwrap().write_at(0, &vec![1; 8 << 20])
        })
    }

    /// A deletion of a subvolume excludes operations that write while it waits for the deletions of
    /// orphans that have begun. So it waits for one step of them.
    #[test]
    fn the_deletion_of_a_large_orphan_lets_the_deletion_of_a_subvolume_go_first() {
        let fs = filesystem();
        let (root, new) = (fs.root(), NewInode::new(0o755));
        fs.create_subvolume(root, b"other", &new).unwrap();
        let sub = FileId::root_of(fs.create_subvolume(root, b"sub", &new).unwrap());
        let id = fs.create(sub, b"file", &new).unwrap();
        let file = fs.open_file(id).unwrap();
        for number in 0..EXTENTS {
            file.write_at(number * 8192, &[1; 4096]).unwrap();
        }
        fs.sync().unwrap();
        fs.unlink(sub, b"file").unwrap();
        let write_state = fs.write_state().unwrap();
        let tree = fs.subvolume_tree(sub.subvolume).unwrap();
        let (entry, parent) = (write_state.table.entry(id), write_state.table.entry(root));
        let size = || names::inode(&tree, Ino(id.ino)).unwrap().map(|inode| inode.size);
        let whole = size();
        let stops_deletion = parent.lock();
        let stops_eviction = entry.lock_nested();

        let evicting = thread::spawn(move || drop(file));
        wait_until(|| write_state.merges.is_shared());
        let deleter = fs.clone();
        let deleting = thread::spawn(move || deleter.delete_subvolume(root, b"other"));
        wait_until(|| write_state.merges.is_awaited());
        drop(stops_eviction);
        wait_until(|| size() != whole);
        let stops_eviction = entry.lock_nested();
        assert!(size().is_some(), "the deletion of the subvolume waits for that of the orphan");
        drop(stops_deletion);
        deleting.join().unwrap().unwrap();
        let creator = fs.clone();
        let create = move || creator.create(root, b"new", &NewInode::new(0o644));
        thread::spawn(create).join().unwrap().unwrap();
        assert!(size().is_some());
        drop(stops_eviction);
        evicting.join().unwrap();
        assert_eq!(size(), None);
        fs.close().unwrap();
    }

    /// The threads that unlink and close may be those of a server, which serve other callers too.
    #[test]
    fn of_many_large_orphans_one_caller_waits_for_its_deletion() {
        let fs = filesystem_with(MountOptions::default().commit_seconds(3600));
        let root = fs.root();
        let mut open = Vec::new();
        for name in [&b"a"[..], b"b", b"c", b"d"] {
            let id = fs.create(root, name, &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            file.write_at(0, &vec![1; 1 << 20]).unwrap();
            if name < &b"c"[..] {
                fs.unlink(root, name).unwrap();
                open.push(file);
            }
        }
        fs.sync().unwrap();
        let write_state = fs.write_state().unwrap();
        let stops_eviction = write_state.merges.exclude();
        let mut removing: Vec<_> =
            open.into_iter().map(|file| thread::spawn(move || drop(file))).collect();
        for name in [&b"c"[..], b"d"] {
            let remover = fs.clone();
            removing.push(thread::spawn(move || remover.unlink(root, name).unwrap()));
        }
        wait_until(|| removing.iter().filter(|it| it.is_finished()).count() == 3);
        let has_orphans = || {
            let tree = fs.subvolume_tree(root.subvolume).unwrap();
            !names::orphans(&tree, Ino(0), 1).unwrap().is_empty()
        };
        assert!(has_orphans() && removing.iter().any(|it| !it.is_finished()));
        drop(stops_eviction);
        for thread in removing {
            thread.join().unwrap();
        }
        write_state.cleaner.wait_until_evicted(&BTreeSet::clone);
        assert!(!has_orphans());
        fs.close().unwrap();
    }

    /// The space of a file that the cleaner has yet to delete is found before a write fails.
    #[test]
    fn a_write_to_a_full_volume_waits_for_the_orphans_that_are_queued() {
        let fs = filesystem_with(MountOptions::default().commit_seconds(3600));
        let root = fs.root();
        let fill = |name: &[u8]| {
            let id = fs.create(root, name, &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            let mut at = 0;
            while file.write_at(at, &vec![1; 1 << 20]).is_ok() {
                at += 1 << 20;
            }
            fs.sync().unwrap();
            at
        };
        let small = fs.create(root, b"small", &NewInode::new(0o644)).unwrap();
        fs.open_file(small).unwrap().write_at(0, &vec![1; 1 << 20]).unwrap();
        let filled = fill(b"large");
        assert!(filled > 16 << 20);
        let write_state = fs.write_state().unwrap();
        let stops_eviction = write_state.merges.exclude();
        let removers = remove_two(&fs, root, [b"small", b"large"]);
        let writing = write_new(&fs);
        wait_until(|| writing.is_finished() || write_state.cleaner.is_awaited());
        drop(stops_eviction);
        writing.join().unwrap().unwrap();
        for thread in removers {
            thread.join().unwrap();
        }
        fs.close().unwrap();
    }

    /// Otherwise a snapshot, and all writes that wait for it, would wait for the deletion.
    #[test]
    fn a_large_file_is_deleted_after_the_operation_that_removes_its_last_name() {
        for is_rename in [false, true] {
            let fs = filesystem();
            let root = fs.root();
            for name in [&b"file"[..], b"other"] {
                let id = fs.create(root, name, &NewInode::new(0o644)).unwrap();
                fs.open_file(id).unwrap().write_at(0, &vec![1; 1 << 20]).unwrap();
            }
            fs.sync().unwrap();
            let write_state = fs.write_state().unwrap();
            let stops_eviction = write_state.merges.exclude();
            let remover = fs.clone();
            let removing = thread::spawn(move || {
                if is_rename {
                    let flags = RenameFlags::default();
                    remover.rename((root, b"other"), (root, b"file"), flags).unwrap();
                } else {
                    remover.unlink(root, b"other").unwrap();
                }
            });
            wait_until(|| fs.lookup(root, b"other").is_err());
            let excluder = fs.clone();
            let excluding = thread::spawn(move || {
                drop(excluder.write_state().unwrap().snapshots.exclude_writes());
            });
            excluding.join().unwrap();
            assert!(!removing.is_finished());
            drop(stops_eviction);
            removing.join().unwrap();
            fs.close().unwrap();
        }
    }

    #[test]
    fn a_failed_eviction_keeps_a_file_that_was_given_a_name_meanwhile() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let injector = EnospcInjector::default();
        let options = MountOptions::default()
            .read_only(false)
            .commit_seconds(0)
            .enospc_injector(Some(injector.clone()));
        let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
        let root = fs.root();
        let file = fs.open_unnamed(root, &NewInode::new(0o600)).unwrap();
        let id = file.id();
        file.write_at(0, &[7; 8192]).unwrap();
        let write_state = fs.write_state().unwrap();
        let entry = write_state.table.entry(id);
        // The last handle is dropped, and its eviction waits at its first step.
        let stops_eviction = write_state.merges.exclude();
        let evicting = thread::spawn(move || drop(file));
        wait_until(|| !entry.is_pinned());
        // Meanwhile the inode gets its first name, in another thread: `merges` comes after
        // `snapshots`.
        let linker = fs.clone();
        thread::spawn(move || linker.link(id, root, b"kept")).join().unwrap().unwrap();
        injector.fail_from(1);
        drop(stops_eviction);
        evicting.join().unwrap();
        injector.fail_none();
        fs.sync().unwrap();
        assert_eq!(fs.stat(id).unwrap().size, 8192);
        let mut bytes = vec![0; 8192];
        assert_eq!(fs.open_file(id).unwrap().read_at(0, &mut bytes).unwrap(), 8192);
        assert_eq!(bytes, vec![7; 8192]);
    }

    /// Makes a subvolume with two files of 1 MiB, `a` and `b`, and commits.
    fn subvolume_with_two_files(fs: &Filesystem) -> u64 {
        let sub = fs.create_subvolume(fs.root(), b"sub", &NewInode::new(0o755)).unwrap();
        for name in [&b"a"[..], b"b"] {
            let id = fs.create(FileId::root_of(sub), name, &NewInode::new(0o644)).unwrap();
            fs.open_file(id).unwrap().write_at(0, &vec![1; 1 << 20]).unwrap();
        }
        fs.sync().unwrap();
        sub
    }

    /// Creates a file in `sub`, which is at its limit, while both files are removed from `other`
    /// and cannot be deleted until the creation has ended or waits for that.
    fn create_beside_removals(fs: &Filesystem, sub: u64, other: u64) {
        let write_state = fs.write_state().unwrap();
        let stops_eviction = write_state.merges.exclude();
        let removers = remove_two(fs, FileId::root_of(other), [b"a", b"b"]);
        let (creator, dir) = (fs.clone(), FileId::root_of(sub));
        let creating = thread::spawn(move || creator.create(dir, b"c", &NewInode::new(0o644)));
        wait_until(|| creating.is_finished() || write_state.cleaner.is_awaited());
        drop(stops_eviction);
        creating.join().unwrap().unwrap();
        for thread in removers {
            thread.join().unwrap();
        }
    }

    /// The call that removes the second file returns before the cleaner has deleted it.
    #[test]
    fn a_create_at_a_limit_waits_for_the_orphans_that_are_queued() {
        let fs = filesystem_with(MountOptions::default().commit_seconds(3600));
        assert!(fs.enable_quotas().unwrap());
        let sub = subvolume_with_two_files(&fs);
        limit_to_usage(&fs, sub);
        create_beside_removals(&fs, sub, sub);
        fs.close().unwrap();
    }

    /// As FUSE does it: close(2) has returned, and a worker serves RELEASE, which drops the last
    /// pin of an unlinked file and deletes it. The caller deletes its own orphan, so nothing is
    /// queued.
    #[test]
    fn a_write_to_a_full_volume_waits_for_the_orphan_that_a_caller_deletes() {
        let fs = filesystem_with(MountOptions::default().commit_seconds(3600));
        let root = fs.root();
        let id = fs.create(root, b"large", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        let mut at = 0;
        while file.write_at(at, &vec![1; 1 << 20]).is_ok() {
            at += 1 << 20;
        }
        fs.unlink(root, b"large").unwrap();
        fs.sync().unwrap();
        let write_state = fs.write_state().unwrap();
        let stops_eviction = write_state.merges.exclude();
        let forgetting = thread::spawn(move || drop(file));
        // Until it waits at its first step. A slow machine only proves less.
        thread::sleep(std::time::Duration::from_millis(200));
        let writing = write_new(&fs);
        wait_until(|| writing.is_finished() || write_state.cleaner.is_awaited());
        drop(stops_eviction);
        writing.join().unwrap().unwrap();
        forgetting.join().unwrap();
        fs.close().unwrap();
    }

    /// Orphans of another subvolume make no room below the limit: a refusal does not wait for them.
    #[test]
    fn a_create_at_a_limit_does_not_wait_for_orphans_that_the_limit_does_not_count() {
        let fs = filesystem_with(MountOptions::default().commit_seconds(3600));
        assert!(fs.enable_quotas().unwrap());
        let root = fs.root();
        let sub = fs.create_subvolume(root, b"sub", &NewInode::new(0o755)).unwrap();
        for name in [&b"a"[..], b"b"] {
            let id = fs.create(root, name, &NewInode::new(0o644)).unwrap();
            fs.open_file(id).unwrap().write_at(0, &vec![1; 1 << 20]).unwrap();
        }
        let dir = FileId::root_of(sub);
        fs.create(dir, b"first", &NewInode::new(0o644)).unwrap();
        fs.sync().unwrap();
        limit_to_usage(&fs, sub);
        let write_state = fs.write_state().unwrap();
        let stops_eviction = write_state.merges.exclude();
        let removers = remove_two(&fs, root, [b"a", b"b"]);
        let creator = fs.clone();
        let creating = thread::spawn(move || creator.create(dir, b"c", &NewInode::new(0o644)));
        wait_until(|| creating.is_finished() || write_state.cleaner.is_awaited());
        let is_kept_waiting = !creating.is_finished();
        drop(stops_eviction);
        creating.join().unwrap().unwrap_err();
        for thread in removers {
            thread.join().unwrap();
        }
        assert!(!is_kept_waiting);
        fs.close().unwrap();
    }

    /// As for FORGET, of which a server gets any number and answers none.
    #[test]
    fn a_pin_that_is_dropped_in_the_background_waits_for_no_deletion() {
        use crate::server::FilesystemExt;
        for is_with_cleaner in [false, true] {
            let seconds = if is_with_cleaner { 3600 } else { 0 };
            let fs = filesystem_with(MountOptions::default().commit_seconds(seconds));
            let root = fs.root();
            let id = fs.mkdir(root, b"dir", &NewInode::new(0o755)).unwrap();
            let pin = FilesystemExt::pin(&fs, id).unwrap().unwrap();
            fs.rmdir(root, b"dir").unwrap();
            let tree = fs.subvolume_tree(root.subvolume).unwrap();
            let has_orphans = || !names::orphans(&tree, Ino(0), 1).unwrap().is_empty();
            assert!(has_orphans());
            let write_state = fs.write_state().unwrap();
            let stops_eviction = write_state.merges.exclude();
            if is_with_cleaner {
                thread::spawn(move || pin.unpin_in_background()).join().unwrap();
                assert!(has_orphans());
                drop(stops_eviction);
                write_state.cleaner.wait_until_evicted(&BTreeSet::clone);
            } else {
                drop(stops_eviction);
                pin.unpin_in_background();
            }
            assert!(!has_orphans());
            fs.close().unwrap();
        }
    }

    /// As after `rm -r` and an immediate unmount. The cleaner has not deleted all by then.
    #[test]
    fn removed_directories_are_deleted_before_the_volume_is_closed() {
        use crate::server::FilesystemExt;
        const DIRS: u64 = 1000;
        let device = device();
        let options = MountOptions::default().commit_seconds(3600).read_only(false);
        let fs = Filesystem::open_devices(vec![Arc::clone(&device)], &options).unwrap();
        let root = fs.root();
        let pins: Vec<_> = (0..DIRS)
            .map(|number| {
                let name = number.to_string();
                let id = fs.mkdir(root, name.as_bytes(), &NewInode::new(0o755)).unwrap();
                let pin = FilesystemExt::pin(&fs, id).unwrap().unwrap();
                fs.rmdir(root, name.as_bytes()).unwrap();
                pin
            })
            .collect();
        pins.into_iter().for_each(crate::server::Pin::unpin_in_background);
        fs.close().unwrap();
        let fs = Filesystem::open_devices(vec![device], &MountOptions::default()).unwrap();
        let tree = fs.subvolume_tree(root.subvolume).unwrap();
        assert_eq!(names::orphans(&tree, Ino(0), 1).unwrap(), []);
    }

    /// What a snapshot holds counts for its source: a deletion in the snapshot makes room there.
    #[test]
    fn a_create_at_a_limit_of_simple_quotas_waits_for_orphans_of_other_subvolumes() {
        let fs = filesystem_with(MountOptions::default().commit_seconds(3600));
        assert!(fs.enable_simple_quotas().unwrap());
        let sub = subvolume_with_two_files(&fs);
        let snap = fs.snapshot(sub, fs.root(), b"snap", SnapshotAccess::ReadWrite).unwrap();
        for name in [&b"a"[..], b"b"] {
            fs.unlink(FileId::root_of(sub), name).unwrap();
        }
        fs.write_state().unwrap().cleaner.wait_until_evicted(&BTreeSet::clone);
        fs.sync().unwrap();
        limit_to_usage(&fs, sub);
        create_beside_removals(&fs, sub, snap);
        fs.close().unwrap();
    }

    /// `WriteState::left_orphans` has at most one record for each subvolume.
    #[test]
    fn orphans_that_streams_leave_again_and_again_are_recorded_once() {
        let injector = EnospcInjector::default();
        let options = MountOptions::default().commit_seconds(0);
        let fs = filesystem_with(options.enospc_injector(Some(injector.clone())));
        let root = fs.root();
        let sub = fs.create_subvolume(root, b"sub", &NewInode::new(0o755)).unwrap();
        let id = fs.create(FileId::root_of(sub), b"file", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        fs.unlink(FileId::root_of(sub), b"file").unwrap();
        // As a crash during the snapshot leaves it: with its orphan.
        let write_state = fs.write_state().unwrap();
        write_state.sent.add(&[sub + 1]);
        let snap = fs.snapshot(sub, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
        assert_eq!(snap, sub + 1);
        write_state.sent.remove(&[snap]);
        for _ in 0..3 {
            // As a stream that ends: its drop requests the orphans, and the cleaner looks for them.
            injector.fail_from(1);
            fs.delete_orphans_of_read_only(write_state, snap);
            injector.fail_none();
        }
        assert_eq!(write_state.left_orphans().len(), 1);
        drop(file);
        fs.close().unwrap();
    }
}
