//! [`Item`]: a key and its bytes, before they are written to a leaf.

use butternut_format::key::{ItemType, Key};
use zerocopy::{Immutable, IntoBytes};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) data: Vec<u8>,
}

impl Item {
    pub(crate) fn new(objectid: u64, item_type: ItemType, offset: u64) -> Self {
        Self { key: Key::new(objectid, item_type, offset), data: Vec::new() }
    }

    /// Appends a structure to the bytes.
    pub(crate) fn with<T: IntoBytes + Immutable + ?Sized>(mut self, part: &T) -> Self {
        self.data.extend_from_slice(part.as_bytes());
        self
    }
}
