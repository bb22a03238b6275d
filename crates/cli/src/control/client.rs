//! Asking a mount: its socket found from the mount table, its answer waited for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use butternut_sys::mounts::Mount;
use rustix::io::Errno;
use serde_json::Value;

use super::{ANSWER_BYTES_MAX, Answer, Asked, Question, device_number, folders, open_folder, peer};
use super::{receive, receive_descriptor, runtime, send, socket_name, time_left};
use crate::failure::{Failure, plain};
use crate::output::text;

/// How long an answer may take, with the connecting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the mount that `target` is in; `command` is who wants to know.
pub(crate) fn ask(command: &str, target: &Path, question: &Question) -> Result<Value, Failure> {
    let shown = target.display();
    let nothing = |why: &str| Failure::new(command, format!("no butternut mount at {shown}{why}"));
    let numbers =
        device_number(target).map_err(|error| nothing(&format!(": {}", plain(&error))))?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(user) = user_of(&mounts, numbers) else {
        return Err(nothing("").cure("`findmnt -t fuse.butternut` lists what there is"));
    };
    answered(command, target, (user, numbers), question).map(|(value, _)| value)
}

/// Asks one mount of the mount table.
pub(crate) fn ask_mount(
    command: &str,
    mount: &Mount,
    question: &Question,
) -> Result<Value, Failure> {
    asked(command, mount, question).map(|(value, _)| value)
}

/// Asks a mount for a clone of a subvolume's directory.
pub(crate) fn ask_for_clone(
    command: &str,
    mount: &Mount,
    subvolume: Asked,
) -> Result<OwnedFd, Failure> {
    let (_, clone) = asked(command, mount, &Question::Clone { subvolume })?;
    clone.ok_or_else(|| Failure::new(command, "the serving process sent no mount"))
}

fn asked(
    command: &str,
    mount: &Mount,
    question: &Question,
) -> Result<(Value, Option<OwnedFd>), Failure> {
    let user = mount.option("user_id").and_then(|user| user.parse().ok());
    let user = user.ok_or_else(|| Failure::new(command, "the mount table names no user"))?;
    answered(command, &mount.mountpoint, (user, mount.device), question)
}

/// Sends a question to the socket of a user's mount, and waits for the answer, which may come with
/// a descriptor.
fn answered(
    command: &str,
    target: &Path,
    (user, numbers): (u32, (u32, u32)),
    question: &Question,
) -> Result<(Value, Option<OwnedFd>), Failure> {
    let shown = target.display();
    let failed = |why: String| Failure::new(command, format!("the mount at {shown}: {why}"));
    let until = Instant::now() + PATIENCE;
    let mut stream = connect_until(user, socket_name(numbers), until).map_err(|error| {
        let failure = failed(format!("no control socket: {}", plain(&error)));
        failure.cure(match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => "only its owner and root may ask it",
            _ => "its process said why when it was mounted, or has ended",
        })
    })?;
    let mut fd = None;
    let line = send(&mut stream, question, until)
        .and_then(|()| receive_descriptor(&stream, until))
        .and_then(|(first, descriptor)| {
            fd = descriptor;
            let mut line = vec![first];
            line.extend(receive(&mut stream, ANSWER_BYTES_MAX, until)?);
            Ok(line)
        });
    let line = line.map_err(|error| {
        let is_late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let late = || format!("no answer in {} s", PATIENCE.as_secs());
        failed(if is_late { late() } else { plain(&error) })
    })?;
    match serde_json::from_slice(&line) {
        Ok(Answer::Ok(value)) => Ok((harmless(value), fd)),
        Ok(Answer::Error(why)) => Err(Failure::new(command, why)),
        Err(error) => Err(failed(format!("its answer is not understood: {error}"))),
    }
}

/// Whose mount has the device number, if it is a mount of ours.
fn user_of(mounts: &str, (major, minor): (u32, u32)) -> Option<u32> {
    let wanted = format!("{major}:{minor}");
    mounts.lines().find_map(|line| {
        let (place, filesystem) = line.split_once(" - ")?;
        let mut fields = filesystem.split(' ');
        let is_ours = fields.next()? == "fuse.butternut";
        let is_it = is_ours && place.split(' ').nth(2)? == wanted;
        let options = fields.nth(1).filter(|_| is_it)?;
        options.split(',').find_map(|word| word.strip_prefix("user_id="))?.parse().ok()
    })
}

/// An answer whose strings drive no terminal: a user may serve a socket with a program of any kind.
fn harmless(answer: Value) -> Value {
    match answer {
        Value::String(text) => text::lines(&text).into(),
        Value::Array(values) => values.into_iter().map(harmless).collect(),
        Value::Object(pairs) => {
            let pairs = pairs.into_iter();
            pairs.map(|(key, value)| (text::one_line(&key), harmless(value))).collect()
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
    }
}

/// Connects within the time. A connect waits while the other end has too many to accept, and a
/// folder may be in a filesystem of its user's that does not answer: the thread that waits is left
/// to the end of the process.
fn connect_until(user: u32, name: String, until: Instant) -> io::Result<UnixStream> {
    let (told, answer) = mpsc::channel();
    let connecting = move || told.send(connect(user, &name)).unwrap_or_default();
    thread::Builder::new().name("butternut-ask".into()).spawn(connecting)?;
    answer.recv_timeout(time_left(until)?).unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))
}

/// Connects to the user's socket of that name. One that is not served by the user does not count.
fn connect(user: u32, name: &str) -> io::Result<UnixStream> {
    let own = rustix::process::geteuid().as_raw() == user;
    let mut found: Option<io::Error> = None;
    for folder in folders(user, runtime().filter(|_| own)) {
        match connect_in(&folder, user, name) {
            Ok((server, stream)) if server == user => return Ok(stream),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(found.get_or_insert(error)),
        }
    }
    Err(found.unwrap_or_else(|| Errno::NOENT.into()))
}

/// Connects to a socket in a folder, and returns the user at its other end. The folder is looked at
/// and used as one descriptor: its name may lead to another one by then.
fn connect_in(folder: &Path, user: u32, name: &str) -> io::Result<(u32, UnixStream)> {
    let folder = open_folder(folder, user)?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    let stream = UnixStream::connect(path)?;
    Ok((peer(&stream)?, stream))
}

#[test]
fn the_mount_table_tells_whose_a_mount_is() {
    let mounts = "22 1 0:5 / /mnt rw - ext4 /dev/a rw,user_id=3\n\
                  23 1 0:44 / /mnt ro shared:1 - fuse.butternut a\\040-\\040b.img ro,user_id=7\n\
                  24 1 0:45 / /m\\040x ro - fuse.butternut a.img ro,user_id=0,group_id=0\n";
    assert_eq!(user_of(mounts, (0, 45)), Some(0));
    assert_eq!(user_of(mounts, (0, 44)), Some(7));
    assert_eq!(user_of(mounts, (0, 5)), None, "not ours");
    assert_eq!(user_of(mounts, (0, 4)), None);
}
