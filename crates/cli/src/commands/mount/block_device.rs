//! `-o blkdev`: the mount of a block device, with type `fuseblk`.
//!
//! The kernel sends such a mount sync(2) and syncfs(2), and umount(2) waits until its process has
//! committed. The device to mount is the first device of the volume that the process writes to; the
//! other devices of the volume are opened exclusively, as for every mount.
//!
//! The mount is made, and the device with it claimed, before the volume is opened. Each error until
//! the mount is attached drops it, and the device is free again. So does the process of an earlier
//! mount that was unmounted by force: it must claim the device for its last commit, so the new
//! mount is made when that process has ended. While the new mount exists, no such process can
//! appear.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use butternut::DevicePath;
use butternut_fuse::{BLOCK_BYTES, DeviceMount, FuseError, Options, is_block_device_type};
use butternut_sys::block_device::BlockDevice;
use butternut_sys::holder::{self, Holder, ReleaseWait};
use butternut_sys::mounts::{self, Mount};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use super::options::ParsedOptions;
use crate::failure::{Failure, chain, io_text};
use crate::volume::arg::VolumeArg;

/// What to do where the option cannot be used.
const WITHOUT: &str = "mount without -o blkdev";

/// Returns the path of the device to mount, which mount tables show as the source.
///
/// # Errors
/// The user is not root, the device is not a block device, or `fsname` is not a path of it: the
/// kernel opens the source of such a mount.
pub(super) fn source(volume: &VolumeArg, options: &ParsedOptions) -> Result<String, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("option blkdev", "needs root").hint(WITHOUT));
    }
    // A seed is opened for reading, also by others.
    let may_have_seed = !options.volume.read_only && volume.devices.len() > 1;
    let is_own = |device: &&DevicePath| !(may_have_seed && device.is_seed());
    let device = volume.devices.iter().find(is_own).or(volume.devices.first());
    let mut path = device.map_or(Path::new(""), |device| &device.path);
    let shown = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|error| Failure::io(&*shown, &error))?;
    if !meta.file_type().is_block_device() {
        let failure = Failure::new(shown, "is not a block device, which -o blkdev needs");
        return Err(failure
            .hint(format!("attach an image file to a loop device with losetup(8), or {WITHOUT}")));
    }
    if let Some(name) = &options.fsname {
        if BlockDevice::at(Path::new(name)) != BlockDevice::at(path) {
            let why = format!("is not a path of {shown}, which -o blkdev mounts");
            return Err(Failure::new(format!("option fsname={name}"), why)
                .hint("leave it out, or name a path of the device"));
        }
        path = Path::new(name);
    }
    // The kernel takes the path from the working directory of the process.
    let path = std::path::absolute(path).map_err(|error| Failure::io(&*shown, &error))?;
    path.into_os_string().into_string().map_err(|_| {
        Failure::new(shown, "the path of the device is not UTF-8")
            .hint(format!("name the device by another path, or {WITHOUT}"))
    })
}

/// Mounts the block device if the options say so. No program can reach the mount yet.
pub(super) fn mount(parsed: &ParsedOptions) -> Result<Option<DeviceMount>, Failure> {
    if !parsed.blkdev {
        return Ok(None);
    }
    let options = &parsed.fuse;
    let device = BlockDevice::at(Path::new(&options.source));
    let ending_writer = || device.and_then(|device| holder::ending_writer(device.0));
    let mut wait = ReleaseWait::default();
    loop {
        match DeviceMount::new(options) {
            Ok(made) if ending_writer().is_none() => return Ok(Some(made)),
            Ok(made) => {
                drop(made);
                while let Some(writer) = ending_writer() {
                    if !wait.wait_for(&writer) {
                        return Err(busy(&options.source, options.is_writable));
                    }
                }
            }
            // As every open of a device does.
            Err(error) if is_busy(&error) && wait.wait_for(&holder_of(device)) => {}
            Err(error) => return Err(refused(options, &error)),
        }
    }
}

fn is_busy(error: &FuseError) -> bool {
    let FuseError::MountFailed(source) = error else { return false };
    Errno::from_io_error(source) == Some(Errno::BUSY)
}

fn holder_of(device: Option<BlockDevice>) -> Holder {
    device.map_or(Holder::Unknown, |device| holder::of_device(device.0))
}

/// Describes a mount of a block device that the kernel refuses, with a hint.
fn refused(options: &Options, error: &FuseError) -> Failure {
    let device = &*options.source;
    let FuseError::MountFailed(source) = error else {
        return Failure::new(device, chain(error))
            .hint("load the fuse module, or make /dev/fuse available in the container");
    };
    let failure = Failure::new(device, format!("cannot be mounted: {}", io_text(source)));
    match Errno::from_io_error(source) {
        Some(Errno::BUSY) => busy(device, options.is_writable),
        Some(Errno::PERM) => failure.hint(format!(
            "-o blkdev needs CAP_SYS_ADMIN in the initial user namespace; {WITHOUT}"
        )),
        Some(Errno::NODEV) => {
            failure.hint(format!("this kernel has no filesystem type fuseblk; {WITHOUT}"))
        }
        Some(Errno::INVAL) => match large_block_bytes(device) {
            Some(bytes) => {
                let why = format!("has logical blocks of {bytes} bytes");
                Failure::new(device, format!("{why}, and -o blkdev allows at most {BLOCK_BYTES}"))
                    .hint(WITHOUT)
            }
            None => failure.hint(format!("-o blkdev needs Linux 6.15; {WITHOUT}")),
        },
        Some(Errno::ACCESS) if is_on_nodev(device) => Failure::new(
            device,
            "is on a filesystem that is mounted with nodev, where no device can be opened",
        )
        .hint("name the device by its path in /dev"),
        Some(Errno::ACCESS) if options.is_writable && is_read_only(device) => {
            failure.hint("a read-only device needs -o ro")
        }
        _ => failure,
    }
}

/// Returns the size in bytes of the logical blocks of a device, if it is too large for a mount.
fn large_block_bytes(device: &str) -> Option<u32> {
    let bytes = BlockDevice::at(Path::new(device))?.logical_block_bytes()?;
    (bytes > BLOCK_BYTES).then_some(bytes)
}

fn is_read_only(device: &str) -> bool {
    BlockDevice::at(Path::new(device)).is_some_and(BlockDevice::is_read_only)
}

/// Returns whether a path leads to a file of a filesystem that is mounted with `nodev`.
fn is_on_nodev(device: &str) -> bool {
    let flags = rustix::fs::statvfs(device).map(|filesystem| filesystem.f_flag);
    flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::NODEV))
}

fn busy(device: &str, is_writable: bool) -> Failure {
    let found = BlockDevice::at(Path::new(device));
    let failure = Failure::new(device, format!("is busy: {}", holder_of(found)));
    // A volume that is mounted read-only is opened again by each mount, and not joined.
    let is_shared = !is_writable && found.is_some_and(is_mounted_read_only);
    failure.hint(if is_shared { WITHOUT } else { crate::failure::hints::BUSY })
}

/// Returns whether Butternut has mounted a block device, and read-only.
fn is_mounted_read_only(device: BlockDevice) -> bool {
    let is_it = |mount: &Mount| is_block_device_type(&mount.kind) && mount.has_option("ro");
    mounts::read_own_of_device(device.0).is_ok_and(|mounts| mounts.iter().any(is_it))
}
