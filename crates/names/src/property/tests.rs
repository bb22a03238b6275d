//! Conversions between values of properties and flags of `chattr`.

use super::*;
use butternut_format::inode::RawInodeItem;
use zerocopy::{FromZeros, IntoBytes};

fn inode(kind: FileKind, flags: InodeFlags) -> Inode {
    let mut raw = RawInodeItem::new_zeroed();
    raw.mode.set(kind.mode_bits());
    Inode { flags, ..Inode::check(raw.as_bytes()).unwrap() }
}

#[test]
fn a_compression_value_sets_one_of_two_flags_or_neither() {
    let file = inode(FileKind::File, InodeFlags::NOCOMPRESS.with(InodeFlags::SYNC));
    let flags = |value: &[u8]| flags_with_property(&file, COMPRESSION, value).unwrap();
    for value in [&b"zlib"[..], b"lzo", b"zstd", b"zstd:15"] {
        assert_eq!(flags(value), InodeFlags::COMPRESS.with(InodeFlags::SYNC));
    }
    assert_eq!(flags(b"none"), InodeFlags::NOCOMPRESS.with(InodeFlags::SYNC));
    assert_eq!(flags(b""), InodeFlags::SYNC);
    assert!(flags_with_property(&file, COMPRESSION, b"gzip").is_err());
    assert!(flags_with_property(&file, b"btrfs.other", b"zlib").is_err());
    let in_place = inode(FileKind::File, InodeFlags::NODATACOW);
    assert!(flags_with_property(&in_place, COMPRESSION, b"zlib").is_err());
}

#[test]
fn compression_is_inherited_without_its_level() {
    let of = |value: &'static [u8], kind| inherited_compression(Some(value), kind);
    assert_eq!(of(b"zstd:5", FileKind::File), Some(&b"zstd"[..]));
    assert_eq!(of(b"lzo", FileKind::Directory), Some(&b"lzo"[..]));
    assert_eq!(of(b"lzo", FileKind::Symlink), None);
    assert_eq!(of(b"none", FileKind::File), None);
    assert_eq!(inherited_compression(None, FileKind::File), None);
}

#[test]
fn chattr_flags_are_shown_as_they_were_set() {
    let dir = inode(FileKind::Directory, InodeFlags::default());
    let asked = AttributeFlags(
        AttributeFlags::SYNC.0
            | AttributeFlags::IMMUTABLE.0
            | AttributeFlags::NOATIME.0
            | AttributeFlags::DIRSYNC.0
            | AttributeFlags::NOCOW.0,
    );
    let change = asked.change(&dir).unwrap();
    assert_eq!(AttributeFlags::of(change.flags), asked);
    assert_eq!(change.compression, None);
    let file = inode(FileKind::File, InodeFlags::default());
    let change = asked.change(&file).unwrap();
    assert!(change.flags.contains(InodeFlags::NODATASUM.with(InodeFlags::NODATACOW)));
    assert!(!change.flags.contains(InodeFlags::DIRSYNC));
    let fifo = inode(FileKind::Fifo, InodeFlags::default());
    assert_eq!(asked.change(&fifo).unwrap().flags, InodeFlags::NOATIME);
}

#[test]
fn only_an_empty_file_changes_how_it_is_written() {
    let asked = AttributeFlags::NOCOW;
    let file = Inode { size: 1, ..inode(FileKind::File, InodeFlags::default()) };
    assert_eq!(asked.change(&file).unwrap().flags, InodeFlags::default());
    let in_place = InodeFlags::NODATACOW.with(InodeFlags::NODATASUM);
    let file = Inode { size: 1, ..inode(FileKind::File, in_place) };
    assert_eq!(AttributeFlags(0).change(&file).unwrap().flags, in_place);
}

#[test]
fn chattr_c_is_a_property_and_excludes_its_opposites() {
    let file = inode(FileKind::File, InodeFlags::NOCOMPRESS);
    let change = AttributeFlags::COMPRESS.change(&file).unwrap();
    let want = FlagChange { flags: InodeFlags::COMPRESS, compression: Some(b"zlib") };
    assert_eq!(change, want);
    for other in [AttributeFlags::NOCOMPRESS, AttributeFlags::NOCOW] {
        let both = AttributeFlags(AttributeFlags::COMPRESS.0 | other.0);
        assert!(matches!(both.change(&file), Err(NamesError::Invalid { .. })));
    }
    let undelete = AttributeFlags(0x2);
    assert!(matches!(undelete.change(&file), Err(NamesError::Unsupported { .. })));
}
