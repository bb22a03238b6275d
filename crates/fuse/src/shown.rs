//! What the library says, in the kernel's terms: attributes, times, kinds, device numbers.

use butternut::{FileId, FileKind, Stat, StatFs, Time};

use crate::wire::{Attr, AttrOut, EntryOut, StatfsOut, Statx, StatxOut, StatxTime};

/// How long the kernel may believe what it was told: nobody else changes the volume.
const FOR_GOOD_SECS: u64 = 10 * 365 * 24 * 3600;

/// The fields of a statx that are always there, and the time of birth.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

/// Flags of an inode, and what a statx calls them.
const STATX_FLAGS: [(u64, u64); 4] = [
    (64, 0x10),  // immutable
    (128, 0x20), // append-only
    (256, 0x40), // not dumped
    (2048, 0x4), // compressed
];

/// The kernel's number of a kind of directory entry.
pub(crate) fn entry_kind(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// The inode number that programs see: that of the node, and of a placeholder the one that kernel
/// btrfs shows for all of them. The kernel tells them apart by their nodes.
pub(crate) fn ino(id: FileId, node: u64) -> u64 {
    if id.is_placeholder() { FileId::PLACEHOLDER_INO } else { node }
}

/// Attributes of the file that the kernel knows by a number.
pub(crate) fn attributes(stat: &Stat, node: u64) -> Attr {
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
        rdev: device_number(stat.rdev),
        blksize: stat.block_bytes,
        flags: 0,
    }
}

pub(crate) fn attributes_out(stat: &Stat, node: u64) -> AttrOut {
    AttrOut { attr_valid: FOR_GOOD_SECS, attr: attributes(stat, node), ..AttrOut::default() }
}

/// A file under a name.
pub(crate) fn entry(stat: &Stat, nodeid: u64) -> EntryOut {
    EntryOut {
        nodeid,
        generation: stat.generation,
        entry_valid: FOR_GOOD_SECS,
        attr_valid: FOR_GOOD_SECS,
        attr: attributes(stat, nodeid),
        ..EntryOut::default()
    }
}

/// What tells the kernel that a name does not exist, and that it need not ask again.
pub(crate) fn nothing() -> EntryOut {
    EntryOut { entry_valid: FOR_GOOD_SECS, ..EntryOut::default() }
}

pub(crate) fn statx(stat: &Stat, node: u64) -> StatxOut {
    let mut attributes = 0;
    let mut attributes_mask = 0;
    for (flag, shown) in STATX_FLAGS {
        attributes_mask |= shown;
        if stat.flags & flag != 0 {
            attributes |= shown;
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
    StatxOut { attr_valid: FOR_GOOD_SECS, stat, ..StatxOut::default() }
}

fn statx_time(time: Time) -> StatxTime {
    StatxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 }
}

pub(crate) fn statfs(of: &StatFs) -> StatfsOut {
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

/// 12 bits of major around 20 bits of minor, as the kernel packs them.
pub(crate) fn device_number((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// The major and minor number of [`device_number`].
pub(crate) fn device_parts(number: u32) -> (u32, u32) {
    ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00))
}

/// The kind of file that a mode names.
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
    fn large_device_numbers_are_packed_as_the_kernel_packs_them() {
        for (parts, number) in [((1, 3), 0x103), ((300, 70000), 0x1111_2c70)] {
            assert_eq!(device_number(parts), number);
            assert_eq!(device_parts(number), parts);
        }
    }

    #[test]
    fn kinds_have_the_numbers_of_directory_entries() {
        let kinds = [(FileKind::File, 8), (FileKind::Directory, 4), (FileKind::Symlink, 10)];
        for (kind, number) in kinds {
            assert_eq!(entry_kind(kind), number);
            assert_eq!(kind_of_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
    }
}
