//! Edits of a tree in the running transaction.
//!
//! Each call locks the tree for one edit. If the edit misses a block, it stops, the block is read
//! without the lock, and the edit starts again.

use super::running::Running;
use crate::Block;
use crate::cow::change::{Alter, Change};
use crate::cow::copy::Writer;
use crate::cow::{Stop, TransactionTree, fetch_missing};
use crate::error::TreeError;
use crate::search::check_forward;
use crate::tree::Tree;
use butternut_format::key::Key;
use butternut_format::refused::{Refused, require};
use butternut_format::units::{Generation, TreeId};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// A tree of the running transaction, open for changes. Readers see each call as one atomic change,
/// except for [`Self::remove_range`] and [`Self::merge`], which are atomic for each leaf.
#[derive(Debug)]
pub struct TreeEdit<'a> {
    running: &'a Running,
    transaction_tree: Arc<TransactionTree>,
    tree: Tree,
    generation: Generation,
    /// Whether the handle of the edit has changed anything; `None` for the commit itself.
    is_changed: Option<&'a Cell<bool>>,
}

impl<'a> TreeEdit<'a> {
    pub(crate) fn new(
        running: &'a Running,
        id: TreeId,
        generation: Generation,
        is_changed: Option<&'a Cell<bool>>,
    ) -> Result<Self, TreeError> {
        let transaction_tree = running.tree(id)?.ok_or(TreeError::NoTree { tree: id })?;
        // A deletion is committed while no handle is open, so it stays as it is.
        if transaction_tree.state().is_deleted {
            return Err(TreeError::NoTree { tree: id });
        }
        let tree = Tree::in_transaction(Arc::clone(&transaction_tree));
        Ok(Self { running, transaction_tree, tree, generation, is_changed })
    }

    /// Returns the tree for reading, with the changes so far.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the id of the tree.
    pub fn id(&self) -> TreeId {
        self.transaction_tree.id()
    }

    /// Returns the generation of the transaction.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) fn running(&self) -> &Running {
        self.running
    }

    /// Inserts a new item.
    ///
    /// # Errors
    /// [`TreeError::Exists`] if the tree has an item with this key.
    pub fn insert(&self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.edit(|writer| writer.insert(key, data))
    }

    /// Inserts an item, or replaces its data.
    ///
    /// # Errors
    /// [`TreeError::TooLarge`] if a leaf cannot hold the data.
    pub fn put(&self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.edit(|writer| writer.put(key, data))
    }

    /// Removes an item. Returns whether there was one.
    ///
    /// # Errors
    /// A block cannot be read or copied.
    pub fn remove(&self, key: &Key) -> Result<bool, TreeError> {
        self.edit(|writer| writer.remove(key))
    }

    /// Returns the root as a block of the running transaction. Copies it if necessary, which is no
    /// change of what the tree holds.
    pub(crate) fn copied_root(&self) -> Result<Arc<Block>, TreeError> {
        let was_changed = self.transaction_tree.state().is_changed;
        let root = self.edit(|writer| {
            let logical = writer.cow_root()?;
            writer.dirty_block(logical)
        });
        self.transaction_tree.state_mut().is_changed = was_changed;
        root
    }

    /// Frees the root of a tree without items. The tree must not be used any more.
    pub(crate) fn free_root(&self) -> Result<(), TreeError> {
        self.edit(|writer| {
            let root = writer.cow_root()?;
            let is_empty = writer.dirty(root)?.is_empty();
            require(is_empty, "tree", "items", "none")
                .map_err(|source| TreeError::Corrupt { tree: self.id(), source })?;
            writer.free_block(root);
            Ok(())
        })
    }

    /// Passes the data of an item to `edit`, which changes it in place. Returns whether there is
    /// such an item.
    ///
    /// # Errors
    /// A block cannot be read or copied.
    pub fn update(&self, key: &Key, edit: &mut dyn FnMut(&mut [u8])) -> Result<bool, TreeError> {
        self.edit(|writer| writer.update(key, edit))
    }

    /// Passes the data of an item, or `None`, to `decide`, and does what it returns: one search
    /// instead of two. `decide` may be called more than once. If it keeps the item, nothing has
    /// changed: an error that the caller returns then ends no transaction.
    ///
    /// # Errors
    /// [`TreeError::TooLarge`], or a block cannot be read or copied.
    pub fn alter(
        &self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), TreeError> {
        let was_changed = self.is_changed.map(Cell::get);
        let mut is_kept = false;
        let mut decide = |item: Option<&[u8]>| {
            let decided = decide(item);
            is_kept = matches!(decided, Alter::Keep);
            decided
        };
        self.edit(|writer| writer.alter(key, &mut decide))?;
        if let (Some(is_changed), Some(was_changed), true) = (self.is_changed, was_changed, is_kept)
        {
            is_changed.set(was_changed);
        }
        Ok(())
    }

    /// Removes all items in `range` and passes each to `visit` first. Returns how many it removed.
    ///
    /// # Errors
    /// A block cannot be read or copied.
    pub fn remove_range(
        &self,
        range: Range<Key>,
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError> {
        let mut removed: u64 = 0;
        let mut from = Some(range.start).filter(|from| *from < range.end);
        while let Some(start) = from {
            let (count, next) = self.edit(|writer| writer.remove_run(&start, &range.end, visit))?;
            removed = removed.saturating_add(count);
            if let Some(next) = next {
                check_forward(self.id(), &start, &next).map_err(|error| self.fail(error))?;
            }
            from = next;
        }
        Ok(removed)
    }

    /// Makes many changes, sorted by rising key: one descent for each leaf.
    ///
    /// # Errors
    /// [`TreeError::TooLarge`] before the first change, or a block cannot be read or copied.
    pub fn merge(&self, changes: &[Change]) -> Result<(), TreeError> {
        let bytes_max = self.running().params.item_bytes_max();
        for Change { key, to } in changes {
            // What can be refused is refused before the first change.
            let bytes = to.as_ref().map_or(0, Vec::len);
            if bytes > bytes_max {
                let (tree, key) = (self.id(), *key);
                return Err(TreeError::TooLarge { tree, key, bytes, bytes_max });
            }
        }
        let mut rest = changes;
        while !rest.is_empty() {
            let done = self.edit(|writer| writer.merge_run(rest))?;
            if done == 0 {
                let refused = Refused::new("changes made", 0, "at least one");
                let error = TreeError::Corrupt { tree: self.id(), source: refused };
                return Err(self.fail(error));
            }
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    /// Records for the log that the item at a key may differ from the last commit, or from the last
    /// log of its inode, though this edit does not change it.
    pub fn note_for_log(&self, key: &Key) {
        if self.id().is_subvolume() {
            self.transaction_tree.state_mut().changes.note(key);
        }
    }

    /// Runs one edit under the lock of the tree. Blocks that it misses are read without the lock.
    fn edit<R>(
        &self,
        mut edit: impl FnMut(&mut Writer<'_>) -> Result<R, Stop>,
    ) -> Result<R, TreeError> {
        let running = self.running;
        let mut fetched = Vec::new();
        loop {
            let mut state = self.transaction_tree.state_mut();
            let mut writer = Writer {
                id: self.transaction_tree.id(),
                state: &mut state,
                running,
                generation: self.generation,
                fetched: &fetched,
                is_torn: false,
            };
            let result = edit(&mut writer);
            let is_torn = writer.is_torn;
            state.is_changed = true;
            self.transaction_tree.bump_version();
            drop(state);
            let stopped = match result {
                Ok(done) => {
                    if let Some(is_changed) = self.is_changed {
                        is_changed.set(true);
                    }
                    return Ok(done);
                }
                Err(stopped) => stopped,
            };
            if is_torn {
                return Err(self.fail_torn(stopped));
            }
            let blocks = running.blocks();
            fetch_missing(blocks, &mut fetched, stopped).map_err(|error| self.fail(error))?;
        }
    }

    /// Makes the volume read-only, because half an edit is in memory: it is never committed, and
    /// the edit is not repeated. Returns the error to report.
    fn fail_torn(&self, stopped: Stop) -> TreeError {
        let error = stopped.into_error(self.id());
        match self.is_changed {
            Some(_) => self.running.gate.poison(error),
            None => error,
        }
    }

    /// Makes the volume read-only after an error, if this handle has made changes before (law 2 of
    /// `transaction`): half a change is never committed. For a caller whose change fails between
    /// two edits. Returns the error to report.
    pub fn fail(&self, error: TreeError) -> TreeError {
        let is_expected = matches!(error, TreeError::Exists { .. } | TreeError::TooLarge { .. });
        match self.is_changed {
            Some(is_changed) if is_changed.get() && !is_expected => self.running.gate.poison(error),
            _ => error,
        }
    }
}
