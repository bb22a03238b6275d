//! A volume that is served already, mounted at a further place.
//!
//! ```text
//! mount -> control socket of each mount: which devices? -> of the one that serves them: a clone of
//!          the subvolume's directory -> the mount point
//! ```
//!
//! 1. Only root mounts so, and only what root serves: the kernel lets no other user place a clone,
//!    and another user's process could give root any directory for the one that was asked for. The
//!    two ends of the control socket look at the user of the other ([`crate::control`]).
//! 2. A volume that is open for reading only is opened by every mount for itself, as before.
//! 3. The options of the volume are those of its first mount, and its switches are as they are:
//!    another value is refused ([`settled`]). `ro`, `dev`, `suid` and `exec` are those of each
//!    place.

use std::collections::HashSet;
use std::path::Path;

use butternut::{FileId, Filesystem, Subvolume};
use butternut_fuse::{Clone, KIND, Rights};
use butternut_sys::mounts::{self, Mount};
use rustix::io::Errno;

use super::{Plan, settled};
use crate::control::{Asked, Question, client};
use crate::failure::{Failure, plain};
use crate::volume_arg::VolumeArg;

/// The object ids of the top level and of its root directory.
const TOP_LEVEL: u64 = 5;
const ROOT_DIRECTORY: u64 = 256;

/// Returns the top directory of a volume, and the path from there to the directory that the
/// filesystem was opened for; `None` where that is no subvolume with a path.
pub(super) fn from_the_top(filesystem: &Filesystem) -> Option<(FileId, std::path::PathBuf)> {
    let root = filesystem.root();
    let is_subvolume = root.ino == ROOT_DIRECTORY && rustix::process::geteuid().is_root();
    let info = filesystem.subvolume(root.subvolume).ok().filter(|_| is_subvolume)?;
    Some((FileId::new(TOP_LEVEL, ROOT_DIRECTORY), crate::control::path(info.path?)))
}

/// What the devices of a volume are to the kernel, whatever their paths, each with the offset of
/// the volume in it. Without those that cannot be looked at.
pub(super) fn identities(volume: &VolumeArg) -> Vec<String> {
    let identity = |device: &butternut::DevicePath| {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let meta = std::fs::metadata(&device.path).ok()?;
        let offset = device.offset;
        Some(if meta.file_type().is_block_device() {
            format!("device {} at {offset}", meta.rdev())
        } else {
            format!("file {} {} at {offset}", meta.dev(), meta.ino())
        })
    };
    volume.devices.iter().filter_map(identity).collect()
}

/// Mounts a volume that is served for writing at a further place; whether there is such a volume.
pub(super) fn join(plan: &Plan) -> Result<bool, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let wanted = identities(&plan.volume);
    let mounts = mounts::read().map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    let mut seen = HashSet::new();
    let is_roots = |mount: &&Mount| mount.kind == KIND && mount.option("user_id") == Some("0");
    for mount in mounts.iter().filter(is_roots).filter(|mount| seen.insert(mount.device)) {
        // If the process of the volume does not answer, opening the volume fails and names it.
        let Ok(served) = client::ask_mount("mount", mount, &Question::Volume) else { continue };
        let is_it =
            |device: &serde_json::Value| wanted.iter().any(|w| Some(&**w) == device.as_str());
        if served["devices"].as_array().is_some_and(|devices| devices.iter().any(is_it)) {
            let can_join = ["is_writable", "can_clone"].iter().all(|key| served[*key] == true);
            if !can_join {
                return Ok(false);
            }
            settled::check(&plan.meaning, &served["settings"])?;
            if plan.meaning.fuse.is_synchronous && !mount.has_option("sync") {
                return Err(Failure::new("option sync", "the volume is mounted without it")
                    .cure("change all its places with `mount -o remount,sync`"));
            }
            check_switches(plan, mount)?;
            return place(plan, mount).map(|()| true);
        }
    }
    Ok(false)
}

fn place(plan: &Plan, served: &Mount) -> Result<(), Failure> {
    let asked = match &plan.meaning.volume.subvolume {
        Subvolume::Default => Asked::Default,
        Subvolume::Id(id) => Asked::Id(*id),
        Subvolume::Path(path) => Asked::Path(path.clone()),
    };
    let clone = client::ask_for_clone(&plan.volume.typed, served, asked)?;
    let rights = Rights::from(&plan.meaning.fuse);
    let placed = Clone::received(clone).place(&plan.mountpoint, rights);
    placed.map_err(|error| refused(&plan.mountpoint, &error))
}

/// Refuses a switch that has another value in the process that serves the volume (law 3).
fn check_switches(plan: &Plan, served: &Mount) -> Result<(), Failure> {
    if plan.meaning.switches.is_empty() {
        return Ok(());
    }
    let have = client::ask_mount("mount", served, &Question::Switches)?;
    let have: Vec<_> = have.as_array().into_iter().flatten().collect();
    for (key, _) in &plan.meaning.switches {
        let wanted = plan.meaning.volume.switches.find_named(key);
        let wanted = wanted.map_err(|error| Failure::new("mount", error.to_string()))?;
        let served = have.iter().find(|switch| switch["key"] == **key);
        let value = served.and_then(|switch| switch["value"].as_str()).unwrap_or("none");
        if value != wanted.value {
            let option = format!("option {key}={}", wanted.value);
            return Err(Failure::new(option, format!("the volume is mounted with {key}={value}"))
                .cure("leave it out, or change all its places with `butternut ctl`"));
        }
    }
    Ok(())
}

fn refused(mountpoint: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::new(mountpoint.display().to_string(), plain(error));
    match Errno::from_io_error(error) {
        Some(Errno::PERM) => failure.cure("a further mount of a served volume takes root"),
        _ => failure,
    }
}
