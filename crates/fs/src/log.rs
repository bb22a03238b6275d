//! What an fsync logs of a file: the items that changed since the last commit, or since the last
//! fsync of the file.
//!
//! ```text
//! inode item                    always
//! extended attributes           always all: a replay removes those that the log lacks
//! changed extents               the item at each changed offset, and the hole where there is none
//! references by names           all, of an inode that the running transaction created
//! checksums                     of the logged extents, as far as the commit has not written them
//! ```
//!
//! The changes are known by key (`tree`), so nothing in memory that may be evicted decides what is
//! logged. Whatever the log cannot express needs a commit, with a [`CommitReason`].
//!
//! Laws:
//!
//! 1. The inode is locked exclusively from the look at its changes until they are appended, so the
//!    log has the items of one moment.
//! 2. An offset that is logged has the current state of the tree: an item, or a hole up to the next
//!    item. What earlier fsyncs of the transaction logged in that range is removed from the log. So
//!    items of a log never overlap.
//! 3. A name is logged only for an inode that the last commit does not have, and only if the last
//!    commit has no other living inode under that name or that index: a replay removes the old
//!    name.
//! 4. A directory that a logged name is in exists in the last commit.
//! 5. A file that has lost its last name is committed if a crash would restore an older state of it
//!    under one of its old names.
//!
//! Left to others: writing the log (`tree`), the replay.

mod extents;

use crate::inode::table::InodeEntry;
use crate::write_state::WriteState;
use crate::{Error, FileId, Filesystem, Result};
use butternut_format::dir::DirEntries;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino, TreeId};
use butternut_names::{self as names, Target};
use butternut_tree::{CommitReason, InodeLog, LogEntry, LogName, LogTicket, Tree, TreeError};
use std::sync::Arc;

/// A name of an inode: the directory, the index in it, and the name.
struct LoggedName {
    dir: Ino,
    index: u64,
    name: Vec<u8>,
}

/// One file while it is logged.
struct FileLog<'a> {
    log: &'a InodeLog,
    tree: Tree,
    ino: Ino,
    inode: Inode,
}

impl Filesystem {
    /// Makes what the trees have of a file durable.
    pub(crate) fn sync_file(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
    ) -> Result<()> {
        let logged = self.log_file(write_state, entry).and_then(|logged| match logged {
            Ok(Some(ticket)) => self.forest().sync_log(ticket).map_err(Error::Tree),
            Ok(None) => Ok(Ok(())),
            Err(reason) => Ok(Err(reason)),
        });
        let reason = match logged {
            Ok(Ok(())) => {
                self.shared.syncs.fast.add();
                return Ok(());
            }
            Ok(Err(reason)) => reason,
            // The commit returns the error, if it needs what cannot be read, too.
            Err(_) => CommitReason::Unreadable,
        };
        self.shared.syncs.add_commit(reason);
        self.commit()
    }

    /// Appends a file to the log. Returns `None` if the file has no name, and a crash deletes it.
    fn log_file(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
    ) -> Result<Result<Option<LogTicket>, CommitReason>> {
        if !self.tunables().log_tree {
            return Ok(Err(CommitReason::Off));
        }
        if write_state.is_abandoned() {
            return Err(Error::ReadOnly { what: "an abandoned filesystem" });
        }
        let state = entry.lock_without_drain();
        let log = match self.forest().begin_log().map_err(Error::Tree)? {
            Ok(log) => log,
            Err(reason) => return Ok(Err(reason)),
        };
        let logged = self.log_locked(&log, entry.id);
        drop(log);
        drop(state);
        logged
    }

    fn log_locked(
        &self,
        log: &InodeLog,
        id: FileId,
    ) -> Result<Result<Option<LogTicket>, CommitReason>> {
        let tree_id = TreeId(id.subvolume);
        let changes = match log.changes(tree_id, id.ino)? {
            Ok(Some(changes)) => changes,
            Ok(None) => return Ok(Ok(Some(log.ticket()))),
            Err(reason) => return Ok(Err(reason)),
        };
        let tree = self.forest().tree(tree_id)?.ok_or(TreeError::NoTree { tree: tree_id })?;
        let ino = Ino(id.ino);
        let Some(inode) = names::inode(&tree, ino)?.filter(|inode| inode.nlink > 0) else {
            let may_return = may_crash_restore(log, tree_id, ino)?;
            return Ok(if may_return { Err(CommitReason::Names) } else { Ok(None) });
        };
        if inode.kind == FileKind::Directory && changes.has_new_entries {
            return Ok(Err(CommitReason::Entries));
        }
        let file = FileLog { log, tree, ino, inode };
        let mut log_entry = LogEntry::default();
        if changes.has_new_names {
            if inode.generation != log.generation() {
                return Ok(Err(CommitReason::Names));
            }
            if let Err(reason) = file.add_names(&mut log_entry)? {
                return Ok(Err(reason));
            }
        }
        file.add_inode(&mut log_entry)?;
        file.add_extents(&changes.extents, &mut log_entry)?;
        Ok(log.append(tree_id, id.ino, log_entry)?.map(Some))
    }
}

/// Whether an inode that has lost its names has one after a crash: in the last commit, or in the
/// log. What was written to it since would then be lost from a file that exists.
fn may_crash_restore(log: &InodeLog, tree: TreeId, ino: Ino) -> Result<bool> {
    let committed = names::inode(&log.committed_tree(tree)?, ino)?;
    let is_logged = || log.has_logged(tree, &Key::new(ino.0, ItemType::INODE_ITEM, 0));
    Ok(committed.is_some_and(|inode| inode.nlink > 0) || is_logged())
}

impl FileLog<'_> {
    fn key(&self, item_type: ItemType, offset: u64) -> Key {
        Key::new(self.ino.0, item_type, offset)
    }

    /// Adds the inode item and all extended attributes.
    fn add_inode(&self, entry: &mut LogEntry) -> Result<()> {
        let key = self.key(ItemType::INODE_ITEM, 0);
        let item = self.tree.find(&key)?.ok_or_else(|| self.missing("inode item"))?;
        entry.items.push((key, item.data().to_vec()));
        entry.stale.push(self.all_of(ItemType::XATTR_ITEM));
        self.each_item(ItemType::XATTR_ITEM, &mut |key, data| {
            entry.items.push((key, data.to_vec()));
            Ok(())
        })
    }

    /// Adds the references by names of a new inode. A [`CommitReason`] if a replay could not add
    /// one of the names without harm (laws 3 and 4).
    fn add_names(&self, entry: &mut LogEntry) -> Result<Result<(), CommitReason>> {
        let mut logged = Vec::new();
        for item_type in [ItemType::INODE_REF, ItemType::INODE_EXTREF] {
            entry.stale.push(self.all_of(item_type));
            self.each_item(item_type, &mut |key, data| {
                logged.append(&mut self.names_of(key, data)?);
                entry.items.push((key, data.to_vec()));
                Ok(())
            })?;
        }
        let committed = self.log.committed_tree(self.tree.id())?;
        for LoggedName { dir, index, name } in logged {
            if let Err(reason) = self.check_name(&committed, dir, index, &name)? {
                return Ok(Err(reason));
            }
            entry.names.push(LogName { dir: dir.0, index, name });
        }
        Ok(Ok(()))
    }

    fn names_of(&self, key: Key, data: &[u8]) -> Result<Vec<LoggedName>> {
        let corrupt = |refused: Refused| self.corrupt(key, refused);
        let mut found = Vec::new();
        if key.item_type == ItemType::INODE_REF {
            for name in InodeRefs::new(data) {
                let name = name.map_err(corrupt)?;
                let (dir, index) = (Ino(key.offset), name.index);
                found.push(LoggedName { dir, index, name: name.name.to_vec() });
            }
        } else {
            for name in InodeExtrefs::new(data) {
                let name = name.map_err(corrupt)?;
                let (dir, index) = (name.parent, name.index);
                found.push(LoggedName { dir, index, name: name.name.to_vec() });
            }
        }
        Ok(found)
    }

    /// Checks laws 3 and 4 for one name.
    fn check_name(
        &self,
        committed: &Tree,
        dir: Ino,
        index: u64,
        name: &[u8],
    ) -> Result<Result<(), CommitReason>> {
        if names::inode(committed, dir)?.is_none() {
            return Ok(Err(CommitReason::NewDirectory));
        }
        let named = names::lookup(committed, dir, name)?.map(|found| found.target);
        let indexed = self.indexed(committed, dir, index)?;
        for old in named.into_iter().chain(indexed) {
            let Target::Inode(old) = old else { return Ok(Err(CommitReason::NameConflict)) };
            if self.may_replay_keep(committed, old)? {
                return Ok(Err(CommitReason::NameConflict));
            }
        }
        Ok(Ok(()))
    }

    /// Returns the target of the entry with this index in the last commit.
    fn indexed(&self, committed: &Tree, dir: Ino, index: u64) -> Result<Option<Target>> {
        let key = Key::new(dir.0, ItemType::DIR_INDEX, index);
        let Some(item) = committed.find(&key)? else { return Ok(None) };
        let entry = DirEntries::new(item.data()).next();
        let entry = entry.transpose().map_err(|refused| self.corrupt(key, refused))?;
        Ok(entry.map(|entry| match entry.location.item_type {
            ItemType::INODE_ITEM => Target::Inode(Ino(entry.location.objectid)),
            _ => Target::Subvolume(TreeId(entry.location.objectid)),
        }))
    }

    /// Whether an inode of the last commit, which loses a name in the replay, may still be wanted:
    /// it exists now, or it is a directory.
    fn may_replay_keep(&self, committed: &Tree, old: Ino) -> Result<bool> {
        let is_directory =
            names::inode(committed, old)?.is_none_or(|inode| inode.kind == FileKind::Directory);
        let is_alive = names::inode(&self.tree, old)?.is_some_and(|inode| inode.nlink > 0);
        Ok(is_directory || is_alive)
    }

    /// All keys of one type of this inode.
    fn all_of(&self, item_type: ItemType) -> std::ops::RangeInclusive<Key> {
        self.key(item_type, 0)..=self.key(item_type, u64::MAX)
    }

    /// Passes all items of one type of this inode to `visit`.
    fn each_item(
        &self,
        item_type: ItemType,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = self.tree.cursor();
        cursor.seek(&self.key(item_type, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.objectid != self.ino.0 || key.item_type != item_type {
                break;
            }
            visit(key, data)?;
            cursor.advance()?;
        }
        Ok(())
    }

    fn corrupt(&self, key: Key, refused: Refused) -> Error {
        let source = refused.at(format_args!("item {key}"));
        Error::Tree(TreeError::Corrupt { tree: self.tree.id(), source })
    }

    fn missing(&self, what: &'static str) -> Error {
        self.corrupt(self.key(ItemType::INODE_ITEM, 0), Refused::new(what, "none", "one"))
    }

    /// The generation of the running transaction.
    fn generation(&self) -> Generation {
        self.log.generation()
    }
}

#[cfg(test)]
mod tests;
