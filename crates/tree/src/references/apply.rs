//! Delayed references into the extent tree: heads by rising address, their items in batches.
//!
//! Laws:
//!
//! 1. It runs while no handle is open: nobody else changes references meanwhile.
//! 2. What it changes makes new heads (the extent tree's own blocks); it goes on until there are
//!    none, which ends, because a block is copied once in a transaction.
//! 3. An extent without references is freed: its item and its checksums go, its range is pinned
//!    until the commit is down.

use super::item::{ExtentItem, inline_bytes_max, keyed_bytes, read_extent};
use super::{Content, Head, Ref};
use crate::commit::Step;
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::live::change::Change;
use butternut_format::extent::{DataRef, Extent, check_data_ref, check_shared_data_ref};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};
use std::ops::Range;

/// Items changed at once.
const BATCH_ITEMS: usize = 512;

/// One pass over the heads.
struct Pass {
    items: Cursor,
    /// What is to become of items, until they are a batch.
    changes: Vec<Change>,
    /// Data that was freed and still has its checksums, neighbours in one.
    freed: Vec<Range<u64>>,
}

impl Step<'_> {
    /// Applies all heads there are (law 2).
    pub(crate) fn apply_references(&self) -> Result<(), TreeError> {
        loop {
            let heads = self.running.references().take();
            if heads.is_empty() {
                return Ok(());
            }
            let tree = self.edit(TreeId::EXTENT)?;
            let mut pass =
                Pass { items: tree.tree().cursor(), changes: Vec::new(), freed: Vec::new() };
            pass.changes.reserve(BATCH_ITEMS.min(heads.len()));
            for (at, head) in heads {
                self.apply_head(at, &head, &mut pass)?;
                if pass.changes.len() >= BATCH_ITEMS {
                    tree.merge(&pass.changes)?;
                    pass.changes.clear();
                }
            }
            tree.merge(&pass.changes)?;
            if !pass.freed.is_empty() {
                self.edit(TreeId::CHECKSUM)?.remove_sums(&pass.freed)?;
            }
        }
    }

    fn apply_head(&self, at: Logical, head: &Head, pass: &mut Pass) -> Result<(), TreeError> {
        let (key, mut item) = if head.is_created {
            let is_skinny = self.running.facts.is_skinny;
            let item = ExtentItem::new(head.content, self.generation, is_skinny);
            (self.new_key(at, head), item)
        } else {
            self.find_item(at, head, &mut pass.items)?
        };
        let bytes_max = inline_bytes_max(self.running.facts.node_len());
        for (reference, delta) in &head.deltas {
            if !item.change(*reference, *delta, bytes_max) {
                self.change_keyed(at, *reference, *delta)?;
            }
        }
        if head.is_full_backref {
            item.set_full_backref();
        }
        let refs = item.refs.checked_add_signed(head.sum()).ok_or_else(|| {
            corrupt(at, Refused::new("refs", item.refs, format_args!("at least {}", -head.sum())))
        })?;
        item.refs = refs;
        let range = at.0..at.0.saturating_add(head.bytes);
        if refs == 0 {
            pass.changes.push(Change { key, to: None });
            if head.content == Content::Data {
                match pass.freed.last_mut() {
                    Some(before) if before.end == range.start => before.end = range.end,
                    _ => pass.freed.push(range.clone()),
                }
            }
            self.running.free_extent(range, self.generation);
            return Ok(());
        }
        if head.is_created {
            self.running.use_extent(range);
        }
        pass.changes.push(Change { key, to: Some(item.encode()) });
        Ok(())
    }

    fn new_key(&self, at: Logical, head: &Head) -> Key {
        match head.content {
            Content::Block { level, .. } if self.running.facts.is_skinny => {
                Key::new(at.0, ItemType::METADATA_ITEM, u64::from(level))
            }
            Content::Block { .. } | Content::Data => {
                Key::new(at.0, ItemType::EXTENT_ITEM, head.bytes)
            }
        }
    }

    /// The item of an extent; the one before it was looked for with the same cursor.
    fn find_item(
        &self,
        at: Logical,
        head: &Head,
        items: &mut Cursor,
    ) -> Result<(Key, ExtentItem), TreeError> {
        let whole = Key::new(at.0, ItemType::EXTENT_ITEM, head.bytes);
        for key in [self.new_key(at, head), whole] {
            items.seek(&key)?;
            if let Some((found, data)) = items.item_parts()
                && found == key
            {
                let parse = |extent: Extent<'_>| ExtentItem::parse(&extent);
                return Ok((key, read_extent(self.forest, key, data, parse)?));
            }
        }
        Err(corrupt(at, Refused::new("extent item", "none", "one for what is referred to")))
    }

    /// Changes a reference that has, or gets, an item of its own.
    fn change_keyed(&self, at: Logical, reference: Ref, delta: i64) -> Result<(), TreeError> {
        let tree = self.edit(TreeId::EXTENT)?;
        let (key, old) = self.find_keyed(at, reference)?;
        let new = old.unwrap_or(0).checked_add_signed(delta).ok_or_else(|| {
            let want = format_args!("at least {}", delta.unsigned_abs()).to_string();
            corrupt(at, Refused::new("reference count", old.unwrap_or(0), want))
        })?;
        if new > 0 {
            return tree.put(&key, &keyed_bytes(reference, new));
        }
        tree.remove(&key).map(|_| ())
    }

    /// The key of a reference's own item, and its count if it is there. References whose hashes
    /// collide have the next free offsets.
    fn find_keyed(&self, at: Logical, reference: Ref) -> Result<(Key, Option<u64>), TreeError> {
        let tree = self.edit(TreeId::EXTENT)?;
        let mut key = reference.key(at);
        loop {
            let Some(found) = tree.tree().find(&key)? else { return Ok((key, None)) };
            let refused = |refused| corrupt(at, refused);
            match reference {
                Ref::Tree(_) | Ref::Shared(_) => return Ok((key, Some(1))),
                Ref::SharedData(_) => {
                    let (_, count) = check_shared_data_ref(key, found.data()).map_err(refused)?;
                    return Ok((key, Some(count.into())));
                }
                Ref::Data(wanted) => {
                    let have = check_data_ref(key, found.data()).map_err(refused)?;
                    if (DataRef { count: 1, ..have }) == wanted {
                        return Ok((key, Some(have.count.into())));
                    }
                    key.offset = key.offset.wrapping_add(1);
                }
            }
        }
    }
}

fn corrupt(at: Logical, refused: Refused) -> TreeError {
    let source = refused.at(format_args!("extent {at}"));
    TreeError::Corrupt { tree: TreeId::EXTENT, source }
}
