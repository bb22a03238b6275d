//! The end of receiving a subvolume: it becomes read-only and gets the UUID of its source.

use crate::subvolume::uuid_tree::UuidTree;
use crate::{Filesystem, Result};
use butternut_file::ErrorCursor;
use butternut_format::inode::Time;
use butternut_format::key::ItemType;
use butternut_format::root::RootFlags;
use butternut_format::units::TreeId;
use butternut_format::uuid::Uuid;
use butternut_tree::ReservationLevel;

impl Filesystem {
    /// Makes subvolume `id` read-only and notes that it was received from the subvolume `uuid` as
    /// it was after transaction `ctransid`, in one commit.
    ///
    /// `parent_uuid` replaces the UUID of its origin.
    ///
    /// # Errors
    /// Data that was lost since the subvolume was made, also if the command that wrote it has
    /// succeeded.
    pub(super) fn set_received(
        &self,
        id: u64,
        uuid: Uuid,
        ctransid: u64,
        parent_uuid: Option<Uuid>,
    ) -> Result<()> {
        let write_state = self.may_begin()?;
        let excluded = write_state.snapshots.exclude_writes();
        self.subvolume_tree(id)?;
        // It did not exist before it was received: no data of it may have been lost at any time.
        self.write_back_subvolume(write_state, id, &ErrorCursor::default())?;
        let alone = write_state.merges.exclude();
        // It has no such UUID yet: a new subvolume and a writable snapshot get none.
        let received = [(ItemType::UUID_RECEIVED_SUBVOL, uuid)];
        let uuid_tree = UuidTree::of(self.forest(), &received);
        let now = write_state.clock.now();
        self.forest().commit_with(ReservationLevel::Normal, |at_commit| -> Result<()> {
            let generation = at_commit.generation();
            at_commit.update_root(TreeId(id), |raw| {
                raw.flags.set(raw.flags.get() | RootFlags::READ_ONLY.0);
                raw.received_uuid = uuid.0;
                raw.parent_uuid = parent_uuid.map_or(raw.parent_uuid, |uuid| uuid.0);
                raw.stransid.set(ctransid);
                raw.rtransid.set(generation.0);
                raw.stime = Time::default().into();
                raw.rtime = now.into();
            })?;
            uuid_tree.add(at_commit, &received, TreeId(id))
        })?;
        write_state.close_subvolume(id);
        drop(alone);
        drop(excluded);
        Ok(())
    }

    /// Writes back the data of a subvolume that is being received.
    ///
    /// # Errors
    /// Data that was lost since the subvolume was made.
    pub(super) fn require_written(&self, id: u64) -> Result<()> {
        let write_state = self.may_begin()?;
        let excluded = write_state.snapshots.exclude_writes();
        let written = self.write_back_subvolume(write_state, id, &ErrorCursor::default());
        drop(excluded);
        written.map(drop)
    }
}
