//! Mounts a volume that is already mounted at another mount point.
//!
//! ```text
//! mount -> control socket of every mount: which devices?
//!       -> control socket of the mount with these devices: a clone of the subvolume's directory
//!       -> move_mount(2) of the clone to the mount point
//! ```
//!
//! 1. This needs root on both sides. The kernel lets no other user attach a clone, and the process
//!    of another user could send root a clone of any directory. Each side of the control socket
//!    checks the user id of its peer ([`crate::control`]).
//! 2. A volume that is mounted read-only is not joined: another mount opens it again.
//! 3. The options of the volume are those of its first mount, and its tunables have their current
//!    values: another value is refused ([`fixed_options`]). Each mount point has its own `ro`,
//!    `dev`, `suid` and `exec`.

use std::collections::HashSet;
use std::path::Path;

use butternut::{DevicePath, FileId, Filesystem, Subvolume, TOP_LEVEL};
use butternut_fuse::{ClonedMount, MountPermissions, is_own_type};
use butternut_sys::mounts::{self, Mount};
use rustix::io::Errno;

use super::{Plan, fixed_options};
use crate::control::hold::HeldDevice;
use crate::control::{Request, SubvolumeSelector, client};
use crate::failure::{Failure, io_text};
use crate::output::notes::Notes;
use crate::volume::arg::VolumeArg;
use crate::volume::identity::device_identity;

/// Returns the top-level directory of a volume, and the path from it to the root of `filesystem`.
/// Returns `None` if that root is not a subvolume with a path, or the user is not root.
pub(super) fn top_level_path(filesystem: &Filesystem) -> Option<(FileId, std::path::PathBuf)> {
    let root = filesystem.root();
    let is_subvolume = root.is_subvolume_root() && rustix::process::geteuid().is_root();
    let info = filesystem.subvolume(root.subvolume).ok().filter(|_| is_subvolume)?;
    Some((FileId::root_of(TOP_LEVEL), crate::control::path(info.path?)))
}

/// Returns an identity for each device that does not depend on its path: the device number of a
/// block device, or device and inode number of an image file, and the offset of the volume. Devices
/// that cannot be examined are left out, and so are seeds, which belong to several volumes.
pub(super) fn device_identities(volume: &VolumeArg) -> Vec<String> {
    let identity = |device: &butternut::DevicePath| {
        let meta = std::fs::metadata(&device.path).ok()?;
        Some(format!("{}{}", device_identity(&meta), device.offset))
    };
    // A volume with a seed has another device, too.
    let may_have_seed = volume.devices.len() > 1;
    let own = volume.devices.iter().filter(|device| !(may_have_seed && device.is_seed()));
    own.filter_map(identity).collect()
}

/// Returns all devices by their absolute paths, seeds too. Those without one are left out.
pub(super) fn device_paths(volume: &VolumeArg) -> Vec<HeldDevice> {
    let absolute = |device: &DevicePath| {
        let path = device.path.canonicalize().ok()?;
        let identity = device_identity(&std::fs::metadata(&path).ok()?);
        let typed = device.path.to_string_lossy().into_owned();
        Some(HeldDevice { path, typed, offset: device.offset, bytes: device.bytes, identity })
    };
    volume.devices.iter().filter_map(absolute).collect()
}

/// Mounts the volume through the process that has it mounted for writing. Returns whether there is
/// such a process.
pub(super) fn mount_served(plan: &Plan, notes: Notes) -> Result<bool, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let wanted = device_identities(&plan.volume);
    let mounts = mounts::read().map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    let mut seen = HashSet::new();
    let is_mount_of_root =
        |mount: &&Mount| is_own_type(&mount.kind) && mount.option("user_id") == Some("0");
    for mount in mounts.iter().filter(is_mount_of_root).filter(|mount| seen.insert(mount.device)) {
        // A process that does not respond delays only mounts of its own volume.
        let recorded = client::recorded_devices(mount);
        if recorded.is_some_and(|devices| !devices.iter().any(|device| wanted.contains(device))) {
            continue;
        }
        // If the process of the volume does not respond, opening the volume fails and names the
        // process.
        let Ok(served) = client::request_mount("mount", mount, &Request::Volume) else { continue };
        let is_wanted =
            |device: &serde_json::Value| wanted.iter().any(|w| Some(&**w) == device.as_str());
        if served["devices"].as_array().is_some_and(|devices| devices.iter().any(is_wanted)) {
            let can_join = ["is_writable", "can_clone"].iter().all(|key| served[*key] == true);
            if !can_join {
                return Ok(false);
            }
            fixed_options::check(&plan.options, &served["settings"])?;
            if plan.options.fuse.is_synchronous && !mount.has_option("sync") {
                return Err(Failure::new("option sync", "the volume is mounted without it")
                    .hint("change all its mount points with `mount -o remount,sync`"));
            }
            check_tunables(plan, mount)?;
            refuse_same_place(plan, &mounts, mount)?;
            return attach_clone(plan, mount, notes).map(|()| true);
        }
    }
    Ok(false)
}

/// Fails if the volume is mounted on the same mount point: one unmount would not end both mounts.
/// The kernel refuses this for its own filesystems.
fn refuse_same_place(plan: &Plan, mounts: &[Mount], served: &Mount) -> Result<(), Failure> {
    let shown = plan.mountpoint.display().to_string();
    let place =
        plan.mountpoint.canonicalize().map_err(|error| Failure::io(shown.clone(), &error))?;
    match mounts::topmost(mounts, &place) {
        Some(there) if there.device == served.device => {
            Err(Failure::new(shown, "the volume is already mounted there")
                .hint("unmount it first, or change its options with `mount -o remount`"))
        }
        _ => Ok(()),
    }
}

fn attach_clone(plan: &Plan, served: &Mount, notes: Notes) -> Result<(), Failure> {
    let selector = match &plan.options.volume.subvolume {
        Subvolume::Default => SubvolumeSelector::Default,
        Subvolume::Id(id) => SubvolumeSelector::Id(*id),
        Subvolume::Path(path) => SubvolumeSelector::Path(path.clone()),
    };
    let (clone, connection) = client::request_clone(&plan.volume.typed, served, selector, notes)?;
    let rights = MountPermissions::from(&plan.options.fuse);
    let placed = ClonedMount::from_fd(clone).attach(&plan.mountpoint, rights);
    drop(connection);
    placed.map_err(|error| refused(&plan.mountpoint, &error))
}

/// Fails if a tunable has another value in the process of the mount (law 3).
fn check_tunables(plan: &Plan, served: &Mount) -> Result<(), Failure> {
    if plan.options.tunables.is_empty() {
        return Ok(());
    }
    let have = client::request_mount("mount", served, &Request::Tunables)?;
    let have: Vec<_> = have.as_array().into_iter().flatten().collect();
    for (key, _) in &plan.options.tunables {
        let wanted = plan.options.volume.tunables.find_named(key);
        let wanted = wanted.map_err(|error| Failure::new("mount", error.to_string()))?;
        let served = have.iter().find(|tunable| tunable["key"] == **key);
        let value = served.and_then(|tunable| tunable["value"].as_str()).unwrap_or("none");
        if value != wanted.value {
            let option = format!("option {key}={}", wanted.value);
            return Err(Failure::new(option, format!("the volume is mounted with {key}={value}"))
                .hint("leave it out, or change all its mount points with `butternut ctl`"));
        }
    }
    Ok(())
}

fn refused(mountpoint: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::new(mountpoint.display().to_string(), io_text(error));
    match Errno::from_io_error(error) {
        Some(Errno::PERM) => failure.hint("another mount of a mounted volume needs root"),
        _ => failure,
    }
}
