//! The server of the control socket, in the process of a mount: one thread serves one connection
//! after another. A request that waits for a device gets a thread of its own, so that the requests
//! of others are served meanwhile. When a clone has been sent, another thread waits for the end of
//! that connection.
//!
//! These threads hold a reference to the filesystem, except the last one, so they must end before
//! the volume is released.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use butternut::server::FilesystemExt;
use butternut::stats::Stats;
use butternut::{FileId, Filesystem, NamedTunable, SendOptions, SendProtocol};
use butternut_fuse::{DetachedMount, HiddenNames, Synchronous};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde_json::{Value, json};

use super::hold::{self, HeldDevice};
use super::quotas::QuotaReport;
use super::receive;
use super::resize::{ResizeRequest, Resized};
use super::stream::{Connection, PartWriter, UNMOUNTED, is_closed, is_ended};
use super::volume_report::VolumeReport;
use super::{Format, REQUEST_BYTES_MAX, Request, Response, SendRequest, SubvolumeSelector};
use super::{
    devices_name, directories, make_directory, path, peer, receive_line, runtime_dir, send,
    send_descriptor, socket_name,
};
use crate::failure::{chain, chain_with_hint, io_text};

/// Maximum time to receive a request, and to send its response. Other connections wait meanwhile.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed accept, which most likely failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of requests that wait for devices at the same time.
const DEVICE_REQUESTS_MAX: usize = 16;

/// Maximum number of streams that are sent and received, and of commits that are held, at the same
/// time. Their clients may be slow, so they are no part of the requests above.
const STREAMS_MAX: usize = 8;

/// The threads that answer requests.
#[derive(Debug, Default)]
struct Threads {
    requests: Vec<JoinHandle<()>>,
    streams: Vec<JoinHandle<()>>,
}

/// The mount that the requests are about.
#[derive(Debug)]
pub(crate) struct ServedMount {
    pub(crate) filesystem: Filesystem,
    /// Identities of its devices ([`crate::commands`] compares them).
    pub(crate) devices: Vec<String>,
    /// Their absolute paths, and those of seeds.
    pub(crate) paths: Vec<PathBuf>,
    /// Their absolute paths, and where the volume begins in each.
    pub(crate) volume: Vec<HeldDevice>,
    /// Options that are fixed while it is mounted ([`crate::commands`] compares them).
    pub(crate) settings: serde_json::Map<String, Value>,
    /// Changed by a remount.
    pub(crate) synchronous: Synchronous,
    /// The volume is what send streams make.
    pub(crate) is_stream: bool,
    /// Set if the volume can be mounted at more mount points.
    pub(crate) whole: Option<Arc<DetachedMount>>,
    /// Set while a thread resizes the volume.
    pub(crate) is_resizing: AtomicBool,
    /// The subvolumes that are being received.
    pub(crate) hidden_names: HiddenNames,
}

impl ServedMount {
    /// Resizes the volume, unless another thread does.
    fn resize(&self, request: ResizeRequest) -> Result<Resized, String> {
        if self.is_resizing.swap(true, Ordering::AcqRel) {
            return Err("another resize of the volume has not ended yet".to_owned());
        }
        let resized = request.apply(&self.filesystem, &self.volume);
        self.is_resizing.store(false, Ordering::Release);
        resized
    }
}

/// The control socket of one mount. It is served until the value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// The file that names the devices.
    devices: PathBuf,
    /// Inode number of the socket. It is not reused while the listener is open.
    inode: u64,
    thread: Option<JoinHandle<()>>,
    /// The thread ends when this end of a socket pair is closed.
    end: Option<UnixStream>,
}

impl Server {
    /// Starts the server for the mount with a device number, in the first directory that can be
    /// used.
    ///
    /// # Errors
    /// Fails if no socket can be created, with the error of the preferred directory.
    pub(crate) fn start(served: ServedMount, device: Option<(u32, u32)>) -> io::Result<Self> {
        let device = device.ok_or(io::ErrorKind::NotFound)?;
        let (name, devices) = (socket_name(device), devices_name(device));
        let user = rustix::process::geteuid().as_raw();
        let mut first = None;
        for directory in directories(user, runtime_dir()) {
            let path = directory.join(&name);
            let devices = directory.join(&devices);
            match make_directory(&directory, user).and_then(|()| bind(&path, &devices)) {
                Ok((listener, inode)) => {
                    let names = serde_json::to_vec(&served.devices)?;
                    // Only root mounts a volume again. Without the file, it requests the devices
                    // from this process.
                    if user == 0 {
                        std::fs::write(&devices, names).unwrap_or_default();
                    }
                    return Self::serve(served, listener, (path, devices), inode);
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn serve(
        served: ServedMount,
        listener: UnixListener,
        (path, devices): (PathBuf, PathBuf),
        inode: u64,
    ) -> io::Result<Self> {
        let (end, ended) = UnixStream::pair()?;
        let run = move || accept(&Arc::new(served), &listener, &ended);
        let thread = thread::Builder::new().name("butternut-ctl".into()).spawn(run)?;
        Ok(Self { path, devices, inode, thread: Some(thread), end: Some(end) })
    }
}

impl Server {
    /// Removes the socket without joining the thread, which may be blocked on a device.
    pub(crate) fn abandon_thread(mut self) {
        self.thread = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Before the thread ends: clients that connect from now on find no socket.
        remove(&self.path, &self.devices, self.inode).unwrap_or_default();
        self.end = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

/// Opens and locks the directory of the sockets. Dropping the file unlocks it.
fn lock(path: &Path) -> io::Result<File> {
    let directory = File::open(path.parent().unwrap_or(path))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Removes the socket and the file of the devices, unless a later mount has replaced them: the
/// kernel may reuse the device number of a mount before its process ends.
fn remove(path: &Path, devices: &Path, inode: u64) -> io::Result<()> {
    let _lock = lock(path)?;
    if std::fs::symlink_metadata(path)?.ino() == inode {
        std::fs::remove_file(devices).unwrap_or_default();
        std::fs::remove_file(path)
    } else {
        Ok(())
    }
}

/// Creates the socket, in place of a stale one and its file of devices.
fn bind(path: &Path, devices: &Path) -> io::Result<(UnixListener, u64)> {
    let _lock = lock(path)?;
    for stale in [devices, path] {
        match std::fs::remove_file(stale) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let listener = UnixListener::bind(path)?;
    // No other user can enter the directory meanwhile.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok((listener, std::fs::symlink_metadata(path)?.ino()))
}

fn accept(served: &Arc<ServedMount>, listener: &UnixListener, ended: &UnixStream) {
    let mut threads = Threads::default();
    loop {
        let (listening, ending) = (listener.as_fd(), ended.as_fd());
        let mut events =
            [PollFd::new(&ending, PollFlags::IN), PollFd::new(&listening, PollFlags::IN)];
        // Interrupted by a signal.
        if poll(&mut events, None).is_err() {
            continue;
        }
        if !events[0].revents().is_empty() {
            break;
        }
        match listener.accept() {
            Ok((stream, _)) => serve_connection(served, stream, ended, &mut threads),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
    for thread in threads.requests.into_iter().chain(threads.streams) {
        thread.join().unwrap_or_default();
    }
}

/// Answers the request of one connection, or starts a thread that does. A response that cannot be
/// sent is dropped.
fn serve_connection(
    served: &Arc<ServedMount>,
    mut stream: UnixStream,
    ended: &UnixStream,
    threads: &mut Threads,
) {
    let until = Instant::now() + TIMEOUT;
    let own = rustix::process::geteuid().as_raw();
    let answer = match peer(&stream) {
        Ok(user) if user == own || user == 0 => {
            if stream.set_nonblocking(false).is_err() {
                return;
            }
            match receive_line(&mut stream, REQUEST_BYTES_MAX, until) {
                Ok(line) => match serde_json::from_slice::<Request>(&line) {
                    Ok(request @ (Request::Send(_) | Request::Receive(_) | Request::Hold)) => {
                        threads.streams.retain(|thread| !thread.is_finished());
                        if threads.streams.len() < STREAMS_MAX {
                            let thread = serve_stream_in_thread(served, stream, request, ended);
                            return threads.streams.extend(thread);
                        }
                        let why = "streams are being sent and received already";
                        Response::Error(format!("{STREAMS_MAX} {why}"))
                    }
                    Ok(request) if request.waits_for_device() => {
                        threads.requests.retain(|thread| !thread.is_finished());
                        if threads.requests.len() < DEVICE_REQUESTS_MAX {
                            let thread = serve_in_thread(served, stream, request);
                            return threads.requests.extend(thread);
                        }
                        Response::Error("too many requests wait for a device".to_owned())
                    }
                    Ok(request) => answer(served, request),
                    Err(error) => Response::Error(format!("the request cannot be parsed: {error}")),
                },
                Err(error) => Response::Error(format!("the request: {error}")),
            }
        }
        _ => Response::Error("the mount belongs to another user".to_owned()),
    };
    send(&mut stream, &answer, Instant::now() + TIMEOUT).unwrap_or_default();
}

/// Starts a thread that answers a request. Without a thread, the connection is closed.
fn serve_in_thread(
    served: &Arc<ServedMount>,
    mut stream: UnixStream,
    request: Request,
) -> Option<JoinHandle<()>> {
    let served = Arc::clone(served);
    let run = move || {
        if let Request::Clone { subvolume } = request {
            return serve_clone(&served, stream, subvolume);
        }
        let answer = answer(&served, request);
        send(&mut stream, &answer, Instant::now() + TIMEOUT).unwrap_or_default();
    };
    thread::Builder::new().name("butternut-req".into()).spawn(run).ok()
}

/// Starts a thread that sends or receives a stream. Without a thread, the connection is closed.
fn serve_stream_in_thread(
    served: &Arc<ServedMount>,
    stream: UnixStream,
    request: Request,
    ended: &UnixStream,
) -> Option<JoinHandle<()>> {
    let (served, ended) = (Arc::clone(served), ended.try_clone().ok()?);
    let run = move || {
        if let Ok(connection) = Connection::new(&stream, &ended) {
            let filesystem = &served.filesystem;
            // A response that cannot be sent is dropped.
            if request == Request::Hold {
                return hold::serve(filesystem, &served.volume, connection).unwrap_or_default();
            }
            if let Request::Receive(request) = request {
                let names = &served.hidden_names;
                return receive::serve(filesystem, names, request, connection).unwrap_or_default();
            }
        }
        let Request::Send(request) = request else { return };
        let Ok(mut to) = PartWriter::new(&stream, &ended) else { return };
        let goes_on = || !is_ended(&ended) && !is_closed(&stream);
        let sent = send_subvolume(&served.filesystem, request, &mut to, &goes_on);
        let response = match sent {
            Ok(()) => Response::Ok(Value::Null),
            Err(_) if is_ended(&ended) => Response::Error(UNMOUNTED.to_owned()),
            Err(why) => Response::Error(why),
        };
        // A response that cannot be sent is dropped.
        to.finish(&response).unwrap_or_default();
    };
    thread::Builder::new().name("butternut-strm".into()).spawn(run).ok()
}

fn send_subvolume(
    filesystem: &Filesystem,
    request: SendRequest,
    to: &mut PartWriter<'_>,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), String> {
    let failed = |error: butternut::Error| chain_with_hint(&error);
    let SendRequest { subvolume, mut parent, clone_sources, version, no_data, compressed_data } =
        request;
    if parent.is_none() && !clone_sources.is_empty() {
        let best = filesystem.best_parent(subvolume, &clone_sources).map_err(failed)?;
        let none = "no clone source is a snapshot of the same subvolume (name the parent with -p)";
        parent = Some(best.ok_or(none)?);
    }
    let protocol = if version == 1 { SendProtocol::One } else { SendProtocol::Two };
    let options = SendOptions::default()
        .parent(parent)
        .clone_sources(clone_sources)
        .protocol(protocol)
        .no_data(no_data)
        .compressed_data(compressed_data);
    filesystem.send_while(subvolume, &options, to, goes_on).map_err(failed)
}

/// Responds with a clone. The detached mount of the volume stays open until the client closes the
/// connection, which it does when it has attached the clone or has failed to.
fn serve_clone(served: &ServedMount, mut stream: UnixStream, subvolume: SubvolumeSelector) {
    let (response, pending) = match served.whole.as_ref().map(DetachedMount::begin_clone) {
        Some(Some(pending)) => (send_clone(served, &stream, subvolume), Some(pending)),
        Some(None) => (Response::Error("the volume is being unmounted".to_owned()), None),
        None => (Response::Error("the mount cannot be cloned".to_owned()), None),
    };
    let sent = send(&mut stream, &response, Instant::now() + TIMEOUT);
    let (Ok(()), Response::Ok(_), Some(pending)) = (sent, response, pending) else { return };
    let run = move || {
        // The client sends no more data, so the read returns when it closes the connection.
        stream.set_read_timeout(None).unwrap_or_default();
        io::copy(&mut stream, &mut io::sink()).map(drop).unwrap_or_default();
        drop(pending);
    };
    // If the thread cannot be started, the volume may be released before the clone is attached.
    thread::Builder::new().name("butternut-clone".into()).spawn(run).map(drop).unwrap_or_default();
}

/// Sends a detached clone of the directory of a subvolume, before the response.
fn send_clone(served: &ServedMount, stream: &UnixStream, subvolume: SubvolumeSelector) -> Response {
    let clone = directory(&served.filesystem, subvolume).and_then(|(id, directory)| {
        let whole = served.whole.as_ref().ok_or("the mount cannot be cloned")?;
        whole.clone_directory(id, &directory).map_err(|error| {
            let why = chain(&error);
            let is_top_level = directory.as_os_str().is_empty();
            if is_top_level { why } else { format!("{}: {why}", directory.display()) }
        })
    });
    let sent = clone
        .and_then(|clone| send_descriptor(stream, clone.as_fd()).map_err(|error| io_text(&error)));
    sent.map_or_else(Response::Error, |()| Response::Ok(Value::Null))
}

/// Returns the directory of a subvolume, and its path from the top level. The path is the
/// library's path of the subvolume, not the requested one.
fn directory(
    filesystem: &Filesystem,
    subvolume: SubvolumeSelector,
) -> Result<(FileId, PathBuf), String> {
    let failed = |error: butternut::Error| chain_with_hint(&error);
    let id = match subvolume {
        SubvolumeSelector::Path(bytes) => filesystem.subvolume_at(&bytes).map_err(failed)?,
        SubvolumeSelector::Id(id) => id,
        SubvolumeSelector::Default => filesystem.default_subvolume().map_err(failed)?,
    };
    let found = filesystem.subvolume(id).map_err(failed)?;
    let why = if found.deleted { "is deleted" } else { "has too long a path" };
    let found = found.path.ok_or_else(|| format!("subvolume {id} {why}"))?;
    Ok((FileId::root_of(id), path(found)))
}

fn answer(served: &ServedMount, request: Request) -> Response {
    let filesystem = &served.filesystem;
    match request {
        Request::Stats { form } => printed(&filesystem.stats(), form),
        Request::Tunables => {
            Response::Ok(filesystem.tunables().named().iter().map(object).collect())
        }
        Request::Set { key, value } => {
            let mut tunables = filesystem.tunables();
            let set = tunables.set_named(&key, &value).and_then(|()| tunables.find_named(&key));
            match set {
                Ok(tunable) => {
                    filesystem.set_tunables(tunables);
                    Response::Ok(vec![object(&tunable)].into())
                }
                Err(error) => Response::Error(error.to_string()),
            }
        }
        Request::Volume => Response::Ok(json!({
            "devices": served.devices,
            "paths": served.paths.iter().filter_map(|path| path.to_str()).collect::<Vec<_>>(),
            "settings": served.settings,
            "is_writable": filesystem.is_writable(),
            "is_stream": served.is_stream,
            "can_clone": served.whole.is_some(),
        })),
        Request::Synchronous { is_on } => {
            served.synchronous.set(is_on);
            Response::Ok(Value::Null)
        }
        Request::Commit => match filesystem.sync() {
            Ok(()) => Response::Ok(Value::Null),
            Err(error) => {
                let why = chain_with_hint(&error);
                Response::Error(format!("the last changes could not be written: {why}"))
            }
        },
        Request::Quota { change } => change.apply(filesystem).map_or_else(
            |error| Response::Error(chain_with_hint(&error)),
            |()| Response::Ok(Value::Null),
        ),
        Request::Quotas { from } => {
            let page = QuotaReport::page(filesystem, from);
            response(page.map_err(|error| chain_with_hint(&error)))
        }
        Request::Report => {
            let report = VolumeReport::read(filesystem, &served.paths);
            response(report.map_err(|error| chain_with_hint(&error)))
        }
        Request::Label { label } => {
            let set = filesystem.set_label(&label).and_then(|()| filesystem.sync_names());
            response(set.map_err(|error| chain_with_hint(&error)))
        }
        Request::Resize(request) => response(served.resize(request)),
        Request::LogicalResolve(request) => response(request.answer(filesystem)),
        Request::Clone { .. } => {
            Response::Error("a clone can only be sent over a connection".to_owned())
        }
        Request::Send(_) | Request::Receive(_) | Request::Hold => {
            Response::Error("a stream needs a connection".to_owned())
        }
    }
}

/// Returns the response to a request with a result.
fn response(result: Result<impl Serialize, String>) -> Response {
    let value =
        result.and_then(|value| serde_json::to_value(value).map_err(|error| error.to_string()));
    value.map_or_else(Response::Error, Response::Ok)
}

fn printed(stats: &Stats, form: Format) -> Response {
    match form {
        Format::Text => Response::Ok(stats.to_string().into()),
        Format::Explained => Response::Ok(format!("{stats:#}").into()),
        Format::Prometheus => Response::Ok(stats.to_prometheus().into()),
        Format::Json => match serde_json::from_str(&stats.to_json()) {
            Ok(value) => Response::Ok(value),
            Err(error) => Response::Error(error.to_string()),
        },
    }
}

fn object(tunable: &NamedTunable) -> Value {
    let NamedTunable { key, value, allowed, what, .. } = tunable;
    json!({ "key": key, "value": value, "allowed": allowed, "what": what })
}
