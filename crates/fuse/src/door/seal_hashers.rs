//! [`SealHashers`]: the threads that hash files for the seals of users.
//!
//! A seal hashes all bytes of a file, and a sparse file of any size needs no space. So users can
//! have more to be hashed at any time than all CPUs can hash.
//!
//! ```text
//! a seal:  reads a part -> queued -> hashed by one of the threads -> stores the hashes -> ...
//!                          \- the parts of each user, by turns -/
//! ```
//!
//! 1. At most as many parts are hashed at a time as there are CPUs, in threads that give way to
//!    all others ([`priority`]): those that serve requests hardly wait for them.
//!    Reading a part and storing its hashes need locks that others wait for, so the thread of the
//!    call does both, with the usual priority.
//! 2. The threads hash the parts of different users by turns, and of one user in their order. A
//!    seal has one part here at a time, of at most a mebibyte. So a part waits for one part of each
//!    other user, and for those of its own user: a short seal ends soon while long ones go on.
//! 3. The seals of administrators are hashed by the threads of their calls.

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use butternut::SealPart;
use butternut_sys::lock::{Mutex, rank};
use butternut_sys::priority;
use butternut_sys::workers::Workers;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(super) struct SealHashers {
    threads: Workers,
    queue: Arc<Mutex<Queue, rank::SealParts>>,
}

/// The parts that wait.
#[derive(Default)]
struct Queue {
    /// The users that have any, in the order of their turns.
    users: VecDeque<u32>,
    parts: HashMap<u32, VecDeque<Work>>,
}

impl Default for SealHashers {
    fn default() -> Self {
        Self::new(thread::available_parallelism().map_or(1, NonZero::get))
    }
}

impl SealHashers {
    fn new(threads_max: usize) -> Self {
        Self { threads: Workers::new("butternut-seal", threads_max), queue: Arc::default() }
    }

    /// Hashes a part, for a user when its turn comes (law 2), or for an administrator. Returns
    /// `None` if that panics.
    pub(super) fn hash(&self, user: Option<u32>, part: SealPart) -> Option<SealPart> {
        match user {
            Some(user) => self.run(user, move || part.hash()),
            None => Some(part.hash()),
        }
    }

    /// Runs `work` in one of the threads, and waits for it.
    fn run<T: Send + 'static>(
        &self,
        user: u32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = channel();
        // The receiver waits below.
        let work = move || sender.send(work()).unwrap_or_default();
        self.queue.lock().push(user, Box::new(work));
        let (queue, caller) = (Arc::clone(&self.queue), thread::current().id());
        // Each of these takes one part, which may be another one.
        self.threads.spawn(move || {
            // Without any thread, it is the caller's, which serves no requests either.
            if thread::current().id() != caller {
                // Where this is forbidden, the number of threads is limited all the same.
                priority::yield_to_others().unwrap_or_default();
            }
            let next = queue.lock().pop();
            if let Some(work) = next {
                work();
            }
        });
        result.recv().ok()
    }
}

impl Queue {
    fn push(&mut self, user: u32, work: Work) {
        let of_user = self.parts.entry(user).or_default();
        if of_user.is_empty() {
            self.users.push_back(user);
        }
        of_user.push_back(work);
    }

    /// Takes the next part. Its user has the next turn after all others.
    fn pop(&mut self) -> Option<Work> {
        let user = self.users.pop_front()?;
        let of_user = self.parts.get_mut(&user)?;
        let work = of_user.pop_front();
        if of_user.is_empty() {
            self.parts.remove(&user);
        } else {
            self.users.push_back(user);
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    const THREADS: usize = 2;
    const LONG_SEALS: u32 = 64;
    const PARTS_OF_SHORT: usize = 16;

    /// The number of parts that have begun, and of those that have not ended.
    #[derive(Default)]
    struct Count {
        begun: AtomicUsize,
        running: AtomicUsize,
        most: AtomicUsize,
    }

    impl Count {
        /// Counts a part, and returns the number of those that had begun before.
        fn part(&self) -> usize {
            let begun = self.begun.fetch_add(1, Ordering::SeqCst);
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(running, Ordering::SeqCst);
            thread::yield_now();
            self.running.fetch_sub(1, Ordering::SeqCst);
            begun
        }
    }

    #[test]
    fn a_short_seal_ends_while_many_long_ones_of_others_go_on() {
        let hashers = SealHashers::new(THREADS);
        let (count, ends) = (Arc::new(Count::default()), AtomicBool::new(false));
        let part = |user| {
            let count = Arc::clone(&count);
            hashers.run(user, move || count.part()).unwrap()
        };
        thread::scope(|scope| {
            for user in 0..LONG_SEALS {
                let (part, ends) = (&part, &ends);
                scope.spawn(move || {
                    while !ends.load(Ordering::SeqCst) {
                        part(user);
                    }
                });
            }
            while count.begun.load(Ordering::SeqCst) < 500 {
                thread::yield_now();
            }
            for number in 0..PARTS_OF_SHORT {
                // Those that begin after the part is queued, besides those that the threads take
                // at that moment.
                let before = count.begun.load(Ordering::SeqCst);
                let waited = part(1000) - before;
                let most = usize::try_from(LONG_SEALS).unwrap() + 2 * THREADS;
                assert!(waited <= most, "part {number} has waited for {waited}");
            }
            ends.store(true, Ordering::SeqCst);
        });
        assert_eq!(count.running.load(Ordering::SeqCst), 0);
        assert!(count.most.load(Ordering::SeqCst) <= THREADS);
        let queue = hashers.queue.lock();
        assert!(queue.users.is_empty() && queue.parts.is_empty());
    }

    #[test]
    fn users_take_turns_however_many_parts_each_has() {
        let mut queue = Queue::default();
        let (sender, order) = channel();
        for (user, name) in [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f")] {
            let sender = sender.clone();
            queue.push(user, Box::new(move || sender.send(name).unwrap()));
        }
        while let Some(work) = queue.pop() {
            work();
        }
        drop(sender);
        assert_eq!(order.iter().collect::<String>(), "adebfc");
        assert!(queue.parts.is_empty());
    }

    #[test]
    fn a_part_that_panics_ends_its_seal_only() {
        let hashers = SealHashers::new(1);
        assert_eq!(hashers.run(1, || panic!("intended")), None::<u32>);
        assert_eq!(hashers.run(1, || 7), Some(7));
        assert_eq!(SealHashers::new(0).run(1, || 8), Some(8), "without any thread");
    }
}
