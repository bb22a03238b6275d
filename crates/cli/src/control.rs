//! The control socket of a mount: where it is, and what is said over it.
//!
//! One connection, one question, one answer, each a line of JSON:
//!
//! ```text
//! {"ask":"stats","as":"text"}                    {"ok":"lanes\n  ..."}
//! {"ask":"stats","as":"json"}                    {"ok":{"lanes":{...},...}}
//! {"ask":"stats","as":"prometheus"}              {"ok":"# HELP ..."}
//! {"ask":"switches"}                             {"ok":[{"key":"nosec","value":"on",...},...]}
//! {"ask":"set","key":"nosec","value":"off"}      {"ok":[{"key":"nosec","value":"off",...}]}
//! {"ask":"volume"}                               {"ok":{"devices":[...],"is_writable":true,...}}
//! {"ask":"clone","subvolume":{"id":256}}         {"ok":null}, with the descriptor of a mount
//! anything else                                  {"error":"why"}
//! ```
//!
//! Laws:
//!
//! 1. The socket is its owner's alone: it lies in a folder that no other user can enter, has mode
//!    600, and each side looks at who the other is (`SO_PEERCRED`). Root may ask everyone's mounts.
//!    A folder of another owner, or one that others can enter, is not looked into: any user can
//!    make one of root's name in `/tmp`.
//! 2. No byte that comes over it makes the mount panic, wait without end or take memory without
//!    bound: lines and times have limits. The time of a client includes the connecting. A socket
//!    that no process serves any more is an error at once.
//! 3. It is named after the mount's device number, which no other mount has at the same time: what
//!    lies there when a mount begins is stale, and replaced. It goes with the mount, unless it was
//!    replaced: then the next mount has that number already, and keeps its own.

pub(crate) mod client;
pub(crate) mod server;

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
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A question is a short line.
const QUESTION_BYTES_MAX: usize = 4 << 10;
/// An answer has a line for each device of the volume.
const ANSWER_BYTES_MAX: usize = 4 << 20;

const FOLDER: &str = "butternut";

/// What a mount may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(crate) enum Question {
    Stats {
        #[serde(rename = "as")]
        form: Form,
    },
    Switches,
    Set {
        key: String,
        value: String,
    },
    /// Which volume is served, and how.
    Volume,
    /// A clone of a subvolume's directory, to be mounted at a further place.
    Clone {
        subvolume: Asked,
    },
}

/// A subvolume that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Asked {
    Default,
    Id(u64),
    Path(Vec<u8>),
}

/// How counts are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    Text,
    Json,
    Prometheus,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Ok(Value),
    Error(String),
}

/// The device number of what is mounted at `path`, as mount tables write it. The process that
/// serves the mount is not asked: it may not answer yet, or not any more.
pub(crate) fn device_number(path: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, path, flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

fn socket_name((major, minor): (u32, u32)) -> String {
    format!("{major}-{minor}.sock")
}

/// The folders where the sockets of a user may lie, the best first. Root's environment may name a
/// folder of another user, so it does not count.
fn folders(user: u32, runtime: Option<OsString>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
    if user == 0 {
        folders.push(PathBuf::from("/run").join(FOLDER));
    }
    folders.extend(runtime.filter(|_| user != 0).map(|runtime| runtime.join(FOLDER)));
    folders.push(PathBuf::from(format!("/run/user/{user}")).join(FOLDER));
    folders.push(PathBuf::from(format!("/tmp/{FOLDER}-{user}")));
    folders
}

fn runtime() -> Option<OsString> {
    std::env::var_os("XDG_RUNTIME_DIR")
}

/// Opens a folder that is `user`'s and that no other user can enter (law 1). The filesystem that it
/// is in is not asked for anything but the name.
fn open_folder(path: &Path, user: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&folder, "", flags, StatxFlags::MODE | StatxFlags::UID)?;
    if stat.stx_uid == user && stat.stx_mode & 0o777 & !0o700 == 0 {
        return Ok(folder);
    }
    Err(not_alone(path))
}

fn not_alone(path: &Path) -> io::Error {
    let why = format!("{} is not this user's alone", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Makes the folder, or sees that it is `user`'s and nobody else can enter it.
fn make_folder(path: &Path, user: u32) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    match open_folder(path, user) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => {
            Err(not_alone(path))
        }
        opened => opened.map(drop),
    }
}

/// The user at the other end.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(socket_peercred(stream)?.uid.as_raw())
}

/// A path of the volume's, without the slashes at its ends.
pub(crate) fn path(mut bytes: Vec<u8>) -> PathBuf {
    while bytes.last() == Some(&b'/') {
        bytes.pop();
    }
    let slashes = bytes.iter().take_while(|byte| **byte == b'/').count();
    OsString::from_vec(bytes.split_off(slashes)).into()
}

/// Writes a byte that comes with a descriptor, before the answer.
fn send_descriptor(stream: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(stream, &[IoSlice::new(b" ")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Reads the byte that may come with a descriptor. It is part of the answer where none comes.
fn receive_descriptor(stream: &UnixStream, until: Instant) -> io::Result<(u8, Option<OwnedFd>)> {
    stream.set_read_timeout(Some(time_left(until)?))?;
    let mut byte = [0; 1];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
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

/// Writes a line, within the time.
fn send(stream: &mut UnixStream, line: &impl Serialize, until: Instant) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
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

/// Reads a line of at most `bytes_max`, within the time.
fn receive(stream: &mut UnixStream, bytes_max: usize, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    loop {
        stream.set_read_timeout(Some(time_left(until)?))?;
        let read = match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => &piece[..read],
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
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn questions_and_answers_are_written_as_the_header_says() {
        let check = |question: &Question, want: &str| {
            assert_eq!(serde_json::to_string(question).unwrap(), want);
            assert_eq!(&serde_json::from_str::<Question>(want).unwrap(), question);
        };
        check(&Question::Stats { form: Form::Text }, r#"{"ask":"stats","as":"text"}"#);
        check(&Question::Switches, r#"{"ask":"switches"}"#);
        let (key, value) = ("nosec".to_owned(), "off".to_owned());
        let set = r#"{"ask":"set","key":"nosec","value":"off"}"#;
        check(&Question::Set { key, value }, set);
        let error = Answer::Error("why".to_owned());
        assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"error":"why"}"#);
    }

    #[test]
    fn root_has_its_folder_in_run_and_others_in_their_own() {
        let first =
            |user, runtime: Option<&str>| folders(user, runtime.map(OsString::from)).remove(0);
        assert_eq!(first(0, Some("/run/user/0")), Path::new("/run/butternut"));
        assert_eq!(first(7, Some("/x")), Path::new("/x/butternut"));
        let of_root = folders(0, Some("/run/user/7".into()));
        assert!(of_root.iter().all(|folder| !folder.starts_with("/run/user/7")), "{of_root:?}");
        for runtime in [None, Some("relative"), Some("")] {
            assert_eq!(first(7, runtime), Path::new("/run/user/7/butternut"));
        }
        assert_eq!(folders(7, None).pop().unwrap(), Path::new("/tmp/butternut-7"));
    }

    #[test]
    fn a_folder_that_others_can_enter_is_not_used() {
        let user = rustix::process::geteuid().as_raw();
        let scratch = tempfile::tempdir().unwrap();
        let (own, open) = (scratch.path().join("own"), scratch.path().join("open"));
        make_folder(&own, user).unwrap();
        make_folder(&own, user).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        std::fs::DirBuilder::new().mode(0o755).create(&open).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let file = scratch.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [&open, &link, &file] {
            let error = make_folder(path, user).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{}", path.display());
        }
        assert!(make_folder(&own, user + 1).is_err(), "another user's");
        assert!(make_folder(&scratch.path().join("a/b"), user).is_err());
    }

    #[test]
    fn lines_end_and_have_a_limit_and_a_time() {
        let soon = || Instant::now() + Duration::from_millis(200);
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"one\ntwo").unwrap();
        assert_eq!(receive(&mut ours, 3, soon()).unwrap(), b"one");
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"four\n").unwrap();
        let kind = |error: io::Error| error.kind();
        assert_eq!(receive(&mut ours, 3, soon()).map_err(kind), Err(io::ErrorKind::InvalidData));
        let waited = receive(&mut ours, 3, soon()).map_err(kind).unwrap_err();
        assert!([io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&waited), "{waited}");
        drop(theirs);
        assert_eq!(receive(&mut ours, 3, soon()).map_err(kind), Err(io::ErrorKind::UnexpectedEof));
    }
}
