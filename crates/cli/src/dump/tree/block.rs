//! Prints a tree block: its header, then each slot.

use super::formatting::{HexText, UuidText, flag_names};
use super::item;
use super::key::{KeyText, ObjectIdText};
use super::render::Style;
use super::slots::{items, slots};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{
    BACKREF_REVISION_SHIFT, HEADER_FLAG_RELOC, HEADER_FLAG_WRITTEN, RawHeader, RawItem, RawKeyPtr,
};
use std::io::{self, Write};
use zerocopy::FromBytes;

const FLAGS: [(u64, &str); 2] = [(HEADER_FLAG_WRITTEN, "WRITTEN"), (HEADER_FLAG_RELOC, "RELOC")];

/// Prints a block.
pub(super) fn print(bytes: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    let Ok((header, room)) = RawHeader::ref_from_prefix(bytes) else { return Ok(()) };
    if header.level == 0 {
        leaf_line(header, bytes, room.len(), out)?;
        header_lines("leaf", header, style, out)?;
        for (slot, (key, raw, data)) in items(bytes).enumerate() {
            let (offset, size) = (raw.offset.get(), raw.size.get());
            writeln!(out, "\titem {slot} {} itemoff {offset} itemsize {size}", KeyText(key))?;
            item::print(key, data, style, out)?;
        }
        return Ok(());
    }
    let slots_free = (room.len() / size_of::<RawKeyPtr>())
        .saturating_sub(usize::try_from(header.nritems.get()).unwrap_or(usize::MAX));
    writeln!(
        out,
        "node {} level {} items {} free space {slots_free} generation {} owner {}",
        header.bytenr,
        header.level,
        header.nritems,
        header.generation,
        owner(header)
    )?;
    header_lines("node", header, style, out)?;
    for child in slots::<RawKeyPtr>(bytes) {
        let key = KeyText(Key::from(&child.key));
        writeln!(out, "\t{key} block {} gen {}", child.blockptr, child.generation)?;
    }
    Ok(())
}

fn leaf_line(header: &RawHeader, bytes: &[u8], room: usize, out: &mut dyn Write) -> io::Result<()> {
    let slots = slots::<RawItem>(bytes);
    let data_start =
        slots.last().map_or(room, |slot| usize::try_from(slot.offset.get()).unwrap_or(usize::MAX));
    let bytes_free = data_start.saturating_sub(size_of_val(slots));
    writeln!(
        out,
        "leaf {} items {} free space {bytes_free} generation {} owner {}",
        header.bytenr,
        header.nritems,
        header.generation,
        owner(header)
    )
}

fn header_lines(
    kind: &str,
    header: &RawHeader,
    style: Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let revision = header.flags.get() >> BACKREF_REVISION_SHIFT;
    let flags = header.flags.get() & ((1 << BACKREF_REVISION_SHIFT) - 1);
    let names = flag_names(flags, &FLAGS);
    write!(out, "{kind} {} flags {flags:#x}({names}) backref revision {revision}", header.bytenr)?;
    if style.csum_headers {
        let stored = header.csum.get(..style.csum.bytes()).unwrap_or_default();
        write!(out, " csum 0x{}", HexText(stored))?;
    }
    writeln!(out)?;
    writeln!(out, "fs uuid {}", UuidText(&header.fsid))?;
    writeln!(out, "chunk uuid {}", UuidText(&header.chunk_tree_uuid))
}

fn owner(header: &RawHeader) -> ObjectIdText {
    ObjectIdText { objectid: header.owner.get(), item_type: ItemType(0) }
}
