//! Extents and their references, inline and in keyed items.

use super::super::formatting::flag_names;
use super::super::key::{KeyText, ObjectIdText};
use super::raw::{after, padded};
use butternut_format::checksum::data_ref_hash;
use butternut_format::extent::{
    EXTENT_FLAG_DATA, EXTENT_FLAG_FULL_BACKREF, EXTENT_FLAG_TREE_BLOCK, RawExtentDataRef,
    RawExtentItem, RawSharedDataRef, RawTreeBlockInfo,
};
use butternut_format::key::{ItemType, Key};
use std::io::{self, Write};
use zerocopy::little_endian::U64;

/// A reference in the format from before 2009.
pub(super) const EXTENT_REF_V0: ItemType = ItemType(180);

const FLAGS: [(u64, &str); 3] = [
    (EXTENT_FLAG_DATA, "DATA"),
    (EXTENT_FLAG_TREE_BLOCK, "TREE_BLOCK"),
    (EXTENT_FLAG_FULL_BACKREF, "FULL_BACKREF"),
];

pub(super) fn extent(key: Key, data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawExtentItem = padded(data);
    let flags = raw.flags.get();
    let names = flag_names(flags, &FLAGS);
    writeln!(out, "\t\trefs {} gen {} flags {names}", raw.refs, raw.generation)?;
    let mut references = after::<RawExtentItem>(data);
    if key.item_type == ItemType::METADATA_ITEM {
        writeln!(out, "\t\ttree block skinny level {}", key.offset)?;
    } else if flags & EXTENT_FLAG_TREE_BLOCK != 0 {
        let info: RawTreeBlockInfo = padded(references);
        writeln!(out, "\t\ttree block {} level {}", KeyText(Key::from(&info.key)), info.level)?;
        references = after::<RawTreeBlockInfo>(references);
    }
    while let Some(rest) = inline_reference(references, out)? {
        references = rest;
    }
    Ok(())
}

/// Prints the first reference in `bytes`. Returns the bytes after it, or `None` at the end.
fn inline_reference<'a>(bytes: &'a [u8], out: &mut dyn Write) -> io::Result<Option<&'a [u8]>> {
    let Some((&number, body)) = bytes.split_first() else { return Ok(None) };
    let offset = padded::<U64>(body);
    let number = match ItemType(number) {
        ItemType::TREE_BLOCK_REF => {
            let root = tree_text(offset);
            writeln!(out, "\t\t({number} {offset:#x}) tree block backref root {root}")?;
            return Ok(Some(after::<U64>(body)));
        }
        ItemType::SHARED_BLOCK_REF => {
            writeln!(out, "\t\t({number} {offset:#x}) shared block backref parent {offset}")?;
            return Ok(Some(after::<U64>(body)));
        }
        ItemType::EXTENT_DATA_REF => {
            let raw: RawExtentDataRef = padded(body);
            let hash = data_ref_hash(raw.root.get(), raw.objectid.get(), raw.offset.get());
            write!(out, "\t\t({number} {hash:#x}) ")?;
            data_reference(&raw, out)?;
            return Ok(Some(after::<RawExtentDataRef>(body)));
        }
        number => number,
    };
    let raw: RawSharedDataRef = padded(after::<U64>(body));
    match number {
        ItemType::SHARED_DATA_REF => {
            writeln!(
                out,
                "\t\t({} {offset:#x}) shared data backref parent {offset} count {}",
                number.0, raw.count
            )?;
            Ok(Some(after::<RawSharedDataRef>(after::<U64>(body))))
        }
        // btrfs-progs prints this extra `t`.
        ItemType::EXTENT_OWNER_REF => {
            writeln!(out, "\t({} {offset:#x}) textent owner root {offset}", number.0)?;
            Ok(Some(after::<U64>(body)))
        }
        _ => Ok(None),
    }
}

fn data_reference(raw: &RawExtentDataRef, out: &mut dyn Write) -> io::Result<()> {
    let (root, ino, offset) = (tree_text(raw.root), raw.objectid, raw.offset);
    let count = raw.count;
    writeln!(out, "extent data backref root {root} objectid {ino} offset {offset} count {count}")
}

fn tree_text(tree: U64) -> ObjectIdText {
    ObjectIdText { objectid: tree.get(), item_type: ItemType(0) }
}

pub(super) fn keyed(item_type: ItemType, data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    match item_type {
        ItemType::EXTENT_OWNER_REF => {
            writeln!(out, "\t\textent owner root {}", padded::<U64>(data))
        }
        ItemType::TREE_BLOCK_REF => writeln!(out, "\t\ttree block backref"),
        ItemType::SHARED_BLOCK_REF => writeln!(out, "\t\tshared block backref"),
        ItemType::SHARED_DATA_REF => {
            let count = padded::<RawSharedDataRef>(data).count;
            writeln!(out, "\t\tshared data backref count {count}")
        }
        EXTENT_REF_V0 => writeln!(out, "\t\textent ref v0 (deprecated)"),
        _ => {
            write!(out, "\t\t")?;
            data_reference(&padded(data), out)
        }
    }
}
