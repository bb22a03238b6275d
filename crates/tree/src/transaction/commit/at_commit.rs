//! [`AtCommit`]: changes that a caller makes inside a commit, while its gate is closed. Only there
//! a tree can be created as a snapshot of another one: no handle is open, so the shared blocks of
//! both stay as they are.
//!
//! ```text
//! source: root* -> blocks        before    (* of the running transaction, copied if necessary)
//!
//! source: root* -> blocks <- root*: snapshot
//!                  one more reference each; those of the running transaction are sealed
//! ```
//!
//! Laws:
//!
//! 1. After the snapshot, a shared block of the running transaction is not edited in place: it is
//!    sealed ([`crate::cow`]), and the root items of both trees name this generation as that of the
//!    last snapshot, so an edit looks up how often a block is referred to.
//! 2. A tree that is deleted here is not edited any more, by any thread: no handle is open that has
//!    it open for changes.
//! 3. A change that fails after its first edit makes the volume read-only. One that fails before
//!    leaves nothing, and the commit goes on without it.
//!
//! Left to others: names of subvolumes, and items that refer to them.

use super::context::Commit;
use crate::cow::copy::Writer;
use crate::cow::{RootRecord, Stop, TransactionTree};
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::enospc::Purpose;
use crate::transaction::{ReservationLevel, TreeEdit};
use butternut_format::feature::Feature;
use butternut_format::key::{ItemType, Key, RawKey};
use butternut_format::node::Expected;
use butternut_format::refused::Refused;
use butternut_format::root::{RawRootItem, RootFlags};
use butternut_format::units::{Generation, Logical, TreeId, length};
use butternut_space::{Class, Reservation};
use butternut_sys::wait::Wait;
use std::cell::Cell;
use std::sync::Arc;
use zerocopy::FromZeros;

/// A commit while its gate is closed, for the changes of one caller.
#[derive(Debug)]
pub struct AtCommit<'a> {
    commit: &'a Commit<'a>,
    is_changed: Cell<bool>,
}

/// A caller's changes in a commit.
pub(super) type Changes<'a> = dyn FnMut(&AtCommit<'_>) + 'a;

impl Forest {
    /// Commits the running transaction, and calls `change` inside that commit, while no handle is
    /// open. Returns when everything is durable. The calling thread must hold no handle.
    ///
    /// # Errors
    /// There is no space; `change` failed; the changes cannot be written, or an earlier error has
    /// made the volume read-only.
    pub fn commit_with<R, E: From<TreeError>>(
        self: &Arc<Self>,
        level: ReservationLevel,
        change: impl FnOnce(&AtCommit<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        match level {
            ReservationLevel::Normal => self.commit_many(1, change),
            ReservationLevel::Deletion | ReservationLevel::Prereserved => {
                let reserved =
                    self.reserve_or_flush(Purpose::Deletion, Wait::Block, |running| {
                        let bytes = running.deletion_at_commit_bytes();
                        running.update_global_reserve();
                        Ok(running.space.reserve_for_deletion(Class::Metadata, bytes))
                    })?;
                self.commit_reserved(reserved, change)
            }
        }
    }

    /// As [`Self::commit_with`], for a number of changes: of each, a snapshot is made, or the items
    /// of one tree are changed.
    ///
    /// # Errors
    /// As [`Self::commit_with`].
    pub fn commit_many<R, E: From<TreeError>>(
        self: &Arc<Self>,
        changes: u64,
        change: impl FnOnce(&AtCommit<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let running = self.running()?;
        running.update_global_reserve();
        let bytes = running.at_commit_bytes(changes);
        let reserved = self.reserve_metadata(bytes, Wait::Block)?;
        self.commit_reserved(reserved, change)
    }

    fn commit_reserved<R, E: From<TreeError>>(
        self: &Arc<Self>,
        reservation: Reservation,
        change: impl FnOnce(&AtCommit<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let (mut change, mut result) = (Some(change), None);
        let committed = self.commit_once(Some(&mut |at_commit| {
            let Some(change) = change.take() else { return };
            let changed = change(at_commit);
            if at_commit.is_changed.get() && changed.is_err() {
                at_commit.abort_half_change();
            }
            result = Some(changed);
        }));
        drop(reservation);
        match (result, committed) {
            (Some(Ok(_)) | None, Err(error)) => Err(error.into()),
            (Some(Err(error)), _) => Err(error),
            (None, Ok(_)) => Err(TreeError::Ended.into()),
            (Some(Ok(done)), Ok(_)) => self.record_failed_device().map(|_| done).map_err(E::from),
        }
    }
}

impl<'a> AtCommit<'a> {
    pub(super) fn new(commit: &'a Commit<'a>) -> Self {
        Self { commit, is_changed: Cell::new(false) }
    }

    pub(crate) fn commit(&self) -> &Commit<'a> {
        self.commit
    }

    pub(crate) fn mark_changed(&self) {
        self.is_changed.set(true);
    }

    /// Returns the generation of the transaction that is being committed.
    pub fn generation(&self) -> Generation {
        self.commit.generation
    }

    /// Opens a tree for changes.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read.
    pub fn tree(&self, id: TreeId) -> Result<TreeEdit<'_>, TreeError> {
        TreeEdit::new(self.commit.running, id, self.generation(), Some(&self.is_changed))
    }

    /// Makes the volume read-only, because the changes cannot be completed. Returns the error to
    /// report.
    pub fn abort(&self, cause: TreeError) -> TreeError {
        self.commit.running.gate.poison(cause)
    }

    fn abort_half_change(&self) {
        let source = Refused::new("change of a commit", "a part of it", "all of it");
        self.abort(TreeError::Corrupt { tree: TreeId::ROOT, source });
    }

    /// Creates an empty tree. `root` has the fields of its root item that do not follow from its
    /// root block.
    ///
    /// # Errors
    /// There is such a tree; there is no space.
    pub fn create_tree(&self, id: TreeId, root: &RawRootItem) -> Result<(), TreeError> {
        let key = Key::new(id.0, ItemType::ROOT_ITEM, 0);
        self.add_tree(id, key, root, &|writer| {
            let logical = writer.create(0)?;
            writer.set_root(logical, 0);
            Ok(())
        })
    }

    /// Creates tree `id` as a snapshot of `source`, with the root item that `describe` makes of the
    /// source's.
    ///
    /// # Errors
    /// There is no tree `source`; there is a tree `id`; the root of `source` cannot be read; there
    /// is no space.
    pub fn snapshot(
        &self,
        source: TreeId,
        id: TreeId,
        describe: impl FnOnce(&mut RawRootItem),
    ) -> Result<(), TreeError> {
        let (running, generation) = (self.commit.running, self.generation());
        if running.tree(id)?.is_some() {
            let key = Key::new(id.0, ItemType::ROOT_ITEM, generation.0);
            return Err(TreeError::Exists { tree: TreeId::ROOT, key });
        }
        let edit = self.tree(source)?;
        let root = edit.copied_root()?;
        let tree = running.tree(source)?.ok_or(TreeError::NoTree { tree: source })?;
        let mut record = {
            let mut state = tree.state_mut();
            let is_changed = state.is_changed;
            let Some(record) = &mut state.record else {
                return Err(self.abort(TreeError::NoTree { tree: source }));
            };
            if is_changed {
                record.raw.ctransid.set(generation.0);
                record.raw.ctime = running.now().into();
            }
            record.raw.last_snapshot.set(generation.0);
            let record = record.clone();
            state.outdate_root_item(running);
            state.seal(root.logical(), running.params.csum);
            record
        };
        let node = length(running.params.node_len());
        let bytes = record.raw.bytes_used.get().saturating_sub(node);
        record.raw.bytes_used.set(bytes);
        describe(&mut record.raw);
        let key = Key::new(id.0, ItemType::ROOT_ITEM, generation.0);
        let made = self.add_tree(id, key, &record.raw, &|writer| writer.copy_root_of(&root));
        made.map_err(|error| self.abort(error))?;
        let snapshot = running.tree(id)?.ok_or(TreeError::NoTree { tree: id })?;
        if let Some(quota) = running.quota().as_mut() {
            quota.inherit_limits(source, id);
        }
        // The snapshot finds them in memory, as its source does, until they are written.
        let sealed = tree.state().sealed.clone();
        snapshot.state_mut().sealed = sealed;
        Ok(())
    }

    /// Deletes a subvolume: its root item says that nothing refers to it. Its blocks are freed
    /// later ([`Handle::drop_tree`](crate::Handle::drop_tree)).
    ///
    /// # Errors
    /// There is no such tree.
    pub fn delete_tree(&self, id: TreeId) -> Result<(), TreeError> {
        self.update_root(id, |raw| {
            raw.refs.set(0);
            raw.flags.set(raw.flags.get() | RootFlags::DEAD.0);
            raw.drop_progress = RawKey::new_zeroed();
            raw.drop_level = 0;
        })?;
        let tree = self.commit.running.tree(id)?.ok_or(TreeError::NoTree { tree: id })?;
        tree.state_mut().is_deleted = true;
        Ok(())
    }

    /// Makes the kernel rebuild the UUID tree when it mounts the volume.
    pub fn outdate_uuid_tree(&self) {
        self.commit.running.super_block().uuid_tree_generation.set(0);
        self.is_changed.set(true);
    }

    /// Changes the fields of a root item that do not follow from its root block.
    ///
    /// # Errors
    /// There is no such tree.
    pub fn update_root(
        &self,
        id: TreeId,
        change: impl FnOnce(&mut RawRootItem),
    ) -> Result<(), TreeError> {
        let running = self.commit.running;
        let tree = running.tree(id)?.ok_or(TreeError::NoTree { tree: id })?;
        let mut state = tree.state_mut();
        let record = state.record.as_mut().ok_or(TreeError::NoTree { tree: id })?;
        change(&mut record.raw);
        state.outdate_root_item(running);
        self.is_changed.set(true);
        Ok(())
    }

    /// Writes the root item of a new tree, which the end of the commit completes: readers that find
    /// a name of the tree afterwards find the tree, too.
    ///
    /// # Errors
    /// There is no such tree; there is no space.
    pub fn write_root_item(&self, id: TreeId) -> Result<(), TreeError> {
        let running = self.commit.running;
        let tree = running.tree(id)?.ok_or(TreeError::NoTree { tree: id })?;
        self.commit.write_root(&tree)?;
        tree.state_mut().outdate_root_item(running);
        self.is_changed.set(true);
        Ok(())
    }

    /// Sets a feature bit of the superblock, which this commit writes.
    pub fn add_feature(&self, feature: Feature) {
        if self.commit.running.add_feature(feature) {
            self.is_changed.set(true);
        }
    }

    /// Adds a tree whose root `make_root` makes.
    fn add_tree(
        &self,
        id: TreeId,
        key: Key,
        root: &RawRootItem,
        make_root: &dyn Fn(&mut Writer<'_>) -> Result<(), Stop>,
    ) -> Result<(), TreeError> {
        let (running, generation) = (self.commit.running, self.generation());
        if running.tree(id)?.is_some() {
            return Err(TreeError::Exists { tree: TreeId::ROOT, key });
        }
        self.is_changed.set(true);
        let none = Expected {
            logical: Logical(0),
            generation,
            level: 0,
            tree: id,
            first_key: None,
            end_key: None,
        };
        let record = RootRecord { key, raw: Box::new(*root) };
        let (blocks, epochs) = (Arc::clone(running.blocks()), Arc::clone(&running.read_epochs));
        let tree = Arc::new(TransactionTree::new(none, Some(record), blocks, epochs));
        {
            let mut state = tree.state_mut();
            let mut writer =
                Writer { id, state: &mut state, running, generation, fetched: &[], is_torn: false };
            make_root(&mut writer).map_err(|stop| self.abort(stop.into_error(id)))?;
            state.committed_root = state.root;
        }
        if running.add_tree(tree) {
            if id.is_subvolume()
                && let Some(quota) = running.quota().as_mut()
            {
                quota.add_subvolume(id);
            }
            return Ok(());
        }
        Err(self.abort(TreeError::Exists { tree: TreeId::ROOT, key }))
    }
}
