//! [`Change`]: the pages of a file, held alone for some steps in memory.

use crate::cache::{Books, Core, FileKey, Inode};
use crate::chunk::PageState;
use crate::file_pages::FilePages;
use crate::index::{Index, Patched, Stay};
use crate::sync::RwLockWriteGuard;
use crate::tag::Tag;
use butternut_sys::frames::{FRAME_BYTES, Frame};
use std::ops::Range;
use std::sync::Arc;

/// The pages of a file, to be changed. Readers of the file wait meanwhile: whoever has this reads
/// and writes no disk, and asks the cache for no frames.
#[derive(Debug)]
pub struct Change<'a> {
    core: &'a Core,
    inode: &'a Arc<Inode>,
    pub(crate) books: Books<'a>,
    pub(crate) index: RwLockWriteGuard<'a, Index>,
}

impl FilePages {
    pub fn change(&self) -> Change<'_> {
        let index = self.inode.index_mut();
        let books = Books::new(&self.core, &self.inode);
        Change { core: &self.core, inode: &self.inode, books, index }
    }

    /// Forgets pages, clean and dirty, and what is being read of them: the range is, or is about
    /// to be, something else. Waits for what is on its way to the disk; nobody may send more of
    /// the range meanwhile. Says how many were dirty.
    pub fn invalidate(&self, pages: &Range<u64>) -> usize {
        let mut dirty = 0;
        self.inode.turn.wait_while(|| {
            let mut change = self.change();
            dirty += change.discard(pages);
            change.index.next_written(pages).is_some()
        });
        dirty
    }

    /// Forgets the pages of a range that were brought by uncached reads and writes, and that
    /// nobody else wanted since.
    pub fn drop_behind(&self, pages: &Range<u64>) -> usize {
        let mut change = self.change();
        let Change { books, index, .. } = &mut change;
        index.remove_transient(books, pages)
    }
}

impl Change<'_> {
    /// Panics unless the counts are those of the pages: for tests.
    pub fn check(&self) {
        self.index.check();
    }

    pub fn key(&self) -> FileKey {
        self.inode.key
    }

    pub fn state(&self, page: u64) -> PageState {
        self.index.state(page)
    }

    /// Gives a page all of its bytes; it is dirty from now on.
    pub fn put(&mut self, page: u64, frame: Frame, tag: Tag, stay: Stay) {
        self.index.put(&mut self.books, page, frame, tag, stay);
    }

    /// Writes `bytes` from byte `skip` of a page that is there; it is dirty from now on. Where its
    /// bytes are in use, they are copied to `spare`. A page that is dirty already keeps its tag.
    pub fn patch(
        &mut self,
        page: u64,
        skip: usize,
        bytes: &[u8],
        spare: &mut Option<Frame>,
        (tag, stay): (Tag, Stay),
    ) -> Patched {
        assert!(skip + bytes.len() <= FRAME_BYTES, "a write lies in its page");
        self.index.patch(&mut self.books, page, (skip, bytes), spare, (tag, stay))
    }

    /// A dirty page's tag is another.
    pub fn set_tag(&mut self, page: u64, tag: Tag) {
        self.index.set_tag(page, tag);
    }

    /// Forgets the pages of a range, but for those on their way to the disk. Says how many were
    /// dirty.
    pub fn discard(&mut self, pages: &Range<u64>) -> usize {
        let before = self.index.dirty;
        self.index.remove(&mut self.books, pages);
        before - self.index.dirty
    }

    /// Forgets the clean pages of a range, and what is being read of it: the disk has something
    /// else now, and what is dirty is newer than that.
    pub fn discard_clean(&mut self, pages: &Range<u64>) {
        self.index.remove_clean(&mut self.books, pages);
    }

    /// Dirty pages of a range, with their bytes and tags.
    pub fn dirty(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &Frame, Tag)> {
        let mut from = pages.start;
        std::iter::from_fn(move || {
            let page = self.index.next_dirty(&(from..pages.end))?;
            from = page + 1;
            let (chunk, place) = self.index.find(page)?;
            Some((page, chunk.frame(place)?, chunk.tag(place)))
        })
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.core.list(self.inode, &mut self.index);
    }
}
