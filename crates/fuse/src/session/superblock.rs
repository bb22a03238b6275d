//! The FUSE superblock of one connection: where it is mounted, and how those mounts are unmounted.
//!
//! 1. Mounts are found in the mount table by the superblock's device number, so bind mounts and
//!    moved mounts are found too. The kernel reuses the number only after the end of the
//!    superblock, so the superblock is checked after the mount table was read. An aborted
//!    connection has ended, and its mounts are still there.
//! 2. A mount on which another filesystem is mounted is not detached: the other mount would be
//!    detached with it.
//! 3. Mounts in other mount namespaces are not changed.
//! 4. A mount table that cannot be read is an error, and not a table without mounts.
//! 5. The unmount of a block device waits for a reply of this process, so it is made in a thread
//!    that does not keep the connection alive ([`private_fd_table`]).

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use butternut_sys::mounts::{self, Mount};
use butternut_sys::private_fd_table;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::connection::{self, abort};
use crate::session::attach::{self, BLOCK_FS_TYPE, HELPER, is_own_type};

/// How long `fusermount3` is tried again where no process can be started, and how often.
const HELPER_WAIT: Duration = Duration::from_secs(2);
const HELPER_PAUSE: Duration = Duration::from_millis(10);

/// How long a forced unmount has to unmount what the process would detach, and how often that is
/// checked.
const FORCED_WAIT: Duration = Duration::from_secs(1);
const FORCED_PAUSE: Duration = Duration::from_millis(10);

/// The superblock of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    pub(crate) connection: Arc<OwnedFd>,
    /// The device number (major, minor). `None` where the mount table could not be read any more
    /// after the mount was made ([`MountAttempt::check`]); no mount can be found then.
    ///
    /// [`MountAttempt::check`]: crate::MountAttempt::check
    pub(crate) device: Option<(u32, u32)>,
}

/// A mount that was not detached, and the reason.
pub type RemainingMount = (Mount, io::Error);

impl Superblock {
    /// Returns the superblock of a connection that was mounted on `mountpoint` just now.
    pub(crate) fn at(connection: Arc<OwnedFd>, mountpoint: &Path) -> Self {
        let table = mounts::read().unwrap_or_default();
        let mount = mounts::topmost(&table, mountpoint).filter(|mount| is_own_type(&mount.kind));
        Self { connection, device: mount.map(|mount| mount.device) }
    }

    /// Returns whether the kernel has ended the connection, or ends it within `time`.
    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(&*self.connection, PollFlags::empty())];
        let time = Timespec::try_from(time).unwrap_or_default();
        // An interrupted poll counts as a connection that lives.
        poll(&mut polled, Some(&time)).is_ok_and(|_| polled[0].revents().contains(PollFlags::ERR))
    }

    /// Returns the mounts of this superblock in this mount namespace.
    ///
    /// # Errors
    /// The mount table cannot be read, or could not be read when the mount was made.
    fn own_mounts(&self) -> io::Result<Vec<Mount>> {
        let unknown = || io::Error::other("the device number of the mount is not known");
        let own = mounts::read_own_of_device(self.device.ok_or_else(unknown)?)?;
        // Afterwards (law 1).
        Ok(if connection::has_superblock(&*self.connection) { own } else { Vec::new() })
    }

    /// Aborts the connection, if it has not ended.
    ///
    /// # Errors
    /// The device number is not known, or as of [`abort::abort`].
    pub(crate) fn abort(&self) -> io::Result<()> {
        abort::abort(&self.connection, self.device.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Unmounts every mount that is not busy. Tries all of them and returns the first error.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        // In reverse order: a later mount may be mounted on an earlier one.
        self.own_mounts()?.iter().rev().map(unmount).fold(Ok(()), Result::and)
    }

    /// Waits until the mounts are gone, for at most [`FORCED_WAIT`]. A forced unmount ends the
    /// connection before it unmounts, and would report an error if it then found no mount.
    pub(crate) fn wait_for_forced_unmount(&self) {
        let began = Instant::now();
        let is_mounted = || self.own_mounts().is_ok_and(|own| !own.is_empty());
        while began.elapsed() < FORCED_WAIT && is_mounted() {
            thread::sleep(FORCED_PAUSE);
        }
    }

    /// Detaches every mount, busy or not. Returns the mounts that there were, and those that
    /// remain.
    ///
    /// # Errors
    /// The mount table cannot be read, so that no mount was detached, or it is not known which
    /// mounts remain.
    pub(crate) fn detach(&self) -> io::Result<(Vec<Mount>, Vec<RemainingMount>)> {
        let own = self.own_mounts()?;
        if own.is_empty() {
            return Ok((own, Vec::new()));
        }
        let table = mounts::read()?;
        let carriers = carriers(&table, &own);
        let mut errors = HashMap::new();
        for mount in own.iter().rev() {
            let done = if carriers.contains(&mount.id) {
                Err(io::Error::other(mounts_on(&table, mount)))
            } else {
                detach(mount)
            };
            errors.extend(done.err().map(|error| (mount.id, error)));
        }
        // Detaching a mount also detaches the own mounts on it, so errors of those do not count.
        let still_mounted = self.own_mounts()?;
        let meanwhile = || io::Error::other("it was mounted meanwhile");
        let with_error = |mount: Mount| {
            let error = errors.remove(&mount.id).unwrap_or_else(meanwhile);
            (mount, error)
        };
        let remaining = still_mounted.into_iter().map(with_error).collect();
        Ok((own, remaining))
    }
}

/// Returns the ids of the mounts on which mounts of other filesystems are mounted, directly or
/// below further mounts.
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

/// Returns a message that names the mounts on `mount`.
fn mounts_on(table: &[Mount], mount: &Mount) -> String {
    let on_it = table.iter().filter(|other| other.is_on(mount));
    let paths = on_it.map(|other| other.mountpoint.display().to_string());
    format!("there is a mount on {}", paths.collect::<Vec<_>>().join(", "))
}

fn unmount(mount: &Mount) -> io::Result<()> {
    by_call(mount, UnmountFlags::empty(), "-uq")
}

pub(crate) fn detach(mount: &Mount) -> io::Result<()> {
    by_call(mount, UnmountFlags::DETACH, "-uzq")
}

/// Unmounts by umount2(2), or by `fusermount3` where the caller may not call it.
fn by_call(mount: &Mount, flags: UnmountFlags, letters: &str) -> io::Result<()> {
    if mount.kind == BLOCK_FS_TYPE {
        let mount = mount.clone();
        return private_fd_table::run(move || mounts::unmount(&mount, flags));
    }
    match mounts::unmount(mount, flags) {
        Err(error) if attach::is_for_helper(&error) => through_helper(mount, letters),
        done => done,
    }
}

/// Unmounts by `fusermount3`, which unmounts only FUSE mounts of its caller. Where the user may
/// start no more processes (`EAGAIN`), tries again until threads of the mount have ended.
fn through_helper(mount: &Mount, letters: &str) -> io::Result<()> {
    let began = Instant::now();
    let output = loop {
        match Command::new(HELPER).args([letters, "--"]).arg(&mount.mountpoint).output() {
            Err(error) if is_out_of_processes(&error) && began.elapsed() < HELPER_WAIT => {
                thread::sleep(HELPER_PAUSE);
            }
            output => break output?,
        }
    };
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn is_out_of_processes(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_those_of_other_filesystems_are_found() {
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
        assert_eq!(mounts_on(&table, &own[1]), "there is a mount on /m/dir/t");
    }

    #[test]
    fn a_connection_lives_until_the_kernel_ends_it() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let superblock = Superblock { connection: Arc::new(one.into()), device: None };
        assert!(!superblock.ends_within(Duration::from_millis(1)));
        assert!(superblock.own_mounts().is_err(), "the device number is not known");
        assert!(superblock.detach().is_err() && superblock.unmount().is_err());
    }
}
