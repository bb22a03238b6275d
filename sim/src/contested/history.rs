//! [`History`]: the writes of one file, and the values that a read of it may return.
//!
//! A write is recorded before it begins, and its end is recorded after it was acknowledged. Between
//! the two a read may or may not return its bytes.

use anyhow::{Result, bail};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const BLOCK: usize = super::BLOCK;
/// Writes of one block that are kept before those are dropped that no read can return any more.
const WRITES_MAX: usize = 64;

/// The counter of ticks, and the start of the oldest activity of each thread.
pub(super) struct Clock {
    now: AtomicU64,
    active_since: Vec<AtomicU64>,
}

/// One write of one block.
#[derive(Clone, Debug)]
struct Write {
    serial: u64,
    /// The written bytes of the block.
    range: Range<usize>,
    value: u8,
    begun: u64,
    /// The tick of the acknowledgement; `u64::MAX` before it.
    acknowledged: u64,
}

/// The writes of a file by block.
pub(super) struct History {
    blocks: Vec<Mutex<Vec<Write>>>,
    serial: AtomicU64,
}

/// A write that has begun and is not recorded as acknowledged.
#[derive(Debug)]
pub(super) struct BegunWrite {
    serial: u64,
    blocks: Range<usize>,
}

impl Clock {
    pub(super) fn new(threads: usize) -> Clock {
        let active_since = (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect();
        Clock { now: AtomicU64::new(1), active_since }
    }

    /// Returns a tick that is greater than all earlier ones.
    pub(super) fn tick(&self) -> u64 {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// Marks a thread as active. `in_flight_since` is the start of its oldest request in flight, if
    /// it has one. The caller marks the thread before it takes a tick.
    pub(super) fn set_active(&self, thread: usize, in_flight_since: Option<u64>) {
        let now = self.now.load(Ordering::SeqCst);
        let since = in_flight_since.unwrap_or(now).min(now);
        self.active_since[thread].store(since, Ordering::SeqCst);
    }

    /// Returns a tick that no operation that is active, or begins later, began before.
    fn horizon(&self) -> u64 {
        let now = self.now.load(Ordering::SeqCst);
        let since = self.active_since.iter().map(|since| since.load(Ordering::SeqCst));
        since.min().map_or(now, |since| since.min(now))
    }
}

impl History {
    /// Returns the history of a file of zeroes.
    pub(super) fn new(blocks: usize) -> History {
        let zeroes = Write { serial: 0, range: 0..BLOCK, value: 0, begun: 0, acknowledged: 0 };
        let blocks = (0..blocks).map(|_| Mutex::new(vec![zeroes.clone()])).collect();
        History { blocks, serial: AtomicU64::new(1) }
    }

    /// Records that a write is about to begin.
    pub(super) fn begin(&self, clock: &Clock, range: &Range<usize>, value: u8) -> BegunWrite {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let begun = clock.tick();
        for block in blocks.clone() {
            let start = block * BLOCK;
            let from = range.start.max(start) - start;
            let to = range.end.min(start + BLOCK) - start;
            let range = from..to;
            self.with(block, |writes| {
                if writes.len() >= WRITES_MAX {
                    forget(writes, clock.horizon());
                }
                writes.push(Write { serial, range, value, begun, acknowledged: u64::MAX });
            });
        }
        BegunWrite { serial, blocks }
    }

    /// Records that a write was acknowledged.
    pub(super) fn end(&self, clock: &Clock, write: &BegunWrite) {
        let now = clock.tick();
        for block in write.blocks.clone() {
            self.with(block, |writes| {
                for known in writes.iter_mut().filter(|known| known.serial == write.serial) {
                    known.acknowledged = now;
                }
            });
        }
    }

    /// Checks the bytes that a read returned (law 2 of the run).
    pub(super) fn check(
        &self,
        offset: usize,
        bytes: &[u8],
        (begun, ended): (u64, u64),
    ) -> Result<()> {
        let end = offset + bytes.len();
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let (from, to) = (offset.max(start), end.min(start + BLOCK));
            let have = &bytes[from - offset..to - offset];
            self.with(block, |writes| {
                for part in parts(writes, from - start..to - start) {
                    let allowed = allowed(writes, &part, begun, ended);
                    let shown = &have[part.start + start - from..part.end + start - from];
                    let wrong = shown.iter().position(|byte| !allowed.contains(byte));
                    let Some(wrong) = wrong else { continue };
                    let at = start + part.start + wrong;
                    let value = shown[wrong];
                    let about: Vec<&Write> =
                        writes.iter().filter(|write| covers(write, &part)).collect();
                    bail!(
                        "byte {at} (block {block}) shows {value}, which is none of {allowed:?}; \
                         the read was from {begun} to {ended}; its writes: {about:#?}"
                    );
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn with<R>(&self, block: usize, run: impl FnOnce(&mut Vec<Write>) -> R) -> R {
        run(&mut self.blocks[block].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn covers(write: &Write, part: &Range<usize>) -> bool {
    write.range.start <= part.start && write.range.end >= part.end
}

/// Splits a range at the boundaries of writes, so that each write covers all of a part or none.
fn parts(writes: &[Write], range: Range<usize>) -> Vec<Range<usize>> {
    let edges = writes.iter().flat_map(|write| [write.range.start, write.range.end]);
    let mut edges: Vec<usize> = edges.filter(|edge| range.contains(edge)).collect();
    edges.extend([range.start, range.end]);
    edges.sort_unstable();
    edges.dedup();
    edges.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Returns whether another write of the part began after this one was acknowledged, and was itself
/// acknowledged by the tick `by`.
fn is_replaced(write: &Write, writes: &[Write], part: &Range<usize>, by: u64) -> bool {
    let replaces = |other: &Write| write.acknowledged < other.begun && other.acknowledged < by;
    writes.iter().any(|other| covers(other, part) && replaces(other))
}

/// Returns the values that a read may return.
fn allowed(writes: &[Write], part: &Range<usize>, begun: u64, ended: u64) -> Vec<u8> {
    let found = writes.iter().filter(|write| {
        covers(write, part) && write.begun < ended && !is_replaced(write, writes, part, begun)
    });
    found.map(|write| write.value).collect()
}

/// Drops the writes that no operation that began at `horizon` or later can read.
fn forget(writes: &mut Vec<Write>, horizon: u64) {
    let is_over = |write: &Write| {
        let parts = parts(writes, write.range.clone());
        parts.iter().all(|part| is_replaced(write, writes, part, horizon))
    };
    let over: Vec<u64> =
        writes.iter().filter(|write| is_over(write)).map(|write| write.serial).collect();
    writes.retain(|write| !over.contains(&write.serial));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(history: &History, clock: &Clock, value: u8) -> bool {
        let begun = clock.tick();
        history.check(10, &[value; 5], (begun, clock.tick())).is_ok()
    }

    #[test]
    fn reads_may_return_newest_and_in_flight_writes() {
        let (clock, history) = (Clock::new(1), History::new(1));
        let one = history.begin(&clock, &(0..100), 1);
        assert!(shows(&history, &clock, 0) && shows(&history, &clock, 1));
        history.end(&clock, &one);
        assert!(!shows(&history, &clock, 0), "an acknowledged write is lost");
        let two = history.begin(&clock, &(0..4096), 2);
        let three = history.begin(&clock, &(12..13), 3);
        history.end(&clock, &two);
        assert!(shows(&history, &clock, 2) && !shows(&history, &clock, 1));
        history.end(&clock, &three);
        let begun = clock.tick();
        history.check(10, &[2, 2, 3, 2, 2], (begun, clock.tick())).unwrap();
        // Both were in flight at the same time: either may have been applied last.
        assert!(shows(&history, &clock, 2));
    }

    #[test]
    fn dropping_old_writes_changes_no_result() {
        let (clock, history) = (Clock::new(1), History::new(1));
        for number in 0..1000_usize {
            clock.set_active(0, None);
            let value = u8::try_from(number % 200).unwrap() + 1;
            let range = if number % 3 == 0 { 0..4096 } else { 5..4000 };
            let write = history.begin(&clock, &range, value);
            history.end(&clock, &write);
            assert!(shows(&history, &clock, value));
            assert!(!shows(&history, &clock, value.wrapping_add(1)));
        }
        assert!(history.with(0, |writes| writes.len()) <= WRITES_MAX);
    }
}
