//! The end of the control socket that a mount serves: one thread, one connection after another.
//!
//! The thread keeps a handle on the filesystem, so it is ended before the volume counts as
//! released.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use butternut::{FileId, Filesystem, NamedSwitch, Stats};
use butternut_fuse::Whole;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use super::{Answer, Asked, Form, QUESTION_BYTES_MAX, Question, folders, path};
use super::{make_folder, peer, receive, runtime, send, send_descriptor, socket_name};
use crate::failure::{chain_and_cure, plain};

/// How long a question may take, and how long its answer: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The object id of the root directory of every subvolume.
const ROOT_DIRECTORY: u64 = 256;
/// What is left to wait after a failed accept: out of descriptors, most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// What is asked about.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) filesystem: Filesystem,
    /// What its devices are ([`crate::commands`] compares them).
    pub(crate) devices: Vec<String>,
    /// The options that it keeps ([`crate::commands`] compares them).
    pub(crate) settings: serde_json::Map<String, Value>,
    /// There where it can be mounted at further places.
    pub(crate) whole: Option<Arc<Whole>>,
}

/// The socket of one mount, served until this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// The inode of the socket, which its listener keeps from being given to another.
    inode: u64,
    thread: Option<JoinHandle<()>>,
    /// The thread ends when the other end of this is gone.
    end: Option<UnixStream>,
}

impl Server {
    /// Serves the mount with a device number, at the best place that there is.
    pub(crate) fn start(served: Served, device: Option<(u32, u32)>) -> io::Result<Self> {
        let name = socket_name(device.ok_or(io::ErrorKind::NotFound)?);
        let user = rustix::process::geteuid().as_raw();
        let mut first = None;
        for folder in folders(user, runtime()) {
            let path = folder.join(&name);
            match make_folder(&folder, user).and_then(|()| bind(&path)) {
                Ok((listener, inode)) => return Self::serve(served, listener, path, inode),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn serve(
        served: Served,
        listener: UnixListener,
        path: PathBuf,
        inode: u64,
    ) -> io::Result<Self> {
        let (end, ended) = UnixStream::pair()?;
        let run = move || accept(&served, &listener, &ended);
        let thread = thread::Builder::new().name("butternut-ctl".into()).spawn(run)?;
        Ok(Self { path, inode, thread: Some(thread), end: Some(end) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Before the thread ends: whoever connects from now on finds nothing.
        remove(&self.path, self.inode).unwrap_or_default();
        self.end = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

/// The folder of the sockets, locked for as long as the answer lives.
fn lock(path: &Path) -> io::Result<File> {
    let folder = File::open(path.parent().unwrap_or(path))?;
    flock(&folder, FlockOperation::LockExclusive)?;
    Ok(folder)
}

/// Removes the socket, but not that of the mount which has the device number by now: the kernel
/// gives it away before the process of the mount that had it ends.
fn remove(path: &Path, inode: u64) -> io::Result<()> {
    let _folder = lock(path)?;
    if std::fs::symlink_metadata(path)?.ino() == inode {
        std::fs::remove_file(path)
    } else {
        Ok(())
    }
}

fn bind(path: &Path) -> io::Result<(UnixListener, u64)> {
    let _folder = lock(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Nobody else can enter the folder meanwhile.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok((listener, std::fs::symlink_metadata(path)?.ino()))
}

fn accept(served: &Served, listener: &UnixListener, ended: &UnixStream) {
    loop {
        let (listening, ending) = (listener.as_fd(), ended.as_fd());
        let mut asked =
            [PollFd::new(&ending, PollFlags::IN), PollFd::new(&listening, PollFlags::IN)];
        // A signal, at the worst.
        if poll(&mut asked, None).is_err() {
            continue;
        }
        if !asked[0].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => answer_one(served, stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Answers the question of one connection. Whoever does not wait for the answer does without.
fn answer_one(served: &Served, mut stream: UnixStream) {
    let until = Instant::now() + PATIENCE;
    let own = rustix::process::geteuid().as_raw();
    let answer = match peer(&stream) {
        Ok(user) if user == own || user == 0 => {
            if stream.set_nonblocking(false).is_err() {
                return;
            }
            match receive(&mut stream, QUESTION_BYTES_MAX, until) {
                Ok(line) => match serde_json::from_slice(&line) {
                    Ok(Question::Clone { subvolume }) => give_clone(served, &stream, subvolume),
                    _ => answer(served, &line),
                },
                Err(error) => Answer::Error(format!("the question: {error}")),
            }
        }
        _ => Answer::Error("the mount is another user's".to_owned()),
    };
    send(&mut stream, &answer, Instant::now() + PATIENCE).unwrap_or_default();
}

/// Sends the clone of a subvolume's directory ahead of the answer.
fn give_clone(served: &Served, stream: &UnixStream, subvolume: Asked) -> Answer {
    let clone = directory(&served.filesystem, subvolume).and_then(|(id, directory)| {
        let whole = served.whole.as_ref().ok_or("the mount cannot be cloned")?;
        let shown = directory.display().to_string();
        whole.clone_of(id, &directory).map_err(|error| format!("{shown}: {}", plain(&error)))
    });
    let sent = clone
        .and_then(|clone| send_descriptor(stream, clone.as_fd()).map_err(|error| plain(&error)));
    sent.map_or_else(Answer::Error, |()| Answer::Ok(Value::Null))
}

/// The directory of a subvolume, and its path from the top of the volume. The path that was asked
/// for may go through symlinks, so the library's path of the subvolume is taken instead.
fn directory(filesystem: &Filesystem, subvolume: Asked) -> Result<(FileId, PathBuf), String> {
    let failed = |error: butternut::Error| chain_and_cure(&error);
    let id = match subvolume {
        Asked::Path(bytes) => filesystem.subvolume_at(&bytes).map_err(failed)?,
        Asked::Id(id) => id,
        Asked::Default => filesystem.default_subvolume().map_err(failed)?,
    };
    let found = filesystem.subvolume(id).map_err(failed)?.path;
    let found = found.ok_or_else(|| format!("the subvolume {id} is deleted"))?;
    Ok((FileId::new(id, ROOT_DIRECTORY), path(found)))
}

fn answer(served: &Served, line: &[u8]) -> Answer {
    let filesystem = &served.filesystem;
    match serde_json::from_slice(line) {
        Ok(Question::Stats { form }) => printed(&filesystem.stats(), form),
        Ok(Question::Switches) => {
            Answer::Ok(filesystem.switches().named().iter().map(object).collect())
        }
        Ok(Question::Set { key, value }) => {
            let mut switches = filesystem.switches();
            let set = switches.set_named(&key, &value).and_then(|()| switches.find_named(&key));
            match set {
                Ok(switch) => {
                    filesystem.set_switches(switches);
                    Answer::Ok(vec![object(&switch)].into())
                }
                Err(error) => Answer::Error(error.to_string()),
            }
        }
        Ok(Question::Volume) => Answer::Ok(json!({
            "devices": served.devices,
            "settings": served.settings,
            "is_writable": filesystem.is_writable(),
            "can_clone": served.whole.is_some(),
        })),
        Ok(Question::Clone { .. }) => Answer::Error("a clone takes a connection".to_owned()),
        Err(error) => Answer::Error(format!("the question is not understood: {error}")),
    }
}

fn printed(stats: &Stats, form: Form) -> Answer {
    match form {
        Form::Text => Answer::Ok(stats.to_string().into()),
        Form::Prometheus => Answer::Ok(stats.to_prometheus().into()),
        Form::Json => match serde_json::from_str(&stats.to_json()) {
            Ok(value) => Answer::Ok(value),
            Err(error) => Answer::Error(error.to_string()),
        },
    }
}

fn object(switch: &NamedSwitch) -> Value {
    let NamedSwitch { key, value, allowed, what } = switch;
    json!({ "key": key, "value": value, "allowed": allowed, "what": what })
}
