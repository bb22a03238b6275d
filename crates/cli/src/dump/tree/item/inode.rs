//! Inodes and file extents.

use super::super::formatting::{flag_names, time_line};
use super::raw::{after, padded};
use butternut_format::file_extent::{RawFileExtentHeader, RawFileExtentItem};
use butternut_format::inode::{InodeFlags, RawInodeItem};
use std::io::{self, Write};

const INODE_FLAGS: [(InodeFlags, &str); 13] = [
    (InodeFlags::NODATASUM, "NODATASUM"),
    (InodeFlags::NODATACOW, "NODATACOW"),
    (InodeFlags::READONLY, "READONLY"),
    (InodeFlags::NOCOMPRESS, "NOCOMPRESS"),
    (InodeFlags::PREALLOC, "PREALLOC"),
    (InodeFlags::SYNC, "SYNC"),
    (InodeFlags::IMMUTABLE, "IMMUTABLE"),
    (InodeFlags::APPEND, "APPEND"),
    (InodeFlags::NODUMP, "NODUMP"),
    (InodeFlags::NOATIME, "NOATIME"),
    (InodeFlags::DIRSYNC, "DIRSYNC"),
    (InodeFlags::COMPRESS, "COMPRESS"),
    (InodeFlags::ROOT_ITEM_INIT, "ROOT_ITEM_INIT"),
];

pub(super) fn inode(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawInodeItem = padded(data);
    let (generation, transid, size, nbytes) = (raw.generation, raw.transid, raw.size, raw.nbytes);
    writeln!(out, "\t\tgeneration {generation} transid {transid} size {size} nbytes {nbytes}")?;
    let (mode, links, uid, gid) = (raw.mode.get(), raw.nlink, raw.uid, raw.gid);
    let (group, rdev) = (raw.block_group, raw.rdev);
    writeln!(
        out,
        "\t\tblock group {group} mode {mode:o} links {links} uid {uid} gid {gid} rdev {rdev}"
    )?;
    let flags = raw.flags.get();
    let names = inode_flag_names(flags);
    writeln!(out, "\t\tsequence {} flags {flags:#x}({names})", raw.sequence)?;
    time_line("atime", &raw.atime, out)?;
    time_line("ctime", &raw.ctime, out)?;
    time_line("mtime", &raw.mtime, out)?;
    time_line("otime", &raw.otime, out)
}

fn inode_flag_names(flags: u64) -> String {
    if flags == 0 {
        return "none".to_owned();
    }
    let table = INODE_FLAGS.map(|(flag, name)| (flag.0, name));
    let mut names = flag_names(flags, &table);
    let unknown = table.iter().fold(flags, |rest, (bit, _)| rest & !bit);
    if unknown != 0 {
        let bar = if names.is_empty() { "" } else { "|" };
        names = format!("{names}{bar}UNKNOWN: {unknown:#x}");
    }
    names
}

pub(super) fn file_extent(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawFileExtentItem = padded(data);
    let header = &raw.header;
    let kind = match header.extent_type {
        0 => "inline",
        1 => "regular",
        2 => "prealloc",
        _ => "unknown",
    };
    let compression = match header.compression {
        0 => "none".to_owned(),
        1 => "zlib".to_owned(),
        2 => "lzo".to_owned(),
        3 => "zstd".to_owned(),
        other => format!("UNKNOWN.{other}"),
    };
    let number = header.compression;
    writeln!(out, "\t\tgeneration {} type {} ({kind})", header.generation, header.extent_type)?;
    if header.extent_type == 0 {
        let (bytes, ram) = (after::<RawFileExtentHeader>(data).len(), header.ram_bytes);
        return writeln!(
            out,
            "\t\tinline extent data size {bytes} ram_bytes {ram} \
             compression {number} ({compression})"
        );
    }
    let (disk, disk_bytes) = (raw.disk_bytenr, raw.disk_num_bytes);
    let (offset, bytes) = (raw.offset, raw.num_bytes);
    if header.extent_type == 2 {
        writeln!(out, "\t\tprealloc data disk byte {disk} nr {disk_bytes}")?;
        return writeln!(out, "\t\tprealloc data offset {offset} nr {bytes}");
    }
    writeln!(out, "\t\textent data disk byte {disk} nr {disk_bytes}")?;
    writeln!(out, "\t\textent data offset {offset} nr {bytes} ram {}", header.ram_bytes)?;
    writeln!(out, "\t\textent compression {number} ({compression})")
}
