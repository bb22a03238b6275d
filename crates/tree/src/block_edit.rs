//! Edits of the bytes of one block: inserting, removing and resizing items, and moving them to a
//! neighbour.
//!
//! ```text
//! leaf   | header | slot 0 | slot 1 | ... free ... | data 1 | data 0 |
//! node   | header | child 0 | child 1 | ... free ...                 |
//! ```
//!
//! Laws:
//!
//! 1. Before and after each call the block keeps the laws of `format::check`, except that a leaf
//!    may be empty for the moment.
//! 2. A call that does not fit changes nothing, and its result says so.
//!
//! Left to others: which block is edited, and its parent (`cow`).

use butternut_format::key::{Key, RawKey};
use butternut_format::node::{Child, HEADER_BYTES, RawHeader, RawItem, RawKeyPtr};
use butternut_format::units::index;
use std::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

/// Bytes of a slot in a leaf, and in a node.
pub(crate) const ITEM_BYTES: usize = size_of::<RawItem>();
pub(crate) const CHILD_BYTES: usize = size_of::<RawKeyPtr>();

/// Edits a leaf.
pub(crate) struct LeafEdit<'a> {
    bytes: &'a mut [u8],
}

impl<'a> LeafEdit<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn len(&self) -> usize {
        count(self.bytes)
    }

    /// Returns the bytes for slots and data together.
    fn capacity_bytes(&self) -> usize {
        self.bytes.len().saturating_sub(HEADER_BYTES)
    }

    /// Returns the bytes that slots and data use.
    pub(crate) fn used(&self) -> usize {
        let data = self.capacity_bytes().saturating_sub(self.data_start());
        data.saturating_add(self.len().saturating_mul(ITEM_BYTES))
    }

    pub(crate) fn free(&self) -> usize {
        self.capacity_bytes().saturating_sub(self.used())
    }

    fn items(&self) -> &[RawItem] {
        let slots = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        <[RawItem]>::ref_from_prefix_with_elems(slots, self.len()).map_or(&[], |(items, _)| items)
    }

    fn items_mut(&mut self) -> &mut [RawItem] {
        let len = self.len();
        let slots = self.bytes.get_mut(HEADER_BYTES..).unwrap_or_default();
        <[RawItem]>::mut_from_prefix_with_elems(slots, len).map_or(&mut [], |(items, _)| items)
    }

    pub(crate) fn size(&self, slot: usize) -> usize {
        self.items().get(slot).map_or(0, |item| index(item.size.get()))
    }

    fn offset(&self, slot: usize) -> usize {
        self.items().get(slot).map_or(0, |item| index(item.offset.get()))
    }

    /// Returns where the data of the last slot begins, relative to the header's end.
    fn data_start(&self) -> usize {
        self.items().last().map_or(self.capacity_bytes(), |item| index(item.offset.get()))
    }

    /// Returns where the data of `slot` ends, relative to the header's end; also for a slot behind
    /// the last.
    fn data_end(&self, slot: usize) -> usize {
        slot.checked_sub(1).map_or(self.capacity_bytes(), |before| self.offset(before))
    }

    pub(crate) fn data_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        let start = self.offset(slot);
        let end = start.checked_add(self.size(slot))?;
        self.bytes.get_mut(HEADER_BYTES..)?.get_mut(start..end)
    }

    /// Moves data to `to`. Positions are relative to the header's end.
    fn move_data(&mut self, from: Range<usize>, to: usize) {
        if let Some(data) = self.bytes.get_mut(HEADER_BYTES..) {
            data.copy_within(from, to);
        }
    }

    fn shift_offsets(&mut self, slots: Range<usize>, shift: impl Fn(usize) -> usize) {
        for item in self.items_mut().get_mut(slots).unwrap_or_default() {
            item.offset = small(shift(index(item.offset.get())));
        }
    }

    /// Inserts an item of `size` bytes and returns its data to be filled; `None` if it does not
    /// fit.
    pub(crate) fn insert(&mut self, slot: usize, key: &Key, size: usize) -> Option<&mut [u8]> {
        let len = self.len();
        if slot > len || size.checked_add(ITEM_BYTES)? > self.free() {
            return None;
        }
        let (start, end) = (self.data_start(), self.data_end(slot));
        self.move_data(start..end, start.checked_sub(size)?);
        self.shift_offsets(slot..len, |offset| offset.saturating_sub(size));
        open_slots::<ITEM_BYTES>(self.bytes, slot, 1);
        let offset = end.checked_sub(size)?;
        let item = RawItem { key: RawKey::from(*key), offset: small(offset), size: small(size) };
        if let Some(place) = self.items_mut().get_mut(slot) {
            *place = item;
        }
        self.data_mut(slot)
    }

    /// Removes items.
    pub(crate) fn remove(&mut self, slots: Range<usize>) {
        let len = self.len();
        if slots.is_empty() || slots.end > len {
            return;
        }
        let (start, low) = (self.data_start(), self.data_end(slots.end));
        let removed = self.data_end(slots.start).saturating_sub(low);
        self.move_data(start..low, start.saturating_add(removed));
        self.shift_offsets(slots.end..len, |offset| offset.saturating_add(removed));
        close_slots::<ITEM_BYTES>(self.bytes, slots);
    }

    /// Makes the data of an item longer or shorter at its end. New bytes are zero. Returns `false`
    /// if it does not fit.
    pub(crate) fn resize(&mut self, slot: usize, size: usize) -> bool {
        let (len, old) = (self.len(), self.size(slot));
        if slot >= len || size.saturating_sub(old) > self.free() {
            return false;
        }
        let (start, offset) = (self.data_start(), self.offset(slot));
        let kept_end = offset.saturating_add(old.min(size));
        let shifted = |at: usize| at.saturating_add(old).saturating_sub(size);
        self.move_data(start..kept_end, shifted(start));
        self.shift_offsets(slot..len, shifted);
        if let Some(item) = self.items_mut().get_mut(slot) {
            item.size = small(size);
        }
        if let Some(new) = self.data_mut(slot).and_then(|data| data.get_mut(old.min(size)..)) {
            new.fill(0);
        }
        true
    }

    /// Moves the items from `slot` on into an empty leaf.
    pub(crate) fn move_tail(&mut self, slot: usize, right: &mut LeafEdit<'_>) {
        let len = self.len();
        let (start, end) = (self.data_start(), self.data_end(slot));
        right.append(self, slot..len, start..end);
        self.remove(slot..len);
    }

    /// Copies all items of `right` behind those of this leaf. Returns `false` if they do not fit.
    pub(crate) fn append_all(&mut self, right: &mut LeafEdit<'_>) -> bool {
        if right.used() > self.free() {
            return false;
        }
        let (len, start, end) = (right.len(), right.data_start(), right.capacity_bytes());
        self.append(right, 0..len, start..end);
        true
    }

    /// Copies items of another leaf, whose data is at `data` there, behind those of this leaf.
    fn append(&mut self, from: &LeafEdit<'_>, slots: Range<usize>, data: Range<usize>) {
        let (old_len, old_start) = (self.len(), self.data_start());
        let bytes = data.len();
        let Some(new_start) = old_start.checked_sub(bytes) else { return };
        let source = from.bytes.get(HEADER_BYTES..).and_then(|source| source.get(data.clone()));
        let target = self.bytes.get_mut(HEADER_BYTES..);
        let target = target.and_then(|target| target.get_mut(new_start..old_start));
        if let (Some(target), Some(source)) = (target, source) {
            target.copy_from_slice(source);
        }
        let count = slots.len();
        open_slots::<ITEM_BYTES>(self.bytes, old_len, count);
        let end = data.end;
        let places = self.items_mut().get_mut(old_len..).unwrap_or_default();
        for (place, item) in places.iter_mut().zip(from.items().get(slots).unwrap_or_default()) {
            *place = *item;
            let below_end = end.saturating_sub(index(item.offset.get()));
            place.offset = small(old_start.saturating_sub(below_end));
        }
    }
}

/// Edits a node.
pub(crate) struct NodeEdit<'a> {
    bytes: &'a mut [u8],
}

impl<'a> NodeEdit<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn len(&self) -> usize {
        count(self.bytes)
    }

    /// Returns how many children the node can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len().saturating_sub(HEADER_BYTES) / CHILD_BYTES
    }

    fn children(&self) -> &[RawKeyPtr] {
        let slots = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        <[RawKeyPtr]>::ref_from_prefix_with_elems(slots, self.len()).map_or(&[], |(all, _)| all)
    }

    fn children_mut(&mut self) -> &mut [RawKeyPtr] {
        let len = self.len();
        let slots = self.bytes.get_mut(HEADER_BYTES..).unwrap_or_default();
        <[RawKeyPtr]>::mut_from_prefix_with_elems(slots, len).map_or(&mut [], |(all, _)| all)
    }

    /// Inserts a child. Returns `false` if the node is full.
    pub(crate) fn insert(&mut self, slot: usize, child: &Child) -> bool {
        if slot > self.len() || self.len() >= self.capacity() {
            return false;
        }
        open_slots::<CHILD_BYTES>(self.bytes, slot, 1);
        self.set(slot, child);
        true
    }

    pub(crate) fn set(&mut self, slot: usize, child: &Child) {
        if let Some(place) = self.children_mut().get_mut(slot) {
            *place = RawKeyPtr {
                key: RawKey::from(child.key),
                blockptr: U64::new(child.logical.0),
                generation: U64::new(child.generation.0),
            };
        }
    }

    pub(crate) fn set_key(&mut self, slot: usize, key: &Key) {
        if let Some(place) = self.children_mut().get_mut(slot) {
            place.key = RawKey::from(*key);
        }
    }

    pub(crate) fn remove(&mut self, slot: usize) {
        if slot < self.len() {
            close_slots::<CHILD_BYTES>(self.bytes, slot..slot.saturating_add(1));
        }
    }

    /// Moves the children from `slot` on into an empty node.
    pub(crate) fn move_tail(&mut self, slot: usize, right: &mut NodeEdit<'_>) {
        let len = self.len();
        right.append(self.children().get(slot..).unwrap_or_default());
        close_slots::<CHILD_BYTES>(self.bytes, slot..len);
    }

    /// Copies all children of `right` behind those of this node. Returns `false` if they do not
    /// fit.
    pub(crate) fn append_all(&mut self, right: &NodeEdit<'_>) -> bool {
        if self.len().saturating_add(right.len()) > self.capacity() {
            return false;
        }
        self.append(right.children());
        true
    }

    fn append(&mut self, children: &[RawKeyPtr]) {
        let len = self.len();
        open_slots::<CHILD_BYTES>(self.bytes, len, children.len());
        let places = self.children_mut().get_mut(len..).unwrap_or_default();
        for (place, child) in places.iter_mut().zip(children) {
            *place = *child;
        }
    }
}

fn count(bytes: &[u8]) -> usize {
    RawHeader::ref_from_prefix(bytes).map_or(0, |(header, _)| index(header.nritems.get()))
}

fn set_count(bytes: &mut [u8], len: usize) {
    if let Ok((header, _)) = RawHeader::mut_from_prefix(bytes) {
        header.nritems = small(len);
    }
}

/// Makes space for `count_new` slots of `BYTES` bytes each before `slot`.
fn open_slots<const BYTES: usize>(bytes: &mut [u8], slot: usize, count_new: usize) {
    let len = count(bytes);
    let at = |slot: usize| HEADER_BYTES.saturating_add(slot.saturating_mul(BYTES));
    bytes.copy_within(at(slot)..at(len), at(slot.saturating_add(count_new)));
    set_count(bytes, len.saturating_add(count_new));
}

fn close_slots<const BYTES: usize>(bytes: &mut [u8], slots: Range<usize>) {
    let len = count(bytes);
    let at = |slot: usize| HEADER_BYTES.saturating_add(slot.saturating_mul(BYTES));
    bytes.copy_within(at(slots.end)..at(len), at(slots.start));
    set_count(bytes, len.saturating_sub(slots.len()));
}

/// Encodes a position or length in a block, which has at most 64 KiB.
fn small(value: usize) -> U32 {
    U32::new(u32::try_from(value).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
