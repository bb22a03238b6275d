//! Errors of writeback, told to every handle that was open: an [`ErrorSequence`] in what handles
//! share, an [`ErrorCursor`] in each of them, as Linux has it (`errseq_t`).
//!
//! Laws:
//!
//! 1. An error that is noted while a cursor exists is returned by exactly one later
//!    [`ErrorSequence::check`] with that cursor. Of several errors in between, the last is
//!    returned.
//! 2. A cursor that is made later starts at the last error if no check has returned it yet, else
//!    behind it: an error that no handle was told of is told to the next one.
//! 3. The volume's sequence gets every error of every file. Which of them any check has returned is
//!    known there ([`VolumeErrors::untold`]), so that the last handle on a volume fails only
//!    for what nothing was told of.

use crate::error::FileError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The errors of one file, or of a volume.
#[derive(Debug, Default)]
pub(crate) struct ErrorSequence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Errors that were noted.
    count: u64,
    last: Option<FileError>,
    /// A check has returned the last one. The volume's list shares it.
    is_told: Arc<AtomicBool>,
}

/// How far one handle has been told.
#[derive(Debug, Default)]
pub struct ErrorCursor(AtomicU64);

/// The errors of all files of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeErrors {
    all: ErrorSequence,
    /// One for each file with an error that no check has returned: at most as many as files failed
    /// since the last check of all.
    untold: Mutex<Vec<Arc<AtomicBool>>>,
}

impl ErrorSequence {
    /// After a panic: nothing that is done under the lock panics between its first change and its
    /// last.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an error; returns the flag that says whether it was told.
    fn note(&self, error: &FileError) -> Arc<AtomicBool> {
        let error = error.clone();
        let mut state = self.state();
        let is_first = state.last.is_none() || state.is_told.load(Ordering::Acquire);
        state.count += 1;
        state.last = Some(error);
        if is_first {
            state.is_told = Arc::default();
        }
        Arc::clone(&state.is_told)
    }

    /// A cursor for a new handle (law 2).
    pub(crate) fn cursor(&self) -> ErrorCursor {
        let state = self.state();
        ErrorCursor(AtomicU64::new(state.count - u64::from(state.is_untold())))
    }

    /// Whether no check has returned the last error.
    pub(crate) fn has_untold(&self) -> bool {
        self.state().is_untold()
    }

    /// The last error, if the cursor is not behind it yet; now it is (law 1).
    pub(crate) fn check(&self, cursor: &ErrorCursor) -> Option<FileError> {
        let state = self.state();
        if cursor.0.swap(state.count, Ordering::AcqRel) == state.count {
            return None;
        }
        state.is_told.store(true, Ordering::Release);
        state.last.clone()
    }
}

impl State {
    fn is_untold(&self) -> bool {
        self.last.is_some() && !self.is_told.load(Ordering::Acquire)
    }
}

impl VolumeErrors {
    /// Adds an error of a file, to that file's sequence and to the volume's.
    pub(crate) fn note(&self, file: &ErrorSequence, error: &FileError) {
        let flag = file.note(error);
        self.all.note(error);
        let mut untold = self.untold();
        untold.retain(|is_told| !is_told.load(Ordering::Acquire));
        // A check of all errors has emptied the list; the flags of files are as they were.
        if !untold.iter().any(|known| Arc::ptr_eq(known, &flag)) {
            untold.push(flag);
        }
    }

    /// As [`ErrorSequence::check`]; all errors are told then.
    pub(crate) fn check(&self, cursor: &ErrorCursor) -> Option<FileError> {
        let error = self.all.check(cursor)?;
        self.untold().clear();
        Some(error)
    }

    /// The last error, if there is any that no check has returned, of a file or of the volume.
    pub(crate) fn take_untold(&self) -> Option<FileError> {
        let mut untold = self.untold();
        let has_untold = untold.iter().any(|is_told| !is_told.load(Ordering::Acquire));
        untold.clear();
        let last = &self.all.state().last;
        last.clone().filter(|_| has_untold)
    }

    /// After a panic: each flag in the list is whole, and was added by itself.
    fn untold(&self) -> MutexGuard<'_, Vec<Arc<AtomicBool>>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_format::units::{Ino, TreeId};

    fn error(ino: u64) -> FileError {
        FileError::NoMemory { tree: TreeId(5), ino: Ino(ino) }
    }

    fn ino(error: Option<FileError>) -> Option<u64> {
        let error = error?;
        let FileError::NoMemory { ino, .. } = error else { panic!("{error}") };
        Some(ino.0)
    }

    #[test]
    fn every_cursor_is_told_once() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        let (one, other, all) = (file.cursor(), file.cursor(), volume.all.cursor());
        assert_eq!(ino(file.check(&one)), None);
        volume.note(&file, &error(1));
        volume.note(&file, &error(2));
        for cursor in [&one, &other] {
            assert_eq!(ino(file.check(cursor)), Some(2));
            assert_eq!(ino(file.check(cursor)), None);
        }
        assert_eq!(ino(volume.check(&all)), Some(2));
        assert_eq!(ino(volume.check(&all)), None);
        volume.note(&file, &error(3));
        assert_eq!(ino(file.check(&one)), Some(3));
        assert_eq!(ino(file.check(&other)), Some(3));
    }

    #[test]
    fn a_later_cursor_is_told_what_no_other_was() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        volume.note(&file, &error(1));
        let later = file.cursor();
        assert_eq!(ino(file.check(&later)), Some(1));
        assert_eq!(ino(file.check(&file.cursor())), None);
        volume.note(&file, &error(2));
        assert_eq!(ino(file.check(&file.cursor())), Some(2));
        assert_eq!(ino(file.check(&later)), Some(2));
    }

    #[test]
    fn an_error_behind_a_check_of_all_is_untold_again() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        let all = volume.all.cursor();
        volume.note(&file, &error(1));
        assert!(volume.check(&all).is_some());
        assert_eq!(ino(volume.take_untold()), None);
        volume.note(&file, &error(2));
        volume.note(&file, &error(3));
        assert_eq!(volume.untold().len(), 1, "one for each file");
        assert_eq!(ino(volume.take_untold()), Some(3));
        volume.note(&file, &error(4));
        assert_eq!(ino(volume.take_untold()), Some(4), "the answer before told the others only");
    }

    #[test]
    fn what_a_file_was_told_is_not_untold() {
        let (one, other, volume) =
            (ErrorSequence::default(), ErrorSequence::default(), VolumeErrors::default());
        let (cursor, all) = (one.cursor(), volume.all.cursor());
        volume.note(&one, &error(1));
        volume.note(&other, &error(2));
        assert!(one.check(&cursor).is_some());
        assert_eq!(ino(volume.take_untold()), Some(2));
        assert_eq!(ino(volume.take_untold()), None);
        volume.note(&one, &error(3));
        assert!(one.check(&cursor).is_some());
        assert_eq!(ino(volume.take_untold()), None);
        assert_eq!(ino(volume.check(&all)), Some(3), "a sync is told all the same");
        volume.note(&one, &error(4));
        assert!(volume.check(&all).is_some());
        assert_eq!(ino(volume.take_untold()), None);
    }
}
