//! The life of a mount: mounted, served, unmounted.
//!
//! ```text
//! mount() -> Mounted -- start() -> Serving -- wait() -> unmounted -> committed -> closed
//!                                                  \-> committed -> aborted: the process must end
//!                                                  \-> aborted: the process must end
//! ```
//!
//! 1. Neither an error nor an abort of the connection leaves a dead mount behind. A mount that is
//!    no longer served is detached from every mount point of this mount namespace on which no other
//!    filesystem is mounted. Then its connection is aborted: the end of the process would not end
//!    it while a thread waits in a notification.
//! 2. The thread that calls `wait` serves no requests, so `wait` can return while a worker is
//!    blocked in a request.
//! 3. [`Unmounter::last_commit`] loses nothing that was written before it: the kernel writes back
//!    the dirty pages of open files, and then the filesystem is committed. The pages of a closed
//!    file were written back when it was closed. [`Unmounter::commit`] does the same for a mount
//!    that goes on, except for stores to mappings on a mount that writes through (`door::unsent`).
//! 4. The thread that calls `wait` does no I/O on devices, so a mount can be aborted at any time.
//! 5. A mount that fails to start has served no program: the workers serve once all of them have
//!    started, and nothing can fail once the mount is attached. Otherwise a write could return, and
//!    be lost with the mount.
//!
//! The kernel removes a FUSE mount before the last commit. A program that unmounts must wait for
//! the process to end, and learns of errors only if it reads [`SYNC_XATTR`](crate::SYNC_XATTR)
//! before. For a mount of a block device ([`DeviceMount`]) the kernel waits for the last commit,
//! and the process writes nothing after it (`Door::destroy`).

pub(crate) mod attach;
mod attempt;
mod bdi;
pub(crate) mod detached_mount;
mod device_mount;
pub(crate) mod superblock;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use butternut::{Error, FileId, Filesystem};
use butternut_sys::mounts::Mount;

use crate::connection;
use crate::door::hidden_names::HiddenNames;
use crate::door::name_invalidations::NameInvalidations;
use crate::door::{Door, DoorOptions, Report};
use crate::errno::ErrnoResult;
use crate::options::{Options, Synchronous};
use crate::worker::Worker;
use crate::worker::cpu_affinity::CallerTracker;
use crate::worker::leader::Leadership;
use crate::worker::thread_limits::ThreadLimits;

pub use attach::{is_block_device_type, is_own_type};
pub use attempt::MountAttempt;
pub use detached_mount::{BLOCK_BYTES, ClonedMount, DetachedMount, MountPermissions, PendingClone};
pub use device_mount::DeviceMount;
pub use superblock::RemainingMount;
use superblock::Superblock;

/// How long the kernel may take to end a connection without mounts.
const END_WAIT: Duration = Duration::from_millis(500);

/// How long the close of a filesystem may take after an abort.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

/// The reason why a mount was not made, or has ended.
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
    NoDevice(#[source] io::Error),
    #[error("the mount failed")]
    MountFailed(#[source] io::Error),
    #[error("I/O on /dev/fuse failed")]
    Connection(#[source] io::Error),
    #[error("the last changes could not be written")]
    Commit(#[source] Error),
    #[error("data that the kernel had cached could not be written")]
    LostWrites,
    #[error("the mount was aborted without a commit")]
    Aborted,
}

/// A mount that the kernel has made and no thread serves yet. A detached mount has no mount point
/// until [`Mounted::start`].
pub struct Mounted {
    door: Arc<Door>,
    worker: Worker,
    guard: MountGuard,
    attempt: Arc<MountAttempt>,
    attach_point: AttachPoint,
    limits: Arc<ThreadLimits>,
    all_wait: bool,
    events: (Sender<Event>, Receiver<Event>),
}

/// Where a detached mount is attached first.
struct AttachPoint {
    /// The directory to attach, and its path from the top-level directory of the volume.
    directory: (FileId, PathBuf),
    permissions: MountPermissions,
}

/// A mount that worker threads serve.
pub struct Serving {
    door: Arc<Door>,
    guard: MountGuard,
    threads: Vec<JoinHandle<()>>,
    events: (Sender<Event>, Receiver<Event>),
}

/// Unmounts, commits or aborts a mount from another thread.
pub struct Unmounter {
    door: Weak<Door>,
    superblock: Superblock,
    detached: Option<Arc<DetachedMount>>,
    name_invalidations: NameInvalidations,
    events: Sender<Event>,
}

/// The result of [`Unmounter::detach`].
pub struct DetachOutcome {
    /// The mounts of this mount namespace before the call.
    pub mounts: Vec<Mount>,
    /// Those of them that are still there, each with the reason.
    pub remaining: Vec<RemainingMount>,
    /// Whether the superblock is still in use: by open files, by remaining mounts, or by mounts in
    /// other mount namespaces.
    pub is_in_use: bool,
}

/// What ends [`Serving::wait`].
enum Event {
    WorkerExited(io::Result<()>),
    /// The filesystem was committed and closed, after all workers had exited.
    Closed(Result<(), FuseError>),
    /// The mount was aborted after a commit.
    CommittedAndAborted(Result<(), FuseError>),
    Aborted,
}

/// Detaches a mount when it is dropped, unless the mount is gone already (law 1).
struct MountGuard {
    superblock: Superblock,
    detached: Option<Arc<DetachedMount>>,
}

impl MountGuard {
    fn of(connection: Arc<OwnedFd>, detached: DetachedMount) -> Self {
        let device = Some(detached.device());
        let detached = detached.of_connection(&connection);
        Self { superblock: Superblock { connection, device }, detached: Some(Arc::new(detached)) }
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if let Some(detached) = &self.detached {
            detached.release();
        }
        if self.superblock.ends_within(Duration::ZERO) {
            self.superblock.wait_for_forced_unmount();
        }
        // The error that led here is reported; one of the detaching is not.
        self.superblock.detach().map(drop).unwrap_or_default();
        // Without its control file, the connection ends with the process.
        self.superblock.abort().unwrap_or_default();
    }
}

/// Mounts `filesystem` on a directory. `report` is called once, when an error or a panic makes the
/// filesystem read-only.
///
/// # Errors
/// The mount point is not a directory, /dev/fuse is missing, or the kernel or `fusermount3` refuses
/// the mount.
pub fn mount(
    filesystem: Filesystem,
    mountpoint: &Path,
    options: &Options,
    report: Report,
) -> Result<Mounted, FuseError> {
    let target = mountpoint
        .canonicalize()
        .map_err(|source| FuseError::Mountpoint { path: mountpoint.to_path_buf(), source })?;
    mount_attempt(filesystem, MountAttempt::new(&target), None, options, report)
}

/// Mounts `filesystem` as [`mount`] does, on the directory of an attempt, which another thread can
/// end until [`Mounted::start`] returns. `device_mount` is the mount of a block device of the
/// volume that was made before the volume was opened.
///
/// # Errors
/// As of [`mount`].
pub fn mount_attempt(
    filesystem: Filesystem,
    attempt: Arc<MountAttempt>,
    device_mount: Option<DeviceMount>,
    options: &Options,
    report: Report,
) -> Result<Mounted, FuseError> {
    if let Some(mount) = &device_mount {
        mount.watch(&filesystem);
    }
    attempt.check().map_err(FuseError::MountFailed)?;
    let path = || attempt.mountpoint().to_path_buf();
    let meta = std::fs::metadata(attempt.mountpoint())
        .map_err(|source| FuseError::Mountpoint { path: path(), source })?;
    if !meta.is_dir() {
        return Err(FuseError::NotDirectory { path: path() });
    }
    if let Err(error) = std::fs::metadata("/dev/fuse") {
        return Err(FuseError::NoDevice(error));
    }
    let door_options = DoorOptions {
        checks_permissions: options.checks_permissions(),
        is_writable: options.is_writable,
        users_delete_subvolumes: options.users_delete_subvolumes,
        caching: options.caching,
        is_synchronous: Synchronous::new(options.is_synchronous),
        report,
    };
    let guard = open_mount(&attempt, device_mount, options).map_err(FuseError::MountFailed)?;
    let device = Arc::clone(&guard.superblock.connection);
    let root = filesystem.root();
    let filesystem = match (&options.top_level, &guard.detached) {
        (Some((top, _)), Some(_)) => filesystem.with_subvolume(top.subvolume),
        _ => filesystem,
    };
    let number = guard.superblock.device;
    let door = Arc::new(Door::new(filesystem, door_options, Arc::clone(&device), number));
    let negotiated = device.try_clone().and_then(|device| {
        let mut worker = Worker::new(device);
        worker.negotiate(&door)?;
        Ok(worker)
    });
    let worker = negotiated.map_err(FuseError::MountFailed)?;
    let Options { threads, all_wait, .. } = *options;
    let limits = Arc::new(ThreadLimits::new(threads));
    let below = options.top_level.as_ref().map(|(_, below)| below.clone()).unwrap_or_default();
    let attach_point =
        AttachPoint { directory: (root, below), permissions: MountPermissions::from(options) };
    Ok(Mounted { door, worker, guard, attempt, attach_point, limits, all_wait, events: channel() })
}

impl Mounted {
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            door: Arc::downgrade(&self.door),
            superblock: self.guard.superblock.clone(),
            detached: self.guard.detached.clone(),
            name_invalidations: self.door.name_invalidations(),
            events: self.events.0.clone(),
        }
    }

    /// Starts the worker threads. When this returns, the mount is at its mount point.
    ///
    /// # Errors
    /// A thread cannot be started, or the directory cannot be attached. No mount remains in that
    /// case, and no program has written to it (law 5).
    pub fn start(self) -> Result<Serving, FuseError> {
        let Self { door, worker, guard, attempt, attach_point, limits, all_wait, events } = self;
        let leadership = if all_wait {
            None
        } else {
            Some(Arc::new((
                Leadership::default(),
                CallerTracker::new().map_err(FuseError::Connection)?,
            )))
        };
        let mut workers = vec![worker];
        for _ in 1..limits.threads() {
            workers.push(workers[0].another().map_err(FuseError::Connection)?);
        }
        let mut starting = StartingWorkers::default();
        for mut worker in workers {
            let (door, leadership) = (Arc::clone(&door), leadership.clone());
            let limits = Arc::clone(&limits);
            let exit = WorkerExit(Some(events.0.clone()));
            let run = move || exit.report(worker.run(&door, &limits, leadership.as_deref()));
            starting.spawn(run).map_err(FuseError::Connection)?;
        }
        let finish = || if attempt.finish() { Ok(()) } else { Err(FuseError::Aborted) };
        let threads = if let Some(detached) = &guard.detached {
            // The threads serve the lookup of the directory. No program reaches them before.
            let threads = starting.serve();
            let mountpoint = attempt.mountpoint();
            attach_point.attach(detached, mountpoint).map_err(FuseError::MountFailed)?;
            finish()?;
            threads
        } else {
            finish()?;
            starting.serve()
        };
        if let Some(device) = guard.superblock.device {
            let detached = guard.detached.as_ref();
            bdi::raise_limits(device, detached.is_some_and(|it| it.is_of_block_device()));
        }
        Ok(Serving { door, guard, threads, events })
    }
}

impl AttachPoint {
    /// Attaches the first clone of a detached mount. Once it is attached, nothing can fail (law 5).
    fn attach(&self, detached: &Arc<DetachedMount>, mountpoint: &Path) -> io::Result<()> {
        let (root, below) = &self.directory;
        let pending = detached.begin_clone();
        let clone = detached.clone_directory(*root, below)?;
        // The pending clone keeps the detached mount open until the clone is in the mount table.
        detached.watch()?;
        clone.attach(mountpoint, self.permissions)?;
        detached.close_after_attach();
        drop(pending);
        Ok(())
    }
}

/// Worker threads that serve nothing yet (law 5). Dropping the value ends them.
#[derive(Default)]
struct StartingWorkers {
    /// Whether they serve, once that is decided.
    serves: Arc<OnceLock<bool>>,
    threads: Vec<JoinHandle<()>>,
}

impl StartingWorkers {
    fn spawn(&mut self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let serves = Arc::clone(&self.serves);
        let start = move || {
            if *serves.wait() {
                run();
            }
        };
        let builder = thread::Builder::new().name("butternut-fuse".into());
        self.threads.push(builder.spawn(start)?);
        Ok(())
    }

    fn serve(mut self) -> Vec<JoinHandle<()>> {
        self.serves.set(true).unwrap_or_default();
        std::mem::take(&mut self.threads)
    }
}

impl Drop for StartingWorkers {
    fn drop(&mut self) {
        // The first value counts.
        self.serves.set(false).unwrap_or_default();
        // They have ended before a mount is detached: fusermount3 needs one of their processes
        // where the user may have no more.
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_default();
        }
    }
}

impl Serving {
    /// Returns the detached mount of the volume, from which further mounts are cloned.
    pub fn detached_mount(&self) -> Option<Arc<DetachedMount>> {
        self.guard.detached.clone()
    }

    /// Returns the device number (major, minor) that mount tables show; `None` where it could not
    /// be read.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.guard.superblock.device
    }

    /// Returns whether the mount is synchronous, for the program that remounts it.
    pub fn synchronous(&self) -> Synchronous {
        self.door.synchronous()
    }

    /// Returns the names that programs do not see yet, for the program that makes them.
    pub fn hidden_names(&self) -> HiddenNames {
        self.door.hidden_names()
    }

    /// Waits until the mount is gone, then commits and closes the filesystem and its devices.
    ///
    /// Returns earlier when the mount is aborted. The process must end then, because threads of the
    /// mount are still running.
    ///
    /// # Errors
    /// I/O on /dev/fuse failed, the last changes could not be written, or the mount was aborted
    /// without a commit.
    pub fn wait(self) -> Result<(), FuseError> {
        let Self { door, guard, threads, events: (sender, events) } = self;
        let mut guard = Some(guard);
        let mut served = Ok(());
        let mut serving = threads.len();
        while serving > 0 {
            match events.recv() {
                Ok(Event::WorkerExited(exit)) => {
                    served = served.and(exit);
                    serving -= 1;
                    // An abort leaves the mounts. They are detached while other workers may still
                    // be blocked in a request.
                    drop(guard.take_if(|guard| guard.superblock.ends_within(Duration::ZERO)));
                }
                Ok(Event::Closed(_)) => {}
                Ok(Event::CommittedAndAborted(committed)) => {
                    // Aborts the connection, so the workers exit.
                    drop(guard);
                    release_aborted(door, (threads, serving), (&sender, &events));
                    return committed;
                }
                Ok(Event::Aborted) => return Err(FuseError::Aborted),
                Err(_) => break,
            }
        }
        for thread in threads {
            // A panic was received as an event already.
            thread.join().unwrap_or_default();
        }
        drop(guard);
        close_in_thread(door, &sender);
        loop {
            match events.recv() {
                Ok(Event::Closed(closed)) => {
                    return served.map_err(FuseError::Connection).and(closed);
                }
                Ok(Event::Aborted) => return Err(FuseError::Aborted),
                // The close commits at least what the aborting thread has committed.
                Ok(Event::CommittedAndAborted(_) | Event::WorkerExited(_)) => {}
                Err(_) => return served.map_err(FuseError::Connection),
            }
        }
    }
}

/// Closes the filesystem of a mount that was aborted after a commit, unless that takes longer than
/// [`RELEASE_WAIT`]. The end of the process would not release its devices while a thread waits in
/// the kernel: the memory of the process lives as long, and so do the rings that are mapped there,
/// with the files that are registered with them.
fn release_aborted(
    door: Arc<Door>,
    (threads, mut serving): (Vec<JoinHandle<()>>, usize),
    (sender, events): (&Sender<Event>, &Receiver<Event>),
) {
    let until = Instant::now() + RELEASE_WAIT;
    let mut left = Some((door, threads));
    loop {
        if serving == 0
            && let Some((door, threads)) = left.take()
        {
            for thread in threads {
                thread.join().unwrap_or_default();
            }
            close_in_thread(door, sender);
        }
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Event::WorkerExited(_)) => serving = serving.saturating_sub(1),
            Ok(Event::CommittedAndAborted(_)) => {}
            Ok(Event::Closed(_) | Event::Aborted) | Err(_) => return,
        }
    }
}

/// Closes the filesystem in a thread of its own (law 4), which sends [`Event::Closed`].
fn close_in_thread(door: Arc<Door>, events: &Sender<Event>) {
    let (give, take) = channel();
    let sender = events.clone();
    let run = move || take.recv().map_or((), |door| close(door, &sender));
    match thread::Builder::new().name("butternut-end".into()).spawn(run) {
        // Cannot fail: the thread does nothing before it has received the door.
        Ok(_) => give.send(door).unwrap_or_default(),
        Err(_) => close(door, events),
    }
}

/// Closes the filesystem and sends [`Event::Closed`], unless another thread also has a reference to
/// the door. A thread that commits for a signal may drop the last reference, and then it closes.
fn close(door: Arc<Door>, events: &Sender<Event>) {
    let Some(door) = Arc::into_inner(door) else { return };
    let closed = catch_unwind(AssertUnwindSafe(|| door.close().map_err(FuseError::Commit)));
    let panicked = || FuseError::Connection(io::Error::other("a thread panicked"));
    let closed = closed.unwrap_or_else(|_| Err(panicked()));
    // After an abort the receiver is gone.
    events.send(Event::Closed(closed)).unwrap_or_default();
}

/// Mounts a connection: detached where the volume may be mounted several times, otherwise on the
/// mount point.
fn open_mount(
    attempt: &MountAttempt,
    device_mount: Option<DeviceMount>,
    options: &Options,
) -> io::Result<MountGuard> {
    if let Some(made) = device_mount {
        return Ok(made.into_guard());
    }
    if options.top_level.is_some() {
        let connection = connection::open()?;
        // A kernel that cannot clone a detached mount gets a mount on the one mount point.
        if let Ok(detached) = DetachedMount::mount(&connection, options) {
            return Ok(MountGuard::of(Arc::new(connection), detached));
        }
    }
    let connection = Arc::new(attach::attach(attempt, options)?);
    let superblock = Superblock::at(connection, attempt.mountpoint());
    Ok(MountGuard { superblock, detached: None })
}

/// Reports how a worker thread has ended, also by a panic.
struct WorkerExit(Option<Sender<Event>>);

impl WorkerExit {
    fn report(mut self, served: io::Result<()>) {
        if let Some(sender) = self.0.take() {
            // After an abort the receiver is gone.
            sender.send(Event::WorkerExited(served)).unwrap_or_default();
        }
    }
}

impl Drop for WorkerExit {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let panicked = Err(io::Error::other("a thread panicked"));
            sender.send(Event::WorkerExited(panicked)).unwrap_or_default();
        }
    }
}

impl Unmounter {
    /// Unmounts every mount of this mount namespace. Does nothing where there is none.
    ///
    /// # Errors
    /// A mount is busy, or another mount hides it. It remains, and the others are unmounted. Or the
    /// mount table cannot be read.
    pub fn unmount(&self) -> io::Result<()> {
        self.superblock.unmount()
    }

    /// Detaches (`MNT_DETACH`) every mount of this mount namespace on which no other filesystem is
    /// mounted. Open files stay usable, and no further file can be opened.
    ///
    /// # Errors
    /// The mounts cannot be found, because the mount table cannot be read. None is detached.
    pub fn detach(&self) -> io::Result<DetachOutcome> {
        let (mounts, remaining) = self.superblock.detach()?;
        if remaining.is_empty()
            && let Some(detached) = &self.detached
        {
            detached.release();
        }
        // Without mounts and users the kernel ends the connection within moments.
        let wait = if remaining.is_empty() { END_WAIT } else { Duration::ZERO };
        Ok(DetachOutcome { mounts, remaining, is_in_use: !self.superblock.ends_within(wait) })
    }

    /// Returns the device number (major, minor) that mount tables show; `None` where it could not
    /// be read.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.superblock.device
    }

    /// Makes [`Serving::wait`] return for a mount that is in use, with the result of the
    /// [`Unmounter::last_commit`] that the caller has made (law 3). Open files return errors once
    /// the process has ended. Threads that wait for the kernel to forget a name go on, so that the
    /// program can join its own.
    pub fn abort_after_commit(&self, committed: Result<(), FuseError>) {
        self.name_invalidations.end();
        // Without a receiver, `wait` has returned.
        self.events.send(Event::CommittedAndAborted(committed)).unwrap_or_default();
    }

    /// Makes [`Serving::wait`] return without a commit.
    pub fn abort(&self) {
        self.events.send(Event::Aborted).unwrap_or_default();
    }

    /// Aborts the connection of a mount whose process ends without the return of [`Serving::wait`]
    /// (law 1). Does nothing where the connection has ended.
    ///
    /// # Errors
    /// This process may not open the control file of the connection.
    pub fn abort_connection(&self) -> io::Result<()> {
        self.superblock.abort()
    }

    /// Commits the writes to open files, of a mount that goes on.
    ///
    /// # Errors
    /// Some data or metadata cannot be written, or the kernel has lost writes that it had cached.
    pub fn commit(&self) -> Result<(), FuseError> {
        self.commit_after(Door::send_unsent_data)
    }

    /// Commits the writes to open files and the stores to their mappings, before the end of the
    /// process.
    ///
    /// # Errors
    /// As of [`Unmounter::commit`].
    pub fn last_commit(&self) -> Result<(), FuseError> {
        self.commit_after(Door::send_unsent_data_at_end)
    }

    fn commit_after(&self, send: impl FnOnce(&Door) -> ErrnoResult<()>) -> Result<(), FuseError> {
        let Some(door) = self.door.upgrade() else { return Ok(()) };
        let kept = send(&door).map_err(|_| FuseError::LostWrites);
        let committed = door.commit().map_err(FuseError::Commit);
        // The mount may have ended meanwhile, so this may be the last reference.
        close(door, &self.events);
        committed.and(kept)
    }
}
