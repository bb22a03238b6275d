//! The rulers in the sources match the layout of the types, field by field.
//!
//! A ruler is in a file's header between text fences: the type's name on a line of its own (a colon
//! and a remark may follow), then rows of two lines, the offsets above the fields:
//!
//! ```text
//! RawStripe
//! 0       8        16         32
//! | devid | offset | dev_uuid |
//! ```
//!
//! If there is one more number than fields, it is where the last field ends. Text behind the last
//! bar is a remark, and so is a field that contains "...".

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// The fields with their offsets, and the size of the type.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    fields: Vec<(String, usize)>,
    bytes: usize,
}

macro_rules! layout {
    ($($module:ident)::+ { $($field:ident),+ }) => {{
        type Raw = butternut_format::$($module)::+;
        let fields = vec![$((stringify!($field).replace("r#", ""), offset_of!(Raw, $field))),+];
        (stringify!($($module)::+), Layout { fields, bytes: size_of::<Raw>() })
    }};
}

#[expect(clippy::too_many_lines, reason = "one line or a few per type")]
fn layouts() -> BTreeMap<String, Layout> {
    let layouts = [
        layout!(balance::RawBalanceArgs {
            profiles,
            usage,
            devid,
            pstart,
            pend,
            vstart,
            vend,
            target,
            flags,
            limit,
            stripes_min,
            stripes_max,
            unused
        }),
        layout!(balance::RawBalanceItem { flags, data, meta, sys, unused }),
        layout!(block_group::RawBlockGroup { used, chunk_objectid, flags }),
        layout!(chunk::RawChunk {
            length,
            owner,
            stripe_len,
            r#type,
            io_align,
            io_width,
            sector_size,
            num_stripes,
            sub_stripes
        }),
        layout!(chunk::RawStripe { devid, offset, dev_uuid }),
        layout!(device_extent::RawDeviceExtent {
            chunk_tree,
            chunk_objectid,
            chunk_offset,
            length,
            chunk_tree_uuid
        }),
        layout!(device_extent::RawDeviceStats {
            write_errs,
            read_errs,
            flush_errs,
            corruption_errs,
            generation_errs
        }),
        layout!(device_extent::RawDeviceReplace {
            src_devid,
            cursor_left,
            cursor_right,
            cont_reading_from_srcdev_mode,
            replace_state,
            time_started,
            time_stopped,
            num_write_errors,
            num_uncorrectable_read_errors
        }),
        layout!(device_item::RawDeviceItem {
            devid,
            total_bytes,
            bytes_used,
            io_align,
            io_width,
            sector_size,
            r#type,
            generation,
            start_offset,
            dev_group,
            seek_speed,
            bandwidth,
            uuid,
            fsid
        }),
        layout!(dir::RawDirItem { location, transid, data_len, name_len, entry_type }),
        layout!(extent::RawExtentItem { refs, generation, flags }),
        layout!(extent::RawTreeBlockInfo { key, level }),
        layout!(extent::RawInlineRef { r#type, offset }),
        layout!(extent::RawExtentDataRef { root, objectid, offset, count }),
        layout!(extent::RawSharedDataRef { count }),
        layout!(file_extent::RawFileExtentHeader {
            generation,
            ram_bytes,
            compression,
            encryption,
            other_encoding,
            extent_type
        }),
        layout!(file_extent::RawFileExtentItem {
            header,
            disk_bytenr,
            disk_num_bytes,
            offset,
            num_bytes
        }),
        layout!(free_space::RawFreeSpaceInfo { extent_count, flags }),
        layout!(free_space::RawFreeSpaceHeader { location, generation, num_entries, num_bitmaps }),
        layout!(inode::RawTimespec { sec, nsec }),
        layout!(inode::RawInodeItem {
            generation,
            transid,
            size,
            nbytes,
            block_group,
            nlink,
            uid,
            gid,
            mode,
            rdev,
            flags,
            sequence,
            reserved,
            atime,
            ctime,
            mtime,
            otime
        }),
        layout!(inode_ref::RawInodeRef { index, name_len }),
        layout!(inode_ref::RawInodeExtref { parent_objectid, index, name_len }),
        layout!(key::RawKey { objectid, item_type, offset }),
        layout!(log_item::RawDirLogItem { end }),
        layout!(node::RawHeader {
            csum,
            fsid,
            bytenr,
            flags,
            chunk_tree_uuid,
            generation,
            owner,
            nritems,
            level
        }),
        layout!(node::RawKeyPtr { key, blockptr, generation }),
        layout!(node::RawItem { key, offset, size }),
        layout!(quota::RawQgroupStatus { version, generation, flags, rescan, enable_gen }),
        layout!(quota::RawQgroupInfo { generation, rfer, rfer_cmpr, excl, excl_cmpr }),
        layout!(quota::RawQgroupLimit { flags, max_rfer, max_excl, rsv_rfer, rsv_excl }),
        layout!(root::RawRootItem {
            inode,
            generation,
            root_dirid,
            bytenr,
            byte_limit,
            bytes_used,
            last_snapshot,
            flags,
            refs,
            drop_progress,
            drop_level,
            level,
            generation_v2,
            uuid,
            parent_uuid,
            received_uuid,
            ctransid,
            otransid,
            stransid,
            rtransid,
            ctime,
            otime,
            stime,
            rtime,
            reserved
        }),
        layout!(root_ref::RawRootRef { dirid, sequence, name_len }),
        layout!(stream::RawStreamHeader { magic, version }),
        layout!(stream::RawCommandHeader { len, cmd, crc }),
        layout!(stream::RawAttributeHeader { kind, len }),
        layout!(super_block::RawRootBackup {
            tree_root,
            tree_root_gen,
            chunk_root,
            chunk_root_gen,
            extent_root,
            extent_root_gen,
            fs_root,
            fs_root_gen,
            dev_root,
            dev_root_gen,
            csum_root,
            csum_root_gen,
            total_bytes,
            bytes_used,
            num_devices,
            unused_64,
            tree_root_level,
            chunk_root_level,
            extent_root_level,
            fs_root_level,
            dev_root_level,
            csum_root_level,
            unused_8
        }),
        layout!(super_block::RawSuperBlock {
            csum,
            fsid,
            bytenr,
            flags,
            magic,
            generation,
            root,
            chunk_root,
            log_root,
            unused_log_root_transid,
            total_bytes,
            bytes_used,
            root_dir_objectid,
            num_devices,
            sectorsize,
            nodesize,
            unused_leafsize,
            stripesize,
            sys_chunk_array_size,
            chunk_root_generation,
            compat_flags,
            compat_ro_flags,
            incompat_flags,
            csum_type,
            root_level,
            chunk_root_level,
            log_root_level,
            dev_item,
            label,
            cache_generation,
            uuid_tree_generation,
            metadata_uuid,
            nr_global_roots,
            remap_root,
            remap_root_generation,
            remap_root_level,
            reserved,
            sys_chunk_array,
            super_roots,
            padding
        }),
        layout!(verity::RawVerityDescriptorItem { size, reserved, encryption }),
        layout!(verity::RawVerityDescriptor {
            version,
            hash_algorithm,
            log_blocksize,
            salt_size,
            sig_size,
            data_size,
            root_hash,
            salt,
            reserved
        }),
    ];
    let name = |path: &str| path.rsplit("::").next().unwrap().trim().to_owned();
    layouts.into_iter().map(|(path, layout)| (name(path), layout)).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// Returns every raw type that the source defines, with the names of its fields.
fn defined(source: &str) -> Vec<(String, Vec<String>)> {
    let structs = source.split("\npub struct ").skip(1);
    structs
        .filter(|text| text.starts_with("Raw"))
        .map(|text| {
            let (name, rest) = text.split_once(' ').unwrap();
            let (body, _) = rest.split_once("\n}").unwrap();
            let fields = body
                .lines()
                .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
                .map(|(field, _)| field.replace("r#", ""));
            (name.to_owned(), fields.collect())
        })
        .collect()
}

/// Returns every ruler of a header.
fn rulers(source: &str) -> Vec<(String, Layout)> {
    let mut rulers: Vec<(String, Layout)> = Vec::new();
    let mut numbers: Vec<usize> = Vec::new();
    let mut fenced = false;
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if !fenced {
            continue;
        }
        let name = line.split(':').next().unwrap();
        if name.starts_with("Raw") && name.chars().all(char::is_alphanumeric) {
            rulers.push((name.to_owned(), Layout { fields: Vec::new(), bytes: 0 }));
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            numbers = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        } else if line.starts_with('|') {
            let Some((_, ruler)) = rulers.last_mut() else { continue };
            row(ruler, line, &numbers);
            numbers.clear();
        }
    }
    rulers.retain(|(_, ruler)| !ruler.fields.is_empty());
    rulers
}

fn row(ruler: &mut Layout, line: &str, numbers: &[usize]) {
    let bars = line.trim_start_matches('|');
    let (bars, _remark) = bars.rsplit_once('|').unwrap_or((bars, ""));
    let named: Vec<_> =
        bars.split('|').map(str::trim).filter(|field| !field.contains("...")).collect();
    assert!(named.len() <= numbers.len(), "a field without an offset: {line}");
    let joins = ruler.bytes == 0 || numbers.first() == Some(&ruler.bytes);
    assert!(joins, "begins at {:?}, the row above ends at {}: {line}", numbers, ruler.bytes);
    let fields = named.iter().zip(numbers).map(|(field, offset)| ((*field).to_owned(), *offset));
    ruler.fields.extend(fields);
    ruler.bytes = numbers.get(named.len()).copied().unwrap_or_default();
}

#[test]
fn every_ruler_matches_the_layout_of_its_type() {
    let mut layouts = layouts();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let source = std::fs::read_to_string(&path).unwrap();
        let rulers: BTreeMap<_, _> = rulers(&source).into_iter().collect();
        for (name, fields) in defined(&source) {
            let file = path.display();
            let layout = layouts.remove(&name).unwrap_or_else(|| {
                panic!("{file}: {name} is not in the list of this test");
            });
            let listed: Vec<_> = layout.fields.iter().map(|(field, _)| field.clone()).collect();
            assert_eq!(listed, fields, "{file}: {name}: fields listed in this test");
            let ruler = rulers.get(&name).unwrap_or_else(|| panic!("{file}: {name} has no ruler"));
            assert_eq!(
                *ruler, layout,
                "{file}: {name}: the ruler (left) differs from the type (right)"
            );
        }
    }
    assert!(layouts.is_empty(), "types that no source defines: {:?}", layouts.keys());
}
