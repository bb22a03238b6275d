//! Commands that print on-disk structures.
//!
//! A mounted volume is read by `rootid`, `inode-resolve` and `logical-resolve`. The others read
//! devices, which change while the volume is mounted, and refuse a directory.

pub(crate) mod dump_super;
pub(crate) mod dump_tree;
pub(crate) mod inode_resolve;
pub(crate) mod logical_resolve;
pub(crate) mod rootid;
pub(crate) mod tree_stats;

use std::ffi::OsString;
use std::path::Path;

use super::mounted::directory::MountedDirectory;
use crate::args::VolumesArgs;
use crate::failure::Failure;

/// Returns the directory of a mounted volume that the only argument names.
fn only_directory(volume: &VolumesArgs) -> Result<Option<MountedDirectory<'_>>, Failure> {
    MountedDirectory::open_only(&volume.volume)
}

/// Refuses a directory in the place of a volume or a device.
fn refuse_directories(command: &str, volumes: &[OsString]) -> Result<(), Failure> {
    let Some(directory) = volumes.iter().find(|volume| Path::new(volume).is_dir()) else {
        return Ok(());
    };
    let why = format!("is a directory, and `inspect {command}` reads image files and devices");
    Err(Failure::new(directory.display().to_string(), why).hint(
        "unmount the volume; of a mounted one, rootid, inode-resolve and logical-resolve are shown",
    ))
}
