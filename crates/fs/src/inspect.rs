//! [`Inspect`]: the raw structures of a volume, for tools that show them: superblock copies, trees,
//! blocks.
//!
//! Blocks are verified before they are returned; superblock copies are returned as stored.

mod search;
pub(crate) mod tree_stats;

pub use crate::space::extent_owners::ExtentOwner;
pub use search::{FoundItem, TreeSearch};
pub use tree_stats::TreeStats;

use crate::space::backref::Backrefs;
use crate::{Error, Filesystem, Result};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, RawHeader, TreeBlock};
use butternut_format::root::RootItem;
use butternut_format::super_block::{SuperBlock, copy_offset};
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_sys::buffer::Buffer;
use butternut_volume::super_blocks;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Maximum number of mirrors of a block.
const COPIES_MAX: usize = 4;

/// A tree block that passed all checks, in the memory that the device read it into.
pub type Block = TreeBlock<Buffer>;

/// A view of the volume below the level of files.
#[derive(Clone, Debug)]
pub struct Inspect {
    filesystem: Filesystem,
}

/// One copy of the superblock, valid or not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SuperCopy {
    /// Path or name of the device.
    pub device: String,
    /// Number of the copy: 0, 1 or 2.
    pub copy: usize,
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// The 4096 bytes, or the error of reading them.
    pub bytes: Result<Vec<u8>, String>,
}

/// The root block of a tree, and the offset of its root item's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeRoot {
    pub tree: TreeId,
    /// The offset of the root item's key: for a snapshot, the generation in which it was made.
    pub key_offset: u64,
    pub logical: Logical,
    pub generation: Generation,
    pub level: u8,
}

/// A chunk: a range of logical addresses, and its stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    pub logical: Logical,
    /// Length in logical bytes.
    pub bytes: u64,
    pub flags: BlockGroupFlags,
    /// Device id and offset on the device in bytes, in stripe order.
    pub stripes: Vec<(u64, u64)>,
}

impl TreeRoot {
    /// Returns what the root block must be, for [`Inspect::block`].
    pub fn expected(&self) -> Expected {
        Expected {
            logical: self.logical,
            generation: self.generation,
            level: self.level,
            tree: self.tree,
            first_key: None,
            end_key: None,
        }
    }

    fn of(expected: &Expected) -> Self {
        Self {
            tree: expected.tree,
            key_offset: 0,
            logical: expected.logical,
            generation: expected.generation,
            level: expected.level,
        }
    }
}

impl Filesystem {
    /// Returns a view of the raw structures of this filesystem.
    pub fn inspect(&self) -> Inspect {
        Inspect { filesystem: self.clone() }
    }
}

impl Inspect {
    /// Returns the superblock that the volume was opened with.
    pub fn super_block(&self) -> &SuperBlock {
        self.filesystem.super_block()
    }

    /// Returns the generation of the last commit.
    pub fn committed_generation(&self) -> Generation {
        self.filesystem.forest().committed_generation()
    }

    /// Returns every superblock copy that fits on each device, device by device.
    pub fn super_copies(&self) -> Vec<SuperCopy> {
        let mut copies = Vec::new();
        for status in self.filesystem.volume().devices() {
            let Some(device) = status.device else { continue };
            for (copy, offset) in (0..).map_while(|copy| Some((copy, copy_offset(copy)?))) {
                if offset.saturating_add(4096) > device.bytes() {
                    break;
                }
                let bytes = super_blocks::read_bytes(device.as_ref(), offset);
                copies.push(SuperCopy {
                    device: device.name().to_owned(),
                    copy,
                    offset,
                    bytes: bytes.map(|bytes| bytes.to_vec()).map_err(|error| error.to_string()),
                });
            }
        }
        copies
    }

    /// Returns the root tree, the chunk tree and the log root tree of the superblock, then every
    /// tree that has a root item, in key order.
    pub fn tree_roots(&self) -> Result<Vec<TreeRoot>> {
        let super_block = self.super_block();
        let mut roots =
            vec![TreeRoot::of(&super_block.root()), TreeRoot::of(&super_block.chunk_root())];
        roots.extend(super_block.log_root().map(|log| TreeRoot::of(&log)));
        let mut cursor = self.filesystem.forest().root_tree().scan();
        cursor.seek(&Key::MIN)?;
        while let Some((key, data)) = cursor.item_parts() {
            if key.item_type == ItemType::ROOT_ITEM {
                let root = RootItem::check(key, data).map_err(|refused| Error::Corrupt {
                    tree: TreeId::ROOT,
                    source: refused.at(format_args!("item {key}")),
                })?;
                roots.push(TreeRoot {
                    tree: TreeId(key.objectid),
                    key_offset: key.offset,
                    logical: root.logical(),
                    generation: root.generation(),
                    level: root.level(),
                });
            }
            cursor.advance()?;
        }
        Ok(roots)
    }

    /// Reads and verifies a block that its parent, or a [`TreeRoot`], describes.
    pub fn block(&self, expected: &Expected) -> Result<Arc<Block>> {
        Ok(self.filesystem.forest().block(expected)?)
    }

    /// Reads and verifies the block at an address, which must be what its own header says. Also
    /// finds blocks that are in no tree any more, until they are overwritten.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no block.
    pub fn block_at(&self, logical: Logical) -> Result<Arc<Block>> {
        for copy in 0..COPIES_MAX {
            if let Some(expected) = self.header_at(logical, copy)
                && let Ok(block) = self.block(&expected)
            {
                return Ok(block);
            }
        }
        // If the device with the header is missing, the extent tree describes blocks that are in
        // use.
        Backrefs::new(&self.filesystem)?.block_at(logical)?.ok_or(Error::NotFound)
    }

    /// Returns what the header of one mirror of a block says about the block.
    fn header_at(&self, logical: Logical, copy: usize) -> Option<Expected> {
        let node_bytes = usize::try_from(self.super_block().node_bytes()).ok()?;
        let mut bytes = Buffer::zeroed(node_bytes);
        self.filesystem.volume().read_raw(logical, copy, &mut bytes).ok()?;
        let (header, _) = RawHeader::ref_from_prefix(&bytes).ok()?;
        (header.bytenr.get() == logical.0).then(|| Expected {
            logical,
            generation: Generation(header.generation.get()),
            level: header.level,
            tree: TreeId(0),
            first_key: None,
            end_key: None,
        })
    }

    /// Returns what the child in a slot of an inner node of `tree` must be; `None` for a leaf.
    pub fn child(&self, parent: &Block, slot: usize, tree: TreeId) -> Option<Expected> {
        child(parent, slot, tree, None)
    }

    /// Returns the chunks by address.
    pub fn chunks(&self) -> Vec<ChunkInfo> {
        let chunks = self.filesystem.volume().chunks();
        let info = chunks.iter().map(|chunk| ChunkInfo {
            logical: chunk.logical(),
            bytes: chunk.bytes(),
            flags: chunk.flags(),
            stripes: chunk.stripes().iter().map(|p| (p.devid.0, p.physical.0)).collect(),
        });
        info.collect()
    }
}

/// Returns what the child in a slot of an inner node of `tree` must be; `None` for a leaf. The keys
/// of the parent are below `end`.
pub(crate) fn child(
    parent: &Block,
    slot: usize,
    tree: TreeId,
    end: Option<Key>,
) -> Option<Expected> {
    let child = parent.child(slot)?;
    Some(Expected {
        logical: child.logical,
        generation: child.generation,
        level: parent.level().checked_sub(1)?,
        tree,
        first_key: Some(child.key),
        end_key: parent.key(slot.saturating_add(1)).or(end),
    })
}
