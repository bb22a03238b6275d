//! `umount`: commits everything, unmounts, and returns when the process that served the mount has
//! ended, which is when the volume's devices are released.
//!
//! 1. The status is not 0 where a change could not be written that was still unwritten when the
//!    command began: earlier errors have been told by `close` and `fsync`. The command reports it
//!    after the process has ended, so that the volume is free in any case.
//! 2. A mount is busy for a moment whenever a process looks at it: `sync`, a scan of `/proc`, a
//!    child between fork and exec. So a busy mount is tried again for [`BUSY_WAIT_MIN`] at least,
//!    and then until one user of it has been seen for [`USER_STAYS`]; that user is named.
//! 3. A process whose filesystem is mounted at another place, too, serves on. Nothing waits for it,
//!    and a note names the place: the volume is not released.
//! 4. The mount that was found when the command began is unmounted, and no other one that is at its
//!    path by then.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use butternut_fuse::{DAEMON_XATTR, KIND, LOST_XATTR, SYNC_XATTR};
use butternut_sys::mount_users::{self, MountUser};
use butternut_sys::mounts::{self, Mount};

use crate::failure::{Done, Failure, Outcome, plain};
use crate::flags::{GlobalArgs, UmountArgs};
use crate::output::{Output, json, say};

/// How long a busy mount is tried again: at least, and at most.
const BUSY_WAIT_MIN: Duration = Duration::from_secs(2);
const BUSY_WAIT_MAX: Duration = Duration::from_secs(30);
/// What uses a mount through this time is no passer-by.
const USER_STAYS: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Users of a mount that a message names.
const USERS_SHOWN_MAX: usize = 5;

pub(crate) fn run(global: &GlobalArgs, args: &UmountArgs, out: &mut Output) -> Outcome {
    let released = end(global, args)?;
    if global.json {
        let mountpoint = args.mountpoint.as_os_str().as_encoded_bytes();
        let object = json::Object::new().name("mountpoint", mountpoint);
        json::document(out, object.put("released", released))?;
    }
    Ok(Done::Well)
}

/// Unmounts; whether the volume is known to be released.
fn end(global: &GlobalArgs, args: &UmountArgs) -> Result<bool, Failure> {
    let mountpoint = absolute(&args.mountpoint)?;
    let shown = mountpoint.display().to_string();
    let mount = find_ours(&mountpoint)?;
    let daemon = daemon(&mountpoint);
    let others = other_mounts(&mount);
    let patience = Duration::from_secs(args.timeout);
    let committed = unmount_and_commit(&mount, daemon.is_some(), args.lazy, patience)?;
    if !global.quiet && !global.json {
        tell_what_is_left(&shown, &others);
    }
    let released = match &daemon {
        _ if args.lazy => Ok(false),
        Some(daemon) => daemon.wait_for_release(&shown, &others, patience),
        None => {
            if !global.quiet {
                say(&format!(
                    "{shown}: note: its process is gone or out of sight, nothing to wait for"
                ));
            }
            Ok(false)
        }
    };
    // The error of the data is told after the process has gone: the caller may use the volume.
    committed.map_err(|error| {
        Failure::new(&*shown, format!("the last changes could not be written: {}", plain(&error)))
            .cure("it is unmounted; `butternut check` tells what state the volume is in")
    })?;
    released
}

/// Commits and unmounts. A mount that is busy is tried again for a while (law 2); then the error
/// names what keeps it busy. The inner result tells whether everything was committed.
fn unmount_and_commit(
    mount: &Mount,
    has_daemon: bool,
    lazy: bool,
    patience: Duration,
) -> Result<io::Result<()>, Failure> {
    let began = Instant::now();
    let mut pause = RETRY_PAUSE_MIN;
    let mut committed = Ok(());
    let mut seen: Option<(Instant, Vec<MountUser>)> = None;
    loop {
        if has_daemon {
            committed = committed.and(commit(&mount.mountpoint));
        }
        match unmount(mount, lazy) {
            Ok(()) => return Ok(committed),
            Err(Refused::Other(failure)) => return Err(failure),
            Err(Refused::Busy) => {}
        }
        let waited = began.elapsed();
        if waited >= patience.min(BUSY_WAIT_MIN) {
            let users = mount_users::of(mount, USERS_SHOWN_MAX);
            if waited >= patience.min(BUSY_WAIT_MAX) {
                return Err(busy(mount, &users));
            }
            match &seen {
                Some((when, before)) if users.iter().any(|user| before.contains(user)) => {
                    if when.elapsed() >= USER_STAYS {
                        return Err(busy(mount, &users));
                    }
                }
                _ => seen = Some((Instant::now(), users)),
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// The path as the mount table has it. The mount point itself may not answer, so only what is
/// above it is looked at, unless it is a symlink to it.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: &io::Error| Failure::io(path.display().to_string(), error);
    if path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
        return path.canonicalize().map_err(|error| failed(&error));
    }
    let whole = std::path::absolute(path).map_err(|error| failed(&error))?;
    match (whole.parent(), whole.file_name()) {
        (Some(above), Some(name)) => {
            Ok(above.canonicalize().map_err(|error| failed(&error))?.join(name))
        }
        _ => whole.canonicalize().map_err(|error| failed(&error)),
    }
}

/// Finds the topmost mount on a mount point. A mount of another type is refused: its own tools
/// know better how to end it.
fn find_ours(mountpoint: &Path) -> Result<Mount, Failure> {
    let shown = mountpoint.display().to_string();
    let mounts = mounts::read().map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    match mounts::topmost(&mounts, mountpoint) {
        Some(mount) if mount.kind == KIND => Ok(mount.clone()),
        Some(mount) => {
            Err(Failure::new(shown, format!("is a mount of {}", mount.kind))
                .cure("umount(8) ends it"))
        }
        None => {
            Err(Failure::new(shown, "is not mounted")
                .cure("`findmnt -t fuse.butternut` lists what is"))
        }
    }
}

/// Has the kernel send what it holds back, and the process commit it. The error is one of now:
/// `syncfs` also tells of errors that a program has heard of from `close`.
pub(super) fn commit(mountpoint: &Path) -> io::Result<()> {
    let before = lost_writes(mountpoint);
    let sent = rustix::fs::syncfs(std::fs::File::open(mountpoint)?);
    let mut value = [0; 1];
    rustix::fs::getxattr(mountpoint, SYNC_XATTR, &mut value[..])?;
    let after = lost_writes(mountpoint);
    if before.is_some() && before == after { Ok(()) } else { Ok(sent?) }
}

fn lost_writes(mountpoint: &Path) -> Option<u64> {
    let mut value = [0; 20];
    let bytes = rustix::fs::getxattr(mountpoint, LOST_XATTR, &mut value[..]).ok()?;
    std::str::from_utf8(value.get(..bytes)?).ok()?.parse().ok()
}

/// The process that serves a mount, held so that its number cannot pass to another.
struct Daemon {
    id: i32,
    pidfd: OwnedFd,
}

/// Asks the mount for its process. One that does not answer has none.
fn daemon(mountpoint: &Path) -> Option<Daemon> {
    let mut value = [0; 16];
    let bytes = rustix::fs::getxattr(mountpoint, DAEMON_XATTR, &mut value[..]).ok()?;
    let id: i32 = std::str::from_utf8(value.get(..bytes)?).ok()?.parse().ok()?;
    let pidfd = pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?;
    Some(Daemon { id, pidfd })
}

impl Daemon {
    /// Waits until the process has ended, and with it has released the volume (`true`), or until
    /// it is known that it serves on (law 3).
    fn wait_for_release(
        &self,
        shown: &str,
        others: &[Mount],
        patience: Duration,
    ) -> Result<bool, Failure> {
        let began = Instant::now();
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            if self.has_ended(pause).map_err(|errno| Failure::io(shown, &errno.into()))? {
                return Ok(true);
            }
            if is_any_left(others) {
                return Ok(false);
            }
            if began.elapsed() >= patience {
                let (id, seconds) = (self.id, patience.as_secs());
                let why = format!("process {id} still holds the volume after {seconds} s");
                return Err(
                    Failure::new(shown, why).cure("it ends when the last open file is closed")
                );
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Waits a while for the end of the process.
    fn has_ended(&self, pause: Duration) -> Result<bool, Errno> {
        let pause = Timespec::try_from(pause).map_err(|_| Errno::OVERFLOW)?;
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match poll(&mut ended, Some(&pause)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// The other mounts of a mount's filesystem: bound to other directories, here or in other mount
/// namespaces whose processes can be seen. They are asked for before the mount goes, because the
/// kernel gives its device number to the next mount at once.
fn other_mounts(mount: &Mount) -> Vec<Mount> {
    let is_other = |other: &Mount| other.device == mount.device && other.id != mount.id;
    let all = mounts::read().into_iter().chain(mounts::of_other_namespaces());
    all.flatten().filter(is_other).collect()
}

fn is_any_left(others: &[Mount]) -> bool {
    let is_there = |mounts: Vec<Mount>| others.iter().any(|other| mounts.contains(other));
    !others.is_empty()
        && (mounts::read().is_ok_and(is_there) || mounts::of_other_namespaces().any(is_there))
}

/// Tells where the volume is mounted still (law 3). Mounts that share their changes with the one
/// that was unmounted are gone with it.
fn tell_what_is_left(shown: &str, others: &[Mount]) {
    if others.is_empty() {
        return;
    }
    let here = mounts::read().unwrap_or_default();
    let places: Vec<String> = others
        .iter()
        .filter(|other| here.contains(other))
        .map(|other| other.mountpoint.display().to_string())
        .collect();
    let mut left = Vec::new();
    if !places.is_empty() {
        left.push(format!("on {}", places.join(", ")));
    }
    if mounts::of_other_namespaces().flatten().any(|mount| others.contains(&mount)) {
        left.push("in another mount namespace".to_owned());
    }
    if !left.is_empty() {
        say(&format!("{shown}: note: the volume is still mounted {}", left.join(", and ")));
    }
}

/// Why a mount was not taken away.
enum Refused {
    Busy,
    Other(Failure),
}

/// Takes a mount away: as root by the system call, else through fusermount3.
fn unmount(mount: &Mount, lazy: bool) -> Result<(), Refused> {
    let mountpoint = &mount.mountpoint;
    let failed = |error| Refused::Other(Failure::io(mountpoint.display().to_string(), &error));
    // A descriptor of the mount would keep it busy, so the path is used after it was looked at.
    drop(mounts::open(mount).map_err(failed)?);
    let how = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, how | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Refused::Busy),
        Err(Errno::PERM) => through_fusermount(mountpoint, lazy),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn through_fusermount(mountpoint: &Path, lazy: bool) -> Result<(), Refused> {
    let mut command = Command::new("fusermount3");
    command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(mountpoint);
    let output = command.output().map_err(|error| {
        let failure = Failure::io("fusermount3", &error);
        Refused::Other(failure.cure("install fuse3, or unmount as root"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(Refused::Busy);
    }
    Err(Refused::Other(Failure::new(mountpoint.display().to_string(), said)))
}

/// Names what keeps a mount busy.
fn busy(mount: &Mount, users: &[MountUser]) -> Failure {
    let shown = mount.mountpoint.display().to_string();
    if users.is_empty() {
        return Failure::new(shown, "is busy, by what cannot be seen from here")
            .cure("root sees the processes of other users; --lazy detaches it at once");
    }
    let users: Vec<String> = users.iter().map(MountUser::to_string).collect();
    Failure::new(shown, format!("is busy: {}", users.join("; ")))
        .cure("end that, or detach the mount with --lazy")
}
