//! A mount while it is made, for a process that a signal ends meanwhile.
//!
//! ```text
//! making --- finish ---> made     nothing can block or fail any more, and the mount is served
//!        --- end ------> ended    fusermount3 is killed, and the mount is detached
//! ```
//!
//! 1. A process that ends before the mount is made calls [`MountAttempt::end`]. Otherwise
//!    fusermount3 could mount later, or has mounted already, and no process would serve the mount.
//! 2. A mount that was ended is not served: a program that wrote to it would lose the data.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use butternut_sys::lock::{Mutex, rank};
use butternut_sys::mounts::{self, Mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::session::attach::is_own_type;
use crate::session::superblock;

/// How long [`MountAttempt::end`] waits for the end of fusermount3, and then for the unmount.
const END_WAIT: Duration = Duration::from_secs(1);

/// A mount that is made.
#[derive(Debug)]
pub struct MountAttempt {
    mountpoint: PathBuf,
    /// The ids of the mounts before it; the reason if they cannot be read.
    before: io::Result<HashSet<u64>>,
    state: Mutex<State, rank::MountAttempt>,
}

#[derive(Debug)]
enum State {
    /// With the fusermount3 that runs.
    Making(Option<OwnedFd>),
    Made,
    Ended,
}

impl MountAttempt {
    /// Begins an attempt. `mountpoint` is the path that mount tables will show.
    pub fn new(mountpoint: &Path) -> Arc<Self> {
        let ids = |before: Vec<Mount>| before.iter().map(|mount| mount.id).collect();
        Arc::new(Self {
            mountpoint: mountpoint.to_path_buf(),
            before: mounts::read().map(ids),
            state: Mutex::new(State::Making(None)),
        })
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Checks that the mount table can be read: a mount that cannot be found there cannot be
    /// detached.
    ///
    /// # Errors
    /// The error of the read.
    pub(crate) fn check(&self) -> io::Result<()> {
        match &self.before {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), format!("the mount table: {error}"))),
        }
    }

    /// Ends the attempt (law 1), in a bounded time. Returns `false` if the mount is made: then its
    /// threads serve it, and it ends like every mount.
    pub fn end(self: &Arc<Self>) -> bool {
        let before = {
            let mut state = self.state.lock();
            if let State::Made = *state {
                return false;
            }
            std::mem::replace(&mut *state, State::Ended)
        };
        let helper = if let State::Making(helper) = before { helper } else { None };
        helper.as_ref().map(kill).unwrap_or_default();
        // A lookup of the mount point, and fusermount3, may block on a device that does not
        // respond, so a thread of its own unmounts. Without one, a mount that is there stays.
        let (working, finished) = channel::<()>();
        let attempt = Arc::clone(self);
        let run = move || {
            helper.as_ref().map(wait_for_end).unwrap_or_default();
            attempt.detach();
            drop(working);
        };
        if thread::Builder::new().name("butternut-end".into()).spawn(run).is_ok() {
            finished.recv_timeout(2 * END_WAIT).unwrap_or_default();
        }
        true
    }

    /// Detaches what was mounted on the mount point since the attempt began. That is nothing where
    /// the mounts before it are not known ([`Self::check`]).
    fn detach(&self) {
        let Ok(before) = &self.before else { return };
        let is_new = |mount: &&Mount| {
            let is_there = mount.mountpoint == self.mountpoint && is_own_type(&mount.kind);
            is_there && !before.contains(&mount.id)
        };
        for mount in mounts::read().unwrap_or_default().iter().filter(is_new) {
            // The process ends, and the mount table shows what is left.
            superblock::detach(mount).unwrap_or_default();
        }
    }

    /// Records that the mount is made. Returns `false` if the attempt was ended: then the mount
    /// must not be served (law 2).
    #[must_use]
    pub(crate) fn finish(&self) -> bool {
        let mut state = self.state.lock();
        let before = match &*state {
            State::Making(_) => std::mem::replace(&mut *state, State::Made),
            State::Made => return true,
            State::Ended => return false,
        };
        drop(state);
        drop(before);
        true
    }

    /// Records that a fusermount3 runs, which its parent has not waited for yet: its process id is
    /// not reused.
    pub(crate) fn helper_started(&self, id: u32) {
        let id = id.try_into().ok().and_then(Pid::from_raw);
        let Some(helper) = id.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok()) else {
            return;
        };
        let mut state = self.state.lock();
        if let State::Making(running) = &mut *state {
            let earlier = running.replace(helper);
            drop(state);
            drop(earlier);
        } else {
            drop(state);
            kill(&helper);
        }
    }

    /// Records that no fusermount3 runs.
    pub(crate) fn helper_ended(&self) {
        let mut state = self.state.lock();
        let helper = if let State::Making(helper) = &mut *state { helper.take() } else { None };
        drop(state);
        drop(helper);
    }
}

fn kill(process: &OwnedFd) {
    // Fails if it has ended.
    pidfd_send_signal(process, Signal::KILL).unwrap_or_default();
}

/// Waits for a process that was killed. It ends later if a device or another filesystem does not
/// respond, and mounts nothing then.
fn wait_for_end(process: &OwnedFd) {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let wait = Timespec::try_from(END_WAIT).unwrap_or_default();
    poll(&mut ended, Some(&wait)).map(drop).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn attempt() -> Arc<MountAttempt> {
        MountAttempt::new(Path::new("/nonexistent"))
    }

    #[test]
    fn a_mount_is_made_or_ended() {
        let made = attempt();
        assert!(made.finish() && !made.end() && made.finish());
        let ended = attempt();
        assert!(ended.end() && !ended.finish() && ended.end());
    }

    #[test]
    fn the_helper_of_an_ended_attempt_is_killed() {
        for is_ended_before in [false, true] {
            let mut helper = Command::new("sleep").arg("1000").spawn().unwrap();
            let attempt = attempt();
            if is_ended_before {
                assert!(attempt.end());
            }
            attempt.helper_started(helper.id());
            assert!(attempt.end());
            assert_eq!(helper.wait().unwrap().signal(), Some(9), "{is_ended_before}");
        }
    }

    #[test]
    fn a_made_mount_keeps_no_descriptor_of_the_helper() {
        let mut helper = Command::new("true").spawn().unwrap();
        let attempt = attempt();
        attempt.helper_started(helper.id());
        assert!(matches!(&*attempt.state.lock(), State::Making(Some(_))));
        helper.wait().unwrap();
        attempt.helper_ended();
        assert!(matches!(&*attempt.state.lock(), State::Making(None)));
        assert!(attempt.finish());
    }
}
