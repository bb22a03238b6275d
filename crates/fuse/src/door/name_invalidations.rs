//! [`NameInvalidations`]: what follows a name that the kernel has forgotten, or the mount's end.
//!
//! ```text
//! forget_name() -------> waits ---------------------------------------------> returns
//!      \\-> thread: FUSE_NOTIFY_INVAL_ENTRY --/ or end() --/
//! forget_name_before() --> returns
//!      \\-> thread: FUSE_NOTIFY_INVAL_ENTRY --> sends the reply, or end() does
//!                \\-> threads: FUSE_NOTIFY_INVAL_ENTRY for the names below it
//! ```
//!
//! 1. The kernel takes the lock of the directory, which a program can hold for any time, also after
//!    the connection has ended. A thread that waits for the lock cannot be killed. So each
//!    notification has a thread, whose descriptor table has only the connection
//!    ([`private_fd_table`]): the end of the mount does not wait for it, and the filesystem is
//!    closed meanwhile. A process that is killed releases the volume, too, if its rings have not
//!    registered the devices (`MountOptions::registers_devices`): the thread keeps the memory of
//!    the process, into which the rings are mapped. What remains until the lock is free is the
//!    connection, and with it the mount, whose requests nothing answers (umount(8) with `-f` ends
//!    it); of a `blkdev` mount, the kernel's claim of the device, too.
//! 2. The caller of a request waits for that thread until the mount ends, so there are at most as
//!    many of them as such calls, which are limited for users ([`user_limit`]). The names below a
//!    name have at most [`THREADS_BELOW_MAX`] more. The caller does not wait for these, but its
//!    call is counted until the last of them has ended.
//! 3. Of the names below a name, those of one directory wait for its lock in one thread. When that
//!    takes longer than [`STALL`], another thread goes on with the other directories. Where
//!    programs hold the locks of as many directories as there may be threads, the names in the rest
//!    wait for them.
//! 4. Of the threads of this process, only those that hide a name wait for that thread.
//!
//! [`user_limit`]: crate::door::user_limit

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use butternut_sys::lock::{Condvar, Mutex, rank};
use butternut_sys::private_fd_table;

use crate::connection;
use crate::door::user_limit::Counted;

/// Maximum number of threads for the names below a name (law 3).
const THREADS_BELOW_MAX: usize = 8;
/// Time after which another thread goes on with the names below a name.
const STALL: Duration = Duration::from_millis(100);

/// What sends a reply. It has no descriptor of its own: the thread that runs it could not close it.
type Answer = Box<dyn FnOnce(BorrowedFd<'_>) + Send>;

#[derive(Clone, Default)]
pub(crate) struct NameInvalidations(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State, rank::NameInvalidations>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_ended: bool,
    last: u64,
    /// The numbers of the threads that have not ended.
    running: HashSet<u64>,
    /// What is left to be sent by threads that have not ended, by their numbers, with the
    /// connection.
    answers: HashMap<u64, (Answer, Weak<OwnedFd>)>,
}

impl NameInvalidations {
    /// Makes the kernel look a name up again ([`connection::invalidate_entry`]), and waits for that
    /// until the mount ends.
    pub(super) fn forget_name(&self, device: &OwnedFd, parent: u64, name: &[u8]) {
        let of_thread = name.to_vec();
        let is_begun = self.wait_for(device.as_fd(), move |device| {
            connection::invalidate_entry(device, parent, &of_thread);
        });
        if !is_begun {
            connection::invalidate_entry(device, parent, name);
        }
    }

    /// Makes the kernel look a name up again, which is in the directory with a node id, and sends a
    /// reply then, or when the mount ends. Then makes it look up the names below again, too (law
    /// 3). Does not wait.
    pub(super) fn forget_name_before(
        &self,
        device: &Arc<OwnedFd>,
        (parent, name): (u64, Vec<u8>),
        answer: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
        below: Option<NamesBelow>,
    ) {
        let of_thread = name.clone();
        let forget_below = move |device: BorrowedFd<'_>| {
            if let Some(below) = below {
                below.forget(device, |device: BorrowedFd<'_>, parent, name: &[u8]| {
                    connection::invalidate_entry(device, parent, name);
                });
            }
        };
        let work = move |device: BorrowedFd<'_>| {
            connection::invalidate_entry(device, parent, &of_thread);
        };
        let is_begun = self.answer_after(device, Box::new(answer), work, forget_below);
        // Without a thread, the names below stay in the kernel's cache until it needs the memory.
        if let Err(number) = is_begun {
            connection::invalidate_entry(device, parent, &name);
            self.answer(number, device.as_fd());
        }
    }

    /// Runs `work`, `answer` and then `last` in a thread that has only the descriptor `device`.
    /// Returns the number of the answer if there is no such thread.
    fn answer_after(
        &self,
        device: &Arc<OwnedFd>,
        answer: Answer,
        work: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
        last: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> Result<(), u64> {
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        state.answers.insert(number, (answer, Arc::downgrade(device)));
        let is_ended = state.is_ended;
        drop(state);
        let of_thread = self.clone();
        let run = move |device: BorrowedFd<'_>| {
            work(device);
            of_thread.answer(number, device);
            last(device);
        };
        private_fd_table::spawn("butternut-names", device.as_fd(), run).map_err(|_| number)?;
        if is_ended {
            self.answer(number, device.as_fd());
        }
        Ok(())
    }

    fn answer(&self, number: u64, device: BorrowedFd<'_>) {
        let answer = self.0.state.lock().answers.remove(&number);
        if let Some((answer, _)) = answer {
            answer(device);
        }
    }

    /// Runs `work` in a thread that has only the descriptor `device`, and waits for it until the
    /// mount ends. Returns `false` if there is no such thread.
    fn wait_for(
        &self,
        device: BorrowedFd<'_>,
        work: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> bool {
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        state.running.insert(number);
        drop(state);
        let ended = Ended(self.clone(), number);
        let run = move |device: BorrowedFd<'_>| {
            let _ended = ended;
            work(device);
        };
        if private_fd_table::spawn("butternut-names", device, run).is_err() {
            return false;
        }
        let mut state = self.0.state.lock();
        while !state.is_ended && state.running.contains(&number) {
            state = self.0.changed.wait(state);
        }
        true
    }

    /// Ends all waits, also those that begin later, and sends the replies that are left.
    pub(crate) fn end(&self) {
        let mut state = self.0.state.lock();
        state.is_ended = true;
        let answers = std::mem::take(&mut state.answers);
        drop(state);
        self.0.changed.notify_all();
        for (answer, device) in answers.into_values() {
            // Without the connection, no caller is left.
            if let Some(device) = device.upgrade() {
                answer(device.as_fd());
            }
        }
    }
}

/// Names that the kernel is to forget after the name above them.
pub(super) struct NamesBelow {
    /// By the node ids of their directories.
    by_directory: BTreeMap<u64, Vec<Vec<u8>>>,
    counted: Arc<Counted>,
}

impl NamesBelow {
    /// Takes names with the node ids of their directories, and the call that they belong to, which
    /// is counted until the kernel has forgotten them. Returns `None` without names.
    pub(super) fn new(names: Vec<(u64, Vec<u8>)>, counted: &Arc<Counted>) -> Option<Self> {
        let mut by_directory = BTreeMap::<_, Vec<_>>::new();
        for (parent, name) in names {
            by_directory.entry(parent).or_default().push(name);
        }
        let counted = Arc::clone(counted);
        (!by_directory.is_empty()).then_some(Self { by_directory, counted })
    }

    /// Calls `forget` for each name, in threads that have only the descriptor `device`. Waits for
    /// them, but for none longer than [`STALL`] (law 3).
    fn forget(
        self,
        device: BorrowedFd<'_>,
        forget: impl Fn(BorrowedFd<'_>, u64, &[u8]) + Clone + Send + 'static,
    ) {
        let left = Arc::new(Mutex::<_, rank::NameInvalidations>::new(self.by_directory));
        for _ in 0..THREADS_BELOW_MAX {
            let (left, forget, counted) =
                (Arc::clone(&left), forget.clone(), Arc::clone(&self.counted));
            let (working, has_ended) = channel::<()>();
            let run = move |device: BorrowedFd<'_>| {
                let _ended = (counted, working);
                let next = || left.lock().pop_first();
                while let Some((parent, names)) = next() {
                    for name in names {
                        forget(device, parent, &name);
                    }
                }
            };
            let is_begun = private_fd_table::spawn("butternut-names", device, run).is_ok();
            if !is_begun || has_ended.recv_timeout(STALL) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

/// Records the end of a thread when it is dropped.
struct Ended(NameInvalidations, u64);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.state.lock().running.remove(&self.1);
        self.0.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::user_limit::UserLimit;
    use std::thread;

    #[test]
    fn a_wait_ends_with_its_thread_or_with_the_mount() {
        let invalidations = NameInvalidations::default();
        let device = std::fs::File::open("/dev/null").unwrap();
        assert!(invalidations.wait_for(device.as_fd(), |_| ()));
        assert!(invalidations.0.state.lock().running.is_empty());
        let (stop, stopped) = channel::<()>();
        let (started, has_started) = channel();
        let waiting = {
            let invalidations = invalidations.clone();
            thread::spawn(move || {
                invalidations.wait_for(device.as_fd(), move |_| {
                    started.send(()).unwrap();
                    stopped.recv().unwrap_or_default();
                })
            })
        };
        has_started.recv().unwrap();
        assert!(!waiting.is_finished());
        invalidations.end();
        assert!(waiting.join().unwrap());
        drop(stop);
    }
    #[test]
    fn a_reply_is_sent_once_after_its_thread_or_at_the_end_of_the_mount() {
        let invalidations = NameInvalidations::default();
        let device = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let (sender, sent) = channel();
        let begin = |number: u32, work: Box<dyn FnOnce() + Send>| {
            let sender = sender.clone();
            let answer = Box::new(move |_: BorrowedFd<'_>| sender.send(number).unwrap());
            invalidations.answer_after(&device, answer, |_| work(), |_| ()).unwrap();
        };
        begin(1, Box::new(|| ()));
        assert_eq!(sent.recv(), Ok(1));
        let (stop, stopped) = channel::<()>();
        let (over, is_over) = channel::<()>();
        begin(
            2,
            Box::new(move || {
                stopped.recv().unwrap_or_default();
                drop(over);
            }),
        );
        assert!(sent.try_recv().is_err(), "no thread waits for it, and it is not sent");
        invalidations.end();
        assert_eq!(sent.recv(), Ok(2));
        begin(3, Box::new(|| ()));
        assert_eq!(sent.recv(), Ok(3));
        drop(stop);
        assert!(is_over.recv().is_err());
        assert!(
            sent.recv_timeout(std::time::Duration::from_millis(20)).is_err(),
            "none is sent twice"
        );
    }
    #[test]
    fn directories_that_are_locked_keep_names_in_the_others_for_a_short_time() {
        let limit = UserLimit::of_names();
        let calls_left =
            || std::iter::from_fn(|| limit.begin(Some(1000))).collect::<Vec<_>>().len();
        let calls_max = calls_left();
        let device = std::fs::File::open("/dev/null").unwrap();
        let names = |directories: u64| {
            let all =
                (0..directories).flat_map(|id| [(id, b"one".to_vec()), (id, b"two".to_vec())]);
            let counted = Arc::new(limit.begin(Some(1000)).unwrap());
            NamesBelow::new(all.collect(), &counted).unwrap()
        };
        // Checks how many names are forgotten while some directories are locked.
        let check = |locked: &'static [u64], wanted: usize| {
            let (sender, forgotten) = channel();
            let (unlock, unlocked) = channel::<()>();
            let lock = Arc::new(std::sync::Mutex::new(unlocked));
            names(12).forget(device.as_fd(), move |_, directory, name| {
                if locked.contains(&directory) {
                    lock.lock().unwrap().recv().unwrap_or_default();
                }
                sender.send((directory, name.to_vec())).unwrap();
            });
            for count in 0..wanted {
                let next = forgotten.recv_timeout(Duration::from_secs(30));
                assert!(next.is_ok(), "{count} of {wanted} while {locked:?} are locked");
            }
            assert!(forgotten.try_recv().is_err(), "{locked:?}");
            assert!(locked.is_empty() || calls_left() == calls_max - 1, "{locked:?}");
            drop(unlock);
            assert_eq!(forgotten.iter().count(), 24 - wanted, "{locked:?}");
        };
        check(&[], 24);
        check(&[0], 22);
        check(&[0, 4, 5, 11], 16);
        // As many as there are threads.
        check(&[0, 1, 2, 3, 4, 5, 6, 7], 0);
        assert!(NamesBelow::new(Vec::new(), &Arc::new(limit.begin(None).unwrap())).is_none());
        while calls_left() < calls_max {
            thread::yield_now();
        }
    }
}
