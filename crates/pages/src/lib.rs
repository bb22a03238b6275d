//! Floor 4: the page cache, as a structure. No I/O, no clocks, no bytes of any format.
//!
//! A [`PageCache`] owns memory for pages of 4 KiB, in slabs, and decides which stay. A
//! [`FilePages`] is one file's pages. Whoever reads or writes the disk asks here what is there,
//! what is wanted and what is to go down, does it, and says how it went.
//!
//! ```text
//!             claim          complete                       write
//!   Absent ---------> (read) ---------> Clean ---------------------------> Dirty <---+
//!     ^  ^               |                | ^                              | |  ^     | write,
//!     |  |  fails, or is spoiled          | |  end: Written                | |  |     | or Again
//!     |  +---------------+                | +--------------- Written <-----+ |  |     |
//!     |                                   |                    | |    begin  |  |     |
//!     +------- evict, invalidate ---------+                    | +-- write --|--|--> WrittenDirty
//!     +------- end: Lost; end, and nobody wants it to stay ----+             |  +--- end -----+
//!     +------- invalidate ---------------------------------------------------+
//! ```
//!
//! Laws:
//!
//! 1. Memory is bounded: the limit, and an eighth more while nothing is clean. In a full cache, a
//!    page that comes allocates nothing.
//! 2. Only clean pages that nobody uses are evicted, and a scan does not evict what is read again
//!    and again (`replacement`).
//! 3. What is on its way to the disk does not change, and is not removed. Who writes to it gets
//!    other memory at once: no writer waits for the disk here, and no reader either.
//! 4. Locks are held over copies in memory, never over I/O. In this order: a file's index, the
//!    queues of the replacement; the lists of files are leaves. Who has an index locked takes no
//!    frame.
//! 5. Every dirty page is in the counts, and its file in the list, oldest first, until it is down,
//!    lost or invalidated. Each landing is told once to whoever sent the page.
//! 6. What was read before a change never becomes a page behind it.
//!
//! # Each operation against each
//!
//! On the same pages of one file. A caller that wants a whole read or write at once has a lock of
//! its own around it; pages are the unit here.
//!
//! | | meets | what happens |
//! |---|---|---|
//! | read | read | both copy; what is not there is read once, and waited for |
//! | | write | each page is copied before or behind it; one being read is spoiled |
//! | | direct read | nothing: both only look |
//! | | direct write | the page goes, what is being read is spoiled: later reads ask the disk |
//! | | truncate, punch | as direct write; the caller's size ends the read |
//! | | evict | a page that is being copied stays; one that went is read again |
//! | | writeback | the bytes on their way are readable all the time |
//! | | fsync | nothing |
//! | write | write | one after the other, page by page |
//! | | direct read | finds the page newer than the disk: takes it, or has it written back first |
//! | | direct write | the later one stays: a direct write invalidates when it is down |
//! | | truncate, punch | one after the other; a page that was dirty and is cut never goes down |
//! | | evict | a dirty page is in no queue |
//! | | writeback | other memory; the page stays dirty and goes down again |
//! | | fsync | what was dirty when it began goes down; later writes may |
//! | direct read | direct read, evict, fsync | nothing |
//! | | direct write | not ordered here: the devices' business |
//! | | truncate, punch | not ordered here: the caller holds the range |
//! | | writeback | takes the bytes that are on their way, or waits for their end |
//! | direct write | direct write | not ordered here |
//! | | truncate, punch | the caller holds the range; either invalidates it |
//! | | evict | clean pages go one way or the other |
//! | | writeback | waits for its end first: older bytes never land on newer |
//! | | fsync | nothing: its bytes are no pages |
//! | truncate, punch | truncate, punch | one after the other; the second finds nothing |
//! | | evict | who comes second finds nothing; a page in an evictor's hand is let go |
//! | | writeback | waits for its end: no space is freed under a write |
//! | | fsync | what is cut before it is sent never is |
//! | evict | evict | different pages: each is in one hand |
//! | | writeback | a page on its way is in no queue |
//! | | fsync | nothing |
//! | writeback | writeback | a page is on its way once; the second leaves it out, or waits |
//! | | fsync | fsync sends the rest and waits for all |
//! | fsync | fsync | as two writebacks; each waits until the range is down |
//!
//! Left to others: the disk, space and checksums, errors of files, threads (`file`, `fs`).

mod cache;
mod change;
mod chunk;
mod counters;
mod debts;
mod dirty;
mod file_pages;
mod fill;
mod filling;
mod flusher;
mod ghosts;
mod index;
mod poison;
mod readahead;
mod replacement;
mod sync;
mod tag;
mod throttle;
mod turn;
mod writeback;

pub use cache::{CacheLimits, FileKey, PageCache};
pub use change::Change;
pub use chunk::PageState;
pub use counters::{PageCounters, Reason};
pub use file_pages::{FilePages, Finding, PAGE_BYTES};
pub use fill::Fill;
pub use flusher::{Orders, UncachedFlush};
pub use index::{Landing, Patched, Stay};
pub use readahead::{Ahead, Readahead, WINDOW_PAGES_MAX};
pub use tag::{Tag, Tags};
pub use throttle::{DirtyLimits, PAUSE_MAX, Throttle};
pub use writeback::Writeback;
