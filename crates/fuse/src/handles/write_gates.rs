//! [`WriteGates`]: the number of files of each subvolume that are open for writing, and a gate that
//! keeps further ones out while the subvolume becomes read-only.
//!
//! ```text
//! open for writing -- counted --> checked: may the subvolume be written to? --> handle --> RELEASE
//! switch           -- no file counted: closed --> the subvolume is read-only --> opened
//! ```
//!
//! The kernel caches writes of open files and stores to their mappings, and sends them later. A
//! subvolume that became read-only meanwhile would refuse them, and they would be lost.
//!
//! 1. An open for writing is counted before the subvolume is checked, until the handle is released.
//!    The kernel has sent everything when it releases a handle.
//! 2. A gate is closed only while no open is counted. While it is closed, an open for writing fails
//!    with `EROFS`, as one after the switch does.
//! 3. The kernel sends RELEASE after close(2) has returned. So a switch waits for open files, at
//!    most for [`RELEASE_WAIT`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use butternut_sys::lock::{Condvar, Mutex, rank};

use crate::errno::{Errno, ErrnoResult};

/// How long a switch waits for the release of files that were open for writing.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct WriteGates {
    subvolumes: Mutex<HashMap<u64, Gate>, rank::WriteGates>,
    /// A count has become smaller.
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    writers: usize,
    /// Switches that keep the gate closed.
    closers: usize,
}

/// A file that is open for writing, or is being opened.
pub(crate) struct Writer {
    gates: Arc<WriteGates>,
    subvolume: u64,
}

/// A closed gate. Dropping it opens the gate.
pub(crate) struct ClosedGate {
    gates: Arc<WriteGates>,
    subvolume: u64,
}

impl WriteGates {
    /// Counts a file of a subvolume that is about to be opened for writing (law 1).
    ///
    /// # Errors
    /// `EROFS`: the gate is closed.
    pub(crate) fn enter(self: &Arc<Self>, subvolume: u64) -> ErrnoResult<Writer> {
        let mut subvolumes = self.subvolumes.lock();
        let gate = subvolumes.entry(subvolume).or_default();
        if gate.closers > 0 {
            return Err(Errno::EROFS);
        }
        gate.writers += 1;
        Ok(Writer { gates: Arc::clone(self), subvolume })
    }

    /// Closes the gate of a subvolume (laws 2 and 3).
    ///
    /// # Errors
    /// `EBUSY`: files of the subvolume stay open for writing.
    pub(crate) fn close(self: &Arc<Self>, subvolume: u64) -> ErrnoResult<ClosedGate> {
        self.close_within(subvolume, RELEASE_WAIT)
    }

    fn close_within(
        self: &Arc<Self>,
        subvolume: u64,
        timeout: Duration,
    ) -> ErrnoResult<ClosedGate> {
        let has_writers = |subvolumes: &mut HashMap<u64, Gate>| {
            subvolumes.get(&subvolume).is_some_and(|gate| gate.writers > 0)
        };
        let subvolumes = self.subvolumes.lock();
        let (mut subvolumes, waited) =
            self.changed.wait_timeout_while(subvolumes, timeout, has_writers);
        if waited.timed_out() {
            return Err(Errno::EBUSY);
        }
        subvolumes.entry(subvolume).or_default().closers += 1;
        Ok(ClosedGate { gates: Arc::clone(self), subvolume })
    }

    fn leave(&self, subvolume: u64, count: fn(&mut Gate) -> &mut usize) {
        let mut subvolumes = self.subvolumes.lock();
        if let Some(gate) = subvolumes.get_mut(&subvolume) {
            *count(gate) -= 1;
            if gate.writers == 0 && gate.closers == 0 {
                subvolumes.remove(&subvolume);
            }
        }
        drop(subvolumes);
        self.changed.notify_all();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.gates.leave(self.subvolume, |gate| &mut gate.writers);
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        self.gates.leave(self.subvolume, |gate| &mut gate.closers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_gate_closes_only_without_writers_and_then_keeps_them_out() {
        let gates = Arc::new(WriteGates::default());
        let writer = gates.enter(256).ok().unwrap();
        let refused = gates.close_within(256, Duration::ZERO).err();
        assert_eq!(refused, Some(Errno::EBUSY));
        drop(gates.enter(256).ok().unwrap());
        drop(writer);
        let closed = [(); 2].map(|()| gates.close_within(256, Duration::ZERO).ok().unwrap());
        assert_eq!(gates.enter(256).err(), Some(Errno::EROFS));
        drop(gates.enter(257).ok().unwrap());
        let [first, second] = closed;
        drop(first);
        assert_eq!(gates.enter(256).err(), Some(Errno::EROFS), "one switch goes on");
        drop(second);
        drop(gates.enter(256).ok().unwrap());
        assert!(gates.subvolumes.lock().is_empty());
    }

    #[test]
    fn a_switch_waits_for_the_release_of_a_file_that_was_closed() {
        let gates = Arc::new(WriteGates::default());
        let writer = gates.enter(256).ok().unwrap();
        thread::scope(|scope| {
            let switch = scope.spawn(|| gates.close_within(256, Duration::from_mins(10)).map(drop));
            drop(writer);
            assert_eq!(switch.join().unwrap(), Ok(()));
        });
    }
}
