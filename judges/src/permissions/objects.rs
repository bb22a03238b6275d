//! The objects of the table. Root makes them on one filesystem, and describes them on each.

use super::{ANOTHER, Case, Flag, GROUP, OWNER, Object, cases};
use anyhow::{Context, Result};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// The time stamp of all new objects, in seconds.
const MADE: i64 = 1_000_000_000;

const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes the objects of all cases below `root`.
pub fn make_all(root: &Path) -> Result<()> {
    std::fs::create_dir(root)?;
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
    for (at, case) in cases().iter().enumerate() {
        let dir = root.join(at.to_string());
        make(&dir, case).with_context(|| case.name())?;
    }
    Ok(())
}

fn make(dir: &Path, case: &Case) -> Result<()> {
    let place = dir.join("d");
    directory(dir, 0o777, OWNER)?;
    directory(&place, 0o777, OWNER)?;
    let is_wide = case.object == Object::Directory;
    if is_wide || case.operation.starts_with("copy") {
        file(&dir.join("src"), 0o666, b"source", OWNER)?;
    }
    let (file_mode, in_sticky) = match case.object {
        Object::File => (case.mode, false),
        Object::Directory => (0o644, case.mode & 0o1000 != 0),
    };
    let target = place.join("f");
    file(&target, file_mode, b"before the change", OWNER)?;
    if is_wide || matches!(case.operation, "rename-over" | "exchange") {
        file(&place.join("g"), 0o666, b"the other", OWNER)?;
        made_then(&place.join("g"))?;
    }
    if is_wide {
        file(&dir.join("out"), 0o666, b"outside", OWNER)?;
        directory(&place.join("sub"), 0o777, OWNER)?;
        made_then(&place.join("sub"))?;
        symlink("f", place.join("link"))?;
    }
    let flagged = match case.object {
        Object::File => target,
        Object::Directory => {
            rustix::fs::chmod(&place, Mode::from_raw_mode(case.mode))?;
            if in_sticky {
                own(&place, ANOTHER)?;
                rustix::fs::chmod(&place, Mode::from_raw_mode(case.mode))?;
            }
            place.clone()
        }
    };
    for (name, value) in
        [("user.a", &b"mine"[..]), ("trusted.a", b"root's"), ("security.a", b"a label")]
    {
        rustix::fs::setxattr(&flagged, name, value, XattrFlags::empty())?;
    }
    if case.object == Object::File && case.mode == 0o6777 {
        let (name, flags) = ("security.capability", XattrFlags::empty());
        rustix::fs::setxattr(&flagged, name, &CAPABILITY, flags)?;
    }
    made_then(&place)?;
    made_then(&place.join("f"))?;
    let flag = match case.flag {
        Flag::None => return Ok(()),
        Flag::Immutable => IFlags::IMMUTABLE,
        Flag::AppendOnly => IFlags::APPEND,
    };
    let opened = rustix::fs::open(&flagged, OFlags::RDONLY, Mode::empty())?;
    Ok(rustix::fs::ioctl_setflags(opened, flag)?)
}

fn own(path: &Path, uid: u32) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(GROUP));
    Ok(rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn directory(path: &Path, mode: u32, uid: u32) -> Result<()> {
    std::fs::create_dir(path)?;
    own(path, uid)?;
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

fn file(path: &Path, mode: u32, bytes: &[u8], uid: u32) -> Result<()> {
    std::fs::write(path, bytes)?;
    own(path, uid)?;
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

fn made_then(path: &Path) -> Result<()> {
    let at = Timespec { tv_sec: MADE, tv_nsec: 0 };
    let times = Timestamps { last_access: at, last_modification: at };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Describes the objects of every case below `root` after the operations, one line for each.
pub fn describe_all(root: &Path) -> Result<Vec<String>> {
    let all = (0..cases().len()).map(|at| {
        let mut seen = String::new();
        describe(&root.join(at.to_string()), "", &mut seen)?;
        Ok(seen)
    });
    all.collect()
}

fn describe(dir: &Path, above: &str, seen: &mut String) -> Result<()> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    for name in names {
        let path = dir.join(&name);
        let shown = format!("{above}{}", name.to_string_lossy());
        let meta = std::fs::symlink_metadata(&path)?;
        let kind = FileType::from_raw_mode(meta.mode());
        write!(seen, "{shown}: {:o} {}:{} links {} ", meta.mode(), meta.uid(), meta.gid(), {
            if kind == FileType::Directory { 0 } else { meta.nlink() }
        })?;
        match kind {
            FileType::Directory => {}
            FileType::CharacterDevice | FileType::BlockDevice => {
                write!(seen, "device {} ", meta.rdev())?;
            }
            FileType::RegularFile
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => write!(seen, "{} bytes ", meta.size())?,
        }
        write!(seen, "{} {} ", time(meta.mtime()), time(meta.atime()))?;
        if matches!(&*shown, "d" | "d/f" | "d/new" | "new") && is_readable(kind) {
            attributes(&path, seen)?;
        }
        if kind == FileType::RegularFile {
            write!(seen, "{:?}", String::from_utf8_lossy(&std::fs::read(&path)?))?;
        }
        seen.push_str("; ");
        if kind == FileType::Directory {
            describe(&path, &format!("{shown}/"), seen)?;
        }
    }
    Ok(())
}

fn is_readable(kind: FileType) -> bool {
    kind == FileType::RegularFile || kind == FileType::Directory
}

fn attributes(path: &Path, seen: &mut String) -> Result<()> {
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::NOATIME, Mode::empty())?;
    let flags = rustix::fs::ioctl_getflags(&opened)?;
    write!(seen, "flags {:x} ", flags.bits())?;
    let mut names = vec![0; 1024];
    let bytes = rustix::fs::flistxattr(&opened, &mut names[..])?;
    let mut names: Vec<_> =
        names[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    for name in names {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = [0; 256];
        let bytes = rustix::fs::fgetxattr(&opened, &*name, &mut value[..])?;
        write!(seen, "{name}={} ", value[..bytes].escape_ascii())?;
    }
    Ok(())
}

/// Describes a time by its origin: the initial time stamp, a given one, or that of the operation.
fn time(secs: i64) -> String {
    if secs < MADE + 1_000_000 { secs.to_string() } else { "now".to_owned() }
}
