//! Parses the mount table of this process's mount namespace, `/proc/self/mountinfo`, and opens,
//! unmounts and changes single mounts of it.
//!
//! 1. Paths are bytes: a mount point that is not UTF-8 is returned unchanged and hides no other
//!    mount.
//! 2. No function here calls the mounted filesystems, so one that does not respond blocks no
//!    caller.
//! 3. A path may lead to another mount than the one that the table listed there. So a mount is
//!    opened only if the path still leads to its mount id and device number ([`open`]).
//! 4. A mount is detached through its descriptor. A concurrent rename of the path has no effect:
//!    the call detaches that mount, or one that was mounted on it since.
//! 5. A mount that may be busy is unmounted by its path, because a descriptor would keep it busy.
//!    Between the check and the call, the owner of the parent directory can rename the mount point
//!    from another mount namespace. The call then unmounts another idle mount of that directory.
//!    The kernel has no system call without this race.
//! 6. The calling thread may have a descriptor table of its own ([`crate::private_fd_table`]).
//! 7. A user can move an ancestor of a mount point to a deeper place, so a path in the table has no
//!    maximum length. A path that no system call would take is replaced by [`LONG_PATH`], and hides
//!    neither the rest of its line nor another mount.
//! 8. A user can fill the tables of mount namespaces of its own with as many and as long lines as
//!    it likes. Of the table of another process, a limited number of bytes is read. A thread that
//!    looks at the table of the caller of a request keeps one line of it at a time
//!    ([`for_each_of_device`]): many callers may send requests at the same time.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::mount::{MountAttrFlags, UnmountFlags};

use crate::process_search::{self, number_in};

/// Maximum number of processes whose mount namespaces are looked at.
const PROCESSES_MAX: usize = 100_000;
/// Maximum size of the lines of a mount table that are kept, in bytes: of all lines, and of those
/// of one device. The kernel permits 100,000 mounts in a namespace, and fusermount3 makes up to
/// 1,000 for users.
const TABLE_BYTES_MAX: usize = 128 << 20;
const DEVICE_BYTES_MAX: usize = 32 << 20;
/// Maximum size of the own mount table, in bytes, with what is not kept of its lines.
const OWN_BYTES_MAX: u64 = 4 << 30;
/// Maximum size of the mount table of another process, in bytes, and of all tables that a search of
/// other namespaces reads (law 8).
const OTHER_BYTES_MAX: u64 = 64 << 20;
const NAMESPACES_BYTES_MAX: u64 = 256 << 20;
/// Maximum length of a field of a line that is kept, in bytes. A path that a system call takes has
/// at most 16 KiB in the table: 4 KiB, with four characters for a byte.
const FIELD_BYTES_MAX: usize = 64 << 10;
/// Maximum length of what is kept of a line, in bytes. No line has that many fields.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Number of bytes that are read at once.
const READ_BYTES: usize = 1 << 16;

/// Stands for a path that is too long (law 7). It is relative, so no absolute path is below it.
pub const LONG_PATH: &str = "(path too long)";

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount id.
    pub id: u64,
    /// The id of the mount that this one is mounted on.
    pub parent: u64,
    /// The device number (major, minor) that `stat` returns for its files.
    pub device: (u32, u32),
    /// The directory of the filesystem at the root of the mount. It is not `/` for a bind mount of
    /// a subdirectory.
    pub root: PathBuf,
    pub mountpoint: PathBuf,
    /// Per-mount options, joined with commas, as in `rw,nosuid,noatime`.
    pub flags: String,
    /// The type of the filesystem, as in `fuse.butternut`.
    pub kind: String,
    pub source: OsString,
    /// Options of the filesystem, joined with commas.
    pub options: String,
}

impl Mount {
    /// Returns whether this mount, or its filesystem, is read-only.
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro") || self.has_flag("ro")
    }

    /// Returns whether two lines of mount tables are of the same mount, which may have been moved
    /// or remounted with other options in between.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.id, self.device) == (other.id, other.device)
    }

    /// Returns whether this mount is mounted directly on `carrier`.
    pub fn is_on(&self, carrier: &Self) -> bool {
        self.parent == carrier.id && self.id != carrier.id
    }

    /// Returns whether the per-mount options contain `name`.
    pub fn has_flag(&self, name: &str) -> bool {
        self.flags.split(',').any(|flag| flag == name)
    }

    /// Returns whether the filesystem options contain `name`.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    /// Returns the value of a filesystem option that is written `name=value`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Returns the mounts that this process sees, in the order of the kernel, which may list a moved
/// mount before the one that it is mounted on.
///
/// # Errors
/// `/proc` cannot be read, or the lines have more than 128 MiB without paths that are too long. The
/// caller must not take that for a table without mounts.
pub fn read() -> io::Result<Vec<Mount>> {
    read_lines(&mut Table::own()?, None)
}

/// Returns the mounts that another process sees, perhaps in another mount namespace.
///
/// # Errors
/// As of [`read`], or the table of another namespace has more than 64 MiB.
pub fn read_of(process: u32) -> io::Result<Vec<Mount>> {
    read_lines(&mut Table::of(process, OTHER_BYTES_MAX)?, None)
}

/// Calls `each` with every mount of one device number that another process sees. Keeps one line at
/// a time, so it needs little memory in a namespace with many mounts (law 8).
///
/// # Errors
/// `/proc` cannot be read, or the table of another namespace has more than 64 MiB. `each` may have
/// been called before.
pub fn for_each_of_device(
    process: u32,
    device: (u32, u32),
    each: impl FnMut(&Mount),
) -> io::Result<()> {
    for_each_line(&mut Table::of(process, OTHER_BYTES_MAX)?, device, each)
}

/// Calls `each` with every mount of one device number that this process sees, and keeps one line at
/// a time.
///
/// # Errors
/// `/proc` cannot be read. `each` may have been called before.
pub fn for_each_own_of_device(device: (u32, u32), each: impl FnMut(&Mount)) -> io::Result<()> {
    for_each_line(&mut Table::own()?, device, each)
}

/// Returns the mounts of one device number that this process sees. The table may have any number of
/// lines of other devices.
///
/// # Errors
/// `/proc` cannot be read, or the lines of the device have more than 32 MiB.
pub fn read_own_of_device(device: (u32, u32)) -> io::Result<Vec<Mount>> {
    read_lines(&mut Table::own()?, Some(device))
}

/// A mount table of which a limited number of bytes is read. A part of it would hide mounts, so the
/// read that exceeds the limit fails.
struct Table<R> {
    from: R,
    bytes_left: u64,
}

impl Table<fs::File> {
    fn own() -> io::Result<Self> {
        Ok(Self { from: fs::File::open("/proc/self/mountinfo")?, bytes_left: OWN_BYTES_MAX })
    }

    /// Opens the table of another process (law 8). That of a process in the own namespace may be as
    /// long as the own one.
    fn of(process: u32, bytes_left: u64) -> io::Result<Self> {
        let is_own =
            namespace_of(&process.to_string()).is_some_and(|it| Some(it) == own_namespace());
        let bytes_left = if is_own { OWN_BYTES_MAX } else { bytes_left };
        Ok(Self { from: fs::File::open(format!("/proc/{process}/mountinfo"))?, bytes_left })
    }
}

impl<R: Read> Read for Table<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.from.read(into)?;
        let left = self.bytes_left.checked_sub(bytes as u64);
        self.bytes_left = left.unwrap_or(0);
        if left.is_some() { Ok(bytes) } else { Err(too_long("the mount table")) }
    }
}

/// Parses the lines of one device number, or all lines.
fn read_lines(table: &mut impl Read, device: Option<(u32, u32)>) -> io::Result<Vec<Mount>> {
    let bytes_max = if device.is_some() { DEVICE_BYTES_MAX } else { TABLE_BYTES_MAX };
    let (mut mounts, mut bytes_kept) = (Vec::new(), 0);
    scan_lines(table, device, |line| {
        bytes_kept += line.len();
        if bytes_kept > bytes_max {
            return Err(too_long("the part of the mount table that is searched"));
        }
        mounts.extend(parse_line(line));
        Ok(())
    })?;
    Ok(mounts)
}

/// Parses the lines of one device number one after another.
fn for_each_line(
    table: &mut impl Read,
    device: (u32, u32),
    mut each: impl FnMut(&Mount),
) -> io::Result<()> {
    scan_lines(table, Some(device), |line| {
        parse_line(line).iter().for_each(&mut each);
        Ok(())
    })
}

/// Passes each line of one device number, which is the third field, or each line, to `scan`, until
/// that fails.
fn scan_lines(
    table: &mut impl Read,
    device: Option<(u32, u32)>,
    mut scan: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let number = device.map(|(major, minor)| format!("{major}:{minor}"));
    let mut table = BufReader::with_capacity(READ_BYTES, table);
    let mut line = Vec::new();
    while read_line(&mut table, &mut line)? {
        let device = line.split(|byte| *byte == b' ').nth(2).unwrap_or_default();
        if number.as_ref().is_none_or(|number| number.as_bytes() == device) {
            scan(&line)?;
        }
    }
    Ok(())
}

/// Reads a line without its end, and of each field at most one byte more than [`FIELD_BYTES_MAX`].
/// Returns `false` at the end of the table.
fn read_line(table: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let (mut is_begun, mut field_bytes) = (false, 0);
    loop {
        let bytes = table.fill_buf()?;
        if bytes.is_empty() {
            return Ok(is_begun);
        }
        is_begun = true;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        for byte in &bytes[..end.unwrap_or(bytes.len())] {
            field_bytes = if *byte == b' ' { 0 } else { field_bytes + 1 };
            if field_bytes <= FIELD_BYTES_MAX + 1 && line.len() < LINE_BYTES_MAX {
                line.push(*byte);
            }
        }
        let read = end.map_or(bytes.len(), |end| end + 1);
        table.consume(read);
        if end.is_some() {
            return Ok(true);
        }
    }
}

fn too_long(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("{what} is too long"))
}

fn own_namespace() -> Option<PathBuf> {
    namespace_of("self")
}

/// Returns the name of the mount namespace of a process.
fn namespace_of(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Returns the mounts of one device number in every other mount namespace that has a process whose
/// `/proc` entries this process may read. An error stands for a namespace with a table that is too
/// long (law 8): longer than 64 MiB, or than what earlier ones have left of 256 MiB. Namespaces
/// after that are left out.
pub fn of_other_namespaces(device: (u32, u32)) -> impl Iterator<Item = io::Result<Vec<Mount>>> {
    let mut seen: HashSet<PathBuf> = own_namespace().into_iter().collect();
    let mut bytes_left = NAMESPACES_BYTES_MAX;
    let processes = fs::read_dir("/proc").into_iter().flatten().take(PROCESSES_MAX).flatten();
    processes.filter_map(move |process| {
        let id: u32 = process.file_name().to_string_lossy().parse().ok()?;
        let namespace = namespace_of(&id.to_string())?;
        if bytes_left == 0 || seen.contains(&namespace) {
            return None;
        }
        let bytes_max = OTHER_BYTES_MAX.min(bytes_left);
        // If the process has ended, another one of its namespace may follow.
        let mut table = Table::of(id, bytes_max).ok()?;
        seen.insert(namespace);
        let read = read_lines(&mut table, Some(device));
        bytes_left -= bytes_max.saturating_sub(table.bytes_left);
        match read {
            // The process has ended, or is hidden.
            Err(error) if error.kind() != io::ErrorKind::FileTooLarge => None,
            read => Some(read),
        }
    })
}

/// Returns the topmost mount on a mount point: the one that no other mount of that mount point
/// covers. The path is absolute and without symlinks.
pub fn topmost<'a>(mounts: &'a [Mount], mountpoint: &Path) -> Option<&'a Mount> {
    let here: Vec<&Mount> = mounts.iter().filter(|m| m.mountpoint == mountpoint).collect();
    let covered: HashSet<u64> =
        here.iter().filter(|mount| mount.parent != mount.id).map(|mount| mount.parent).collect();
    here.iter().rev().find(|mount| !covered.contains(&mount.id)).copied()
}

/// Opens the root directory of a mount of the table with `O_PATH`, without calling its filesystem.
///
/// # Errors
/// The mount was unmounted or moved, or another mount covers it.
pub fn open(mount: &Mount) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(CWD, &mount.mountpoint, flags, Mode::empty())?;
    // A FUSE mount of another user denies root everything except the device number.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = statx(&fd, "", flags, StatxFlags::empty())?;
    let is_it = id_of(&fd)? == mount.id && (seen.stx_dev_major, seen.stx_dev_minor) == mount.device;
    if is_it { Ok(fd) } else { Err(io::Error::other("another mount covers it")) }
}

/// Returns the mount id of an open file.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn id_of(fd: &OwnedFd) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("fdinfo has no mnt_id"))
}

/// Returns the mount id of a file that another process has open, without a call to the filesystem
/// of that file. `process` is the directory of the process in `/proc`.
///
/// # Errors
/// There is no such descriptor, or its file has no path, or it is hidden.
pub fn id_of_descriptor(process: &Path, fd: u64) -> io::Result<u64> {
    let number = fd.to_string();
    let descriptor = process_search::descriptor(process, OsStr::new(&number));
    let info = descriptor.and_then(|descriptor| descriptor.info());
    let id = info.and_then(|info| number_in(&info, "mnt_id:"));
    id.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the id of the mount that the root directory of another process is on, without a call to
/// the filesystem of that directory. `process` is the directory of the process in `/proc`.
///
/// # Errors
/// There is no such process, or it is hidden.
pub fn id_of_root(process: &Path) -> io::Result<u64> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    id_of(&openat(CWD, process.join("root"), flags, Mode::empty())?)
}

/// Unmounts a mount of the table as root, or detaches it (laws 4 and 5).
///
/// A mount that is not detached is unmounted by its path (law 5): the function opens the parent
/// directory of the mount point and checks that the mount is there, then unmounts the name in that
/// directory. The owner of a directory further up cannot redirect the call; the owner of the parent
/// directory itself can.
///
/// # Errors
/// `EBUSY`: the mount is in use. `EPERM`: the caller is not root. Or as of [`open`].
pub fn unmount(mount: &Mount, flags: UnmountFlags) -> io::Result<()> {
    if flags.contains(UnmountFlags::DETACH) {
        let root = open(mount)?;
        // The path is a magic link to the descriptor, so the call must follow it.
        let path = format!("/proc/thread-self/fd/{}", root.as_raw_fd());
        return Ok(rustix::mount::unmount(path, flags)?);
    }
    let (Some(parent), Some(name)) = (mount.mountpoint.parent(), mount.mountpoint.file_name())
    else {
        return Err(io::Error::other("the root directory cannot be unmounted"));
    };
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, parent, how, Mode::empty())?;
    let path = Path::new(&format!("/proc/thread-self/fd/{}", parent.as_raw_fd())).join(name);
    // The check must not keep a descriptor: it would make the mount busy.
    drop(open(&Mount { mountpoint: path.clone(), ..mount.clone() })?);
    Ok(rustix::mount::unmount(&path, flags | UnmountFlags::NOFOLLOW)?)
}

/// Sets the attributes `set` of one mount and clears `clear`. The mount may be detached.
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
    // SAFETY: the descriptor is open, the path is a string with its NUL, and the structure, whose
    // size is passed, lives through the call, which only reads it.
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

/// Parses a mount table. Skips lines that it does not understand.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut field = || fields.next();
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let id = number(field()?)?;
    let parent = number(field()?)?;
    let device = parse_numbers(std::str::from_utf8(field()?).ok()?)?;
    let (root, mountpoint) = (path(field()?), path(field()?));
    let text = |field: &[u8]| String::from_utf8_lossy(whole_options(field)).into_owned();
    let flags = text(field()?);
    // A hyphen ends the optional fields.
    fields.find(|field| *field == b"-")?;
    let mut field = || fields.next();
    let kind = text(field()?);
    let source = path(field()?).into_os_string();
    let options = text(field()?);
    Some(Mount { id, parent, device, root, mountpoint, flags, kind, source, options })
}

/// Parses a device number that is written `major:minor`.
pub(crate) fn parse_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Decodes a path, unless it is too long (law 7).
fn path(field: &[u8]) -> PathBuf {
    if field.len() > FIELD_BYTES_MAX {
        return LONG_PATH.into();
    }
    OsStr::from_bytes(&unescape(field)).into()
}

/// Returns the options that fit into a field of limited length, without one that was cut.
fn whole_options(field: &[u8]) -> &[u8] {
    let Some(cut) = field.get(..=FIELD_BYTES_MAX) else { return field };
    let end = cut.iter().rposition(|byte| *byte == b',');
    &cut[..end.unwrap_or(0)]
}

/// Decodes the octal escapes of the table: a blank is written `\040`.
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
    fn a_mount_table_is_parsed() {
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
    fn the_mounts_of_one_device_are_parsed() {
        let table =
            b"1 0 0:4 / / rw - a a rw\n2 0 0:44 / /m ro - b b rw\n3 0 0:44 / /n rw - b b rw\n\
            0:44 0:44 0:4 / /o rw - c c rw\n";
        assert_eq!(read_lines(&mut &table[..], Some((0, 44))).unwrap(), parse(table)[1..3]);
        assert_eq!(read_lines(&mut &table[..], None).unwrap(), parse(table));
    }

    /// Returns a line with a mount point and options of a length in bytes.
    fn line(device: &str, mountpoint: usize, options: usize) -> Vec<u8> {
        let (mountpoint, options) = ("m".repeat(mountpoint), ",option".repeat(options / 7));
        format!("1 0 {device} / /{mountpoint} ro shared:1 - a b rw{options}\n").into_bytes()
    }

    fn refused(read: io::Result<Vec<Mount>>) -> bool {
        read.is_err_and(|error| error.kind() == io::ErrorKind::FileTooLarge)
    }

    #[test]
    fn a_long_line_hides_no_mount() {
        // The directories above a mount point can be moved deeper after the mount.
        let (deep, own) = (line("0:4", 2 << 20, 0), line("0:44", 10, 0));
        for table in [[&deep[..], &own].concat(), [&own[..], &deep].concat()] {
            let read = |device| read_lines(&mut &table[..], device).unwrap();
            assert_eq!(read(Some((0, 44))), parse(&own));
            let all = read(None);
            assert!(all.len() == 2 && all.contains(&parse(&own)[0]));
            assert_eq!(all, parse(&table), "a table in memory");
        }
        let read = read_lines(&mut &deep[..], Some((0, 4))).unwrap();
        let [mount] = &read[..] else { panic!("{} mounts", read.len()) };
        assert_eq!(mount.mountpoint, Path::new(LONG_PATH));
        assert_eq!((mount.id, mount.kind.as_str(), mount.is_read_only()), (1, "a", true));
        assert!(!Path::new("/m").starts_with(&mount.mountpoint));
        assert!(open(mount).is_err() && unmount(mount, UnmountFlags::empty()).is_err());
    }

    #[test]
    fn of_too_many_options_those_that_are_whole_are_kept() {
        let options = parse(&line("0:4", 1, 2 << 20))[0].options.clone();
        assert!(options.starts_with("rw,option,") && options.ends_with(",option"));
        assert!(options.len() <= FIELD_BYTES_MAX && options.len() > FIELD_BYTES_MAX - 10);
    }

    #[test]
    fn many_lines_of_other_devices_hide_no_mount() {
        let (other, own) = (line("0:4", 200 << 10, 0), line("0:44", 0, 50 << 10));
        let others = || Repeated(other.clone(), 0).take(200 * other.len() as u64);
        let found = read_lines(&mut others().chain(&own[..]), Some((0, 44))).unwrap();
        assert_eq!(found, parse(&own));
        assert_eq!(read_lines(&mut others(), None).unwrap().len(), 200);
        for device in [None, Some((0, 44))] {
            assert!(refused(read_lines(&mut Repeated(own.clone(), 0), device)), "{device:?}");
        }
    }

    #[test]
    fn of_the_table_of_another_process_a_limited_number_of_bytes_is_read() {
        // A user's own mount namespace can have 100,000 lines of up to 1 MiB: 100 GB.
        let long = line("0:4", 900 << 10, 0);
        let read = |device| {
            let table = Repeated(long.clone(), 0);
            read_lines(&mut Table { from: table, bytes_left: OTHER_BYTES_MAX }, device)
        };
        assert!(refused(read(None)) && refused(read(Some((0, 44)))));
        let endless = |bytes_left| Table { from: io::repeat(b'a'), bytes_left };
        assert!(refused(read_lines(&mut endless(1 << 20), None)));
        let table = &line("0:4", 1, 0)[..];
        let bytes = table.len() as u64;
        assert!(refused(read_lines(&mut Table { from: table, bytes_left: bytes - 1 }, None)));
        let read = read_lines(&mut Table { from: table, bytes_left: bytes }, None).unwrap();
        assert_eq!(read, parse(table));
    }

    #[test]
    fn any_number_of_lines_of_the_device_is_passed_on() {
        let (other, own) = (line("0:4", 10, 0), line("0:44", 0, 50 << 10));
        let lines = (DEVICE_BYTES_MAX / own.len() + 10) as u64;
        let table = Repeated(own.clone(), 0).take(lines * own.len() as u64);
        let mut seen = 0;
        let is_it = |mount: &Mount| assert!(mount.is_read_only() && mount.device == (0, 44));
        for_each_line(&mut (&other[..]).chain(table), (0, 44), |mount| {
            is_it(mount);
            seen += 1;
        })
        .unwrap();
        assert_eq!(seen, lines);
        let mut long = Table { from: &own[..], bytes_left: own.len() as u64 - 1 };
        let read = for_each_line(&mut long, (0, 44), |_| ());
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    /// The same bytes again and again, and the position in them.
    struct Repeated(Vec<u8>, usize);

    impl Read for Repeated {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let bytes = (&self.0[self.1..]).read(into)?;
            self.1 = (self.1 + bytes) % self.0.len();
            Ok(bytes)
        }
    }

    #[test]
    fn the_mount_of_a_descriptor_is_found_without_a_call_to_its_filesystem() {
        let file: OwnedFd = tempfile::NamedTempFile::new().unwrap().into_file().into();
        let id = |fd: i32| id_of_descriptor(Path::new("/proc/self"), fd.try_into().unwrap());
        assert_eq!(id(file.as_raw_fd()).unwrap(), id_of(&file).unwrap());
        let without_path = crate::event::Event::new().unwrap();
        assert!(id(without_path.as_fd().as_raw_fd()).is_err());
        assert!(id(i32::MAX).is_err(), "no such descriptor");
    }

    #[test]
    fn the_mount_of_the_root_of_a_process_is_found() {
        let root: OwnedFd = fs::File::open("/").unwrap().into();
        assert_eq!(id_of_root(Path::new("/proc/self")).unwrap(), id_of(&root).unwrap());
        assert!(id_of_root(Path::new("/proc/none")).is_err());
    }

    #[test]
    fn the_topmost_mount_covers_the_others() {
        let table =
            b"1 0 0:1 / /m rw - a a rw\n2 1 0:2 / /m rw - b b rw\n3 2 0:3 / /m/n rw - c c r";
        let mounts = parse(table);
        assert_eq!(topmost(&mounts, Path::new("/m")).unwrap().id, 2);
        assert!(topmost(&mounts, Path::new("/x")).is_none());
    }

    #[test]
    fn a_mount_moved_onto_another_is_topmost_in_any_listing_order() {
        let table = b"1 0 0:1 / / rw - a a rw\n5 9 0:2 / /m rw - b b rw\n9 1 0:3 / /m rw - c c rw";
        assert_eq!(topmost(&parse(table), Path::new("/m")).unwrap().id, 5);
    }

    #[test]
    fn a_mount_is_opened_only_at_its_own_place() {
        let mounts = read().unwrap();
        let proc = topmost(&mounts, Path::new("/proc")).unwrap();
        assert!(open(proc).is_ok());
        let elsewhere = Mount { mountpoint: "/".into(), ..proc.clone() };
        assert_eq!(open(&elsewhere).unwrap_err().to_string(), "another mount covers it");
        let other = Mount { id: proc.id + 1, ..proc.clone() };
        assert!(open(&other).is_err());
    }

    #[test]
    fn a_mount_is_read_only_by_a_mount_flag_or_a_filesystem_option() {
        let is_read_only = |flags: &str, options: &str| {
            let line = format!("1 0 0:1 / / {flags} - a a {options}");
            parse(line.as_bytes())[0].is_read_only()
        };
        assert!(is_read_only("ro,nodev", "rw") && is_read_only("rw", "sync,ro"));
        assert!(!is_read_only("rw,nodev", "rw,sync"));
    }

    #[test]
    fn octal_escapes_are_decoded_and_invalid_ones_kept() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescape(br"/mnt/odd\9"), br"/mnt/odd\9");
        assert_eq!(unescape(br"/mnt/odd\777"), br"/mnt/odd\777");
    }

    #[test]
    fn the_mount_table_of_this_process_has_a_root() {
        assert!(topmost(&read().unwrap(), Path::new("/")).is_some());
    }
}
