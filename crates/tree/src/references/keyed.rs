//! Keyed references: items of their own in the extent tree, behind the item of their extent.
//!
//! Laws:
//!
//! 1. A count is changed exactly or refused: it never goes below zero, and it is never clipped to
//!    its field.
//! 2. Data references whose hashes collide have keys with rising offsets. References in between may
//!    have been removed later, so a search goes on past free offsets.
//!
//! Left to others: which references are keyed (`item`).

use super::item::{checked_count, keyed_bytes};
use super::{Ref, corrupt};
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::transaction::commit::context::Commit;
use butternut_format::extent::{DataRef, check_data_ref, check_shared_data_ref};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};

/// How far above its hash the key of a data reference is searched. A key lies that far above only
/// if as many references of one extent have colliding hashes.
const COLLISIONS_MAX: u64 = 1 << 20;

/// Whether an extent has keyed references. Only the first key behind its item is read.
pub(crate) fn has_any(items: &mut Cursor, item: &Key) -> Result<bool, TreeError> {
    let Some(behind) = item.successor() else { return Ok(false) };
    items.seek(&behind)?;
    let kinds = ItemType::TREE_BLOCK_REF..=ItemType::SHARED_DATA_REF;
    let next = items.key();
    Ok(next.is_some_and(|next| next.objectid == item.objectid && kinds.contains(&next.item_type)))
}

impl Commit<'_> {
    /// Changes a keyed reference, or adds it (law 1).
    pub(crate) fn change_keyed(
        &self,
        at: Logical,
        reference: Ref,
        delta: i64,
    ) -> Result<(), TreeError> {
        let tree = self.edit(TreeId::EXTENT)?;
        let (key, old) = find(&mut tree.tree().cursor(), at, reference)?;
        let new = checked_count(reference, old.unwrap_or(0), delta).map_err(|e| corrupt(at, e))?;
        if new > 0 {
            return tree.put(&key, &keyed_bytes(reference, new));
        }
        tree.remove(&key).map(|_| ())
    }
}

/// Finds the key and the count of a keyed reference. If there is none, returns the key for a new
/// one.
pub(crate) fn find(
    items: &mut Cursor,
    at: Logical,
    reference: Ref,
) -> Result<(Key, Option<u64>), TreeError> {
    let key = reference.key(at);
    items.seek(&key)?;
    let Ref::Data(target) = reference else {
        let Some((_, data)) = items.item_parts().filter(|(found, _)| *found == key) else {
            return Ok((key, None));
        };
        let count = match reference {
            Ref::SharedData(_) => check_shared_data_ref(key, data).map_err(|e| corrupt(at, e))?.1,
            Ref::Tree(_) | Ref::Shared(_) | Ref::Data(_) => 1,
        };
        return Ok((key, Some(count.into())));
    };
    find_data(items, key, &target)
}

/// Searches a data reference from its hash on (law 2).
fn find_data(
    items: &mut Cursor,
    first: Key,
    target: &DataRef,
) -> Result<(Key, Option<u64>), TreeError> {
    let at = Logical(first.objectid);
    let mut free = Some(first);
    while let Some((key, data)) = items.item_parts() {
        let is_candidate = key.objectid == first.objectid && key.item_type == first.item_type;
        if !is_candidate || key.offset.saturating_sub(first.offset) > COLLISIONS_MAX {
            break;
        }
        let have = check_data_ref(key, data).map_err(|refused| corrupt(at, refused))?;
        if (DataRef { count: 1, ..have }) == *target {
            return Ok((key, Some(have.count.into())));
        }
        if free == Some(key) {
            let offset = key.offset.checked_add(1);
            free = offset.map(|offset| Key { offset, ..key });
        }
        items.advance()?;
    }
    let free = free.ok_or_else(|| {
        corrupt(at, Refused::new("key offset", first.offset, "one with a free offset above it"))
    })?;
    Ok((free, None))
}
