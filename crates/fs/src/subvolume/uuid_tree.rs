//! The changes of the UUID tree that belong to a change of a subvolume.
//!
//! The tree is an index that the kernel rebuilds. So a damaged or full item of it is no reason to
//! refuse a change, or to make the volume read-only: the tree is marked as outdated instead.

use crate::Result;
use butternut_format::key::ItemType;
use butternut_format::units::TreeId;
use butternut_format::uuid::{Uuid, subvolume_ids};
use butternut_names as names;
use butternut_tree::{AtCommit, Forest, TreeError};
use std::collections::HashMap;
use std::sync::Arc;

/// What happens to the UUID tree with a change of a subvolume. It is decided before the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UuidTree {
    /// The volume has none: the kernel makes it.
    None,
    Changed,
    /// An item of it cannot be changed.
    Outdated,
}

impl UuidTree {
    /// Decides for a change of the items of `uuids`.
    pub(crate) fn of(forest: &Arc<Forest>, uuids: &[(ItemType, Uuid)]) -> Self {
        let tree = match forest.tree(TreeId::UUID) {
            Ok(None) => return Self::None,
            Ok(Some(tree)) => tree,
            Err(_) => return Self::Outdated,
        };
        let mut counts = HashMap::new();
        for uuid in uuids {
            *counts.entry(*uuid).or_insert(0_usize) += 1;
        }
        let limit = names::Limits::of(forest.volume().super_block()).item_bytes_max;
        let is_sound =
            |(item_type, uuid): &(ItemType, Uuid)| -> std::result::Result<bool, TreeError> {
                let item = tree.find(&uuid.key(*item_type))?;
                let ids =
                    item.map_or(Ok(0), |item| subvolume_ids(item.data()).map(Iterator::count));
                let added = counts.get(&(*item_type, *uuid)).copied().unwrap_or(1);
                Ok(ids.is_ok_and(|ids| ids.saturating_add(added).saturating_mul(8) <= limit))
            };
        let are_sound = uuids.iter().all(|uuid| is_sound(uuid).unwrap_or(false));
        if are_sound { Self::Changed } else { Self::Outdated }
    }

    /// Lists a subvolume under `uuids`.
    pub(crate) fn add(
        self,
        at_commit: &AtCommit<'_>,
        uuids: &[(ItemType, Uuid)],
        id: TreeId,
    ) -> Result<()> {
        self.change(at_commit, uuids, |tree, uuid| names::add_subvolume_uuid(tree, uuid, id))
    }

    /// Removes a subvolume from the lists under `uuids`.
    pub(crate) fn remove(
        self,
        at_commit: &AtCommit<'_>,
        uuids: &[(ItemType, Uuid)],
        id: TreeId,
    ) -> Result<()> {
        self.change(at_commit, uuids, |tree, uuid| names::remove_subvolume_uuid(tree, uuid, id))
    }

    fn change(
        self,
        at_commit: &AtCommit<'_>,
        uuids: &[(ItemType, Uuid)],
        change: impl Fn(
            &butternut_tree::TreeEdit<'_>,
            (ItemType, Uuid),
        ) -> std::result::Result<(), names::NamesError>,
    ) -> Result<()> {
        match self {
            Self::None => {}
            Self::Outdated => at_commit.outdate_uuid_tree(),
            Self::Changed => {
                let tree = at_commit.tree(TreeId::UUID)?;
                for uuid in uuids {
                    change(&tree, *uuid)?;
                }
            }
        }
        Ok(())
    }
}
