//! The end of receiving a subvolume: it becomes read-only and gets the UUID of its source.

use crate::subvolume::uuid_tree::UuidTree;
use crate::{Error, Filesystem, Result};
use butternut_format::inode::Time;
use butternut_format::key::ItemType;
use butternut_format::root::RootFlags;
use butternut_format::units::TreeId;
use butternut_format::uuid::Uuid;
use butternut_tree::ReservationLevel;

impl Filesystem {
    /// Makes subvolume `id` read-only and notes that it was received from the subvolume `uuid` as
    /// it was after transaction `ctransid`, in one commit.
    pub(super) fn set_received(&self, id: u64, uuid: Uuid, ctransid: u64) -> Result<()> {
        let write_state = self.may_begin()?;
        let excluded = write_state.snapshots.exclude_writes();
        self.subvolume_tree(id)?;
        self.write_back_subvolume(write_state, id)?;
        let alone = write_state.merges.write();
        let root = self.forest().root_item(TreeId(id))?;
        let (_, root) = root.ok_or_else(|| Error::NoSubvolume { what: id.to_string() })?;
        let received = |uuid: Uuid| (ItemType::UUID_RECEIVED_SUBVOL, uuid);
        // A snapshot of a received parent has the UUID of the parent's source until now.
        let old = root.history().map(|history| Uuid(history.received_uuid));
        let old = old.filter(|old| !old.is_nil() && *old != uuid);
        let (new, old) = ([received(uuid)], old.map(received));
        let all: Vec<_> = new.iter().chain(old.iter()).copied().collect();
        let uuid_tree = UuidTree::of(self.forest(), &all);
        let now = write_state.clock.now();
        self.forest().commit_with(ReservationLevel::Normal, |at_commit| -> Result<()> {
            let generation = at_commit.generation();
            at_commit.update_root(TreeId(id), |raw| {
                raw.flags.set(raw.flags.get() | RootFlags::READ_ONLY.0);
                raw.received_uuid = uuid.0;
                raw.stransid.set(ctransid);
                raw.rtransid.set(generation.0);
                raw.stime = Time::default().into();
                raw.rtime = now.into();
            })?;
            uuid_tree.remove(at_commit, old.as_slice(), TreeId(id))?;
            uuid_tree.add(at_commit, &new, TreeId(id))
        })?;
        write_state.close_subvolume(id);
        drop(alone);
        drop(excluded);
        Ok(())
    }
}
