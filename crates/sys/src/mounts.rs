//! The mount table of this process's mount namespace, `/proc/self/mountinfo`, taken apart.
//!
//! 1. Paths are bytes: a mount point that is not UTF-8 neither hides the others nor changes.
//! 2. Nothing here calls the mounted filesystems: one that does not answer blocks no reader.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

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
    /// Returns whether the filesystem has an option of this name.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    /// Returns the value of an option that is written `name=value`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Returns the mounts that this process sees, each after the one that it is mounted on.
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

/// Returns the topmost mount on a mount point, which is given absolute and without symlinks.
pub fn topmost<'a>(mounts: &'a [Mount], mountpoint: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.mountpoint == mountpoint)
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
