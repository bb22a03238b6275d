//! The control socket of a mount: its path and its protocol.
//!
//! A connection carries one request and one response, each a line of JSON:
//!
//! ```text
//! {"ask":"stats","as":"text"}                    {"ok":"lanes\n  ..."}
//! {"ask":"stats","as":"json"}                    {"ok":{"lanes":{...},...}}
//! {"ask":"stats","as":"prometheus"}              {"ok":"# HELP ..."}
//! {"ask":"tunables"}                             {"ok":[{"key":"nosec","value":"on",...},...]}
//! {"ask":"set","key":"nosec","value":"off"}      {"ok":[{"key":"nosec","value":"off",...}]}
//! {"ask":"volume"}                               {"ok":{"devices":[...],"is_writable":true,...}}
//! {"ask":"synchronous","is_on":true}             {"ok":null}
//! {"ask":"commit"}                               {"ok":null}
//! {"ask":"clone","subvolume":{"id":256}}         {"ok":null}, and a mount descriptor
//! {"ask":"quota","change":"enable"}              {"ok":null}
//! {"ask":"quotas","from":0}                      {"ok":{"is_enabled":true,"groups":[...],...}}
//! {"ask":"report"}                               {"ok":{"label":[...],"devices":[...],...}}
//! {"ask":"label","label":[98,116,114]}           {"ok":null}
//! {"ask":"resize","devid":1,"size":"max"}        {"ok":{"devid":1,"bytes_was":...,...}}
//! {"ask":"hold"}                                 {"ok":{"generation":9,"devices":[...]}}
//! {"ask":"send","subvolume":257,...}             a stream, and {"ok":null}
//! {"ask":"receive","directory":1,"end":"input"}  requests for parts, and {"ok":{...}}
//! anything else                                  {"error":"why"}
//! ```
//!
//! A stream precedes its response, in parts ([`stream`]); a response with an error may follow some
//! of them. A stream to the process is requested by it in parts ([`receive`]).
//!
//! A commit is held until its client closes the connection or sends a byte; that is answered with
//! one ([`hold`]).
//!
//! The client keeps the connection of a clone open until it has attached the clone. The server does
//! not release the volume before.
//!
//! Laws:
//!
//! 1. Only the owner of the mount and root can use the socket. It has mode 600, in a directory that
//!    no other user can enter, and each side checks the user id of its peer (`SO_PEERCRED`). A
//!    directory that another user owns or can enter is not used: any user can create a directory
//!    with the name of root's in `/tmp`.
//! 2. No input makes the mount panic, block forever or allocate unbounded memory: lines have a
//!    maximum length, and every transfer has a timeout. The timeout of the client includes the
//!    connect. Connecting to a socket whose process has ended fails immediately. Only the response
//!    to a request that waits for a device has no timeout: the client reports that it waits, and
//!    the server goes on with the requests of others.
//! 3. The socket is named after the device number of the mount, which is unique among the mounts
//!    that exist. A socket of that name from an earlier mount is stale and is replaced. The socket
//!    is removed with its mount, unless a later mount with the same device number has replaced it.
//! 4. A file next to the socket of a mount of root names the devices of the volume and has the
//!    lifetime of the socket. So a client finds the process of a volume without a request to the
//!    processes of others, which may not respond.

pub(crate) mod client;
pub(crate) mod held_device;
pub(crate) mod hold;
pub(crate) mod logical_owners;
pub(crate) mod quotas;
pub(crate) mod receive;
pub(crate) mod resize;
pub(crate) mod server;
mod stream;
pub(crate) mod volume_report;

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use logical_owners::LogicalRequest;
use quotas::QuotaChange;
use receive::ReceiveRequest;
use resize::ResizeRequest;

/// Maximum length of a request line, in bytes. It grows with the number of clone sources.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a response line, in bytes. It grows with the number of devices.
const RESPONSE_BYTES_MAX: usize = 4 << 20;

const DIRECTORY: &str = "butternut";

/// A request to the process of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(crate) enum Request {
    Stats {
        #[serde(rename = "as")]
        form: Format,
    },
    Tunables,
    Set {
        key: String,
        value: String,
    },
    /// The devices of the volume, and the options that are fixed while it is mounted.
    Volume,
    /// A remount has made the mount synchronous, or not.
    Synchronous {
        is_on: bool,
    },
    /// A commit of all changes that have reached the process.
    Commit,
    /// A detached clone of the directory of a subvolume, to be attached to another mount point.
    Clone {
        subvolume: SubvolumeSelector,
    },
    /// A change of the quotas.
    Quota {
        change: QuotaChange,
    },
    /// A page of the report of the quotas, from a group on.
    Quotas {
        from: u64,
    },
    /// The label, the devices and the space of the volume.
    Report,
    /// A new label.
    Label {
        label: Vec<u8>,
    },
    /// A new size on one of the devices.
    Resize(ResizeRequest),
    /// A commit, and that what it refers to stays on the devices.
    Hold,
    /// A stream of a read-only subvolume.
    Send(SendRequest),
    /// A stream that makes subvolumes.
    Receive(ReceiveRequest),
    /// The files that contain a logical address.
    LogicalResolve(LogicalRequest),
}

/// What a stream is made of. Subvolumes have the ids of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SendRequest {
    pub(crate) subvolume: u64,
    /// Without a parent, one is chosen among the clone sources, if there are any.
    pub(crate) parent: Option<u64>,
    pub(crate) clone_sources: Vec<u64>,
    /// The version of the protocol: 1 or 2.
    pub(crate) version: u8,
    pub(crate) no_data: bool,
    pub(crate) compressed_data: bool,
}

impl Request {
    /// Returns whether the response may have to wait for a device (law 2).
    fn waits_for_device(&self) -> bool {
        match self {
            Self::Commit
            | Self::Clone { .. }
            | Self::Quota { .. }
            | Self::Quotas { .. }
            | Self::Report
            | Self::Label { .. }
            | Self::Resize(_)
            | Self::Hold
            | Self::Send(_)
            | Self::Receive(_)
            | Self::LogicalResolve(_) => true,
            Self::Stats { .. }
            | Self::Tunables
            | Self::Set { .. }
            | Self::Volume
            | Self::Synchronous { .. } => false,
        }
    }
}

/// The subvolume to be mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SubvolumeSelector {
    Default,
    Id(u64),
    Path(Vec<u8>),
}

/// The format of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    Text,
    /// As text, with what each number means.
    Explained,
    Json,
    Prometheus,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Response {
    Ok(Value),
    Error(String),
}

/// Returns the device number of the filesystem at `path`, as in the mount table. The call sends no
/// request to the process of the mount, which may not respond.
pub(crate) fn device_number(path: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, path, flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// As [`device_number`], of the filesystem of an open file.
pub(crate) fn device_number_of(file: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let stat = statx(file, "", flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

fn socket_name((major, minor): (u32, u32)) -> String {
    format!("{major}-{minor}.sock")
}

/// Returns the name of the file that names the devices of a mount (law 4).
fn devices_name((major, minor): (u32, u32)) -> String {
    format!("{major}-{minor}.devices")
}

/// Returns the directories that may hold the sockets of a user, in order of preference. For root
/// the environment is ignored, since it may name a directory of another user.
fn directories(user: u32, runtime: Option<OsString>) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
    if user == 0 {
        directories.push(PathBuf::from("/run").join(DIRECTORY));
    }
    directories.extend(runtime.filter(|_| user != 0).map(|runtime| runtime.join(DIRECTORY)));
    directories.push(PathBuf::from(format!("/run/user/{user}")).join(DIRECTORY));
    directories.push(PathBuf::from(format!("/tmp/{DIRECTORY}-{user}")));
    directories
}

fn runtime_dir() -> Option<OsString> {
    std::env::var_os("XDG_RUNTIME_DIR")
}

/// Opens a directory that `user` owns and that no other user can enter (law 1). On a network or
/// FUSE filesystem only the lookup of the name may send a request.
///
/// # Errors
/// Fails with `PermissionDenied` if another user owns the directory or can enter it.
fn open_directory(path: &Path, user: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&directory, "", flags, StatxFlags::MODE | StatxFlags::UID)?;
    if stat.stx_uid == user && stat.stx_mode & 0o777 & !0o700 == 0 {
        return Ok(directory);
    }
    Err(not_private(path))
}

fn not_private(path: &Path) -> io::Error {
    let why = format!("{} is not owned by this user or has a mode other than 0700", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Creates the directory, or checks that `user` owns an existing one and no other user can enter
/// it.
fn make_directory(path: &Path, user: u32) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    match open_directory(path, user) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => {
            Err(not_private(path))
        }
        opened => opened.map(drop),
    }
}

/// Returns the user id of the peer.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(butternut_sys::peer::peer(stream)?.user)
}

/// Returns a path in the volume without its leading and trailing slashes.
pub(crate) fn path(mut bytes: Vec<u8>) -> PathBuf {
    while bytes.last() == Some(&b'/') {
        bytes.pop();
    }
    let slashes = bytes.iter().take_while(|byte| **byte == b'/').count();
    OsString::from_vec(bytes.split_off(slashes)).into()
}

/// Sends a descriptor, with one byte that precedes the response.
fn send_descriptor(stream: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(stream, &[IoSlice::new(b" ")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives the first byte, and the descriptor if one comes with it. Without a descriptor, the byte
/// is part of the response.
fn receive_descriptor(stream: &UnixStream, until: Instant) -> io::Result<(u8, Option<OwnedFd>)> {
    stream.set_read_timeout(Some(time_left(until)?))?;
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    Ok((byte[0], fd))
}

/// Returns one line of the protocol.
fn line_of(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes one line.
///
/// # Errors
/// Fails with `TimedOut` at the time `until`.
fn send(stream: &mut UnixStream, line: &impl Serialize, until: Instant) -> io::Result<()> {
    let bytes = line_of(line)?;
    let mut left = &bytes[..];
    while !left.is_empty() {
        stream.set_write_timeout(Some(time_left(until)?))?;
        match stream.write(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads one line of at most `bytes_max` bytes.
///
/// # Errors
/// Fails with `TimedOut` or `WouldBlock` at the time `until`, and with `InvalidData` if the line is
/// longer.
fn receive_line(stream: &mut UnixStream, bytes_max: usize, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        stream.set_read_timeout(Some(time_left(until)?))?;
        let read = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = read.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&read[..end.unwrap_or(read.len())]);
        if line.len() > bytes_max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
        }
        if end.is_some() {
            return Ok(line);
        }
    }
}

fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Errno::TIMEDOUT.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use receive::ReceiveEnd;
    use resize::NewSize;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_wire_format_is_that_of_the_header() {
        let check = |request: &Request, want: &str| {
            assert_eq!(serde_json::to_string(request).unwrap(), want);
            assert_eq!(&serde_json::from_str::<Request>(want).unwrap(), request);
        };
        check(&Request::Stats { form: Format::Text }, r#"{"ask":"stats","as":"text"}"#);
        check(&Request::Tunables, r#"{"ask":"tunables"}"#);
        let (key, value) = ("nosec".to_owned(), "off".to_owned());
        let set = r#"{"ask":"set","key":"nosec","value":"off"}"#;
        check(&Request::Set { key, value }, set);
        check(&Request::Synchronous { is_on: true }, r#"{"ask":"synchronous","is_on":true}"#);
        check(&Request::Commit, r#"{"ask":"commit"}"#);
        let change = QuotaChange::Enable;
        check(&Request::Quota { change }, r#"{"ask":"quota","change":"enable"}"#);
        let change = QuotaChange::Simple;
        check(&Request::Quota { change }, r#"{"ask":"quota","change":"simple"}"#);
        let change = QuotaChange::Assign { child: 256, parent: 1 << 48 };
        let assign =
            r#"{"ask":"quota","change":{"assign":{"child":256,"parent":281474976710656}}}"#;
        check(&Request::Quota { change }, assign);
        check(&Request::Quotas { from: 0 }, r#"{"ask":"quotas","from":0}"#);
        check(&Request::Report, r#"{"ask":"report"}"#);
        check(&Request::Label { label: vec![98] }, r#"{"ask":"label","label":[98]}"#);
        let resize = ResizeRequest { devid: Some(1), size: NewSize::Max };
        check(&Request::Resize(resize), r#"{"ask":"resize","devid":1,"size":"max"}"#);
        let received = ReceiveRequest { directory: 1, end: ReceiveEnd::Input, is_resumed: false };
        let receive = r#"{"ask":"receive","directory":1,"end":"input","is_resumed":false}"#;
        check(&Request::Receive(received), receive);
        let resize = ResizeRequest { devid: None, size: NewSize::Fewer(9) };
        let fewer = r#"{"ask":"resize","devid":null,"size":{"fewer":9}}"#;
        check(&Request::Resize(resize), fewer);
        let (subvolume, parent, clone_sources) = (257, Some(256), vec![]);
        let send = SendRequest {
            subvolume,
            parent,
            clone_sources,
            version: 1,
            no_data: false,
            compressed_data: false,
        };
        let line = concat!(
            r#"{"ask":"send","subvolume":257,"parent":256,"clone_sources":[],"version":1,"#,
            r#""no_data":false,"compressed_data":false}"#
        );
        check(&Request::Send(send), line);
        let error = Response::Error("why".to_owned());
        assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"error":"why"}"#);
    }

    #[test]
    fn sockets_of_root_are_in_run_and_those_of_users_in_their_runtime_directory() {
        let first =
            |user, runtime: Option<&str>| directories(user, runtime.map(OsString::from)).remove(0);
        assert_eq!(first(0, Some("/run/user/0")), Path::new("/run/butternut"));
        assert_eq!(first(7, Some("/x")), Path::new("/x/butternut"));
        let for_root = directories(0, Some("/run/user/7".into()));
        assert!(
            for_root.iter().all(|directory| !directory.starts_with("/run/user/7")),
            "{for_root:?}"
        );
        for runtime in [None, Some("relative"), Some("")] {
            assert_eq!(first(7, runtime), Path::new("/run/user/7/butternut"));
        }
        assert_eq!(directories(7, None).pop().unwrap(), Path::new("/tmp/butternut-7"));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let user = rustix::process::geteuid().as_raw();
        let scratch = tempfile::tempdir().unwrap();
        let (own, open) = (scratch.path().join("own"), scratch.path().join("open"));
        make_directory(&own, user).unwrap();
        make_directory(&own, user).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        std::fs::DirBuilder::new().mode(0o755).create(&open).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let file = scratch.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [&open, &link, &file] {
            let error = make_directory(path, user).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{}", path.display());
        }
        assert!(make_directory(&own, user + 1).is_err(), "another user's");
        assert!(make_directory(&scratch.path().join("a/b"), user).is_err());
    }

    #[test]
    fn lines_have_a_maximum_length_and_a_timeout() {
        let soon = || Instant::now() + Duration::from_millis(200);
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"one\ntwo").unwrap();
        assert_eq!(receive_line(&mut ours, 3, soon()).unwrap(), b"one");
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"four\n").unwrap();
        let kind = |error: io::Error| error.kind();
        assert_eq!(
            receive_line(&mut ours, 3, soon()).map_err(kind),
            Err(io::ErrorKind::InvalidData)
        );
        let waited = receive_line(&mut ours, 3, soon()).map_err(kind).unwrap_err();
        assert!([io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&waited), "{waited}");
        drop(theirs);
        assert_eq!(
            receive_line(&mut ours, 3, soon()).map_err(kind),
            Err(io::ErrorKind::UnexpectedEof)
        );
    }
}
