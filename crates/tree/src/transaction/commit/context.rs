//! [`Commit`]: the running transaction while its gate is closed, as the steps of a commit see it.
//!
//! Each step that writes one kind of item is a method of it, beside the items: checksums
//! (`checksum_tree`), references (`references::apply`), chunks, block groups and free space
//! (`chunks`), device statistics (`device_stats`).
//!
//! Left to others: the order of the steps, and writing their result (`commit`).

use crate::error::TreeError;
use crate::transaction::TreeEdit;
use crate::transaction::running::Running;
use butternut_format::node::Expected;
use butternut_format::units::{Generation, TreeId};
use butternut_volume::Volume;
use std::sync::Arc;

/// A commit while its gate is closed.
#[derive(Debug)]
pub(crate) struct Commit<'a> {
    pub(crate) running: &'a Running,
    pub(crate) generation: Generation,
}

impl<'a> Commit<'a> {
    /// Opens a tree for changes of the commit itself.
    pub(crate) fn edit(&self, id: TreeId) -> Result<TreeEdit<'a>, TreeError> {
        TreeEdit::new(self.running, id, self.generation, None)
    }

    pub(crate) fn volume(&self) -> &'a Arc<Volume> {
        self.running.blocks().volume()
    }

    /// Returns the root of a tree; `None` if the volume has no such tree.
    pub(crate) fn root_of(&self, id: TreeId) -> Result<Option<Expected>, TreeError> {
        Ok(self.running.tree(id)?.map(|tree| tree.root()))
    }
}
