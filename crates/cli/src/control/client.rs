//! The client of the control socket: finds the socket of a mount through the mount table, sends a
//! request and waits for the response.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use butternut_fuse::is_own_type;
use butternut_sys::mounts::{self, Mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use super::hold::{HeldVolume, Hold};
use super::receive::{ReceiveRequest, ReceiveResult};
use super::{
    RESPONSE_BYTES_MAX, Request, Response, SendRequest, SubvolumeSelector, device_number,
    devices_name, directories, open_directory, peer, receive, stream,
};
use super::{receive_descriptor, receive_line, runtime_dir, send, socket_name, time_left};
use crate::failure::{Failure, io_text};
use crate::output::notes::Notes;
use crate::output::text;

/// Maximum time from the connect to the response, except for a request that waits for a device.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How to wait for a response that waits for a device.
#[derive(Clone, Copy, Debug)]
struct DeviceWait {
    notes: Notes,
    limit: Option<Duration>,
}

impl DeviceWait {
    /// Waits without a limit.
    fn with(notes: Notes) -> Self {
        Self { notes, limit: None }
    }

    /// Waits for the response, or for the end of the process.
    ///
    /// # Errors
    /// Fails with `TimedOut` after the limit.
    fn run(self, stream: &UnixStream, target: &Path) -> io::Result<()> {
        let until = self.limit.map(|limit| Instant::now() + limit);
        let mut polled = [PollFd::new(stream, PollFlags::IN)];
        self.notes.if_slow(&target.display().to_string(), || {
            loop {
                let left = until.map(time_left).transpose()?;
                let left = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
                match poll(&mut polled, left.as_ref()) {
                    Ok(0) | Err(Errno::INTR) => {}
                    ready => return Ok(ready.map(drop)?),
                }
            }
        })
    }
}

/// Sends a request to the mount that contains `target`. Messages begin with `command`.
///
/// # Errors
/// Fails if `target` is not in a Butternut mount, if its process does not respond, or with the
/// error that the process returns.
pub(crate) fn request(command: &str, target: &Path, request: &Request) -> Result<Value, Failure> {
    let numbers =
        device_number(target).map_err(|error| no_mount(command, target, &io_text(&error)))?;
    request_of(command, (target, numbers), request)
}

/// As [`request`], to the mount with a device number: that of a descriptor, which is of the same
/// mount later, too. Messages name `target`.
///
/// # Errors
/// As [`request`].
pub(crate) fn request_of(
    command: &str,
    (target, numbers): (&Path, (u32, u32)),
    request: &Request,
) -> Result<Value, Failure> {
    let user = owner_at(command, target, numbers)?;
    exchange(command, target, (user, numbers), request, DeviceWait::with(Notes::Print))
        .map(|(value, _)| value)
}

fn no_mount(command: &str, target: &Path, why: &str) -> Failure {
    let colon = if why.is_empty() { "" } else { ": " };
    Failure::new(command, format!("no butternut mount at {}{colon}{why}", target.display()))
}

/// Returns the owner of the Butternut mount with a device number, which contains `target`.
fn owner_at(command: &str, target: &Path, numbers: (u32, u32)) -> Result<u32, Failure> {
    let mounts = mounts::read_own_of_device(numbers)
        .map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    owner_of(&mounts, numbers).ok_or_else(|| {
        no_mount(command, target, "")
            .hint("`findmnt -t fuse.butternut,fuseblk.butternut` lists the mounts")
    })
}

/// Requests a stream from the mount with a device number, which contains `target`, and writes it to
/// `to`. Messages begin with `command`. The inner error is that of `to`.
///
/// # Errors
/// As [`request`]; or the stream ends before its end.
pub(crate) fn request_stream(
    command: &str,
    (target, numbers): (&Path, (u32, u32)),
    request: SendRequest,
    to: &mut dyn Write,
) -> Result<io::Result<()>, Failure> {
    let user = owner_at(command, target, numbers)?;
    let failed = |error: &io::Error| {
        let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
        let why = if is_end { "its process closed the connection" } else { &io_text(error) };
        Failure::new(command, format!("the mount at {}: {why}", target.display()))
            .hint("the stream is not complete")
    };
    let until = Instant::now() + TIMEOUT;
    let mut stream = connect_with_timeout(user, socket_name(numbers), until)
        .map_err(|error| not_connected(command, target, &error))?;
    send(&mut stream, &Request::Send(request), until).map_err(|error| failed(&error))?;
    let first = match stream::receive_parts(&stream, to).map_err(|error| failed(&error))? {
        Ok(first) => first,
        Err(error) => return Ok(Err(error)),
    };
    let mut line = vec![first];
    let rest = receive_line(&mut stream, RESPONSE_BYTES_MAX, Instant::now() + TIMEOUT);
    line.extend(rest.map_err(|error| failed(&error))?);
    match serde_json::from_slice(&line) {
        Ok(Response::Ok(_)) => Ok(Ok(())),
        Ok(Response::Error(why)) => Err(Failure::new(command, text::lines(&why))),
        Err(error) => Err(failed(&error.into())),
    }
}

/// Lets the mount with a device number, which contains `target`, receive a stream from `input`.
/// Messages begin with `command`. Also returns why `input` has failed if it has: the result is that
/// of the receive which ended then.
///
/// # Errors
/// As [`request`].
pub(crate) fn request_receive(
    command: &str,
    (target, numbers): (&Path, (u32, u32)),
    request: ReceiveRequest,
    input: (&mut dyn Read, BorrowedFd<'_>),
) -> Result<(ReceiveResult, Option<io::Error>), Failure> {
    let user = owner_at(command, target, numbers)?;
    let failed = |error: &io::Error| {
        let is_end =
            matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
        let why = if is_end { "its process closed the connection" } else { &io_text(error) };
        Failure::new(command, format!("the mount at {}: {why}", target.display()))
            .hint("what was received is not known")
    };
    let until = Instant::now() + TIMEOUT;
    let mut stream = connect_with_timeout(user, socket_name(numbers), until)
        .map_err(|error| not_connected(command, target, &error))?;
    send(&mut stream, &Request::Receive(request), until).map_err(|error| failed(&error))?;
    let line = receive::send_input(&mut stream, input, || Instant::now() + TIMEOUT);
    let (line, input_error) = line.map_err(|error| failed(&error))?;
    let value = match serde_json::from_slice(&line) {
        Ok(Response::Ok(value)) => value,
        Ok(Response::Error(why)) => return Err(Failure::new(command, text::lines(&why))),
        Err(error) => return Err(failed(&error.into())),
    };
    let result = serde_json::from_value(escape_strings(value));
    result.map(|result| (result, input_error)).map_err(|error| failed(&error.into()))
}

/// Lets the mount with a device number, which contains `target`, hold its last commit. Messages
/// begin with `command`.
///
/// # Errors
/// As [`request`]; the mount belongs to another user.
pub(crate) fn request_hold(
    command: &str,
    (target, numbers): (&Path, (u32, u32)),
) -> Result<(Hold, HeldVolume), Failure> {
    let user = owner_at(command, target, numbers)?;
    if user != rustix::process::geteuid().as_raw() {
        let why = format!("the mount at {} belongs to another user", target.display());
        return Err(Failure::new(command, why).hint("only its owner reads its devices"));
    }
    let failed = |error: &io::Error| {
        let why = io_text(error);
        Failure::new(command, format!("the mount at {}: {why}", target.display()))
    };
    let until = Instant::now() + TIMEOUT;
    let mut stream = connect_with_timeout(user, socket_name(numbers), until)
        .map_err(|error| not_connected(command, target, &error))?;
    let line = send(&mut stream, &Request::Hold, until).and_then(|()| {
        DeviceWait::with(Notes::Print).run(&stream, target)?;
        receive_line(&mut stream, RESPONSE_BYTES_MAX, Instant::now() + TIMEOUT)
    });
    let value = match serde_json::from_slice(&line.map_err(|error| failed(&error))?) {
        Ok(Response::Ok(value)) => value,
        Ok(Response::Error(why)) => return Err(Failure::new(command, text::lines(&why))),
        Err(error) => return Err(failed(&error.into())),
    };
    let volume = serde_json::from_value(value).map_err(|error| failed(&error.into()))?;
    Ok((Hold(stream), volume))
}

/// Converts the error of a connect.
fn not_connected(command: &str, target: &Path, error: &io::Error) -> Failure {
    let why = format!("the mount at {}: no control socket: {}", target.display(), io_text(error));
    Failure::new(command, why).hint(match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => "only its owner and root have access",
        _ => "its process has ended, or reported the reason when it was mounted",
    })
}

/// Sends a request to a mount of the mount table.
pub(crate) fn request_mount(
    command: &str,
    mount: &Mount,
    request: &Request,
) -> Result<Value, Failure> {
    send_to_mount(command, mount, request, DeviceWait::with(Notes::Print)).map(|(value, _)| value)
}

/// Lets the process of a mount commit, and waits for it, for at most `limit`: the process may be
/// that of a user who does not want it to end.
pub(crate) fn request_commit(
    command: &str,
    mount: &Mount,
    notes: Notes,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    send_to_mount(command, mount, &Request::Commit, DeviceWait { notes, limit }).map(drop)
}

/// Returns the process that serves the control socket of a mount, or `None` if it is not visible in
/// this process namespace.
///
/// # Errors
/// The socket cannot be connected ([`has_ended`]).
pub(crate) fn serving_process(mount: &Mount) -> io::Result<Option<(Pid, OwnedFd)>> {
    let user = mount.option("user_id").and_then(|user| user.parse().ok());
    let user = user.ok_or(io::ErrorKind::NotFound)?;
    let until = Instant::now() + TIMEOUT;
    Ok(process_of(&connect_with_timeout(user, socket_name(mount.device), until)?))
}

fn process_of(stream: &UnixStream) -> Option<(Pid, OwnedFd)> {
    let id = butternut_sys::peer::peer(stream).ok()?.process?;
    let id = Pid::from_raw(id.try_into().ok()?)?;
    let pidfd = match butternut_sys::peer::process(stream) {
        // An older kernel has only the id, which may be that of another process by now.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOPROTOOPT) => {
            pidfd_open(id, PidfdFlags::empty()).ok()?
        }
        process => process.ok()?,
    };
    Some((id, pidfd))
}

/// Returns whether an error of [`serving_process`] says that the process of the mount has ended
/// without an unmount: it has left its socket.
pub(crate) fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// Requests a detached clone of the directory of a subvolume. The caller must keep the returned
/// connection open until it has attached the clone: until then the volume is not released.
pub(crate) fn request_clone(
    command: &str,
    mount: &Mount,
    subvolume: SubvolumeSelector,
    notes: Notes,
) -> Result<(OwnedFd, UnixStream), Failure> {
    let (_, clone) =
        send_to_mount(command, mount, &Request::Clone { subvolume }, DeviceWait::with(notes))?;
    clone.ok_or_else(|| Failure::new(command, "the process of the mount sent no descriptor"))
}

/// Returns the devices of the volume of a mount, as its process has recorded them. Sends no request
/// to that process. Returns `None` if the record does not exist or cannot be read.
pub(crate) fn recorded_devices(mount: &Mount) -> Option<Vec<String>> {
    let user = mount.option("user_id")?.parse().ok()?;
    let own = rustix::process::geteuid().as_raw() == user;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    directories(user, runtime_dir().filter(|_| own)).iter().find_map(|directory| {
        let directory = open_directory(directory, user).ok()?;
        let name = devices_name(mount.device);
        let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
        serde_json::from_reader(File::from(file).take(RESPONSE_BYTES_MAX as u64)).ok()
    })
}

fn send_to_mount(
    command: &str,
    mount: &Mount,
    request: &Request,
    wait: DeviceWait,
) -> Result<(Value, Option<(OwnedFd, UnixStream)>), Failure> {
    let user = mount.option("user_id").and_then(|user| user.parse().ok());
    let user = user.ok_or_else(|| {
        Failure::new(command, "the mount table does not name the owner of the mount")
    })?;
    exchange(command, &mount.mountpoint, (user, mount.device), request, wait)
}

/// Sends a request to the socket of a user's mount, and waits for the response. If a descriptor
/// comes with the response, returns it and the connection.
fn exchange(
    command: &str,
    target: &Path,
    (user, numbers): (u32, (u32, u32)),
    request: &Request,
    wait: DeviceWait,
) -> Result<(Value, Option<(OwnedFd, UnixStream)>), Failure> {
    let shown = target.display();
    let failed = |why: String| Failure::new(command, format!("the mount at {shown}: {why}"));
    let until = Instant::now() + TIMEOUT;
    let mut stream = connect_with_timeout(user, socket_name(numbers), until)
        .map_err(|error| not_connected(command, target, &error))?;
    let mut fd = None;
    let line = send(&mut stream, request, until).and_then(|()| {
        let mut until = until;
        if request.waits_for_device() {
            wait.run(&stream, target)?;
            until = Instant::now() + TIMEOUT;
        }
        let (first, descriptor) = receive_descriptor(&stream, until)?;
        fd = descriptor;
        let mut line = vec![first];
        line.extend(receive_line(&mut stream, RESPONSE_BYTES_MAX, until)?);
        Ok(line)
    });
    let line = line.map_err(|error| {
        let is_timeout =
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let limit = wait.limit.filter(|_| request.waits_for_device()).unwrap_or(TIMEOUT);
        let timeout = || format!("no response within {} s", limit.as_secs());
        failed(if is_timeout { timeout() } else { io_text(&error) })
    })?;
    match serde_json::from_slice(&line) {
        Ok(Response::Ok(value)) => Ok((escape_strings(value), fd.map(|fd| (fd, stream)))),
        Ok(Response::Error(why)) => Err(Failure::new(command, why)),
        Err(error) => Err(failed(format!("its response cannot be parsed: {error}"))),
    }
}

/// Returns the owner of the Butternut mount with a device number, if there is one.
fn owner_of(mounts: &[Mount], device: (u32, u32)) -> Option<u32> {
    let is_it = |mount: &&Mount| is_own_type(&mount.kind) && mount.device == device;
    mounts.iter().find(is_it)?.option("user_id")?.parse().ok()
}

/// Escapes control characters in all strings of a response. The socket may be served by any program
/// of its owner, and the strings are printed on a terminal.
fn escape_strings(answer: Value) -> Value {
    match answer {
        Value::String(text) => text::lines(&text).into(),
        Value::Array(values) => values.into_iter().map(escape_strings).collect(),
        Value::Object(pairs) => {
            let pairs = pairs.into_iter();
            pairs.map(|(key, value)| (text::one_line(&key), escape_strings(value))).collect()
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
    }
}

/// Connects before `until`. A connect blocks while the backlog of the socket is full, and a lookup
/// blocks if the directory is in a filesystem that does not respond. So a thread of its own
/// connects, and is not joined.
fn connect_with_timeout(user: u32, name: String, until: Instant) -> io::Result<UnixStream> {
    let (result, connected) = mpsc::channel();
    let connecting = move || result.send(connect(user, &name)).unwrap_or_default();
    thread::Builder::new().name("butternut-ask".into()).spawn(connecting)?;
    connected.recv_timeout(time_left(until)?).unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))
}

/// Connects to the socket with this name in the directories of the user. A socket that a process of
/// another user serves is skipped.
fn connect(user: u32, name: &str) -> io::Result<UnixStream> {
    let own = rustix::process::geteuid().as_raw() == user;
    let mut found: Option<io::Error> = None;
    for directory in directories(user, runtime_dir().filter(|_| own)) {
        match connect_in(&directory, user, name) {
            Ok((server, stream)) if server == user => return Ok(stream),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(found.get_or_insert(error)),
        }
    }
    Err(found.unwrap_or_else(|| Errno::NOENT.into()))
}

/// Connects to a socket in a directory, and returns the user id of its process. The directory is
/// checked and used through one descriptor, since another directory may be renamed to its path.
fn connect_in(directory: &Path, user: u32, name: &str) -> io::Result<(u32, UnixStream)> {
    let directory = open_directory(directory, user)?;
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    let stream = UnixStream::connect(path)?;
    Ok((peer(&stream)?, stream))
}

#[test]
fn the_owner_of_a_mount_is_read_from_the_mount_table() {
    let mounts = b"22 1 0:5 / /mnt rw - ext4 /dev/a rw,user_id=3\n\
                   23 1 0:44 / /mnt ro shared:1 - fuse.butternut a\\040-\\040b.img ro,user_id=7\n\
                   24 1 0:45 / /m\\040x\xff ro - fuse.butternut a.img ro,user_id=0,group_id=0\n";
    let mounts = &mounts::parse(mounts);
    assert_eq!(owner_of(mounts, (0, 45)), Some(0));
    assert_eq!(owner_of(mounts, (0, 44)), Some(7));
    assert_eq!(owner_of(mounts, (0, 5)), None, "not a Butternut mount");
    assert_eq!(owner_of(mounts, (0, 4)), None);
}
