//! The mounts of one connection: where its FUSE superblock is mounted, and how it is unmounted.
//!
//! 1. What is unmounted is of this superblock, by its device number, wherever it was moved or bound
//!    to; no path is remembered. The kernel gives the number to another filesystem only after it
//!    has ended the connection, so the connection is looked at after the mount table was read.
//! 2. A mount that carries a mount of another filesystem is left: detaching it would detach that
//!    one as well.
//! 3. Mounts in other mount namespaces are not changed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use butternut_sys::mounts::{self, Mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::attach::{HELPER, KIND};

/// The mounts of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    pub(crate) connection: Arc<OwnedFd>,
    /// The device number (major, minor). `None` where it could not be read: then none is found.
    pub(crate) device: Option<(u32, u32)>,
}

/// A mount that is left, and why.
pub type Left = (Mount, io::Error);

impl Superblock {
    /// Returns the superblock of a connection that was mounted at a path just now.
    pub(crate) fn at(connection: Arc<OwnedFd>, mountpoint: &Path) -> Self {
        let table = mounts::read().unwrap_or_default();
        let mount = mounts::topmost(&table, mountpoint).filter(|mount| mount.kind == KIND);
        Self { connection, device: mount.map(|mount| mount.device) }
    }

    /// Returns whether the kernel has ended the connection, or ends it within a time.
    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(&*self.connection, PollFlags::empty())];
        let time = Timespec::try_from(time).unwrap_or_default();
        // A signal, at the worst.
        poll(&mut polled, Some(&time)).is_ok_and(|_| polled[0].revents().contains(PollFlags::ERR))
    }

    /// Returns the mounts of this mount namespace, of all filesystems, and those of this one.
    fn table(&self) -> (Vec<Mount>, Vec<Mount>) {
        let table = mounts::read().unwrap_or_default();
        if self.ends_within(Duration::ZERO) {
            return (table, Vec::new());
        }
        let is_own = |mount: &&Mount| Some(mount.device) == self.device;
        let own = table.iter().filter(is_own).cloned().collect();
        (table, own)
    }

    /// Unmounts every place that is not in use. The first error is returned, after all were tried.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        let (_, own) = self.table();
        // One that was mounted later may be mounted on an earlier one.
        own.iter().rev().map(unmount).fold(Ok(()), Result::and)
    }

    /// Detaches every place, in use or not. Returns the places that there were, and those of them
    /// that are left.
    pub(crate) fn detach(&self) -> (Vec<Mount>, Vec<Left>) {
        let (table, own) = self.table();
        let carriers = carriers(&table, &own);
        let mut errors = HashMap::new();
        for mount in own.iter().rev() {
            let done = if carriers.contains(&mount.id) {
                Err(io::Error::other(carried(&table, mount)))
            } else {
                detach(mount)
            };
            errors.extend(done.err().map(|error| (mount.id, error)));
        }
        // One that was mounted on another went with it.
        let (_, still) = self.table();
        let meanwhile = || io::Error::other("it was mounted meanwhile");
        let with_error = |mount: Mount| {
            let error = errors.remove(&mount.id).unwrap_or_else(meanwhile);
            (mount, error)
        };
        let left = still.into_iter().map(with_error).collect();
        (own, left)
    }
}

/// The ids of the mounts that mounts of other filesystems are mounted on, directly or further up.
fn carriers(table: &[Mount], own: &[Mount]) -> HashSet<u64> {
    let parents: HashMap<u64, u64> = table.iter().map(|mount| (mount.id, mount.parent)).collect();
    let own: HashSet<u64> = own.iter().map(|mount| mount.id).collect();
    let mut carriers = HashSet::new();
    for other in table.iter().filter(|mount| !own.contains(&mount.id)) {
        let mut above = Some(other.parent);
        while let Some(carrier) = above.filter(|carrier| carriers.insert(*carrier)) {
            above = parents.get(&carrier).copied();
        }
    }
    carriers
}

/// Names what is mounted on a mount.
fn carried(table: &[Mount], mount: &Mount) -> String {
    let is_on_it = |other: &&Mount| other.parent == mount.id && other.id != mount.id;
    let paths = table.iter().filter(is_on_it).map(|other| other.mountpoint.display().to_string());
    format!("there is a mount on {}", paths.collect::<Vec<_>>().join(", "))
}

fn unmount(mount: &Mount) -> io::Result<()> {
    // A descriptor of the mount would keep it busy, so the path is used after it was looked at.
    drop(mounts::open(mount)?);
    match rustix::mount::unmount(&mount.mountpoint, UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM | Errno::ACCESS) => through_helper(mount, "-uq"),
        done => Ok(done?),
    }
}

/// Detaches the very mount that the descriptor is of, whatever is at its path by then.
fn detach(mount: &Mount) -> io::Result<()> {
    let root = mounts::open(mount)?;
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    match rustix::mount::unmount(path, UnmountFlags::DETACH) {
        Err(Errno::PERM | Errno::ACCESS) => through_helper(mount, "-uzq"),
        done => Ok(done?),
    }
}

/// The helper unmounts nothing but FUSE mounts of its caller's.
fn through_helper(mount: &Mount, letters: &str) -> io::Result<()> {
    let output = Command::new(HELPER).args([letters, "--"]).arg(&mount.mountpoint).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_those_of_other_filesystems_are_carriers() {
        let table = mounts::parse(
            b"1 0 0:1 / / rw - ext4 a rw\n\
              2 1 0:9 / /m rw - fuse.butternut i rw\n\
              3 2 0:9 / /m/dir rw - fuse.butternut i rw\n\
              4 3 0:2 / /m/dir/t rw - tmpfs t rw\n\
              5 1 0:9 / /n rw - fuse.butternut i rw\n\
              6 5 0:9 / /n/own rw - fuse.butternut i rw\n",
        );
        let own: Vec<Mount> = table.iter().filter(|m| m.device == (0, 9)).cloned().collect();
        let mut carriers: Vec<u64> = carriers(&table, &own).into_iter().collect();
        carriers.sort_unstable();
        assert_eq!(carriers, [0, 1, 2, 3]);
        assert_eq!(carried(&table, &own[1]), "there is a mount on /m/dir/t");
    }

    #[test]
    fn a_connection_lives_until_the_kernel_ends_it() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let superblock = Superblock { connection: Arc::new(one.into()), device: None };
        assert!(!superblock.ends_within(Duration::from_millis(1)));
        assert!(superblock.table().1.is_empty(), "an unknown device is that of no mount");
    }
}
