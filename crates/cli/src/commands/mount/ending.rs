//! Signals to end a mount.
//!
//! ```text
//! first   nothing uses it   unmounted, the process ends
//!         it is in use      committed, detached; the process ends when the last user does
//! second                    committed, cut off: the process ends, open files are dead
//! third                     cut off without a commit, for a device that does not answer
//! ```
//!
//! A process that waits after a signal tells what it waits for.

use std::path::{Path, PathBuf};
use std::thread;

use butternut_fuse::{FuseError, Unmounter};
use butternut_sys::mount_users::{self, MountUser};
use butternut_sys::mounts::{self, Mount};
use butternut_sys::signal::EndSignals;

use super::log::{CRITICAL, NOTICE, tell};
use crate::commands::umount;
use crate::failure::chain;

/// Users of the mount that a message names.
const USERS_SHOWN_MAX: usize = 5;

/// Starts the thread that waits for the signals.
pub(super) fn end_on_signal(signals: EndSignals, unmounter: Unmounter, mountpoint: PathBuf) {
    thread::spawn(move || {
        if signals.wait().is_ok() {
            first(&unmounter, &mountpoint);
        }
        if signals.wait().is_err() {
            return;
        }
        let shown = mountpoint.display().to_string();
        tell(NOTICE, &format!("{shown}: second signal: commits and ends; open files fail"));
        thread::scope(|scope| {
            scope.spawn(|| unmounter.cut_off());
            if signals.wait().is_ok() {
                tell(CRITICAL, &format!("{shown}: third signal: ends without a commit"));
                unmounter.abandon();
            }
        });
    });
}

/// Unmounts, or detaches what is in use and tells by what.
fn first(unmounter: &Unmounter, mountpoint: &Path) {
    let shown = mountpoint.display();
    let all = all_mounts(mountpoint);
    let is_unmounted = unmounter.unmount().is_ok();
    if is_unmounted && all.len() <= 1 {
        return;
    }
    let users: Vec<MountUser> =
        all.iter().flat_map(|mount| mount_users::of(mount, USERS_SHOWN_MAX)).collect();
    match unmounter.detach() {
        Ok(()) => {}
        Err(error @ FuseError::Closed(_)) => {
            let text = format!("{shown}: the last changes could not be written: {}", chain(&error));
            tell(CRITICAL, &text);
        }
        Err(error) => tell(CRITICAL, &format!("{shown}: {}", chain(&error))),
    }
    // Bound to other directories it is the same mount for the kernel, and served as long.
    for other in all.iter().filter(|other| other.mountpoint != mountpoint) {
        if let Err(failure) = umount::detach(&other.mountpoint) {
            tell(CRITICAL, &failure.to_string());
        }
    }
    if is_unmounted && users.is_empty() {
        return;
    }
    let users: Vec<String> = users.iter().take(USERS_SHOWN_MAX).map(MountUser::to_string).collect();
    let users =
        if users.is_empty() { "by what cannot be seen".to_owned() } else { users.join("; ") };
    let text = format!("{shown}: detached, but still in use: {users} (a second signal ends it)");
    tell(NOTICE, &text);
}

/// The mount, and the directories that it is bound to.
fn all_mounts(mountpoint: &Path) -> Vec<Mount> {
    let mounts = mounts::read().unwrap_or_default();
    let Some(own) = mounts::topmost(&mounts, mountpoint) else { return Vec::new() };
    let device = own.device;
    mounts.into_iter().filter(|mount| mount.device == device).collect()
}
