//! [`Paths`]: the paths of inodes as the receiver has them while names are changed.
//!
//! A path is computed upwards, from the places of the directories on it. Paths of directories are
//! cached until a directory moves.
//!
//! Everything above the last name of a path is a directory. A damaged volume may name a symbolic
//! link as the directory of an inode; a receiver would follow that link.

use crate::send::inodes::{Inodes, Node, Place, ROOT, Trees, corrupt};
use crate::send::watch::Watch;
use crate::{Error, Result};
use butternut_format::inode::FileKind;
use butternut_format::units::Ino;
use butternut_format::uuid::Uuid;
use butternut_names::{self as names, DEPTH_MAX, Link};
use std::collections::HashMap;

/// Maximum length of a path in bytes, as in the kernel's send and the system calls of a receiver.
const PATH_BYTES_MAX: usize = 4095;

/// Maximum number of cached paths.
const CACHED_MAX: usize = 16 * 1024;

/// How many names are tried for an inode that gets a temporary one.
const TRIES_MAX: u32 = 1 << 16;

/// The subvolumes, what differs between them, and where the receiver has it.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) trees: Trees,
    uuid: Uuid,
    pub(crate) inodes: Inodes,
    cached: HashMap<Node, Vec<u8>>,
}

impl Paths {
    /// `uuid` is that of the new subvolume.
    pub(crate) fn new(trees: Trees, uuid: Uuid, watch: &Watch<'_>) -> Result<Self> {
        let inodes = Inodes::read(&trees, watch)?;
        Ok(Self { trees, uuid, inodes, cached: HashMap::new() })
    }

    /// Forgets the cached paths: a directory has moved.
    pub(crate) fn forget(&mut self) {
        self.cached.clear();
    }

    /// Returns the path of a directory; that of the root is "".
    pub(crate) fn of_directory(&mut self, dir: Node) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = dir;
        while at != Node::ROOT {
            if let Some(known) = self.cached.get(&at) {
                names.push(known.clone());
                break;
            }
            let (parent, name) = self.position(at)?;
            names.push(name);
            if names.len() > DEPTH_MAX {
                let tree = self.trees.of(dir.is_removed);
                return Err(corrupt(tree, dir.ino, "a deeper path", "at most 2048 directories"));
            }
            at = parent;
        }
        names.reverse();
        let path = checked(names.join(&b'/'))?;
        if dir != Node::ROOT {
            if self.cached.len() >= CACHED_MAX {
                self.cached.clear();
            }
            self.cached.insert(dir, path.clone());
        }
        Ok(path)
    }

    /// Returns the path of a name in a directory.
    pub(crate) fn of_name(&mut self, dir: Node, name: &[u8]) -> Result<Vec<u8>> {
        let mut path = self.of_directory(dir)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        checked(path)
    }

    /// Returns the path of a name of the parent.
    pub(crate) fn of_old_link(&mut self, link: &Link) -> Result<Vec<u8>> {
        self.of_name(self.inodes.old_node(link.parent.0), &link.name)
    }

    /// Returns the path of a name of the new subvolume, whose directory exists.
    pub(crate) fn of_new_link(&mut self, link: &Link) -> Result<Vec<u8>> {
        self.of_name(Node::new(link.parent.0), &link.name)
    }

    /// Returns the path of an inode when all names are those of the new subvolume.
    pub(crate) fn of_new_inode(&mut self, ino: u64) -> Result<Vec<u8>> {
        if ino == ROOT {
            return Ok(Vec::new());
        }
        let link = self.trees.link(false, ino)?;
        self.of_new_link(&link)
    }

    /// Returns where a directory is: its directory, and its name there.
    pub(crate) fn position(&self, dir: Node) -> Result<(Node, Vec<u8>)> {
        let changed = self.inodes.get(dir.ino);
        let place = match changed {
            Some(changed) if dir.is_removed || changed.is_kept => changed.place,
            _ => Place::New,
        };
        let is_old = match place {
            Place::Orphan => return Ok((Node::ROOT, self.orphan_name(dir.ino)?)),
            Place::Old => self.trees.old.is_some(),
            Place::New => false,
        };
        let link = self.trees.link(is_old, dir.ino)?;
        let tree = self.trees.of(is_old);
        let inode = names::inode(tree, Ino(dir.ino))?;
        if inode.is_none_or(|inode| inode.kind != FileKind::Directory) {
            return Err(corrupt(tree, dir.ino, "names in what is no directory", "a directory"));
        }
        let parent = link.parent.0;
        let node = if is_old { self.inodes.old_node(parent) } else { Node::new(parent) };
        Ok((node, link.name))
    }

    /// Returns the temporary name of an inode of the parent: the first that neither subvolume has
    /// in its root directory. The UUID of the new one is in it, which no program knows that makes
    /// names before the snapshot.
    pub(crate) fn orphan_name(&self, ino: u64) -> Result<Vec<u8>> {
        let head = self.inodes.get(ino).and_then(|changed| changed.old);
        let generation = head.map_or(0, |head| head.generation.0);
        for number in 0..TRIES_MAX {
            let name = format!("o{ino}-{generation}-{}-{number}", self.uuid).into_bytes();
            let is_in = |tree| names::lookup(tree, Ino(ROOT), &name);
            let is_in_old = self.trees.old.as_ref().map(is_in).transpose()?.flatten();
            if is_in_old.is_none() && is_in(&self.trees.new)?.is_none() {
                return Ok(name);
            }
        }
        Err(Error::LimitExceeded { what: "temporary names in use", limit: u64::from(TRIES_MAX) })
    }
}

fn checked(path: Vec<u8>) -> Result<Vec<u8>> {
    if path.len() > PATH_BYTES_MAX { Err(Error::NameTooLong) } else { Ok(path) }
}
