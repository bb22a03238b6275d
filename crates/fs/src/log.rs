//! What an fsync logs of an inode: the items that changed since the last commit, or since the last
//! fsync of the inode.
//!
//! ```text
//! inode item                    always
//! extended attributes           always all: a replay removes those that the log lacks
//! changed extents               the item at each changed offset, and the hole where there is none
//! extents past the end          always: a replay cuts off those that the log lacks
//! checksums                     of the logged extents, as far as the commit has not written them
//! changed names                 all references by names, and what depends on them (`names`)
//! changed entries               of a directory: the names of these inodes (`names`)
//! ```
//!
//! The changes are known by key (`tree`), so nothing in memory that may be evicted decides what is
//! logged. Whatever the log cannot express needs a commit, with a [`CommitReason`].
//!
//! Laws:
//!
//! 1. An inode is locked exclusively from the read of its changes until they are appended, so the
//!    log has the items of one moment. So are all inodes whose names are logged with it.
//! 2. An offset that is logged has the current state of the tree: an item, or a hole up to the next
//!    item. What earlier fsyncs of the transaction logged in that range is removed from the log. So
//!    items of a log never overlap.
//! 3. A sync of an inode that has lost its last name logs its deletion, if a crash would restore an
//!    older state of it under one of its old names.
//! 4. A sync of an inode that never had a name (`O_TMPFILE`) logs nothing, and is recorded. The log
//!    of its first name would bring an empty file, so it needs a commit.
//!
//! Left to others: writing the log (`tree`), the replay.

mod extents;
mod names;

use crate::inode::table::{InodeEntry, LockedInodes};
use crate::stats::latency::Operation;
use crate::write_state::WriteState;
use crate::{Error, FileId, Filesystem, Result};
use butternut_format::inode::{FileKind, Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino, TreeId};
use butternut_names::{self as names_of, NamesError};
use butternut_tree::{CommitReason, InodeLog, LogEntry, LogTicket, Tree, TreeError};
use names::RelatedLog;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How often the inodes to lock are looked for, before an fsync commits.
const ROUNDS_MAX: usize = 16;

/// Why an inode is not logged, and a commit is needed. After an error, the commit returns it if it
/// needs what cannot be read, too.
struct Stop(CommitReason);

type Logged<T> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(_: Error) -> Self {
        Self(CommitReason::Unreadable)
    }
}

impl From<TreeError> for Stop {
    fn from(_: TreeError) -> Self {
        Self(CommitReason::Unreadable)
    }
}

impl From<NamesError> for Stop {
    fn from(error: NamesError) -> Self {
        let is_too_much = matches!(error, NamesError::TooMany { .. });
        Self(if is_too_much { CommitReason::TooMuch } else { CommitReason::Unreadable })
    }
}

/// The result of one look at an inode.
enum Look {
    /// The log has everything before this ticket.
    Appended(LogTicket),
    /// These inodes have to be locked, too.
    Lock(BTreeSet<u64>),
}

/// One inode while it is logged.
struct FileLog<'a> {
    log: &'a InodeLog,
    tree: Tree,
    ino: Ino,
    inode: Inode,
}

impl Filesystem {
    /// Makes what the trees have of a file or directory durable.
    pub(crate) fn sync_file(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
    ) -> Result<()> {
        if self.shared.source.pages().is_poisoned() {
            // Data in memory may be half a change, or may not be marked dirty: the commit fails.
            return self.commit();
        }
        let was_read_only = self.write_error().is_some();
        let logged = self.log_file(write_state, entry);
        let synced = logged.map(|(ticket, is_full)| (self.forest().sync_log(ticket), is_full));
        let reason = match synced {
            Ok((Ok(Ok(())), is_full)) => {
                let syncs = &self.shared.syncs;
                let count = if is_full { &syncs.full_on_release } else { &syncs.fast };
                count.add();
                return Ok(());
            }
            Ok((Err(error), _)) if was_read_only => return Err(Error::Tree(error)),
            Ok((Err(error), _)) => return Err(Error::Commit(error)),
            Ok((Ok(Err(reason)), _)) | Err(Stop(reason)) => reason,
        };
        self.shared.syncs.add_commit(reason);
        self.commit()
    }

    /// Makes the entries of a directory durable, its names and its attributes.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; the volume is read-only; the devices fail.
    pub fn sync_directory(&self, dir: FileId) -> Result<()> {
        if self.shared.write_state.is_none() {
            return Ok(());
        }
        let write_state = self.may_sync()?;
        if dir.is_placeholder() {
            // It has nothing of its own.
            return Ok(());
        }
        let _timed = self.timed(Operation::Sync);
        let entry = self.entry_of(write_state, dir)?;
        if self.attributes(&entry)?.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if !self.tunables().log_tree {
            // A commit of all names, and of the data that is dirty.
            return self.sync_names();
        }
        self.sync_file(write_state, &entry)
    }

    /// Appends an inode to the log. Returns also whether all its extents were logged.
    fn log_file(
        &self,
        write_state: &WriteState,
        entry: &Arc<InodeEntry>,
    ) -> Logged<(LogTicket, bool)> {
        if !self.tunables().log_tree {
            return Err(Stop(CommitReason::Off));
        }
        let FileId { subvolume, ino, .. } = entry.id;
        let mut inodes = BTreeSet::from([ino]);
        let mut is_full = false;
        for _ in 0..ROUNDS_MAX {
            let ids = inodes.iter().map(|ino| FileId::new(subvolume, *ino));
            let entries: Vec<_> = ids.map(|id| write_state.table.entry(id)).collect();
            let entries: Vec<&InodeEntry> = entries.iter().map(|entry| &**entry).collect();
            let mut locked = LockedInodes::lock_without_drain(&entries);
            if self.tunables().full_fsync_on_release {
                let file = locked.of(entry).file.as_mut();
                is_full |= file.is_some_and(|file| file.had_evictions());
            }
            let log = self.forest().begin_log()?.map_err(Stop)?;
            let look = self.log_locked(&log, entry.id, &inodes, is_full);
            drop(log);
            drop(locked);
            match look? {
                Look::Appended(ticket) => return Ok((ticket, is_full)),
                Look::Lock(mut missing) => inodes.append(&mut missing),
            }
        }
        Err(Stop(CommitReason::Names))
    }

    fn log_locked(
        &self,
        log: &InodeLog,
        id: FileId,
        locked: &BTreeSet<u64>,
        is_full: bool,
    ) -> Logged<Look> {
        let tree_id = TreeId(id.subvolume);
        let Some(mut changes) = log.changes(tree_id, id.ino)?.map_err(Stop)? else {
            return Ok(Look::Appended(log.ticket()));
        };
        let tree = self.forest().tree(tree_id)?.ok_or(TreeError::NoTree { tree: tree_id })?;
        let ino = Ino(id.ino);
        let inode = names_of::inode(&tree, ino)?.filter(|inode| inode.nlink > 0);
        let mut entry = LogEntry::default();
        let mut related = RelatedLog::new(log, &tree, id.ino, locked, &mut entry)?;
        if inode.is_none() && !related.may_crash_restore(id.ino)? {
            // It may still get its first name.
            log.note_unlogged_sync(tree_id, id.ino)?;
            // The deletion may be in a batch that is not durable yet.
            return Ok(Look::Appended(log.ticket()));
        }
        if inode.is_none() || related.needs_names(id.ino)? {
            related.add_names(id.ino)?;
        }
        if let Some(inode) = &inode {
            related.require_loggable_seal(inode)?;
            related.add_entries(&changes.entries)?;
        }
        let missing = related.missing();
        if !missing.is_empty() {
            return Ok(Look::Lock(missing));
        }
        if let Some(inode) = inode {
            // The log has no items of fs-verity, and a flag without them makes a file unreadable.
            if inode.flags.contains(InodeFlags::VERITY) && inode.transid >= log.generation() {
                return Err(Stop(CommitReason::Sealed));
            }
            let file = FileLog { log, tree, ino, inode };
            file.add_inode(&mut entry)?;
            if is_full {
                each_item(&file.tree, id.ino, ItemType::EXTENT_DATA, &mut |key, _| {
                    changes.extents.insert(key.offset);
                })?;
            }
            file.add_extents(&changes.extents, &mut entry)?;
            file.add_past_end(&changes.extents, &mut entry)?;
        }
        let ticket = log.append(tree_id, id.ino, entry)?.map_err(Stop)?;
        Ok(Look::Appended(ticket))
    }
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
        entry.stale.push(all_keys(self.ino.0, ItemType::XATTR_ITEM));
        each_item(&self.tree, self.ino.0, ItemType::XATTR_ITEM, &mut |key, data| {
            entry.items.push((key, data.to_vec()));
        })?;
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

/// All keys of one type of an inode.
fn all_keys(ino: u64, item_type: ItemType) -> RangeInclusive<Key> {
    Key::new(ino, item_type, 0)..=Key::new(ino, item_type, u64::MAX)
}

/// Passes all items of one type of an inode to `visit`.
fn each_item(
    tree: &Tree,
    ino: u64,
    item_type: ItemType,
    visit: &mut dyn FnMut(Key, &[u8]),
) -> std::result::Result<(), TreeError> {
    let mut cursor = tree.cursor();
    cursor.seek(&Key::new(ino, item_type, 0))?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.objectid != ino || key.item_type != item_type {
            break;
        }
        visit(key, data);
        cursor.advance()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
