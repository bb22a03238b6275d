//! Owners, modes, times, extended attributes, ACLs, capabilities, flags, special files.

use super::seeded::{Texture, bytes};
use anyhow::{Context, Result};
use rustix::fs::{
    AtFlags, CWD, FileType, IFlags, Mode, Timespec, Timestamps, XattrFlags, makedev, mknodat,
};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The maximum size of an xattr value in Linux, in bytes; a leaf usually holds less.
const VALUE_BYTES_MAX: usize = 65_536;

pub fn everything(root: &Path) -> Result<()> {
    xattrs(root)?;
    acls(root)?;
    capabilities(root)?;
    modes_and_owners(root)?;
    times(root)?;
    special_files(root)?;
    flags(root)
}

pub fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    let name = CString::new(name).map_err(|_| rustix::io::Errno::INVAL)?;
    rustix::fs::lsetxattr(path, name.as_c_str(), value, XattrFlags::empty())
}

/// Makes xattrs: small, empty, many, binary, with equal hashes, and the largest that fits.
pub fn xattrs(root: &Path) -> Result<()> {
    let file = root.join("xattrs");
    fs::write(&file, "attributes")?;
    set_xattr(&file, b"user.empty", b"")?;
    set_xattr(&file, b"user.binary", &(0..=255).collect::<Vec<u8>>())?;
    set_xattr(&file, b"user.\xff\xfe", b"a name that is not UTF-8")?;
    set_xattr(&file, b"trusted.secret", b"for root only")?;
    set_xattr(&file, &[b"user.".as_slice(), &[b'n'; 250]].concat(), b"the longest name")?;
    let many = root.join("xattrs-many");
    fs::create_dir(&many)?;
    for number in 0..200_usize {
        let value = bytes(u64::try_from(number)?, Texture::Text, number * 3 % 300);
        set_xattr(&many, format!("user.number-{number}").as_bytes(), &value)?;
    }
    let equal = root.join("xattrs-equal-hash");
    fs::write(&equal, "")?;
    for name in colliding_xattr_names(12) {
        set_xattr(&equal, &name, &name)?;
    }
    largest_xattr(&root.join("xattr-largest"))?;
    let link = root.join("xattr-on-symlink");
    std::os::unix::fs::symlink("nowhere", &link)?;
    set_xattr(&link, b"trusted.link", b"symlinks hold them too").context("trusted xattr")
}

/// Returns names with the same hash, in the `user.` namespace.
fn colliding_xattr_names(count: usize) -> Vec<Vec<u8>> {
    super::names::colliding_names_after(b"user.", count, 30, 5)
}

/// Finds the largest value that the volume accepts, by bisection.
fn largest_xattr(path: &Path) -> Result<()> {
    fs::write(path, "big")?;
    let value = bytes(9, Texture::Noise, VALUE_BYTES_MAX);
    let (mut fits, mut fails) = (0, VALUE_BYTES_MAX + 1);
    while fails - fits > 1 {
        let middle = usize::midpoint(fits, fails);
        match set_xattr(path, b"user.largest", &value[..middle]) {
            Ok(()) => fits = middle,
            Err(_) => fails = middle,
        }
    }
    set_xattr(path, b"user.largest", &value[..fits]).context("the largest xattr")
}

/// Returns an ACL in the kernel's format: version 2, then (tag, permissions, id) of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NO_ID: u32 = u32::MAX;

pub fn acls(root: &Path) -> Result<()> {
    let none = NO_ID;
    let mut entries = vec![(USER_OBJ, 6, none)];
    entries.extend((1000..1040).map(|id| (USER, 4, id)));
    entries.extend([(GROUP_OBJ, 4, none), (GROUP, 6, 2000), (MASK, 6, none), (OTHER, 0, none)]);
    let file = root.join("acl");
    fs::write(&file, "the ACL is on this")?;
    set_xattr(&file, b"system.posix_acl_access", &acl(&entries)).context("ACL")?;
    let dir = root.join("acl-default");
    fs::create_dir(&dir)?;
    set_xattr(&dir, b"system.posix_acl_access", &acl(&entries)).context("ACL")?;
    set_xattr(&dir, b"system.posix_acl_default", &acl(&entries)).context("default ACL")?;
    fs::write(dir.join("inherits"), "an ACL")?;
    fs::create_dir(dir.join("inherits-both"))?;
    Ok(())
}

/// Makes files with `cap_net_raw,cap_net_admin+ep`, and one of version 3 with a root user id.
pub fn capabilities(root: &Path) -> Result<()> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let forms: [(&str, Vec<u8>); 2] = [
        ("capability", words(&[0x0200_0001, 0x3000, 0, 0, 0])),
        ("capability-rooted", words(&[0x0300_0001, 0x3000, 0x3000, 0, 0, 100_000])),
    ];
    for (name, value) in forms {
        let file = root.join(name);
        fs::write(&file, "#!/bin/true\n")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        set_xattr(&file, b"security.capability", &value).context("capability")?;
    }
    Ok(())
}

pub fn modes_and_owners(root: &Path) -> Result<()> {
    let modes = [0o000, 0o001, 0o400, 0o644, 0o777, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777];
    for (number, mode) in (0_u32..).zip(modes) {
        let file = root.join(format!("mode-{mode:04o}"));
        fs::write(&file, "mode")?;
        let dir = root.join(format!("mode-dir-{mode:04o}"));
        fs::create_dir(&dir)?;
        for path in [file, dir] {
            std::os::unix::fs::chown(&path, Some(number * 1000), Some(number * 70_000))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    let extreme = root.join("owner-extreme");
    fs::write(&extreme, "")?;
    std::os::unix::fs::chown(&extreme, Some(u32::MAX - 1), Some(u32::MAX - 1))?;
    Ok(())
}

/// Makes times before 1970, after 2038, far from both, and with extreme nanoseconds.
pub fn times(root: &Path) -> Result<()> {
    let moments = [
        ("epoch", 0, 0),
        ("just-before-epoch", -1, 999_999_999),
        ("year-1900", -2_208_988_800, 1),
        ("year-1901", -2_147_483_649, 500_000_000),
        ("year-2038", 2_147_483_648, 123_456_789),
        ("year-2106", 4_294_967_296, 999_999_999),
        ("year-2500", 16_725_225_600, 42),
        ("year-9999", 253_402_300_799, 7),
        ("far-future", 1 << 40, 0),
        ("far-past", -(1 << 40), 3),
    ];
    for (name, secs, nanos) in moments {
        let path = root.join(format!("time-{name}"));
        fs::write(&path, name)?;
        set_times(&path, (secs, nanos), (secs.saturating_add(1), nanos))?;
    }
    Ok(())
}

fn set_times(path: &Path, access: (i64, i64), modification: (i64, i64)) -> Result<()> {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: spec(access), last_modification: spec(modification) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).context("utimensat")
}

/// Makes device nodes up to the largest numbers, fifos, sockets, symlinks of many lengths.
pub fn special_files(root: &Path) -> Result<()> {
    let mode = Mode::from_raw_mode(0o640);
    let numbers = [(1, 3), (0, 0), (8, 0), (255, 255), (256, 256), (4095, 1_048_575), (259, 4_660)];
    for (major, minor) in numbers {
        for (file_type, name) in
            [(FileType::CharacterDevice, "char"), (FileType::BlockDevice, "block")]
        {
            let path = root.join(format!("{name}-{major}-{minor}"));
            mknodat(CWD, &path, file_type, mode, makedev(major, minor)).context("mknod")?;
        }
    }
    mknodat(CWD, root.join("fifo"), FileType::Fifo, mode, 0).context("mkfifo")?;
    mknodat(CWD, root.join("socket"), FileType::Socket, mode, 0).context("mknod")?;
    let targets = root.join("symlinks");
    fs::create_dir(&targets)?;
    for len in [1, 10, 100, 1000, 2047, 2048, 3000, 3900, 4095] {
        let target = bytes(u64::try_from(len)?, Texture::Text, len);
        let target: Vec<u8> = target.iter().map(|b| if *b == b'\n' { b'/' } else { *b }).collect();
        let path = targets.join(format!("length-{len}"));
        match std::os::unix::fs::symlink(super::names::child(Path::new(""), &target), path) {
            // A small node holds short targets only.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidFilename => {}
            other => other.context("symlink")?,
        }
    }
    std::os::unix::fs::symlink("length-1", targets.join("relative"))?;
    std::os::unix::fs::symlink("loop", targets.join("loop"))?;
    std::os::unix::fs::symlink("../../contents", targets.join("up"))?;
    std::os::unix::fs::symlink(super::names::child(Path::new(""), b"\xff\xfe"), targets.join("b"))?;
    Ok(())
}

/// Sets `chattr` flags. The immutable ones come last, because they forbid later changes.
pub fn flags(root: &Path) -> Result<()> {
    let uncached = root.join("nodatacow");
    fs::create_dir(&uncached)?;
    set_flags(&uncached, IFlags::NOCOW)?;
    fs::write(uncached.join("inherits"), bytes(20, Texture::Noise, 300_000))?;
    fs::write(uncached.join("inherits-small"), "inline")?;
    let compressed = root.join("chattr-compressed");
    File::create(&compressed)?;
    // A volume that is mounted with nodatacow refuses compression.
    set_flags(&compressed, IFlags::COMPRESSED).ok();
    fs::write(&compressed, bytes(21, Texture::Text, 200_000))?;
    let names = [
        ("flag-sync", IFlags::SYNC),
        ("flag-nodump", IFlags::NODUMP),
        ("flag-noatime", IFlags::NOATIME),
        ("flag-dirsync", IFlags::DIRSYNC),
        ("flag-append", IFlags::APPEND),
        ("flag-immutable", IFlags::IMMUTABLE),
    ];
    for (name, flag) in names {
        let path = root.join(name);
        if flag == IFlags::DIRSYNC {
            fs::create_dir(&path)?;
        } else {
            fs::write(&path, bytes(22, Texture::Text, 5000))?;
        }
        set_flags(&path, flag)?;
    }
    Ok(())
}

pub fn set_flags(path: &Path, flags: IFlags) -> Result<()> {
    let file = File::open(path)?;
    let old = rustix::fs::ioctl_getflags(&file).context("reading flags")?;
    rustix::fs::ioctl_setflags(&file, old | flags)
        .with_context(|| format!("chattr on {}", path.display()))
}
