//! Finds the storage beneath a disk: from partitions, loop devices and mapped devices down to files
//! and whole disks, as far as `/sys` and the loop driver show it.
//!
//! ```text
//! /dev/loop0p1 --partition--> /dev/loop0 --loop, at an offset--> (device, inode) of a file
//! /dev/dm-0    --slave------> /dev/sdb
//! ```
//!
//! 1. Storage is identified by numbers: a block device by its device number, a file by its device
//!    and inode number. A path is only a way to open it, because of hard links, symlinks, relative
//!    paths and mount namespaces.
//! 2. A disk is a window of bytes of its storage. Two disks conflict if they share a byte. A window
//!    whose position is not known is the whole storage.
//! 3. A search stops after more than `DEPTH_MAX` squared layers, and follows `DEPTH_MAX` slaves
//!    of a device.
//! 4. A loop device whose file is on a network or FUSE filesystem is skipped, unless the disk
//!    itself is there too: a server that does not respond blocks only its own volumes
//!    (`served`).
//! 5. A file of an overlay and the file beneath it in the upper directory have the same bytes. An
//!    open of the former finds the latter (`overlay`).

pub(crate) mod overlay;
mod served;

pub(crate) use served::is_served;

use crate::mounts::{self, parse_numbers};
use rustix::fs::{Mode, OFlags};
use std::cell::LazyCell;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const DEPTH_MAX: usize = 8;
const DEVICES_MAX: usize = 100_000;
const SECTOR: u64 = 512;

/// The major and minor number of a block device.
pub(crate) type Numbers = (u32, u32);

/// An object that holds bytes, by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Device(Numbers),
    File { device: u64, inode: u64 },
}

/// A range of bytes; `end` is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: u64,
    pub end: u64,
}

impl Window {
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    /// Returns `bytes` bytes from `start`, or all that follow.
    pub fn of(start: u64, bytes: Option<u64>) -> Self {
        Self { start, end: bytes.map_or(u64::MAX, |bytes| start.saturating_add(bytes)) }
    }

    /// Translates a window of a part into a window of the whole, in which the part is at `part`.
    fn within(self, part: Window) -> Window {
        let shift = |at: u64| at.saturating_add(part.start).min(part.end);
        Window { start: shift(self.start), end: shift(self.end) }
    }

    pub(crate) fn overlaps(self, other: Window) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// One layer of a chain: storage, the window of it that the disk covers, and a path that may lead
/// to it or to another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) storage: Storage,
    pub(crate) window: Window,
    pub(crate) path: Option<PathBuf>,
}

impl Layer {
    /// Whether this is the same window of the same storage, by whatever path.
    pub(crate) fn is_same_window(&self, other: &Self) -> bool {
        self.storage == other.storage && self.window == other.window
    }
}

/// Returns the storage of a file or block device.
pub(crate) fn storage_of(meta: &impl MetadataExt) -> Storage {
    use rustix::fs::{FileType, major, minor};
    if FileType::from_raw_mode(meta.mode()) == FileType::BlockDevice {
        return Storage::Device((major(meta.rdev()), minor(meta.rdev())));
    }
    Storage::File { device: meta.dev(), inode: meta.ino() }
}

/// Returns the storage that a path leads to, from what the kernel has cached: it does not wait for
/// a filesystem that does not respond.
pub(crate) fn storage_at(path: &Path) -> Option<Storage> {
    use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let seen = statx(CWD, path, flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    if FileType::from_raw_mode(seen.stx_mode.into()) == FileType::BlockDevice {
        return Some(Storage::Device((seen.stx_rdev_major, seen.stx_rdev_minor)));
    }
    let device = makedev(seen.stx_dev_major, seen.stx_dev_minor);
    Some(Storage::File { device, inode: seen.stx_ino })
}

/// Returns the layer of a window of the storage itself, followed by all layers beneath it.
pub(crate) fn chain(storage: Storage, window: Window) -> Vec<Layer> {
    let mut layers = vec![Layer { storage, window, path: None }];
    let mut at = 0;
    while let Some(layer) = layers.get(at).filter(|_| layers.len() <= DEPTH_MAX * DEPTH_MAX) {
        if let Storage::Device(numbers) = layer.storage {
            let window = layer.window;
            let parts = layers_beneath(numbers).into_iter();
            layers.extend(parts.map(|on| Layer { window: window.within(on.window), ..on }));
            layers.extend(slaves(numbers));
        }
        at += 1;
    }
    layers
}

/// Returns whether two chains share a byte.
pub(crate) fn conflict(one: &[Layer], other: &[Layer]) -> bool {
    one.iter().any(|a| other.iter().any(|b| a.storage == b.storage && a.window.overlaps(b.window)))
}

/// Returns whether two files or block devices have a byte in common: they are the same, or one is
/// a part of the other.
pub fn is_shared(one: &impl MetadataExt, other: &impl MetadataExt) -> bool {
    let of = |storage| chain(storage, Window::ALL);
    conflict(&of(storage_of(one)), &of(storage_of(other)))
}

/// Returns the layers directly beneath a block device.
fn layers_beneath(numbers: Numbers) -> Vec<Layer> {
    let Some(folder) = sysfs(numbers) else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(start) = number(&folder.join("start")) {
        let sectors = number(&folder.join("size")).unwrap_or(u64::MAX);
        let whole = folder.parent().and_then(device_number);
        found.extend(whole.map(|numbers| Layer {
            storage: Storage::Device(numbers),
            window: Window {
                start: start.saturating_mul(SECTOR),
                end: start.saturating_add(sectors).saturating_mul(SECTOR),
            },
            path: None,
        }));
    }
    found.extend(loop_backing(&folder));
    found
}

/// Returns the devices that a mapped device or an array consists of. Their windows are the whole
/// devices.
fn slaves(numbers: Numbers) -> Vec<Layer> {
    let Some(folder) = sysfs(numbers) else { return Vec::new() };
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().take(DEPTH_MAX);
    let numbers = slaves.flatten().filter_map(|slave| device_number(&slave.path()));
    let whole = |numbers| {
        let storage = Storage::Device(numbers);
        Layer { storage, window: Window::ALL, path: None }
    };
    numbers.map(whole).collect()
}

/// Returns the directory of a block device below `/sys/devices`.
fn sysfs((major, minor): Numbers) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn device_number(folder: &Path) -> Option<Numbers> {
    parse_numbers(&fs::read_to_string(folder.join("dev")).ok()?)
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the path of the file of a loop device.
fn backing_path(folder: &Path) -> Option<PathBuf> {
    let mut path = fs::read(folder.join("loop/backing_file")).ok()?;
    if path.last() == Some(&b'\n') {
        path.pop();
    }
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// Returns the layer beneath a loop device. Returns `None` for other devices and for an unused one.
fn loop_backing(folder: &Path) -> Option<Layer> {
    let path = backing_path(folder)?;
    let start = number(&folder.join("loop/offset")).unwrap_or(0);
    let limit = number(&folder.join("loop/sizelimit")).filter(|limit| *limit > 0);
    let end = limit.map_or(u64::MAX, |limit| start.saturating_add(limit));
    let window = Window { start, end };
    // The driver knows the file; in this mount namespace the path may lead to another, or to none.
    // Where the driver answers, the path is not followed: a filesystem on the way may not respond.
    let by_driver = loop_status(Path::new("/dev").join(folder.file_name()?).as_path());
    let storage = by_driver.or_else(|| storage_at(&path))?;
    Some(Layer { storage, window, path: Some(path) })
}

/// Queries the loop driver for the file of a device. Requires the right to open the device.
fn loop_status(device: &Path) -> Option<Storage> {
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
    /// The size of `struct loop_info64` in words of 64 bits. It begins with three device and inode
    /// numbers.
    const WORDS: usize = 232 / 8;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd: OwnedFd = rustix::fs::open(device, flags, Mode::empty()).ok()?;
    let mut info = [0_u64; WORDS];
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64`, of 232 bytes, to the pointer.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    let [device, inode, rdevice, ..] = info;
    // A regular file has the device number of its filesystem; a block device has one of its own.
    match (answer, decode_device_number(rdevice)) {
        (0, (0, 0)) => {
            let (major, minor) = decode_device_number(device);
            Some(Storage::File { device: rustix::fs::makedev(major, minor), inode })
        }
        (0, numbers) => Some(Storage::Device(numbers)),
        _ => None,
    }
}

/// Decodes a device number from the encoding that the kernel uses for user space.
fn decode_device_number(packed: u64) -> Numbers {
    let major = (packed >> 8) & 0xfff;
    let minor = (packed & 0xff) | ((packed >> 12) & 0xfff00);
    (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0))
}

/// A loop device, or a partition of one, over bytes of another disk.
#[derive(Clone, Debug)]
pub(crate) struct Overlapping {
    pub(crate) name: String,
    pub(crate) numbers: Numbers,
    /// Whether it has partitions. They are separate entries of the list.
    pub(crate) has_partitions: bool,
}

/// Returns the loop devices and their partitions that share a byte with the disk of this chain and
/// are not in the chain.
pub(crate) fn loop_devices_over(disk: &[Layer]) -> Vec<Overlapping> {
    let mut found = Vec::new();
    // Read only where there is a loop device. Without the table, none is skipped (law 4).
    let mounts = LazyCell::new(|| mounts::read().unwrap_or_default());
    let devices = fs::read_dir("/sys/block").into_iter().flatten().take(DEVICES_MAX).flatten();
    for device in devices {
        let folder = device.path();
        let Some(path) = backing_path(&folder) else { continue };
        if served::is_elsewhere(&path, disk, &mounts) {
            continue;
        }
        let parts = fs::read_dir(&folder).into_iter().flatten().take(DEVICES_MAX).flatten();
        let parts: Vec<PathBuf> =
            parts.map(|part| part.path()).filter(|part| part.join("partition").exists()).collect();
        let whole = device_number(&folder);
        // The disk is on this loop device itself: the kernel detects conflicts when it opens
        // exclusively.
        if whole.is_none_or(|whole| disk.iter().any(|l| l.storage == Storage::Device(whole))) {
            continue;
        }
        let has_partitions = !parts.is_empty();
        for (folder, has_partitions) in
            parts.into_iter().map(|part| (part, false)).chain([(folder, has_partitions)])
        {
            let Some(numbers) = device_number(&folder) else { continue };
            if conflict(disk, &chain(Storage::Device(numbers), Window::ALL)) {
                let name = folder.file_name().map(|name| name.as_bytes().to_vec());
                let name = String::from_utf8_lossy(&name.unwrap_or_default()).into_owned();
                found.push(Overlapping { name, numbers, has_partitions });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_a_part_is_translated_to_the_whole() {
        let part = Window { start: 100, end: 200 };
        let of = |start, end| Window { start, end };
        assert_eq!(Window::ALL.within(part), part);
        assert_eq!(of(10, 20).within(part), of(110, 120));
        assert_eq!(of(90, 120).within(part), of(190, 200));
        assert!(of(0, 10).overlaps(of(9, 20)) && !of(0, 10).overlaps(of(10, 20)));
    }

    #[test]
    fn device_numbers_are_decoded_as_the_kernel_encodes_them() {
        for (major, minor) in [(7, 0), (8, 17), (259, 70_000), (0, 44), (0xfff, 0xf_ffff)] {
            let (high, low) = (u64::from(minor & !0xff_u32), u64::from(minor & 0xff));
            assert_eq!(
                decode_device_number(low | (u64::from(major) << 8) | (high << 12)),
                (major, minor)
            );
        }
    }

    #[test]
    fn a_regular_file_has_one_layer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let storage = storage_of(&file.as_file().metadata().unwrap());
        let layers = chain(storage, Window::ALL);
        assert_eq!(layers, [Layer { storage, window: Window::ALL, path: None }]);
        let parts = [Window::of(0, Some(4096)), Window::of(4096, None)];
        let [first, rest] = parts.map(|window| chain(storage, window));
        assert!(conflict(&layers, &rest) && conflict(&first, &layers) && !conflict(&first, &rest));
    }
}
