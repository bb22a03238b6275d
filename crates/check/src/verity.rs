//! Checks the items of fs-verity of one inode.
//!
//! 1. A sealed file has the item of its descriptor, all bytes of the descriptor and the signature,
//!    and all bytes of the tree of hashes that the descriptor requires, without a gap. The
//!    descriptor is valid, and its size is that of the file.
//! 2. A file that is not sealed may have some of these items while it has an orphan item: they are
//!    left of a call that was interrupted, and the next open for writing removes them.
//!
//! The hashes are not compared here: this crate reads no files.

use crate::finding::Kind;
use crate::sink::Sink;
use butternut_format::key::{ItemType, Key};
use butternut_format::verity::{RawVerityDescriptor, RawVerityDescriptorItem, VerityDescriptor};

/// Offset of the size of the signature in a descriptor.
const SIGNATURE_SIZE: std::ops::Range<usize> = 4..8;

/// The sum of the items of fs-verity of an inode.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerityItems {
    /// The size that the item of the descriptor has.
    descriptor_bytes: Option<u64>,
    /// The descriptor, with the size of its signature; `None` in it if it is invalid.
    header: Option<(Option<VerityDescriptor>, u64)>,
    descriptor: Bytes,
    tree: Bytes,
}

/// The bytes of the items of one type.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    range: Option<(u64, u64)>,
    has_gap: bool,
}

impl Bytes {
    fn add(&mut self, start: u64, end: u64) {
        let range = self.range.get_or_insert((start, start));
        self.has_gap |= range.1 != start;
        range.1 = range.1.max(end);
    }

    fn merge(&mut self, next: Self) {
        if let Some((start, end)) = next.range {
            self.add(start, end);
            self.has_gap |= next.has_gap;
        }
    }

    fn is(&self, start: u64, end: u64) -> bool {
        let range = self.range.unwrap_or((start, start));
        !self.has_gap && range == (start, end)
    }
}

impl VerityItems {
    /// Adds the next item of the inode.
    pub(crate) fn add(&mut self, key: Key, data: &[u8]) {
        let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = key.offset.saturating_add(bytes);
        if key.item_type == ItemType::VERITY_MERKLE_ITEM {
            self.tree.add(key.offset, end);
        } else if key.offset == 0 {
            let bytes = RawVerityDescriptorItem::check(data).ok();
            self.descriptor_bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        } else {
            self.descriptor.add(key.offset, end);
            if key.offset == 1 {
                self.header = Some(header(data));
            }
        }
    }

    pub(crate) fn merge(&mut self, next: &Self) {
        self.descriptor_bytes = self.descriptor_bytes.or(next.descriptor_bytes);
        self.header = self.header.or(next.header);
        self.descriptor.merge(next.descriptor);
        self.tree.merge(next.tree);
    }

    /// Checks the items of a sealed file of `size` bytes (law 1).
    pub(crate) fn check(&self, size: u64, place: std::fmt::Arguments<'_>, sink: &Sink<'_>) {
        let bad = |field: &str, have: String, want: String| {
            sink.add(Kind::VerityItems, place, field, have, want);
        };
        let Some((descriptor, bytes)) = self.header else {
            bad("descriptor of fs-verity", "none".into(), "one, for the file is sealed".into());
            return;
        };
        let Some(descriptor) = descriptor else {
            bad("descriptor of fs-verity", "an invalid one".into(), "a valid one".into());
            return;
        };
        if self.descriptor_bytes != Some(bytes) || !self.descriptor.is(1, bytes.saturating_add(1)) {
            bad("items of the descriptor", "others".into(), format!("{bytes} bytes"));
        }
        if descriptor.data_bytes != size {
            let want = format!("{size}, as the file");
            bad("data_size of fs-verity", descriptor.data_bytes.to_string(), want);
            return;
        }
        let tree_bytes = descriptor.parameters.shape(size).map_or(0, |shape| shape.bytes());
        if !self.tree.is(0, tree_bytes) {
            let have = match self.tree {
                Bytes { has_gap: true, .. } => "a gap".to_owned(),
                Bytes { range, .. } => format!("{} bytes", range.map_or(0, |(_, end)| end)),
            };
            bad("tree of hashes", have, format!("{tree_bytes} bytes"));
        }
    }
}

/// Reads the descriptor of its first item. Returns its size with the signature, too.
fn header(data: &[u8]) -> (Option<VerityDescriptor>, u64) {
    let whole = size_of::<RawVerityDescriptor>();
    let Some(bytes) = data.get(..whole) else { return (None, 0) };
    let mut bytes = bytes.to_vec();
    let mut signature = [0; 4];
    if let Some(place) = bytes.get_mut(SIGNATURE_SIZE) {
        signature.copy_from_slice(place);
        place.fill(0);
    }
    let size = u64::from(u32::from_le_bytes(signature));
    let whole = u64::try_from(whole).unwrap_or_default();
    (VerityDescriptor::check(&bytes).ok(), whole.saturating_add(size))
}
