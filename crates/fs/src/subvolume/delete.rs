//! The deletion of subvolumes: their names at once, in one commit; their blocks later (`clean`).
//!
//! Laws:
//!
//! 1. When the call returns, no name leads to the subvolume, also after a crash. An orphan item of
//!    the root tree names it until its blocks are freed.
//! 2. Nothing is written to its tree from then on: while operations that write and merges are
//!    excluded, it is deleted, and then what memory has of it is dropped. Files in it that are
//!    still open can be read until they are closed, and not written: what they have in memory only
//!    is written back first.
//! 3. A deletion that fails has changed nothing, in memory either.

use crate::names::create::check_name;
use crate::names::unlink::may_lose_entry;
use crate::subvolume::mark::CheckpointMark;
use crate::subvolume::uuid_tree::UuidTree;
use crate::write_state::WriteState;
use crate::{Error, FileId, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::root::RootItem;
use butternut_format::units::{Ino, TreeId};
use butternut_format::uuid::Uuid;
use butternut_names::{self as names, Moment, OldName, OldTarget, SubvolumePair};
use butternut_tree::{ReservationLevel, TreeError};

/// The subvolume that a caller wants to delete: that of a name in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Any,
    Id(u64),
    /// That of an id, if it was not writable since it had the mark of a checkpoint.
    Marked(u64, CheckpointMark),
    /// One without entries.
    Empty,
}

impl Filesystem {
    /// Deletes the subvolume of a name, with everything in it, and returns its id. The deletion is
    /// durable when this returns; its space is freed in the background, or by
    /// [`Filesystem::clean_subvolumes`].
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::ReadOnly`]; [`Error::InvalidArgument`] if the name is no
    /// subvolume's; [`Error::NotEmpty`] if other subvolumes are inside it;
    /// [`Error::NotPermitted`] if it is the default subvolume or is being sent, or is the parent or
    /// a clone source of a stream that is being received, or it or the directory is immutable or
    /// append-only; [`Error::Busy`] if it is the root of this handle.
    pub fn delete_subvolume(&self, dir: FileId, name: &[u8]) -> Result<u64> {
        self.delete_named(dir, name, Wanted::Any)
    }

    /// Deletes the subvolume of a name as [`Filesystem::delete_subvolume`] does, if it is the one
    /// with this id. For a caller that has checked that subvolume before.
    ///
    /// # Errors
    /// As of [`Filesystem::delete_subvolume`]; [`Error::NotFound`] if the name is another
    /// subvolume's by now.
    pub fn delete_subvolume_of_id(&self, dir: FileId, name: &[u8], id: u64) -> Result<()> {
        self.delete_named(dir, name, Wanted::Id(id)).map(drop)
    }

    /// Deletes the checkpoint of a name as [`Filesystem::delete_subvolume_of_id`] does, unless it
    /// has become writable since it was found to have its mark.
    ///
    /// # Errors
    /// As of [`Filesystem::delete_subvolume_of_id`]; [`Error::NotFound`] also if it was writable.
    pub(crate) fn delete_checkpoint(
        &self,
        dir: FileId,
        name: &[u8],
        (id, mark): (u64, CheckpointMark),
    ) -> Result<()> {
        self.delete_named(dir, name, Wanted::Marked(id, mark)).map(drop)
    }

    /// Deletes the subvolume of a name as [`Filesystem::delete_subvolume`] does, if nothing is in
    /// it: that is rmdir(2).
    ///
    /// # Errors
    /// As of [`Filesystem::delete_subvolume`]; [`Error::NotEmpty`].
    pub(crate) fn delete_empty_subvolume(&self, dir: FileId, name: &[u8]) -> Result<()> {
        self.delete_named(dir, name, Wanted::Empty).map(drop)
    }

    fn delete_named(&self, dir: FileId, name: &[u8], wanted: Wanted) -> Result<u64> {
        let write_state = self.may_begin()?;
        check_name(name)?;
        self.open_before_exclusion(write_state, dir)?;
        if let Ok((id, _)) = self.entry(dir, name)
            && id.is_subvolume_root()
        {
            // Most of it is written back while operations may still write.
            drop(self.write_back_open_files(write_state, id.subvolume));
        }
        let excluded = write_state.snapshots.exclude_writes();
        let deleted = self.delete_excluded(write_state, (dir, name), wanted);
        drop(excluded);
        if deleted.is_ok() {
            write_state.cleaner.request();
        }
        deleted
    }

    fn delete_excluded(
        &self,
        write_state: &WriteState,
        (dir, name): (FileId, &[u8]),
        wanted: Wanted,
    ) -> Result<u64> {
        let subvolume = self.writable_subvolume(write_state, dir)?;
        let parent = self.entry_of(write_state, dir)?;
        let id = self.entry(dir, name)?.0;
        if !id.is_subvolume_root() || id == dir {
            return Err(Error::InvalidArgument { what: "it is no subvolume" });
        }
        if let Wanted::Id(wanted) | Wanted::Marked(wanted, _) = wanted
            && wanted != id.subvolume
        {
            return Err(Error::NotFound);
        }
        let id = TreeId(id.subvolume);
        let root_inode = self.inode(FileId::root_of(id.0))?;
        if wanted == Wanted::Empty {
            self.require_empty_root(id, &root_inode)?;
        }
        if let Wanted::Marked(_, mark) = wanted {
            let root = self.forest().root_item(id)?;
            root.filter(|(_, root)| mark.is_kept(root)).ok_or(Error::NotFound)?;
        }
        let root = self.deletable(id)?;
        write_state.sent.require_none(id.0)?;
        // What cannot be written back is lost to open files, and must not prevent the deletion.
        drop(self.write_back_open_files(write_state, id.0));
        // None of its files is merged once it is deleted (law 2).
        let alone = write_state.merges.exclude();
        let state = parent.lock();
        let mut parent_inode = self.directory_to_change(&parent)?;
        may_lose_entry(&parent_inode, &root_inode)?;
        let link = self.subvolume_link_at(id, (dir, name))?;
        // Where the reference has another index, the entry under the right one would be left.
        let index = names::index_of_subvolume(&subvolume.tree, &link)?;
        let uuids = uuids(&root);
        let uuid_tree = UuidTree::of(self.forest(), &uuids);
        let now = write_state.clock.now();
        self.forest().commit_with(ReservationLevel::Deletion, |at_commit| -> Result<()> {
            let at = Ino(dir.ino);
            let edit = at_commit.tree(subvolume.id)?;
            let target = OldTarget::Unreferenced { index };
            names::unlink(&edit, &OldName { dir: at, name, target })?;
            let moment = Moment { generation: at_commit.generation(), now };
            names::entry_removed(&mut parent_inode, name, moment);
            names::put_inode(&edit, at, &parent_inode)?;
            let roots = at_commit.tree(TreeId::ROOT)?;
            names::remove_root_ref(&roots, SubvolumePair { child: id, parent: subvolume.id })?;
            names::add_orphan(&roots, Ino(id.0))?;
            uuid_tree.remove(at_commit, &uuids, id)?;
            at_commit.delete_tree(id)?;
            Ok(())
        })?;
        parent.set(parent_inode);
        drop(state);
        self.shared.roots.remove(id.0);
        write_state.discard_subvolume(id.0);
        // No data of it can be lost any more.
        self.shared.source.forget_errors_in_tree(id);
        drop(alone);
        Ok(id.0)
    }

    /// Refuses a subvolume with entries in its root directory. That includes entries that only
    /// their hash finds.
    fn require_empty_root(&self, id: TreeId, root: &Inode) -> Result<()> {
        let dir = FileId::root_of(id.0);
        let tree = self.tree_of(dir)?;
        let mut cursor = tree.scan();
        cursor.seek(&Key::new(dir.ino, ItemType::DIR_ITEM, 0))?;
        let first = cursor.item_parts().map(|(key, _)| key);
        let has_entry = first.is_some_and(|key| {
            key.objectid == dir.ino
                && matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX)
        });
        if root.size > 0 || has_entry { Err(Error::NotEmpty) } else { Ok(()) }
    }

    /// Returns the root item of a subvolume that may be deleted.
    fn deletable(&self, id: TreeId) -> Result<RootItem> {
        let roots = self.forest().root_tree();
        if id == TreeId::FS {
            return Err(Error::NotPermitted { what: "it is the top level" });
        }
        if names::default_subvolume(&roots)? == Some(id) {
            return Err(Error::NotPermitted { what: "it is the default subvolume" });
        }
        if self.root() == FileId::root_of(id.0) {
            return Err(Error::Busy);
        }
        match names::children(&roots, id, 1) {
            Ok(children) if children.is_empty() => {}
            Ok(_) | Err(names::NamesError::TooMany { .. }) => return Err(Error::NotEmpty),
            Err(error) => return Err(error.into()),
        }
        let (_, root) =
            self.forest().root_item(id)?.ok_or(Error::Tree(TreeError::NoTree { tree: id }))?;
        Ok(root)
    }
}

/// Returns the UUIDs under which the UUID tree lists a subvolume.
fn uuids(root: &RootItem) -> Vec<(ItemType, Uuid)> {
    let history = root.history().unwrap_or_default();
    let known = [
        (ItemType::UUID_SUBVOL, Uuid(history.uuid)),
        (ItemType::UUID_RECEIVED_SUBVOL, Uuid(history.received_uuid)),
    ];
    known.into_iter().filter(|(_, uuid)| !uuid.is_nil()).collect()
}
