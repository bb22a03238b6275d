//! The mount of a volume, found by a device or image file of the volume, as umount(8) does it.
//!
//! 1. A volume that is mounted at several mount points is refused: which one is meant is not known.
//! 2. Only mounts of the user who runs the command are found: the process of another user might
//!    name a device that it does not have. So root names the mount points of other users.
//! 3. The processes of other volumes are sent no request where root has recorded their devices.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use butternut_fuse::is_own_type;
use butternut_sys::mounts::Mount;
use rustix::process::geteuid;

use crate::control::{Request, client};
use crate::failure::Failure;
use crate::volume::identity::device_identity;

/// Finds the mount of the volume on a device or image file. Returns `None` if there is none, or the
/// path is another file.
///
/// # Errors
/// Fails if there are several mounts (law 1).
pub(super) fn find_mount(path: &Path, mounts: &[Mount]) -> Result<Option<Mount>, Failure> {
    let is_device = |found: &Metadata| found.is_file() || found.file_type().is_block_device();
    let Some(found) = path.metadata().ok().filter(is_device) else { return Ok(None) };
    let identity = device_identity(&found);
    let user = geteuid().as_raw().to_string();
    let is_own =
        |mount: &&Mount| is_own_type(&mount.kind) && mount.option("user_id") == Some(&user);
    let own = mounts.iter().filter(is_own);
    let of_device: Vec<_> = own.filter(|mount| is_on(mount, &identity)).collect();
    match of_device.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some((*only).clone())),
        several => {
            let shown = several.iter().map(|mount| mount.mountpoint.display().to_string());
            let shown = shown.collect::<Vec<_>>().join(", ");
            Err(Failure::new(path.display().to_string(), "is mounted at several mount points")
                .hint(format!("name one of them: {shown}")))
        }
    }
}

/// Returns whether the volume of a mount is on the device with an identity.
fn is_on(mount: &Mount, identity: &str) -> bool {
    let recorded = client::recorded_devices(mount).unwrap_or_default();
    // A send stream has no recorded devices.
    if !recorded.is_empty() {
        return recorded.iter().any(|device| device.starts_with(identity));
    }
    let volume = client::request_mount("umount", mount, &Request::Volume).unwrap_or_default();
    let list = |name: &str| volume[name].as_array().into_iter().flatten();
    let is_same = |path: &str| {
        Path::new(path).metadata().is_ok_and(|found| device_identity(&found) == identity)
    };
    let mut devices = list("devices").filter_map(|device| device.as_str()).peekable();
    // The file at a path may be another one by now: paths count only where nothing else is known.
    if devices.peek().is_some() {
        return devices.any(|device| device.starts_with(identity));
    }
    list("paths").any(|path| path.as_str().is_some_and(is_same))
}
