//! [`Namespace`]: the commands that turn the names of the parent into those of the new subvolume.
//!
//! ```text
//! 1. for each inode of the new subvolume:  create, or move to its names
//!        a name that is in the way         -> unlink it, or move its inode to a temporary name
//!        a directory that is not there yet -> create it first
//!        a directory below the moved one   -> move it to a temporary name first
//! 2. names that only the parent has:       unlink
//! 3. directories that only the parent has: rmdir, the deepest first
//! ```
//!
//! Laws:
//!
//! 1. A name is taken only when it is free. Names of the new subvolume are unique, and temporary
//!    names are in neither subvolume, so only a name of the parent can be in the way.
//! 2. An inode that is kept never loses its last name.
//! 3. A directory is not moved into itself: if its new directory is below it, a directory between
//!    the two has yet to move, because in the new subvolume nothing is above itself.
//! 4. After step 1 each inode of the new subvolume has all its names there. So what a removed
//!    directory still contains is removed, too.
//! 5. New inodes inherit nothing: attributes of a directory that new inodes would inherit are
//!    removed first, and set again with the other attributes.

use crate::Result;
use crate::send::inodes::{Changed, Node, Place, ROOT, Trees, corrupt};
use crate::send::output::Output;
use crate::send::paths::Paths;
use butternut_file::{FileView, Source};
use butternut_format::inode::{FileKind, Inode};
use butternut_format::stream::Command;
use butternut_format::units::{Ino, index};
use butternut_names::{self as names, DEFAULT_ACL, DEPTH_MAX, Link, Target};
use std::collections::{BTreeMap, HashSet};

/// Attributes of a directory that new inodes in it inherit (law 5).
const INHERITED: [&[u8]; 2] = [DEFAULT_ACL, names::COMPRESSION];

/// The names of the receiver.
pub(crate) struct Namespace<'a, 'b> {
    paths: &'a mut Paths,
    out: &'a mut Output<'b>,
    source: &'a Source,
    /// Names of the parent that the receiver does not have any more: the directory's number in the
    /// parent, and the name.
    freed: HashSet<(u64, Vec<u8>)>,
    touched: BTreeMap<u64, Touched>,
    /// Directories whose inherited attributes were looked up.
    stripped: HashSet<u64>,
}

/// What changing names did to the attributes of a directory of both subvolumes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    /// Attributes that were removed (law 5).
    pub(crate) removed: Vec<&'static [u8]>,
}

/// Changes all names. Returns the directories of both subvolumes whose times have changed by that.
pub(crate) fn change_names(
    paths: &mut Paths,
    out: &mut Output<'_>,
    source: &Source,
) -> Result<BTreeMap<u64, Touched>> {
    let mut namespace = Namespace {
        paths,
        out,
        source,
        freed: HashSet::new(),
        touched: BTreeMap::new(),
        stripped: HashSet::new(),
    };
    namespace.place_all()?;
    namespace.unlink_removed()?;
    namespace.remove_directories()?;
    Ok(namespace.touched)
}

impl Namespace<'_, '_> {
    /// Step 1.
    fn place_all(&mut self) -> Result<()> {
        let mut last = ROOT;
        while let Some((ino, changed)) = self.paths.inodes.after(last) {
            last = ino;
            self.out.require_wanted()?;
            let Some(new) = changed.new else { continue };
            match (new.kind, changed.is_kept) {
                (FileKind::Directory, true) => self.move_directory(ino, changed)?,
                (FileKind::Directory, false) => self.ensure_directory(Node::new(ino))?,
                (_, true) => self.place_links(ino, changed)?,
                (_, false) => self.create_with_links(ino)?,
            }
        }
        Ok(())
    }

    /// Makes a directory of the new subvolume, and those above it, if the receiver does not have
    /// them.
    fn ensure_directory(&mut self, dir: Node) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = dir;
        while self.is_missing(at) {
            let link = self.trees().link(false, at.ino)?;
            let parent = Node::new(link.parent.0);
            missing.push((at.ino, link));
            if missing.len() > DEPTH_MAX {
                let want = "at most 2048 directories";
                return Err(corrupt(&self.trees().new, dir.ino, "a deeper path", want));
            }
            at = parent;
        }
        while let Some((ino, link)) = missing.pop() {
            self.create(ino, &link)?;
        }
        Ok(())
    }

    fn is_missing(&self, dir: Node) -> bool {
        let changed = self.paths.inodes.get(dir.ino);
        changed.is_some_and(|changed| changed.is_new() && !changed.is_created)
    }

    /// Creates an inode of the new subvolume in a directory that exists.
    fn create(&mut self, ino: u64, link: &Link) -> Result<()> {
        let dir = Node::new(link.parent.0);
        self.vacate(dir, &link.name)?;
        self.strip(dir)?;
        let path = self.paths.of_name(dir, &link.name)?;
        let inode = names::inode(&self.trees().new, Ino(ino))?
            .ok_or_else(|| corrupt(&self.trees().new, ino, "none", "an inode"))?;
        self.put_new(ino, &inode, &path)?;
        if let Some(changed) = self.paths.inodes.get_mut(ino) {
            changed.is_created = true;
        }
        self.touch(dir);
        Ok(())
    }

    fn put_new(&mut self, ino: u64, inode: &Inode, path: &[u8]) -> Result<()> {
        let (device, mode) = (inode.rdev, inode.mode);
        let target;
        let command = match inode.kind {
            FileKind::File => Command::Mkfile { path, ino },
            FileKind::Directory => Command::Mkdir { path, ino },
            FileKind::CharDevice | FileKind::BlockDevice => {
                Command::Mknod { path, ino, device, mode }
            }
            FileKind::Fifo => Command::Mkfifo { path, ino, device, mode },
            FileKind::Socket => Command::Mksock { path, ino, device, mode },
            FileKind::Symlink => {
                target = self.target(ino, inode)?;
                Command::Symlink { path, ino, target: &target }
            }
        };
        self.out.put(&command)
    }

    /// Returns the target of a symbolic link.
    fn target(&self, ino: u64, inode: &Inode) -> Result<Vec<u8>> {
        let view = FileView::new(self.trees().new.clone(), Ino(ino), inode);
        let mut text = vec![0; index(u32::try_from(view.size().min(4096)).unwrap_or(0))];
        let read = self.source.read_at(&view, 0, &mut text)?;
        text.truncate(read);
        Ok(text)
    }

    /// Creates an inode that is no directory, with all its names.
    fn create_with_links(&mut self, ino: u64) -> Result<()> {
        let links = self.trees().links(false, ino)?;
        let Some((first, others)) = links.split_first() else { return Ok(()) };
        self.ensure_directory(Node::new(first.parent.0))?;
        self.create(ino, first)?;
        for link in others {
            self.add_link(link, first)?;
        }
        Ok(())
    }

    /// Gives the inode of `existing`, a name of the new subvolume, another one.
    fn add_link(&mut self, link: &Link, existing: &Link) -> Result<()> {
        let dir = Node::new(link.parent.0);
        self.ensure_directory(dir)?;
        self.vacate(dir, &link.name)?;
        let existing = self.paths.of_new_link(existing)?;
        let path = self.paths.of_new_link(link)?;
        self.out.put(&Command::Link { path: &path, existing: &existing })?;
        self.touch(dir);
        Ok(())
    }

    /// Gives an inode that is kept, and is no directory, its names of the new subvolume.
    fn place_links(&mut self, ino: u64, changed: Changed) -> Result<()> {
        if !changed.parts.names {
            return Ok(());
        }
        let (common, gone, added) = self.sort_links(ino)?;
        let mut gone = gone.into_iter();
        let mut existing = common.into_iter().next();
        for link in added {
            let dir = Node::new(link.parent.0);
            self.ensure_directory(dir)?;
            self.vacate(dir, &link.name)?;
            let Some(from) = self.take_source(ino, &mut gone)? else {
                let existing = existing
                    .as_ref()
                    .ok_or_else(|| corrupt(&self.trees().new, ino, "no name left", "a name"))?;
                self.add_link(&link, existing)?;
                if let Some(changed) = self.paths.inodes.get_mut(ino) {
                    changed.names = changed.names.saturating_add(1);
                }
                continue;
            };
            let to = self.paths.of_new_link(&link)?;
            self.out.put(&Command::Rename { path: &from, to: &to })?;
            self.touch(dir);
            existing = existing.or(Some(link));
        }
        Ok(())
    }

    /// Returns the path of a name that an inode is to lose, and takes it as lost: its temporary
    /// name, or the next of `gone` that the receiver has.
    fn take_source(
        &mut self,
        ino: u64,
        gone: &mut impl Iterator<Item = Link>,
    ) -> Result<Option<Vec<u8>>> {
        if let Some(changed) = self.paths.inodes.get_mut(ino)
            && changed.place == Place::Orphan
        {
            changed.place = Place::New;
            self.touch(Node::ROOT);
            let name = self.paths.orphan_name(ino)?;
            return self.paths.of_name(Node::ROOT, &name).map(Some);
        }
        for link in gone {
            if self.free(&link) {
                return self.paths.of_old_link(&link).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the names of an inode that is kept: those of both subvolumes, of the parent only,
    /// and of the new one only.
    fn sort_links(&self, ino: u64) -> Result<(Vec<Link>, Vec<Link>, Vec<Link>)> {
        let (old, new) = (self.trees().links(true, ino)?, self.trees().links(false, ino)?);
        let is_stable = |link: &Link| self.paths.inodes.is_in_both(Node::new(link.parent.0));
        let place = |link: &Link| (link.parent, link.name.clone());
        let old_places: HashSet<_> = old.iter().map(place).collect();
        let new_places: HashSet<_> = new.iter().map(place).collect();
        let is_common =
            |places: &HashSet<_>, link: &Link| is_stable(link) && places.contains(&place(link));
        let gone = old.into_iter().filter(|link| !is_common(&new_places, link)).collect();
        let (common, added) = new.into_iter().partition(|link| is_common(&old_places, link));
        Ok((common, gone, added))
    }

    /// Moves a directory that is kept to its name in the new subvolume.
    fn move_directory(&mut self, ino: u64, changed: Changed) -> Result<()> {
        let node = Node::new(ino);
        if !changed.parts.names || !self.is_to_move(node)? {
            return Ok(());
        }
        let link = self.trees().link(false, ino)?;
        let dir = Node::new(link.parent.0);
        self.ensure_directory(dir)?;
        self.vacate(dir, &link.name)?;
        self.break_cycle(node, dir)?;
        let from = self.leave(node)?;
        if let Some(changed) = self.paths.inodes.get_mut(ino) {
            changed.place = Place::New;
        }
        self.paths.forget();
        let to = self.paths.of_new_link(&link)?;
        self.out.put(&Command::Rename { path: &from, to: &to })?;
        self.touch(dir);
        Ok(())
    }

    /// Returns whether a directory has to leave the place where it is.
    fn is_to_move(&self, dir: Node) -> Result<bool> {
        let Some(changed) = self.paths.inodes.get(dir.ino) else { return Ok(false) };
        if dir == Node::ROOT || changed.is_new() && !dir.is_removed {
            return Ok(false);
        }
        Ok(match changed.place {
            Place::New => false,
            Place::Orphan => true,
            Place::Old if dir.is_removed => true,
            Place::Old => {
                let (old, new) =
                    (self.trees().link(true, dir.ino)?, self.trees().link(false, dir.ino)?);
                let is_stable = self.paths.inodes.is_in_both(Node::new(old.parent.0));
                !is_stable || (old.parent, &old.name) != (new.parent, &new.name)
            }
        })
    }

    /// Law 3: if `dir` is below `node`, moves a directory between the two away.
    fn break_cycle(&mut self, node: Node, dir: Node) -> Result<()> {
        let (mut at, mut nearest) = (dir, None);
        for _ in 0..=DEPTH_MAX {
            if at == Node::ROOT {
                return Ok(());
            }
            if at == node {
                let found = nearest.ok_or_else(|| {
                    corrupt(&self.trees().new, node.ino, "a directory below itself", "none")
                })?;
                return self.orphan_directory(found);
            }
            if self.is_to_move(at)? {
                nearest = Some(at);
            }
            at = self.paths.position(at)?.0;
        }
        Err(corrupt(&self.trees().new, dir.ino, "a deeper path", "at most 2048 directories"))
    }

    /// Frees a name that an inode of the new subvolume gets (law 1).
    fn vacate(&mut self, dir: Node, name: &[u8]) -> Result<()> {
        if !self.paths.inodes.is_in_both(dir) || self.freed.contains(&(dir.ino, name.to_vec())) {
            return Ok(());
        }
        let Some(old) = self.trees().old.clone() else { return Ok(()) };
        // The receiver has nothing in place of the subvolumes inside the parent.
        let found = names::lookup(&old, Ino(dir.ino), name)?;
        let Some(Target::Inode(Ino(ino))) = found.map(|found| found.target) else { return Ok(()) };
        let occupant = self.paths.inodes.get(ino).copied();
        let twice = || corrupt(&old, ino, "a name that another inode has", "a name of its own");
        let (occupant, head) =
            occupant.and_then(|changed| changed.old.map(|old| (changed, old))).ok_or_else(twice)?;
        if head.kind == FileKind::Directory {
            return self.orphan_directory(self.paths.inodes.old_node(ino));
        }
        let link = Link { parent: Ino(dir.ino), index: 0, name: name.to_vec() };
        let path = self.paths.of_old_link(&link)?;
        self.free(&link);
        if occupant.is_kept && occupant.names <= 1 {
            // Law 2.
            let orphan = self.paths.orphan_name(ino)?;
            let to = self.paths.of_name(Node::ROOT, &orphan)?;
            self.set_place(ino, Place::Orphan);
            self.touch(Node::ROOT);
            return self.out.put(&Command::Rename { path: &path, to: &to });
        }
        if let Some(changed) = self.paths.inodes.get_mut(ino) {
            changed.names = changed.names.saturating_sub(1);
        }
        self.out.put(&Command::Unlink { path: &path })
    }

    /// Moves a directory to a temporary name.
    fn orphan_directory(&mut self, dir: Node) -> Result<()> {
        let path = self.leave(dir)?;
        self.set_place(dir.ino, Place::Orphan);
        self.paths.forget();
        let to = self.paths.of_directory(dir)?;
        self.touch(Node::ROOT);
        self.out.put(&Command::Rename { path: &path, to: &to })
    }

    /// Returns the path of a directory, and takes its name as free.
    fn leave(&mut self, dir: Node) -> Result<Vec<u8>> {
        let path = self.paths.of_directory(dir)?;
        match self.paths.inodes.get(dir.ino).map(|changed| changed.place) {
            Some(Place::Old) => {
                let link = self.trees().link(true, dir.ino)?;
                self.free(&link);
            }
            Some(Place::Orphan) => self.touch(Node::ROOT),
            Some(Place::New) | None => {}
        }
        Ok(path)
    }

    /// Takes a name of the parent as free. Returns whether it was not.
    fn free(&mut self, link: &Link) -> bool {
        self.touch(self.paths.inodes.old_node(link.parent.0));
        self.freed.insert((link.parent.0, link.name.clone()))
    }

    fn set_place(&mut self, ino: u64, place: Place) {
        if let Some(changed) = self.paths.inodes.get_mut(ino) {
            changed.place = place;
        }
    }

    /// Law 5.
    fn strip(&mut self, dir: Node) -> Result<()> {
        let Some(old) = self.trees().old.clone() else { return Ok(()) };
        if !self.paths.inodes.is_in_both(dir) || !self.stripped.insert(dir.ino) {
            return Ok(());
        }
        for name in INHERITED {
            if names::xattr(&old, Ino(dir.ino), name)?.is_none() {
                continue;
            }
            let path = self.paths.of_directory(dir)?;
            self.out.put(&Command::RemoveXattr { path: &path, name })?;
            self.touched.entry(dir.ino).or_default().removed.push(name);
        }
        Ok(())
    }

    /// Remembers that a name in a directory of both subvolumes was changed.
    fn touch(&mut self, dir: Node) {
        if self.paths.inodes.is_in_both(dir) {
            self.touched.entry(dir.ino).or_default();
        }
    }

    /// Step 2.
    fn unlink_removed(&mut self) -> Result<()> {
        let mut last = ROOT;
        while let Some((ino, changed)) = self.paths.inodes.after(last) {
            last = ino;
            self.out.require_wanted()?;
            let Some(old) = changed.old.filter(|old| old.kind != FileKind::Directory) else {
                continue;
            };
            let gone = if !changed.is_kept {
                self.trees().links(true, ino)?
            } else if changed.parts.names {
                self.sort_links(ino)?.1
            } else {
                continue;
            };
            debug_assert!(old.kind != FileKind::Directory);
            for link in gone {
                if self.free(&link) {
                    let path = self.paths.of_old_link(&link)?;
                    self.out.put(&Command::Unlink { path: &path })?;
                }
            }
        }
        Ok(())
    }

    /// Step 3.
    fn remove_directories(&mut self) -> Result<()> {
        let is_gone = |(ino, changed): (u64, &Changed)| {
            let old = changed.old.filter(|_| changed.is_removed())?;
            (old.kind == FileKind::Directory).then_some(Node { ino, is_removed: true })
        };
        let gone: Vec<Node> = self.paths.inodes.iter().filter_map(is_gone).collect();
        let mut by_depth = Vec::with_capacity(gone.len());
        for dir in gone {
            self.out.require_wanted()?;
            let path = self.paths.of_directory(dir)?;
            by_depth.push((path.split(|byte| *byte == b'/').count(), dir));
        }
        by_depth.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        for (_, dir) in by_depth {
            let path = self.paths.of_directory(dir)?;
            self.out.put(&Command::Rmdir { path: &path })?;
            let (parent, _) = self.paths.position(dir)?;
            self.touch(parent);
        }
        Ok(())
    }

    fn trees(&self) -> &Trees {
        &self.paths.trees
    }
}
