//! `-o blkdev`: the mount of a block device, with type `fuseblk`.
//!
//! The kernel sends such a mount sync(2) and syncfs(2), and umount(2) waits until its process has
//! committed. The device to mount is the first device of the volume that the process writes to; the
//! other devices of the volume are opened exclusively, as for every mount.
//!
//! The mount is made, and the device with it claimed, before the volume is opened. Each error until
//! the mount is attached drops it, and the device is free again.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use butternut::DevicePath;
use butternut_fuse::{DeviceMount, FuseError};
use butternut_sys::holder;
use rustix::io::Errno;

use super::options::ParsedOptions;
use crate::failure::{Failure, chain, io_text};
use crate::volume::arg::VolumeArg;

/// What to do where the option cannot be used.
const WITHOUT: &str = "mount without -o blkdev";

/// Returns the path of the device to mount, which mount tables show as the source.
///
/// # Errors
/// The user is not root, or the device is not a block device.
pub(super) fn source(volume: &VolumeArg, options: &ParsedOptions) -> Result<String, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("option blkdev", "needs root").hint(WITHOUT));
    }
    // A seed is opened for reading, also by others.
    let may_have_seed = !options.volume.read_only && volume.devices.len() > 1;
    let is_own = |device: &&DevicePath| !(may_have_seed && device.is_seed());
    let device = volume.devices.iter().find(is_own).or(volume.devices.first());
    let path = device.map_or(Path::new(""), |device| &device.path);
    let shown = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|error| Failure::io(&*shown, &error))?;
    if !meta.file_type().is_block_device() {
        let failure = Failure::new(shown, "is not a block device, which -o blkdev needs");
        return Err(failure
            .hint(format!("attach an image file to a loop device with losetup(8), or {WITHOUT}")));
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
    DeviceMount::new(options).map(Some).map_err(|error| refused(&options.source, &error))
}

/// Describes a mount of a block device that the kernel refuses, with a hint.
fn refused(device: &str, error: &FuseError) -> Failure {
    let FuseError::MountFailed(source) = error else {
        return Failure::new(device, chain(error))
            .hint("load the fuse module, or make /dev/fuse available in the container");
    };
    let failure = Failure::new(device, format!("cannot be mounted: {}", io_text(source)));
    match Errno::from_io_error(source) {
        Some(Errno::BUSY) => busy(device),
        Some(Errno::PERM) => failure.hint(format!(
            "-o blkdev needs CAP_SYS_ADMIN in the initial user namespace; {WITHOUT}"
        )),
        Some(Errno::NODEV) => {
            failure.hint(format!("this kernel has no filesystem type fuseblk; {WITHOUT}"))
        }
        Some(Errno::INVAL) => failure.hint(format!("-o blkdev needs Linux 6.15; {WITHOUT}")),
        Some(Errno::ACCESS) => failure.hint("a read-only device needs -o ro"),
        _ => failure,
    }
}

fn busy(device: &str) -> Failure {
    let numbers = |meta: Metadata| (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let holder = std::fs::metadata(device)
        .map(numbers)
        .map_or(holder::Holder::Unknown, |(major, minor)| holder::of_device(major, minor));
    Failure::new(device, format!("is busy: {holder}")).hint(crate::failure::hints::BUSY)
}
