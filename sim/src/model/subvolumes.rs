//! Subvolumes and snapshots, and files that share extents.
//!
//! 1. A snapshot has everything that has a name in its source, with all attributes, and nothing
//!    changes it but operations on the snapshot itself. The place of a subvolume inside the source
//!    is an empty directory.
//! 2. Clones, deduplications and defragmentation are visible by their bytes only: sharing has no
//!    other effect.
//! 3. A file without copy-on-write has no checksums, and shares extents with its kind only.

use super::names::COMPRESSION;
use super::{Answer, Body, Inode, Model, NAME_BYTES_MAX, ROOT};
use crate::bytes::Bytes;
use crate::content::BLOCK_BYTES;
use crate::errno;
use crate::operation::{Operation, Outcome, flags};
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A subvolume, as a generator sees it.
#[derive(Clone, Debug)]
pub struct Subvolume {
    pub at: Bytes,
    pub is_read_only: bool,
    /// Whether other subvolumes are inside it.
    pub has_subvolumes: bool,
}

impl Subvolume {
    /// Returns whether a path is that of the root directory or below it.
    pub fn contains(&self, at: &Bytes) -> bool {
        let mut components = at.components();
        self.at.components().all(|name| components.next() == Some(name))
    }
}

/// Two ranges, by inode number and offset in bytes.
#[derive(Clone, Copy, Debug)]
struct Ranges {
    from: (u64, u64),
    to: (u64, u64),
    bytes: u64,
}

impl Model {
    pub(super) fn subvolume_operation(&mut self, operation: &Operation) -> Option<Answer<Outcome>> {
        Some(match operation {
            Operation::Subvolume { at } => self.create_subvolume(at).map(|()| Outcome::Done),
            Operation::Snapshot { source, at, is_read_only } => {
                self.snapshot(source, at, *is_read_only).map(|()| Outcome::Done)
            }
            Operation::DeleteSubvolume { at } => self.delete_subvolume(at).map(|()| Outcome::Done),
            Operation::Clone { from, from_offset, to, to_offset, bytes } => {
                let files =
                    self.file(from, false).and_then(|from| Ok((from, self.file(to, true)?)));
                files.and_then(|(from, to)| {
                    let (from, to) = ((from, *from_offset), (to, *to_offset));
                    self.clone_range(Ranges { from, to, bytes: *bytes })
                })
            }
            Operation::Dedupe { from, from_offset, to, to_offset, bytes } => {
                let files =
                    self.file(from, false).and_then(|from| Ok((from, self.file(to, true)?)));
                files.and_then(|(from, to)| {
                    let (from, to) = ((from, *from_offset), (to, *to_offset));
                    self.dedupe_range(Ranges { from, to, bytes: *bytes })
                })
            }
            Operation::Defragment { file, .. } => self.file(file, true).map(|_| Outcome::Done),
            _ => return None,
        })
    }

    /// Returns the subvolumes but the root's.
    pub fn subvolumes(&self) -> Vec<Subvolume> {
        let mut found = Vec::new();
        self.visit(ROOT, &Bytes::default(), &mut |at, ino| {
            if let Some(is_read_only) = self.subvolumes.get(&ino) {
                let (at, is_read_only) = (at.clone(), *is_read_only);
                let has_subvolumes = self.has_subvolumes(ino);
                found.push(Subvolume { at, is_read_only, has_subvolumes });
            }
        });
        found
    }

    pub fn exists(&self, at: &Bytes) -> bool {
        self.lookup(at).is_ok()
    }

    /// Returns whether the root directory of a subvolume is at this path.
    pub fn is_subvolume(&self, at: &Bytes) -> bool {
        self.lookup(at).is_ok_and(|ino| self.subvolumes.contains_key(&ino))
    }

    /// Returns whether the last or another component of a path is a placeholder.
    pub fn leads_to_placeholder(&self, at: &Bytes) -> bool {
        let mut path = Bytes::default();
        at.components().any(|name| {
            path = path.join(name);
            self.lookup(&path).is_ok_and(|ino| self.inode(ino).is_placeholder)
        })
    }

    /// Returns whether the directory at a path has a placeholder in it.
    pub fn has_placeholder(&self, at: &Bytes) -> bool {
        let Ok(Body::Directory(entries)) = self.lookup(at).map(|ino| &self.inode(ino).body) else {
            return false;
        };
        entries.values().any(|child| self.inode(*child).is_placeholder)
    }

    /// Returns whether flags forbid to remove the name at a path.
    pub fn is_guarded_entry(&self, at: &Bytes) -> bool {
        let is_guarded = |ino| self.inode(ino).is_guarded();
        self.parent(at).is_ok_and(|(dir, _)| is_guarded(dir))
            || self.lookup(at).is_ok_and(is_guarded)
    }

    /// Returns whether the open file of a slot is in a subvolume that has been deleted.
    pub fn is_of_deleted(&self, slot: u8) -> bool {
        self.slots.get(&slot).is_some_and(|ino| self.is_deleted(self.inode(*ino).subvolume))
    }

    /// Returns the model with all its subvolumes writable.
    #[must_use]
    pub fn with_writable_subvolumes(&self) -> Model {
        let subvolumes = self.subvolumes.keys().map(|root| (*root, false)).collect();
        Model { subvolumes, ..self.clone() }
    }

    pub(super) fn is_deleted(&self, subvolume: u64) -> bool {
        subvolume != ROOT && !self.subvolumes.contains_key(&subvolume)
    }

    fn has_subvolumes(&self, subvolume: u64) -> bool {
        let mut has = false;
        self.visit(subvolume, &Bytes::default(), &mut |_, ino| {
            has |= ino != subvolume && self.subvolumes.contains_key(&ino);
        });
        has
    }

    /// Fails if the inode is in a read-only snapshot.
    pub(super) fn may_change_subvolume(&self, inode: &Inode) -> Answer<()> {
        match self.subvolumes.get(&inode.subvolume) {
            Some(true) => Err(errno::READ_ONLY),
            Some(false) | None => Ok(()),
        }
    }

    pub(super) fn are_in_one_subvolume(&self, one: u64, other: u64) -> Answer<()> {
        let is_one = self.inode(one).subvolume == self.inode(other).subvolume;
        if is_one { Ok(()) } else { Err(errno::CROSSES_DEVICES) }
    }

    /// Checks where an inode gets a name, for subjects that do it first.
    pub(super) fn may_cross_to(&self, ino: u64, to: &Bytes) -> Answer<()> {
        if !self.rules.checks_subvolumes_first {
            return Ok(());
        }
        let (dir, name) = self.parent(to)?;
        if name.len() > NAME_BYTES_MAX { Ok(()) } else { self.are_in_one_subvolume(ino, dir) }
    }

    /// A default ACL of the directory limits the mode of a new subvolume, which inherits no ACL. It
    /// inherits the compression of the root directory of the subvolume that it is in.
    fn create_subvolume(&mut self, at: &Bytes) -> Answer<()> {
        let (dir, name) = self.vacancy(at)?;
        let mut inode = Inode::new(Body::Directory(BTreeMap::new()), 0o777);
        if let Some(default) = &self.inode(dir).default {
            inode.mode = default.inherited(inode.mode).permissions();
        }
        let root = self.inode(self.inode(dir).subvolume);
        let compression = Bytes::from(COMPRESSION);
        if let Some(value) = root.xattrs.get(&compression) {
            inode.xattrs.insert(compression, value.clone());
            inode.flags = root.flags & (flags::COMPRESS | flags::NO_COMPRESS);
        }
        inode.subvolume = self.next;
        let ino = self.insert(inode);
        self.subvolumes.insert(ino, false);
        self.entries_mut(dir).insert(name.to_vec(), ino);
        Ok(())
    }

    fn snapshot(&mut self, source: &Bytes, at: &Bytes, is_read_only: bool) -> Answer<()> {
        let source = self.lookup(source)?;
        self.parent(at)?;
        if !self.subvolumes.contains_key(&source) {
            return Err(errno::INVALID);
        }
        let (dir, name) = self.vacancy(at)?;
        let subvolume = self.next;
        let root = self.copy_below(source, (source, subvolume), &mut BTreeMap::new());
        self.subvolumes.insert(root, is_read_only);
        self.entries_mut(dir).insert(name.to_vec(), root);
        Ok(())
    }

    /// Copies an inode of one subvolume and everything below it to another one, and returns the
    /// number of the copy.
    fn copy_below(
        &mut self,
        ino: u64,
        (from, to): (u64, u64),
        copies: &mut BTreeMap<u64, u64>,
    ) -> u64 {
        if let Some(copy) = copies.get(&ino) {
            return *copy;
        }
        let mut inode = self.inode(ino).clone();
        if inode.subvolume != from {
            inode = Inode::new(Body::Directory(BTreeMap::new()), 0o755);
            inode.is_placeholder = true;
        }
        inode.subvolume = to;
        let owner = (inode.uid, inode.gid);
        let entries = match &inode.body {
            Body::Directory(entries) => entries.clone(),
            Body::File(_) | Body::Symlink(_) | Body::Special(..) => BTreeMap::new(),
        };
        let copy = self.insert(inode);
        copies.insert(ino, copy);
        let mut below = BTreeMap::new();
        for (name, child) in entries {
            let child = self.copy_below(child, (from, to), copies);
            let inode = self.inode_mut(child);
            if inode.is_placeholder {
                (inode.uid, inode.gid) = owner;
            }
            below.insert(name, child);
        }
        if let Body::Directory(entries) = &mut self.inode_mut(copy).body {
            *entries = below;
        }
        copy
    }

    fn delete_subvolume(&mut self, at: &Bytes) -> Answer<()> {
        let (dir, name) = self.parent(at)?;
        let ino = self.step(dir, name)?;
        self.may_delete(dir, ino, true)?;
        if !self.subvolumes.contains_key(&ino) {
            return Err(errno::INVALID);
        }
        if self.has_subvolumes(ino) {
            return Err(errno::NOT_EMPTY);
        }
        self.subvolumes.remove(&ino);
        self.entries_mut(dir).remove(name);
        let open: BTreeSet<u64> = self.slots.values().copied().collect();
        self.inodes.retain(|number, inode| inode.subvolume != ino || open.contains(number));
        Ok(())
    }

    fn clone_range(&mut self, ranges: Ranges) -> Answer<Outcome> {
        let Ranges { from, to, bytes } = ranges;
        self.are_alike(ranges)?;
        self.may_clone_to(to.0)?;
        let size = self.content(from.0).size();
        let bytes = match bytes {
            0 if from.1 > size => return Err(errno::INVALID),
            0 => size - from.1,
            bytes => bytes,
        };
        if bytes == 0 {
            return Ok(Outcome::Done);
        }
        ranges.are_aligned()?;
        let target_size = self.content(to.0).size();
        let is_to_end = from.1 + bytes == size && to.1 + bytes >= target_size;
        if from.1 + bytes > size || !bytes.is_multiple_of(BLOCK) && !is_to_end {
            return Err(errno::INVALID);
        }
        Ranges { bytes, ..ranges }.are_apart()?;
        let memory = self.content(from.0).read(from.1, bytes);
        self.content_mut(to.0).write(to.1, &memory);
        Ok(Outcome::Done)
    }

    fn dedupe_range(&self, ranges: Ranges) -> Answer<Outcome> {
        let Ranges { from, to, bytes } = ranges;
        if bytes == 0 {
            return Ok(Outcome::Done);
        }
        self.are_alike(ranges)?;
        self.may_clone_to(to.0)?;
        ranges.are_aligned()?;
        let (size, target_size) = (self.content(from.0).size(), self.content(to.0).size());
        let (end, target_end) = (from.1 + bytes, to.1 + bytes);
        if end > size || target_end > target_size {
            return Err(errno::INVALID);
        }
        let is_to_ends = end == size && target_end == target_size;
        let bytes = if is_to_ends { bytes } else { bytes - bytes % BLOCK };
        Ranges { bytes, ..ranges }.are_apart()?;
        let read = |(ino, offset)| self.content(ino).read(offset, bytes);
        Ok(if read(from) == read(to) { Outcome::Done } else { Outcome::Differs })
    }

    /// Checks law 3.
    fn are_alike(&self, Ranges { from, to, .. }: Ranges) -> Answer<()> {
        let has_checksums = |ino| !self.inode(ino).has(flags::NO_COW);
        if has_checksums(from.0) == has_checksums(to.0) { Ok(()) } else { Err(errno::INVALID) }
    }

    /// Checks the flags of a file that is to share extents, which may have been open before they
    /// were set. Linux checks only one of them then.
    fn may_clone_to(&self, ino: u64) -> Answer<()> {
        let inode = self.inode(ino);
        let is_guarded = self.rules.guards_open_files && inode.has(flags::APPEND);
        if inode.has(flags::IMMUTABLE) || is_guarded { Err(errno::NOT_PERMITTED) } else { Ok(()) }
    }
}

impl Ranges {
    fn are_aligned(self) -> Answer<()> {
        let is_aligned = self.from.1.is_multiple_of(BLOCK) && self.to.1.is_multiple_of(BLOCK);
        if is_aligned { Ok(()) } else { Err(errno::INVALID) }
    }

    /// Checks that the blocks of the ranges do not overlap in one file.
    fn are_apart(self) -> Answer<()> {
        let Ranges { from, to, bytes } = self;
        let blocks = bytes.next_multiple_of(BLOCK);
        let overlap = from.0 == to.0 && from.1 < to.1 + blocks && to.1 < from.1 + blocks;
        if overlap { Err(errno::INVALID) } else { Ok(()) }
    }
}
