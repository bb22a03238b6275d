//! The early steps of a commit: most delayed references of data reach the trees before the gate
//! closes for the commit, a slice at a time, so that no handle waits for all of them.
//!
//! ```text
//! gate     open --> closed --> open --> closed --> open --> ... --> closed --> commit
//! heads             a slice             a slice                     the rest, and tree blocks
//! ```
//!
//! Laws:
//!
//! 1. A slice is applied as by the commit: while no handle is open. Between two slices the same
//!    transaction continues, and each thread that has waited joins it.
//! 2. A slice is a range of addresses that ascend from slice to slice. It has the checksums of
//!    exactly its data: those of data whose head is still in memory stay there, because a drop of
//!    that head forgets them there only.
//! 3. References of tree blocks stay in memory: what a transaction does with the blocks that it has
//!    allocated depends on them.
//! 4. There are at most as many slices as there were heads for at the beginning, so the early steps
//!    end while others add references.
//!
//! While quotas are on there are no early steps: quotas know the owner of new data from its head.

use super::context::Commit;
use crate::error::TreeError;
use crate::forest::Forest;
use crate::transaction::running::Running;
use butternut_format::units::Logical;

/// The number of heads in a slice; a build with assertions has small ones, so that tests have many.
/// As long as fewer than twice as many are left, the commit applies them.
const SLICE_HEADS: usize = if cfg!(debug_assertions) { 64 } else { 4 << 10 };

impl Forest {
    /// Runs the early steps. The caller holds the lock that keeps commits apart.
    pub(super) fn apply_early(&self, running: &Running) -> Result<(), TreeError> {
        let many = |running: &Running| running.references().heads_len() >= 2 * SLICE_HEADS;
        if running.has_quotas() || !many(running) {
            return Ok(());
        }
        let _watch = self.watch_panics();
        let slices = running.references().heads_len() / SLICE_HEADS;
        let mut from = Logical(0);
        for _ in 0..slices {
            let Some(generation) = running.gate.freeze()? else { return Ok(()) };
            running.check_locks();
            let applied = match running.gate.cause() {
                Some(cause) => Err(cause),
                None => Commit { running, generation }.apply_slice(from),
            };
            let next = applied.map_err(|error| running.gate.poison(error))?;
            running.gate.reopen();
            match next {
                Some(next) if many(running) => from = next,
                _ => break,
            }
        }
        Ok(())
    }
}

impl Commit<'_> {
    /// Applies the first heads from `from` on. Returns where the next slice begins; `None` if there
    /// was none.
    fn apply_slice(&self, from: Logical) -> Result<Option<Logical>, TreeError> {
        self.write_chunks()?;
        let heads = self.running.references().take_data(from, SLICE_HEADS);
        let Some((last, head)) = heads.last_key_value() else { return Ok(None) };
        let next = Logical(last.0.saturating_add(head.bytes));
        self.write_checksums(from..next)?;
        self.apply_heads(&heads)?;
        // A chunk that was added for the slice needs its items before its free space changes.
        self.write_chunks()?;
        self.write_free_space()?;
        Ok(Some(next))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, open};
    use super::SLICE_HEADS;
    use crate::references::{Content, Ref};
    use crate::{Forest, Need};
    use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
    use butternut_format::extent::DataRef;
    use butternut_format::key::{ItemType, Key};
    use butternut_format::units::{DiskRange, Ino, Logical, TreeId, length};
    use butternut_space::Cluster;
    use butternut_sys::wait::Wait;
    use std::sync::Arc;

    /// Every second sector, so that each extent has an item of checksums of its own.
    fn add_extents(forest: &Arc<Forest>, count: u64) -> Vec<u64> {
        let bytes = count * 8192;
        let range = forest.allocate_data(bytes, bytes, Cluster(9), Wait::Block).expect("space");
        let starts: Vec<u64> = range.addresses().step_by(8192).collect();
        let handle = forest.join(Need::items(1)).expect("space");
        for at in &starts {
            let reference = DataRef { tree: TreeId::FS, ino: Ino(300), offset: *at, count: 1 };
            handle.add_data_extent(Logical(*at), 4096, reference);
            handle.put_checksums(Logical(*at), &[7; 4]);
        }
        drop(handle);
        for at in &starts {
            let gap = DiskRange::new(Logical(at + 4096), 4096).expect("a range");
            forest.release_data(gap).expect("writable");
        }
        starts
    }

    fn has_checksum(forest: &Arc<Forest>, at: u64) -> bool {
        let tree = forest.tree(TreeId::CHECKSUM).expect("a search").expect("the tree");
        let key = Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, at);
        tree.find(&key).expect("a search").is_some()
    }

    #[test]
    fn references_of_data_are_in_the_trees_before_the_commit() {
        let device = fresh(1 << 30);
        let forest = open(&device);
        let running = forest.running().expect("writable");
        let starts = add_extents(&forest, 20 * length(SLICE_HEADS));
        let (generation, nodes) = (running.gate.generation(), blocks(running));
        forest.apply_early(running).expect("space");
        assert_eq!(running.gate.generation(), generation, "nothing was committed");
        assert!(running.references().heads_len() < 4 * SLICE_HEADS, "most are applied");
        assert!(blocks(running) >= nodes, "those of tree blocks are left to the commit");
        let refs = |at: &u64| forest.data_refs(Logical(*at), 4096).expect("a count");
        assert!(starts.iter().all(|at| refs(at) == 1));
        assert!(has_checksum(&forest, starts[0]));

        // What was created in this transaction is dropped in it.
        let handle = forest.join(Need::items(1)).expect("space");
        for at in starts.iter().skip(1).step_by(2) {
            let reference = DataRef { tree: TreeId::FS, ino: Ino(300), offset: *at, count: 1 };
            handle.drop_data_ref(Logical(*at), 4096, reference);
        }
        drop(handle);
        forest.commit().expect("a commit");
        drop(forest);
        let forest = open(&device);
        for (number, at) in starts.iter().enumerate() {
            let is_left = number % 2 == 0;
            assert_eq!(forest.has_extent(Logical(*at), 4096).expect("a search"), is_left);
            assert_eq!(has_checksum(&forest, *at), is_left, "{number}");
        }
    }

    fn blocks(running: &super::Running) -> usize {
        running.references().count_of(|head| head.content != Content::Data)
    }

    #[test]
    fn checksums_of_later_slices_stay_in_memory() {
        let forest = open(&fresh(1 << 30));
        let running = forest.running().expect("writable");
        let starts = add_extents(&forest, 4 * length(SLICE_HEADS));
        let generation = running.gate.freeze().expect("no error").expect("changes");
        let commit = super::Commit { running, generation };
        let next = commit.apply_slice(Logical(starts[1])).expect("space").expect("a slice");
        running.gate.reopen();
        let last = starts[SLICE_HEADS];
        assert_eq!(next, Logical(last + 4096));
        assert!(has_checksum(&forest, starts[1]) && has_checksum(&forest, last));
        let is_pending = |at: u64| {
            let mut found = false;
            running.pending_checksums().find(&(at..at + 4096), &mut |_, _| found = true);
            found
        };
        for at in [starts[0], starts[SLICE_HEADS + 1]] {
            assert!(is_pending(at) && !has_checksum(&forest, at));
            assert!(running.references().get(Logical(at)).is_some_and(|head| head.is_created));
        }
        // A drop forgets the extent and its checksum, as if neither had been.
        let reference = DataRef { tree: TreeId::FS, ino: Ino(300), offset: starts[0], count: 1 };
        let handle = forest.join(Need::items(1)).expect("space");
        handle.drop_data_ref(Logical(starts[0]), 4096, reference);
        drop(handle);
        assert!(!is_pending(starts[0]));
        assert!(running.references().get(Logical(starts[0])).is_none());
        let own = Ref::Data(DataRef { offset: starts[1], ..reference });
        let pending = running.references().pending_refs(Logical(starts[1]), Some(own));
        assert_eq!(pending.expect("no batch").sum, 0, "it is in the tree");
        forest.commit().expect("a commit");
    }
}
