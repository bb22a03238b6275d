//! The commit: makes the changes of the running transaction durable.
//!
//! ```text
//! 1 freeze      close the gate; wait until no handle is open
//! 2 settle      make the changes of a caller that belong into this commit (`at_commit`); write
//!               device statistics, remove empty chunks, write checksums; write delayed
//!               references, and the usage of quota groups that follows from them; then write new
//!               chunks, delayed references, block groups, free space and root items into their
//!               trees, in rounds until none of these changes another
//! 3 freeze      seal every dirty block; they become frozen blocks; compose the superblock
//!   blocks
//! 4 thaw        open the gate for the next transaction, which runs beside the rest
//! 5 write       check that the superblocks on disk are the ones of this volume; write the frozen
//!               blocks, each checked as if it had been read
//! 6 flush       data and tree blocks are durable
//! 7 superblock  write every copy on every device that has not failed: this is the commit point.
//!               After a log, the first copies follow when the others are durable
//! 8 flush       the commit is durable
//! 9 finish      move frozen blocks to the node cache; unpin the space that the transaction freed
//! ```
//!
//! Laws:
//!
//! 1. Step 2 ends: a block is copied once in a transaction, so a round comes that copies none. On a
//!    damaged volume it ends with an error after [`ROUNDS_MAX`] rounds.
//! 2. Before the superblock, only space that the last commit does not use is written.
//! 3. An error in steps 2 to 8 makes the volume read-only. The devices then hold the state of the
//!    last commit, or of this one.
//! 4. A block that breaks a law of the format is not written: its commit fails.
//! 5. One commit runs at a time. A caller that requests a commit while its transaction is being
//!    committed waits for that commit.
//! 6. A commit without changes still flushes, if data was overwritten in place since the last
//!    flush: no transaction covers that data. A flush that fails makes the volume read-only. Once
//!    writing has ended ([`Forest::end_writes`]), such a commit does not flush.
//! 7. A commit that tolerated the first failure of a device is followed by one more commit, which
//!    records the failure (law 2 of [`crate::device_stats`]). Later failures wait for the next
//!    commit. Failed reads cause no commit: where a tree cannot be read, a commit without changes
//!    would make the volume read-only for nothing.
//! 8. A panic in a commit fails the commit. So does a lock of the running state that an earlier
//!    panic left poisoned.
//! 9. A commit that is durable reports no error: step 9 reads no block and cannot fail. Only the
//!    commit that follows it by law 7 may.

use crate::Block;
use crate::cow::TransactionTree;
use crate::device_stats::Counts;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::log::Log;
use crate::transaction::running::Running;
use at_commit::{AtCommit, Changes};
use butternut_format::check;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::refused::require;
use butternut_format::super_block::{RawRootBackup, RawSuperBlock};
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_space::Class;
use butternut_sys::lock::{Mark, rank};
use butternut_volume::VolumeError;
use context::Commit;
use std::sync::Arc;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// The most rounds of step 2. Commits need a few; the limit stops an endless loop.
const ROUNDS_MAX: usize = 1000;

pub(crate) mod at_commit;
pub(crate) mod context;
pub(crate) mod early;

/// The result of step 3.
struct FrozenBlocks {
    trees: Vec<Arc<TransactionTree>>,
    blocks: Vec<Arc<Block>>,
    super_block: RawSuperBlock,
    device_stats: Counts,
}

impl Forest {
    /// Commits the running transaction. Returns when every change made before the call is durable.
    /// The calling thread must hold no handle.
    ///
    /// # Errors
    /// The changes cannot be written, or an earlier error has made the volume read-only.
    pub fn commit(self: &Arc<Self>) -> Result<Generation, TreeError> {
        let committed = self.commit_once(None)?;
        Ok(self.record_failed_device()?.unwrap_or(committed))
    }

    /// Commits once more after a commit that tolerated the first failure of a device (law 7).
    fn record_failed_device(self: &Arc<Self>) -> Result<Option<Generation>, TreeError> {
        let is_failed = self.volume().has_newly_failed_device();
        is_failed.then(|| self.commit_once(None)).transpose()
    }

    /// Ends commits, the log, and all other writes of the volume: when this returns, no commit and
    /// no log is being written, and the volume refuses every write that begins later. Writes of
    /// data that are in flight are left to the caller. Later commits succeed if there are no
    /// changes to commit, and write nothing.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn end_writes(&self) -> Result<(), TreeError> {
        let (running, log) = (self.running()?, self.log()?);
        // Waits for a commit and for a batch of the log that other threads have begun. A batch that
        // waits for the lock of the log finds that writing has ended.
        *running.committing.lock() = true;
        let _no_batch = log.io.lock();
        self.volume().end_writes();
        Ok(())
    }

    /// Commits once. Makes `changes` inside the commit.
    fn commit_once(
        self: &Arc<Self>,
        changes: Option<&mut Changes<'_>>,
    ) -> Result<Generation, TreeError> {
        debug_assert!(!Mark::<rank::Handle>::is_held(), "a commit waits for all handles");
        let (running, log) = (self.running()?, self.log()?);
        let target = running.gate.generation();
        let has_ended = running.committing.lock();
        if *has_ended {
            running.gate.check()?;
            let is_committed = !running.gate.is_changed();
            return is_committed.then(|| running.gate.committed()).ok_or(TreeError::Ended);
        }
        if changes.is_none() && running.gate.committed() >= target {
            self.flush_in_place(running, target)?;
            return Ok(target);
        }
        if changes.is_some() || self.volume().has_unrecorded_write_errors() {
            running.gate.mark_changed();
        }
        self.apply_early(running)?;
        let Some(generation) = running.gate.freeze()? else {
            let committed = running.gate.committed();
            self.flush_in_place(running, committed)?;
            running.read_epochs.unpin_left();
            return Ok(committed);
        };
        let _watch = self.watch_panics();
        running.check_locks();
        let commit = Commit { running, generation };
        if let Some(error) = running.gate.cause() {
            return Err(running.gate.poison(error));
        }
        if let Some(changes) = changes {
            changes(&AtCommit::new(&commit));
            if let Some(error) = running.gate.cause() {
                return Err(running.gate.poison(error));
            }
        }
        let frozen = match commit.settle().and_then(|stats| commit.freeze_blocks(stats, log)) {
            Ok(frozen) => frozen,
            Err(error) => return Err(running.gate.poison(error)),
        };
        if let Some(error) = running.gate.cause() {
            return Err(running.gate.poison(error));
        }
        running.gate.thaw();
        let mut durable = log.io.lock();
        let ends_log = durable.log_root.get() != 0;
        commit.write(&frozen, ends_log).map_err(|error| running.gate.poison(error))?;
        *durable = frozen.super_block;
        commit.finish(frozen);
        Ok(generation)
    }

    /// Flushes data that was overwritten in place (law 6).
    pub(crate) fn flush_in_place(
        &self,
        running: &Running,
        committed: Generation,
    ) -> Result<(), TreeError> {
        let flushed = self.volume().flush_in_place();
        let failed = |source| {
            let (generation, source) = (committed.0, Box::new(source));
            running.gate.poison(TreeError::Commit { generation, source })
        };
        flushed.map(drop).map_err(failed)
    }

    /// Returns the generation of the running transaction.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn generation(&self) -> Result<Generation, TreeError> {
        self.running().map(|running| running.gate.generation())
    }

    /// Returns the error that made the volume read-only, if there was one.
    pub fn write_error(&self) -> Option<TreeError> {
        self.running().ok().and_then(|running| running.gate.cause())
    }
}

impl Commit<'_> {
    /// Runs step 2. Returns the device statistics that it wrote.
    fn settle(&self) -> Result<Counts, TreeError> {
        let device_stats = self.write_device_stats()?;
        self.remove_empty_chunks()?;
        self.write_checksums(Logical(0)..Logical(u64::MAX))?;
        self.settle_quotas()?;
        for _ in 0..ROUNDS_MAX {
            let mut has_changed = self.write_chunks()?;
            self.apply_references()?;
            // A chunk that was added for these references needs its items before its block group
            // and free space change.
            has_changed |= self.write_chunks()?;
            has_changed |= self.write_groups()?;
            has_changed |= self.write_free_space()?;
            has_changed |= self.write_roots()?;
            if !has_changed && !self.running.is_unsettled() {
                return Ok(device_stats);
            }
        }
        let have = format_args!("not settled after {ROUNDS_MAX} rounds").to_string();
        let source =
            butternut_format::refused::Refused::new("commit", have, "a settled transaction");
        Err(TreeError::Corrupt { tree: TreeId::ROOT, source })
    }

    /// Updates the root items of trees whose root changed. Returns whether there were any.
    fn write_roots(&self) -> Result<bool, TreeError> {
        let mut has_changed = self.move_root_tree()?;
        for tree in self.running.trees() {
            has_changed |= self.write_root(&tree)?;
        }
        Ok(has_changed)
    }

    /// Updates the root item of a tree, if its root changed. Returns whether it has.
    fn write_root(&self, tree: &TransactionTree) -> Result<bool, TreeError> {
        let Some((key, item)) = self.root_item(tree) else { return Ok(false) };
        self.edit(TreeId::ROOT)?.put(&key, &item)?;
        Ok(true)
    }

    /// Copies the root of the root tree, even without changes: the superblock must name a root tree
    /// of its own generation. Returns `false` if the root has been copied already.
    fn move_root_tree(&self) -> Result<bool, TreeError> {
        let root = self.root_of(TreeId::ROOT)?;
        if root.is_none_or(|root| root.generation == self.generation) {
            return Ok(false);
        }
        let key = Key::new(TreeId::EXTENT.0, ItemType::ROOT_ITEM, 0);
        self.edit(TreeId::ROOT)?.update(&key, &mut |_| {})
    }

    /// Returns the new root item of a tree, if its root changed.
    fn root_item(&self, tree: &TransactionTree) -> Option<(Key, Vec<u8>)> {
        let mut state = tree.state_mut();
        if !std::mem::take(&mut state.is_root_item_stale) {
            return None;
        }
        let (root, is_changed) = (state.root, state.is_changed);
        let record = state.record.as_mut()?;
        let raw = &mut record.raw;
        raw.bytenr.set(root.logical.0);
        raw.level = root.level;
        // Older than this transaction if only other fields of the item have changed.
        raw.generation.set(root.generation.0);
        raw.generation_v2.set(root.generation.0);
        if tree.id().is_subvolume() && is_changed {
            let now = self.running.now();
            raw.ctransid.set(self.generation.0);
            raw.ctime = now.into();
        }
        Some((record.key, record.raw.as_bytes().to_vec()))
    }

    /// Runs step 3.
    fn freeze_blocks(&self, device_stats: Counts, log: &Log) -> Result<FrozenBlocks, TreeError> {
        let trees = self.running.trees();
        let csum = self.running.params.csum;
        let mut blocks = Vec::new();
        for tree in &trees {
            let mut state = tree.state_mut();
            let mut dirty = std::mem::take(&mut state.dirty);
            for block in dirty.values_mut() {
                Arc::make_mut(block).seal(csum);
            }
            dirty.extend(std::mem::take(&mut state.sealed));
            blocks.extend(dirty.values().cloned());
            state.frozen = Some(Arc::new(dirty));
            state.is_changed = false;
            state.committed_root = state.root;
            state.changes.clear();
        }
        self.end_log(log);
        self.running.references().drops().freeze();
        self.running.reset_dirty();
        for class in Class::ALL {
            self.running.space.release_recycled(class);
        }
        self.running.space.consolidate(Class::Metadata);
        blocks.sort_by_key(|block| block.logical());
        // A tree and its snapshot have the same sealed blocks.
        blocks.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let is_once = blocks.is_sorted_by(|a, b| a.logical() < b.logical());
        assert!(is_once, "two trees have a block at one address");
        let super_block = self.super_block()?;
        // From here on it belongs to the next transaction, which begins before this one is written.
        *self.running.super_block() = super_block;
        Ok(FrozenBlocks { trees, blocks, super_block, device_stats })
    }

    /// Ends the log of this transaction: its blocks are free when the commit is durable.
    fn end_log(&self, log: &Log) {
        let running = self.running;
        let next = Generation(self.generation.0.saturating_add(1));
        for range in log.end_transaction(next, running.params.node_bytes) {
            running.check(running.space.pin(range, self.generation));
        }
    }

    /// Composes the superblock of this generation, without the fields that differ between devices.
    fn super_block(&self) -> Result<RawSuperBlock, TreeError> {
        let mut raw = *self.running.super_block();
        let last_generation = raw.generation;
        raw.generation.set(self.generation.0);
        if let Some(root) = self.root_of(TreeId::ROOT)? {
            // Readers expect the root tree to be as new as the superblock.
            require(
                root.generation == self.generation,
                "generation",
                root.generation,
                self.generation,
            )
            .map_err(|source| TreeError::Corrupt { tree: TreeId::ROOT, source })?;
            raw.root.set(root.logical.0);
            raw.root_level = root.level;
        }
        if let Some(root) = self.root_of(TreeId::CHUNK)? {
            raw.chunk_root.set(root.logical.0);
            raw.chunk_root_level = root.level;
            raw.chunk_root_generation.set(root.generation.0);
        }
        raw.bytes_used.set(self.running.space.bytes_used());
        raw.log_root.set(0);
        raw.log_root_level = 0;
        // A uuid tree that was up to date stays so. An old generation makes the kernel rebuild it.
        if raw.uuid_tree_generation == last_generation {
            raw.uuid_tree_generation.set(self.generation.0);
        }
        let backup = self.backup(&raw)?;
        let newest = raw.super_roots.iter().enumerate();
        let newest = newest.max_by_key(|(_, backup)| backup.tree_root_gen.get());
        let next = newest.map_or(0, |(at, _)| at.saturating_add(1)) % raw.super_roots.len();
        if let Some(place) = raw.super_roots.get_mut(next) {
            *place = backup;
        }
        Ok(raw)
    }

    fn backup(&self, raw: &RawSuperBlock) -> Result<RawRootBackup, TreeError> {
        let mut backup = RawRootBackup::new_zeroed();
        backup.tree_root = raw.root;
        backup.tree_root_gen = raw.generation;
        backup.tree_root_level = raw.root_level;
        backup.chunk_root = raw.chunk_root;
        backup.chunk_root_gen = raw.chunk_root_generation;
        backup.chunk_root_level = raw.chunk_root_level;
        let set = |id, place: &mut U64, generation: &mut U64, level: &mut u8| {
            if let Some(root) = self.root_of(id)? {
                place.set(root.logical.0);
                generation.set(root.generation.0);
                *level = root.level;
            }
            Ok::<(), TreeError>(())
        };
        let b = &mut backup;
        set(TreeId::EXTENT, &mut b.extent_root, &mut b.extent_root_gen, &mut b.extent_root_level)?;
        set(TreeId::FS, &mut b.fs_root, &mut b.fs_root_gen, &mut b.fs_root_level)?;
        set(TreeId::DEVICE, &mut b.dev_root, &mut b.dev_root_gen, &mut b.dev_root_level)?;
        set(TreeId::CHECKSUM, &mut b.csum_root, &mut b.csum_root_gen, &mut b.csum_root_level)?;
        backup.total_bytes = raw.total_bytes;
        backup.bytes_used = raw.bytes_used;
        backup.num_devices = raw.num_devices;
        Ok(backup)
    }

    /// Runs steps 5 to 8. `ends_log`: the superblock on disk names a log.
    fn write(&self, frozen: &FrozenBlocks, ends_log: bool) -> Result<(), TreeError> {
        let volume = self.volume();
        let rules = volume.block_rules();
        for block in &frozen.blocks {
            let expected = Expected {
                logical: block.logical(),
                generation: self.generation,
                level: block.level(),
                tree: block.owner(),
                first_key: None,
                end_key: None,
            };
            check::block(block.bytes(), &expected, &rules)
                .map_err(|source| TreeError::Corrupt { tree: block.owner(), source })?;
        }
        let blocks: Vec<(Logical, &[u8])> =
            frozen.blocks.iter().map(|block| (block.logical(), block.bytes())).collect();
        let failed = |source: VolumeError| TreeError::Commit {
            generation: self.generation.0,
            source: Box::new(source),
        };
        volume.check_own_supers().map_err(failed)?;
        volume.write_blocks(&blocks).map_err(failed)?;
        volume.flush().map_err(failed)?;
        if ends_log {
            volume.write_super_after_log(&frozen.super_block).map_err(failed)?;
        } else {
            volume.write_super(&frozen.super_block).map_err(failed)?;
        }
        volume.flush().map_err(failed)
    }

    /// Runs step 9. The commit is durable: nothing here fails (law 9).
    fn finish(&self, frozen: FrozenBlocks) {
        for block in frozen.blocks {
            self.running.blocks().insert(block);
        }
        for tree in frozen.trees {
            tree.state_mut().frozen = None;
        }
        for (devid, counts) in &frozen.device_stats {
            self.volume().set_recorded_stats(*devid, counts);
        }
        self.release_chunks();
        let durable = self.running.references().drops().take_durable();
        drop(durable);
        self.running.gate.set_committed(self.generation);
        self.running.read_epochs.unpin(self.generation);
        self.running.set_global_reserve();
    }
}

#[cfg(test)]
mod edit_tests;
#[cfg(test)]
mod resize_tests;
#[cfg(test)]
mod tests;
