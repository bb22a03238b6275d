//! Checks the items of fs-verity of one inode.
//!
//! 1. A sealed file has the item of its descriptor, all bytes of the descriptor and the signature,
//!    and all bytes of the tree of hashes that the descriptor requires, without a gap.
//! 2. The descriptor is valid, and its size is that of the file.
//! 3. A file that is not sealed may have some of these items while it has an orphan item: they are
//!    left of a call that was interrupted, and the next open for writing removes them.
//!
//! The hashes of a file that passes are compared afterwards (`sealed`).

use crate::finding::Kind;
use crate::sink::Sink;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::verity::{RawVerityDescriptor, RawVerityDescriptorItem, VerityDescriptor};

/// Offset of the size of the signature in a descriptor.
const SIGNATURE_SIZE: std::ops::Range<usize> = 4..8;

/// The sum of the items of fs-verity of an inode.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerityItems {
    /// The size that the item of the descriptor has.
    descriptor_bytes: Option<Result<u64, Refused>>,
    /// The descriptor, and its size with the signature.
    header: Option<(Result<VerityDescriptor, Refused>, u64)>,
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
            let bytes = RawVerityDescriptorItem::check(data);
            self.descriptor_bytes =
                Some(bytes.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX)));
        } else {
            self.descriptor.add(key.offset, end);
            if key.offset == 1 {
                self.header = Some(header(data));
            }
        }
    }

    pub(crate) fn merge(&mut self, next: &Self) {
        if self.descriptor_bytes.is_none() {
            self.descriptor_bytes.clone_from(&next.descriptor_bytes);
        }
        if self.header.is_none() {
            self.header.clone_from(&next.header);
        }
        self.descriptor.merge(next.descriptor);
        self.tree.merge(next.tree);
    }

    /// Checks the items of a sealed file of `size` bytes (laws 1 and 2). Returns whether they are
    /// whole and valid.
    pub(crate) fn check(&self, size: u64, place: std::fmt::Arguments<'_>, sink: &Sink<'_>) -> bool {
        let bad = |field: &str, have: String, want: String| {
            sink.add(Kind::VerityItems, place, field, have, want);
            false
        };
        let refused = |refused: &Refused| {
            let place = format_args!("{place}: fs-verity");
            sink.refused(Kind::VerityDescriptor, place, refused);
            false
        };
        let Some((descriptor, bytes)) = &self.header else {
            return bad("descriptor of fs-verity", "none".into(), "one of a sealed file".into());
        };
        let item_bytes = match &self.descriptor_bytes {
            Some(Err(error)) => return refused(error),
            Some(Ok(bytes)) => Some(*bytes),
            None => None,
        };
        let descriptor = match descriptor {
            Ok(descriptor) => descriptor,
            Err(error) => return refused(error),
        };
        let mut is_whole = true;
        if item_bytes != Some(*bytes) || !self.descriptor.is(1, bytes.saturating_add(1)) {
            let have =
                item_bytes.map_or("none".into(), |bytes| format!("an item of {bytes} bytes"));
            is_whole = bad("items of the descriptor", have, format!("all of {bytes} bytes"));
        }
        if descriptor.data_bytes != size {
            let want = format_args!("{size}, as the file");
            return refused(&Refused::new("data_size", descriptor.data_bytes, want));
        }
        let tree_bytes = match descriptor.parameters.shape(size) {
            Ok(shape) => shape.bytes(),
            Err(error) => return refused(&error),
        };
        if !self.tree.is(0, tree_bytes) {
            let have = match self.tree {
                Bytes { has_gap: true, .. } => "a gap".to_owned(),
                Bytes { range: Some((start @ 1.., _)), .. } => format!("none before {start}"),
                Bytes { range, .. } => format!("{} bytes", range.map_or(0, |(_, end)| end)),
            };
            is_whole = bad("tree of hashes", have, format!("{tree_bytes} bytes"));
        }
        is_whole
    }
}

/// Reads the descriptor of its first item. Returns its size with the signature, too.
pub(crate) fn header(data: &[u8]) -> (Result<VerityDescriptor, Refused>, u64) {
    let whole = size_of::<RawVerityDescriptor>();
    let Some(bytes) = data.get(..whole) else {
        return (Err(Refused::new("bytes", data.len(), "at least 256")), 0);
    };
    let mut bytes = bytes.to_vec();
    let mut signature = [0; 4];
    if let Some(place) = bytes.get_mut(SIGNATURE_SIZE) {
        signature.copy_from_slice(place);
        place.fill(0);
    }
    let size = u64::from(u32::from_le_bytes(signature));
    let whole = u64::try_from(whole).unwrap_or_default();
    (VerityDescriptor::check(&bytes), whole.saturating_add(size))
}
