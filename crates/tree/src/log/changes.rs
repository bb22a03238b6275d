//! The inodes of a subvolume that the running transaction has changed, and what of each changed.
//!
//! Every edit of a subvolume's tree records the key that it changes. An fsync reads from here what
//! it has to log, so evicting pages, extent maps or inodes never makes it log more.
//!
//! Laws:
//!
//! 1. A key that differs between the running tree and the last commit, or the last log of its
//!    inode, is recorded. More keys may be recorded than differ.
//! 2. At most [`RECORDS_MAX`] records are kept for each subvolume. Past that limit nothing is known
//!    any more until the next commit, and every fsync in the subvolume commits.

use super::CommitReason;
use butternut_format::key::{ItemType, Key};
use std::collections::{BTreeSet, HashMap};

/// The most changed extents, entries and inodes of one subvolume in one transaction.
const RECORDS_MAX: usize = 1 << 18;

/// What the running transaction has changed of one inode since its last log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InodeChanges {
    /// File offsets of the extent items that were inserted, changed or removed.
    pub extents: BTreeSet<u64>,
    /// References to the inode by its names were added or removed.
    pub has_new_names: bool,
    /// Of a directory: the indexes of the entries that were added or removed.
    pub entries: BTreeSet<u64>,
    /// A sync has returned that logged nothing, because the inode had no name.
    pub is_synced_unlogged: bool,
}

/// The changes of one subvolume, by inode number.
#[derive(Debug, Default)]
pub(crate) struct ChangedInodes {
    inodes: HashMap<u64, InodeChanges>,
    records: usize,
    is_full: bool,
}

impl ChangedInodes {
    /// Records that an item is about to change.
    pub(crate) fn note(&mut self, key: &Key) {
        if self.is_full {
            return;
        }
        let inode = self.inodes.entry(key.objectid).or_insert_with(|| {
            self.records = self.records.saturating_add(1);
            InodeChanges::default()
        });
        let is_new = match key.item_type {
            ItemType::EXTENT_DATA => inode.extents.insert(key.offset),
            ItemType::DIR_INDEX => inode.entries.insert(key.offset),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                inode.has_new_names = true;
                false
            }
            _ => false,
        };
        self.records = self.records.saturating_add(usize::from(is_new));
        if self.records > RECORDS_MAX {
            *self = Self { is_full: true, ..Self::default() };
        }
    }

    /// Returns the changes of an inode, if there are any. Fails past the limit of law 2.
    pub(crate) fn find(&self, ino: u64) -> Result<Option<&InodeChanges>, CommitReason> {
        if self.is_full { Err(CommitReason::TooMuch) } else { Ok(self.inodes.get(&ino)) }
    }

    /// Forgets the changes of an inode, because the log has them.
    pub(crate) fn forget(&mut self, ino: u64) {
        if let Some(changes) = self.inodes.remove(&ino) {
            let records = changes.extents.len().saturating_add(changes.entries.len());
            self.records = self.records.saturating_sub(records.saturating_add(1));
        }
    }

    /// Forgets that names of an inode changed, because the log has them.
    pub(crate) fn forget_names(&mut self, ino: u64) {
        if let Some(changes) = self.inodes.get_mut(&ino) {
            changes.has_new_names = false;
        }
    }

    /// Records that a sync of an inode returns, of which the log has nothing.
    pub(crate) fn note_unlogged_sync(&mut self, ino: u64) {
        if let Some(changes) = self.inodes.get_mut(&ino) {
            changes.is_synced_unlogged = true;
        }
    }

    /// Forgets everything, because a commit has it.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(ino: u64, offset: u64) -> Key {
        Key::new(ino, ItemType::EXTENT_DATA, offset)
    }

    #[test]
    fn each_kind_of_item_is_recorded_for_its_inode() {
        let mut changed = ChangedInodes::default();
        changed.note(&extent(257, 4096));
        changed.note(&extent(257, 0));
        changed.note(&Key::new(257, ItemType::INODE_REF, 256));
        changed.note(&Key::new(256, ItemType::DIR_INDEX, 2));
        changed.note(&Key::new(258, ItemType::INODE_ITEM, 0));
        let file = changed.find(257).unwrap().cloned().unwrap();
        assert_eq!(file.extents.into_iter().collect::<Vec<_>>(), [0, 4096]);
        assert!(file.has_new_names && file.entries.is_empty());
        let dir = changed.find(256).unwrap().cloned().unwrap();
        assert_eq!(dir.entries.into_iter().collect::<Vec<_>>(), [2]);
        changed.forget_names(257);
        assert!(changed.find(257).unwrap().is_some_and(|file| !file.has_new_names));
        assert_eq!(changed.find(258), Ok(Some(&InodeChanges::default())));
        assert_eq!(changed.find(259), Ok(None));
        changed.forget(257);
        assert_eq!(changed.find(257), Ok(None));
        assert_eq!(changed.records, 3);
    }

    #[test]
    fn past_the_limit_nothing_is_known_until_the_commit() {
        let mut changed = ChangedInodes::default();
        for offset in 0..u64::try_from(RECORDS_MAX).unwrap() {
            changed.note(&extent(257, offset * 4096));
        }
        assert_eq!(changed.find(257), Err(CommitReason::TooMuch));
        changed.note(&extent(258, 0));
        assert_eq!(changed.find(258), Err(CommitReason::TooMuch));
        assert!(changed.inodes.is_empty());
        changed.clear();
        changed.note(&extent(258, 0));
        assert!(changed.find(258).unwrap().is_some());
    }
}
