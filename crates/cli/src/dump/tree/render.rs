//! What the output formats have in common: the style, and the calls of a dump.

use butternut_format::checksum::ChecksumKind;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::super_block::RawSuperBlock;
use std::io;

/// The options and properties of the volume that affect the printing of blocks and items.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
pub(crate) struct Style {
    pub(super) hide_names: bool,
    pub(super) csum_headers: bool,
    pub(super) csum_items: bool,
    pub(super) csum: ChecksumKind,
    pub(super) simple_quota: bool,
}

/// The heading of a tree.
pub(super) struct Heading<'a> {
    /// `root tree`, `fs tree`.
    pub(super) name: &'a str,
    /// The key of its root item; `None` for the trees that the superblock points to.
    pub(super) key: Option<Key>,
    pub(super) root: &'a Expected,
    /// Only the address and level of the root block are shown.
    pub(super) is_short: bool,
    /// The tree is one of those that `-e` lists.
    pub(super) is_extents: bool,
}

/// An output format.
pub(super) trait Renderer {
    /// Prints the heading of a tree, whose blocks follow.
    fn tree(&mut self, heading: &Heading<'_>) -> io::Result<()>;
    fn block(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn totals(&mut self, raw: &RawSuperBlock, with_backups: bool) -> io::Result<()>;
    /// Prints the end of the output.
    fn end(&mut self) -> io::Result<()>;
}
