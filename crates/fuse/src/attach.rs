//! The mount itself is made, as root by system calls, else through fusermount3.
//!
//! ```text
//! root    mount(2), type fuse.butternut, with a descriptor of /dev/fuse among the options
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

/// The program that mounts and unmounts for users other than root.
pub(crate) const HELPER: &str = "fusermount3";
/// Where the helper finds the number of its socket.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// The type that the kernel mounts, and what mount tables show with our part of it.
pub(crate) const TYPE: &str = "fuse";
const SUBTYPE: &str = "butternut";
pub const KIND: &str = "fuse.butternut";

/// Mounts on a directory; the connection that serves it.
pub(crate) fn attach(mountpoint: &Path, options: &Options) -> io::Result<OwnedFd> {
    match by_system_call(mountpoint, options) {
        Err(error) if is_for_helper(&error) => through_helper(mountpoint, options),
        done => done,
    }
}

/// Whether the helper, which is set-user-id, may do what this process may not: mount(2) returns
/// `EPERM` to a caller without capabilities, and `EACCES` where a security module refuses it. A
/// caller that may not open /dev/fuse gains nothing: the helper opens it with the caller's rights,
/// and its message names the device.
fn is_for_helper(error: &io::Error) -> bool {
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
    for (is_set, word) in given(options) {
        if is_set {
            data.push(',');
            data.push_str(word);
        }
    }
    let data = std::ffi::CString::new(data)?;
    rustix::mount::mount(options.source.as_str(), mountpoint, KIND, flags, data.as_c_str())?;
    Ok(device)
}

/// What the kernel must know of a connection.
fn connection_settings(device: &OwnedFd) -> [(&'static str, String); 5] {
    [
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", getuid().as_raw().to_string()),
        ("group_id", getgid().as_raw().to_string()),
        ("max_read", TRANSFER_BYTES_MAX.to_string()),
    ]
}

/// All settings of a mount, for the calls that take them one by one.
pub(crate) fn settings(device: &OwnedFd, options: &Options) -> Vec<(&'static str, String)> {
    let mut settings = vec![("source", options.source.clone()), ("subtype", SUBTYPE.to_owned())];
    settings.extend(connection_settings(device));
    settings
}

/// Options of the connection, in the words that the kernel and its helper share.
pub(crate) fn given(options: &Options) -> [(bool, &'static str); 2] {
    [(options.permissions(), "default_permissions"), (options.allow_other, "allow_other")]
}

fn through_helper(mountpoint: &Path, options: &Options) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper alone is to inherit this end; another child started at the same time may too,
    // which costs nothing.
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut helper = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(mountpoint)
        .env(HELPER_SOCKET, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(theirs);
    let received = receive(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    helper.wait()?;
    match received? {
        Some(device) => {
            fcntl_setfd(&device, FdFlags::CLOEXEC)?;
            Ok(device)
        }
        None => Err(io::Error::other(said.trim().to_owned())),
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
    words.extend(given(options).into_iter().filter_map(|(is_set, word)| is_set.then_some(word)));
    // Commas part options, unless they are escaped.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let words = words.join(",");
    format!("{words},max_read={TRANSFER_BYTES_MAX},fsname={source}").into()
}

/// The descriptor that the helper sends, if it got that far.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
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
    fn the_helper_is_told_everything() {
        let source = "a,b\\c".to_owned();
        let options = Options { source, allow_other: true, ..Options::default() };
        let words = helper_options(&options).into_string().unwrap();
        let fixed = "ro,async,nodev,nosuid,exec,noatime,subtype=butternut";
        let more = "default_permissions,allow_other,max_read=1048576,fsname=a\\,b\\\\c";
        assert_eq!(words, format!("{fixed},{more}"));
    }

    #[test]
    fn the_helper_is_tried_where_the_call_is_not_allowed() {
        let tried = |errno: Errno| is_for_helper(&errno.into());
        assert!(tried(Errno::PERM) && tried(Errno::ACCESS));
        assert!(!tried(Errno::NOENT) && !tried(Errno::BUSY) && !tried(Errno::INVAL));
    }

    #[test]
    fn a_descriptor_comes_over_the_socket_or_its_absence_is_noticed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive(&ours).unwrap().is_none());
    }
}
