//! Which storage a disk stands on: partitions, loop devices and mapped devices, down to the files
//! and whole disks beneath, as far as `/sys` and the loop driver tell.
//!
//! ```text
//! /dev/loop0p1 --partition--> /dev/loop0 --loop, at an offset--> (device, inode) of a file
//! /dev/dm-0    --slave------> /dev/sdb
//! ```
//!
//! 1. Storage is named by numbers: a block device by its device number, a file by the device and
//!    the inode that it has. A path is a way to open it, no name: there are hard links, symlinks,
//!    relative paths and mount namespaces.
//! 2. A part of storage is a window of bytes. Two disks conflict where they share a byte; a window
//!    whose place is not known is the whole.
//! 3. Chains end after [`DEPTH_MAX`] steps.

use crate::mounts::parse_numbers;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const DEPTH_MAX: usize = 8;
const DEVICES_MAX: usize = 100_000;
const SECTOR: u64 = 512;

/// A block device's number.
pub(crate) type Numbers = (u32, u32);

/// What holds bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Device(Numbers),
    File { device: u64, inode: u64 },
}

/// A range of bytes, of which the end is not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Window {
    pub(crate) const ALL: Self = Self { start: 0, end: u64::MAX };

    /// The range that this range of a part is in the whole which has the part at `part`.
    fn within(self, part: Window) -> Window {
        let shift = |at: u64| at.saturating_add(part.start).min(part.end);
        Window { start: shift(self.start), end: shift(self.end) }
    }

    pub(crate) fn overlaps(self, other: Window) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// One step of a chain: storage, the part of it that the disk is, and a path that may lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) storage: Storage,
    pub(crate) window: Window,
    pub(crate) path: Option<PathBuf>,
}

/// Returns the storage of a file or block device.
pub(crate) fn storage_of(meta: &impl MetadataExt) -> Storage {
    use rustix::fs::{FileType, major, minor};
    if FileType::from_raw_mode(meta.mode()) == FileType::BlockDevice {
        return Storage::Device((major(meta.rdev()), minor(meta.rdev())));
    }
    Storage::File { device: meta.dev(), inode: meta.ino() }
}

/// Returns the storage itself, and everything that it stands on.
pub(crate) fn chain(storage: Storage) -> Vec<Layer> {
    let mut layers = vec![Layer { storage, window: Window::ALL, path: None }];
    let mut at = 0;
    while let Some(layer) = layers.get(at).filter(|_| layers.len() <= DEPTH_MAX * DEPTH_MAX) {
        if let Storage::Device(numbers) = layer.storage {
            let window = layer.window;
            let parts = below(numbers).into_iter();
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

/// What a block device stands on, one step down.
fn below(numbers: Numbers) -> Vec<Layer> {
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

/// The devices that a mapped device or an array is made of. Which bytes of them is not asked.
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

/// The folder of a block device below `/sys/devices`.
fn sysfs((major, minor): Numbers) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn device_number(folder: &Path) -> Option<Numbers> {
    parse_numbers(&fs::read_to_string(folder.join("dev")).ok()?)
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What a loop device stands on; `None` for other devices, and for one that is free.
fn loop_backing(folder: &Path) -> Option<Layer> {
    let mut path = fs::read(folder.join("loop/backing_file")).ok()?;
    if path.last() == Some(&b'\n') {
        path.pop();
    }
    let path = PathBuf::from(OsString::from_vec(path));
    let start = number(&folder.join("loop/offset")).unwrap_or(0);
    let limit = number(&folder.join("loop/sizelimit")).filter(|limit| *limit > 0);
    let end = limit.map_or(u64::MAX, |limit| start.saturating_add(limit));
    let window = Window { start, end };
    // The driver knows; the path may lead elsewhere, or nowhere, from here.
    let told = loop_status(Path::new("/dev").join(folder.file_name()?).as_path());
    let at_path = fs::metadata(&path).ok().map(|meta| storage_of(&meta));
    let storage = told.or(at_path)?;
    let path = (at_path == Some(storage)).then_some(path);
    Some(Layer { storage, window, path })
}

/// Asks the loop driver for the file of a device, which takes the right to open the device.
fn loop_status(device: &Path) -> Option<Storage> {
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
    /// The size of `struct loop_info64`, which begins with the three numbers.
    const WORDS: usize = 232 / 8;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd: OwnedFd = rustix::fs::open(device, flags, Mode::empty()).ok()?;
    let mut info = [0_u64; WORDS];
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64`, of 232 bytes, to the pointer.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    let [device, inode, rdevice, ..] = info;
    // A file's own number is that of its filesystem; a block device has one of its own besides.
    match (answer, unpack(rdevice)) {
        (0, (0, 0)) => {
            let (major, minor) = unpack(device);
            Some(Storage::File { device: rustix::fs::makedev(major, minor), inode })
        }
        (0, numbers) => Some(Storage::Device(numbers)),
        _ => None,
    }
}

/// A device number as the kernel packs it for programs.
fn unpack(packed: u64) -> Numbers {
    let major = (packed >> 8) & 0xfff;
    let minor = (packed & 0xff) | ((packed >> 12) & 0xfff00);
    (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0))
}

/// A device that stands on the same bytes as another disk.
#[derive(Clone, Debug)]
pub(crate) struct Overlapping {
    pub(crate) name: String,
    pub(crate) numbers: Numbers,
    /// Its partitions are in the list, too, each on its own.
    pub(crate) has_partitions: bool,
}

/// Returns the loop devices, and the partitions of them, that share a byte with the disk of this
/// chain and are not of the chain.
pub(crate) fn loop_devices_over(disk: &[Layer]) -> Vec<Overlapping> {
    let mut found = Vec::new();
    let devices = fs::read_dir("/sys/block").into_iter().flatten().take(DEVICES_MAX).flatten();
    for device in devices {
        let folder = device.path();
        if !folder.join("loop/backing_file").exists() {
            continue;
        }
        let parts = fs::read_dir(&folder).into_iter().flatten().take(DEVICES_MAX).flatten();
        let parts: Vec<PathBuf> =
            parts.map(|part| part.path()).filter(|part| part.join("partition").exists()).collect();
        let whole = device_number(&folder);
        // The own device's: the kernel decides between those when they are opened exclusively.
        if whole.is_none_or(|whole| disk.iter().any(|l| l.storage == Storage::Device(whole))) {
            continue;
        }
        let has_partitions = !parts.is_empty();
        for (folder, has_partitions) in
            parts.into_iter().map(|part| (part, false)).chain([(folder, has_partitions)])
        {
            let Some(numbers) = device_number(&folder) else { continue };
            if conflict(disk, &chain(Storage::Device(numbers))) {
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
    fn windows_of_parts_are_windows_of_the_whole() {
        let part = Window { start: 100, end: 200 };
        let of = |start, end| Window { start, end };
        assert_eq!(Window::ALL.within(part), part);
        assert_eq!(of(10, 20).within(part), of(110, 120));
        assert_eq!(of(90, 120).within(part), of(190, 200));
        assert!(of(0, 10).overlaps(of(9, 20)) && !of(0, 10).overlaps(of(10, 20)));
    }

    #[test]
    fn device_numbers_are_unpacked_as_the_kernel_packs_them() {
        for (major, minor) in [(7, 0), (8, 17), (259, 70_000), (0, 44), (0xfff, 0xf_ffff)] {
            let (high, low) = (u64::from(minor & !0xff_u32), u64::from(minor & 0xff));
            assert_eq!(unpack(low | (u64::from(major) << 8) | (high << 12)), (major, minor));
        }
    }

    #[test]
    fn a_file_stands_on_nothing_but_itself() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let storage = storage_of(&file.as_file().metadata().unwrap());
        let layers = chain(storage);
        assert_eq!(layers, [Layer { storage, window: Window::ALL, path: None }]);
        assert!(conflict(&layers, &layers));
    }
}
