//! [`Chunks`]: the chunks that the running transaction adds and removes, until a commit writes and
//! removes their items.
//!
//! The laws are those of [`chunks`](super).

use crate::chunks::{block_groups, device_extents};
use crate::error::TreeError;
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, TreeId};
use butternut_space::{ChunkPlan, Class, Group, Space, excluded_ranges};
use butternut_volume::{Layout, Volume};
use std::ops::Range;
use std::sync::Arc;

/// Chunks that the running transaction added, and chunks that the commit removed.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    pub(super) pending: Vec<ChunkPlan>,
    pub(super) removed: Vec<Arc<Layout>>,
    /// Empty groups that the next commit removes, even if they are the last of their kind (law 4).
    pub(super) to_remove: Vec<Logical>,
    /// Whether the size of a device changed.
    pub(super) is_resized: bool,
}

impl Chunks {
    /// Makes the next commit remove empty groups, whatever free space is left without them.
    pub(crate) fn remove_next_commit(&mut self, groups: Vec<Logical>) {
        self.to_remove.extend(groups);
    }

    /// Drops a chunk that was added in this transaction. Returns `false` for an older one, with
    /// items.
    pub(super) fn cancel(&mut self, start: Logical) -> bool {
        let before = self.pending.len();
        self.pending.retain(|plan| plan.chunk.logical != start);
        self.pending.len() < before
    }

    /// Whether a chunk was added whose items are not written.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn set_resized(&mut self) {
        self.is_resized = true;
    }

    /// Adds a chunk of a class to the volume and to `space`, where `plan` places it. Returns
    /// `false` if the devices lack the space.
    pub(crate) fn add(
        &mut self,
        volume: &Volume,
        space: &Space,
        class: Class,
        plan: impl FnOnce(&Space, BlockGroupFlags) -> Option<ChunkPlan>,
    ) -> Result<bool, TreeError> {
        let Some(plan) = plan(space, space.next_chunk_flags(class)) else { return Ok(false) };
        install(volume, space, &plan)?;
        self.pending.push(plan);
        Ok(true)
    }
}

fn install(volume: &Volume, space: &Space, plan: &ChunkPlan) -> Result<(), TreeError> {
    let chunk = &plan.chunk;
    device_extents::check_new(&volume.chunks(), chunk, plan.stripe_bytes)?;
    volume
        .install_chunk(chunk.logical, chunk)
        .and_then(|()| volume.publish_chunks())
        .map_err(|source| TreeError::Assemble(Box::new(source)))?;
    let NewChunk { whole, free, excluded } = new_chunk(volume, chunk.logical)?;
    let group = Group {
        start: chunk.logical,
        bytes: whole.end.saturating_sub(whole.start),
        flags: chunk.flags,
        used: 0,
        free,
        excluded,
        is_read_only: false,
    };
    space.add_group(&group).map_err(|error| TreeError::Space(Box::new(error)))
}

/// The logical range of a new chunk, and its free and excluded parts.
struct NewChunk {
    whole: Range<u64>,
    free: Vec<Range<u64>>,
    excluded: Vec<Range<u64>>,
}

fn new_chunk(volume: &Volume, at: Logical) -> Result<NewChunk, TreeError> {
    let chunks = volume.chunks();
    let layout: &Arc<Layout> = chunks.find(at).ok_or_else(|| TreeError::Corrupt {
        tree: TreeId::CHUNK,
        source: Refused::new("chunk", at, "one that was just installed"),
    })?;
    let whole = layout.logical().0..layout.end();
    let excluded = excluded_ranges(layout);
    let free = block_groups::complement(whole.clone(), &excluded);
    Ok(NewChunk { whole, free, excluded })
}
