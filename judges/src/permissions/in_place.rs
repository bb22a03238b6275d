//! Operations on the directory `d` of a case, and on the names in it.

use super::{ANOTHER, At, Failed, Operation, on_file};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, Uid, XattrFlags, makedev,
};
use std::path::{Path, PathBuf};

type Done = Result<(), Failed>;

pub const OPERATIONS: &[(&str, Operation)] = &[
    ("list", |at| std::fs::read_dir(at.join("d")).at("list").map(drop)),
    ("create", |at| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        rustix::fs::open(at.join("d/new"), flags, Mode::from_raw_mode(0o6777)).at("open").map(drop)
    }),
    ("create-old", |at| {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        rustix::fs::open(at.join("d/g"), flags, Mode::from_raw_mode(0o666)).at("open").map(drop)
    }),
    ("unnamed", |at| {
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        rustix::fs::open(at.join("d"), flags, Mode::from_raw_mode(0o666)).at("open").map(drop)
    }),
    ("mkdir", |at| rustix::fs::mkdir(at.join("d/new"), Mode::from_raw_mode(0o777)).at("mkdir")),
    ("mkdir-old", |at| rustix::fs::mkdir(at.join("d/sub"), Mode::from_raw_mode(0o777)).at("mkdir")),
    ("fifo", |at| node(at, FileType::Fifo, 0)),
    ("socket", |at| node(at, FileType::Socket, 0)),
    ("character-device", |at| node(at, FileType::CharacterDevice, makedev(1, 3))),
    ("whiteout", |at| node(at, FileType::CharacterDevice, 0)),
    ("block-device", |at| node(at, FileType::BlockDevice, makedev(7, 0))),
    ("symlink", |at| rustix::fs::symlink("f", at.join("d/new")).at("symlink")),
    ("link-in", |at| rustix::fs::link(at.join("src"), at.join("d/new")).at("link")),
    ("link-out", |at| rustix::fs::link(at.join("d/f"), at.join("new")).at("link")),
    ("unlink", |at| rustix::fs::unlink(at.join("d/f")).at("unlink")),
    ("unlink-link", |at| rustix::fs::unlink(at.join("d/link")).at("unlink")),
    ("rmdir", |at| rustix::fs::rmdir(at.join("d/sub")).at("rmdir")),
    ("rmdir-itself", |at| rustix::fs::rmdir(at.join("d")).at("rmdir")),
    ("rename", |at| rustix::fs::rename(at.join("d/f"), at.join("d/new")).at("rename")),
    ("rename-over", |at| rustix::fs::rename(at.join("d/f"), at.join("d/g")).at("rename")),
    ("rename-directory", |at| rustix::fs::rename(at.join("d/sub"), at.join("d/new")).at("rename")),
    ("rename-out", |at| rustix::fs::rename(at.join("d/f"), at.join("new")).at("rename")),
    ("rename-directory-out", |at| {
        rustix::fs::rename(at.join("d/sub"), at.join("new")).at("rename")
    }),
    ("rename-in", |at| rustix::fs::rename(at.join("out"), at.join("d/new")).at("rename")),
    ("rename-in-over", |at| rustix::fs::rename(at.join("out"), at.join("d/f")).at("rename")),
    ("rename-itself", |at| rustix::fs::rename(at.join("d"), at.join("e")).at("rename")),
    ("exchange", |at| {
        let (one, other) = (at.join("d/f"), at.join("d/sub"));
        rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).at("rename")
    }),
    ("write-inside", |at| {
        let file = rustix::fs::open(at.join("d/g"), OFlags::WRONLY, Mode::empty()).at("open")?;
        rustix::io::write(file, b"inside").at("write").map(drop)
    }),
    ("chmod", |at| rustix::fs::chmod(d(at), Mode::from_raw_mode(0o700)).at("chmod")),
    ("chmod-set-group", |at| rustix::fs::chmod(d(at), Mode::from_raw_mode(0o2775)).at("chmod")),
    ("chmod-sticky", |at| rustix::fs::chmod(d(at), Mode::from_raw_mode(0o1755)).at("chmod")),
    ("chown", |at| chown(at, Some(ANOTHER + 1), None)),
    ("chgrp", |at| chown(at, None, Some(3000))),
    ("touch", |at| {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        times(at, now)
    }),
    ("times", |at| times(at, Timespec { tv_sec: 900_000_000, tv_nsec: 0 })),
    ("flags-none", |at| flags(at, IFlags::empty())),
    ("flags-immutable", |at| flags(at, IFlags::IMMUTABLE)),
    ("flags-nodump", |at| flags(at, IFlags::NODUMP)),
    ("set-user", |at| set(at, "user.b", b"value")),
    ("set-trusted", |at| set(at, "trusted.b", b"value")),
    ("set-security", |at| set(at, "security.b", b"value")),
    ("set-acl", |at| set(at, "system.posix_acl_access", &on_file::acl())),
    ("set-default-acl", |at| set(at, "system.posix_acl_default", &on_file::acl())),
    ("remove-user", |at| rustix::fs::removexattr(d(at), "user.a").at("remove")),
    ("access-write", |at| {
        let how = rustix::fs::Access::WRITE_OK;
        rustix::fs::accessat(CWD, d(at), how, AtFlags::EACCESS).at("access")
    }),
];

fn d(at: &Path) -> PathBuf {
    at.join("d")
}

fn node(at: &Path, kind: FileType, device: u64) -> Done {
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, at.join("d/new"), kind, mode, device).at("mknod")
}

fn chown(at: &Path, uid: Option<u32>, gid: Option<u32>) -> Done {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(CWD, d(at), uid, gid, AtFlags::empty()).at("chown")
}

fn times(at: &Path, to: Timespec) -> Done {
    let times = Timestamps { last_access: to, last_modification: to };
    rustix::fs::utimensat(CWD, d(at), &times, AtFlags::empty()).at("times")
}

fn flags(at: &Path, flags: IFlags) -> Done {
    let dir = rustix::fs::open(d(at), OFlags::RDONLY, Mode::empty()).at("open")?;
    rustix::fs::ioctl_setflags(dir, flags).at("flags")
}

fn set(at: &Path, name: &str, value: &[u8]) -> Done {
    rustix::fs::setxattr(d(at), name, value, XattrFlags::empty()).at("set")
}
