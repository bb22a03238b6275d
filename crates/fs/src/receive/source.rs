//! [`Source`]: a subvolume that a stream refers to, the parent of a snapshot or a source of clones.
//!
//! A source stays read-only, and is not deleted, until it is dropped, so no other thread changes
//! what the stream reads of it (law 1 of `send/in_progress.rs`).

use crate::send::in_progress::StreamInProgress;
use crate::{Error, Filesystem, Result, SubvolumeInfo};
use butternut_format::key::ItemType;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_format::uuid::{Uuid, subvolume_ids};

/// A subvolume that does not change until this is dropped.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) id: u64,
    pub(super) uuid: [u8; 16],
    _in_progress: Option<StreamInProgress<'a>>,
}

impl Filesystem {
    /// Finds the subvolume as [`Self::find_source`] does, and keeps it as it is.
    ///
    /// # Errors
    /// As [`Self::find_source`]; [`Error::Stream`] also if another thread changes or deletes the
    /// subvolume meanwhile.
    pub(super) fn keep_source(
        &self,
        field: &'static str,
        uuid: Uuid,
        ctransid: u64,
    ) -> Result<Source<'_>> {
        let SubvolumeInfo { id, uuid: own, .. } = self.find_source(field, uuid, ctransid)?;
        // One that was writable for a moment has lost the UUID of its source.
        let is_same = || self.subvolume(id).is_ok_and(|info| has_uuid(&info, uuid));
        match self.begin_stream(vec![id]) {
            Ok(in_progress) if is_same() => Ok(Source { id, uuid: own, _in_progress: in_progress }),
            Ok(_) | Err(Error::NotPermitted { .. } | Error::NoSubvolume { .. }) => {
                let have = "a subvolume that another thread changes";
                Err(Error::Stream(Refused::new(field, have, wanted(uuid))))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the read-only subvolume that was received from `uuid` or has this UUID itself.
    ///
    /// One that was sent in transaction `ctransid` is preferred, but not required: a stream of a
    /// subvolume that was itself received has the first source's UUID, and the transaction of the
    /// second.
    ///
    /// # Errors
    /// [`Error::Stream`] if the volume has none.
    fn find_source(&self, field: &'static str, uuid: Uuid, ctransid: u64) -> Result<SubvolumeInfo> {
        let mut found = self.listed(uuid);
        if found.is_empty() {
            // The UUID tree is an index, which may be missing or outdated.
            found = self.subvolumes()?;
            found.retain(|info| has_uuid(info, uuid));
        }
        let is_any = !found.is_empty();
        found.retain(|info| info.read_only);
        // False is less than true.
        found.sort_by_key(|info| {
            let is_received = info.received_uuid == uuid.0;
            let transid = if is_received { info.sent_generation } else { info.changed_generation };
            (transid != ctransid, !is_received, info.id)
        });
        let have = if is_any { "a subvolume that is writable" } else { "no such subvolume" };
        found
            .into_iter()
            .next()
            .ok_or_else(|| Error::Stream(Refused::new(field, have, wanted(uuid))))
    }

    /// Returns the subvolumes that the UUID tree lists for a UUID, as far as they have it.
    fn listed(&self, uuid: Uuid) -> Vec<SubvolumeInfo> {
        let Ok(Some(tree)) = self.forest().tree(TreeId::UUID) else { return Vec::new() };
        let mut found = Vec::new();
        for item_type in [ItemType::UUID_RECEIVED_SUBVOL, ItemType::UUID_SUBVOL] {
            let Ok(Some(item)) = tree.find(&uuid.key(item_type)) else { continue };
            let Ok(ids) = subvolume_ids(item.data()) else { continue };
            found.extend(ids.filter_map(|id| self.subvolume(id.0).ok()));
        }
        found.retain(|info| has_uuid(info, uuid));
        found
    }
}

fn wanted(uuid: Uuid) -> String {
    format!("a read-only subvolume with the UUID or received UUID {uuid}")
}

fn has_uuid(info: &SubvolumeInfo, uuid: Uuid) -> bool {
    !info.deleted && !uuid.is_nil() && (info.received_uuid == uuid.0 || info.uuid == uuid.0)
}
