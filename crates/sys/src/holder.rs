//! Finds what holds a busy disk, from `/proc` and `/sys`.
//!
//! Every answer is a hint for a message: it is looked up after the refusal, so the holder may have
//! ended already, and processes of other users may be hidden. No decision depends on it, except
//! under laws 1 and 2.
//!
//! 1. `loop_device_user`, `hidden_lock` and [`writing_mount`] find users of the same bytes that
//!    the locks of an open cannot conflict with: a loop device that is mounted, or open exclusively
//!    or for writing; a lock of a file that no path leads to. Disks are compared by the numbers of
//!    their storage (`crate::storage`), never by path.
//! 2. [`Holder::release_wait`] makes an open retry for some time ([`crate::file`]): a holder that
//!    cannot be found may have ended, and its lock is then released soon; programs that search or
//!    attach loop devices have one open for a moment; a child of this process has its descriptors
//!    until it executes its program, also those that this process has closed meanwhile; a process
//!    that has served FUSE mounts, all of which are gone, commits and ends. umount(8) may return
//!    before that. Since Linux 6.16, `fdinfo` names the mounts.
//! 3. No file that another process has open is accessed unless it can be the disk: it may be on a
//!    filesystem that does not respond.
//! 4. An unprivileged user can choose the source of a mount: with FUSE it is any string. So a mount
//!    counts as a user of the device that its source names only if its filesystem type takes a
//!    block device.
//! 5. A search for the text of a message or for law 2 takes a limited time (`Search::hint`). One
//!    on which the open depends (law 1) takes longer, and makes the disk busy if it is cut.

use crate::file::DiskKind;
use crate::mounts::{self, Mount, parse_numbers};
use crate::process_search::{Descriptor, Process, Search, number_in};
use crate::storage::{self, Layer, Numbers, Overlapping, Storage, Window};
use crate::text::{self, escaped};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long an open waits for a holder that cannot be found, or has the disk for a moment.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// How long an open waits for the process of an unmounted filesystem.
const END_WAIT: Duration = Duration::from_secs(10);
/// Time between two attempts to open or claim a busy disk.
pub(crate) const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// Number of bits of the minor number in a device number of the kernel.
const MINOR_BITS: u32 = 20;

/// Maximum number of filesystems, or of their devices, that are examined.
const ENTRIES_MAX: usize = 100_000;

/// What keeps a disk busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The kernel has mounted the disk; `device` is its name in the mount table.
    Mount {
        device: String,
        mountpoint: PathBuf,
    },
    /// The disk is part of `name`: a device of device mapper or MD, or a mounted multi-device
    /// filesystem.
    Device {
        name: String,
    },
    Swap,
    Process {
        id: u32,
        name: String,
    },
    /// The process has `device`, a loop device over bytes of the disk, open for writing.
    LoopWriter {
        id: u32,
        name: String,
        device: String,
    },
    /// No holder was found: it has ended, or it is hidden.
    Unknown,
    /// There were too many open files to look for a holder among all of them.
    NotExcluded,
    /// The mount table cannot be read.
    UnknownMounts,
}

impl Holder {
    /// Returns how long to wait for the holder to release the disk without being asked to (law 2).
    pub fn release_wait(&self) -> Duration {
        match self {
            Holder::LoopWriter { .. } | Holder::Unknown => RELEASE_WAIT,
            Holder::Process { id, .. } => match fuse_mounts(*id) {
                // It has ended since it was found.
                None => RELEASE_WAIT,
                Some(served) if is_unmounted(*id, &served) => END_WAIT,
                Some(_) if is_child(*id) => RELEASE_WAIT,
                Some(_) => Duration::ZERO,
            },
            Holder::Mount { .. }
            | Holder::Device { .. }
            | Holder::Swap
            | Holder::NotExcluded
            | Holder::UnknownMounts => Duration::ZERO,
        }
    }
}

/// The retries of an open that finds a busy disk. They end when the disk has a holder that does not
/// end by itself, or after the longest [`Holder::release_wait`] of its holders.
#[derive(Debug)]
pub struct ReleaseWait {
    began: Instant,
    limit: Duration,
}

impl Default for ReleaseWait {
    fn default() -> Self {
        Self { began: Instant::now(), limit: Duration::ZERO }
    }
}

impl ReleaseWait {
    /// Waits a moment for a holder that may end by itself. Returns whether to try again.
    pub fn wait_for(&mut self, holder: &Holder) -> bool {
        let wait = holder.release_wait();
        self.limit = self.limit.max(wait);
        let tries_again = !wait.is_zero() && self.began.elapsed() < self.limit;
        if tries_again {
            thread::sleep(RELEASE_PAUSE);
        }
        tries_again
    }
}

/// Returns whether a process has served FUSE mounts, and none of them is left in its mount
/// namespace and in this one.
fn is_unmounted(process: u32, served: &[Numbers]) -> bool {
    let is_served =
        |mount: &Mount| mount.kind.starts_with("fuse") && served.contains(&mount.device);
    // Without the own table it is not known. That of the process may be hidden, or it has ended.
    let Ok(own) = mounts::read() else { return false };
    let mut tables = [mounts::read_of(process).unwrap_or_default(), own].into_iter();
    !served.is_empty() && !tables.any(|mounts| mounts.iter().any(is_served))
}

/// Returns the device numbers of the FUSE mounts, also former ones, that a process serves. Returns
/// `None` if it has no descriptors any more.
fn fuse_mounts(process: u32) -> Option<Vec<Numbers>> {
    let directory = PathBuf::from(format!("/proc/{process}"));
    let descriptors = Search::hint().descriptors(&directory);
    let numbers = descriptors
        .filter(|descriptor| descriptor.path.ends_with("dev/fuse"))
        .filter_map(|descriptor| number_in(&descriptor.info()?, "fuse_connection:"))
        .filter_map(|number| kernel_numbers(number.try_into().ok()?));
    let numbers = numbers.collect();
    // Afterwards: the process may have ended meanwhile.
    fs::read_dir(directory.join("fd")).ok()?.next().map(|_| numbers)
}

/// Splits a device number of the kernel.
fn kernel_numbers(number: u32) -> Option<Numbers> {
    // Zero until the mount is made.
    (number != 0).then_some((number >> MINOR_BITS, number & ((1 << MINOR_BITS) - 1)))
}

/// Returns whether a process is a child of this one.
fn is_child(process: u32) -> bool {
    let status = text::of_file(format!("/proc/{process}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent == Some(std::process::id())
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
            Holder::LoopWriter { id, name, device } => {
                let (name, device) = (escaped(name.as_bytes()), escaped(device.as_bytes()));
                write!(f, "process {id} ({name}) has /dev/{device} open, which has the same bytes")
            }
            Holder::Unknown => f.write_str("an unknown process or the kernel has it open"),
            Holder::NotExcluded => f.write_str(
                "the processes have too many open files to find out in time whether one uses it",
            ),
            Holder::UnknownMounts => {
                f.write_str("the mount table cannot be read, so it may be mounted")
            }
        }
    }
}

/// Returns what holds a block device exclusively.
pub fn of_device((major, minor): (u32, u32)) -> Holder {
    of_block_device(DiskKind::BlockDevice { major, minor })
}

/// Returns what made an exclusive open of a block device fail.
pub(crate) fn of_block_device(kind: DiskKind) -> Holder {
    let DiskKind::BlockDevice { major, minor } = kind else { return Holder::Unknown };
    let numbers = (major, minor);
    of_numbers(numbers).or_else(|| opener(numbers)).unwrap_or(Holder::Unknown)
}

/// Returns a process that has a block device open: one that ends soon, since that one may have
/// opened it exclusively, and others may have it open for a moment, as udev does.
fn opener(numbers: Numbers) -> Option<Holder> {
    let mut first = None;
    let openers = processes_with(Storage::Device(numbers), Search::hint(), |_| true);
    for opener in openers {
        if !opener.release_wait().is_zero() {
            return Some(opener);
        }
        first.get_or_insert(opener);
    }
    first
}

/// Returns another process that can write to a block device and ends soon: it has served FUSE
/// mounts, all of which are gone (law 2). It may still have changes to write.
pub fn ending_writer((major, minor): (u32, u32)) -> Option<Holder> {
    let device = Storage::Device((major, minor));
    let mut writers = processes_with(device, Search::hint(), is_open_for_writing);
    writers.find(|writer| {
        let Holder::Process { id, .. } = *writer else { return false };
        let is_unmounted = || fuse_mounts(id).is_some_and(|served| is_unmounted(id, &served));
        id != std::process::id() && is_unmounted()
    })
}

/// Returns the process that holds an open-file-description lock on the file which conflicts with a
/// lock of a window.
pub(crate) fn of_lock(meta: &fs::Metadata, is_exclusive: bool, window: Window) -> Holder {
    let is_locked = |info: &str| shows_lock(info, is_exclusive, window);
    let mut processes = processes_with(storage::storage_of(meta), Search::hint(), is_locked);
    processes.next().unwrap_or(Holder::Unknown)
}

/// Finds the holder of a lock that conflicts with an open of a disk but that the open itself cannot
/// detect: a lock on a file beneath the disk that no path leads to, or on a loop device over bytes
/// that the disk has too.
pub(crate) fn hidden_lock(
    disk: &[Layer],
    unreachable: &[&Layer],
    is_exclusive: bool,
) -> Option<Holder> {
    let search = Search::decision();
    let beneath = unreachable.iter().find_map(|layer| {
        let is_locked = |info: &str| shows_lock(info, is_exclusive, layer.window);
        processes_with(layer.storage, search, is_locked).next()
    });
    let found = beneath.or_else(|| {
        storage::loop_devices_over(disk).into_iter().find_map(|device| {
            let is_locked = |info: &str| shows_lock(info, is_exclusive, Window::ALL);
            processes_with(Storage::Device(device.numbers), search, is_locked).next()
        })
    });
    found.or_else(|| search.is_cut().then_some(Holder::NotExcluded))
}

/// Returns the kernel's mount that can change a disk: a read-write mount of the block device
/// itself, or of a loop device over the same bytes.
pub fn writing_mount(disk: &Path) -> Option<Holder> {
    let layers = storage::chain(storage::storage_of(&fs::metadata(disk).ok()?), Window::ALL);
    let own = layers.iter().filter_map(|layer| match layer.storage {
        Storage::Device(numbers) => Some(numbers),
        Storage::File { .. } => None,
    });
    let others = storage::loop_devices_over(&layers);
    own.chain(others.iter().map(|device| device.numbers))
        .find_map(|numbers| mount_of(numbers, Mounts::ReadWrite))
}

/// Finds a user of a loop device over bytes of a disk that is to be opened for writing: a mount,
/// another device on it, swap, or a process that has it open exclusively or for writing (law 1).
pub(crate) fn loop_device_user(disk: &[Layer]) -> Option<Holder> {
    let search = Search::decision();
    let found = storage::loop_devices_over(disk).into_iter().find_map(|device| {
        let numbers = device.numbers;
        of_numbers(numbers)
            .or_else(|| loop_writer(&device, search))
            // The whole device counts as open exclusively where one of its partitions is.
            .or_else(|| {
                let is_open = !device.has_partitions && is_open_exclusively(&device.name);
                is_open.then_some(Holder::Unknown)
            })
    });
    found.or_else(|| search.is_cut().then_some(Holder::NotExcluded))
}

/// Returns a process that has a loop device open for writing.
fn loop_writer(device: &Overlapping, search: Search) -> Option<Holder> {
    let storage = Storage::Device(device.numbers);
    let writer = processes_with(storage, search, is_open_for_writing).next()?;
    let Holder::Process { id, name } = writer else { return Some(writer) };
    Some(Holder::LoopWriter { id, name, device: device.name.clone() })
}

/// Returns whether a device is open exclusively, which makes another exclusive open fail.
fn is_open_exclusively(name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(Path::new("/dev").join(name), flags, Mode::empty());
    matches!(opened, Err(rustix::io::Errno::BUSY))
}

/// Returns whether the `fdinfo` of a descriptor shows that it is open for writing.
fn is_open_for_writing(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 0o3 != 0)
}

/// The kernel's name for an open-file-description lock.
const OFD_LOCK: &str = "OFDLCK";

/// Returns whether the `fdinfo` of a descriptor shows a lock that conflicts with a lock of a
/// window. An exclusive lock conflicts with any lock, a shared one with exclusive locks. The line
/// of a lock ends with its kind, a process, the file, and the first and the last byte: `lock: 1:
/// OFDLCK ADVISORY  WRITE -1 00:1b:34390 0 EOF`.
fn shows_lock(info: &str, is_exclusive: bool, window: Window) -> bool {
    info.lines().filter(|line| line.starts_with("lock:") && line.contains(OFD_LOCK)).any(|line| {
        let mut words = line.split_whitespace().rev();
        let (last, first) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let end = last.parse::<u64>().map_or(u64::MAX, |last| last.saturating_add(1));
        let locked = Window { start: first.parse().unwrap_or(0), end };
        (is_exclusive || words.any(|word| word == "WRITE")) && locked.overlaps(window)
    })
}

/// Returns a user of a block device inside the kernel: a mount, another device, swap.
fn of_numbers(numbers: Numbers) -> Option<Holder> {
    mount_of(numbers, Mounts::All).or_else(|| holder_device(numbers)).or_else(|| swap_on(numbers))
}

/// Which mounts count as users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mounts {
    All,
    ReadWrite,
}

/// Returns the mount of a device, or that it may have one. A btrfs mount has an anonymous device
/// number, and its source names only one of its devices, by the path that was given to mount(2). So
/// btrfs mounts are found by the id of the filesystem. The source of another mount counts only if
/// the kernel opens it as a device (law 4).
fn mount_of(numbers: Numbers, which: Mounts) -> Option<Holder> {
    let btrfs = btrfs_with(numbers);
    let Ok(mounts) = mounts::read() else { return Some(Holder::UnknownMounts) };
    let types = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_it = |mount: &&Mount| {
        if which == Mounts::ReadWrite && !mount.has_option("rw") {
            return false;
        }
        mount.device == numbers
            || (takes_device(&mount.kind, &types) && source_numbers(&mount.source) == Some(numbers))
            || (mount.kind == "btrfs" && btrfs.is_some() && btrfs == btrfs_id(&mount.mountpoint))
    };
    // All mounts of the filesystem are in other namespaces: only its id is known.
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

/// Returns whether the kernel opens the source of a mount of this type as a block device (law 4).
/// `/proc/filesystems` marks a type without a device as `nodev`. In a FUSE type, a dot separates
/// the type from a name that the mounting program chose.
fn takes_device(kind: &str, types: &str) -> bool {
    let kind = kind.split('.').next().unwrap_or(kind);
    types.lines().any(|line| line.strip_prefix('\t') == Some(kind))
}

/// Returns the device that the source of a mount names, as a path or as a name within `/dev`.
fn source_numbers(source: &OsStr) -> Option<Numbers> {
    device_numbers(&Path::new("/dev").join(source))
}

fn device_numbers(path: &Path) -> Option<Numbers> {
    match storage::storage_at(path)? {
        Storage::Device(numbers) => Some(numbers),
        Storage::File { .. } => None,
    }
}

/// Returns the id, as text, of the mounted btrfs filesystem that a device belongs to.
fn btrfs_with(numbers: Numbers) -> Option<String> {
    let systems = fs::read_dir("/sys/fs/btrfs").ok()?;
    systems.take(ENTRIES_MAX).flatten().find_map(|system| {
        let devices = fs::read_dir(system.path().join("devices")).ok()?;
        let mut devices = devices.take(ENTRIES_MAX).flatten();
        let is_it = devices.any(|device| {
            let text = fs::read_to_string(device.path().join("dev"));
            text.ok().and_then(|text| parse_numbers(&text)) == Some(numbers)
        });
        is_it.then(|| system.file_name().to_string_lossy().into_owned())
    })
}

/// Returns the id of the btrfs filesystem that is mounted on a directory.
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
    let table = text::of_file("/proc/swaps").ok()?;
    let mut sources = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    sources.any(|source| device_numbers(Path::new(source)) == Some(numbers)).then_some(Holder::Swap)
}

/// Finds the processes that have the storage open with a descriptor whose `fdinfo` satisfies
/// `matches`.
fn processes_with(
    storage: Storage,
    search: Search,
    matches: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Holder> {
    // Without the table, no device outside of `/dev` is accessed.
    let mounts = mounts::read().unwrap_or_default();
    search.processes().filter_map(move |Process { id, directory }| {
        let mut infos = search
            .descriptors(&directory)
            .filter_map(|descriptor| info_of(&descriptor, storage, &mounts));
        let is_user = infos.any(|info| matches(&info));
        is_user.then(|| Holder::Process { id, name: process_name(&directory) })
    })
}

/// Returns the `fdinfo` of a descriptor if its file is the storage. The file is not accessed unless
/// it can be (law 3): a device that is not in `/dev` is searched for on local filesystems of this
/// mount namespace.
fn info_of(descriptor: &Descriptor, storage: Storage, mounts: &[Mount]) -> Option<String> {
    let is_it = || storage::storage_at(&descriptor.link) == Some(storage);
    let is_device = matches!(storage, Storage::Device(_));
    if is_device && descriptor.path.starts_with("/dev/") {
        return if is_it() { descriptor.info() } else { None };
    }
    let info = descriptor.info()?;
    let can_be = match storage {
        Storage::File { inode, .. } => number_in(&info, "ino:") == Some(inode),
        Storage::Device(_) => {
            let id = number_in(&info, "mnt_id:");
            mounts.iter().any(|mount| Some(mount.id) == id && !storage::is_served(mount))
        }
    };
    (can_be && is_it()).then_some(info)
}

/// Returns the name of a process. The process chooses it: any bytes but zeroes.
pub(crate) fn process_name(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_source_counts_only_if_its_type_takes_a_device() {
        let types = "nodev\ttmpfs\nnodev\tfuse\n\tfuseblk\n\text4\n\tbtrfs\n";
        for kind in ["ext4", "btrfs", "fuseblk", "fuseblk.ntfs"] {
            assert!(takes_device(kind, types), "{kind}");
        }
        for kind in ["fuse", "fuse.butternut", "fuse.ext4", "tmpfs", "unknown", "", "nodev"] {
            assert!(!takes_device(kind, types), "{kind}");
        }
    }

    #[test]
    fn untrusted_names_of_a_holder_are_escaped() {
        let name = "\u{1b}[2J\nroot".to_owned();
        let shown = Holder::Process { id: 7, name }.to_string();
        assert_eq!(shown, "process 7 (\\u{1b}[2J\\nroot) has it open");
        let mountpoint = "/mnt/\u{1b}c".into();
        let shown = Holder::Mount { device: "a\rb".to_owned(), mountpoint }.to_string();
        assert_eq!(shown, "the kernel has mounted a\\rb on /mnt/\\u{1b}c");
    }

    #[test]
    fn device_numbers_of_the_kernel_are_split() {
        assert_eq!(kernel_numbers(43), Some((0, 43)));
        assert_eq!(kernel_numbers((7 << 20) + 11), Some((7, 11)));
        assert_eq!(kernel_numbers(0), None);
    }

    #[test]
    fn locks_are_parsed_from_fdinfo() {
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
            assert!(
                !shows_lock(&info("READ", range), false, window),
                "shared locks do not conflict: {range}"
            );
        }
        let of_others = "lock:\t1: POSIX  ADVISORY  WRITE 7 00:1b:9 0 EOF";
        assert!(!shows_lock(of_others, true, Window::ALL) && !shows_lock("", true, Window::ALL));
    }
}
