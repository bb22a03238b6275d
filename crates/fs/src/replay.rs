//! The replay: applies the log of a volume that was not unmounted to its last commit.
//!
//! ```text
//! for each subvolume with a log, in one transaction:
//! 1 inodes    remove lost attributes and names; insert or overwrite inode items; cut off extents
//!             past the end
//! 2 entries   add logged entries of directories whose inodes exist
//! 3 contents  references and their names, extents and their checksums, extended attributes
//! 4 links     count the names of every inode that was touched; those without become orphans
//! ```
//!
//! The result is that of the kernel's replay. On a volume that is opened for reading it stays in
//! memory.
//!
//! Laws:
//!
//! 1. A log that cannot be replayed leaves the volume as it was: nothing is committed, and the open
//!    for writing fails. Opened for reading, the volume shows the last commit.
//! 2. A replay that a crash cuts short is repeated from the beginning: its commit is the first one,
//!    also if space is short.
//! 3. A logged name wins: another inode under that name or that index loses it.
//! 4. Every loop takes its items from the log, or removes what it takes.
//! 5. The references of an inode, and each part of a listing, are read once per stage, and one
//!    reference is found by its key: the work grows with the number of names, not with its square.
//!    Searches for entries without references are bounded ([`crate::names::bounded`]).
//!
//! Left to others: reading a log (`tree`), deleting orphans (`inode/orphans`).

mod extents;
mod inodes;
mod links;
mod names;
#[cfg(test)]
mod tests;

use crate::names::bounded::STEPS_MAX;
use crate::{Error, Result};
use butternut_format::feature;
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId};
use butternut_names as names_of;
use butternut_tree::{Forest, Handle, LogClaim, Need, ReservationLevel, Tree, TreeEdit, TreeError};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The replay of one subvolume's log.
struct Replay<'a> {
    handle: &'a Handle,
    edit: TreeEdit<'a>,
    /// The subvolume, with the changes so far.
    tree: Tree,
    log: Tree,
    claim: &'a mut LogClaim,
    has_no_holes: bool,
    /// Inodes whose names are counted at the end.
    touched: BTreeSet<u64>,
    /// Logged inodes without a name: nothing of them is replayed.
    ignored: BTreeSet<u64>,
    /// The inode whose old names were removed last.
    old_names_removed: Option<u64>,
    /// How many items may still be read to find entries without references.
    steps_left: Cell<u32>,
}

/// Replays the log in the running transaction. Returns the space that the log uses.
///
/// # Errors
/// The log is corrupt, or contradicts the volume. The running transaction must not be committed.
pub(crate) fn replay(forest: &Arc<Forest>) -> Result<LogClaim> {
    let logs = forest.subvolume_logs()?;
    let mut claim = forest.claim_log(&logs)?;
    // Nothing is reserved: no other thread allocates space before the replay has ended, and an
    // estimate for a long log would be more than a full volume has.
    let handle = forest.join(Need { level: ReservationLevel::Prereserved, ..Need::items(0) })?;
    let has_no_holes = forest.volume().super_block().has(feature::NO_HOLES);
    for log in logs {
        // The subvolume was deleted after the log was written. Parts of it may still exist.
        let root = forest.root_item(log.subvolume)?;
        let is_deleted =
            root.is_none_or(|(_, root)| root.refs() == 0) && log.subvolume != TreeId::FS;
        if is_deleted || !log.subvolume.is_subvolume() {
            continue;
        }
        let edit = handle.tree(log.subvolume)?;
        let tree = edit.tree().clone();
        let mut replay = Replay {
            handle: &handle,
            edit,
            tree,
            log: log.items,
            claim: &mut claim,
            has_no_holes,
            touched: BTreeSet::new(),
            ignored: BTreeSet::new(),
            old_names_removed: None,
            steps_left: Cell::new(STEPS_MAX),
        };
        replay.inodes()?;
        replay.entries()?;
        replay.contents()?;
        replay.links()?;
    }
    drop(handle);
    Ok(claim)
}

impl Replay<'_> {
    /// Replays references, extents and extended attributes.
    fn contents(&mut self) -> Result<()> {
        let log = self.log.clone();
        let mut cursor = log.scan();
        cursor.seek(&Key::MIN)?;
        while let Some(item) = cursor.item() {
            let key = item.key();
            if !self.ignored.contains(&key.objectid) {
                match key.item_type {
                    ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                        self.references(key, item.data())?;
                    }
                    ItemType::EXTENT_DATA => self.extent(key, item.data())?,
                    ItemType::XATTR_ITEM => self.xattr(key, item.data())?,
                    _ => {}
                }
            }
            cursor.advance()?;
        }
        Ok(())
    }

    fn xattr(&self, key: Key, data: &[u8]) -> Result<()> {
        if self.inode(key.objectid)?.is_none() {
            return Err(self.corrupt(key, Refused::new("inode", "none", "one for an attribute")));
        }
        Ok(self.edit.put(&key, data)?)
    }

    /// Returns the keys of one type of an inode.
    fn keys(ino: u64, item_type: ItemType) -> RangeInclusive<Key> {
        Key::new(ino, item_type, 0)..=Key::new(ino, item_type, u64::MAX)
    }

    /// Returns copies of the items of a tree in a range of keys.
    fn items_in(tree: &Tree, keys: &RangeInclusive<Key>) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut items = Vec::new();
        let mut cursor = tree.cursor();
        cursor.seek(keys.start())?;
        while let Some((key, data)) = cursor.item_parts().filter(|(key, _)| key <= keys.end()) {
            items.push((key, data.to_vec()));
            cursor.advance()?;
        }
        #[cfg(test)]
        tests::count_read(items.len());
        Ok(items)
    }

    /// Returns an inode of the subvolume.
    fn inode(&self, ino: u64) -> Result<Option<Inode>> {
        Ok(names_of::inode(&self.tree, Ino(ino))?)
    }

    /// Changes an inode item of the subvolume, which exists.
    fn update_inode(&self, ino: u64, change: impl Fn(&mut Inode)) -> Result<()> {
        let key = Key::new(ino, ItemType::INODE_ITEM, 0);
        let Some(mut inode) = self.inode(ino)? else {
            return Err(self.corrupt(key, Refused::new("inode", "none", "one")));
        };
        change(&mut inode);
        Ok(self.edit.put(&key, &inode.to_bytes())?)
    }

    fn id(&self) -> TreeId {
        self.edit.id()
    }

    /// An error of an item of the log.
    fn corrupt(&self, key: Key, refused: Refused) -> Error {
        let source = refused.at(format_args!("log of tree {}: item {key}", self.id()));
        Error::Tree(TreeError::Corrupt { tree: TreeId::TREE_LOG, source })
    }
}
