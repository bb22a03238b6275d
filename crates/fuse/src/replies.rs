//! What the library says, in the kernel's terms: attributes, times, device numbers, errors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use butternut::{Error, FileKind, Stat, Time};
use fuser::{Errno, FileAttr, FileType, INodeNo};

/// How long the kernel may believe what it was told: the volume cannot change.
pub(crate) const FOR_GOOD: Duration = Duration::from_hours(10 * 365 * 24);

/// The error's own errno; the library has the table.
pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

/// Attributes under the number that the kernel is to show.
pub(crate) fn attributes(stat: &Stat, number: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: time(stat.btime),
        kind: kind(stat.kind),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or(0),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: device(stat.rdev),
        blksize: stat.block_bytes,
        flags: 0,
    }
}

/// What tells the kernel that a name does not exist, and that it need not ask again.
pub(crate) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub(crate) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// 12 bits of major around 20 bits of minor, as the kernel packs them.
fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// A time that the host cannot hold becomes 1970.
fn time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second =
        if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let half_before = time(Time { secs: -1, nanos: 500_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(half_before).unwrap(), Duration::from_millis(500));
        assert!(time(Time { secs: i64::MIN, nanos: 0 }).duration_since(UNIX_EPOCH).is_err());
    }

    #[test]
    fn large_device_numbers_are_packed_as_the_kernel_packs_them() {
        assert_eq!(device((1, 3)), 0x103);
        assert_eq!(device((300, 70000)), 0x1111_2c70);
    }
}
