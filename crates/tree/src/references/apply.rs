//! Applies delayed references to the extent tree: heads by rising address, their items in batches.
//!
//! Laws:
//!
//! 1. It runs while no handle is open, so that no other thread changes references.
//! 2. Its changes copy blocks of the extent tree, which adds heads. It repeats until no head is
//!    left. That ends, because a block is copied once in a transaction.
//! 3. An extent without references is freed: its item and its checksums are removed, and its range
//!    is pinned until the commit is complete. A count of 0 together with a reference, inline or
//!    keyed, is refused: no keyed item is left over free space.
//! 4. The item of a new extent overlaps no other. Where the free space tree of a damaged volume
//!    names space in use, the commit is refused.
//! 5. A reference is inline or keyed, never both. As in the kernel, a new reference is inline only
//!    if the extent has no keyed reference of any kind and its item has space.
//! 6. While simple quotas are on, the item of new data has an owner reference, and the bytes of
//!    items that are added and removed are recorded by owner (`owned`).

use super::item::{ExtentItem, inline_bytes_max, read_extent};
use super::keyed::has_any;
use super::owned::OwnedBytes;
use super::{Content, Head, corrupt};
use crate::cow::change::Change;
use crate::cursor::Cursor;
use crate::error::TreeError;
use crate::quota::simple::owner_in_header;
use crate::transaction::TreeEdit;
use crate::transaction::commit::context::Commit;
use butternut_format::extent::Extent;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Generation, Logical, TreeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The number of items that are changed in one batch.
const BATCH_ITEMS: usize = 512;

/// One pass over the heads.
struct Pass {
    items: Cursor,
    /// Changes of the current batch.
    changes: Vec<Change>,
    /// Data that was freed and still has checksums. Neighbours are joined.
    freed: Vec<Range<u64>>,
    /// The first generation that simple quotas count; `None` while they are off.
    owned_since: Option<Generation>,
    owned: OwnedBytes,
}

impl Commit<'_> {
    /// Applies all heads (law 2).
    pub(crate) fn apply_references(&self) -> Result<(), TreeError> {
        loop {
            let heads = self.running.references().take();
            if heads.is_empty() {
                return Ok(());
            }
            self.apply_heads(&heads)?;
        }
    }

    /// Applies heads that were taken. The checksums of their data are in the tree.
    pub(crate) fn apply_heads(&self, heads: &BTreeMap<Logical, Head>) -> Result<(), TreeError> {
        let tree = self.edit(TreeId::EXTENT)?;
        let mut pass = Pass {
            items: tree.tree().cursor(),
            changes: Vec::new(),
            freed: Vec::new(),
            owned_since: self.running.references().owned().since(),
            owned: OwnedBytes::default(),
        };
        pass.changes.reserve(BATCH_ITEMS.min(heads.len()));
        for (at, head) in heads {
            self.apply_head(*at, head, &mut pass)?;
            if pass.changes.len() >= BATCH_ITEMS {
                self.merge_batch(&tree, &mut pass, Logical(at.0.saturating_add(1)))?;
            }
        }
        self.merge_batch(&tree, &mut pass, Logical(u64::MAX))?;
        self.running.references().owned().record(&pass.owned);
        if !pass.freed.is_empty() {
            self.edit(TreeId::CHECKSUM)?.remove_checksums(&pass.freed)?;
        }
        Ok(())
    }

    /// Writes the changes of the heads below `to` into the tree. Readers see them all at once. An
    /// error makes the volume read-only and ends the pass.
    fn merge_batch(
        &self,
        tree: &TreeEdit<'_>,
        pass: &mut Pass,
        to: Logical,
    ) -> Result<(), TreeError> {
        self.running.references().begin_batch();
        tree.merge(&pass.changes)?;
        self.running.references().end_batch(to);
        pass.changes.clear();
        Ok(())
    }

    fn apply_head(&self, at: Logical, head: &Head, pass: &mut Pass) -> Result<(), TreeError> {
        let (key, mut item) = if head.is_created {
            self.check_unused(at, head.bytes, &mut pass.items)?;
            let is_skinny = self.running.params.is_skinny;
            let item = ExtentItem::new(head.content, self.generation, is_skinny);
            (self.new_key(at, head), item)
        } else {
            self.find_item(at, head, &mut pass.items)?
        };
        self.change_refs(at, &key, &mut item, head, pass)?;
        if head.is_full_backref {
            item.set_full_backref();
        }
        let range = at.0..at.0.saturating_add(head.bytes);
        if item.refs == 0 {
            let is_unreferenced =
                item.has_no_inline() && (head.is_created || !has_any(&mut pass.items, &key)?);
            let have = "0, and further references";
            require(is_unreferenced, "refs", have, "0 and none").map_err(|e| corrupt(at, e))?;
            pass.changes.push(Change { key, to: None });
            if head.content == Content::Data {
                match pass.freed.last_mut() {
                    Some(before) if before.end == range.start => before.end = range.end,
                    _ => pass.freed.push(range.clone()),
                }
            }
            if !head.is_created
                && pass.counts(&item)
                && let Some(owner) = self.owner_of_removed(at, head, &item)?
            {
                pass.owned.remove(owner, head.bytes);
            }
            self.running.account_removed(range, self.generation);
            return Ok(());
        }
        if head.is_created {
            if let Some(owner) = head.owner.filter(|_| pass.counts(&item)) {
                pass.owned.add(owner, head.bytes);
                item.owner = (head.content == Content::Data).then_some(owner);
            }
            self.running.account_inserted(range);
        }
        pass.changes.push(Change { key, to: Some(item.encode()) });
        Ok(())
    }

    /// Applies the changes of a head to the inline and keyed references of its extent (law 5).
    fn change_refs(
        &self,
        at: Logical,
        key: &Key,
        item: &mut ExtentItem,
        head: &Head,
        pass: &mut Pass,
    ) -> Result<(), TreeError> {
        let refused = |refused| corrupt(at, refused);
        let bytes_max = inline_bytes_max(self.running.params.node_len());
        let mut has_keyed = head.is_created.then_some(false);
        for (reference, delta) in head.deltas.iter() {
            if item.change_inline(reference, delta).map_err(refused)? {
                continue;
            }
            if delta > 0 && item.has_space(reference, bytes_max) {
                let is_keyed = match has_keyed {
                    Some(known) => known,
                    None => has_any(&mut pass.items, key)?,
                };
                has_keyed = Some(is_keyed);
                if !is_keyed {
                    item.insert_inline(reference, delta).map_err(refused)?;
                    continue;
                }
            }
            self.change_keyed(at, reference, delta)?;
            has_keyed = None;
        }
        let sum = head.sum();
        item.refs = item.refs.checked_add_signed(sum).ok_or_else(|| {
            let want = format_args!("a count that {sum} can be added to").to_string();
            corrupt(at, Refused::new("refs", item.refs, want))
        })?;
        Ok(())
    }

    /// Checks that the extent tree has no extent in a range (law 4).
    fn check_unused(&self, at: Logical, bytes: u64, items: &mut Cursor) -> Result<(), TreeError> {
        let last = at.0.saturating_add(bytes).saturating_sub(1);
        let mut before = last;
        // The group of the range, and then the references of an extent, may precede it.
        for _ in 0..3 {
            items.seek_last(&Key::new(before, ItemType::METADATA_ITEM, u64::MAX))?;
            let Some(key) = items.key().filter(|key| !is_extent(key)) else { break };
            before = key.objectid;
        }
        let Some(key) = items.key().filter(is_extent) else { return Ok(()) };
        let is_data = key.item_type == ItemType::EXTENT_ITEM;
        let bytes = if is_data { key.offset } else { self.running.params.node_bytes.into() };
        let end = key.objectid.saturating_add(bytes);
        let want = format_args!("none before {}, for a new extent", last.saturating_add(1));
        require(end <= at.0, "extent item", key, want).map_err(|refused| corrupt(at, refused))
    }

    /// Returns the owner of an extent whose item is removed; `None` for data without one.
    fn owner_of_removed(
        &self,
        at: Logical,
        head: &Head,
        item: &ExtentItem,
    ) -> Result<Option<TreeId>, TreeError> {
        let Content::Block { level, .. } = head.content else { return Ok(item.owner) };
        if head.owner.is_some() {
            return Ok(head.owner);
        }
        // What dropped its last reference has not read it. Its space is pinned.
        owner_in_header(self.running.blocks(), at, item.generation, level).map(Some)
    }

    fn new_key(&self, at: Logical, head: &Head) -> Key {
        match head.content {
            Content::Block { level, .. } if self.running.params.is_skinny => {
                Key::new(at.0, ItemType::METADATA_ITEM, u64::from(level))
            }
            Content::Block { .. } | Content::Data => {
                Key::new(at.0, ItemType::EXTENT_ITEM, head.bytes)
            }
        }
    }

    /// Reads the item of an extent. The cursor comes from the extent before.
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
                return Ok((key, read_extent(self.volume(), key, data, parse)?));
            }
        }
        Err(corrupt(at, Refused::new("extent item", "none", "one for the extent")))
    }
}

impl Pass {
    /// Whether simple quotas count an extent (law 2 of [`super::owned`]).
    fn counts(&self, item: &ExtentItem) -> bool {
        self.owned_since.is_some_and(|since| item.generation >= since)
    }
}

fn is_extent(key: &Key) -> bool {
    matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
}
