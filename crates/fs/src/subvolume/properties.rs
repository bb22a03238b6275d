//! Properties of subvolumes that can be set: which one is the default, and which are read-only.

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
    /// [`Error::NoSubvolume`], [`Error::ReadOnly`]; [`Error::InvalidArgument`] for the top level;
    /// data that cannot be written back.
    pub fn set_subvolume_read_only(&self, id: u64, read_only: bool) -> Result<()> {
        let write_state = self.may_begin()?;
        self.subvolume_tree(id)?;
        if id == crate::TOP_LEVEL {
            return Err(Error::InvalidArgument { what: "the top level cannot be read-only" });
        }
        let excluded = write_state.snapshots.exclude_writes();
        self.subvolume_tree(id)?;
        self.write_back_subvolume(write_state, id)?;
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
        write_state.set_closed(id, read_only);
        drop(excluded);
        Ok(())
    }
}
