//! The UUID tree: which subvolumes have a UUID, or were received from one.
//!
//! ```text
//! (UUID, UUID_SUBVOL or UUID_RECEIVED_SUBVOL)   ids of subvolumes, 8 bytes each
//! ```
//!
//! An id is listed once. An item without ids does not exist.

use crate::error::{NamesError, corrupt};
use crate::items::EditItems;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_format::uuid::{Uuid, subvolume_ids};
use butternut_tree::Alter;

/// Adds a subvolume to the item of a UUID. `item_type` is one of the two types.
///
/// # Errors
/// The item is corrupt or full, and nothing is changed.
pub fn add_subvolume_uuid(
    uuid_tree: &impl EditItems,
    (item_type, uuid): (ItemType, Uuid),
    id: TreeId,
) -> Result<(), NamesError> {
    let limit = uuid_tree.limits().item_bytes_max;
    change(uuid_tree, uuid.key(item_type), &|ids| {
        if ids.contains(&id) {
            return Ok(());
        }
        ids.push(id);
        if ids.len().saturating_mul(8) > limit {
            return Err(Refused::new("item size", "full", "space for another subvolume"));
        }
        Ok(())
    })
}

/// Removes a subvolume from the item of a UUID. Does nothing if the item does not list it.
///
/// # Errors
/// The item is corrupt, and nothing is changed.
pub fn remove_subvolume_uuid(
    uuid_tree: &impl EditItems,
    (item_type, uuid): (ItemType, Uuid),
    id: TreeId,
) -> Result<(), NamesError> {
    change(uuid_tree, uuid.key(item_type), &|ids| {
        ids.retain(|known| *known != id);
        Ok(())
    })
}

fn change(
    uuid_tree: &impl EditItems,
    key: Key,
    edit: &dyn Fn(&mut Vec<TreeId>) -> Result<(), Refused>,
) -> Result<(), NamesError> {
    let mut verdict = Ok(());
    uuid_tree.alter(&key, &mut |item| match changed(item, edit) {
        Ok(None) if item.is_none() => Alter::Keep,
        Ok(None) => Alter::Remove,
        Ok(Some(item)) => Alter::Put(item),
        Err(refused) => {
            verdict = Err(refused);
            Alter::Keep
        }
    })?;
    verdict.map_err(|refused| corrupt(uuid_tree.edited_tree(), key, refused))
}

/// Returns the changed item; `None` if no id is left.
fn changed(
    item: Option<&[u8]>,
    edit: &dyn Fn(&mut Vec<TreeId>) -> Result<(), Refused>,
) -> Result<Option<Vec<u8>>, Refused> {
    let mut ids: Vec<TreeId> = match item {
        Some(item) => subvolume_ids(item)?.collect(),
        None => Vec::new(),
    };
    edit(&mut ids)?;
    let bytes = ids.iter().flat_map(|id| id.0.to_le_bytes()).collect();
    Ok((!ids.is_empty()).then_some(bytes))
}
