//! Signals to end a mount.
//!
//! ```text
//! first   nothing uses it   unmounted at every place, the process ends
//!         it is in use      detached at every place, committed; the process ends with its last use
//! second                    committed, cut off: the process ends, open files are dead
//! third                     cut off without a commit, for a device that does not answer
//! ```
//!
//! 1. The places are those of this mount namespace, wherever they are by then. No other filesystem
//!    is unmounted, and no place that another filesystem is mounted on.
//! 2. A process that waits after a signal tells what it waits for.

use std::path::{Path, PathBuf};
use std::thread;

use butternut_fuse::{Detached, Left, Unmounter};
use butternut_sys::mount_users::{self, MountUser};
use butternut_sys::mounts;
use butternut_sys::signal::EndSignals;

use super::log::{CRITICAL, NOTICE, tell};
use crate::failure::{chain, plain};

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

/// Unmounts; commits what is in use, and tells by what.
fn first(unmounter: &Unmounter, mountpoint: &Path) {
    let detached = unmounter.detach();
    if !detached.is_in_use {
        return;
    }
    let shown = shown(&detached, mountpoint);
    if let Err(error) = unmounter.commit() {
        let text = format!("{shown}: the last changes could not be written: {}", chain(&error));
        tell(CRITICAL, &text);
    }
    for (place, error) in &detached.left {
        let text = format!(
            "{}: stays mounted: {} (end that first; a second signal ends the process)",
            place.mountpoint.display(),
            plain(error)
        );
        tell(NOTICE, &text);
    }
    let is_left = |id| detached.left.iter().any(|(left, _): &Left| left.id == id);
    let gone = detached.places.iter().filter(|place| !is_left(place.id));
    let users: Vec<MountUser> =
        gone.flat_map(|place| mount_users::of(place, USERS_SHOWN_MAX)).collect();
    let mut users: Vec<String> = users.iter().map(MountUser::to_string).collect();
    users.extend(elsewhere(unmounter.device()));
    users.truncate(USERS_SHOWN_MAX);
    if users.is_empty() {
        if !detached.left.is_empty() {
            return;
        }
        users.push("by what cannot be seen".to_owned());
    }
    let state = if detached.places.is_empty() { "is not mounted here" } else { "detached" };
    let users = users.join("; ");
    tell(NOTICE, &format!("{shown}: {state}, but still in use: {users} (a second signal ends it)"));
}

/// The places that there were; without any, where the volume was mounted first.
fn shown(detached: &Detached, mountpoint: &Path) -> String {
    let places: Vec<String> =
        detached.places.iter().map(|place| place.mountpoint.display().to_string()).collect();
    if places.is_empty() { mountpoint.display().to_string() } else { places.join(", ") }
}

/// Names the mounts of other mount namespaces, which the signal leaves.
fn elsewhere(device: Option<(u32, u32)>) -> Vec<String> {
    let mounts = mounts::of_other_namespaces().flatten();
    let own = mounts.filter(|mount| Some(mount.device) == device);
    let told = own.map(|mount| {
        format!("it is mounted on {} in another mount namespace", mount.mountpoint.display())
    });
    told.take(USERS_SHOWN_MAX).collect()
}
