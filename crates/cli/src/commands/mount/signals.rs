//! Signals that end a mount.
//!
//! ```text
//! any     while the volume is being opened: the process ends
//! first   not in use   unmounted from every mount point; the process ends
//!         in use       detached from every mount point, committed; the process ends when the last
//!                      use ends
//! second               committed and disconnected: the process ends, open files fail
//! third                disconnected without a commit, for a device that does not respond
//! ```
//!
//! 1. The mount points are those in the mount namespace of the process, at the time of the signal.
//!    No other filesystem is unmounted, and no mount point that another filesystem is mounted on.
//! 2. A process that keeps running after a signal reports what it waits for.
//! 3. No signal is blocked by a message that cannot be written: messages are queued, and a full
//!    pipe delays the end of the process by at most [`reporter::FLUSH_TIMEOUT`].
//! 4. The third signal ends the process, whatever its threads are blocked on. The connection is
//!    aborted before: a thread that waits in the kernel for pages of a file cannot be killed. A
//!    thread whose I/O on a device the kernel does not end keeps the process, but no program that
//!    uses the mount waits for it.
//! 5. The signals are blocked before the volume is opened, so that all its threads inherit the
//!    mask. [`SignalThread`] receives them from then on: before [`SignalThread::begin_mount`] a
//!    signal ends the process, and nothing is mounted. The first signal between that call and
//!    [`SignalThread::unmount_on_signal`] is handled when the mount is made. If the mount is not
//!    made, because a device or fusermount3 does not respond, a second signal ends the process and
//!    fusermount3.

use butternut_sys::lock::{Mutex, rank};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use butternut_fuse::{DetachOutcome, MountAttempt, RemainingMount, Unmounter};
use butternut_sys::mount_users::{self, MountUser};
use butternut_sys::mounts;
use butternut_sys::signal::EndSignals;

use super::syslog::{CRITICAL, NOTICE, log};
use crate::failure::{chain, io_text};
use crate::output::{reporter, stderr_line};

/// Maximum number of users of the mount in a message.
const USERS_SHOWN_MAX: usize = 5;

/// The exit status of a process that ends without a commit.
pub(super) const ABORTED: i32 = 1;

/// Maximum time for the main thread to detach the remaining mounts after an abort, or to finish a
/// mount that is being made.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
/// After this time, a message reports that the work of the first signal is not finished.
pub(super) const SLOW_DEVICE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the thread looks whether the mount was made, once a signal has arrived.
const MOUNT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The mount that signals end.
type Mounted = (Unmounter, PathBuf);
/// The mount that is made of an open volume. Locked while the thread ends the process, so that the
/// main thread does nothing else at that time.
type CurrentAttempt = Arc<Mutex<Option<Arc<MountAttempt>>, rank::CommandSignals>>;

/// The thread that receives the signals (law 5).
pub(super) struct SignalThread {
    attempt: CurrentAttempt,
    mounted: Sender<Mounted>,
}

impl SignalThread {
    /// Starts the thread. `volume` is the name of the volume in messages.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(super) fn start(signals: EndSignals, volume: String) -> io::Result<Self> {
        let attempt = CurrentAttempt::default();
        let (mounted, mounts) = channel();
        let being_made = MountBeingMade { attempt: Arc::clone(&attempt), mounts, volume };
        let run = move || {
            let Ok(first) = signals.wait() else { return };
            let Some((mounted, further)) = being_made.wait(&signals, first) else { return };
            handle_all(&signals, &mounted.0, &mounted.1, further);
        };
        thread::Builder::new().name("butternut-sig".into()).spawn(run)?;
        Ok(Self { attempt, mounted })
    }

    /// Keeps later signals for the mount that is about to be made. If a signal has already ended
    /// the process, this call does not return.
    pub(super) fn begin_mount(&self, attempt: &Arc<MountAttempt>) {
        let earlier = self.attempt.lock().replace(Arc::clone(attempt));
        drop(earlier);
    }

    /// Records that no mount was made and none will be: any signal ends the process from now on.
    pub(super) fn mount_failed(&self) {
        let failed = self.attempt.lock().take();
        drop(failed);
    }

    /// Lets signals end this mount.
    pub(super) fn unmount_on_signal(self, unmounter: Unmounter, mountpoint: PathBuf) {
        // The thread receives until this channel is closed, unless it has panicked.
        self.mounted.send((unmounter, mountpoint)).unwrap_or_default();
    }
}

/// Ends the mount as a first signal would.
pub(super) fn send_to_itself() {
    let itself = rustix::process::getpid();
    // Fails for no process that may signal itself.
    rustix::process::kill_process(itself, rustix::process::Signal::TERM).unwrap_or_default();
}

/// A mount that the main thread makes while a signal is pending.
struct MountBeingMade {
    attempt: CurrentAttempt,
    mounts: Receiver<Mounted>,
    volume: String,
}

impl MountBeingMade {
    /// Waits until the mount is made, after the first signal. Returns the mount and the number of
    /// signals after the first one; `None` where the process ends without a mount.
    fn wait(&self, signals: &EndSignals, first: i32) -> Option<(Mounted, usize)> {
        let mut slow_message = Some(Instant::now() + SLOW_DEVICE_TIMEOUT);
        let (mut further, mut deadline) = (0, None);
        loop {
            let attempt = self.attempt.lock();
            if attempt.is_none() {
                end_before_mount(&self.volume, first);
            }
            drop(attempt);
            match self.mounts.try_recv() {
                Ok(mounted) => return Some((mounted, further)),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if signals.wait_for(MOUNT_CHECK_INTERVAL).ok()?.is_some() {
                further += 1;
                deadline.get_or_insert(Instant::now() + ABORT_TIMEOUT);
            }
            let is_past = |time: &Option<Instant>| time.is_some_and(|time| Instant::now() >= time);
            if further > 1 || is_past(&deadline) {
                let attempt = self.attempt.lock();
                if attempt.as_ref().is_none_or(MountAttempt::end) {
                    end_before_mount(&self.volume, first);
                }
                // Otherwise the mount is made, and the main thread sends it now.
            }
            if is_past(&slow_message) {
                slow_message = None;
                let text = "still waits for the mount to be made (a second signal ends it)";
                log(NOTICE, &format!("{}: {text}", self.volume));
            }
        }
    }
}

/// Ends the process with the exit status that a shell shows for a signal. The threads of the volume
/// may be blocked on a device and are not joined: a volume that is not in use yet holds no changes.
fn end_before_mount(volume: &str, signal: i32) -> ! {
    let text = "is not mounted: a signal ended the command while it opened the volume";
    stderr_line(&format!("{volume}: {text}"));
    reporter::flush();
    std::process::exit(128 + signal);
}

/// Handles the first signal and `further` signals, which have arrived, and waits for the others.
fn handle_all(signals: &EndSignals, unmounter: &Unmounter, mountpoint: &Path, further: usize) {
    let shown = mountpoint.display().to_string();
    let mut arrived = further;
    let mut wait = || {
        if arrived == 0 {
            return signals.wait().map(drop);
        }
        arrived -= 1;
        Ok(())
    };
    // The work for a signal may block on a device that does not respond, so it runs in a thread of
    // its own, and the next signal is handled meanwhile.
    thread::scope(|scope| {
        spawn(scope, &shown, || handle_first(unmounter, mountpoint));
        if wait().is_err() {
            return;
        }
        log(NOTICE, &format!("{shown}: second signal: committing and exiting; open files fail"));
        spawn(scope, &shown, || {
            let committed = unmounter.last_commit();
            reporter::flush();
            unmounter.abort_after_commit(committed);
        });
        if wait().is_ok() {
            log(CRITICAL, &format!("{shown}: third signal: exiting without a commit"));
            reporter::flush();
            unmounter.abort();
            // The main thread ends the process, unless it is blocked too.
            thread::sleep(ABORT_TIMEOUT);
            // Without a control file, the connection ends with the process.
            unmounter.abort_connection().unwrap_or_default();
            std::process::exit(ABORTED);
        }
    });
}

/// Starts a thread for the work of a signal. Without one, a later signal still ends the process.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shown: &str,
    work: impl FnOnce() + Send + 'scope,
) {
    let spawned = thread::Builder::new().name("butternut-sig".into()).spawn_scoped(scope, work);
    if let Err(error) = spawned {
        let text = format!("{shown}: no thread handles the signal: {}", io_text(&error));
        log(CRITICAL, &format!("{text} (a third signal ends the process without a commit)"));
    }
}

/// Logs that the process still waits, unless the returned sender is dropped within
/// [`SLOW_DEVICE_TIMEOUT`].
fn log_if_slow(shown: String) -> Sender<()> {
    let (working, finished) = channel::<()>();
    let run = move || {
        if finished.recv_timeout(SLOW_DEVICE_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            let text = "still waits for a device (a third signal ends it without a commit)";
            log(NOTICE, &format!("{shown}: {text}"));
        }
    };
    thread::Builder::new().spawn(run).map(drop).unwrap_or_default();
    working
}

/// Unmounts. If the mount is in use, commits and reports its users.
fn handle_first(unmounter: &Unmounter, mountpoint: &Path) {
    let working = log_if_slow(mountpoint.display().to_string());
    let detached = unmounter.detach().unwrap_or_else(|error| {
        let text = "is not unmounted: the mount table cannot be read";
        let hint = "a second signal ends the process";
        log(CRITICAL, &format!("{}: {text}: {} ({hint})", mountpoint.display(), io_text(&error)));
        DetachOutcome { mounts: Vec::new(), remaining: Vec::new(), is_in_use: true }
    });
    if !detached.is_in_use {
        // The main thread now writes the last changes, and the process ends when it has. Until then
        // the message stays due.
        std::mem::forget(working);
        return;
    }
    let shown = mountpoints(&detached, mountpoint);
    let committed = unmounter.commit();
    drop(working);
    if let Err(error) = committed {
        let text = format!("{shown}: the last changes could not be written: {}", chain(&error));
        log(CRITICAL, &text);
    }
    for (place, error) in &detached.remaining {
        let text = format!(
            "{}: stays mounted: {} (unmount that first; a second signal ends the process)",
            place.mountpoint.display(),
            io_text(error)
        );
        log(NOTICE, &text);
    }
    let is_left = |id| detached.remaining.iter().any(|(left, _): &RemainingMount| left.id == id);
    let removed = detached.mounts.iter().filter(|place| !is_left(place.id));
    let users: Vec<MountUser> =
        removed.flat_map(|place| mount_users::of(place, USERS_SHOWN_MAX)).collect();
    let mut users: Vec<String> = users.iter().map(MountUser::to_string).collect();
    users.extend(mounts_elsewhere(unmounter.device()));
    users.truncate(USERS_SHOWN_MAX);
    if users.is_empty() {
        if !detached.remaining.is_empty() {
            return;
        }
        users.push("by an unknown user".to_owned());
    }
    let state = if detached.mounts.is_empty() { "is not mounted here" } else { "detached" };
    let users = users.join("; ");
    log(NOTICE, &format!("{shown}: {state}, but still in use: {users} (a second signal ends it)"));
}

/// Returns the mount points for messages; if there is none, the first mount point of the volume.
fn mountpoints(detached: &DetachOutcome, mountpoint: &Path) -> String {
    let places: Vec<String> =
        detached.mounts.iter().map(|place| place.mountpoint.display().to_string()).collect();
    if places.is_empty() { mountpoint.display().to_string() } else { places.join(", ") }
}

/// Describes the mounts in other mount namespaces, which are not unmounted.
fn mounts_elsewhere(device: Option<(u32, u32)>) -> Vec<String> {
    let own = device.into_iter().flat_map(mounts::of_other_namespaces).flatten().flatten();
    let lines = own.map(|mount| {
        format!("it is mounted on {} in another mount namespace", mount.mountpoint.display())
    });
    lines.take(USERS_SHOWN_MAX).collect()
}
