//! Floor 4: the page cache, as a data structure. It does no I/O, reads no clock and knows no disk
//! format.
//!
//! A [`PageCache`] owns the memory of all pages (4096 bytes each) and decides which clean pages to
//! evict. A [`FilePages`] is the pages of one file. The layer above does the I/O: the cache tells
//! it which pages to read and which to write back, and it reports the result of each.
//!
//! ```text
//!          claim          complete        write           begin
//!   Absent ------> (fill) ---------> Clean -------> Dirty ---------> Writeback
//!     ^               |                ^             ^  ^             |  |  |
//!     +-- fails, or --+                |             |  |             |  |  | write
//!         is spoiled                   |             |  + end: Redirty+  |  v
//!                                      |             |                   |  WritebackDirty
//!                                      +------------ | -- end: Written --+  |
//!                                                    +-------- end ---------+
//!
//!   Clean -- evict, invalidate --> Absent       Writeback -- end: Lost --> Absent
//!   Dirty -- invalidate ---------> Absent       Writeback -- end: Written, drop-behind --> Absent
//! ```
//!
//! Laws:
//!
//! 1. Memory is bounded by the cache limit. It may exceed the limit by one eighth while no clean
//!    page can be evicted (law 2 of `cache`). Inserting a page into a full cache allocates almost
//!    no memory.
//! 2. Only clean pages whose frame has no other user are evicted. A sequential scan does not evict
//!    pages that are read repeatedly (`replacement`).
//! 3. The bytes of a page under writeback do not change, and the page is not removed. A write to
//!    it gives the page another frame at once, so neither writers nor readers wait for the disk
//!    here.
//! 4. Locks are held over copies in memory, never over I/O. The lock order is: the index of a file,
//!    then the replacement queues. The lists of files are leaf locks. A thread that holds the lock
//!    of an index allocates no frame.
//! 5. Every dirty page is counted, and its file is in the list of dirty files, oldest first, until
//!    the page is written back, lost or invalidated. Each writeback ends exactly once.
//! 6. Bytes that were read from the disk before a page was changed are never cached after that
//!    change.
//!
//! # Each operation against each
//!
//! What happens when two operations meet on the same page of one file. The cache orders operations
//! page by page; a caller that needs a whole read or write to be atomic holds a lock around it.
//!
//! | operation | meets | what happens |
//! |---|---|---|
//! | read | read | Both copy the page. An absent page is read once; the other reader waits. |
//! | | write | The page is copied either before or after the write. A fill of it is spoiled. |
//! | | direct read | Neither affects the other. |
//! | | direct write | The page is removed and its fill spoiled; later reads go to the disk. |
//! | | truncate, punch | As direct write; the caller's file size ends the read. |
//! | | evict | A page that is being copied stays. A page that was evicted is read again. |
//! | | writeback | The page stays readable during its writeback. |
//! | | fsync | Neither affects the other. |
//! | write | write | The writes are serialised page by page. |
//! | | direct read | The page is newer than the disk. The reader copies it or writes it back. |
//! | | direct write | The later one wins: a direct write invalidates the page when it completes. |
//! | | truncate, punch | Serialised. A dirty page that is truncated is never written back. |
//! | | evict | A dirty page is in no replacement queue, so it is not evicted. |
//! | | writeback | The write gets another frame. The page stays dirty and is written back again. |
//! | | fsync | What was dirty when the fsync began is written back; later writes may be. |
//! | direct read | direct read, evict, fsync | Neither affects the other. |
//! | | direct write | Not ordered here; the order on the device decides. |
//! | | truncate, punch | Not ordered here: the caller locks the range. |
//! | | writeback | The reader copies the page, or waits until the writeback ends. |
//! | direct write | direct write | Not ordered here. |
//! | | truncate, punch | The caller locks the range; either one invalidates it. |
//! | | evict | A clean page is removed by one of the two. |
//! | | writeback | The direct write waits until it ends, so old bytes never overwrite new. |
//! | | fsync | Neither affects the other: the bytes of a direct write are in no page. |
//! | truncate, punch | truncate, punch | Serialised; the second finds no page. |
//! | | evict | The later one finds no page. Removing an isolated page voids its eviction. |
//! | | writeback | The truncate waits until it ends, so no space under writeback is freed. |
//! | | fsync | A page that is truncated before its writeback begins is never written back. |
//! | evict | evict | Each thread isolates different pages. |
//! | | writeback | A page under writeback is in no replacement queue, so it is not evicted. |
//! | | fsync | Neither affects the other. |
//! | writeback | writeback | A page is in one writeback at a time; the second skips it or waits. |
//! | | fsync | The fsync writes back the other dirty pages and waits for all. |
//! | fsync | fsync | As two writebacks: each waits until the whole range is written back. |
//!
//! Left to others: disk I/O, space and checksums, errors of files, threads (`file`, `fs`).

mod cache;
mod change;
mod counters;
mod dirty;
mod eventcount;
mod file_key;
mod file_pages;
mod fill;
mod filling;
mod flusher;
mod ghosts;
mod index;
mod page_group;
mod poison;
mod readahead;
mod replacement;
mod sync;
mod tag;
mod throttle;
mod uncached_backlog;
#[cfg(test)]
#[path = "uncached_backlog/tests.rs"]
mod uncached_backlog_tests;
mod writeback;

pub use cache::{CacheLimits, PageCache};
pub use change::Change;
pub use counters::{PageCounters, WritebackReason};
pub use file_key::FileKey;
pub use file_pages::{FilePages, PAGE_BYTES, ReadOptions};
pub use fill::Fill;
pub use flusher::{UncachedFlush, WritebackWork};
pub use index::{CacheMode, PageWrite, WritebackResult};
pub use page_group::PageState;
pub use readahead::{Readahead, ReadaheadWindow, WINDOW_PAGES_MAX};
pub use tag::{Tag, Tags};
pub use throttle::{DirtyLimits, PAUSE_MAX, Throttle};
pub use writeback::WritebackPages;
