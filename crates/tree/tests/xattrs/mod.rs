//! Extended attributes of the top directory: simple items of any size.

use butternut_format::checksum::name_hash;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_tree::Forest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes the item of an attribute with a value of `bytes` bytes.
pub(crate) fn xattr(number: u64, bytes: u64) -> (Key, Vec<u8>) {
    let name = format!("user.{number}");
    let mut item = vec![0; 17];
    item.extend_from_slice(&7_u64.to_le_bytes());
    item.extend_from_slice(&u16::try_from(bytes).unwrap().to_le_bytes());
    item.extend_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
    item.push(8);
    item.extend_from_slice(name.as_bytes());
    item.extend((0..bytes).map(|at| u8::try_from(at % 251).unwrap()));
    (Key::new(256, ItemType::XATTR_ITEM, name_hash(name.as_bytes())), item)
}

/// Reads all attribute items by a scan of the whole tree.
pub(crate) fn all(forest: &Arc<Forest>) -> BTreeMap<Key, Vec<u8>> {
    let mut cursor = forest.tree(TreeId::FS).unwrap().unwrap().scan();
    cursor.seek(&Key::MIN).unwrap();
    let mut found = BTreeMap::new();
    while let Some((key, data)) = cursor.item_parts() {
        if key.item_type == ItemType::XATTR_ITEM {
            assert!(found.insert(key, data.to_vec()).is_none(), "{key} twice");
        }
        cursor.advance().unwrap();
    }
    found
}
