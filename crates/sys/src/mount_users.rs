//! Finds what keeps a mount busy: processes with files or directories of it, mounts on it, loop
//! devices over its files.
//!
//! 1. The answer is a hint for a message. It omits processes of other users that this process may
//!    not inspect, and references that last only as long as one system call.
//! 2. No function here waits for the mounted filesystem, which may not respond. Descriptors are
//!    compared by the mount id that `/proc` shows, directories by a `statx` that does not call the
//!    filesystem.
//! 3. The search for processes takes a limited time (`Search::hint`).

use crate::holder::process_name;
use crate::mounts::{self, Mount};
use crate::process_search::{Process, Search, number_in};
use crate::text::{self, escaped};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum number of block devices that are examined.
const ENTRIES_MAX: usize = 100_000;

/// One user of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountUser {
    Process {
        id: u32,
        name: String,
        how: Use,
    },
    /// Another mount on a directory of this one.
    Mount(PathBuf),
    LoopDevice(String),
}

/// How a process uses a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    WorkingDirectory,
    RootDirectory,
    Program,
    OpenFile,
    MappedFile,
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { id, name, how } => {
                let how = match how {
                    Use::WorkingDirectory => "has its working directory in it",
                    Use::RootDirectory => "has its root directory in it",
                    Use::Program => "is a program of it",
                    Use::OpenFile => "has a file of it open",
                    Use::MappedFile => "has a file of it mapped",
                };
                write!(f, "process {id} ({}) {how}", escaped(name.as_bytes()))
            }
            Self::Mount(place) => {
                write!(f, "there is a mount on {}", escaped(place.as_os_str().as_bytes()))
            }
            Self::LoopDevice(name) => write!(f, "/dev/{name} is backed by a file of it"),
        }
    }
}

/// Returns at most `limit` users of a mount.
pub fn of(mount: &Mount, limit: usize) -> Vec<MountUser> {
    let table = mounts::read().unwrap_or_default();
    let on_it = table.iter().filter(|other| other.is_on(mount));
    let mut users: Vec<_> =
        on_it.map(|other| MountUser::Mount(other.mountpoint.clone())).take(limit).collect();
    let search = Search::hint();
    for Process { id, directory } in search.processes() {
        if users.len() >= limit {
            return users;
        }
        let Some(how) = use_by(&directory, mount, search) else { continue };
        users.push(MountUser::Process { id, name: process_name(&directory), how });
    }
    users.extend(loop_devices(mount).map(MountUser::LoopDevice));
    users.truncate(limit);
    users
}

fn use_by(process: &Path, mount: &Mount, search: Search) -> Option<Use> {
    let directories =
        [("cwd", Use::WorkingDirectory), ("root", Use::RootDirectory), ("exe", Use::Program)];
    let by_link = directories.into_iter().find(|(link, _)| is_in(&process.join(link), mount));
    if let Some((_, how)) = by_link {
        return Some(how);
    }
    let mut open = search.descriptors(process).filter_map(|descriptor| descriptor.info());
    if open.any(|info| number_in(&info, "mnt_id:") == Some(mount.id)) {
        return Some(Use::OpenFile);
    }
    let (major, minor) = mount.device;
    let device = format!("{major:02x}:{minor:02x}");
    let maps = text::of_file(process.join("maps")).ok()?;
    let is_mapped = maps.lines().any(|line| line.split(' ').nth(3) == Some(&*device));
    is_mapped.then_some(Use::MappedFile)
}

/// Returns whether a link of `/proc` leads into the mount, without calling its filesystem.
fn is_in(link: &Path, mount: &Mount) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    // A FUSE mount of another user denies root all fields that are requested. The kernel returns
    // the mount id unrequested.
    let Ok(seen) = statx(CWD, link, flags, StatxFlags::empty()) else { return false };
    let has_id = StatxFlags::from_bits_retain(seen.stx_mask).contains(StatxFlags::MNT_ID);
    has_id && seen.stx_mnt_id == mount.id
}

/// Returns the loop devices whose backing file has a path below the mount point.
fn loop_devices(mount: &Mount) -> impl Iterator<Item = String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().take(ENTRIES_MAX).flatten();
    devices.filter_map(|device| {
        let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
        let backing = OsStr::from_bytes(backing.strip_suffix(b"\n").unwrap_or(&backing));
        let is_below = Path::new(backing).starts_with(&mount.mountpoint);
        is_below.then(|| device.file_name().to_string_lossy().into_owned())
    })
}

#[test]
fn names_of_users_are_escaped() {
    let name = "\u{1b}]0;x\u{7}\nroot".to_owned();
    let shown = MountUser::Process { id: 7, name, how: Use::OpenFile }.to_string();
    assert_eq!(shown, "process 7 (\\u{1b}]0;x\\u{7}\\nroot) has a file of it open");
    let shown = MountUser::Mount("/mnt/a\nb".into()).to_string();
    assert_eq!(shown, "there is a mount on /mnt/a\\nb");
}
