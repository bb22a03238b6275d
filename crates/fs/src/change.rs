//! [`Change`]: the edits of one operation in the running transaction.
//!
//! A change consists of steps ([`Change::step`]). The first step may be refused, and has then
//! changed nothing. An error after the first edit, in that step or in a further one, makes the
//! volume read-only, because half a change is never committed. Operations therefore do all lookups,
//! and allocate numbers and space, before their first step.

use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, Filesystem, Result};
use butternut_file::DroppedExtents;
use butternut_format::feature;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{self as names, Moment, NamesError};
use butternut_tree::{Handle, Need, QuotaHold, TreeEdit, TreeError};
use std::cell::Cell;

/// One subvolume in the running transaction.
#[derive(Debug)]
pub(crate) struct Change<'h> {
    handle: &'h Handle,
    pub(crate) edit: TreeEdit<'h>,
    pub(crate) moment: Moment,
    /// Whether a step has succeeded.
    is_begun: Cell<bool>,
}

impl Filesystem {
    /// Runs `call` in the running transaction. The caller has locked the inodes that it changes.
    pub(crate) fn change<R>(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        need: Need,
        call: impl FnOnce(&Change<'_>) -> Result<R>,
    ) -> Result<R> {
        let now = write_state.clock.now();
        let hold =
            need.is_charged.then(|| self.hold_quota(subvolume.id, need.items)).transpose()?;
        let handle = self.forest().join(need)?;
        let moment = Moment { generation: handle.generation(), now };
        let edit = handle.tree(subvolume.id)?;
        let is_begun = Cell::new(false);
        let result = call(&Change { handle: &handle, edit, moment, is_begun });
        drop(handle);
        drop(hold);
        if result.is_ok() {
            write_state.signal.changed();
        }
        result
    }

    /// Charges the blocks that a change may add. At a limit, commits first what was deleted.
    pub(crate) fn hold_quota(&self, tree: TreeId, items: u32) -> Result<Option<QuotaHold>> {
        match self.forest().hold_quota(tree, items) {
            Err(TreeError::QuotaExceeded { .. }) if self.forest().commit_may_free_quota(tree) => {
                self.forest().commit()?;
                Ok(self.forest().hold_quota(tree, items)?)
            }
            hold => Ok(hold?),
        }
    }
}

impl Change<'_> {
    /// Takes the result of a step. The first step may be refused: then it has changed nothing. An
    /// error of a further step makes the volume read-only.
    pub(crate) fn step<T>(&self, step: Result<T, NamesError>) -> Result<T> {
        match step {
            Ok(done) => {
                self.is_begun.set(true);
                Ok(done)
            }
            Err(error) if self.is_begun.get() => {
                Err(Error::Tree(self.handle.abort(error.into_midway(self.edit.id()))))
            }
            Err(NamesError::Tree(error)) => Err(Error::Tree(self.edit.fail(error))),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Records in the superblock that a file of the volume is sealed by fs-verity.
    pub(crate) fn add_verity_feature(&self) {
        self.handle.add_compat_ro_feature(feature::VERITY);
    }

    /// Deletes all items of an inode, which has no entries. `removal` deletes them, and shows each
    /// one first; the extents that file items refer to are freed.
    pub(crate) fn delete(
        &self,
        ino: Ino,
        removal: impl FnOnce(&mut dyn FnMut(Key, &[u8])) -> Result<(), NamesError>,
    ) -> Result<()> {
        let mut dropped = DroppedExtents::new(self.edit.id(), ino);
        self.step(removal(&mut |key, item| dropped.note_item(key, item)))?;
        dropped.drop_references(self.handle).map_err(|error| Error::Tree(self.edit.fail(error)))
    }

    /// As [`Self::delete`], for an inode that has lost its last name.
    pub(crate) fn delete_inode(&self, ino: Ino, kind: FileKind) -> Result<()> {
        self.delete(ino, |see| names::remove_inode(&self.edit, ino, kind, see).map(drop))
    }

    /// Writes an inode's item. For a file, the size and the byte count stay as they are: the `file`
    /// crate changes them together with the extents.
    pub(crate) fn put(&self, ino: Ino, inode: &Inode) -> Result<()> {
        self.step(put_attributes(&self.edit, ino, inode))
    }
}

/// As [`Change::put`], for edits of a commit.
pub(crate) fn put_attributes(
    edit: &TreeEdit<'_>,
    ino: Ino,
    inode: &Inode,
) -> Result<(), NamesError> {
    if inode.kind != FileKind::File {
        return names::put_inode(edit, ino, inode);
    }
    let key = Key::new(ino.0, ItemType::INODE_ITEM, 0);
    let mut is_replaced = false;
    let is_found = edit.update(&key, &mut |item| {
        let Ok(was) = Inode::check(item) else { return };
        let now = Inode { size: was.size, bytes_used: was.bytes_used, ..*inode };
        item.copy_from_slice(&now.to_bytes());
        is_replaced = true;
    })?;
    if is_found && is_replaced {
        return Ok(());
    }
    let source = Refused::new("inode", "none", "the item that was read before");
    Err(NamesError::Tree(edit.fail(TreeError::Corrupt { tree: edit.id(), source })))
}
