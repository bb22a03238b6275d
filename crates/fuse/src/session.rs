//! The life of a mount: made, served, gone.
//!
//! ```text
//! mount() -> Mounted -- start() -> Serving -- wait() -> unmounted -> committed -> released
//!                                                  \-> cut off   -> committed -> process ends
//! ```
//!
//! 1. No error leaves a dead mount behind: a mount that is not served any more is detached, at
//!    every place of this mount namespace where no other filesystem is mounted on it.
//! 2. The thread that calls `wait` answers no requests, so that it can return while others wait
//!    for one.
//! 3. Cutting off loses nothing that was acknowledged before: the kernel sends the pages that it
//!    holds back for open files, and then the filesystem is committed. (A file that is closed has
//!    had its pages sent.)
//!
//! A mount of this kind is gone for the kernel before its last commit: unmount, and then wait for
//! the process to end. To hear of errors, ask for [`SYNC_XATTR`] before.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use butternut::{Error, FileId, Filesystem};
use butternut_sys::mounts::Mount;

use crate::attach;
use crate::connection::{self, Worker};
use crate::door::{Door, Manner, Report};
use crate::near::Callers;
use crate::options::Options;
use crate::pages;
use crate::share::Shares;
use crate::superblock::{Left, Superblock};
use crate::turn::Turn;
use crate::whole::{Rights, Whole};

/// How long the kernel may take to end a connection of which no mount is left.
const END_WAIT: Duration = Duration::from_millis(500);

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
    place: Place,
    shares: Arc<Shares>,
    all_wait: bool,
    events: (Sender<Event>, Receiver<Event>),
}

/// The place that a mount of a whole volume is to have.
struct Place {
    /// The directory that is shown there, and its path from the top of the volume.
    directory: (FileId, PathBuf),
    at: PathBuf,
    rights: Rights,
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
    superblock: Superblock,
    whole: Option<Arc<Whole>>,
    events: Sender<Event>,
}

/// What became of the places of a mount that was detached.
pub struct Detached {
    /// The places in this mount namespace, before.
    pub places: Vec<Mount>,
    /// Those of them that are left, each with the reason.
    pub left: Vec<Left>,
    /// The mount is still used: by open files, by places that are left, or by mounts in other mount
    /// namespaces.
    pub is_in_use: bool,
}

/// What ends the serving of a mount.
enum Event {
    WorkerEnded(io::Result<()>),
    CutOff(Result<(), FuseError>),
}

/// A mount that is detached when this is dropped, unless it is gone (law 1).
struct Attached {
    superblock: Superblock,
    whole: Option<Arc<Whole>>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            whole.release();
        }
        // An error before this one is the one to tell.
        self.superblock.detach();
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
    let attached = attach_at(&place, options).map_err(FuseError::Refused)?;
    let device = Arc::clone(&attached.superblock.connection);
    let shown = filesystem.root();
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
    let place = Place { directory: (shown, below), at: place, rights: Rights::from(options) };
    Ok(Mounted { door, worker, attached, place, shares, all_wait, events: channel() })
}

impl Mounted {
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            door: Arc::downgrade(&self.door),
            superblock: self.attached.superblock.clone(),
            whole: self.attached.whole.clone(),
            events: self.events.0.clone(),
        }
    }

    /// Starts to answer requests. When this returns, the mount is at its mount point.
    ///
    /// # Errors
    /// Threads cannot be started, or the directory cannot be mounted there. Then no mount is left.
    pub fn start(self) -> Result<Serving, FuseError> {
        let Self { door, worker, attached, place, shares, all_wait, events } = self;
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
            let (shown, below) = &place.directory;
            let placed = whole.clone_of(*shown, below).and_then(|clone| {
                clone.place(&place.at, place.rights)?;
                whole.watch()
            });
            placed.map_err(FuseError::Refused)?;
        }
        if let Some(device) = attached.superblock.device {
            pages::raise_limits(device);
        }
        Ok(Serving { door, attached, threads, events })
    }
}

impl Serving {
    /// The mount of the whole volume, from which it can be mounted at other places.
    pub fn whole(&self) -> Option<Arc<Whole>> {
        self.attached.whole.clone()
    }

    /// The device number (major, minor) that mount tables show; `None` where none could be read.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.attached.superblock.device
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
fn attach_at(mountpoint: &Path, options: &Options) -> io::Result<Attached> {
    if options.whole.is_some() {
        let connection = connection::open()?;
        // An older kernel has no such mounts, or cannot clone them: one place is what there is.
        if let Ok(whole) = Whole::mount(&connection, options) {
            let (connection, device) = (Arc::new(connection), Some(whole.device()));
            let superblock = Superblock { connection, device };
            return Ok(Attached { superblock, whole: Some(Arc::new(whole)) });
        }
    }
    let connection = Arc::new(attach::attach(mountpoint, options)?);
    Ok(Attached { superblock: Superblock::at(connection, mountpoint), whole: None })
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
    /// Unmounts every place of this mount namespace. Where the mount is gone already, nothing is
    /// done.
    ///
    /// # Errors
    /// A place is in use, or hidden by another mount. It is left then, and the others are gone.
    pub fn unmount(&self) -> io::Result<()> {
        self.superblock.unmount()
    }

    /// Detaches every place of this mount namespace that no other filesystem is mounted on: files
    /// that are open stay usable, and no others can be opened.
    pub fn detach(&self) -> Detached {
        let (places, left) = self.superblock.detach();
        if left.is_empty()
            && let Some(whole) = &self.whole
        {
            whole.release();
        }
        // Without a place, the kernel ends what is not used at once.
        let wait = if left.is_empty() { END_WAIT } else { Duration::ZERO };
        Detached { places, left, is_in_use: !self.superblock.ends_within(wait) }
    }

    /// The device number (major, minor) that mount tables show; `None` where none could be read.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.superblock.device
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
    ///
    /// # Errors
    /// Something cannot be written.
    pub fn commit(&self) -> Result<(), FuseError> {
        let Some(door) = self.door.upgrade() else { return Ok(()) };
        door.take_pages();
        door.commit().map_err(FuseError::Closed)
    }
}
