//! Prints a superblock in the format of `btrfs inspect-internal dump-super` of btrfs-progs 6.14.
//!
//! The output is identical byte for byte, oddities included, since tools and people read it. An
//! invalid superblock is printed like a valid one. Nothing here reads a device.
//!
//! 1. A value begins at column 24, or one tab behind a longer name.
//! 2. Bits without a name in btrfs-progs are printed as one number at the end, even if Butternut
//!    has a name for them.
//! 3. A truncated system chunk array is reported to `notices`, and the other fields are printed.

use super::tree::item::chunk;
use super::tree::key::KeyText;
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::{RawChunk, RawStripe};
use butternut_format::feature::{self, Feature};
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::node::CSUM_BYTES;
use butternut_format::refused::Hex;
use butternut_format::super_block::{
    FLAG_CHANGING_BG_TREE, FLAG_CHANGING_DATA_CSUM, FLAG_CHANGING_FSID, FLAG_CHANGING_FSID_V2,
    FLAG_CHANGING_META_CSUM, FLAG_METADUMP, FLAG_METADUMP_V2, FLAG_RELOC, FLAG_SEEDING,
    FLAG_WRITTEN, MAGIC, RawRootBackup, RawSuperBlock, SYS_CHUNK_ARRAY_BYTES,
};
use butternut_format::uuid::Uuid;
use std::fmt::Display;
use std::io::{self, Write};
use zerocopy::{FromBytes, IntoBytes};

/// Column at which values begin, and distance between tab stops.
const VALUE_COLUMN: usize = 24;
const TAB_COLUMNS: usize = 8;

/// The names of `flags`, in the order of btrfs-progs.
pub(crate) const SUPER_FLAGS: [(u64, &str); 10] = [
    (FLAG_WRITTEN, "WRITTEN"),
    (FLAG_RELOC, "RELOC"),
    (FLAG_CHANGING_FSID, "CHANGING_FSID"),
    (FLAG_CHANGING_FSID_V2, "CHANGING_FSID_V2"),
    (FLAG_SEEDING, "SEEDING"),
    (FLAG_METADUMP, "METADUMP"),
    (FLAG_METADUMP_V2, "METADUMP_V2"),
    (FLAG_CHANGING_BG_TREE, "CHANGING_BG_TREE"),
    (FLAG_CHANGING_DATA_CSUM, "CHANGING_DATA_CSUM"),
    (FLAG_CHANGING_META_CSUM, "CHANGING_META_CSUM"),
];

/// The features that btrfs-progs 6.14 prints without a name.
const NAMELESS_COMPAT_RO: Feature = feature::VERITY;
const NAMELESS_INCOMPAT: Feature = feature::REMAP_TREE;

/// Prints one superblock. Errors in its system chunk array are reported to `notices`.
pub(crate) fn print(
    raw: &RawSuperBlock,
    is_full: bool,
    notices: &mut dyn FnMut(String),
    out: &mut dyn Write,
) -> io::Result<()> {
    identity(raw, out)?;
    for (name, value) in roots_and_sizes(raw) {
        line(name, value, out)?;
    }
    features(raw, out)?;
    device(raw, out)?;
    if is_full {
        writeln!(out, "sys_chunk_array[{SYS_CHUNK_ARRAY_BYTES}]:")?;
        if let Err(ends) = system_chunks(raw, out)? {
            notices(ends);
        }
        writeln!(out, "backup_roots[{}]:", raw.super_roots.len())?;
        for (at, backup) in raw.super_roots.iter().enumerate() {
            root_backup(raw, at, backup, out)?;
        }
    }
    Ok(())
}

/// Returns names and values of the roots and sizes, in the order of the output.
pub(crate) fn roots_and_sizes(raw: &RawSuperBlock) -> [(&'static str, u64); 18] {
    [
        ("generation", raw.generation.get()),
        ("root", raw.root.get()),
        ("sys_array_size", raw.sys_chunk_array_size.get().into()),
        ("chunk_root_generation", raw.chunk_root_generation.get()),
        ("root_level", raw.root_level.into()),
        ("chunk_root", raw.chunk_root.get()),
        ("chunk_root_level", raw.chunk_root_level.into()),
        ("log_root", raw.log_root.get()),
        ("log_root_transid (deprecated)", raw.unused_log_root_transid.get()),
        ("log_root_level", raw.log_root_level.into()),
        ("total_bytes", raw.total_bytes.get()),
        ("bytes_used", raw.bytes_used.get()),
        ("sectorsize", raw.sectorsize.get().into()),
        ("nodesize", raw.nodesize.get().into()),
        ("leafsize (deprecated)", raw.unused_leafsize.get().into()),
        ("stripesize", raw.stripesize.get().into()),
        ("root_dir", raw.root_dir_objectid.get()),
        ("num_devices", raw.num_devices.get()),
    ]
}

/// Returns names and values of the device item, in the order of the output.
pub(crate) fn device_fields(raw: &RawSuperBlock) -> [(&'static str, u64); 11] {
    let device = &raw.dev_item;
    [
        ("dev_item.type", device.r#type.get()),
        ("dev_item.total_bytes", device.total_bytes.get()),
        ("dev_item.bytes_used", device.bytes_used.get()),
        ("dev_item.io_align", device.io_align.get().into()),
        ("dev_item.io_width", device.io_width.get().into()),
        ("dev_item.sector_size", device.sector_size.get().into()),
        ("dev_item.devid", device.devid.get()),
        ("dev_item.dev_group", device.dev_group.get().into()),
        ("dev_item.seek_speed", device.seek_speed.into()),
        ("dev_item.bandwidth", device.bandwidth.into()),
        ("dev_item.generation", device.generation.get()),
    ]
}

/// Returns the features of a flags field with their bits, in the spelling of btrfs-progs.
pub(crate) fn feature_names(table: &[Feature]) -> Vec<(u64, String)> {
    let is_named = |feature: &&Feature| ![NAMELESS_COMPAT_RO, NAMELESS_INCOMPAT].contains(feature);
    let spelled = |feature: &Feature| feature.name.to_uppercase().replace('-', "_");
    table.iter().filter(is_named).map(|feature| (feature.mask(), spelled(feature))).collect()
}

/// Returns whether the checksum is valid, or `None` if its algorithm is unknown.
pub(crate) fn checksum_matches(raw: &RawSuperBlock) -> Option<bool> {
    let kind = ChecksumKind::check(raw.csum_type.get()).ok()?;
    let (_, covered) = raw.as_bytes().split_at(CSUM_BYTES);
    Some(kind.matches(covered, &raw.csum))
}

fn line(name: &str, value: impl Display, out: &mut dyn Write) -> io::Result<()> {
    let tabs = VALUE_COLUMN.saturating_sub(name.len()).div_ceil(TAB_COLUMNS).max(1);
    writeln!(out, "{name}{:\t<tabs$}{value}", "")
}

fn identity(raw: &RawSuperBlock, out: &mut dyn Write) -> io::Result<()> {
    let csum_type = raw.csum_type.get();
    let kind = ChecksumKind::check(csum_type).ok();
    let name = kind.map_or("INVALID", ChecksumKind::name);
    let bytes = kind.map_or(CSUM_BYTES, ChecksumKind::bytes);
    let digest = Hex(raw.csum.get(..bytes).unwrap_or_default());
    let verdict = checksum_matches(raw).map_or("[UNKNOWN CSUM TYPE OR SIZE]", match_text);
    line("csum_type", format_args!("{csum_type} ({name})"), out)?;
    line("csum_size", bytes, out)?;
    line("csum", format_args!("0x{digest} {verdict}"), out)?;
    line("bytenr", raw.bytenr, out)?;
    line("flags", format_args!("{:#x}", raw.flags.get()), out)?;
    flag_names(raw.flags.get(), &SUPER_FLAGS, out)?;
    let magic = dotted(raw.magic.as_bytes());
    let verdict = match_text(raw.magic.get() == MAGIC);
    line("magic", format_args!("{magic} {verdict}"), out)?;
    line("fsid", Uuid(raw.fsid), out)?;
    line("metadata_uuid", Uuid(raw.metadata_uuid), out)?;
    let label = raw.label.split(|byte| *byte == 0).next().unwrap_or_default();
    line("label", dotted(label), out)
}

fn features(raw: &RawSuperBlock, out: &mut dyn Write) -> io::Result<()> {
    let (compat_ro, incompat) = (raw.compat_ro_flags.get(), raw.incompat_flags.get());
    line("compat_flags", format_args!("{:#x}", raw.compat_flags.get()), out)?;
    line("compat_ro_flags", format_args!("{compat_ro:#x}"), out)?;
    flag_names(compat_ro, &feature_names(&feature::COMPAT_RO), out)?;
    line("incompat_flags", format_args!("{incompat:#x}"), out)?;
    flag_names(incompat, &feature_names(&feature::INCOMPAT), out)?;
    line("cache_generation", raw.cache_generation, out)?;
    line("uuid_tree_generation", raw.uuid_tree_generation, out)
}

fn device(raw: &RawSuperBlock, out: &mut dyn Write) -> io::Result<()> {
    let (uuid, fsid) = (raw.dev_item.uuid, raw.dev_item.fsid);
    let verdict = match_text(fsid == raw.header_fsid());
    line("dev_item.uuid", Uuid(uuid), out)?;
    line("dev_item.fsid", format_args!("{} {verdict}", Uuid(fsid)), out)?;
    device_fields(raw).into_iter().try_for_each(|(name, value)| line(name, value, out))
}

/// Prints one name per line, in one pair of parentheses; nothing if no bit is set.
fn flag_names<N: Display>(flags: u64, names: &[(u64, N)], out: &mut dyn Write) -> io::Result<()> {
    if flags == 0 {
        return Ok(());
    }
    let known = names.iter().fold(0, |known, (bit, _)| known | bit);
    let mut lines: Vec<String> = names
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| name.to_string())
        .collect();
    if flags & !known != 0 {
        lines.push(format!("unknown flag: {:#x}", flags & !known));
    }
    writeln!(out, "\t\t\t( {} )", lines.join(" |\n\t\t\t  "))
}

/// Parses the chunks of the array. A truncated array ends with an error that describes it.
fn system_chunks(raw: &RawSuperBlock, out: &mut dyn Write) -> io::Result<Result<(), String>> {
    let size = raw.sys_chunk_array_size.get();
    let array = usize::try_from(size).ok().and_then(|size| raw.sys_chunk_array.get(..size));
    let Some(array) = array else {
        let most = SYS_CHUNK_ARRAY_BYTES;
        return Ok(Err(format!("sys_array_size {size} shouldn't exceed {most} bytes")));
    };
    let mut rest = array;
    for at in 0.. {
        if rest.is_empty() {
            break;
        }
        match system_chunk(at, rest, array.len(), out)? {
            Ok(behind) => rest = behind,
            Err(ends) => return Ok(Err(ends)),
        }
    }
    Ok(Ok(()))
}

/// Parses one chunk at the start of `rest`, and returns the bytes after it.
fn system_chunk<'a>(
    at: u32,
    rest: &'a [u8],
    array_bytes: usize,
    out: &mut dyn Write,
) -> io::Result<Result<&'a [u8], String>> {
    let short = |bytes: usize, rest: &[u8]| {
        let offset = array_bytes - rest.len();
        Ok(Err(format!("sys_array too short to read {bytes} bytes at offset {offset}")))
    };
    let Ok((key, rest)) = RawKey::ref_from_prefix(rest) else {
        return short(size_of::<RawKey>(), rest);
    };
    let (key, offset) = (Key::from(key), array_bytes - rest.len());
    writeln!(out, "\titem {at} {}", KeyText(key))?;
    if key.item_type != ItemType::CHUNK_ITEM {
        let kind = key.item_type.0;
        return Ok(Err(format!("unexpected item type {kind} in sys_array at offset {offset}")));
    }
    let bytes = |stripes: usize| size_of::<RawChunk>() + stripes * size_of::<RawStripe>();
    if rest.len() < bytes(1) {
        return short(bytes(1), rest);
    }
    let stripes = RawChunk::ref_from_prefix(rest).map_or(0, |(raw, _)| raw.num_stripes.get());
    if stripes == 0 {
        let text = format!("invalid number of stripes 0 in sys_array at offset {offset}");
        return Ok(Err(text));
    }
    let Some((item, behind)) = rest.split_at_checked(bytes(stripes.into())) else {
        return short(bytes(stripes.into()), rest);
    };
    chunk(item, out)?;
    Ok(Ok(behind))
}

fn root_backup(
    raw: &RawSuperBlock,
    at: usize,
    backup: &RawRootBackup,
    out: &mut dyn Write,
) -> io::Result<()> {
    if backup.tree_root.get() == 0 && backup.tree_root_gen.get() == 0 {
        return Ok(());
    }
    let has_groups = raw.incompat_flags.get() & feature::EXTENT_TREE_V2.mask() != 0;
    let extent = if has_groups { "backup_block_group_root:" } else { "backup_extent_root:" };
    let b = backup;
    let roots = [
        ("backup_tree_root:", b.tree_root, b.tree_root_gen, b.tree_root_level),
        ("backup_chunk_root:", b.chunk_root, b.chunk_root_gen, b.chunk_root_level),
        (extent, b.extent_root, b.extent_root_gen, b.extent_root_level),
        ("backup_fs_root:\t", b.fs_root, b.fs_root_gen, b.fs_root_level),
        ("backup_dev_root:", b.dev_root, b.dev_root_gen, b.dev_root_level),
        ("csum_root:", b.csum_root, b.csum_root_gen, b.csum_root_level),
    ];
    writeln!(out, "\tbackup {at}:")?;
    for (name, root, generation, level) in roots {
        writeln!(out, "\t\t{name}\t{root}\tgen: {generation}\tlevel: {level}")?;
    }
    writeln!(out, "\t\tbackup_total_bytes:\t{}", b.total_bytes)?;
    writeln!(out, "\t\tbackup_bytes_used:\t{}", b.bytes_used)?;
    writeln!(out, "\t\tbackup_num_devices:\t{}\n", b.num_devices)
}

fn match_text(matches: bool) -> &'static str {
    if matches { "[match]" } else { "[DON'T MATCH]" }
}

/// Returns bytes as characters, with a dot for each that is not printable ASCII.
fn dotted(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '.' };
    bytes.iter().map(shown).collect()
}
