//! Items that contain names: directory entries, extended attributes, references, strings.

use super::super::formatting::EscapedText;
use super::super::key::KeyText;
use super::super::render::Style;
use super::raw::{after, padded};
use butternut_format::dir::{NAME_BYTES_MAX, RawDirItem};
use butternut_format::inode_ref::{RawInodeExtref, RawInodeRef};
use butternut_format::key::Key;
use butternut_format::root_ref::RawRootRef;
use std::io::{self, Write};
use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

pub(super) fn entries(data: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = data;
    while let Ok((raw, names)) = RawDirItem::ref_from_prefix(rest) {
        let location = KeyText(Key::from(&raw.location));
        // The top bit of the type marks an encrypted name.
        let kind = raw.entry_type & 0x7f;
        match entry_type_name(kind) {
            Some(name) => writeln!(out, "\t\tlocation {location} type {name}")?,
            None => writeln!(out, "\t\tlocation {location} type DIR_ITEM.{kind}")?,
        }
        let (name, after_name) = split(names, raw.name_len);
        let (value, after_value) = split(after_name, raw.data_len);
        let (data_len, name_len) = (raw.data_len, raw.name_len);
        writeln!(out, "\t\ttransid {} data_len {data_len} name_len {name_len}", raw.transid)?;
        if style.hide_names {
            writeln!(out, "\t\tname: HIDDEN")?;
        } else {
            writeln!(out, "\t\tname: {}", EscapedText(name))?;
        }
        if raw.data_len.get() != 0 && style.hide_names {
            writeln!(out, "\t\tdata HIDDEN")?;
        } else if raw.data_len.get() != 0 {
            // btrfs-progs truncates values at the maximum length of a name.
            let shown = value.get(..NAME_BYTES_MAX).unwrap_or(value);
            writeln!(out, "\t\tdata {}", EscapedText(shown))?;
        }
        rest = after_value;
    }
    Ok(())
}

fn entry_type_name(entry_type: u8) -> Option<&'static str> {
    Some(match entry_type {
        1 => "FILE",
        2 => "DIR",
        3 => "CHRDEV",
        4 => "BLKDEV",
        5 => "FIFO",
        6 => "SOCK",
        7 => "SYMLINK",
        8 => "XATTR",
        _ => return None,
    })
}

pub(super) fn inode_refs(data: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = data;
    while let Ok((raw, names)) = RawInodeRef::ref_from_prefix(rest) {
        let (name, after_name) = split(names, raw.name_len);
        write!(out, "\t\tindex {} namelen {} ", raw.index, raw.name_len)?;
        reference_name(name, style, out)?;
        rest = after_name;
    }
    Ok(())
}

pub(super) fn inode_extrefs(data: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = data;
    while let Ok((raw, names)) = RawInodeExtref::ref_from_prefix(rest) {
        let (name, after_name) = split(names, raw.name_len);
        let (index, parent) = (raw.index, raw.parent_objectid);
        write!(out, "\t\tindex {index} parent {parent} namelen {} ", raw.name_len)?;
        reference_name(name, style, out)?;
        rest = after_name;
    }
    Ok(())
}

fn reference_name(name: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    if style.hide_names {
        writeln!(out, "name: HIDDEN")
    } else {
        writeln!(out, "name: {}", EscapedText(name))
    }
}

/// Prints the name of a subvolume, which btrfs-progs neither escapes nor hides.
pub(super) fn root_ref(kind: &str, data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawRootRef = padded(data);
    let (name, _) = split(after::<RawRootRef>(data), raw.name_len);
    write!(out, "\t\troot {kind} key dirid {} sequence {} name ", raw.dirid, raw.sequence)?;
    out.write_all(until_nul(name))?;
    writeln!(out)
}

pub(super) fn string(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "\t\titem data ")?;
    out.write_all(until_nul(data))?;
    writeln!(out)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Splits `bytes` after the first `len`, or returns all if there are fewer.
fn split(bytes: &[u8], len: U16) -> (&[u8], &[u8]) {
    bytes.split_at_checked(usize::from(len.get())).unwrap_or((bytes, &[]))
}
