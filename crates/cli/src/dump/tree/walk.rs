//! Traverses the blocks of a tree, breadth-first or depth-first, and visits its items.
//!
//! Breadth-first traversal uses no queue: for each level, one depth-first pass shows only the
//! blocks of that level. Each pass reads the inner nodes again, which is cheap (a node has hundreds
//! of children), and memory is bounded by the depth.

use super::slots::{items, slots};
use super::{Blocks, Dump, Order, expected};
use butternut_format::key::Key;
use butternut_format::node::{Expected, RawHeader, RawKeyPtr};
use butternut_format::units::TreeId;
use std::io;
use zerocopy::FromBytes;

impl<B: Blocks> Dump<'_, B> {
    /// Shows the tree below `root`.
    pub(super) fn walk(&mut self, root: &Expected) -> io::Result<()> {
        match self.options.order {
            Order::Depth => self.descend(root, None),
            Order::Breadth => {
                for level in (0..=root.level).rev() {
                    self.descend(root, Some(level))?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn walk_leaves(&mut self, root: &Expected) -> io::Result<()> {
        self.descend(root, Some(0))
    }

    /// Shows the tree below a block that has been read.
    pub(super) fn walk_from(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Ok((header, _)) = RawHeader::ref_from_prefix(bytes) else { return Ok(()) };
        let tree = TreeId(header.owner.get());
        let (logical, generation) = (header.bytenr.get(), header.generation.get());
        self.walk(&expected(tree, logical, generation, header.level))
    }

    /// Shows the blocks of one level at or below `at`, or of all levels. A block that cannot be
    /// read is reported once, by the pass that would show it.
    fn descend(&mut self, at: &Expected, only: Option<u8>) -> io::Result<()> {
        let shows = only.is_none_or(|level| level == at.level);
        let bytes = match self.blocks.block(at) {
            Ok(bytes) => bytes,
            Err(error) if shows => {
                self.notify(format_args!("block {}: {error}", at.logical));
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        if shows {
            self.renderer.block(&bytes)?;
        }
        if only.is_some_and(|level| level >= at.level) {
            return Ok(());
        }
        for child in children(&bytes, at) {
            self.descend(&child, only)?;
        }
        Ok(())
    }

    /// Calls `visitor` with every item of a tree, in key order.
    pub(super) fn visit(
        &mut self,
        at: &Expected,
        visitor: &mut dyn FnMut(Key, &[u8]),
    ) -> io::Result<()> {
        let bytes = match self.blocks.block(at) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.notify(format_args!("block {}: {error}", at.logical));
                return Ok(());
            }
        };
        if at.level == 0 {
            for (key, _, data) in items(&bytes) {
                visitor(key, data);
            }
        }
        for child in children(&bytes, at) {
            self.visit(&child, visitor)?;
        }
        Ok(())
    }
}

/// Returns the children of an inner node; none for a leaf.
fn children(bytes: &[u8], parent: &Expected) -> Vec<Expected> {
    let Some(level) = parent.level.checked_sub(1) else { return Vec::new() };
    let child = |slot: &RawKeyPtr| Expected {
        first_key: Some(Key::from(&slot.key)),
        ..expected(parent.tree, slot.blockptr.get(), slot.generation.get(), level)
    };
    slots::<RawKeyPtr>(bytes).iter().map(child).collect()
}
