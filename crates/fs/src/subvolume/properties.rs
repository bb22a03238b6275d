//! Properties of subvolumes that can be set: which one is the default, and which are read-only.

use crate::{Error, Filesystem, Result};
use butternut_format::feature;
use butternut_format::key::ItemType;
use butternut_format::root::RootFlags;
use butternut_format::units::TreeId;
use butternut_format::uuid::Uuid;
use butternut_names as names;

impl Filesystem {
    /// Sets the subvolume that a mount without options shows. It is durable when this returns.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`], [`Error::ReadOnly`].
    pub fn set_default_subvolume(&self, id: u64) -> Result<()> {
        let writing = self.begin()?;
        self.subvolume_tree(id)?;
        self.forest().commit_with(|at_commit| -> Result<()> {
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
        self.write_back_all(write_state)?;
        let root = self.forest().root_item(TreeId(id))?;
        let received = root.and_then(|(_, root)| root.history()).map(|root| root.received_uuid);
        let received = received.map_or(Uuid::NIL, Uuid);
        let has_uuids = self.forest().tree(TreeId::UUID)?.is_some();
        self.forest().commit_with(|at_commit| -> Result<()> {
            at_commit.update_root(TreeId(id), |raw| {
                let flags = raw.flags.get() & !RootFlags::READ_ONLY.0;
                let set = if read_only { RootFlags::READ_ONLY.0 } else { 0 };
                raw.flags.set(flags | set);
                if !read_only {
                    raw.forget_received();
                }
            })?;
            if !read_only && has_uuids && !received.is_nil() {
                let key = (ItemType::UUID_RECEIVED_SUBVOL, received);
                names::remove_subvolume_uuid(&at_commit.tree(TreeId::UUID)?, key, TreeId(id))?;
            }
            Ok(())
        })?;
        write_state.close_subvolume(id);
        drop(excluded);
        Ok(())
    }
}
