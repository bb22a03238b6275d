//! Attributes in an ordered map: the conditions for setting them, and the size limits.

use super::*;
use crate::memory::{Memory, colliding};
use butternut_format::dir::DirEntries;

const INO: Ino = Ino(257);

fn set(memory: &Memory, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), NamesError> {
    set_xattr(memory, INO, &Xattr { name, value }, how, Generation(9))
}

/// Names and values, in the order of their items and in them.
fn all(memory: &Memory) -> Vec<(Vec<u8>, Vec<u8>)> {
    memory
        .items()
        .values()
        .flat_map(|item| {
            let entries = DirEntries::new(item).map(Result::unwrap);
            entries.map(|e| (e.name.to_vec(), e.data.to_vec())).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn creation_and_replacement_are_refused_where_they_do_not_apply() {
    let memory = Memory::new(true);
    let refused = set(&memory, b"user.a", b"1", SetXattr::Replace).unwrap_err();
    assert!(matches!(refused, NamesError::NoAttribute));
    set(&memory, b"user.a", b"1", SetXattr::Create).unwrap();
    let refused = set(&memory, b"user.a", b"2", SetXattr::Create).unwrap_err();
    assert!(matches!(refused, NamesError::AttributeExists));
    set(&memory, b"user.a", b"longer", SetXattr::Replace).unwrap();
    set(&memory, b"user.a", b"", SetXattr::Either).unwrap();
    assert_eq!(all(&memory), [(b"user.a".to_vec(), Vec::new())]);
    assert!(remove_xattr(&memory, INO, b"user.a").unwrap());
    assert!(!remove_xattr(&memory, INO, b"user.a").unwrap());
    assert!(memory.items().is_empty());
}

#[test]
fn an_attribute_fills_a_leaf_and_no_more() {
    // As the kernel has it on a volume with nodes of 4 KiB.
    let memory = Memory::new(true);
    assert_eq!(xattr_value_bytes_max(&memory, b"user.aaaaa"), 3930);
    set(&memory, b"user.aaaaa", &[b'x'; 3930], SetXattr::Either).unwrap();
    let refused = set(&memory, b"user.aaaaa", &[b'x'; 3931], SetXattr::Either).unwrap_err();
    assert!(matches!(refused, NamesError::AttributeTooLarge { bytes: 3971, limit: 3970 }));
    let long = [b'n'; 256];
    assert!(matches!(set(&memory, &long, b"", SetXattr::Either), Err(NamesError::NameTooLong)));
    assert!(matches!(set(&memory, b"", b"", SetXattr::Either), Err(NamesError::BadName(_))));
}

#[test]
fn attributes_with_one_hash_share_an_item_until_it_is_full() {
    let memory = Memory::new(true);
    let names = colliding(b"user.", 255, 14);
    for name in &names[..13] {
        set(&memory, name, b"v", SetXattr::Either).unwrap();
    }
    let before = memory.items();
    assert_eq!(before.len(), 1);
    let refused = set(&memory, &names[13], b"v", SetXattr::Either).unwrap_err();
    assert!(matches!(refused, NamesError::AttributeTooLarge { .. }));
    let refused = set(&memory, &names[0], &[b'x'; 300], SetXattr::Either).unwrap_err();
    assert!(matches!(refused, NamesError::AttributeTooLarge { .. }));
    assert_eq!(memory.items(), before);
    // One that is set anew moves to the end.
    set(&memory, &names[0], b"w", SetXattr::Replace).unwrap();
    assert_eq!(all(&memory).last(), Some(&(names[0].clone(), b"w".to_vec())));
    for name in &names[..13] {
        assert!(remove_xattr(&memory, INO, name).unwrap());
    }
    assert!(memory.items().is_empty());
}
