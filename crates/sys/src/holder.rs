//! Who holds a busy disk, as far as /proc and /sys tell.
//!
//! Every answer is a hint for a person: it is asked after the refusal, so the holder may be gone
//! already, and other users' processes may be hidden. Nothing here decides anything, except:
//!
//! 1. [`over_loop`], [`lock_beyond_reach`] and [`writing_mount`] find users of the same bytes that
//!    no lock of an opener's own would meet: a loop device that is mounted, or open exclusively or
//!    for writing; a lock of a file that no path leads to. Disks are compared by the numbers of
//!    what they stand on ([`crate::block`]), never by paths.
//! 2. [`Holder::Unknown`] makes an opener wait a moment: a holder who cannot be seen may have
//!    ended, and then his lock soon ends too ([`crate::file`]).
//! 3. No file is asked about that others have open and that cannot be the disk: it may lie on a
//!    file system that does not answer.
//! 4. A user can write anything into the source of a mount: with FUSE it is any string. A mount is
//!    a user of the device that its source names only where its type takes a block device.

use crate::block::{self, Layer, Numbers, Storage, Window};
use crate::file::DiskKind;
use crate::mounts::{self, Mount, parse_numbers};
use crate::text::escaped;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Mounts and processes looked at; beyond it the answer is "unknown".
const LOOKED_AT_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The kernel has mounted it (`device` is the name in the mount table).
    Mount {
        device: String,
        mountpoint: PathBuf,
    },
    /// Device mapper, MD or a mounted filesystem of several devices stands on it (`name` is what).
    Device {
        name: String,
    },
    Swap,
    Process {
        id: u32,
        name: String,
    },
    /// Nobody is seen to hold it, any more or at all.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Mount { device, mountpoint } => {
                let (device, place) = (device.as_bytes(), mountpoint.as_os_str().as_bytes());
                write!(f, "the kernel has mounted {} on {}", escaped(device), escaped(place))
            }
            Holder::Device { name } => write!(f, "it is part of {}", escaped(name.as_bytes())),
            Holder::Swap => f.write_str("it is swap space"),
            Holder::Process { id, name } => {
                write!(f, "process {id} ({}) has it open", escaped(name.as_bytes()))
            }
            Holder::Unknown => f.write_str("somebody else has it open"),
        }
    }
}

/// What made an exclusive open of a block device fail.
pub(crate) fn of_device(kind: DiskKind) -> Holder {
    let DiskKind::BlockDevice { major, minor } = kind else { return Holder::Unknown };
    let numbers = (major, minor);
    of_numbers(numbers)
        .or_else(|| process_with_device(numbers, |_| true))
        .unwrap_or(Holder::Unknown)
}

/// Which process has the open-file-description lock.
pub(crate) fn of_lock(meta: &fs::Metadata) -> Holder {
    let is_locked = |info: &str| info.contains(OFD_LOCK);
    process_with(block::storage_of(meta), is_locked).unwrap_or(Holder::Unknown)
}

/// Who holds a lock that an opener of a disk is to meet, and cannot: on a file beneath it that no
/// path leads to, or on a loop device beside it that shares bytes with it.
pub(crate) fn lock_beyond_reach(
    disk: &[Layer],
    unreachable: &[&Layer],
    is_exclusive: bool,
) -> Option<Holder> {
    let beneath = unreachable.iter().find_map(|layer| {
        process_with(layer.storage, |info| shows_lock(info, is_exclusive, layer.window))
    });
    beneath.or_else(|| {
        block::loop_devices_over(disk).into_iter().find_map(|device| {
            process_with_device(device.numbers, |info| shows_lock(info, is_exclusive, Window::ALL))
        })
    })
}

/// Returns the kernel's mount through which a disk is being changed: one for reading and writing,
/// of the block device itself or of a loop device over the same bytes.
pub fn writing_mount(disk: &Path) -> Option<Holder> {
    let layers = block::chain(block::storage_of(&fs::metadata(disk).ok()?));
    let own = layers.iter().filter_map(|layer| match layer.storage {
        Storage::Device(numbers) => Some(numbers),
        Storage::File { .. } => None,
    });
    let others = block::loop_devices_over(&layers);
    own.chain(others.iter().map(|device| device.numbers))
        .find_map(|numbers| mount_of(numbers, Mounts::Writing))
}

/// What uses a loop device that shares bytes with a disk which is to be written: a mount, another
/// device on it, swap, a process that has it open exclusively or for writing (law 1).
pub(crate) fn over_loop(disk: &[Layer]) -> Option<Holder> {
    block::loop_devices_over(disk).into_iter().find_map(|device| {
        let numbers = device.numbers;
        of_numbers(numbers)
            .or_else(|| process_with_device(numbers, writes))
            // The device as a whole counts as taken where one of its partitions is.
            .or_else(|| {
                (!device.has_partitions && is_taken(&device.name)).then_some(Holder::Unknown)
            })
    })
}

/// Whether an exclusive open of a device fails for its being open exclusively already.
fn is_taken(name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(Path::new("/dev").join(name), flags, Mode::empty());
    matches!(opened, Err(rustix::io::Errno::BUSY))
}

/// Whether the `fdinfo` of a descriptor shows that it can be written.
fn writes(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 0o3 != 0)
}

/// What the kernel calls an open-file-description lock.
const OFD_LOCK: &str = "OFDLCK";

/// Whether the `fdinfo` of a descriptor shows a lock that keeps out one of a window: any for an
/// exclusive one, an exclusive one for any. Such a line ends with the kind, a process, the file,
/// and the first and the last byte: `lock: 1: OFDLCK ADVISORY  WRITE -1 00:1b:34390 0 EOF`.
fn shows_lock(info: &str, is_exclusive: bool, window: Window) -> bool {
    info.lines().filter(|line| line.starts_with("lock:") && line.contains(OFD_LOCK)).any(|line| {
        let mut words = line.split_whitespace().rev();
        let (last, first) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let end = last.parse::<u64>().map_or(u64::MAX, |last| last.saturating_add(1));
        let locked = Window { start: first.parse().unwrap_or(0), end };
        (is_exclusive || words.any(|word| word == "WRITE")) && locked.overlaps(window)
    })
}

/// A user of a block device that the kernel itself shows.
fn of_numbers(numbers: Numbers) -> Option<Holder> {
    mount_of(numbers, Mounts::All).or_else(|| holder_device(numbers)).or_else(|| swap_on(numbers))
}

/// Which mounts count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mounts {
    All,
    Writing,
}

/// The mount of a device. Btrfs mounts have device numbers of their own, and name one device of
/// several, by the path that was given to mount(2): they are found by the id of the filesystem. The
/// source of a mount counts only where the kernel opens it as a device (law 4).
fn mount_of(numbers: Numbers, which: Mounts) -> Option<Holder> {
    let btrfs = btrfs_with(numbers);
    let mounts = mounts::read().ok()?;
    let types = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_it = |mount: &&Mount| {
        if which == Mounts::Writing && !mount.has_option("rw") {
            return false;
        }
        mount.device == numbers
            || (takes_device(&mount.kind, &types) && source_numbers(&mount.source) == Some(numbers))
            || (mount.kind == "btrfs" && btrfs.is_some() && btrfs == btrfs_id(&mount.mountpoint))
    };
    // Of a filesystem whose mounts all are elsewhere, nothing is known but that it is there.
    let hidden = || {
        (which == Mounts::All && btrfs.is_some()).then(|| Holder::Device {
            name: format!(
                "a btrfs filesystem that is mounted ({})",
                btrfs.clone().unwrap_or_default()
            ),
        })
    };
    let mount = mounts.iter().find(is_it);
    mount
        .map(|mount| Holder::Mount {
            device: mount.source.to_string_lossy().into_owned(),
            mountpoint: mount.mountpoint.clone(),
        })
        .or_else(hidden)
}

/// Whether the kernel opens the source of a mount of this type as a block device (law 4). A type
/// without one is marked `nodev` in the table of types, `/proc/filesystems`. A dot divides a type
/// of FUSE from a name that its mounter chose.
fn takes_device(kind: &str, types: &str) -> bool {
    let kind = kind.split('.').next().unwrap_or(kind);
    types.lines().any(|line| line.strip_prefix('\t') == Some(kind))
}

/// The device that the source of a mount names, also as it was named from within `/dev`.
fn source_numbers(source: &OsStr) -> Option<Numbers> {
    device_numbers(&Path::new("/dev").join(source))
}

fn device_numbers(path: &Path) -> Option<Numbers> {
    match block::storage_of(&fs::metadata(path).ok()?) {
        Storage::Device(numbers) => Some(numbers),
        Storage::File { .. } => None,
    }
}

/// The id, as text, of the mounted btrfs filesystem that a device belongs to.
fn btrfs_with(numbers: Numbers) -> Option<String> {
    let systems = fs::read_dir("/sys/fs/btrfs").ok()?;
    systems.take(LOOKED_AT_MAX).flatten().find_map(|system| {
        let devices = fs::read_dir(system.path().join("devices")).ok()?;
        let mut devices = devices.take(LOOKED_AT_MAX).flatten();
        let is_it = devices.any(|device| {
            let text = fs::read_to_string(device.path().join("dev"));
            text.ok().and_then(|text| parse_numbers(&text)) == Some(numbers)
        });
        is_it.then(|| system.file_name().to_string_lossy().into_owned())
    })
}

/// The id of the btrfs filesystem that is mounted on a directory.
fn btrfs_id(mountpoint: &Path) -> Option<String> {
    const BTRFS_IOC_FS_INFO: libc::c_ulong = 0x8400_941f;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECTORY;
    let fd = rustix::fs::open(mountpoint, flags, Mode::empty()).ok()?;
    let mut info = [0_u8; 1024];
    // SAFETY: the request writes one `struct btrfs_ioctl_fs_info_args`, of 1024 bytes.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), BTRFS_IOC_FS_INFO, info.as_mut_ptr()) };
    let id = info.get(16..32).filter(|_| answer == 0)?;
    let hex = |range: Range<usize>| {
        let bytes: Vec<String> = id[range].iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.concat()
    };
    Some([hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-"))
}

fn holder_device((major, minor): Numbers) -> Option<Holder> {
    let holders = fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders")).ok()?;
    let name = holders.flatten().next()?.file_name();
    Some(Holder::Device { name: format!("/dev/{}", name.to_string_lossy()) })
}

fn swap_on(numbers: Numbers) -> Option<Holder> {
    let table = fs::read_to_string("/proc/swaps").ok()?;
    let mut sources = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    sources.any(|source| device_numbers(Path::new(source)) == Some(numbers)).then_some(Holder::Swap)
}

/// A process that has a block device open and whose descriptor's `fdinfo` pleases.
fn process_with_device(numbers: Numbers, pleases: impl Fn(&str) -> bool) -> Option<Holder> {
    process(pleases, |descriptor, _| {
        let is_device = fs::read_link(descriptor).is_ok_and(|to| to.starts_with("/dev/"));
        is_device && device_numbers(descriptor) == Some(numbers)
    })
}

/// A process that has storage open and whose descriptor's `fdinfo` pleases.
fn process_with(storage: Storage, pleases: impl Fn(&str) -> bool) -> Option<Holder> {
    let inode = match storage {
        Storage::Device(numbers) => return process_with_device(numbers, pleases),
        Storage::File { inode, .. } => inode,
    };
    process(pleases, |descriptor, info| {
        let ino = info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok());
        // Law 3. What is open is first asked of the kernel alone.
        ino == Some(inode)
            && fs::metadata(descriptor).is_ok_and(|meta| block::storage_of(&meta) == storage)
    })
}

/// The name of a process, which the process itself chooses: any bytes but zeroes.
pub(crate) fn process_name(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned()
}

/// A process that has a descriptor whose `fdinfo` pleases and which is the one that is looked for.
fn process(pleases: impl Fn(&str) -> bool, is_it: impl Fn(&Path, &str) -> bool) -> Option<Holder> {
    for process in fs::read_dir("/proc").ok()?.take(LOOKED_AT_MAX).flatten() {
        let Ok(id) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.take(LOOKED_AT_MAX).flatten() {
            let info = process.path().join("fdinfo").join(descriptor.file_name());
            let Ok(info) = fs::read_to_string(info) else { continue };
            if pleases(&info) && is_it(&descriptor.path(), &info) {
                return Some(Holder::Process { id, name: process_name(&process.path()) });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_counts_only_where_the_kernel_opens_it() {
        let types = "nodev\ttmpfs\nnodev\tfuse\n\tfuseblk\n\text4\n\tbtrfs\n";
        for kind in ["ext4", "btrfs", "fuseblk", "fuseblk.ntfs"] {
            assert!(takes_device(kind, types), "{kind}");
        }
        for kind in ["fuse", "fuse.butternut", "fuse.ext4", "tmpfs", "unknown", "", "nodev"] {
            assert!(!takes_device(kind, types), "{kind}");
        }
    }

    #[test]
    fn what_is_not_ours_is_escaped_where_a_holder_is_shown() {
        let name = "\u{1b}[2J\nroot".to_owned();
        let shown = Holder::Process { id: 7, name }.to_string();
        assert_eq!(shown, "process 7 (\\u{1b}[2J\\nroot) has it open");
        let mountpoint = "/mnt/\u{1b}c".into();
        let shown = Holder::Mount { device: "a\rb".to_owned(), mountpoint }.to_string();
        assert_eq!(shown, "the kernel has mounted a\\rb on /mnt/\\u{1b}c");
    }

    #[test]
    fn locks_are_read_from_what_the_kernel_shows() {
        let info = |kind: &str, range: &str| {
            format!("pos:\t0\nino:\t9\nlock:\t1: OFDLCK ADVISORY  {kind} -1 00:1b:9 {range}\n")
        };
        let window = Window { start: 4096, end: 8192 };
        for (range, overlaps) in [
            ("0 EOF", true),
            ("8191 9000", true),
            ("0 4095", false),
            ("0 4096", true),
            ("8192 EOF", false),
        ] {
            assert_eq!(shows_lock(&info("WRITE", range), false, window), overlaps, "{range}");
            assert_eq!(shows_lock(&info("READ", range), true, window), overlaps, "{range}");
            assert!(!shows_lock(&info("READ", range), false, window), "readers meet: {range}");
        }
        let of_others = "lock:\t1: POSIX  ADVISORY  WRITE 7 00:1b:9 0 EOF";
        assert!(!shows_lock(of_others, true, Window::ALL) && !shows_lock("", true, Window::ALL));
    }
}
