//! The commit: how a running transaction becomes the state of the volume.
//!
//! ```text
//! 1 freeze      no handle is open, none joins
//! 2 settle      checksums; then new chunks, delayed references, block groups, free space, root
//!               items: over and over until nothing is left, since each can cause the others
//! 3 set aside   every dirty block is sealed and becomes frozen; the superblock is put together
//! 4 thaw        the next transaction begins; the rest runs beside it
//! 5 write       the superblocks on disk are still ours; the frozen blocks, each checked as if it
//!               had been read
//! 6 flush       data and blocks are on the medium
//! 7 superblock  every copy on every device that has not failed: the instant of truth
//! 8 flush       the commit is down
//! 9 release     frozen blocks go to the node cache, pinned space is free
//! ```
//!
//! Laws:
//!
//! 1. Step 2 ends: a block is copied once in a transaction, so every round copies fewer.
//! 2. Nothing is written before the superblock but to space that the last commit does not use.
//! 3. An error at any step ends all writing; what is on the devices stays as the last commit left
//!    it, or as this one does.
//! 4. A block that breaks a law of the format is not written: its commit fails.
//! 5. One commit runs at a time; who asks for one that is already under way waits for it.
//! 6. A commit that has nothing to write flushes all the same where data was written in place since
//!    the last flush: that data is in no transaction. A flush that fails ends all writing too.
//! 7. A commit that tolerated the first failure of a device is followed by one that records it
//!    (law 2 of [`crate::device_stats`]), at most once: later failures wait for the next commit.
//!    Failed reads are no reason to commit: where a tree cannot be read, a commit without changes
//!    would end all writing for nothing.
//! 8. A panic in a commit, or one that left a lock of the running state poisoned before it, fails
//!    the commit.

use crate::Block;
use crate::device_stats::Counts;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::live::LiveTree;
use crate::running::Running;
use crate::transaction::TreeEdit;
use butternut_format::check;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::super_block::{RawRootBackup, RawSuperBlock};
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_space::Class;
use butternut_volume::VolumeError;
use std::sync::{Arc, PoisonError};
use zerocopy::FromZeros;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Rounds of step 2 before it is taken for endless: a bound, not an expectation.
const ROUNDS_MAX: usize = 1000;

/// The commit while its gate is closed.
pub(crate) struct Step<'a> {
    pub(crate) forest: &'a Arc<Forest>,
    pub(crate) running: &'a Running,
    pub(crate) generation: Generation,
}

/// What step 3 set aside.
struct Frozen {
    trees: Vec<Arc<LiveTree>>,
    blocks: Vec<Arc<Block>>,
    super_block: RawSuperBlock,
    device_stats: Counts,
}

impl Forest {
    /// Commits the running transaction; returns when everything that was changed before the call
    /// is on the medium. The calling thread must hold no handle.
    ///
    /// # Errors
    /// What could not be written, or the earlier error since which nothing is.
    pub fn commit(self: &Arc<Self>) -> Result<Generation, TreeError> {
        let committed = self.commit_once()?;
        if !self.volume().has_unrecorded_doubt() {
            return Ok(committed);
        }
        self.commit_once()
    }

    fn commit_once(self: &Arc<Self>) -> Result<Generation, TreeError> {
        let running = self.running()?;
        let wanted = running.gate.generation();
        let _alone = running.committing.lock().unwrap_or_else(PoisonError::into_inner);
        if running.gate.committed() >= wanted {
            self.flush_in_place(running, wanted)?;
            return Ok(wanted);
        }
        if self.volume().has_unrecorded_misses() {
            running.gate.mark_changed();
        }
        let Some(generation) = running.gate.freeze()? else {
            let committed = running.gate.committed();
            self.flush_in_place(running, committed)?;
            return Ok(committed);
        };
        let _watch = self.watch_panics();
        running.check_locks();
        let step = Step { forest: self, running, generation };
        if let Some(error) = running.gate.cause() {
            return Err(running.gate.poison(error));
        }
        let frozen = match step.settle().and_then(|stats| step.set_aside(stats)) {
            Ok(frozen) => frozen,
            Err(error) => return Err(running.gate.poison(error)),
        };
        if let Some(error) = running.gate.cause() {
            return Err(running.gate.poison(error));
        }
        running.gate.thaw();
        step.write(&frozen).map_err(|error| running.gate.poison(error))?;
        step.release(frozen)?;
        Ok(generation)
    }

    /// Law 6.
    fn flush_in_place(&self, running: &Running, committed: Generation) -> Result<(), TreeError> {
        let flushed = self.volume().flush_in_place();
        let failed = |source| {
            let (generation, source) = (committed.0, Box::new(source));
            running.gate.poison(TreeError::Commit { generation, source })
        };
        flushed.map(drop).map_err(failed)
    }

    /// The generation of the running transaction.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn generation(&self) -> Result<Generation, TreeError> {
        self.running().map(|running| running.gate.generation())
    }

    /// Why nothing is written any more, if that is so.
    pub fn write_error(&self) -> Option<TreeError> {
        self.running().ok().and_then(|running| running.gate.cause())
    }
}

impl<'a> Step<'a> {
    /// A tree, to be changed by the commit itself.
    pub(crate) fn edit(&self, id: TreeId) -> Result<TreeEdit<'a>, TreeError> {
        TreeEdit::new(self.forest, id, self.generation, None)
    }

    /// Step 2.
    fn settle(&self) -> Result<Counts, TreeError> {
        let device_stats = self.write_device_stats()?;
        self.remove_empty_chunks()?;
        self.write_sums()?;
        for _ in 0..ROUNDS_MAX {
            let mut is_busy = self.write_chunks()?;
            self.apply_references()?;
            // A chunk that was made for these has its items before anything else is said of it.
            is_busy |= self.write_chunks()?;
            is_busy |= self.write_groups()?;
            is_busy |= self.write_free_space()?;
            is_busy |= self.write_roots()?;
            if !is_busy && !self.running.is_unsettled() {
                return Ok(device_stats);
            }
        }
        let have = format_args!("not settled after {ROUNDS_MAX} rounds").to_string();
        let source = butternut_format::refused::Refused::new("commit", have, "an end");
        Err(TreeError::Corrupt { tree: TreeId::ROOT, source })
    }

    /// Brings the root items of trees that moved up to date. `false`: none had.
    fn write_roots(&self) -> Result<bool, TreeError> {
        let mut is_busy = self.move_root_tree()?;
        for tree in self.running.trees() {
            let Some((key, item)) = self.root_item(&tree) else { continue };
            self.edit(TreeId::ROOT)?.put(&key, &item)?;
            is_busy = true;
        }
        Ok(is_busy)
    }

    /// The superblock promises a root tree of its own generation, even when nothing in it changed.
    /// `false`: it has moved already.
    fn move_root_tree(&self) -> Result<bool, TreeError> {
        let root = self.root_of(TreeId::ROOT)?;
        if root.is_none_or(|root| root.generation == self.generation) {
            return Ok(false);
        }
        let key = Key::new(TreeId::EXTENT.0, ItemType::ROOT_ITEM, 0);
        self.edit(TreeId::ROOT)?.update(&key, &mut |_| {})
    }

    /// The new root item of a tree, if it moved.
    fn root_item(&self, tree: &LiveTree) -> Option<(Key, Vec<u8>)> {
        let mut state = tree.state_mut();
        if !std::mem::take(&mut state.is_moved) {
            return None;
        }
        let (root, is_touched) = (state.root, state.is_touched);
        let record = state.record.as_mut()?;
        let raw = &mut record.raw;
        raw.bytenr.set(root.logical.0);
        raw.level = root.level;
        raw.generation.set(self.generation.0);
        raw.generation_v2.set(self.generation.0);
        if tree.id().is_subvolume() && is_touched {
            let now = self.forest.now();
            raw.ctransid.set(self.generation.0);
            raw.ctime = now.into();
        }
        Some((record.key, record.raw.as_bytes().to_vec()))
    }

    /// Step 3.
    fn set_aside(&self, device_stats: Counts) -> Result<Frozen, TreeError> {
        let trees = self.running.trees();
        let csum = self.running.facts.csum;
        let mut blocks = Vec::new();
        for tree in &trees {
            let mut state = tree.state_mut();
            let mut dirty = std::mem::take(&mut state.dirty);
            for block in dirty.values_mut() {
                Arc::make_mut(block).seal(csum);
            }
            blocks.extend(dirty.values().cloned());
            state.frozen = Some(Arc::new(dirty));
            state.is_touched = false;
        }
        self.running.reset_dirty();
        for class in Class::ALL {
            self.running.space.forget_spares(class);
        }
        self.running.space.gather(Class::Metadata);
        blocks.sort_by_key(|block| block.logical());
        let super_block = self.super_block()?;
        // From here on it is the next transaction's, which begins before this one is written.
        *self.running.super_block() = super_block;
        Ok(Frozen { trees, blocks, super_block, device_stats })
    }

    fn root_of(&self, id: TreeId) -> Result<Option<Expected>, TreeError> {
        Ok(self.running.tree(self.forest, id)?.map(|tree| tree.root()))
    }

    /// The superblock of this generation, but for what differs from device to device.
    fn super_block(&self) -> Result<RawSuperBlock, TreeError> {
        let mut raw = *self.running.super_block();
        let before = raw.generation;
        raw.generation.set(self.generation.0);
        if let Some(root) = self.root_of(TreeId::ROOT)? {
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
        // The uuid tree stays in step if it was; else whoever rebuilds it shall see that.
        if raw.uuid_tree_generation == before {
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

    /// Steps 5 to 8.
    fn write(&self, frozen: &Frozen) -> Result<(), TreeError> {
        let volume = self.forest.volume();
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
        volume.check_own().map_err(failed)?;
        volume.write_blocks(&blocks).map_err(failed)?;
        volume.flush().map_err(failed)?;
        volume.write_super(&frozen.super_block).map_err(failed)?;
        volume.flush().map_err(failed)
    }

    /// Step 9.
    fn release(&self, frozen: Frozen) -> Result<(), TreeError> {
        for block in frozen.blocks {
            self.forest.keep(block);
        }
        for tree in frozen.trees {
            tree.state_mut().frozen = None;
        }
        for (devid, counts) in &frozen.device_stats {
            self.forest.volume().set_recorded_stats(*devid, counts);
        }
        self.release_chunks();
        self.running.gate.set_committed(self.generation);
        self.forest.unpin(self.running, self.generation);
        self.running.set_reserve(self.forest)
    }
}

#[cfg(test)]
mod tests;
