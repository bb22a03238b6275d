//! Attaches the mount to its mount point: by mount(2) as root, otherwise through `fusermount3`.
//!
//! ```text
//! root    mount(2), type fuse.butternut, with a descriptor of /dev/fuse among the options
//!         (further mounts and mounts of block devices: `detached_mount`)
//! others  fusermount3 opens /dev/fuse, mounts, and sends the descriptor over a socket
//! ```

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{getgid, getuid};

use crate::connection;
use crate::door::negotiation::TRANSFER_BYTES_MAX;
use crate::options::Options;
use crate::session::attempt::MountAttempt;

/// The set-user-id program that mounts and unmounts for users other than root.
pub(crate) const HELPER: &str = "fusermount3";
/// The environment variable with the helper's socket descriptor.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// The filesystem types of the kernel, and the types with subtype that mount tables show.
pub(crate) const TYPE: &str = "fuse";
pub(crate) const BLOCK_TYPE: &str = "fuseblk";
const SUBTYPE: &str = "butternut";
const FS_TYPE: &str = "fuse.butternut";
pub(crate) const BLOCK_FS_TYPE: &str = "fuseblk.butternut";

/// Returns whether the type of a mount in a mount table is that of a Butternut mount.
pub fn is_own_type(kind: &str) -> bool {
    kind == FS_TYPE || kind == BLOCK_FS_TYPE
}

/// Returns whether the type of a mount is that of a Butternut mount of a block device.
pub fn is_block_device_type(kind: &str) -> bool {
    kind == BLOCK_FS_TYPE
}

/// Mounts on the directory of an attempt, and returns the descriptor of the connection.
pub(crate) fn attach(attempt: &MountAttempt, options: &Options) -> io::Result<OwnedFd> {
    match by_system_call(attempt.mountpoint(), options) {
        Err(error) if is_for_helper(&error) => through_helper(attempt, options),
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

fn through_helper(attempt: &MountAttempt, options: &Options) -> io::Result<OwnedFd> {
    let (local, remote) = UnixStream::pair()?;
    // The helper inherits this end. Another child that is started meanwhile may inherit it too,
    // which does no harm.
    fcntl_setfd(&remote, FdFlags::empty())?;
    let mut helper = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(attempt.mountpoint())
        .env(HELPER_SOCKET, remote.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    attempt.helper_started(helper.id());
    drop(remote);
    let received = receive(&local);
    // The message names the mount point, which may be any bytes.
    let mut message = Vec::new();
    let read = helper.stderr.take().map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut message));
    let waited = helper.wait();
    attempt.helper_ended();
    read.and(waited)?;
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
