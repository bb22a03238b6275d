//! Operations on the file `d/f` of a case.

use super::{ANOTHER, At, Failed, GROUP, Operation};
use butternut_sys::mapped::Mapped;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use std::os::fd::OwnedFd;
use std::path::Path;

type Done = Result<(), Failed>;

const ACCESS_ACL: &str = "system.posix_acl_access";

/// A program's capabilities in the kernel's xattr format.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub const OPERATIONS: &[(&str, Operation)] = &[
    ("open-read", |at| open(at, OFlags::RDONLY).map(drop)),
    ("open-write", |at| open(at, OFlags::WRONLY).map(drop)),
    ("open-both", |at| open(at, OFlags::RDWR).map(drop)),
    ("open-append", |at| open(at, OFlags::WRONLY | OFlags::APPEND).map(drop)),
    ("open-both-append", |at| open(at, OFlags::RDWR | OFlags::APPEND).map(drop)),
    ("open-truncate", |at| open(at, OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("open-read-truncate", |at| open(at, OFlags::TRUNC).map(drop)),
    ("open-append-truncate", |at| {
        open(at, OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC).map(drop)
    }),
    ("open-create", |at| open(at, OFlags::WRONLY | OFlags::CREATE).map(drop)),
    ("open-noatime", |at| open(at, OFlags::RDONLY | OFlags::NOATIME).map(drop)),
    ("read", |at| {
        rustix::io::read(open(at, OFlags::RDONLY)?, &mut [0; 8][..]).at("read").map(drop)
    }),
    ("write", |at| write(&open(at, OFlags::WRONLY)?, 0)),
    ("write-behind", |at| write(&open(at, OFlags::WRONLY)?, 100)),
    ("write-sync", |at| write(&open(at, OFlags::WRONLY | OFlags::SYNC)?, 0)),
    ("append", |at| append(&open(at, OFlags::WRONLY | OFlags::APPEND)?)),
    ("append-pwrite", |at| write(&open(at, OFlags::WRONLY | OFlags::APPEND)?, 0)),
    ("append-cleared", |at| append_cleared(&open(at, OFlags::WRONLY | OFlags::APPEND)?)),
    ("append-cleared-direct", append_cleared_direct),
    ("append-mapped", |at| mapped(&open(at, OFlags::RDWR | OFlags::APPEND)?)),
    ("mapped", |at| mapped(&open(at, OFlags::RDWR)?)),
    ("ftruncate-enlarging", |at| {
        rustix::fs::ftruncate(open(at, OFlags::WRONLY)?, 100).at("truncate")
    }),
    ("ftruncate", |at| rustix::fs::ftruncate(open(at, OFlags::WRONLY)?, 3).at("truncate")),
    ("ftruncate-append", |at| {
        rustix::fs::ftruncate(open(at, OFlags::WRONLY | OFlags::APPEND)?, 3).at("truncate")
    }),
    ("allocate", |at| allocate(at, OFlags::WRONLY, FallocateFlags::empty())),
    ("allocate-append", |at| allocate(at, APPENDS, FallocateFlags::empty())),
    ("allocate-keep-append", |at| allocate(at, APPENDS, FallocateFlags::KEEP_SIZE)),
    ("punch", |at| allocate(at, OFlags::WRONLY, PUNCH)),
    ("punch-append", |at| allocate(at, APPENDS, PUNCH)),
    ("zero-append", |at| allocate(at, APPENDS, FallocateFlags::ZERO_RANGE)),
    ("copy-into", |at| copy_into(at, &open(at, OFlags::WRONLY)?)),
    ("copy-into-append", |at| copy_into(at, &open(at, APPENDS)?)),
    ("copy-into-cleared", |at| {
        let file = open(at, APPENDS)?;
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).at("clear")?;
        copy_into(at, &file)
    }),
    ("copy-from", copy_from),
    ("chmod", |at| rustix::fs::chmod(f(at), Mode::from_raw_mode(0o600)).at("chmod")),
    ("chmod-set-user", |at| rustix::fs::chmod(f(at), Mode::from_raw_mode(0o4755)).at("chmod")),
    ("chmod-set-group", |at| rustix::fs::chmod(f(at), Mode::from_raw_mode(0o2755)).at("chmod")),
    ("chown", |at| chown(at, Some(ANOTHER), None)),
    ("chown-own", |at| chown(at, Some(rustix::process::geteuid().as_raw()), None)),
    ("chgrp", |at| chown(at, None, Some(3000))),
    ("chgrp-same", |at| chown(at, None, Some(GROUP))),
    ("chown-nothing", |at| chown(at, None, None)),
    ("touch", |at| times(at, NOW, NOW)),
    ("touch-access", |at| times(at, NOW, OMIT)),
    ("touch-modification", |at| times(at, OMIT, NOW)),
    ("times", |at| times(at, GIVEN, GIVEN)),
    ("times-access", |at| times(at, GIVEN, OMIT)),
    ("times-modification", |at| times(at, OMIT, GIVEN)),
    ("times-modification-present", |at| {
        let seen = rustix::fs::stat(f(at)).at("stat")?;
        let tv_nsec = seen.st_mtime_nsec.try_into().unwrap_or_default();
        times(at, OMIT, Timespec { tv_sec: seen.st_mtime, tv_nsec })
    }),
    ("times-mixed", |at| times(at, NOW, GIVEN)),
    ("futimens-modification", |at| {
        let (file, times) = (open(at, OFlags::RDONLY)?, stamps(OMIT, GIVEN));
        rustix::fs::futimens(file, &times).at("times")
    }),
    ("flags", |at| rustix::fs::ioctl_getflags(open(at, OFlags::RDONLY)?).at("flags").map(drop)),
    ("flags-none", |at| flags(at, IFlags::empty())),
    ("flags-immutable", |at| flags(at, IFlags::IMMUTABLE)),
    ("flags-append", |at| flags(at, IFlags::APPEND)),
    ("flags-nodump", |at| flags(at, IFlags::NODUMP)),
    ("flags-immutable-nodump", |at| flags(at, IFlags::IMMUTABLE | IFlags::NODUMP)),
    ("flags-sync", |at| flags(at, IFlags::SYNC)),
    ("link", |at| rustix::fs::link(f(at), at.join("d/new")).at("link")),
    ("unlink", |at| rustix::fs::unlink(f(at)).at("unlink")),
    ("rename", |at| rustix::fs::rename(f(at), at.join("d/new")).at("rename")),
    ("rename-over", |at| rustix::fs::rename(at.join("d/g"), f(at)).at("rename")),
    ("exchange", |at| {
        let other = at.join("d/g");
        rustix::fs::renameat_with(CWD, f(at), CWD, other, RenameFlags::EXCHANGE).at("rename")
    }),
    ("set-user", |at| set(at, "user.b", b"value")),
    ("set-user-again", |at| set(at, "user.a", b"value")),
    ("set-trusted", |at| set(at, "trusted.b", b"value")),
    ("set-security", |at| set(at, "security.b", b"value")),
    ("set-capability", |at| set(at, "security.capability", &CAPABILITY)),
    ("set-acl", |at| set(at, ACCESS_ACL, &acl())),
    ("set-unknown", |at| set(at, "nowhere.b", b"value")),
    ("remove-user", |at| rustix::fs::removexattr(f(at), "user.a").at("remove")),
    ("remove-trusted", |at| rustix::fs::removexattr(f(at), "trusted.a").at("remove")),
    ("remove-security", |at| rustix::fs::removexattr(f(at), "security.a").at("remove")),
    ("remove-acl", |at| rustix::fs::removexattr(f(at), ACCESS_ACL).at("remove")),
    ("get-user", |at| get(at, "user.a")),
    ("get-trusted", |at| get(at, "trusted.a")),
    ("get-security", |at| get(at, "security.a")),
    ("access-write", |at| access(at, rustix::fs::Access::WRITE_OK)),
    ("access-execute", |at| access(at, rustix::fs::Access::EXEC_OK)),
];

const APPENDS: OFlags = OFlags::WRONLY.union(OFlags::APPEND);
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
const GIVEN: Timespec = Timespec { tv_sec: 900_000_000, tv_nsec: 0 };

fn f(at: &Path) -> std::path::PathBuf {
    at.join("d/f")
}

fn open(at: &Path, flags: OFlags) -> Result<OwnedFd, Failed> {
    rustix::fs::open(f(at), flags, Mode::from_raw_mode(0o644)).at("open")
}

/// Writes, and makes the data durable.
fn write(file: &OwnedFd, offset: u64) -> Done {
    rustix::io::pwrite(file, b"CHANGED", offset).at("write")?;
    rustix::fs::fsync(file).at("sync")
}

fn append(file: &OwnedFd) -> Done {
    rustix::io::write(file, b" and more").at("write")?;
    rustix::fs::fsync(file).at("sync")
}

fn append_cleared(file: &OwnedFd) -> Done {
    rustix::fs::fcntl_setfl(file, OFlags::empty()).at("clear")?;
    write(file, 0)
}

/// Replaces the append flag of a descriptor by `O_DIRECT`.
fn append_cleared_direct(at: &Path) -> Done {
    let file = open(at, APPENDS)?;
    rustix::fs::fcntl_setfl(&file, OFlags::DIRECT).at("clear")?;
    // The size is not a multiple of a block: the write fails or succeeds, but not below the end.
    match rustix::io::pwrite(&file, b"CHANGED", 0) {
        Ok(_) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(errno) => Err(Failed("write", errno)),
    }
}

fn mapped(file: &OwnedFd) -> Done {
    let memory = Mapped::shared(file, 17).at("map")?;
    memory.put(0, b"CHANGED");
    memory.sync().at("sync")
}

fn allocate(at: &Path, flags: OFlags, how: FallocateFlags) -> Done {
    rustix::fs::fallocate(open(at, flags)?, how, 4, 100).at("allocate")
}

fn copy_into(at: &Path, into: &OwnedFd) -> Done {
    let from = rustix::fs::open(at.join("src"), OFlags::RDONLY, Mode::empty()).at("open")?;
    rustix::fs::copy_file_range(from, None, into, Some(&mut 2), 6).at("copy")?;
    rustix::fs::fsync(into).at("sync")
}

fn copy_from(at: &Path) -> Done {
    let into = rustix::fs::open(at.join("src"), OFlags::WRONLY, Mode::empty()).at("open")?;
    let from = open(at, OFlags::RDONLY)?;
    rustix::fs::copy_file_range(from, None, into, None, 6).at("copy").map(drop)
}

fn chown(at: &Path, uid: Option<u32>, gid: Option<u32>) -> Done {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(CWD, f(at), uid, gid, AtFlags::empty()).at("chown")
}

fn stamps(access: Timespec, modification: Timespec) -> Timestamps {
    Timestamps { last_access: access, last_modification: modification }
}

fn times(at: &Path, access: Timespec, modification: Timespec) -> Done {
    let times = stamps(access, modification);
    rustix::fs::utimensat(CWD, f(at), &times, AtFlags::empty()).at("times")
}

fn flags(at: &Path, flags: IFlags) -> Done {
    rustix::fs::ioctl_setflags(open(at, OFlags::RDONLY)?, flags).at("flags")
}

fn set(at: &Path, name: &str, value: &[u8]) -> Done {
    rustix::fs::setxattr(f(at), name, value, XattrFlags::empty()).at("set")
}

fn get(at: &Path, name: &str) -> Done {
    rustix::fs::getxattr(f(at), name, &mut [0; 64][..]).at("get").map(drop)
}

fn access(at: &Path, how: rustix::fs::Access) -> Done {
    rustix::fs::accessat(CWD, f(at), how, AtFlags::EACCESS).at("access")
}

/// Returns an ACL with one more user than the mode has, which may read and write.
pub(super) fn acl() -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, NO_ID), (2, 6, 1005), (4, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 4, NO_ID)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}
