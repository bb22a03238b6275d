//! [`ErrorSequence`] and [`ErrorCursor`]: errors of writeback, reported once to every handle that
//! was open. A sequence belongs to what handles share and a cursor to each handle, as in Linux
//! (`errseq_t`).
//!
//! Laws:
//!
//! 1. An error that is recorded while a cursor exists is returned by exactly one later
//!    [`ErrorSequence::check`] with that cursor. Of several errors in between, the last is
//!    returned.
//! 2. A cursor that is created later starts before the last error if no check has returned that
//!    error yet, and after it otherwise: an error that no handle has reported is reported to the
//!    next handle.
//! 3. The volume's sequence contains the errors of all files. It also knows which of them a check
//!    has returned ([`VolumeErrors::unreported`]), so that closing the last handle of a volume
//!    fails only for errors that have not been reported. It remembers at most [`FILES_MAX`] files;
//!    the errors of more count as not returned until a check of all errors.
//! 4. A caller whose result may be dropped moves a cursor of its own past an error, and the error
//!    still counts as not returned ([`VolumeErrors::check_and_keep`]).
//! 5. A call that depends on all data of a file, as a clone does, compares the last error with a
//!    position ([`ErrorSequence::after`]); one that depends on a subvolume, as a snapshot does, the
//!    last error of its tree, which the volume's sequence knows ([`VolumeErrors::in_tree`]). That
//!    moves no cursor, and the error still counts as not returned.

use crate::error::FileError;
use butternut_format::units::TreeId;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of files of which a volume knows that a check has returned their error.
const FILES_MAX: usize = 4096;

/// The errors of one file, or of a volume.
#[derive(Debug, Default)]
pub(crate) struct ErrorSequence(Mutex<State, rank::FileErrors>);

#[derive(Debug, Default)]
struct State {
    /// Number of errors that were recorded.
    count: u64,
    last: Option<FileError>,
    /// A check has returned the last error. The volume's list shares the flag.
    is_reported: Arc<AtomicBool>,
}

/// The position of one handle in an error sequence.
#[derive(Debug, Default)]
pub struct ErrorCursor(AtomicU64);

/// The errors of all files of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeErrors {
    all: ErrorSequence,
    files: Mutex<FileErrors, rank::VolumeErrors>,
}

/// The errors of all files of a volume, apart.
#[derive(Debug, Default)]
struct FileErrors {
    /// One flag for each file with an error that no check has returned, at most [`FILES_MAX`].
    unreported: Vec<Arc<AtomicBool>>,
    /// Since the last check of all, more files had errors.
    has_more_unreported: bool,
    /// The last error of each tree, and its position in the volume's sequence: at most as many as
    /// subvolumes had errors and were not deleted.
    in_trees: HashMap<TreeId, (u64, FileError)>,
}

impl ErrorSequence {
    /// After a panic: nothing that is done under the lock panics between its first change and its
    /// last.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Adds an error, and returns the flag of whether it has been reported.
    fn record(&self, error: &FileError) -> Arc<AtomicBool> {
        let error = error.clone();
        let mut state = self.state();
        let is_first = state.last.is_none() || state.is_reported.load(Ordering::Acquire);
        state.count += 1;
        state.last = Some(error);
        if is_first {
            state.is_reported = Arc::default();
        }
        Arc::clone(&state.is_reported)
    }

    /// Returns a cursor for a new handle (law 2).
    pub(crate) fn cursor(&self) -> ErrorCursor {
        let state = self.state();
        ErrorCursor(AtomicU64::new(state.count - u64::from(state.is_unreported())))
    }

    /// Returns a cursor behind the last error, whether a check has returned it or not.
    pub(crate) fn position(&self) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(self.state().count))
    }

    /// Returns the last error, if it was recorded after `since` (law 5).
    pub(crate) fn after(&self, since: &ErrorCursor) -> Option<FileError> {
        let state = self.state();
        state.last.clone().filter(|_| state.count != since.0.load(Ordering::Acquire))
    }

    /// Whether no check has returned the last error.
    pub(crate) fn has_unreported(&self) -> bool {
        self.state().is_unreported()
    }

    /// Returns the last error, if the cursor is before it, and moves the cursor past it (law 1).
    pub(crate) fn check(&self, cursor: &ErrorCursor) -> Option<FileError> {
        let state = self.state();
        let error = state.pass(cursor)?;
        state.is_reported.store(true, Ordering::Release);
        Some(error)
    }
}

impl State {
    /// Returns the last error, if the cursor is before it, and moves the cursor past it.
    fn pass(&self, cursor: &ErrorCursor) -> Option<FileError> {
        let before = cursor.0.swap(self.count, Ordering::AcqRel);
        self.last.clone().filter(|_| before != self.count)
    }

    fn is_unreported(&self) -> bool {
        self.last.is_some() && !self.is_reported.load(Ordering::Acquire)
    }
}

impl VolumeErrors {
    /// Adds an error of a file of `tree` to that file's sequence and to the volume's.
    pub(crate) fn record(&self, file: &ErrorSequence, tree: TreeId, error: &FileError) {
        let flag = file.record(error);
        self.all.record(error);
        let of_tree = error.clone();
        let mut files = self.files();
        // Read with the lock held: the position of a tree's last error never goes back.
        let at = self.all.state().count;
        let replaced = files.in_trees.insert(tree, (at, of_tree));
        files.unreported.retain(|is_reported| !is_reported.load(Ordering::Acquire));
        // A check of all errors empties the list and leaves the flags of the files as they are.
        if !files.unreported.iter().any(|known| Arc::ptr_eq(known, &flag)) {
            if files.unreported.len() < FILES_MAX {
                files.unreported.push(flag);
            } else {
                files.has_more_unreported = true;
            }
        }
        drop(files);
        drop(replaced);
    }

    /// Returns a cursor behind the last error, as [`ErrorSequence::position`].
    pub(crate) fn position(&self) -> ErrorCursor {
        self.all.position()
    }

    /// Returns the last error of a file of `tree`, if it was recorded after `since` (law 5).
    pub(crate) fn in_tree(&self, tree: TreeId, since: &ErrorCursor) -> Option<FileError> {
        let since = since.0.load(Ordering::Acquire);
        let files = self.files();
        let (at, error) = files.in_trees.get(&tree)?;
        (*at > since).then(|| error.clone())
    }

    /// Drops the last error of a tree that is deleted. The files and the volume keep theirs.
    pub(crate) fn forget_tree(&self, tree: TreeId) {
        let forgotten = self.files().in_trees.remove(&tree);
        drop(forgotten);
    }

    /// Returns the last error of any file, as [`ErrorSequence::check`] does. All errors count as
    /// reported afterwards.
    pub(crate) fn check(&self, cursor: &ErrorCursor) -> Option<FileError> {
        let error = self.all.check(cursor)?;
        self.files().forget_unreported();
        Some(error)
    }

    /// Returns the last error of any file, if the cursor is before it, and moves the cursor past
    /// it. Other cursors return the error, too, and it counts as not returned (law 4).
    pub(crate) fn check_and_keep(&self, cursor: &ErrorCursor) -> Option<FileError> {
        self.all.state().pass(cursor)
    }

    /// Returns the last error, if there is one, of any file, that no check has returned.
    pub(crate) fn take_unreported(&self) -> Option<FileError> {
        let mut files = self.files();
        let error = self.last_if_any(&files);
        files.forget_unreported();
        error
    }

    /// Returns the error of [`VolumeErrors::take_unreported`], and leaves it for other callers.
    pub(crate) fn peek_unreported(&self) -> Option<FileError> {
        self.last_if_any(&self.files())
    }

    fn last_if_any(&self, files: &FileErrors) -> Option<FileError> {
        let last = &self.all.state().last;
        last.clone().filter(|_| files.has_unreported())
    }

    /// After a panic: each flag in the list and each error of a tree is whole, and was added by
    /// itself.
    fn files(&self) -> MutexGuard<'_, FileErrors> {
        self.files.lock()
    }
}

impl FileErrors {
    fn has_unreported(&self) -> bool {
        let is_unreported = |is_reported: &Arc<AtomicBool>| !is_reported.load(Ordering::Acquire);
        self.has_more_unreported || self.unreported.iter().any(is_unreported)
    }

    fn forget_unreported(&mut self) {
        self.unreported.clear();
        self.has_more_unreported = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_format::units::Ino;

    const TREE: TreeId = TreeId(5);

    fn error(ino: u64) -> FileError {
        FileError::NoMemory { tree: TreeId(5), ino: Ino(ino) }
    }

    fn ino(error: Option<FileError>) -> Option<u64> {
        let error = error?;
        let FileError::NoMemory { ino, .. } = error else { panic!("{error}") };
        Some(ino.0)
    }

    #[test]
    fn every_cursor_reports_an_error_once() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        let (one, other, all) = (file.cursor(), file.cursor(), volume.all.cursor());
        assert_eq!(ino(file.check(&one)), None);
        volume.record(&file, TREE, &error(1));
        volume.record(&file, TREE, &error(2));
        for cursor in [&one, &other] {
            assert_eq!(ino(file.check(cursor)), Some(2));
            assert_eq!(ino(file.check(cursor)), None);
        }
        assert_eq!(ino(volume.check(&all)), Some(2));
        assert_eq!(ino(volume.check(&all)), None);
        volume.record(&file, TREE, &error(3));
        assert_eq!(ino(file.check(&one)), Some(3));
        assert_eq!(ino(file.check(&other)), Some(3));
    }

    #[test]
    fn a_later_cursor_reports_an_unreported_error() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        volume.record(&file, TREE, &error(1));
        let later = file.cursor();
        assert_eq!(ino(file.check(&later)), Some(1));
        assert_eq!(ino(file.check(&file.cursor())), None);
        volume.record(&file, TREE, &error(2));
        assert_eq!(ino(file.check(&file.cursor())), Some(2));
        assert_eq!(ino(file.check(&later)), Some(2));
    }

    #[test]
    fn an_error_after_a_check_of_all_is_unreported_again() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        let all = volume.all.cursor();
        volume.record(&file, TREE, &error(1));
        assert!(volume.check(&all).is_some());
        assert_eq!(ino(volume.take_unreported()), None);
        volume.record(&file, TREE, &error(2));
        volume.record(&file, TREE, &error(3));
        assert_eq!(volume.files().unreported.len(), 1, "one for each file");
        assert_eq!(ino(volume.peek_unreported()), Some(3));
        assert_eq!(ino(volume.take_unreported()), Some(3));
        volume.record(&file, TREE, &error(4));
        assert_eq!(
            ino(volume.take_unreported()),
            Some(4),
            "the previous call reported only the earlier errors"
        );
        assert_eq!(ino(volume.peek_unreported()), None);
    }

    #[test]
    fn the_errors_of_a_tree_are_found_from_a_position_on_and_stay_unreported() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        let (other, handle, first) = (TreeId(256), file.cursor(), ErrorCursor::default());
        assert_eq!(ino(volume.in_tree(TREE, &first)), None);
        volume.record(&file, TREE, &error(1));
        let later = volume.position();
        assert_eq!(ino(volume.in_tree(TREE, &first)), Some(1));
        assert_eq!(ino(volume.in_tree(TREE, &later)), None);
        volume.record(&ErrorSequence::default(), other, &error(2));
        assert_eq!(ino(volume.in_tree(TREE, &later)), None, "it is of another tree");
        volume.record(&file, TREE, &error(3));
        for _ in 0..2 {
            assert_eq!(ino(volume.in_tree(TREE, &later)), Some(3));
            assert_eq!(ino(volume.in_tree(other, &first)), Some(2));
        }
        assert_eq!(ino(file.check(&handle)), Some(3));
        assert_eq!(ino(volume.take_unreported()), Some(3));
        assert_eq!(ino(volume.in_tree(TREE, &later)), Some(3));
        volume.forget_tree(TREE);
        assert_eq!(ino(volume.in_tree(TREE, &first)), None);
    }

    #[test]
    fn a_kept_error_is_returned_once_and_left_for_all_others() {
        let (file, volume) = (ErrorSequence::default(), VolumeErrors::default());
        let (handle, all, kept) = (file.cursor(), volume.all.cursor(), ErrorCursor::default());
        for number in [1, 2] {
            volume.record(&file, TREE, &error(number));
            assert_eq!(ino(volume.check_and_keep(&kept)), Some(number));
            assert_eq!(ino(volume.check_and_keep(&kept)), None);
        }
        assert!(file.has_unreported());
        assert_eq!(ino(volume.peek_unreported()), Some(2));
        assert_eq!(ino(file.check(&handle)), Some(2));
        assert_eq!(ino(volume.check(&all)), Some(2));
        volume.record(&file, TREE, &error(3));
        assert_eq!(ino(volume.check(&all)), Some(3));
        assert_eq!(ino(volume.check_and_keep(&kept)), Some(3), "it has a cursor of its own");
        volume.record(&file, TREE, &error(4));
        assert_eq!(ino(volume.check_and_keep(&kept)), Some(4));
        assert_eq!(ino(volume.take_unreported()), Some(4));
    }

    #[test]
    fn an_error_that_a_file_reported_is_not_unreported() {
        let (one, other, volume) =
            (ErrorSequence::default(), ErrorSequence::default(), VolumeErrors::default());
        let (cursor, all) = (one.cursor(), volume.all.cursor());
        volume.record(&one, TREE, &error(1));
        volume.record(&other, TREE, &error(2));
        assert!(one.check(&cursor).is_some());
        assert_eq!(ino(volume.take_unreported()), Some(2));
        assert_eq!(ino(volume.take_unreported()), None);
        volume.record(&one, TREE, &error(3));
        assert!(one.check(&cursor).is_some());
        assert_eq!(ino(volume.take_unreported()), None);
        assert_eq!(ino(volume.check(&all)), Some(3), "a sync of all files reports it all the same");
        volume.record(&one, TREE, &error(4));
        assert!(volume.check(&all).is_some());
        assert_eq!(ino(volume.take_unreported()), None);
    }

    #[test]
    fn a_volume_knows_of_a_bounded_number_of_files_and_forgets_no_error() {
        let volume = VolumeErrors::default();
        let sequences: Vec<ErrorSequence> =
            (0..FILES_MAX + 10).map(|_| ErrorSequence::default()).collect();
        let cursors: Vec<ErrorCursor> = sequences.iter().map(ErrorSequence::cursor).collect();
        for (number, file) in (0..).zip(&sequences) {
            volume.record(file, TREE, &error(number));
        }
        assert_eq!(volume.files().unreported.len(), FILES_MAX);
        for (file, cursor) in sequences.iter().zip(&cursors).take(FILES_MAX) {
            assert!(file.check(cursor).is_some());
        }
        assert_eq!(ino(volume.peek_unreported()), Some(FILES_MAX as u64 + 9));
        assert!(volume.take_unreported().is_some());
        assert_eq!(ino(volume.take_unreported()), None);
    }
}
