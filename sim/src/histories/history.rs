//! [`History`]: what was written to names and files, and when; so what a read may return.
//!
//! Time is a counter; every event takes a tick of it. A write has the tick before its call and the
//! one after its return, and took effect between them. A name, and each cell of a file, is a
//! register.
//!
//! Laws:
//!
//! 1. A read may return a write that began before the read ended, unless another write began after
//!    that write had ended, and itself ended before the read began.
//! 2. A write that a read has returned took effect before that read ended.
//! 3. A write that failed, or was short, may take effect at any time, or never.
//! 4. A crash is a read that begins at the start of the last sync that had returned before the
//!    crash: every write that ended before that sync is there. A durable write that had ended is
//!    there too.

use super::names::Names;
use butternut::FileId;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A time of the run's clock.
pub type Tick = u64;

/// The tick of an event that has not happened.
pub(super) const NEVER: Tick = Tick::MAX;

/// Bytes of a cell. Requests start and end at cell boundaries.
pub const CELL_BYTES: u64 = 512;
/// Cells of a file.
pub const CELLS: usize = 160;

/// All writes and syncs of a run.
#[derive(Debug, Default)]
pub struct History {
    clock: AtomicU64,
    names: Mutex<Names>,
    files: Mutex<BTreeMap<FileId, Arc<Mutex<FileHistory>>>>,
    syncs: Mutex<Vec<Synced>>,
}

/// The writes to each cell of one file.
#[derive(Debug)]
pub(super) struct FileHistory {
    cells: Vec<Vec<Write>>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    value: u64,
    start: Tick,
    end: Tick,
    /// A tick by which a read that returned the write had ended (law 2).
    seen: Tick,
    /// The position of the log from which on a durable write is on the medium.
    durable_at: usize,
    /// Whether it is a store to a mapping.
    is_store: bool,
}

/// A sync that has returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Synced {
    /// The synced file; `None` for a sync of all files and names.
    pub(super) file: Option<FileId>,
    pub(super) start: Tick,
    pub(super) end: Tick,
    pub(super) position: usize,
}

/// A write that has begun.
#[derive(Debug)]
pub struct BegunWrite {
    pub file: FileId,
    pub cells: Range<usize>,
    /// Every word of the cells, unless the write is one of zeroes.
    pub value: u64,
}

/// The start and end of a read, or what a crash must contain.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Tick,
    pub to: Tick,
    /// For a crash: its position in the log.
    pub position: Option<usize>,
    /// For a crash after a sync that does not cover stores to mappings: the time before which they
    /// must be there.
    pub stores_from: Option<Tick>,
}

impl Write {
    const INITIAL: Self =
        Self { value: 0, start: 0, end: 0, seen: 0, durable_at: usize::MAX, is_store: false };

    /// Returns whether the write had ended, as far as the window requires.
    fn precedes(&self, window: &Window) -> bool {
        match window.position {
            None => self.end.min(self.seen) < window.from,
            Some(position) => {
                let stores_from = window.stores_from.filter(|_| self.is_store);
                self.end < stores_from.unwrap_or(window.from)
                    || (self.end != NEVER && self.durable_at <= position)
            }
        }
    }
}

/// Returns whether law 1 allows a value in one register.
fn is_allowed(writes: &[Write], value: u64, window: &Window) -> bool {
    let is_replaced = |write: &Write| {
        let over = write.end.min(write.seen);
        writes.iter().any(|other| other.start > over && other.precedes(window))
    };
    writes
        .iter()
        .any(|write| write.value == value && write.start < window.to && !is_replaced(write))
}

impl History {
    /// Advances the clock by one tick, and returns the new time.
    pub fn tick(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Locks the history of the names.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the history of a file, which begins with zeroes.
    pub(super) fn file(&self, id: FileId) -> Arc<Mutex<FileHistory>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Mutex::new(FileHistory { cells: vec![vec![Write::INITIAL]; CELLS] }));
        Arc::clone(files.entry(id).or_insert_with(new))
    }

    /// Begins a write of zeroes, or of a value that no other write has.
    pub fn begin(&self, file: FileId, cells: Range<usize>, is_zero: bool) -> BegunWrite {
        self.begin_as(file, cells, (is_zero, false))
    }

    /// Begins a store to a mapping, of a value that no other write has.
    pub fn begin_store(&self, file: FileId, cells: Range<usize>) -> BegunWrite {
        self.begin_as(file, cells, (false, true))
    }

    fn begin_as(
        &self,
        file: FileId,
        cells: Range<usize>,
        (is_zero, is_store): (bool, bool),
    ) -> BegunWrite {
        let history = self.file(file);
        let mut history = lock(&history);
        let start = self.tick();
        let value = if is_zero { 0 } else { start };
        for cell in &mut history.cells[cells.clone()] {
            let (end, seen) = (NEVER, NEVER);
            cell.push(Write { value, start, end, seen, is_store, ..Write::INITIAL });
        }
        // Every write, also one of zeroes, is identified by its start.
        drop(history);
        BegunWrite { file, cells, value: start }
    }

    /// Records that the write has returned and was complete. `durable_at` is the position of the
    /// log from which on it is durable, for a durable write.
    pub fn end(&self, begun: &BegunWrite, durable_at: Option<usize>) {
        let history = self.file(begun.file);
        let mut history = lock(&history);
        let end = self.tick();
        for cell in &mut history.cells[begun.cells.clone()] {
            let write = cell.iter_mut().rev().find(|write| write.start == begun.value);
            let Some(write) = write else { continue };
            write.end = end;
            write.durable_at = durable_at.unwrap_or(usize::MAX);
        }
    }

    pub(super) fn add_sync(&self, synced: Synced) {
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner).push(synced);
    }

    /// Returns what a crash at a position of the log must contain of a file, or of the names.
    pub(super) fn crash_window(&self, file: Option<FileId>, position: usize) -> Window {
        let syncs = self.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = |sync: &&Synced| sync.file.is_none() || sync.file == file;
        let before = syncs.iter().filter(|sync| sync.position <= position).filter(counts);
        let from = before.map(|sync| sync.start).max().unwrap_or(0);
        // A sync also relates its position in the log to a tick.
        let after = syncs.iter().filter(|sync| sync.position >= position);
        let to = after.map(|sync| sync.end).min().unwrap_or(NEVER);
        Window { from, to, position: Some(position), stores_from: None }
    }

    /// Checks the bytes that a read returned, beginning with cell `first`. Bytes behind the end of
    /// the file count as zeroes.
    ///
    /// # Errors
    /// The first word that no history allows.
    pub fn check(
        &self,
        id: FileId,
        first: usize,
        cells: &[u8],
        window: &Window,
    ) -> Result<(), String> {
        let history = self.file(id);
        let mut history = lock(&history);
        let bytes = usize::try_from(CELL_BYTES).unwrap_or(usize::MAX);
        for (number, cell) in (first..).zip(cells.chunks(bytes)) {
            let writes = &mut history.cells[number];
            let mut last = None;
            for word in cell.chunks_exact(8) {
                let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
                if last == Some(value) {
                    continue;
                }
                last = Some(value);
                if !is_allowed(writes, value, window) {
                    return Err(format!(
                        "{id:?}, cell {number} (block {}) holds {value}, in {window:?}, after \
                         {writes:?}",
                        number / 8
                    ));
                }
                let seen = writes.iter_mut().find(|write| value != 0 && write.value == value);
                if let (Some(write), None) = (seen, window.position) {
                    write.seen = write.seen.min(window.to);
                }
            }
        }
        Ok(())
    }
}

fn lock(history: &Mutex<FileHistory>) -> MutexGuard<'_, FileHistory> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId::new(5, 257);

    fn cell(value: u64) -> Vec<u8> {
        value.to_le_bytes().repeat(64)
    }

    fn reads(history: &History, from: Tick, value: u64) -> bool {
        let window = Window { from, to: history.tick(), position: None, stores_from: None };
        history.check(FILE, 3, &cell(value), &window).is_ok()
    }

    #[test]
    fn overwritten_values_are_not_read() {
        let history = History::default();
        let one = history.begin(FILE, 3..4, false);
        assert!(reads(&history, history.tick(), 0), "the write has not returned");
        let during = history.tick();
        history.end(&one, None);
        assert!(reads(&history, during, 0));
        assert!(!reads(&history, history.tick(), 0));
        let other = history.begin(FILE, 0..8, false);
        assert!(reads(&history, history.tick(), one.value));
        assert!(reads(&history, history.tick(), other.value));
        assert!(!reads(&history, history.tick(), one.value), "a read has returned the other");
        let zero = history.begin(FILE, 3..4, true);
        history.end(&zero, None);
        assert!(!reads(&history, history.tick(), other.value), "it was read before the zeroes");
        let failed = history.begin(FILE, 3..4, false);
        for _ in 0..2 {
            history.end(&history.begin(FILE, 3..4, true), None);
            assert!(reads(&history, history.tick(), 0));
        }
        assert!(reads(&history, history.tick(), failed.value), "it may still take effect");
        assert!(!reads(&history, history.tick(), one.value));
        assert!(!reads(&history, history.tick(), 12345));
    }

    #[test]
    fn a_crash_keeps_writes_before_the_last_sync() {
        let history = History::default();
        let holds = |value, position| {
            let window = history.crash_window(Some(FILE), position);
            history.check(FILE, 3, &cell(value), &window).is_ok()
        };
        let one = history.begin(FILE, 3..4, false);
        history.end(&one, None);
        let start = history.tick();
        let other = history.begin(FILE, 3..4, false);
        history.end(&other, None);
        assert!(holds(0, 7) && holds(one.value, 7) && holds(other.value, 7));
        let end = history.tick();
        history.add_sync(Synced { file: Some(FILE), start, end, position: 10 });
        assert!(holds(0, 9) && !holds(0, 10));
        assert!(holds(one.value, 10) && holds(other.value, 10));
        let durable = history.begin(FILE, 3..4, false);
        assert!(!holds(durable.value, 9), "it was not durable yet");
        history.end(&durable, Some(20));
        assert!(holds(other.value, 19) && !holds(other.value, 20) && holds(durable.value, 20));
    }
}
