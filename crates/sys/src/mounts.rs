//! The mount table of this process's mount namespace, `/proc/self/mountinfo`, taken apart; and
//! single mounts of it, by descriptor.
//!
//! 1. Paths are bytes: a mount point that is not UTF-8 neither hides the others nor changes.
//! 2. Nothing here calls the mounted filesystems: one that does not answer blocks no reader.
//! 3. A path may lead to another mount than the one that the table had there, so a mount is opened
//!    only where its id and its device number are still found ([`open`]).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::mount::MountAttrFlags;

/// Lines of a mount table that are read, at most.
const LINES_MAX: usize = 100_000;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The id of the mount, and that of the mount which it is mounted on.
    pub id: u64,
    pub parent: u64,
    /// The device number (major, minor) that `stat` shows for its files.
    pub device: (u32, u32),
    /// The directory of the filesystem that the mount shows; not `/` for a bind mount of a
    /// subdirectory.
    pub root: PathBuf,
    pub mountpoint: PathBuf,
    /// Options of this mount alone, joined with commas, as in `rw,nosuid,noatime`.
    pub flags: String,
    /// The filesystem's type, as in `fuse.butternut`.
    pub kind: String,
    pub source: OsString,
    /// Options of the filesystem (not of the one mount), joined with commas.
    pub options: String,
}

impl Mount {
    /// Returns whether this mount, or its filesystem, is read-only.
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro") || self.has_flag("ro")
    }

    /// Returns whether this one mount has an option of this name.
    pub fn has_flag(&self, name: &str) -> bool {
        self.flags.split(',').any(|flag| flag == name)
    }

    /// Returns whether the filesystem has an option of this name.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    /// Returns the value of an option that is written `name=value`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Returns the mounts that this process sees. Their order is that of the kernel, which may list a
/// mount that was moved before the one that it is mounted on.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Returns the mounts that another process sees. They can be those of another mount namespace.
fn read_of(process: u32) -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read(format!("/proc/{process}/mountinfo"))?))
}

/// Returns the mounts of every other mount namespace that has a process which may be looked at.
pub fn of_other_namespaces() -> impl Iterator<Item = Vec<Mount>> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().take(LINES_MAX).flatten();
    processes.filter_map(move |process| {
        let id: u32 = process.file_name().to_string_lossy().parse().ok()?;
        let is_new = namespace(&id.to_string()).is_some_and(|namespace| seen.insert(namespace));
        read_of(id).ok().filter(|_| is_new)
    })
}

/// Returns the topmost mount on a mount point, which is given absolute and without symlinks: the
/// one on which no other mount of that mount point is mounted.
pub fn topmost<'a>(mounts: &'a [Mount], mountpoint: &Path) -> Option<&'a Mount> {
    let here: Vec<&Mount> = mounts.iter().filter(|m| m.mountpoint == mountpoint).collect();
    let covered: HashSet<u64> =
        here.iter().filter(|mount| mount.parent != mount.id).map(|mount| mount.parent).collect();
    here.iter().rev().find(|mount| !covered.contains(&mount.id)).copied()
}

/// Opens the root directory of a mount of the table without calling its filesystem, as a reference
/// for other system calls (`O_PATH`).
///
/// # Errors
/// The mount is gone or was moved, or another mount hides it.
pub fn open(mount: &Mount) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(CWD, &mount.mountpoint, flags, Mode::empty())?;
    // The filesystem of another user's FUSE mount tells root nothing but its device number.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = statx(&fd, "", flags, StatxFlags::empty())?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    let is_it = id == Some(mount.id) && (seen.stx_dev_major, seen.stx_dev_minor) == mount.device;
    if is_it { Ok(fd) } else { Err(io::Error::other("another mount hides it")) }
}

/// Changes the attributes of one mount, which may have no place yet: sets those of `set`, and
/// clears those of `clear`.
///
/// # Errors
/// The caller is not root, or the kernel has no `mount_setattr` (before Linux 5.12).
pub fn set_attributes(
    mount: impl AsFd,
    set: MountAttrFlags,
    clear: MountAttrFlags,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: u64::from(set.bits()),
        attr_clr: u64::from(clear.bits()),
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the path is a string with its NUL, and the structure, of
    // which the size is given, lives through the call, which only reads it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes a table apart. A line that is not understood is left out.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').take(LINES_MAX).filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut field = || fields.next();
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let id = number(field()?)?;
    let parent = number(field()?)?;
    let device = parse_numbers(std::str::from_utf8(field()?).ok()?)?;
    let (root, mountpoint) = (path(field()?), path(field()?));
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let flags = text(field()?);
    // Optional fields end with a hyphen.
    fields.find(|field| *field == b"-")?;
    let mut field = || fields.next();
    let kind = text(field()?);
    let source = OsString::from_vec(unescape(field()?));
    let options = text(field()?);
    Some(Mount { id, parent, device, root, mountpoint, flags, kind, source, options })
}

/// Reads a device number that is written `major:minor`.
pub(crate) fn parse_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn path(field: &[u8]) -> PathBuf {
    OsStr::from_bytes(&unescape(field)).into()
}

/// Undoes the octal escapes of the table: a blank is written `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(code) = code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            out.push(code);
            rest = &after[3..];
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_taken_apart() {
        let table = b"22 1 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n\
            odd\n\
            90 22 0:44 /sub /m\\040x\\134\xff rw master:1 shared:2 - fuse.butternut a\\040b.img \
            rw,user_id=7,group_id=0\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[0].id, mounts[0].device, mounts[0].kind.as_str()), (22, (8, 1), "ext4"));
        let ours = &mounts[1];
        assert_eq!((ours.id, ours.parent, ours.device), (90, 22, (0, 44)));
        assert_eq!((ours.root.as_path(), ours.flags.as_str()), (Path::new("/sub"), "rw"));
        assert_eq!(ours.mountpoint.as_os_str().as_bytes(), b"/m x\\\xff");
        assert_eq!(ours.source, "a b.img");
        assert_eq!((ours.option("user_id"), ours.option("user")), (Some("7"), None));
        assert!(ours.has_option("rw") && !ours.has_option("ro"));
    }

    #[test]
    fn the_topmost_mount_is_the_last_one() {
        let table =
            b"1 0 0:1 / /m rw - a a rw\n2 1 0:2 / /m rw - b b rw\n3 2 0:3 / /m/n rw - c c r";
        let mounts = parse(table);
        assert_eq!(topmost(&mounts, Path::new("/m")).unwrap().id, 2);
        assert!(topmost(&mounts, Path::new("/x")).is_none());
    }

    #[test]
    fn a_mount_that_was_moved_onto_another_is_topmost_wherever_it_is_listed() {
        let table = b"1 0 0:1 / / rw - a a rw\n5 9 0:2 / /m rw - b b rw\n9 1 0:3 / /m rw - c c rw";
        assert_eq!(topmost(&parse(table), Path::new("/m")).unwrap().id, 5);
    }

    #[test]
    fn a_mount_is_opened_only_where_it_is() {
        let mounts = read().unwrap();
        let proc = topmost(&mounts, Path::new("/proc")).unwrap();
        assert!(open(proc).is_ok());
        let elsewhere = Mount { mountpoint: "/".into(), ..proc.clone() };
        assert_eq!(open(&elsewhere).unwrap_err().to_string(), "another mount hides it");
        let other = Mount { id: proc.id + 1, ..proc.clone() };
        assert!(open(&other).is_err());
    }

    #[test]
    fn a_mount_is_read_only_by_itself_or_with_its_filesystem() {
        let is_read_only = |flags: &str, options: &str| {
            let line = format!("1 0 0:1 / / {flags} - a a {options}");
            parse(line.as_bytes())[0].is_read_only()
        };
        assert!(is_read_only("ro,nodev", "rw") && is_read_only("rw", "sync,ro"));
        assert!(!is_read_only("rw,nodev", "rw,sync"));
    }

    #[test]
    fn escapes_are_undone_and_odd_ones_kept() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescape(br"/mnt/odd\9"), br"/mnt/odd\9");
        assert_eq!(unescape(br"/mnt/odd\777"), br"/mnt/odd\777");
    }

    #[test]
    fn the_own_table_has_a_root() {
        assert!(topmost(&read().unwrap(), Path::new("/")).is_some());
    }
}
