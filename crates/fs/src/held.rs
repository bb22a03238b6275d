//! Inodes in use: what is held stays when its last name goes, and is deleted when it is let go.
//!
//! Laws:
//!
//! 1. An inode without a name that is held, or whose deletion may take more than one transaction,
//!    has an orphan item: should nobody get to delete it, the next open for writing does.
//! 2. The last handle of such an inode takes its lock, and deletes it: so no handle ends on a
//!    thread that has a lock which others want while they have an inode's, or helps requests in
//!    flight with an inode locked ([`NoRelease`]).
//! 3. Its deletion goes in transactions that each leave the volume whole: data first, the inode and
//!    its orphan item last, together. Others go with their names (`unlink`).

use crate::inode_table::{Body, InodeEntry};
use crate::root::ROOT_DIRECTORY;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_file::FileState;
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, Look};
use butternut_tree::Need;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Items that deleting an inode without data may change, when it has no more attributes than
/// usual. With more, blocks are freed rather than made.
const ITEMS_OF_DELETION: u32 = 8;

/// Orphans looked up at once.
const ORPHANS_PER_LOOK: usize = 256;

/// An inode in use. While this lives, so does the inode, without a name if need be.
pub struct Held {
    filesystem: Filesystem,
    entry: Arc<InodeEntry>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Held {
    pub(crate) fn entry(&self) -> &Arc<InodeEntry> {
        &self.entry
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    pub fn id(&self) -> FileId {
        self.entry.id
    }
}

/// While this lives, no handle may end on the thread (law 2); builds with assertions see to that.
pub(crate) struct NoRelease(PhantomData<*const ()>);

#[cfg(debug_assertions)]
thread_local! {
    static NO_RELEASES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl NoRelease {
    pub(crate) fn begin() -> Self {
        #[cfg(debug_assertions)]
        NO_RELEASES.with(|count| count.set(count.get() + 1));
        Self(PhantomData)
    }

    fn require_none() {
        #[cfg(debug_assertions)]
        NO_RELEASES.with(|count| {
            let is_fit = count.get() == 0 || std::thread::panicking();
            assert!(is_fit, "a handle of an inode ends under a lock");
        });
    }
}

impl Drop for NoRelease {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        NO_RELEASES.with(|count| count.set(count.get() - 1));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        NoRelease::require_none();
        if !self.entry.let_go() {
            return;
        }
        if self.entry.known().is_some_and(|inode| inode.nlink == 0) {
            // What cannot be deleted now is found when the volume is opened again (law 1).
            drop(self.filesystem.bury(&self.entry));
        } else if let Ok(writer) = self.filesystem.writer() {
            writer.idle.note(&self.entry);
        }
    }
}

impl Filesystem {
    /// Keeps an inode in being while the answer lives, even if it loses its last name. An open
    /// [`File`](crate::File) does the same. `None` on a filesystem that is not open for writing:
    /// nothing ever goes there.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale) where there is no such inode.
    pub fn hold(&self, id: FileId) -> Result<Option<Held>> {
        let Some(writer) = &self.shared.writer else { return Ok(None) };
        if id.is_placeholder() {
            return Ok(None);
        }
        let entry = writer.table.entry(id);
        let body = entry.body();
        self.facts(&entry)?;
        entry.hold();
        drop(body);
        Ok(Some(self.held(entry)))
    }

    /// A handle that was counted.
    pub(crate) fn held(&self, entry: Arc<InodeEntry>) -> Held {
        Held { filesystem: self.clone(), entry }
    }

    /// Deletes an inode that has no name, unless it is in use.
    pub(crate) fn bury(&self, entry: &Arc<InodeEntry>) -> Result<()> {
        let writer = self.writer()?;
        // Before the body: where nothing has been written to the subvolume yet, this deletes its
        // orphans, and takes the body of each.
        let subvolume = self.writable_subvolume(writer, entry.id)?;
        let mut body = entry.body_mut();
        let Some(inode) = entry.known().filter(|inode| inode.nlink == 0) else { return Ok(()) };
        if entry.is_held() {
            return Ok(());
        }
        require_deletable(&subvolume, Ino(entry.id.ino), &inode)?;
        self.drop_data(&subvolume, entry, &inode, &mut body)?;
        self.change(writer, &subvolume, Need::items(ITEMS_OF_DELETION).deleting(), |change| {
            let ino = Ino(entry.id.ino);
            change.delete_inode(ino, inode.kind)?;
            change.must(names::remove_orphan(&change.edit, ino)).map(drop)
        })?;
        forget(writer, entry, &mut body);
        Ok(())
    }

    /// Gives the space of a file's data back.
    fn drop_data(
        &self,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        inode: &Inode,
        body: &mut Body,
    ) -> Result<()> {
        if inode.kind != FileKind::File {
            return Ok(());
        }
        if body.file.is_none() && inode.size == 0 && inode.bytes_used == 0 {
            return Ok(());
        }
        let mut file = body.file.take().unwrap_or_else(|| {
            let ino = Ino(entry.id.ino);
            Box::new(FileState::new(&self.shared.source, &subvolume.tree, ino, inode))
        });
        file.discard();
        if file.size() > 0 || file.bytes_used() > 0 {
            file.truncate(0, &mut |_| {})?;
        }
        Ok(())
    }

    /// Deletes what was without a name when the volume was last closed, or cut off from its power.
    /// Nothing has been written to the subvolume yet. An inode that cannot be deleted is left for
    /// the next open, and those behind it are deleted; the answer is what was left.
    pub(crate) fn delete_orphans(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
    ) -> Option<LeftOrphans> {
        let mut left: Option<LeftOrphans> = None;
        let mut from = Some(Ino(0));
        while let Some(start) = from.take() {
            let found = match names::orphans(&subvolume.tree, start, ORPHANS_PER_LOOK) {
                Ok(found) => found,
                Err(error) => {
                    LeftOrphans::add(&mut left, subvolume.id, None, error.into());
                    break;
                }
            };
            for ino in &found {
                let Err(error) = self.delete_orphan(writer, subvolume, *ino) else { continue };
                LeftOrphans::add(&mut left, subvolume.id, Some(*ino), error);
                if self.forest().write_error().is_some() {
                    return left;
                }
            }
            from = found.last().and_then(|last| last.0.checked_add(1)).map(Ino);
        }
        left
    }

    fn delete_orphan(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        ino: Ino,
    ) -> Result<()> {
        // An inode without a name can be open, by its id: then the last handle deletes it.
        let entry = writer.table.entry(FileId::new(subvolume.id.0, ino.0));
        let mut body = entry.body_mut();
        if entry.is_held() {
            return Ok(());
        }
        let inode = names::inode(&subvolume.tree, ino)?;
        let gone = inode.filter(|inode| inode.nlink == 0);
        if let Some(inode) = &gone {
            require_deletable(subvolume, ino, inode)?;
            entry.set(*inode);
            self.drop_data(subvolume, &entry, inode, &mut body)?;
        }
        self.change(writer, subvolume, Need::items(ITEMS_OF_DELETION).deleting(), |change| {
            if let Some(inode) = &gone {
                change.delete_inode(ino, inode.kind)?;
            }
            change.must(names::remove_orphan(&change.edit, ino)).map(drop)
        })?;
        if gone.is_some() {
            forget(writer, &entry, &mut body);
        }
        Ok(())
    }
}

/// Refuses a directory whose deletion leaves items without an inode, which no commit writes: one
/// that has entries, which only a damaged or prepared volume has without a name; and the root.
fn require_deletable(subvolume: &WritableSubvolume, ino: Ino, inode: &Inode) -> Result<()> {
    if inode.kind != FileKind::Directory {
        return Ok(());
    }
    if ino.0 == ROOT_DIRECTORY {
        return Err(Error::Busy);
    }
    let first = subvolume.tree.first_from(&Key::new(ino.0, ItemType::DIR_ITEM, 0));
    match first.map_err(names::NamesError::from)? {
        Some((key, _)) if key.objectid == ino.0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

/// Inodes without a name that could not be deleted when their subvolume was opened for writing.
#[derive(Debug)]
pub(crate) struct LeftOrphans {
    pub(crate) subvolume: TreeId,
    pub(crate) count: u64,
    /// The first of them; `None` where their list could not be read to its end.
    pub(crate) first: Option<Ino>,
    /// Why that one was not deleted.
    pub(crate) error: Error,
}

impl LeftOrphans {
    fn add(left: &mut Option<Self>, subvolume: TreeId, ino: Option<Ino>, error: Error) {
        let count = u64::from(ino.is_some());
        match left {
            Some(left) => left.count += count,
            None => *left = Some(Self { subvolume, count, first: ino, error }),
        }
    }
}

/// The inode is no more. The caller has its body.
pub(crate) fn forget(writer: &Writer, entry: &InodeEntry, body: &mut Body) {
    writer.signal.freed(entry.known().map_or(0, |inode| inode.bytes_used));
    if let Some(mut file) = body.file.take() {
        file.discard();
    }
    *body = Body::default();
    entry.set_gone();
    writer.mark_clean(entry);
    writer.table.remove(entry);
}
