//! [`Debts`]: what uncached writes made dirty, until a flusher has been told of it.
//!
//! ```text
//! writer --add--> book --take--> flusher's order --could not: they are on their way--> owed
//!   ^               |  ^                                                                 |
//!   +--- waits -----+  +------------------- something has landed ------------------------+
//! ```
//!
//! Laws:
//!
//! 1. A page is dirty before it is in the book, and is counted again when it is taken: of the
//!    pages anywhere no more are taken than are dirty.
//! 2. A page that is on its way and dirty again cannot be sent. Who is short of pages still owes
//!    them, if anything was on its way since he took them: when something lands, they are in the
//!    book again.
//! 3. Writers who are far ahead of the flushers gain nothing: they wait until more is taken. So
//!    their pages are few, and the processor's caches hold them.

use crate::cache::FileKey;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

/// Files that are in the book by themselves, at most: behind that, their pages are any file's.
const FILES_MAX: usize = 1024;
/// One writeback that has landed, as [`Debts::traffic`] counts them; one on its way is 1.
const LANDED: u64 = 1 << 32;

#[derive(Debug, Default)]
pub(crate) struct Debts {
    book: Mutex<Book>,
    taken: Condvar,
    has_owed: AtomicBool,
    /// Writebacks that have landed, and those on their way.
    traffic: AtomicU64,
}

#[derive(Debug, Default)]
struct Book {
    /// Of whatever file.
    anywhere: usize,
    files: VecDeque<(FileKey, usize)>,
    /// The sum of those of files.
    in_files: usize,
    /// Law 2.
    owed: Vec<(Option<FileKey>, usize)>,
    is_closed: bool,
}

/// What was taken out of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Debt {
    pub(crate) file: Option<FileKey>,
    pub(crate) pages: usize,
    /// What had landed by then.
    landed: u64,
}

impl Debts {
    /// Pages of a file are dirty, to be brought down by themselves; or of any.
    pub(crate) fn add(&self, file: Option<FileKey>, pages: usize) {
        self.book().add(file, pages);
    }

    /// Takes at most so many pages of a file that has some.
    pub(crate) fn take_of_file(&self, pages_max: usize) -> Option<Debt> {
        let landed = self.landed();
        let mut book = self.book();
        let (file, all) = book.files.pop_front()?;
        let pages = all.min(pages_max);
        if all > pages {
            book.files.push_back((file, all - pages));
        }
        book.in_files -= pages;
        self.taken.notify_all();
        Some(Debt { file: Some(file), pages, landed })
    }

    /// Takes at most so many pages of whatever file, as far as any are dirty (law 1).
    pub(crate) fn take(&self, pages_max: usize, dirty_pages: impl Fn() -> usize) -> Debt {
        let landed = self.landed();
        let mut book = self.book();
        let all = book.anywhere.min(dirty_pages());
        let pages = all.min(pages_max);
        if book.anywhere > 0 {
            book.anywhere = all - pages;
            self.taken.notify_all();
        }
        Debt { file: None, pages, landed }
    }

    /// So many pages of what was taken were not there to be sent (law 2). Whether they are in the
    /// book again.
    pub(crate) fn owe(&self, debt: &Debt, pages: usize) -> bool {
        let mut book = self.book();
        book.owed.push((debt.file, pages));
        // Whoever lands behind this look finds the bit.
        self.has_owed.store(true, Ordering::SeqCst);
        let traffic = self.traffic.load(Ordering::SeqCst);
        let has_landed = traffic / LANDED != debt.landed;
        if has_landed {
            self.call_in(&mut book);
        } else if traffic.is_multiple_of(LANDED) {
            // Nothing was on its way.
            book.owed.pop();
            self.has_owed.store(!book.owed.is_empty(), Ordering::SeqCst);
        }
        has_landed
    }

    /// So many writebacks are on their way. Before anybody can find that their pages are.
    pub(crate) fn note_sent(&self, writebacks: usize) {
        self.traffic.fetch_add(u64::try_from(writebacks).unwrap_or(0), Ordering::SeqCst);
    }

    /// One of them has landed, and the index says so. Whether something is in the book again.
    pub(crate) fn note_landed(&self) -> bool {
        self.traffic.fetch_add(LANDED - 1, Ordering::SeqCst);
        self.has_owed.load(Ordering::SeqCst) && self.call_in(&mut self.book())
    }

    /// Pages that are in the book.
    pub(crate) fn pages(&self) -> usize {
        self.book().pages()
    }

    /// Waits until no more than `pages_max` are in the book, at most so long (law 3). Whether it
    /// is so.
    pub(crate) fn wait_until_taken(&self, pages_max: usize, at_most: Duration) -> bool {
        let mut book = self.book();
        while book.pages() > pages_max && !book.is_closed {
            let waited = self.taken.wait_timeout(book, at_most);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            book = back;
            if timeout.timed_out() {
                return book.pages() <= pages_max;
            }
        }
        true
    }

    /// Nobody takes anything any more.
    pub(crate) fn close(&self) {
        self.book().is_closed = true;
        self.taken.notify_all();
    }

    fn call_in(&self, book: &mut Book) -> bool {
        let owed = std::mem::take(&mut book.owed);
        let is_some = !owed.is_empty();
        for (file, pages) in owed {
            book.add(file, pages);
        }
        self.has_owed.store(false, Ordering::SeqCst);
        is_some
    }

    fn landed(&self) -> u64 {
        self.traffic.load(Ordering::SeqCst) / LANDED
    }

    /// After a panic: a wrong count makes a flusher look for pages in vain, or a writer wait until
    /// its time is over. Which pages are dirty the indexes of the files say.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn add(&mut self, file: Option<FileKey>, pages: usize) {
        let has_room = self.files.len() < FILES_MAX;
        match (file, self.files.iter_mut().find(|(key, _)| Some(*key) == file)) {
            (_, Some((_, all))) => *all += pages,
            (Some(file), None) if has_room => self.files.push_back((file, pages)),
            (Some(_) | None, None) => {
                self.anywhere += pages;
                return;
            }
        }
        self.in_files += pages;
    }

    fn pages(&self) -> usize {
        self.anywhere + self.in_files
    }
}
