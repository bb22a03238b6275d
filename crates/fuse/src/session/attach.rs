//! Attaches the mount to its mount point: by mount(2) as root, otherwise through `fusermount3`.
//!
//! ```text
//! root    mount(2), type fuse.butternut, with a descriptor of /dev/fuse among the options
//! others  fusermount3 opens /dev/fuse, mounts, and sends the descriptor over a socket
//! ```
//!
//! A process that ends while fusermount3 runs calls [`end_helper`]: fusermount3 would mount later,
//! and leave a mount that nothing serves.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use butternut_sys::lock::{Mutex, rank};
use butternut_sys::mounts::{self, Mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Signal, getgid, getuid, pidfd_open, pidfd_send_signal};

use crate::connection;
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::options::Options;
use crate::session::superblock;

/// The set-user-id program that mounts and unmounts for users other than root.
pub(crate) const HELPER: &str = "fusermount3";
/// The environment variable with the helper's socket descriptor.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// The filesystem type of the kernel, and the type with subtype that mount tables show.
pub(crate) const TYPE: &str = "fuse";
const SUBTYPE: &str = "butternut";
pub const FS_TYPE: &str = "fuse.butternut";

/// How long [`end_helper`] waits for the end of the helper, and then for the unmount.
const END_WAIT: Duration = Duration::from_secs(1);

/// A helper that mounts at the moment.
struct RunningHelper {
    process: OwnedFd,
    mountpoint: PathBuf,
    /// The ids of the mounts before it.
    before: HashSet<u64>,
}

static RUNNING: Mutex<Option<RunningHelper>, rank::MountHelper> = Mutex::new(None);

impl RunningHelper {
    fn start(id: u32, mountpoint: &Path, before: &[Mount]) -> Option<Self> {
        let id = Pid::from_raw(id.try_into().ok()?)?;
        // The process was not waited for yet, so its id is not reused.
        let process = pidfd_open(id, PidfdFlags::empty()).ok()?;
        let before = before.iter().map(|mount| mount.id).collect();
        Some(Self { process, mountpoint: mountpoint.to_path_buf(), before })
    }

    /// Kills the helper, and detaches the mount that it has made.
    fn end(self) {
        // Fails if it has ended.
        pidfd_send_signal(&self.process, Signal::KILL).unwrap_or_default();
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        let wait = Timespec::try_from(END_WAIT).unwrap_or_default();
        // It ends late if a device or another filesystem does not respond, and mounts nothing then.
        poll(&mut ended, Some(&wait)).map(drop).unwrap_or_default();
        let is_new = |mount: &&Mount| {
            let is_there = mount.mountpoint == self.mountpoint && mount.kind == FS_TYPE;
            is_there && !self.before.contains(&mount.id)
        };
        for mount in mounts::read().unwrap_or_default().iter().filter(is_new) {
            // No error can be reported to the caller, which ends.
            superblock::detach(mount).unwrap_or_default();
        }
    }
}

/// Ends the fusermount3 that mounts at the moment, for a process that ends without the mount. Takes
/// a bounded time.
pub fn end_helper() {
    let Some(helper) = RUNNING.lock().take() else { return };
    let (working, finished) = channel::<()>();
    let run = move || {
        helper.end();
        drop(working);
    };
    // Without a thread the helper was dropped.
    if thread::Builder::new().spawn(run).is_ok() {
        finished.recv_timeout(2 * END_WAIT).unwrap_or_default();
    }
}

/// Mounts on a directory, and returns the descriptor of the connection.
pub(crate) fn attach(mountpoint: &Path, options: &Options) -> io::Result<OwnedFd> {
    match by_system_call(mountpoint, options) {
        Err(error) if is_for_helper(&error) => through_helper(mountpoint, options),
        done => done,
    }
}

/// Returns whether the helper may succeed where this process failed. mount(2) returns `EPERM` to a
/// caller without capabilities, and `EACCES` where a security module refuses it. A caller that may
/// not open /dev/fuse gains nothing from the helper, which opens it with the caller's rights, but
/// gets a message that names the device.
pub(crate) fn is_for_helper(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::ACCESS))
}

fn by_system_call(mountpoint: &Path, options: &Options) -> io::Result<OwnedFd> {
    let device = connection::open()?;
    let mut flags = MountFlags::NOATIME;
    for (is_set, flag) in [
        (!options.is_writable, MountFlags::RDONLY),
        (options.is_synchronous, MountFlags::SYNCHRONOUS),
        (!options.devices, MountFlags::NODEV),
        (!options.set_user_id, MountFlags::NOSUID),
        (!options.execute, MountFlags::NOEXEC),
    ] {
        if is_set {
            flags |= flag;
        }
    }
    let settings = connection_settings(&device);
    let mut data = settings.map(|(key, value)| format!("{key}={value}")).join(",");
    for (is_set, word) in connection_flags(options) {
        if is_set {
            data.push(',');
            data.push_str(word);
        }
    }
    let data = std::ffi::CString::new(data)?;
    rustix::mount::mount(options.source.as_str(), mountpoint, FS_TYPE, flags, data.as_c_str())?;
    Ok(device)
}

/// Returns the mount options that describe the connection.
fn connection_settings(device: &OwnedFd) -> [(&'static str, String); 5] {
    [
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", getuid().as_raw().to_string()),
        ("group_id", getgid().as_raw().to_string()),
        ("max_read", TRANSFER_BYTES_MAX.to_string()),
    ]
}

/// Returns all options of a mount, for fsconfig(2).
pub(crate) fn settings(device: &OwnedFd, options: &Options) -> Vec<(&'static str, String)> {
    let mut settings = vec![("source", options.source.clone()), ("subtype", SUBTYPE.to_owned())];
    settings.extend(connection_settings(device));
    settings
}

/// Returns the options that mount(2) and the helper spell alike, each with whether it is set.
pub(crate) fn connection_flags(options: &Options) -> [(bool, &'static str); 2] {
    [(options.checks_permissions(), "default_permissions"), (options.allow_other, "allow_other")]
}

fn through_helper(mountpoint: &Path, options: &Options) -> io::Result<OwnedFd> {
    let (local, remote) = UnixStream::pair()?;
    // The helper inherits this end. Another child that is started meanwhile may inherit it too,
    // which does no harm.
    fcntl_setfd(&remote, FdFlags::empty())?;
    let before = mounts::read().unwrap_or_default();
    let mut helper = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(mountpoint)
        .env(HELPER_SOCKET, remote.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let running = RunningHelper::start(helper.id(), mountpoint, &before);
    let earlier = std::mem::replace(&mut *RUNNING.lock(), running);
    drop(earlier);
    drop(remote);
    let received = receive(&local);
    // With the descriptor, this process ends the mount itself.
    let running = RUNNING.lock().take();
    drop(running);
    // The message names the mount point, which may be any bytes.
    let mut message = Vec::new();
    let read = helper.stderr.take().map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut message));
    helper.wait()?;
    read?;
    let message = String::from_utf8_lossy(&message);
    match received? {
        Some(device) => {
            fcntl_setfd(&device, FdFlags::CLOEXEC)?;
            Ok(device)
        }
        None => Err(io::Error::other(message.trim().to_owned())),
    }
}

fn helper_options(options: &Options) -> OsString {
    let word = |is_set, yes, no| if is_set { yes } else { no };
    let mut words = vec![
        word(options.is_writable, "rw", "ro"),
        word(options.is_synchronous, "sync", "async"),
        word(options.devices, "dev", "nodev"),
        word(options.set_user_id, "suid", "nosuid"),
        word(options.execute, "exec", "noexec"),
        "noatime",
        "subtype=butternut",
    ];
    words.extend(
        connection_flags(options).into_iter().filter_map(|(is_set, word)| is_set.then_some(word)),
    );
    // A comma separates options unless it is escaped.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let words = words.join(",");
    format!("{words},max_read={TRANSFER_BYTES_MAX},fsname={source}").into()
}

/// Returns the descriptor that the helper sends, or `None` where it fails before.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 || received.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(None);
    }
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_options_are_passed_to_the_helper() {
        let source = "a,b\\c".to_owned();
        let options = Options { source, allow_other: true, ..Options::default() };
        let words = helper_options(&options).into_string().unwrap();
        let fixed = "ro,async,nodev,nosuid,exec,noatime,subtype=butternut";
        let more = "default_permissions,allow_other,max_read=1048576,fsname=a\\,b\\\\c";
        assert_eq!(words, format!("{fixed},{more}"));
    }

    #[test]
    fn the_helper_is_used_where_mounting_is_not_permitted() {
        let tried = |errno: Errno| is_for_helper(&errno.into());
        assert!(tried(Errno::PERM) && tried(Errno::ACCESS));
        assert!(!tried(Errno::NOENT) && !tried(Errno::BUSY) && !tried(Errno::INVAL));
    }

    #[test]
    fn a_helper_that_sends_no_descriptor_is_noticed() {
        let (local, remote) = UnixStream::pair().unwrap();
        drop(remote);
        assert!(receive(&local).unwrap().is_none());
    }
}
