//! [`FilePages`]: the pages of one file. This module looks up and copies pages; `change` changes
//! them, `fill` inserts them, `writeback` writes them back.

use crate::cache::{Core, Inode, PageCache};
use crate::counters::add;
use crate::file_key::FileKey;
use crate::index::{CacheMode, Index};
use crate::page_group::{PageGroup, PageState, locate};
use crate::sync::RwLockReadGuard;
use crate::tag::Tag;
use butternut_sys::frames::{FRAME_BYTES, Frame};
use std::ops::Range;
use std::sync::Arc;

/// Pages that are copied under one hold of the index lock; other threads can take it in between.
const COPY_PAGES: u64 = 64;
/// Bytes of a page, as an offset.
pub const PAGE_BYTES: u64 = 4096;
const _: () = assert!(FRAME_BYTES == 4096);

/// The pages of one file. A clone is another handle of the same pages.
#[derive(Debug)]
pub struct FilePages {
    pub(crate) core: Arc<Core>,
    pub(crate) inode: Arc<Inode>,
}

/// How a read uses the pages that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// An uncached read changes neither the access counts nor the drop-behind marks of the pages.
    pub mode: CacheMode,
    /// The read continues in the page in which the previous one ended. That page's access was
    /// counted then, so it is not counted again.
    pub continues_page: bool,
}

impl ReadOptions {
    pub const CACHED: Self = Self { mode: CacheMode::Cached, continues_page: false };
    pub const UNCACHED: Self = Self { mode: CacheMode::Uncached, continues_page: false };
}

impl PageCache {
    /// Returns a handle of the pages of a file. The file may have pages from earlier handles.
    pub fn file(&self, key: FileKey) -> FilePages {
        FilePages { core: Arc::clone(&self.0), inode: self.0.open(key) }
    }
}

impl FilePages {
    pub fn key(&self) -> FileKey {
        self.inode.key
    }

    /// Returns [`PageCache::is_poisoned`](crate::PageCache::is_poisoned) after it has checked the
    /// lock of this file's pages.
    pub fn is_poisoned(&self) -> bool {
        drop(self.inode.index());
        self.core.poison.is_set()
    }

    /// Copies present pages from byte `at` on, up to the first absent page. Returns how many bytes
    /// were copied. Takes no lock that any thread holds during I/O.
    pub fn read(&self, at: u64, buf: &mut [u8], options: ReadOptions) -> usize {
        let mut done = 0;
        let mut pages = 0;
        while done < buf.len() {
            let index = self.inode.index();
            let from = at + length(done);
            let end = (from / PAGE_BYTES + COPY_PAGES) * PAGE_BYTES;
            let most = in_memory(end - from).min(buf.len() - done);
            let rest = buf.get_mut(done..done + most).unwrap_or_default();
            let copied = copy(&index, from, rest, options, &mut pages);
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

    /// Returns the frame of a present page, and its tag if it is dirty. The bytes of the frame stay
    /// as they are, whatever happens to the page.
    pub fn page(&self, page: u64) -> Option<(Frame, Option<Tag>)> {
        let index = self.inode.index();
        let (group, slot) = index.find(page)?;
        let is_dirty = group.state(slot).is_dirty();
        Some((group.frame(slot)?.clone(), is_dirty.then(|| group.tag(slot))))
    }

    /// Returns the frame and the tag of a page that is newer than the disk.
    pub fn newer_frame(&self, page: u64) -> Option<(Frame, Tag)> {
        let index = self.inode.index();
        let (group, slot) = index.find(page)?;
        let is_newer = group.state(slot).is_newer();
        Some((group.frame(slot).filter(|_| is_newer)?.clone(), group.tag(slot)))
    }

    pub fn state(&self, page: u64) -> PageState {
        self.inode.index().state(page)
    }

    /// Returns how many pages of the file were evicted. The count begins anew when the file has had
    /// no handle.
    pub fn evicted_pages(&self) -> u64 {
        self.inode.index().evicted
    }

    /// Returns the first run of absent pages in a range.
    pub fn missing(&self, pages: Range<u64>) -> Option<Range<u64>> {
        missing(&self.inode.index(), pages)
    }

    /// Returns the first page of a range that is dirty or under writeback.
    pub fn next_newer(&self, pages: &Range<u64>) -> Option<u64> {
        self.inode.index().next_newer(pages)
    }

    /// Returns the page after the last one that is newer than the disk; 0 if there is none.
    pub fn newer_end(&self) -> u64 {
        self.inode.index().last_newer().map_or(0, |page| page + 1)
    }

    /// Returns the number of pages that are dirty, under writeback, or both.
    pub fn newer_pages(&self) -> usize {
        self.inode.index().newer
    }

    /// Returns the number of dirty pages.
    pub fn dirty_pages(&self) -> usize {
        self.inode.index().dirty
    }

    /// Returns the number of present pages.
    pub fn pages(&self) -> usize {
        self.inode.index().pages
    }

    /// Moves the file to the end of the list of dirty files, so that flushers continue with others.
    pub fn move_to_dirty_tail(&self) {
        self.core.move_to_dirty_tail(&self.inode, &mut self.inode.index_mut());
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
    options: ReadOptions,
    pages: &mut usize,
) -> usize {
    let mut done = 0;
    let mut found: Option<(u64, &PageGroup)> = None;
    while done < buf.len() {
        let from = at + length(done);
        let page = from / PAGE_BYTES;
        let (number, slot) = locate(page);
        let group = match found {
            Some((same, group)) if same == number => group,
            _ => match index.find(page) {
                Some((group, _)) => group,
                None => break,
            },
        };
        found = Some((number, group));
        let Some(frame) = group.frame(slot) else { break };
        let skip = in_memory(from % PAGE_BYTES);
        let bytes = (FRAME_BYTES - skip).min(buf.len() - done);
        let (Some(to), Some(source)) =
            (buf.get_mut(done..done + bytes), frame.get(skip..skip + bytes))
        else {
            break;
        };
        to.copy_from_slice(source);
        if options.mode == CacheMode::Cached {
            group.clear_dropbehind(slot);
            if !(options.continues_page && done == 0) {
                group.count_access(slot);
            }
        }
        *pages += 1;
        done += bytes;
    }
    done
}

/// Converts a length in memory to a file offset.
pub(crate) fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Converts a file offset to a length in memory.
pub(crate) fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
