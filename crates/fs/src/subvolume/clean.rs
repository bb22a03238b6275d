//! Frees the blocks of deleted subvolumes, in steps, beside other operations.
//!
//! Laws:
//!
//! 1. A subvolume is not freed while one of its inodes is pinned or listed: open files are read
//!    from it. The cleaner looks for them once, when the deletion is over: each pin precedes that,
//!    or it fails, because the tree cannot be found any more (`WriteState::forget_subvolume`). So
//!    pins only become fewer, and no step looks again.
//! 2. Each step is one transaction handle. A crash between two steps loses nothing: the orphan item
//!    and the progress in the root item lead the next open on.
//! 3. One thread frees at a time.

use crate::write_state::WriteState;
use crate::{Error, Filesystem, Result, TOP_LEVEL};
use butternut_format::units::{Ino, TreeId};
use butternut_names as names;
use butternut_tree::{Dropped, Handle, Need, REFERENCES_PER_PART, TreeError};
use std::time::Duration;

/// Blocks that one step frees or looks at.
const BLOCKS_PER_STEP: usize = 64;

/// Items that a step may change: the root item, and the orphan item.
const ITEMS_OF_STEP: u32 = 4;

/// Pause before a caller that waits for the cleaner is asked whether it still waits.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// Deleted subvolumes that one search returns.
const SUBVOLUMES_PER_BATCH: usize = 256;

impl Filesystem {
    /// Frees the space of deleted subvolumes, and that of deleted files which a crash has left in
    /// read-only subvolumes that were used since the open. Returns the ids of the subvolumes that
    /// are left because files in them are open.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; the first tree that cannot be read. The others
    /// are freed.
    pub fn clean_subvolumes(&self) -> Result<Vec<u64>> {
        self.clean_subvolumes_while(&|| true)
    }

    /// As [`Filesystem::clean_subvolumes`], in steps of a few blocks, as long as `goes_on` returns
    /// true. What is left then is freed by the next call, also after the volume was closed.
    pub fn clean_subvolumes_while(&self, goes_on: &dyn Fn() -> bool) -> Result<Vec<u64>> {
        let write_state = self.may_begin()?;
        let cleaning = write_state.cleaning.lock();
        let left = self.clean_all(write_state, goes_on);
        drop(cleaning);
        left
    }

    /// As [`Filesystem::clean_subvolumes_while`], for a thread that is not to wait. Returns whether
    /// something is left: so it is while another thread frees subvolumes, which may not see what is
    /// requested meanwhile.
    pub(crate) fn clean_subvolumes_unless_another(
        &self,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let write_state = self.may_begin()?;
        let Some(cleaning) = write_state.cleaning.try_lock() else { return Ok(true) };
        let left = self.clean_all(write_state, goes_on);
        drop(cleaning);
        Ok(!left?.is_empty())
    }

    /// The caller frees alone (law 3).
    fn clean_all(&self, write_state: &WriteState, goes_on: &dyn Fn() -> bool) -> Result<Vec<u64>> {
        let mut read_only = write_state.cleaner.take_read_only();
        while let Some(id) = read_only.pop_first() {
            if !goes_on() {
                break;
            }
            self.delete_orphans_of_read_only_while(write_state, id, goes_on);
        }
        let (mut left, mut failed) = (Vec::new(), None);
        let mut from = Some(Ino(0));
        while let Some(start) = from.take() {
            let found = names::orphans(&self.forest().root_tree(), start, SUBVOLUMES_PER_BATCH)?;
            for Ino(id) in &found {
                match self.clean(write_state, TreeId(*id), goes_on) {
                    Ok(true) => {}
                    Ok(false) => left.push(*id),
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
            }
            from = found.last().and_then(|last| last.0.checked_add(1)).map(Ino);
        }
        write_state.cleaner.set_left(&left);
        failed.map_or(Ok(left), Err)
    }

    /// Returns the ids of the subvolumes that are deleted and whose space is not freed yet.
    ///
    /// # Errors
    /// The root tree cannot be read.
    pub fn deleted_subvolumes(&self) -> Result<Vec<u64>> {
        let mut deleted = Vec::new();
        let mut from = Some(Ino(0));
        while let Some(start) = from.take() {
            let found = names::orphans(&self.forest().root_tree(), start, SUBVOLUMES_PER_BATCH)?;
            for Ino(id) in &found {
                let root = self.forest().root_item(TreeId(*id))?;
                let is_deleted = root.is_some_and(|(_, root)| root.refs() == 0);
                deleted.extend((is_deleted && TreeId(*id).is_subvolume()).then_some(*id));
            }
            from = found.last().and_then(|last| last.0.checked_add(1)).map(Ino);
        }
        deleted.retain(|id| *id != TOP_LEVEL);
        Ok(deleted)
    }

    /// Waits until the space of a deleted subvolume is freed, as long as `goes_on` returns true: it
    /// is called every tenth of a second. A subvolume is not freed while a file in it is open.
    /// Returns whether there is no such subvolume any more.
    ///
    /// # Errors
    /// [`Error::Exists`] if it is not deleted; [`Error::ReadOnly`], and the error that has ended
    /// writing.
    pub fn wait_until_cleaned(&self, id: u64, goes_on: &dyn Fn() -> bool) -> Result<bool> {
        loop {
            let write_state = self.may_begin()?;
            let seen = write_state.cleaner.cleaned();
            match self.forest().root_item(TreeId(id))? {
                None => return Ok(true),
                Some((_, root)) if root.refs() > 0 || id == TOP_LEVEL => return Err(Error::Exists),
                Some(_) if !goes_on() => return Ok(false),
                Some(_) => write_state.cleaner.wait_until_cleaned(seen, WAIT_STEP),
            }
        }
    }

    /// Frees one subvolume. Returns `false` if a part of it is left.
    fn clean(
        &self,
        write_state: &WriteState,
        id: TreeId,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let Some((key, root)) = self.forest().root_item(id)? else {
            let handle = self.forest().join(Need::items(ITEMS_OF_STEP).deleting())?;
            names::remove_orphan(&handle.tree(TreeId::ROOT)?, Ino(id.0))?;
            drop(handle);
            write_state.signal.changed();
            return Ok(true);
        };
        if root.refs() > 0 || !id.is_subvolume() || id == TreeId::FS {
            // As in the kernel, an orphan item of a subvolume that is in use means nothing.
            return Ok(true);
        }
        let (mut is_unused, mut has_committed) = (false, false);
        while goes_on() {
            // A deletion excludes operations that write until no tree of it can be found.
            let writing = self.begin()?;
            is_unused = is_unused || writing.forget_subvolume(id.0);
            if !is_unused {
                return Ok(false);
            }
            let handle = self.join_step()?;
            let dropped = match handle.drop_tree(id, BLOCKS_PER_STEP) {
                // The commit frees the space that the steps before hold.
                Err(TreeError::NoSpace { .. }) if !has_committed => {
                    drop((handle, writing));
                    self.forest().commit()?;
                    has_committed = true;
                    continue;
                }
                dropped => dropped?,
            };
            has_committed = false;
            if dropped == Dropped::Whole {
                let roots = handle.tree(TreeId::ROOT)?;
                let removed = roots.remove(&key).map_err(names::NamesError::from);
                removed
                    .and_then(|_| names::remove_orphan(&roots, Ino(id.0)))
                    .map_err(|error| handle.abort(error.into_midway(TreeId::ROOT)))?;
                handle.forget_tree(id);
            }
            drop(handle);
            writing.signal.changed();
            if dropped == Dropped::Whole {
                writing.cleaner.has_cleaned();
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Joins the running transaction for a step. On a full volume, that commits the steps before;
    /// the step then ends where the space for its commit does.
    fn join_step(&self) -> Result<Handle> {
        let need = Need::items(ITEMS_OF_STEP).deleting();
        match self.forest().join(need.references(REFERENCES_PER_PART)) {
            Err(TreeError::NoSpace { .. }) => Ok(self.forest().join(need)?),
            joined => Ok(joined?),
        }
    }
}
