//! References that are items of their own in the extent tree, behind the item of their extent.
//!
//! Laws:
//!
//! 1. A count is changed exactly or refused: it never goes below zero and is never clipped to what
//!    its field holds.
//! 2. Data references whose hashes collide have keys with rising offsets. The references between
//!    two of them may be removed later, so a search goes on past free offsets.
//!
//! Left to others: which references are keyed (`item`).

use super::item::{counted, keyed_bytes};
use super::{Ref, corrupt};
use crate::commit::Step;
use crate::cursor::Cursor;
use crate::error::TreeError;
use butternut_format::extent::{DataRef, check_data_ref, check_shared_data_ref};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};

/// How far above its hash the key of a data reference is searched for. It takes as many references
/// of one extent with colliding hashes to move a key that far.
const COLLISIONS_MAX: u64 = 1 << 20;

/// Whether an extent has keyed references, by the first key behind its item.
pub(crate) fn has_any(items: &mut Cursor, item: &Key) -> Result<bool, TreeError> {
    let Some(behind) = item.successor() else { return Ok(false) };
    items.seek(&behind)?;
    let kinds = ItemType::TREE_BLOCK_REF..=ItemType::SHARED_DATA_REF;
    let next = items.key();
    Ok(next.is_some_and(|next| next.objectid == item.objectid && kinds.contains(&next.item_type)))
}

impl Step<'_> {
    /// Changes a reference that has, or gets, an item of its own (law 1).
    pub(crate) fn change_keyed(
        &self,
        at: Logical,
        reference: Ref,
        delta: i64,
    ) -> Result<(), TreeError> {
        let tree = self.edit(TreeId::EXTENT)?;
        let (key, old) = find(&mut tree.tree().cursor(), at, reference)?;
        let new = counted(reference, old.unwrap_or(0), delta).map_err(|e| corrupt(at, e))?;
        if new > 0 {
            return tree.put(&key, &keyed_bytes(reference, new));
        }
        tree.remove(&key).map(|_| ())
    }
}

/// The key of a reference's own item and its count; where it has none, the key for a new one.
pub(crate) fn find(
    items: &mut Cursor,
    at: Logical,
    reference: Ref,
) -> Result<(Key, Option<u64>), TreeError> {
    let key = reference.key(at);
    items.seek(&key)?;
    let Ref::Data(wanted) = reference else {
        let Some((_, data)) = items.item_parts().filter(|(found, _)| *found == key) else {
            return Ok((key, None));
        };
        let count = match reference {
            Ref::SharedData(_) => check_shared_data_ref(key, data).map_err(|e| corrupt(at, e))?.1,
            Ref::Tree(_) | Ref::Shared(_) | Ref::Data(_) => 1,
        };
        return Ok((key, Some(count.into())));
    };
    find_data(items, key, &wanted)
}

/// Law 2.
fn find_data(
    items: &mut Cursor,
    first: Key,
    wanted: &DataRef,
) -> Result<(Key, Option<u64>), TreeError> {
    let at = Logical(first.objectid);
    let mut free = Some(first);
    while let Some((key, data)) = items.item_parts() {
        let is_one = key.objectid == first.objectid && key.item_type == first.item_type;
        if !is_one || key.offset.saturating_sub(first.offset) > COLLISIONS_MAX {
            break;
        }
        let have = check_data_ref(key, data).map_err(|refused| corrupt(at, refused))?;
        if (DataRef { count: 1, ..have }) == *wanted {
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
