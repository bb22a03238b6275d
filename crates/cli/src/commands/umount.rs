//! `umount`: commits, unmounts, and returns when the process of the mount has ended and so has
//! released the devices of the volume.
//!
//! 1. The exit status is not 0 if a change that was dirty when the command began could not be
//!    written. Earlier errors have been returned by `close` and `fsync`. The error is reported
//!    after the process has ended, so the volume is released in any case.
//! 2. A mount is briefly busy whenever a process accesses it: `sync`, a scan of `/proc`, a child
//!    between fork and exec. So unmounting a busy mount is retried for at least [`BUSY_RETRY_MIN`],
//!    and then until the same user of the mount has been seen for [`USER_CONFIRM_TIME`]. The error
//!    message names that user.
//! 3. If the filesystem is also mounted elsewhere, its process keeps running. The command does not
//!    wait for it, and a note names the other mount point: the volume is not released. A new mount
//!    namespace begins with a copy of each mount, which a sandbox detaches at once, so mounts of
//!    other namespaces count after [`COPY_CONFIRM_TIME`].
//! 4. The command unmounts the mount that it found at the path when it began, not one that was
//!    mounted there later.
//! 5. With --lazy, the mount is detached before anything waits for its process or for a device.
//! 6. FUSE denies root the access to a mount of another user without `allow_other`. The control
//!    socket of such a mount tells its process, and lets it commit. Without the socket nothing is
//!    committed before the unmount, which is an error, unless the process has ended.
//! 7. A forced unmount and an abort of the connection leave a dead mount. Its process commits by
//!    itself, detaches the mount and ends. The command finds that process over the control socket
//!    and waits for its end. An error of its commit is only in syslog.

mod device;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use butternut_fuse::{
    DAEMON_XATTR, PROCESS_NAMESPACE_XATTR, SYNC_SHUT_DOWN, SYNC_XATTR, is_own_type,
};
use butternut_sys::mount_users::{self, MountUser};
use butternut_sys::mounts::{self, Mount};

use super::mounted::losses::LossWatch;
use crate::args::{GlobalArgs, UmountArgs};
use crate::control::client;
use crate::failure::{Completion, Failure, Outcome, io_text};
use crate::output::notes::Notes;
use crate::output::{Output, json, stderr_line};

/// Minimum and maximum time for which unmounting a busy mount is retried.
const BUSY_RETRY_MIN: Duration = Duration::from_secs(2);
const BUSY_RETRY_MAX: Duration = Duration::from_secs(30);
/// A user seen for this long is not a brief access.
const USER_CONFIRM_TIME: Duration = Duration::from_secs(1);
/// A mount of another namespace that is there this long after the unmount is not a brief copy.
const COPY_CONFIRM_TIME: Duration = Duration::from_secs(2);
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Maximum number of users of the mount in a message.
const USERS_SHOWN_MAX: usize = 5;

pub(crate) fn run(global: &GlobalArgs, args: &UmountArgs, out: &mut Output) -> Outcome {
    let mountpoint = absolute(&args.mountpoint)?;
    let mount = find_mount(&mountpoint)?;
    let released = unmount_and_wait(global, args, &mount)?;
    if global.json {
        // Not as typed if that was a device.
        let typed =
            if mount.mountpoint == mountpoint { &args.mountpoint } else { &mount.mountpoint };
        let mountpoint = typed.as_os_str().as_encoded_bytes();
        let object = json::Object::new().name("mountpoint", mountpoint);
        json::result(out, object.put("released", released), "the volume is unmounted")?;
    }
    Ok(Completion::Success)
}

/// Unmounts. Returns whether the volume is known to be released.
fn unmount_and_wait(
    global: &GlobalArgs,
    args: &UmountArgs,
    mount: &Mount,
) -> Result<bool, Failure> {
    let shown = mount.mountpoint.display().to_string();
    let timeout = Duration::from_secs(args.timeout);
    if args.lazy {
        return detach_and_commit(global, mount, timeout).map(|()| false);
    }
    let daemon = Notes::of(global).if_slow(&shown, || daemon(mount));
    let is_ending = matches!(&daemon, Some(Daemon { commit_by: CommitBy::Itself, .. }));
    // A process that is ending serves no other mount either.
    let others = if is_ending { Vec::new() } else { other_mounts(global, mount) };
    let commit = || match &daemon {
        Some(daemon) => daemon.commit(mount, Notes::of(global), timeout),
        None => Ok(()),
    };
    let committed = unmount_and_commit(mount, commit, timeout)?;
    wait_for_brief_copies(&others, timeout.min(COPY_CONFIRM_TIME));
    if !global.quiet && !global.json {
        report_remaining_mounts(&shown, &others);
    }
    let process = daemon.as_ref().and_then(|daemon| daemon.process.as_ref());
    let released = if let Some(process) = process {
        process.wait_for_release(&shown, &others, timeout)
    } else {
        if !global.quiet {
            let why = "not waiting for its process, which has ended or is not visible";
            stderr_line(&format!("{shown}: note: {why}"));
        }
        Ok(false)
    };
    // The error is reported after the process has ended: the caller may then use the volume.
    committed.map_err(unmounted)?;
    if let Some(Daemon { commit_by: CommitBy::Nothing(error), .. }) = daemon {
        return Err(not_told(shown, &error));
    }
    released
}

/// Adds to an error of a commit that the mount is gone.
fn unmounted(failure: Failure) -> Failure {
    failure.hint("it is unmounted; `butternut check` shows the state of the volume")
}

/// Detaches a mount, and then lets its process commit (law 5).
fn detach_and_commit(global: &GlobalArgs, mount: &Mount, timeout: Duration) -> Result<(), Failure> {
    let others = other_mounts(global, mount);
    let shown = mount.mountpoint.display().to_string();
    // Keeps the filesystem and its process until the commit, and sends no request to it.
    let root = mounts::open(mount).map_err(|error| Failure::io(&*shown, &error))?;
    unmount(mount, true).map_err(|error| match error {
        UnmountError::Busy => busy(mount, &[]),
        UnmountError::Other(failure) => failure,
    })?;
    if !global.quiet && !global.json {
        report_remaining_mounts(&shown, &others);
    }
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    let committed = Notes::of(global).if_slow(&shown, || match File::open(&path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => Ok(false),
        // A process that ends later may lose changes.
        _ => commit(Path::new(&path)).map(|_| true),
    });
    let error = match committed {
        Ok(true) => return Ok(()),
        Ok(false) => {
            let Some(process) = ending_process(mount) else { return Ok(()) };
            return process.wait_for_release(&shown, &[], timeout).map(drop);
        }
        Err(error) => error,
    };
    match Errno::from_io_error(&error) {
        Some(Errno::ACCESS | Errno::PERM) => match client::serving_process(mount) {
            Ok(_) => client::request_commit("umount", mount, Notes::of(global), Some(timeout))
                .map_err(unmounted),
            Err(error) if client::has_ended(&error) => Ok(()),
            Err(error) => Err(not_told(shown, &error)),
        },
        _ => Err(unmounted(not_written(shown, &error))),
    }
}

pub(super) fn not_written(shown: String, error: &io::Error) -> Failure {
    Failure::new(shown, format!("the last changes could not be written: {}", io_text(error)))
}

/// Describes an unmount without a commit (law 6).
fn not_told(shown: String, error: &io::Error) -> Failure {
    let why = format!("not committed before the unmount: no control socket: {}", io_text(error));
    unmounted(Failure::new(shown, why))
}

/// Commits and unmounts. A busy mount is retried (law 2); then the error names its users. The inner
/// result is that of the commit.
fn unmount_and_commit(
    mount: &Mount,
    commit: impl Fn() -> Result<(), Failure>,
    timeout: Duration,
) -> Result<Result<(), Failure>, Failure> {
    // The time of a commit on a slow device does not count as a time of retries.
    let mut first_busy = None;
    let mut pause = RETRY_PAUSE_MIN;
    let mut committed = Ok(());
    let mut seen: Option<(Instant, Vec<MountUser>)> = None;
    loop {
        committed = committed.and(commit());
        // A commit reports a loss of file data once, so it is told here if the mount stays.
        let refused = |failure, committed: &Result<(), Failure>| {
            if let Err(lost) = committed {
                stderr_line(&lost.to_string());
            }
            Err(failure)
        };
        match unmount(mount, false) {
            Ok(()) => return Ok(committed),
            // After the end of the connection its process detaches the mount.
            Err(UnmountError::Other(_)) if is_gone(mount) => return Ok(committed),
            Err(UnmountError::Other(failure)) => return refused(failure, &committed),
            Err(UnmountError::Busy) => {}
        }
        let waited = first_busy.get_or_insert_with(Instant::now).elapsed();
        if waited >= timeout.min(BUSY_RETRY_MIN) {
            let users = mount_users::of(mount, USERS_SHOWN_MAX);
            if waited >= timeout.min(BUSY_RETRY_MAX) {
                return refused(busy(mount, &users), &committed);
            }
            match &seen {
                Some((when, before)) if users.iter().any(|user| before.contains(user)) => {
                    if when.elapsed() >= USER_CONFIRM_TIME {
                        return refused(busy(mount, &users), &committed);
                    }
                }
                _ => seen = Some((Instant::now(), users)),
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// Returns whether a mount is at no mount point any more. It is not known to be gone if the mount
/// table cannot be read.
fn is_gone(mount: &Mount) -> bool {
    let is_absent = |table: Vec<Mount>| !has_any(&table, std::slice::from_ref(mount));
    mounts::read_own_of_device(mount.device).is_ok_and(is_absent)
        && mounts::of_other_namespaces(mount.device).flatten().all(is_absent)
}

/// Returns the path as in the mount table. Only its parent is resolved, since the mount point
/// itself may not respond, unless the path is a symlink.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: &io::Error| Failure::io(path.display().to_string(), error);
    if is_symlink(path) {
        return path.canonicalize().map_err(|error| failed(&error));
    }
    let whole = std::path::absolute(path).map_err(|error| failed(&error))?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => {
            Ok(parent.canonicalize().map_err(|error| failed(&error))?.join(name))
        }
        _ => whole.canonicalize().map_err(|error| failed(&error)),
    }
}

/// Returns whether a path is a symlink. Sends no request to the process of a mount.
fn is_symlink(path: &Path) -> bool {
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    statx(CWD, path, how, StatxFlags::TYPE)
        .is_ok_and(|meta| FileType::from_raw_mode(meta.stx_mode.into()) == FileType::Symlink)
}

/// Finds the topmost mount on a mount point, or the mount of a volume on a device or image file. A
/// mount of another type is refused.
fn find_mount(mountpoint: &Path) -> Result<Mount, Failure> {
    let shown = mountpoint.display().to_string();
    let mounts = mounts::read().map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    match mounts::topmost(&mounts, mountpoint) {
        Some(mount) if is_own_type(&mount.kind) => Ok(mount.clone()),
        Some(mount) => Err(Failure::new(shown, format!("is a mount of {}", mount.kind))
            .hint("unmount it with umount(8)")),
        None => device::find_mount(mountpoint, &mounts)?.ok_or_else(|| {
            Failure::new(shown, "is not mounted")
                .hint("`findmnt -t fuse.butternut,fuseblk.butternut` lists the mounts")
        }),
    }
}

/// Writes back the kernel's dirty pages, and lets the process of the mount commit them. Returns
/// only errors that occur during the call: `syncfs` also returns earlier ones, which `close` has
/// reported. A write that is lost during the call may be in neither result: it may fail between the
/// two, or while the second one waits for that of another process. Where both calls fail, the first
/// error has the cause: after a failed commit, another commit only finds that the volume is
/// read-only.
pub(crate) fn commit(mountpoint: &Path) -> io::Result<Committed> {
    let mounted = File::open(mountpoint)?;
    let losses = LossWatch::begin(&mounted);
    let sent = rustix::fs::syncfs(&mounted);
    let mut value = [0; 1];
    let committed = rustix::fs::fgetxattr(&mounted, SYNC_XATTR, &mut value[..]);
    committed.map_err(|error| sent.err().unwrap_or(error))?;
    if value == SYNC_SHUT_DOWN {
        return Ok(Committed::Nothing);
    }
    let lost = losses.check(&mounted);
    if !losses.is_counted() || lost.is_err() {
        sent?;
    }
    lost.map(|()| Committed::All)
}

/// What [`commit`] has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    All,
    /// The volume was shut down before (`FS_IOC_SHUTDOWN`). What was dirty then is lost, as the
    /// caller of the shutdown has chosen.
    Nothing,
}

/// The server of a mount.
struct Daemon {
    /// `None` if it is not visible in this process namespace.
    process: Option<Process>,
    commit_by: CommitBy,
}

/// How the server is told to commit.
enum CommitBy {
    Mount,
    Socket,
    /// This user has no access to the mount, and no socket (law 6).
    Nothing(io::Error),
    /// The process commits by itself (law 7).
    Itself,
}

/// A process. The pidfd keeps its process id from being reused.
struct Process {
    id: Pid,
    pidfd: OwnedFd,
}

/// Returns the server of the mount, or `None` if it has ended or does not respond.
fn daemon(mount: &Mount) -> Option<Daemon> {
    let mut value = [0; 16];
    let read = rustix::fs::getxattr(&mount.mountpoint, DAEMON_XATTR, &mut value[..]);
    let process = |(id, pidfd)| Process { id, pidfd };
    if read == Err(Errno::NOTCONN) {
        return ending_process(mount)
            .map(|process| Daemon { process: Some(process), commit_by: CommitBy::Itself });
    }
    if let Err(Errno::ACCESS | Errno::PERM) = read {
        return match client::serving_process(mount) {
            Ok(found) => Some(Daemon { process: found.map(process), commit_by: CommitBy::Socket }),
            Err(error) if client::has_ended(&error) => None,
            Err(error) => Some(Daemon { process: None, commit_by: CommitBy::Nothing(error) }),
        };
    }
    let text = std::str::from_utf8(value.get(..read.ok()?)?).ok()?;
    let id = Pid::from_raw(text.parse().ok()?)?;
    let found = if is_own_namespace(mount) {
        pidfd_open(id, PidfdFlags::empty()).ok().map(|pidfd| (id, pidfd))
    } else {
        client::serving_process(mount).ok().flatten()
    };
    Some(Daemon { process: found.map(process), commit_by: CommitBy::Mount })
}

/// Returns the process of a mount whose connection has ended (law 7), or `None` if it has ended or
/// is not visible.
fn ending_process(mount: &Mount) -> Option<Process> {
    let (id, pidfd) = client::serving_process(mount).ok()??;
    Some(Process { id, pidfd })
}

/// Returns whether the process ids of the server of a mount are those of this process, too.
fn is_own_namespace(mount: &Mount) -> bool {
    let mut value = [0; 20];
    let read = rustix::fs::getxattr(&mount.mountpoint, PROCESS_NAMESPACE_XATTR, &mut value[..]);
    let served = read.ok().and_then(|bytes| value.get(..bytes));
    let own = std::fs::metadata("/proc/self/ns/pid").map(|namespace| namespace.ino().to_string());
    served.is_some_and(|served| own.is_ok_and(|own| own.as_bytes() == served))
}

impl Daemon {
    /// Lets the process commit, if it can be told.
    fn commit(&self, mount: &Mount, notes: Notes, timeout: Duration) -> Result<(), Failure> {
        match self.commit_by {
            CommitBy::Nothing(_) | CommitBy::Itself => Ok(()),
            CommitBy::Socket => client::request_commit("umount", mount, notes, Some(timeout)),
            CommitBy::Mount => {
                let shown = mount.mountpoint.display().to_string();
                let committed = notes.if_slow(&shown, || commit(&mount.mountpoint));
                committed.map(drop).map_err(|error| not_written(shown, &error))
            }
        }
    }
}

impl Process {
    /// Waits until the process has ended and released the volume. Returns `false` if the process
    /// keeps running because the filesystem is mounted elsewhere (law 3).
    fn wait_for_release(
        &self,
        shown: &str,
        others: &[Mount],
        timeout: Duration,
    ) -> Result<bool, Failure> {
        let began = Instant::now();
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            if self.has_ended(pause).map_err(|errno| Failure::io(shown, &errno.into()))? {
                return Ok(true);
            }
            if is_any_mounted(others) {
                return Ok(false);
            }
            if began.elapsed() >= timeout {
                let (id, seconds) = (self.id.as_raw_nonzero(), timeout.as_secs());
                let why = format!("process {id} still holds the volume after {seconds} s");
                return Err(Failure::new(shown, why).hint(
                    "it ends when the last changes are written and the last open file is closed",
                ));
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Waits for the end of the process for at most `pause`.
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

/// Returns the other mounts of the same filesystem, here or in mount namespaces of visible
/// processes. They are listed before the unmount, because the kernel may reuse the device number at
/// once. A note tells of namespaces whose mount table is too long: users can make such tables.
fn other_mounts(global: &GlobalArgs, mount: &Mount) -> Vec<Mount> {
    let mut all = mounts::read_own_of_device(mount.device).unwrap_or_default();
    let mut is_complete = true;
    for table in mounts::of_other_namespaces(mount.device) {
        is_complete &= table.is_ok();
        all.extend(table.unwrap_or_default());
    }
    if !is_complete && !global.quiet && !global.json {
        let shown = mount.mountpoint.display();
        let why = "not searching mount namespaces with too long a mount table for other mounts";
        stderr_line(&format!("{shown}: note: {why}"));
    }
    all.retain(|other| other.id != mount.id);
    all
}

/// Returns whether a mount table has one of `mounts`.
fn has_any(table: &[Mount], mounts: &[Mount]) -> bool {
    table.iter().any(|listed| mounts.iter().any(|mount| mount.is_same(listed)))
}

fn is_any_mounted(others: &[Mount]) -> bool {
    is_any_mounted_here(others) || is_any_mounted_in_other_namespaces(others)
}

/// `false` while the mount table cannot be read: the caller waits.
fn is_any_mounted_here(others: &[Mount]) -> bool {
    let Some(Mount { device, .. }) = others.first() else { return false };
    mounts::read_own_of_device(*device).is_ok_and(|table| has_any(&table, others))
}

fn is_any_mounted_in_other_namespaces(others: &[Mount]) -> bool {
    let Some(Mount { device, .. }) = others.first() else { return false };
    mounts::of_other_namespaces(*device).flatten().any(|table| has_any(&table, others))
}

/// Waits for at most `limit` while only other mount namespaces have `others` (law 3).
fn wait_for_brief_copies(others: &[Mount], limit: Duration) {
    let began = Instant::now();
    let mut pause = RETRY_PAUSE_MIN;
    while began.elapsed() < limit
        && !is_any_mounted_here(others)
        && is_any_mounted_in_other_namespaces(others)
    {
        thread::sleep(pause);
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// Reports where the volume is still mounted (law 3). Mounts in the same peer group (shared
/// propagation) have been unmounted, too.
fn report_remaining_mounts(shown: &str, others: &[Mount]) {
    let Some(Mount { device, .. }) = others.first() else { return };
    let here = mounts::read_own_of_device(*device).unwrap_or_default();
    let mountpoints: Vec<String> = here
        .iter()
        .filter(|listed| others.iter().any(|other| other.is_same(listed)))
        .map(|listed| listed.mountpoint.display().to_string())
        .collect();
    let mut left = Vec::new();
    if !mountpoints.is_empty() {
        left.push(format!("on {}", mountpoints.join(", ")));
    }
    let mut tables = mounts::of_other_namespaces(*device).flatten();
    if tables.any(|table| has_any(&table, others)) {
        left.push("in another mount namespace".to_owned());
    }
    if !left.is_empty() {
        stderr_line(&format!("{shown}: note: the volume is still mounted {}", left.join(", and ")));
    }
}

/// Why a mount was not removed.
enum UnmountError {
    Busy,
    Other(Failure),
}

/// Unmounts: as root by umount2(2), otherwise through fusermount3.
fn unmount(mount: &Mount, lazy: bool) -> Result<(), UnmountError> {
    let mountpoint = &mount.mountpoint;
    let failed = |error| UnmountError::Other(Failure::io(mountpoint.display().to_string(), &error));
    let how = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let Err(error) = mounts::unmount(mount, how) else { return Ok(()) };
    match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => Err(UnmountError::Busy),
        Some(Errno::PERM) => through_fusermount(mount, lazy),
        _ => Err(failed(error)),
    }
}

fn through_fusermount(mount: &Mount, lazy: bool) -> Result<(), UnmountError> {
    let mountpoint = &mount.mountpoint;
    let mut command = Command::new("fusermount3");
    command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(mountpoint);
    let output = command.output().map_err(|error| {
        let failure = Failure::io("fusermount3", &error);
        UnmountError::Other(failure.hint("install fuse3, or unmount as root"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(UnmountError::Busy);
    }
    let failure = |why: &str| Failure::new(mountpoint.display().to_string(), why);
    let own = rustix::process::getuid().as_raw().to_string();
    Err(UnmountError::Other(if mount.option("user_id") == Some(&*own) {
        failure(&message)
    } else {
        failure("is a mount of another user").hint("run as that user or as root")
    }))
}

/// Describes what keeps a mount busy.
fn busy(mount: &Mount, users: &[MountUser]) -> Failure {
    let shown = mount.mountpoint.display().to_string();
    if users.is_empty() {
        let hint = if rustix::process::geteuid().is_root() {
            "detach the mount with --lazy"
        } else {
            "run as root to see the processes of other users, or detach the mount with --lazy"
        };
        return Failure::new(shown, "is busy, and its users are not visible").hint(hint);
    }
    let users: Vec<String> = users.iter().map(MountUser::to_string).collect();
    Failure::new(shown, format!("is busy: {}", users.join("; ")))
        .hint("end the process, or detach the mount with --lazy")
}

#[cfg(test)]
mod tests {
    use super::has_any;
    use butternut_sys::mounts::parse;

    #[test]
    fn a_mount_is_known_by_its_id_and_device_after_a_remount_or_a_move() {
        let line = |id: u32, device: &str, path: &str, flags: &str| {
            let options = "user_id=0,group_id=0";
            let line = format!(
                "{id} 24 {device} / {path} {flags} - fuse.butternut image {flags},{options}\n"
            );
            parse(line.as_bytes())
        };
        let mount = line(90, "0:50", "/mnt", "rw");
        for same in [line(90, "0:50", "/mnt", "ro,nosuid"), line(90, "0:50", "/moved", "rw")] {
            assert!(has_any(&same, &mount), "{same:?}");
        }
        for other in [line(91, "0:50", "/mnt", "rw"), line(90, "0:51", "/mnt", "rw"), vec![]] {
            assert!(!has_any(&other, &mount), "{other:?}");
        }
    }
}
