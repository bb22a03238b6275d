//! The life of a mount: made, served, gone.
//!
//! ```text
//! mount() -> Mounted -- start() -> Serving -- wait() -> unmounted -> committed -> released
//!                                                  \-> cut off   -> committed -> process ends
//! ```
//!
//! 1. No error leaves a dead mount behind: a mount that is not served any more is detached.
//! 2. The thread that calls `wait` answers no requests, so that it can return while others wait
//!    for one.
//! 3. Cutting off loses nothing that was acknowledged before: the kernel sends the pages that it
//!    holds back for open files, and then the filesystem is committed. (A file that is closed has
//!    had its pages sent.)
//!
//! A mount of this kind is gone for the kernel before its last commit: unmount, and then wait for
//! the process to end. To hear of errors, ask for [`SYNC_XATTR`] before.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use butternut::{Error, Filesystem};

use crate::attach::{self, Detach};
use crate::connection::{self, Worker};
use crate::door::{Door, Manner, Report};
use crate::near::Callers;
use crate::options::Options;
use crate::pages;
use crate::share::Shares;
use crate::turn::Turn;
use crate::whole::{Rights, Whole};

/// An extended attribute that every file of the mount answers, and none lists: the process that
/// serves it. `butternut umount` waits for that process to end. The name is in no namespace, so
/// it hides nothing that a volume may hold.
pub const DAEMON_XATTR: &str = "butternut.daemon";

/// Another: it answers when everything that the process was told is down on the devices, or with
/// the error. The kernel does not tell the process of `sync(2)`.
pub const SYNC_XATTR: &str = "butternut.sync";

/// And a third: how many writes from the kernel's cache have failed so far. A program hears of
/// such an error from `close` or `fsync`, and `syncfs` tells it again.
pub const LOST_XATTR: &str = "butternut.lost";

/// Why there is no mount, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    #[error("{} is not a directory", path.display())]
    NotDirectory { path: PathBuf },
    #[error("{}", path.display())]
    Mountpoint {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("/dev/fuse cannot be opened")]
    NoFuse(#[source] io::Error),
    #[error("the system refuses the mount")]
    Refused(#[source] io::Error),
    #[error("the connection to the kernel broke")]
    Served(#[source] io::Error),
    #[error("the last changes could not be written")]
    Closed(#[source] Error),
}

/// A mount that the kernel knows and whose process has yet to serve it. It may have no place until
/// then.
pub struct Mounted {
    door: Arc<Door>,
    worker: Worker,
    attached: Attached,
    /// The directory of the whole that is to have a place, and what it may have there.
    place: (PathBuf, Rights),
    shares: Arc<Shares>,
    all_wait: bool,
    events: (Sender<Event>, Receiver<Event>),
}

/// A mount whose requests are answered.
pub struct Serving {
    door: Arc<Door>,
    attached: Attached,
    threads: Vec<JoinHandle<()>>,
    events: Receiver<Event>,
}

/// Ends a mount from another thread.
pub struct Unmounter {
    door: Weak<Door>,
    device: Arc<OwnedFd>,
    mountpoint: PathBuf,
    events: Sender<Event>,
}

/// What ends the serving of a mount.
enum Event {
    WorkerEnded(io::Result<()>),
    CutOff(Result<(), FuseError>),
}

/// A mount that is detached when this is dropped, unless it is gone (law 1).
struct Attached {
    device: Arc<OwnedFd>,
    mountpoint: PathBuf,
    whole: Option<Arc<Whole>>,
    /// Something of this mount is at the mount point.
    has_place: bool,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            whole.release();
        }
        if !self.has_place {
            return;
        }
        // An error before this one is the one to tell.
        attach::detach(&self.device, &self.mountpoint, Detach::Lazily).unwrap_or_default();
    }
}

/// Mounts `filesystem` on a directory. `report` is called once, if writing fails for good.
pub fn mount(
    filesystem: Filesystem,
    mountpoint: &Path,
    options: &Options,
    report: Report,
) -> Result<Mounted, FuseError> {
    let path = mountpoint.to_path_buf();
    let place = mountpoint
        .canonicalize()
        .map_err(|source| FuseError::Mountpoint { path: path.clone(), source })?;
    if !place.is_dir() {
        return Err(FuseError::NotDirectory { path });
    }
    if let Err(error) = std::fs::metadata("/dev/fuse") {
        return Err(FuseError::NoFuse(error));
    }
    let manner = Manner {
        checks_permissions: options.permissions(),
        is_writable: options.is_writable,
        caching: options.caching,
        report,
    };
    let attached = attach_at(place, options).map_err(FuseError::Refused)?;
    let device = Arc::clone(&attached.device);
    let root = match (&options.whole, &attached.whole) {
        (Some((top, _)), Some(_)) => *top,
        _ => filesystem.root(),
    };
    let door = Arc::new(Door::new(filesystem, root, manner, Arc::clone(&device)));
    let greeted = device.try_clone().and_then(|own| {
        let mut worker = Worker::new(own);
        worker.negotiate(&door)?;
        Ok(worker)
    });
    let worker = greeted.map_err(FuseError::Refused)?;
    let Options { threads, all_wait, .. } = *options;
    let shares = Arc::new(Shares::new(threads));
    let below = options.whole.as_ref().map(|(_, below)| below.clone()).unwrap_or_default();
    let rights = Rights::from(options);
    let place = (below, rights);
    Ok(Mounted { door, worker, attached, place, shares, all_wait, events: channel() })
}

impl Mounted {
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            door: Arc::downgrade(&self.door),
            device: Arc::clone(&self.attached.device),
            mountpoint: self.attached.mountpoint.clone(),
            events: self.events.0.clone(),
        }
    }

    /// Starts to answer requests. When this returns, the mount is at its mount point.
    ///
    /// # Errors
    /// Threads cannot be started, or the directory cannot be mounted there. Then no mount is left.
    pub fn start(self) -> Result<Serving, FuseError> {
        let Self { door, worker, mut attached, place, shares, all_wait, events } = self;
        let (sender, events) = events;
        let turn = if all_wait {
            None
        } else {
            Some(Arc::new((Turn::default(), Callers::new().map_err(FuseError::Served)?)))
        };
        let mut workers = vec![worker];
        for _ in 1..shares.threads() {
            workers.push(workers[0].another().map_err(FuseError::Served)?);
        }
        let mut threads = Vec::new();
        for mut worker in workers {
            let (door, turn) = (Arc::clone(&door), turn.clone());
            let shares = Arc::clone(&shares);
            let ended = Ended(Some(sender.clone()));
            let run = move || ended.with(worker.serve(&door, &shares, turn.as_deref()));
            let named = thread::Builder::new().name("butternut-fuse".into());
            threads.push(named.spawn(run).map_err(FuseError::Served)?);
        }
        if let Some(whole) = attached.whole.clone() {
            let (below, rights) = place;
            let placed = whole.clone_of(&below).and_then(|clone| {
                clone.place(&attached.mountpoint, rights)?;
                attached.has_place = true;
                whole.watch()
            });
            placed.map_err(FuseError::Refused)?;
        }
        pages::raise_limits(&attached.mountpoint);
        Ok(Serving { door, attached, threads, events })
    }
}

impl Serving {
    /// The mount of the whole volume, from which it can be mounted at other places.
    pub fn whole(&self) -> Option<Arc<Whole>> {
        self.attached.whole.clone()
    }

    /// Waits until the mount is gone, however that comes; then the filesystem is committed and
    /// closed, and with it its devices. Returns earlier where it is cut off: then the process must
    /// end, because threads of the mount live on.
    ///
    /// # Errors
    /// The connection broke, or the last changes could not be written.
    pub fn wait(self) -> Result<(), FuseError> {
        let Self { door, attached, threads, events } = self;
        let mut served = Ok(());
        for _ in 0..threads.len() {
            match events.recv() {
                Ok(Event::WorkerEnded(ended)) => served = served.and(ended),
                Ok(Event::CutOff(committed)) => return committed,
                Err(_) => break,
            }
        }
        for thread in threads {
            // How it ended has been heard.
            thread.join().unwrap_or_default();
        }
        drop(attached);
        let closed = match Arc::into_inner(door) {
            Some(door) => door.close(),
            None => Ok(()),
        };
        served.map_err(FuseError::Served)?;
        closed.map_err(FuseError::Closed)
    }
}

/// Mounts a connection, at no place where the volume may have several.
fn attach_at(mountpoint: PathBuf, options: &Options) -> io::Result<Attached> {
    if options.whole.is_some() {
        let device = connection::open()?;
        // An older kernel has no such mounts, or cannot clone them: one place is what there is.
        if let Ok(whole) = Whole::mount(&device, options) {
            let (device, whole) = (Arc::new(device), Some(Arc::new(whole)));
            return Ok(Attached { device, mountpoint, whole, has_place: false });
        }
    }
    let device = Arc::new(attach::attach(&mountpoint, options)?);
    Ok(Attached { device, mountpoint, whole: None, has_place: true })
}

/// Tells how a worker's thread has ended, also by a panic.
struct Ended(Option<Sender<Event>>);

impl Ended {
    fn with(mut self, served: io::Result<()>) {
        if let Some(sender) = self.0.take() {
            // Where the mount was cut off, the receiver is gone.
            sender.send(Event::WorkerEnded(served)).unwrap_or_default();
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let panicked = Err(io::Error::other("a thread panicked"));
            sender.send(Event::WorkerEnded(panicked)).unwrap_or_default();
        }
    }
}

impl Unmounter {
    /// Unmounts. Where the mount is gone already, nothing is done.
    pub fn unmount(&self) -> io::Result<()> {
        attach::detach(&self.device, &self.mountpoint, Detach::Now)
    }

    /// Detaches the mount: files that are open stay usable, and no others can be opened. What was
    /// written so far is committed first.
    pub fn detach(&self) -> Result<(), FuseError> {
        let committed = self.commit();
        attach::detach(&self.device, &self.mountpoint, Detach::Lazily)
            .map_err(FuseError::Refused)?;
        committed
    }

    /// Ends the serving of a mount that is in use. What was written so far is committed first
    /// (law 3); open files are dead from then on.
    pub fn cut_off(&self) {
        let committed = self.commit();
        // Without a receiver, the serving has ended.
        self.events.send(Event::CutOff(committed)).unwrap_or_default();
    }

    /// Ends the serving at once, with a commit or without.
    pub fn abandon(&self) {
        self.events.send(Event::CutOff(Ok(()))).unwrap_or_default();
    }

    /// Commits what was written, also what the kernel holds back of it.
    fn commit(&self) -> Result<(), FuseError> {
        let Some(door) = self.door.upgrade() else { return Ok(()) };
        door.take_pages();
        door.commit().map_err(FuseError::Closed)
    }
}
