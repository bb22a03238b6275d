//! One operation's part in the running transaction.
//!
//! The first step of a change may be refused; then nothing has happened. Whatever follows must
//! succeed: half a change is never committed, so a refusal there makes the volume read-only. The
//! operations therefore look everything up, and find numbers and space, before their first step.

use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, Filesystem, Result};
use butternut_file::Gone;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::Ino;
use butternut_names::{self as names, Moment, NamesError};
use butternut_tree::{Handle, Need, TreeEdit, TreeError};

/// A subvolume in the running transaction.
#[derive(Debug)]
pub(crate) struct Change<'h> {
    handle: &'h Handle,
    pub(crate) edit: TreeEdit<'h>,
    pub(crate) moment: Moment,
}

impl Filesystem {
    /// Runs `call` in the running transaction. The caller has locked the inodes that it changes.
    pub(crate) fn change<R>(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        need: Need,
        call: impl FnOnce(&Change<'_>) -> Result<R>,
    ) -> Result<R> {
        let now = writer.clock.now();
        let handle = self.forest().join(need)?;
        let moment = Moment { generation: handle.generation(), now };
        let edit = handle.tree(subvolume.id)?;
        let result = call(&Change { handle: &handle, edit, moment });
        drop(handle);
        if result.is_ok() {
            writer.signal.changed();
        }
        result
    }
}

impl Change<'_> {
    /// A step that follows another.
    pub(crate) fn must<T>(&self, step: Result<T, NamesError>) -> Result<T> {
        step.map_err(|error| Error::Tree(self.edit.fail(cause(&self.edit, error))))
    }

    /// Deletes all items of an inode, which has no entries, with `removal`, to which each is shown
    /// first; lets go what those of a file name.
    pub(crate) fn delete(
        &self,
        ino: Ino,
        removal: impl FnOnce(&mut dyn FnMut(Key, &[u8])) -> Result<(), NamesError>,
    ) -> Result<()> {
        let mut gone = Gone::new(self.edit.id(), ino);
        self.must(removal(&mut |key, item| gone.see(key, item)))?;
        gone.let_go(self.handle).map_err(|error| Error::Tree(self.edit.fail(error)))
    }

    /// As [`Self::delete`], of an inode that has lost its name.
    pub(crate) fn delete_inode(&self, ino: Ino, kind: FileKind) -> Result<()> {
        self.delete(ino, |see| names::remove_inode(&self.edit, ino, kind, see).map(drop))
    }

    /// Writes an inode's item. The size and the byte count of a file are not touched: they change
    /// with its extents, and `file` sees to that.
    pub(crate) fn put(&self, ino: Ino, inode: &Inode) -> Result<()> {
        if inode.kind != FileKind::File {
            return self.must(names::put_inode(&self.edit, ino, inode));
        }
        let key = Key::new(ino.0, ItemType::INODE_ITEM, 0);
        let mut is_sound = false;
        let there = self.edit.update(&key, &mut |item| {
            let Ok(was) = Inode::check(item) else { return };
            let now = Inode { size: was.size, bytes_used: was.bytes_used, ..*inode };
            item.copy_from_slice(&now.to_bytes());
            is_sound = true;
        });
        let there = there.map_err(NamesError::from).and_then(|there| {
            if there && is_sound {
                return Ok(());
            }
            let source = Refused::new("inode", "none", "one that was read before");
            Err(NamesError::Corrupt { tree: self.edit.id(), source })
        });
        self.must(there)
    }
}

/// What is wrong with a change that cannot go on.
fn cause(edit: &TreeEdit<'_>, error: NamesError) -> TreeError {
    match error {
        NamesError::Tree(error) => error,
        NamesError::Corrupt { tree, source } => TreeError::Corrupt { tree, source },
        refused @ (NamesError::TooMany { .. }
        | NamesError::Exists
        | NamesError::NoEntry
        | NamesError::NameTooLong
        | NamesError::BadName(_)
        | NamesError::Crowded
        | NamesError::TooManyLinks
        | NamesError::NumbersUsedUp { .. }
        | NamesError::NoAttribute
        | NamesError::AttributeExists
        | NamesError::AttributeTooLarge { .. }
        | NamesError::Invalid { .. }
        | NamesError::Unsupported { .. }) => {
            let source = Refused::new("change", refused.to_string(), "no refusal half-way");
            TreeError::Corrupt { tree: edit.id(), source }
        }
    }
}
