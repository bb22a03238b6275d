//! Checksums, block groups and free space.

use super::super::formatting::{HexText, flag_names};
use super::super::key::KeyText;
use super::super::render::Style;
use super::raw::padded;
use butternut_format::block_group::RawBlockGroup;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::free_space::{RawFreeSpaceHeader, RawFreeSpaceInfo};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::SECTOR_BYTES;
use std::io::{self, Write};

/// Checksum item in the format from before 2009.
pub(super) const CSUM_ITEM: ItemType = ItemType(120);

/// Checksums per line for 4-byte checksums; lines of longer ones have the same length.
const CHECKSUM_BYTES_PER_LINE: usize = 16;

const TYPES: [(u64, &str); 3] = [
    (BlockGroupFlags::DATA.0, "DATA"),
    (BlockGroupFlags::METADATA.0, "METADATA"),
    (BlockGroupFlags::SYSTEM.0, "SYSTEM"),
];

/// Profiles; the first one set is printed.
const PROFILES: [(BlockGroupFlags, &str); 8] = [
    (BlockGroupFlags::RAID10, "RAID10"),
    (BlockGroupFlags::RAID1, "RAID1"),
    (BlockGroupFlags::RAID1C3, "RAID1C3"),
    (BlockGroupFlags::RAID1C4, "RAID1C4"),
    (BlockGroupFlags::DUP, "DUP"),
    (BlockGroupFlags::RAID0, "RAID0"),
    (BlockGroupFlags::RAID5, "RAID5"),
    (BlockGroupFlags::RAID6, "RAID6"),
];

pub(super) fn checksums(
    key: Key,
    data: &[u8],
    style: Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let count = data.len() / style.csum.bytes();
    let bytes = u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(SECTOR_BYTES);
    let (start, end) = (key.offset, key.offset.saturating_add(bytes));
    writeln!(out, "\t\trange start {start} end {end} length {bytes}")?;
    if !style.csum_items {
        return Ok(());
    }
    if count == 0 {
        return writeln!(out);
    }
    let per_line = (CHECKSUM_BYTES_PER_LINE / style.csum.bytes()).max(1);
    let mut logical = start;
    for line in data.chunks(per_line * style.csum.bytes()) {
        let mut lead = "\t\t";
        for checksum in line.chunks_exact(style.csum.bytes()) {
            write!(out, "{lead}[{logical}] 0x{}", HexText(checksum))?;
            logical = logical.saturating_add(SECTOR_BYTES);
            lead = " ";
        }
        writeln!(out)?;
    }
    Ok(())
}

pub(super) fn block_group(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawBlockGroup = padded(data);
    let flags = group_flags_text(raw.flags.get());
    let (used, objectid) = (raw.used, raw.chunk_objectid);
    writeln!(out, "\t\tblock group used {used} chunk_objectid {objectid} flags {flags}")
}

/// Formats type and profile of a block group: `DATA|single`.
pub(super) fn group_flags_text(flags: u64) -> String {
    let profile = PROFILES
        .iter()
        .find(|(profile, _)| flags & profile.0 != 0)
        .map_or("single", |(_, name)| *name);
    format!("{}|{profile}", flag_names(flags, &TYPES))
}

pub(super) fn free_space_info(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawFreeSpaceInfo = padded(data);
    let (count, flags) = (raw.extent_count, raw.flags);
    writeln!(out, "\t\tfree space info extent count {count} flags {flags}")
}

/// Prints the header of a free space cache (v1).
pub(super) fn cache_header(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawFreeSpaceHeader = padded(data);
    writeln!(out, "\t\tlocation {}", KeyText(Key::from(&raw.location)))?;
    let (generation, entries, bitmaps) = (raw.generation, raw.num_entries, raw.num_bitmaps);
    writeln!(out, "\t\tcache generation {generation} entries {entries} bitmaps {bitmaps}")
}
