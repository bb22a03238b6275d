//! Who holds a busy disk, as far as /proc and /sys tell.
//!
//! Every answer is a hint for a person: it is asked after the refusal, so the holder may be gone
//! already, and other users' processes may be hidden. Nothing here decides anything, except:
//!
//! 1. [`mount_over_loop`] and [`writing_mount`] find a kernel mount that no lock would show.
//! 2. [`Holder::Unknown`] makes an opener wait a moment: a holder who cannot be seen may have
//!    ended, and then his lock soon ends too ([`crate::file`]).
//! 3. No file is asked about that others have open and that cannot be the disk: it may lie on a
//!    file system that does not answer.

use crate::file::DiskKind;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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
    /// Device mapper, MD or a loop device stands on it.
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
                write!(f, "the kernel has mounted {device} on {}", mountpoint.display())
            }
            Holder::Device { name } => write!(f, "it is part of /dev/{name}"),
            Holder::Swap => f.write_str("it is swap space"),
            Holder::Process { id, name } => write!(f, "process {id} ({name}) has it open"),
            Holder::Unknown => f.write_str("somebody else has it open"),
        }
    }
}

/// Who made an exclusive open of a block device fail.
pub(crate) fn of_device(path: &Path, kind: DiskKind) -> Holder {
    let DiskKind::BlockDevice { major, minor } = kind else { return Holder::Unknown };
    let numbers = (major, minor);
    mount_of(numbers, Mounts::All)
        .or_else(|| holder_device(numbers))
        .or_else(|| swap_on(numbers))
        .or_else(|| process_with(path, |_| true))
        .unwrap_or(Holder::Unknown)
}

/// Who has the open-file-description lock.
pub(crate) fn of_lock(path: &Path) -> Holder {
    process_with(path, |fdinfo| fdinfo.contains("OFDLCK")).unwrap_or(Holder::Unknown)
}

/// The kernel's mount through which a disk is being changed: one for reading and writing, of the
/// block device itself or of a loop device that stands on the image.
pub fn writing_mount(disk: &Path) -> Option<Holder> {
    match device_numbers(disk) {
        Some(numbers) => mount_of(numbers, Mounts::Writing),
        None => over_loop(disk, Mounts::Writing),
    }
}

/// The kernel's mount of a loop device that stands on this image, if there is one.
pub(crate) fn mount_over_loop(image: &Path) -> Option<Holder> {
    over_loop(image, Mounts::All)
}

/// Which mounts count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mounts {
    All,
    Writing,
}

fn over_loop(image: &Path, which: Mounts) -> Option<Holder> {
    let image = fs::canonicalize(image).ok()?;
    let devices = fs::read_dir("/sys/block").ok()?;
    for device in devices.take(LOOKED_AT_MAX).flatten() {
        let Ok(backing) = fs::read(device.path().join("loop/backing_file")) else { continue };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        if backing != image.as_os_str().as_bytes() {
            continue;
        }
        let numbers = fs::read_to_string(device.path().join("dev")).ok();
        let numbers = numbers.and_then(|text| parse_numbers(&text));
        if let Some(mount) = numbers.and_then(|numbers| mount_of(numbers, which)) {
            return Some(mount);
        }
    }
    None
}

fn parse_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The mount whose source is the device, or (btrfs names one device of several in the mount table)
/// another device of the same file system.
fn mount_of(numbers: (u32, u32), which: Mounts) -> Option<Holder> {
    let siblings = btrfs_siblings(numbers);
    // Names in it are bytes; the odd one out must not hide all others.
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    table.lines().take(LOOKED_AT_MAX).find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        let mounted = parse_numbers(left.nth(2)?)?;
        let mountpoint = left.nth(1)?;
        let mut right = right.split(' ').skip(1);
        let (source, options) = (right.next()?, right.next()?);
        if which == Mounts::Writing && !options.split(',').any(|option| option == "rw") {
            return None;
        }
        let by_source = || source.starts_with('/').then(|| device_numbers(Path::new(source)));
        let is_ours = |candidate| candidate == numbers || siblings.contains(&candidate);
        (is_ours(mounted) || by_source().flatten().is_some_and(is_ours)).then(|| Holder::Mount {
            device: source.to_owned(),
            mountpoint: PathBuf::from(unescape(mountpoint)),
        })
    })
}

fn device_numbers(path: &Path) -> Option<(u32, u32)> {
    let rdev = fs::metadata(path).ok()?.rdev();
    (rdev != 0).then(|| (rustix::fs::major(rdev), rustix::fs::minor(rdev)))
}

/// The devices of the mounted btrfs that this device belongs to.
fn btrfs_siblings(numbers: (u32, u32)) -> Vec<(u32, u32)> {
    let Ok(systems) = fs::read_dir("/sys/fs/btrfs") else { return Vec::new() };
    for system in systems.take(LOOKED_AT_MAX).flatten() {
        let Ok(devices) = fs::read_dir(system.path().join("devices")) else { continue };
        let members: Vec<_> = devices
            .take(LOOKED_AT_MAX)
            .flatten()
            .filter_map(|device| {
                parse_numbers(&fs::read_to_string(device.path().join("dev")).ok()?)
            })
            .collect();
        if members.contains(&numbers) {
            return members;
        }
    }
    Vec::new()
}

fn holder_device((major, minor): (u32, u32)) -> Option<Holder> {
    let holders = fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders")).ok()?;
    let name = holders.flatten().next()?.file_name().to_string_lossy().into_owned();
    Some(Holder::Device { name })
}

fn swap_on(numbers: (u32, u32)) -> Option<Holder> {
    let table = fs::read_to_string("/proc/swaps").ok()?;
    let mut sources = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    sources.any(|source| device_numbers(Path::new(source)) == Some(numbers)).then_some(Holder::Swap)
}

/// A process that has the file open and whose descriptor's `fdinfo` pleases.
fn process_with(path: &Path, pleases: impl Fn(&str) -> bool) -> Option<Holder> {
    let wanted = fs::metadata(path).ok()?;
    let is_wanted = |open: &fs::Metadata| {
        let same_node = (open.dev(), open.ino()) == (wanted.dev(), wanted.ino());
        same_node || (wanted.rdev() != 0 && open.rdev() == wanted.rdev())
    };
    // Law 3. What is open is first asked of the kernel alone.
    let may_be_wanted = |descriptor: &Path, info: &str| {
        let of_device = || fs::read_link(descriptor).is_ok_and(|to| to.starts_with("/dev/"));
        let ino = info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok());
        ino == Some(wanted.ino()) || (wanted.rdev() != 0 && of_device())
    };
    for process in fs::read_dir("/proc").ok()?.take(LOOKED_AT_MAX).flatten() {
        let Ok(id) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.take(LOOKED_AT_MAX).flatten() {
            let info = process.path().join("fdinfo").join(descriptor.file_name());
            let Ok(info) = fs::read_to_string(info) else { continue };
            let descriptor = descriptor.path();
            if pleases(&info)
                && may_be_wanted(&descriptor, &info)
                && fs::metadata(&descriptor).is_ok_and(|open| is_wanted(&open))
            {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(Holder::Process { id, name: name.trim().to_owned() });
            }
        }
    }
    None
}

/// The mount table writes blanks as `\040` and so on.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        out.push_str(plain);
        let code = escaped.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = code {
            out.push(char::from(byte));
            rest = &escaped[3..];
        } else {
            out.push('\\');
            rest = escaped;
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_mount_points_are_read_back() {
        assert_eq!(unescape(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescape(r"/mnt/odd\9"), r"/mnt/odd\9");
    }
}
