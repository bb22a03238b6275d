//! Prints trees in the format of `btrfs inspect-internal dump-tree` of btrfs-progs 6.14.
//!
//! The output is identical byte for byte, oddities included, since tools and people read it.
//! Nothing here reads a device: [`Blocks`] provides verified tree blocks.
//!
//! 1. Without `-t` and `-b`, the output contains the root, chunk and log root trees, then every
//!    tree with a root item in key order, first those of the root tree, then those of the log root
//!    tree.
//! 2. Options narrow each other: with several of `-e`, `-d` and `-u`, a tree is shown if each of
//!    them alone would show it. Of trees listed for `-e`, only leaves are shown.
//! 3. A block that cannot be read is reported, and the dump continues.
//!
//! This module selects what is shown; a [`Renderer`] prints it as text, or as JSON with the same
//! content.

mod block;
mod formatting;
#[cfg(test)]
mod golden;
pub(super) mod item;
mod json;
pub(super) mod key;
mod render;
mod slots;
mod text;
mod walk;

use butternut_format::checksum::ChecksumKind;
use butternut_format::feature::{BLOCK_GROUP_TREE, SIMPLE_QUOTA};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::root::RawRootItem;
use butternut_format::super_block::RawSuperBlock;
use butternut_format::units::{Generation, Logical, SECTOR_BYTES, TreeId};
use render::{Heading, Renderer, Style};
use std::fmt::Display;
use std::io::{self, Write};

/// The source of tree blocks.
pub(crate) trait Blocks {
    type Error: Display;

    /// Returns the superblock that the volume was opened with.
    fn super_block(&self) -> &RawSuperBlock;

    /// Returns the bytes of a verified block, given its parent's pointer.
    fn block(&self, expected: &Expected) -> Result<Vec<u8>, Self::Error>;

    /// Returns the bytes of a verified block, given only its address.
    fn block_at(&self, logical: Logical) -> Result<Vec<u8>, Self::Error>;
}

/// What to dump, as in the options with the same names.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the options of btrfs dump-tree")]
pub(crate) struct DumpOptions {
    pub(crate) extents: bool,
    pub(crate) device: bool,
    pub(crate) roots: bool,
    pub(crate) backups: bool,
    pub(crate) uuid: bool,
    pub(crate) tree: Option<TreeId>,
    pub(crate) blocks: Vec<Logical>,
    pub(crate) follow: bool,
    pub(crate) order: Order,
    pub(crate) hide_names: bool,
    pub(crate) csum_headers: bool,
    pub(crate) csum_items: bool,
    pub(crate) json: bool,
}

/// The order of the blocks of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Level by level, from the root.
    #[default]
    Breadth,
    /// Each node, then its descendants.
    Depth,
}

/// Prints what `options` select to `out`. Blocks that cannot be shown are reported to `notice`.
pub(crate) fn dump<B: Blocks>(
    blocks: &B,
    options: &DumpOptions,
    out: &mut dyn Write,
    notice: &mut dyn FnMut(&str),
) -> io::Result<()> {
    let raw = blocks.super_block();
    let style = Style {
        hide_names: options.hide_names,
        csum_headers: options.csum_headers,
        csum_items: options.csum_items,
        csum: ChecksumKind::check(raw.csum_type.get()).unwrap_or(ChecksumKind::Crc32c),
        simple_quota: raw.incompat_flags.get() & SIMPLE_QUOTA.mask() != 0,
    };
    let renderer: &mut dyn Renderer = if options.json {
        &mut json::Json::start(style, out)?
    } else {
        &mut text::Text::start(style, out)?
    };
    let mut dump = Dump { blocks, options, renderer, notice };
    if options.blocks.is_empty() {
        dump.trees()?;
    } else {
        dump.single_blocks()?;
    }
    dump.renderer.end()
}

/// Parses the name or id of a tree after `-t`.
pub(crate) fn tree_by_name(text: &str) -> Option<TreeId> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|id| *id != 0).map(TreeId);
    }
    let name = text.to_ascii_lowercase().replace('-', "_");
    let name = name.strip_suffix("_objectid").unwrap_or(&name);
    let name = name.strip_suffix("_tree").unwrap_or(name);
    Some(match name {
        "root" => TreeId::ROOT,
        "extent" => TreeId::EXTENT,
        "chunk" => TreeId::CHUNK,
        "dev" | "device" => TreeId::DEVICE,
        "fs" => TreeId::FS,
        "csum" | "checksum" => TreeId::CHECKSUM,
        "quota" => TreeId::QUOTA,
        "uuid" => TreeId::UUID,
        "free_space" => TreeId::FREE_SPACE,
        "block_group" => TreeId::BLOCK_GROUP,
        "raid_stripe" => TreeId::RAID_STRIPE,
        "tree_log" => TreeId::TREE_LOG,
        "tree_log_fixup" => TreeId::TREE_LOG_FIXUP,
        "tree_reloc" => TreeId::TREE_RELOCATION,
        "data_reloc" => TreeId::DATA_RELOCATION,
        _ => return None,
    })
}

struct Dump<'a, B> {
    blocks: &'a B,
    options: &'a DumpOptions,
    renderer: &'a mut dyn Renderer,
    notice: &'a mut dyn FnMut(&str),
}

impl<B: Blocks> Dump<'_, B> {
    /// Prints the blocks of `-b`, sorted by address, without duplicates.
    fn single_blocks(&mut self) -> io::Result<()> {
        let mut addresses = self.options.blocks.clone();
        addresses.sort_unstable();
        addresses.dedup();
        for logical in addresses {
            if !logical.0.is_multiple_of(SECTOR_BYTES) {
                self.notify(format_args!("block {logical}: its address is not sector aligned"));
                continue;
            }
            match self.blocks.block_at(logical) {
                Ok(bytes) if self.options.follow => self.walk_from(&bytes)?,
                Ok(bytes) => self.renderer.block(&bytes)?,
                Err(error) => self.notify(format_args!("block {logical}: {error}")),
            }
        }
        Ok(())
    }

    fn trees(&mut self) -> io::Result<()> {
        let raw = self.blocks.super_block();
        let root = expected(TreeId::ROOT, raw.root.get(), raw.generation.get(), raw.root_level);
        let chunk_generation = raw.chunk_root_generation.get();
        let chunk_level = raw.chunk_root_level;
        let chunk = expected(TreeId::CHUNK, raw.chunk_root.get(), chunk_generation, chunk_level);
        let log = (raw.log_root.get() != 0).then(|| {
            // The log belongs to the transaction after the last committed one.
            let generation = raw.generation.get().saturating_add(1);
            expected(TreeId::TREE_LOG, raw.log_root.get(), generation, raw.log_root_level)
        });
        if let Some(tree) = self.options.tree {
            match tree {
                TreeId::ROOT => return self.one_tree("root tree", Some(root)),
                TreeId::CHUNK => return self.one_tree("chunk tree", Some(chunk)),
                TreeId::TREE_LOG => return self.one_tree("log root tree", log),
                TreeId::BLOCK_GROUP => {
                    let found = self.block_group_root(&root)?;
                    return self.one_tree("block group tree", found);
                }
                _ => {}
            }
        } else if !self.options.extents && !self.options.uuid {
            self.top_tree("root tree", &root)?;
            self.top_tree("chunk tree", &chunk)?;
            if let Some(log) = &log {
                self.top_tree("log root tree", log)?;
            }
        }
        let mut is_found = self.listed_trees(&root)?;
        if let Some(log) = &log {
            is_found |= self.listed_trees(log)?;
        }
        if let Some(tree) = self.options.tree.filter(|_| !is_found) {
            self.notify(format_args!("tree {}: found no root item", tree.0));
        }
        if self.options.extents || self.options.device || self.options.uuid {
            return Ok(());
        }
        self.renderer.totals(self.blocks.super_block(), self.options.backups)
    }

    fn one_tree(&mut self, name: &str, root: Option<Expected>) -> io::Result<()> {
        let Some(root) = &root else {
            self.notify(format_args!("{name}: the volume has none"));
            return Ok(());
        };
        self.renderer.tree(&Heading {
            name,
            key: None,
            root,
            is_short: false,
            is_extents: false,
        })?;
        self.walk(root)
    }

    fn top_tree(&mut self, name: &str, root: &Expected) -> io::Result<()> {
        let is_short = self.only_roots();
        self.renderer.tree(&Heading { name, key: None, root, is_short, is_extents: false })?;
        if is_short { Ok(()) } else { self.walk(root) }
    }

    fn only_roots(&self) -> bool {
        self.options.roots || self.options.backups
    }

    /// Prints the trees whose root items are in the tree at `root`.
    /// Returns whether there is one that the options select.
    fn listed_trees(&mut self, root: &Expected) -> io::Result<bool> {
        let mut roots = Vec::new();
        self.visit(root, &mut |key, data| {
            if key.item_type == ItemType::ROOT_ITEM {
                roots.push((key, item::padded::<RawRootItem>(data)));
            }
        })?;
        let mut is_found = false;
        for (key, raw) in roots {
            if self.options.tree.is_some_and(|tree| tree.0 != key.objectid) {
                continue;
            }
            is_found = true;
            if !self.shows(key) {
                continue;
            }
            let logical = raw.bytenr.get();
            if !logical.is_multiple_of(SECTOR_BYTES) || logical == 0 {
                self.notify(format_args!(
                    "tree {key}: bytenr {logical} is not a valid block address"
                ));
                continue;
            }
            let root = expected(TreeId(key.objectid), logical, raw.generation.get(), raw.level);
            self.listed_tree(key, &root)?;
        }
        Ok(is_found)
    }

    fn listed_tree(&mut self, key: Key, root: &Expected) -> io::Result<()> {
        let name = format!("{} tree", key::tree_name(key.objectid));
        let is_extents = self.options.extents;
        let is_short = self.only_roots() && !is_extents;
        let key = Some(key);
        self.renderer.tree(&Heading { name: &name, key, root, is_short, is_extents })?;
        if is_short {
            return Ok(());
        }
        if is_extents { self.walk_leaves(root) } else { self.walk(root) }
    }

    /// Returns whether the options show a tree (law 2).
    fn shows(&self, key: Key) -> bool {
        let DumpOptions { extents, device, uuid, .. } = *self.options;
        match TreeId(key.objectid) {
            TreeId::EXTENT => !device && !uuid,
            TreeId::DEVICE => !uuid,
            TreeId::UUID => !extents && !device,
            _ => !extents && !device && !uuid,
        }
    }

    fn block_group_root(&mut self, root: &Expected) -> io::Result<Option<Expected>> {
        if self.blocks.super_block().compat_ro_flags.get() & BLOCK_GROUP_TREE.mask() == 0 {
            return Ok(None);
        }
        let mut found = None;
        self.visit(root, &mut |key, data| {
            if key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::BLOCK_GROUP.0 {
                let raw = item::padded::<RawRootItem>(data);
                let generation = raw.generation.get();
                let tree = TreeId::BLOCK_GROUP;
                found = Some(expected(tree, raw.bytenr.get(), generation, raw.level));
            }
        })?;
        Ok(found)
    }

    fn notify(&mut self, what: std::fmt::Arguments<'_>) {
        (self.notice)(&what.to_string());
    }
}

/// Returns the expected header of a root block, from a root item or the superblock.
fn expected(tree: TreeId, logical: u64, generation: u64, level: u8) -> Expected {
    let generation = Generation(generation);
    Expected { logical: Logical(logical), generation, level, tree, first_key: None, end_key: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_named_by_id_or_any_spelling_of_their_name() {
        for text in ["5", "05", "fs", "FS_TREE", "fs-tree", "FS_TREE_OBJECTID"] {
            assert_eq!(tree_by_name(text), Some(TreeId::FS), "{text}");
        }
        assert_eq!(tree_by_name("18446744073709551607"), Some(TreeId::DATA_RELOCATION));
        for text in ["", "0", "-5", "0x5", "5x", "bogus", "root_log"] {
            assert_eq!(tree_by_name(text), None, "{text}");
        }
    }
}
