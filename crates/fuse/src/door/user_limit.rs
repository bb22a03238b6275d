//! [`UserLimit`]: how many calls of one kind users may have at the same time. A call above the
//! limit is not queued: its caller decides what becomes of it.
//!
//! 1. The calls of one user are limited, so that they are no obstacle to other users. Those of all
//!    users are limited too: a user may have many user ids in namespaces of its own. Those of an
//!    administrator are not counted. Above the limit of all users, some more run, each of a user
//!    that has no other: so a user with a few user ids is no obstacle to the first call of another.
//! 2. Each kind of call has a limit of its own: a call that may wait for any time takes no place of
//!    one that ends soon.
//! 3. Calls that wait for a directory are limited in each directory, too. Every program that can
//!    list a directory can hold its lock, and the calls of other users wait for it then: those are
//!    no obstacle to the calls of the same users in other directories.

use std::collections::HashMap;
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};

/// Maximum numbers of calls at the same time.
#[derive(Clone, Copy, Debug)]
struct Most {
    of_all: usize,
    /// Beyond those, of users that have no other call (law 1).
    of_others: usize,
    of_user: usize,
    /// Of one user in one directory.
    in_directory: usize,
}

/// Calls during which the kernel holds the lock of their file. They run, each in a thread.
const WITH_LOCK: Most = Most { of_all: 64, of_others: 64, of_user: 16, in_directory: 16 };
/// Waits for deleted subvolumes, each with a thread.
const CLEANING: Most = Most { of_all: 256, of_others: 64, of_user: 32, in_directory: 32 };
/// Changes of names, most of which wait for the lock of their directory, each with a thread. Of one
/// user, more can wait in a directory than run at a time (`user_calls`).
const NAMES: Most = Most { of_all: 512, of_others: 128, of_user: 128, in_directory: 32 };

#[derive(Clone, Debug)]
pub(super) struct UserLimit {
    most: Most,
    counts: Arc<Mutex<Counts, rank::UserCalls>>,
}

#[derive(Debug, Default)]
struct Counts {
    of_all: usize,
    of_user: HashMap<u32, usize>,
    /// Of each user in each directory.
    in_directory: HashMap<(u32, u64), usize>,
}

/// A call that is counted until this is dropped. Those of administrators are not counted.
#[derive(Debug)]
pub(super) struct Counted(#[expect(dead_code, reason = "dropped")] Option<OfUser>);

#[derive(Debug)]
struct OfUser {
    limit: UserLimit,
    user: u32,
    directory: u64,
}

impl UserLimit {
    /// Of calls during which the kernel holds the lock of their file.
    pub(super) fn with_lock() -> Self {
        Self::new(WITH_LOCK)
    }

    /// Of waits for deleted subvolumes.
    pub(super) fn of_cleaning() -> Self {
        Self::new(CLEANING)
    }

    /// Of changes of names.
    pub(super) fn of_names() -> Self {
        Self::new(NAMES)
    }

    fn new(most: Most) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// Counts a call of a user, or lets one of an administrator (`None`) through. Returns `None`
    /// above the limit.
    pub(super) fn begin(&self, user: Option<u32>) -> Option<Counted> {
        self.begin_in(0, user)
    }

    /// As [`Self::begin`], for a call in the directory of a node id (law 3).
    pub(super) fn begin_in(&self, directory: u64, user: Option<u32>) -> Option<Counted> {
        let Some(user) = user else { return Some(Counted(None)) };
        let mut counts = self.counts.lock();
        let of_user = counts.of_user.get(&user).copied().unwrap_or(0);
        let in_directory = counts.in_directory.get(&(user, directory)).copied().unwrap_or(0);
        let most = self.most;
        let of_all = most.of_all + if of_user == 0 { most.of_others } else { 0 };
        if counts.of_all >= of_all || of_user >= most.of_user || in_directory >= most.in_directory {
            return None;
        }
        counts.of_all += 1;
        counts.of_user.insert(user, of_user + 1);
        counts.in_directory.insert((user, directory), in_directory + 1);
        drop(counts);
        Some(Counted(Some(OfUser { limit: self.clone(), user, directory })))
    }
}

impl Drop for OfUser {
    fn drop(&mut self) {
        let mut counts = self.limit.counts.lock();
        counts.of_all = counts.of_all.saturating_sub(1);
        uncount(&mut counts.of_user, &self.user);
        uncount(&mut counts.in_directory, &(self.user, self.directory));
    }
}

fn uncount<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_a_user_and_of_all_users_are_limited() {
        let limit = UserLimit::of_cleaning();
        let mut counted: Vec<_> = std::iter::from_fn(|| limit.begin(Some(1000))).collect();
        assert_eq!(counted.len(), CLEANING.of_user);
        counted.pop();
        counted.push(limit.begin(Some(1000)).unwrap());
        // As if they were of one user with many user ids.
        let mut users = (1001..).flat_map(|user| [user; 2]);
        while counted.len() < CLEANING.of_all {
            counted.extend(users.next().and_then(|user| limit.begin(Some(user))));
        }
        assert!(limit.begin(Some(1000)).is_none() && limit.begin(Some(1001)).is_none());
        counted.extend((5000..).map_while(|user| limit.begin(Some(user))));
        assert_eq!(counted.len(), CLEANING.of_all + CLEANING.of_others);
        assert!(limit.begin(Some(0)).is_none());
        assert!(limit.begin(None).is_some(), "an administrator");
        counted.clear();
        assert!(limit.begin(Some(1000)).is_some());
        let counts = limit.counts.lock();
        assert!(counts.of_all == 0 && counts.of_user.is_empty() && counts.in_directory.is_empty());
    }

    #[test]
    fn calls_that_wait_for_a_directory_are_no_obstacle_to_those_in_others() {
        let limit = UserLimit::of_names();
        let begin_in = |directory| limit.begin_in(directory, Some(1000));
        let all_in = |directory| std::iter::from_fn(move || begin_in(directory));
        let held: Vec<_> = all_in(7).collect();
        assert_eq!(held.len(), NAMES.in_directory);
        assert!(begin_in(8).is_some());
        let others: Vec<_> = (8..).map_while(begin_in).collect();
        assert_eq!(held.len() + others.len(), NAMES.of_user);
        assert!(limit.begin_in(7, Some(1001)).is_some(), "another user");
    }
}
