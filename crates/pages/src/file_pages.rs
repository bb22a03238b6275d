//! [`FilePages`]: the pages of one file. Looks and copies; what changes them is in `change`, what
//! brings them in `fill`, what sends them down in `writeback`.

use crate::cache::{Core, FileKey, Inode};
use crate::chunk::{Chunk, PageState, split};
use crate::counters::add;
use crate::index::{Index, Stay};
use crate::sync::RwLockReadGuard;
use crate::tag::Tag;
use butternut_sys::frames::{FRAME_BYTES, Frame};
use std::ops::Range;
use std::sync::Arc;

/// Pages that are copied under one hold of the index: others come in between.
const COPY_PAGES: u64 = 64;
/// Bytes of a page, where offsets are counted.
pub const PAGE_BYTES: u64 = 4096;
const _: () = assert!(FRAME_BYTES == 4096);

/// The pages of one file. A clone is another handle of the same.
#[derive(Debug)]
pub struct FilePages {
    pub(crate) core: Arc<Core>,
    pub(crate) inode: Arc<Inode>,
}

/// How a read finds its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// An uncached one leaves alone what others want to stay, and makes nothing stay.
    pub stay: Stay,
    /// The read goes on in the page in which the one before ended: that page was counted then.
    pub goes_on: bool,
}

impl Finding {
    pub const CACHED: Self = Self { stay: Stay::Cached, goes_on: false };
    pub const UNCACHED: Self = Self { stay: Stay::Uncached, goes_on: false };
}

impl FilePages {
    /// Of an inode that counts this handle already.
    pub(crate) fn new(core: Arc<Core>, inode: Arc<Inode>) -> Self {
        Self { core, inode }
    }

    pub fn key(&self) -> FileKey {
        self.inode.key
    }

    /// As [`PageCache::is_poisoned`](crate::PageCache::is_poisoned), once it has looked at the
    /// lock of this file's pages.
    pub fn is_poisoned(&self) -> bool {
        drop(self.inode.index());
        self.core.poison.is_set()
    }

    /// Copies what is there from byte `at` on, up to the first page that is not. Says how many
    /// bytes. No lock is held that somebody holds over I/O.
    pub fn read(&self, at: u64, buf: &mut [u8], how: Finding) -> usize {
        let mut done = 0;
        let mut pages = 0;
        while done < buf.len() {
            let index = self.inode.index();
            let from = at + length(done);
            let end = (from / PAGE_BYTES + COPY_PAGES) * PAGE_BYTES;
            let most = in_memory(end - from).min(buf.len() - done);
            let rest = buf.get_mut(done..done + most).unwrap_or_default();
            let copied = copy(&index, from, rest, how, &mut pages);
            drop(index);
            done += copied;
            if copied < most {
                break;
            }
        }
        if pages > 0 {
            add(&self.core.counters.hit, pages);
        }
        done
    }

    /// A user of a page's bytes, whatever becomes of the page; and its tag, if it is dirty.
    pub fn page(&self, page: u64) -> Option<(Frame, Option<Tag>)> {
        let index = self.inode.index();
        let (chunk, place) = index.find(page)?;
        let is_dirty = chunk.state(place).is_dirty();
        Some((chunk.frame(place)?.clone(), is_dirty.then(|| chunk.tag(place))))
    }

    /// A user of a page's bytes, if it is newer than the disk, and its tag.
    pub fn newer(&self, page: u64) -> Option<(Frame, Tag)> {
        let index = self.inode.index();
        let (chunk, place) = index.find(page)?;
        let is_newer = chunk.state(place).is_newer();
        Some((chunk.frame(place).filter(|_| is_newer)?.clone(), chunk.tag(place)))
    }

    pub fn state(&self, page: u64) -> PageState {
        self.inode.index().state(page)
    }

    /// The first pages of a range that are not there, without those behind them that are.
    pub fn missing(&self, pages: Range<u64>) -> Option<Range<u64>> {
        missing(&self.inode.index(), pages)
    }

    /// The first page of a range that is newer than the disk, or on its way there.
    pub fn next_newer(&self, pages: &Range<u64>) -> Option<u64> {
        self.inode.index().next_newer(pages)
    }

    /// One behind the last page that is newer than the disk.
    pub fn newer_end(&self) -> u64 {
        self.inode.index().last_newer().map_or(0, |page| page + 1)
    }

    /// Pages that are newer than the disk.
    pub fn newer_pages(&self) -> usize {
        self.inode.index().newer
    }

    /// Pages that are dirty.
    pub fn dirty_pages(&self) -> usize {
        self.inode.index().dirty
    }

    /// Pages that are there.
    pub fn pages(&self) -> usize {
        self.inode.index().pages
    }

    /// The file goes behind all others with dirty pages: it had its turn.
    pub fn yield_turn(&self) {
        self.core.relist(&self.inode, &mut self.inode.index_mut());
    }
}

impl Clone for FilePages {
    fn clone(&self) -> Self {
        self.core.reopen(&self.inode);
        Self { core: Arc::clone(&self.core), inode: Arc::clone(&self.inode) }
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        self.core.close(&self.inode);
    }
}

pub(crate) fn missing(index: &Index, pages: Range<u64>) -> Option<Range<u64>> {
    let first = index.next(pages.clone(), false)?;
    let end = index.next(first..pages.end, true).unwrap_or(pages.end);
    Some(first..end)
}

fn copy(
    index: &RwLockReadGuard<'_, Index>,
    at: u64,
    buf: &mut [u8],
    how: Finding,
    pages: &mut usize,
) -> usize {
    let mut done = 0;
    let mut found: Option<(u64, &Chunk)> = None;
    while done < buf.len() {
        let from = at + length(done);
        let page = from / PAGE_BYTES;
        let (number, place) = split(page);
        let chunk = match found {
            Some((same, chunk)) if same == number => chunk,
            _ => match index.find(page) {
                Some((chunk, _)) => chunk,
                None => break,
            },
        };
        found = Some((number, chunk));
        let Some(frame) = chunk.frame(place) else { break };
        let skip = in_memory(from % PAGE_BYTES);
        let bytes = (FRAME_BYTES - skip).min(buf.len() - done);
        let (Some(to), Some(source)) =
            (buf.get_mut(done..done + bytes), frame.get(skip..skip + bytes))
        else {
            break;
        };
        to.copy_from_slice(source);
        if how.stay == Stay::Cached {
            chunk.want(place);
            if !(how.goes_on && done == 0) {
                chunk.warm(place);
            }
        }
        *pages += 1;
        done += bytes;
    }
    done
}

/// A length, where offsets are counted.
pub(crate) fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Bytes, as a length in memory.
pub(crate) fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
