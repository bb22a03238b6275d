//! Attributes of the library as FUSE structures: attributes, times, file types, device numbers.

use butternut::{FileId, FileKind, Stat, StatFs, Time};

use crate::connection::protocol::{Attr, AttrOut, EntryOut, StatfsOut, Statx, StatxOut, StatxTime};

/// Validity of attributes and names in the kernel, 10 years: nothing else changes the volume.
const VALID_SECS: u64 = 10 * 365 * 24 * 3600;

/// The mask of the basic statx fields, which are always set, and that of the creation time.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

/// Inode flags of btrfs, and the statx attributes for them.
const STATX_FLAGS: [(u64, u64); 5] = [
    (64, 0x10),           // immutable
    (128, 0x20),          // append-only
    (256, 0x40),          // not dumped
    (2048, 0x4),          // compressed
    (1 << 32, 0x10_0000), // sealed by fs-verity
];

/// Returns the `d_type` of a directory entry.
pub(crate) fn dirent_type(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// Returns the inode number that programs see: the node id. All placeholders show the number that
/// kernel btrfs shows for them, and have different node ids.
pub(crate) fn ino(id: FileId, node: u64) -> u64 {
    if id.is_placeholder() { FileId::PLACEHOLDER_INO } else { node }
}

/// Returns the attributes of the file with a node id.
pub(crate) fn attr(stat: &Stat, node: u64) -> Attr {
    Attr {
        ino: ino(stat.id, node),
        size: stat.size,
        blocks: stat.blocks,
        atime: stat.atime.secs.cast_unsigned(),
        mtime: stat.mtime.secs.cast_unsigned(),
        ctime: stat.ctime.secs.cast_unsigned(),
        atimensec: stat.atime.nanos,
        mtimensec: stat.mtime.nanos,
        ctimensec: stat.ctime.nanos,
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: encode_rdev(stat.rdev),
        blksize: stat.block_bytes,
        flags: 0,
    }
}

pub(crate) fn attr_out(stat: &Stat, node: u64) -> AttrOut {
    AttrOut { attr_valid: VALID_SECS, attr: attr(stat, node), ..AttrOut::default() }
}

/// Returns the reply to a LOOKUP that found a file.
pub(crate) fn entry_out(stat: &Stat, nodeid: u64) -> EntryOut {
    EntryOut {
        nodeid,
        generation: stat.generation,
        entry_valid: VALID_SECS,
        attr_valid: VALID_SECS,
        attr: attr(stat, nodeid),
        ..EntryOut::default()
    }
}

/// Returns the reply to a LOOKUP that found nothing, which the kernel caches too.
pub(crate) fn negative_entry() -> EntryOut {
    EntryOut { entry_valid: VALID_SECS, ..EntryOut::default() }
}

pub(crate) fn statx_out(stat: &Stat, node: u64) -> StatxOut {
    let mut attributes = 0;
    let mut attributes_mask = 0;
    for (flag, attribute) in STATX_FLAGS {
        attributes_mask |= attribute;
        if stat.flags & flag != 0 {
            attributes |= attribute;
        }
    }
    let stat = Statx {
        mask: STATX_BASIC | STATX_BTIME,
        blksize: stat.block_bytes,
        attributes,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        mode: u16::try_from(stat.mode & 0xffff).unwrap_or(0),
        ino: ino(stat.id, node),
        size: stat.size,
        blocks: stat.blocks,
        attributes_mask,
        atime: statx_time(stat.atime),
        btime: statx_time(stat.btime),
        ctime: statx_time(stat.ctime),
        mtime: statx_time(stat.mtime),
        rdev_major: stat.rdev.0,
        rdev_minor: stat.rdev.1,
        ..Statx::default()
    };
    StatxOut { attr_valid: VALID_SECS, stat, ..StatxOut::default() }
}

fn statx_time(time: Time) -> StatxTime {
    StatxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 }
}

pub(crate) fn statfs_out(of: &StatFs) -> StatfsOut {
    StatfsOut {
        blocks: of.blocks,
        bfree: of.blocks_free,
        bavail: of.blocks_available,
        files: of.files,
        ffree: of.files_free,
        bsize: of.block_bytes,
        namelen: of.name_bytes_max,
        frsize: of.block_bytes,
        ..StatfsOut::default()
    }
}

/// Encodes a device number as the kernel does: 12 bits of major inside 20 bits of minor.
pub(crate) fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Decodes a device number into its major and minor number.
pub(crate) fn decode_rdev(number: u32) -> (u32, u32) {
    ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00))
}

/// Returns the file type in a mode. No type at all means a regular file.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    const KINDS: [FileKind; 7] = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::CharDevice,
        FileKind::BlockDevice,
        FileKind::Fifo,
        FileKind::Socket,
    ];
    let bits = mode & 0o170_000;
    if bits == 0 {
        return Some(FileKind::File);
    }
    KINDS.into_iter().find(|kind| kind.mode_bits() == bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_device_numbers_are_encoded_as_in_the_kernel() {
        for (parts, number) in [((1, 3), 0x103), ((300, 70000), 0x1111_2c70)] {
            assert_eq!(encode_rdev(parts), number);
            assert_eq!(decode_rdev(number), parts);
        }
    }

    #[test]
    fn file_types_have_the_numbers_of_directory_entries() {
        let kinds = [(FileKind::File, 8), (FileKind::Directory, 4), (FileKind::Symlink, 10)];
        for (kind, number) in kinds {
            assert_eq!(dirent_type(kind), number);
            assert_eq!(kind_of_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
    }
}
