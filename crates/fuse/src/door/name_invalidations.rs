//! [`NameInvalidations`]: what follows a name that the kernel has forgotten, or the mount's end.
//!
//! ```text
//! forget_name() -------> waits ---------------------------------------------> returns
//!      \\-> thread: FUSE_NOTIFY_INVAL_ENTRY --/ or end() --/
//! forget_names_before() -> returns
//!      \\-> thread: FUSE_NOTIFY_INVAL_ENTRY --> sends the reply, or end() does
//! ```
//!
//! 1. The kernel takes the lock of the directory, which a program can hold for any time, also after
//!    the connection has ended. A thread that waits for the lock cannot be killed. So each
//!    notification has a thread, whose descriptor table has only the connection
//!    ([`private_fd_table`]): the end of the mount does not wait for it, the filesystem is closed
//!    meanwhile, and a process that ends without that releases the volume.
//! 2. The caller of a request waits for that thread until the mount ends, so there are at most as
//!    many of them as such calls, which are limited for users ([`user_limit`]).
//! 3. Of the threads of this process, only those that hide a name wait for that thread.
//!
//! [`user_limit`]: crate::door::user_limit

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use butternut_sys::lock::{Condvar, Mutex, rank};
use butternut_sys::private_fd_table;

use crate::connection;

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

    /// Makes the kernel look names up again, each of which is in the directory with a node id, and
    /// sends a reply then, or when the mount ends. Does not wait.
    pub(super) fn forget_names_before(
        &self,
        device: &Arc<OwnedFd>,
        names: Vec<(u64, Vec<u8>)>,
        answer: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) {
        let names = Arc::new(names);
        let of_thread = Arc::clone(&names);
        let is_begun = self.answer_after(device, Box::new(answer), move |device| {
            invalidate_all(device, &of_thread);
        });
        if let Err(number) = is_begun {
            invalidate_all(device.as_fd(), &names);
            self.answer(number, device.as_fd());
        }
    }

    /// Runs `work` and then `answer` in a thread that has only the descriptor `device`. Returns the
    /// number of the answer if there is no such thread.
    fn answer_after(
        &self,
        device: &Arc<OwnedFd>,
        answer: Answer,
        work: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
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

fn invalidate_all(device: BorrowedFd<'_>, names: &[(u64, Vec<u8>)]) {
    for (parent, name) in names {
        connection::invalidate_entry(device, *parent, name);
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
    use std::sync::mpsc::channel;
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
            invalidations.answer_after(&device, answer, |_| work()).unwrap();
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
}
