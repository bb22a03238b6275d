//! [`Inodes`]: the inodes that differ between the two subvolumes, and what becomes of each.
//!
//! An inode is *kept* if both subvolumes have it: the same number, generation and type, and for
//! links and devices the same target. A number that both have, for different inodes, is that of a
//! removed inode and of a new one. The new one is sent with all its parts, although its items may
//! be equal to those of the removed one. An inode without a name does not exist here: it is deleted
//! when its last handle is closed.
//!
//! The root directory is always kept: the receiver makes it with the subvolume.
//!
//! Memory: one entry for each inode that differs. A directory that was replaced by another one with
//! the same number adds an entry for everything in it.

use crate::send::compare::{Parts, changed_inodes};
use crate::send::watch::Watch;
use crate::{Error, Result};
use butternut_format::inode::{FileKind, Inode};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, Ino};
use butternut_names::{self as names, Link, Target};
use butternut_tree::Tree;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The root directory of every subvolume.
pub(crate) const ROOT: u64 = 256;

/// The trees of the two subvolumes.
#[derive(Clone, Debug)]
pub(crate) struct Trees {
    /// That of the parent; `None` if the stream makes the whole subvolume.
    pub(crate) old: Option<Tree>,
    pub(crate) new: Tree,
}

/// What the order of names depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) generation: Generation,
    pub(crate) kind: FileKind,
}

/// Where the receiver has an inode of the parent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Under its names in the parent.
    Old,
    /// In the root directory, under a name that neither subvolume uses there.
    Orphan,
    /// Under a name of the new subvolume.
    New,
}

/// An inode number whose items differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) parts: Parts,
    pub(crate) old: Option<Head>,
    pub(crate) new: Option<Head>,
    /// `old` and `new` are the same inode.
    pub(crate) is_kept: bool,
    /// The place of the old inode.
    pub(crate) place: Place,
    /// The receiver has the new inode, which is not kept.
    pub(crate) is_created: bool,
    /// How many names the receiver has for the old inode, unless it is a directory.
    pub(crate) names: usize,
}

/// An inode of one of the subvolumes. A number that was used again names two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    /// Only the parent has it.
    pub(crate) is_removed: bool,
}

/// The inodes that differ, by number.
#[derive(Debug)]
pub(crate) struct Inodes(BTreeMap<u64, Changed>);

impl Trees {
    /// Returns the tree of a side: that of the parent for `is_old`.
    pub(crate) fn of(&self, is_old: bool) -> &Tree {
        self.old.as_ref().filter(|_| is_old).unwrap_or(&self.new)
    }

    /// Returns all names of an inode in a tree.
    pub(crate) fn links(&self, is_old: bool, ino: u64) -> Result<Vec<Link>> {
        Ok(names::links(self.of(is_old), Ino(ino), LINKS_MAX)?)
    }

    /// Returns the first name of an inode in a tree, which is the only one of a directory.
    pub(crate) fn link(&self, is_old: bool, ino: u64) -> Result<Link> {
        let tree = self.of(is_old);
        names::first_link(tree, Ino(ino))?.ok_or_else(|| corrupt(tree, ino, "no name", "a name"))
    }
}

/// Maximum number of names of one inode.
const LINKS_MAX: usize = 1 << 20;

/// Returns the error of an inode that contradicts others.
pub(crate) fn corrupt(tree: &Tree, ino: u64, have: &str, want: &str) -> Error {
    let refused = Refused::new("names", have, want).at(format_args!("inode {ino}"));
    Error::Corrupt { tree: tree.id(), source: refused }
}

impl Node {
    pub(crate) const ROOT: Self = Self { ino: ROOT, is_removed: false };

    /// Returns an inode of the new subvolume.
    pub(crate) const fn new(ino: u64) -> Self {
        Self { ino, is_removed: false }
    }
}

impl Changed {
    /// Returns whether the new subvolume has an inode that is not kept.
    pub(crate) fn is_new(&self) -> bool {
        self.new.is_some() && !self.is_kept
    }

    /// Returns whether the parent has an inode that is not kept.
    pub(crate) fn is_removed(&self) -> bool {
        self.old.is_some() && !self.is_kept
    }
}

impl Inodes {
    /// Compares the subvolumes.
    pub(crate) fn read(trees: &Trees, watch: &Watch<'_>) -> Result<Self> {
        let mut inodes = Self(BTreeMap::new());
        let mut replaced = Vec::new();
        for (ino, parts) in changed_inodes(trees.old.as_ref(), &trees.new, watch)? {
            watch.check()?;
            let changed = Changed::read(trees, ino, parts)?;
            let is_directory =
                |head: Option<Head>| head.is_some_and(|head| head.kind == FileKind::Directory);
            if !changed.is_kept && is_directory(changed.old) && is_directory(changed.new) {
                replaced.push(ino);
            }
            if changed.old.is_some() || changed.new.is_some() {
                inodes.0.insert(ino, changed);
            }
        }
        for dir in replaced {
            inodes.add_entries(trees, dir, watch)?;
        }
        Ok(inodes)
    }

    /// Adds what is in a new directory: its names lead to another directory than before, even if
    /// their items are the same.
    fn add_entries(&mut self, trees: &Trees, dir: u64, watch: &Watch<'_>) -> Result<()> {
        for entry in names::list(&trees.new, Ino(dir), 0) {
            watch.check()?;
            let Target::Inode(Ino(ino)) = entry?.target else { continue };
            if let Some(known) = self.0.get_mut(&ino) {
                known.parts.names = true;
                continue;
            }
            let parts = Parts { names: true, ..Parts::default() };
            self.0.insert(ino, Changed::read(trees, ino, parts)?);
        }
        Ok(())
    }

    pub(crate) fn get(&self, ino: u64) -> Option<&Changed> {
        self.0.get(&ino)
    }

    pub(crate) fn get_mut(&mut self, ino: u64) -> Option<&mut Changed> {
        self.0.get_mut(&ino)
    }

    /// Returns the first inode after `ino`.
    pub(crate) fn after(&self, ino: u64) -> Option<(u64, Changed)> {
        let mut rest = self.0.range((Bound::Excluded(ino), Bound::Unbounded));
        rest.next().map(|(ino, changed)| (*ino, *changed))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Changed)> {
        self.0.iter().map(|(ino, changed)| (*ino, changed))
    }

    /// Returns the inode that a number means in the parent.
    pub(crate) fn old_node(&self, ino: u64) -> Node {
        Node { ino, is_removed: self.get(ino).is_some_and(Changed::is_removed) }
    }

    /// Returns whether both subvolumes have the inode.
    pub(crate) fn is_in_both(&self, node: Node) -> bool {
        !node.is_removed && self.get(node.ino).is_none_or(|changed| changed.is_kept)
    }
}

impl Changed {
    fn read(trees: &Trees, ino: u64, parts: Parts) -> Result<Self> {
        let old = match &trees.old {
            Some(tree) => named_inode(tree, ino)?,
            None => None,
        };
        let new = named_inode(&trees.new, ino)?;
        let is_kept = ino == ROOT
            || match (&old, &new) {
                (Some(old), Some(new)) => is_same(trees, ino, old, new)?,
                _ => false,
            };
        let head = |inode: &Inode| Head { generation: inode.generation, kind: inode.kind };
        let names = match &old {
            Some(inode) if inode.kind != FileKind::Directory => trees.links(true, ino)?.len(),
            _ => 0,
        };
        let is_replaced = trees.old.is_some() && !is_kept;
        Ok(Self {
            parts: if is_replaced { Parts::ALL } else { parts },
            old: old.as_ref().map(head),
            new: new.as_ref().map(head),
            is_kept,
            place: Place::Old,
            is_created: false,
            names,
        })
    }
}

/// Returns an inode that has a name.
fn named_inode(tree: &Tree, ino: u64) -> Result<Option<Inode>> {
    let Some(inode) = names::inode(tree, Ino(ino))? else { return Ok(None) };
    if ino == ROOT {
        return Ok(Some(inode));
    }
    let is_named = inode.nlink > 0 && names::first_link(tree, Ino(ino))?.is_some();
    Ok(is_named.then_some(inode))
}

fn is_same(trees: &Trees, ino: u64, old: &Inode, new: &Inode) -> Result<bool> {
    if (old.generation, old.kind) != (new.generation, new.kind) {
        return Ok(false);
    }
    Ok(match new.kind {
        FileKind::Symlink => target_item(trees.of(true), ino)? == target_item(&trees.new, ino)?,
        FileKind::CharDevice | FileKind::BlockDevice => old.rdev == new.rdev,
        FileKind::File | FileKind::Directory | FileKind::Fifo | FileKind::Socket => true,
    })
}

/// Returns the item with the target of a symbolic link.
fn target_item(tree: &Tree, ino: u64) -> Result<Option<Vec<u8>>> {
    let item = tree.find(&Key::new(ino, ItemType::EXTENT_DATA, 0))?;
    Ok(item.map(|item| item.data().to_vec()))
}
