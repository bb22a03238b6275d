//! Properties of subvolumes that can be set: which one is the default, and which are read-only.
//!
//! A subvolume becomes read-only while operations that write and merges are excluded: no thread
//! that found it writable writes to it afterwards, and none opens it for writing in between. A
//! deletion of orphans is no operation that writes, and is excluded as the merges are.

use crate::subvolume::uuid_tree::UuidTree;
use crate::{Error, Filesystem, Result};
use butternut_format::feature;
use butternut_format::key::ItemType;
use butternut_format::root::RootFlags;
use butternut_format::units::TreeId;
use butternut_format::uuid::Uuid;
use butternut_names as names;
use butternut_tree::ReservationLevel;

impl Filesystem {
    /// Sets the subvolume that a mount without options shows. It is durable when this returns.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`], [`Error::ReadOnly`].
    pub fn set_default_subvolume(&self, id: u64) -> Result<()> {
        let writing = self.begin()?;
        self.subvolume_tree(id)?;
        // An edit that finds no entry would end writing.
        names::default_subvolume(&self.forest().root_tree())?
            .ok_or(Error::Unsupported { what: "a volume without a default entry" })?;
        self.forest().commit_with(ReservationLevel::Normal, |at_commit| -> Result<()> {
            names::set_default_subvolume(&at_commit.tree(TreeId::ROOT)?, TreeId(id))?;
            at_commit.add_feature(feature::DEFAULT_SUBVOL);
            Ok(())
        })?;
        drop(writing);
        Ok(())
    }

    /// Makes a subvolume read-only, or writable again. It is durable when this returns. A subvolume
    /// that was received loses the UUID of its source when it becomes writable: its contents will
    /// differ.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`], [`Error::ReadOnly`]; [`Error::InvalidArgument`] if the top level
    /// is to be read-only;
    /// [`Error::NotPermitted`] if it is to be writable and is being sent, or is the parent or a
    /// clone source of a stream that is being received;
    /// data that is lost during the call because it cannot be written back.
    pub fn set_subvolume_read_only(&self, id: u64, read_only: bool) -> Result<()> {
        let write_state = self.may_begin()?;
        self.subvolume_tree(id)?;
        if read_only && id == crate::TOP_LEVEL {
            return Err(Error::InvalidArgument { what: "the top level cannot be read-only" });
        }
        let begin = self.shared.source.error_position();
        let excluded = write_state.snapshots.exclude_writes();
        self.subvolume_tree(id)?;
        if !read_only {
            write_state.sent.require_none(id)?;
        }
        self.write_back_subvolume(write_state, id, &begin)?;
        let alone = write_state.merges.exclude();
        let root = self.forest().root_item(TreeId(id))?;
        let received = root.and_then(|(_, root)| root.history()).map(|root| root.received_uuid);
        let received = received.map(Uuid).filter(|uuid| !read_only && !uuid.is_nil());
        let uuids: Vec<_> =
            received.into_iter().map(|uuid| (ItemType::UUID_RECEIVED_SUBVOL, uuid)).collect();
        let uuid_tree = UuidTree::of(self.forest(), &uuids);
        self.forest().commit_with(ReservationLevel::Normal, |at_commit| -> Result<()> {
            at_commit.update_root(TreeId(id), |raw| {
                let flags = raw.flags.get() & !RootFlags::READ_ONLY.0;
                let set = if read_only { RootFlags::READ_ONLY.0 } else { 0 };
                raw.flags.set(flags | set);
                if !read_only {
                    raw.forget_received();
                }
            })?;
            if !uuids.is_empty() {
                uuid_tree.remove(at_commit, &uuids, TreeId(id))?;
            }
            Ok(())
        })?;
        if read_only {
            write_state.close_subvolume(id);
        }
        drop(alone);
        drop(excluded);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, FileId, Filesystem, MountOptions, NewInode};
    use butternut_device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;
    use std::sync::Arc;
    use std::thread;

    /// A thread that deletes an orphan is no operation that writes, and may open the subvolume for
    /// writing at any time.
    #[test]
    fn a_subvolume_becomes_read_only_after_the_deletions_of_orphans_that_have_begun() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
        let id = fs.create_subvolume(fs.root(), b"sub", &NewInode::new(0o755)).unwrap();
        let (write_state, sub) = (fs.write_state().unwrap(), FileId::root_of(id));
        let merges = write_state.merges.share();
        let setter = fs.clone();
        let setting = thread::spawn(move || setter.set_subvolume_read_only(id, true));
        let waits = || write_state.merges.is_awaited();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !waits() && !setting.is_finished() {
                    thread::yield_now();
                }
            });
        });
        assert!(!setting.is_finished());
        fs.writable_subvolume(write_state, sub).unwrap();
        drop(merges);
        setting.join().unwrap().unwrap();
        let refused = fs.writable_subvolume(write_state, sub);
        assert!(matches!(refused, Err(Error::ReadOnly { .. })));
    }
}
