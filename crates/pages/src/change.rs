//! [`Change`]: exclusive access to the pages of a file.

use crate::cache::{Accounting, Core, Inode};
use crate::file_key::FileKey;
use crate::file_pages::FilePages;
use crate::index::{CacheMode, Index, PageWrite};
use crate::page_group::PageState;
use crate::sync::RwLockWriteGuard;
use crate::tag::Tag;
use butternut_sys::frames::{FRAME_BYTES, Frame};
use std::ops::Range;
use std::sync::Arc;

/// Exclusive access to the pages of a file. All other users of the file's pages wait meanwhile, so
/// the holder does no I/O. It allocates no frame either: an eviction locks indexes, so that could
/// deadlock.
#[derive(Debug)]
pub struct Change<'a> {
    core: &'a Core,
    inode: &'a Arc<Inode>,
    pub(crate) accounting: Accounting<'a>,
    pub(crate) index: RwLockWriteGuard<'a, Index>,
}

impl FilePages {
    pub fn change(&self) -> Change<'_> {
        let index = self.inode.index_mut();
        let accounting = Accounting::new(&self.core, &self.inode);
        Change { core: &self.core, inode: &self.inode, accounting, index }
    }

    /// Removes all pages of a range, clean and dirty, and spoils fills of it, because the range has
    /// been changed on disk or is about to be. Waits until no page of it is under writeback; the
    /// caller makes sure that no writeback of the range begins meanwhile. Returns how many pages
    /// were dirty.
    pub fn invalidate(&self, pages: &Range<u64>) -> usize {
        let mut dirty = 0;
        self.inode.events.wait_while(|| {
            let mut change = self.change();
            dirty += change.remove(pages);
            change.index.next_writeback(pages).is_some()
        });
        dirty
    }

    /// Removes the clean pages of a range that uncached reads or writes have inserted and that no
    /// cached access has used since. Returns how many.
    pub fn drop_behind(&self, pages: &Range<u64>) -> usize {
        let mut change = self.change();
        let Change { accounting, index, .. } = &mut change;
        index.remove_dropbehind(accounting, pages)
    }
}

impl Change<'_> {
    /// Checks that the counts match the states of the pages, for tests.
    pub fn check(&self) {
        self.index.check();
    }

    pub fn key(&self) -> FileKey {
        self.inode.key
    }

    pub fn state(&self, page: u64) -> PageState {
        self.index.state(page)
    }

    /// Replaces a whole page with `frame` and marks it dirty.
    pub fn write_page(&mut self, page: u64, frame: Frame, tag: Tag, mode: CacheMode) {
        self.index.write_page(&mut self.accounting, page, frame, tag, mode);
    }

    /// Writes `bytes` into a present page from its byte `skip` on, and marks the page dirty. If its
    /// frame has other users, the page is copied to `spare`, which becomes its frame. A page that
    /// is dirty already keeps its tag.
    pub fn write_bytes(
        &mut self,
        page: u64,
        skip: usize,
        bytes: &[u8],
        spare: &mut Option<Frame>,
        (tag, mode): (Tag, CacheMode),
    ) -> PageWrite {
        assert!(skip + bytes.len() <= FRAME_BYTES, "a write stays within its page");
        self.index.write_bytes(&mut self.accounting, page, (skip, bytes), spare, (tag, mode))
    }

    /// Changes the tag of a dirty page.
    pub fn set_tag(&mut self, page: u64, tag: Tag) {
        self.index.set_tag(page, tag);
    }

    /// Removes the pages of a range except those under writeback, and spoils fills of it. Returns
    /// how many pages were dirty.
    pub fn remove(&mut self, pages: &Range<u64>) -> usize {
        let before = self.index.dirty;
        self.index.remove(&mut self.accounting, pages);
        before - self.index.dirty
    }

    /// Removes the clean pages of a range and spoils fills of it, because the range has changed on
    /// disk. Dirty pages stay: they are newer than that change.
    pub fn remove_clean(&mut self, pages: &Range<u64>) {
        self.index.remove_clean(&mut self.accounting, pages);
    }

    /// Returns the dirty pages of a range in order, each with its frame and tag.
    pub fn dirty(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &Frame, Tag)> {
        let mut from = pages.start;
        std::iter::from_fn(move || {
            let page = self.index.next_dirty(&(from..pages.end))?;
            from = page + 1;
            let (group, slot) = self.index.find(page)?;
            Some((page, group.frame(slot)?, group.tag(slot)))
        })
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.core.update_dirty_list(self.inode, &mut self.index);
    }
}
