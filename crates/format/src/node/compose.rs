//! Creates and modifies tree blocks of the running transaction.
//!
//! A [`TreeBlock`] from [`TreeBlock::check`] is proof that the block was checked. A block that was
//! created or modified here relies on the code that edits it to keep the laws; it is sealed and
//! checked again before it is written.

use super::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, CSUM_BYTES, HEADER_BYTES, HEADER_FLAG_WRITTEN,
    RawHeader, RawItem, RawKeyPtr, TreeBlock,
};
use crate::checksum::ChecksumKind;
use crate::units::{Generation, Logical, TreeId, index};
use std::ops::{Deref, DerefMut};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros};

/// The header of a new block.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock {
    pub logical: Logical,
    pub generation: Generation,
    pub owner: TreeId,
    pub level: u8,
    /// The volume's metadata id.
    pub fsid: [u8; 16],
    pub chunk_tree_uuid: [u8; 16],
}

impl<B: Deref<Target = [u8]> + DerefMut> TreeBlock<B> {
    /// Makes an empty block in `bytes`, whose length must be the node size of the volume.
    pub fn compose(mut bytes: B, new: &NewBlock) -> Self {
        bytes.fill(0);
        if let Ok((header, _)) = RawHeader::mut_from_prefix(&mut bytes) {
            *header = RawHeader::new_zeroed();
            header.level = new.level;
            header.chunk_tree_uuid = new.chunk_tree_uuid;
        }
        let mut block = Self { bytes };
        block.readdress(new);
        block
    }

    /// Gives a copy of a block its own address and generation: sets all fields of the header except
    /// level, slots and the id of the chunk tree.
    pub fn readdress(&mut self, new: &NewBlock) {
        if let Ok((header, _)) = RawHeader::mut_from_prefix(&mut self.bytes) {
            header.bytenr = U64::new(new.logical.0);
            header.generation = U64::new(new.generation.0);
            header.owner = U64::new(new.owner.0);
            header.fsid = new.fsid;
            let revision = BACKREF_REVISION_MIXED << BACKREF_REVISION_SHIFT;
            header.flags = U64::new(HEADER_FLAG_WRITTEN | revision);
        }
    }

    /// Returns the bytes for editing. The caller must keep the laws of the block.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Clears unused bytes, so that no stale data reaches a device, and sets the checksum.
    pub fn seal(&mut self, csum: ChecksumKind) {
        let unused = self.unused();
        if let Some(unused) = self.bytes.get_mut(unused) {
            unused.fill(0);
        }
        let checksum = csum.compute(self.bytes.get(CSUM_BYTES..).unwrap_or_default());
        if let Ok((header, _)) = RawHeader::mut_from_prefix(&mut self.bytes) {
            header.csum = checksum;
        }
    }

    /// Returns the number of bytes that neither slots nor items use.
    pub fn bytes_free(&self) -> usize {
        self.unused().len()
    }

    /// Returns the range between the slots and the data of the items, or behind the slots of a
    /// node.
    fn unused(&self) -> std::ops::Range<usize> {
        let end = self.bytes.len();
        if self.level() > 0 {
            return HEADER_BYTES.saturating_add(self.len().saturating_mul(size_of::<RawKeyPtr>()))
                ..end;
        }
        let slots = HEADER_BYTES.saturating_add(self.len().saturating_mul(size_of::<RawItem>()));
        let last = self.len().checked_sub(1).and_then(|last| {
            let (_, slots) = RawHeader::ref_from_prefix(&self.bytes).ok()?;
            let (items, _) = <[RawItem]>::ref_from_prefix_with_elems(slots, self.len()).ok()?;
            items.get(last)
        });
        let data = last.map_or(end, |item| HEADER_BYTES.saturating_add(index(item.offset.get())));
        slots..data
    }
}
