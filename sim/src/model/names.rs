//! Operations on names: creating, linking, renaming and removing them; and open files.

use super::{Answer, Body, Inode, Model, NAME_BYTES_MAX};
use crate::bytes::Bytes;
use crate::content::Content;
use crate::errno;
use crate::operation::{File, Operation, Renaming, Special, flags};
use crate::tree::Kind;
use std::collections::BTreeMap;

const SET_GID: u32 = 0o2000;
pub(super) const COMPRESSION: &str = "btrfs.compression";

impl Model {
    pub(super) fn name_operation(&mut self, operation: &Operation) -> Option<Answer<()>> {
        Some(match operation {
            Operation::Create { at, mode } => {
                self.make(at, Body::File(Content::default()), *mode).map(drop)
            }
            Operation::Mkdir { at, mode } => {
                // mkdir ignores set-id bits in its mode.
                self.make(at, Body::Directory(BTreeMap::new()), mode & 0o1777).map(drop)
            }
            Operation::Mknod { at, kind, mode, major, minor } => {
                let (kind, rdev) = special(*kind, (*major, *minor));
                self.make(at, Body::Special(kind, rdev.0, rdev.1), *mode).map(drop)
            }
            Operation::Symlink { at, target }
                if target.0.len() as u64 > self.rules.symlink_bytes_max() =>
            {
                self.vacancy(at).and(Err(errno::NAME_TOO_LONG))
            }
            Operation::Symlink { at, target } => {
                self.make(at, Body::Symlink(target.clone()), 0o777).map(drop)
            }
            Operation::Link { from, to } => self.link(from, to),
            Operation::Unlink { at } => self.remove(at, false),
            Operation::Rmdir { at } => self.remove(at, true),
            Operation::Rename { from, to, how } => self.rename(from, to, *how),
            Operation::Tmpfile { dir, mode, slot } => self.tmpfile(dir, *mode, *slot),
            Operation::LinkOpen { slot, to } => self.link_open(*slot, to),
            Operation::Open { at, slot } => {
                self.close(*slot);
                let opened = self.file(&File::At(at.clone()), true);
                opened.map(|ino| {
                    self.slots.insert(*slot, ino);
                })
            }
            Operation::Close { slot } => {
                let is_open = self.slots.contains_key(slot);
                self.close(*slot);
                if is_open { Ok(()) } else { Err(errno::BAD_FILE) }
            }
            Operation::Reopen => {
                for slot in self.slots.keys().copied().collect::<Vec<_>>() {
                    self.close(slot);
                }
                Ok(())
            }
            _ => return None,
        })
    }

    /// Returns the directory and the last component of a path at which a name can be created.
    pub(super) fn vacancy<'a>(&self, at: &'a Bytes) -> Answer<(u64, &'a [u8])> {
        let (dir, name) = self.parent(at)?;
        match self.step(dir, name) {
            Ok(_) => return Err(errno::EXISTS),
            Err(errno::NOT_FOUND) => {}
            Err(error) => return Err(error),
        }
        if self.rules.checks_subvolumes_first {
            self.may_change_subvolume(self.inode(dir))?;
        }
        if self.inode(dir).has(flags::IMMUTABLE) {
            return Err(errno::NOT_PERMITTED);
        }
        self.may_change_subvolume(self.inode(dir))?;
        Ok((dir, name))
    }

    fn make(&mut self, at: &Bytes, body: Body, mode: u32) -> Answer<u64> {
        let (dir, name) = self.vacancy(at)?;
        let ino = self.add_inode(dir, body, mode);
        self.entries_mut(dir).insert(name.to_vec(), ino);
        Ok(ino)
    }

    /// Adds an inode with everything that it inherits from its directory.
    fn add_inode(&mut self, dir: u64, body: Body, mode: u32) -> u64 {
        let parent = self.inode(dir);
        let mut inode = Inode::new(body, mode);
        if parent.mode & SET_GID != 0 {
            inode.gid = parent.gid;
            if inode.is_directory() {
                inode.mode |= SET_GID;
            }
        }
        let is_symlink = matches!(inode.body, Body::Symlink(_));
        if let Some(default) = parent.default.as_ref().filter(|_| !is_symlink) {
            let access = default.inherited(inode.mode);
            inode.mode = inode.mode & !0o777 | access.permissions();
            inode.access = Some(access).filter(|access| !access.is_plain());
            inode.default = Some(default.clone()).filter(|_| inode.is_directory());
        }
        let handed_down = flags::NO_COW | flags::COMPRESS | flags::NO_COMPRESS;
        inode.flags = parent.flags & handed_down;
        let name = Bytes::from(COMPRESSION);
        let takes_properties = matches!(inode.body, Body::File(_) | Body::Directory(_));
        if let Some(value) = parent.xattrs.get(&name).filter(|_| takes_properties) {
            inode.xattrs.insert(name, value.clone());
        }
        inode.subvolume = parent.subvolume;
        self.insert(inode)
    }

    pub(super) fn insert(&mut self, inode: Inode) -> u64 {
        let ino = self.next;
        self.next += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    fn link(&mut self, from: &Bytes, to: &Bytes) -> Answer<()> {
        let ino = self.lookup(from)?;
        self.may_cross_to(ino, to)?;
        let (dir, name) = self.vacancy(to)?;
        let inode = self.inode(ino);
        if inode.is_guarded() || inode.is_directory() {
            return Err(errno::NOT_PERMITTED);
        }
        self.are_in_one_subvolume(ino, dir)?;
        self.inode_mut(ino).nlink += 1;
        self.entries_mut(dir).insert(name.to_vec(), ino);
        Ok(())
    }

    fn tmpfile(&mut self, dir: &Bytes, mode: u32, slot: u8) -> Answer<()> {
        self.close(slot);
        let dir = self.lookup(dir)?;
        match self.inode(dir).body {
            Body::Directory(_) => {}
            Body::Symlink(_) => return Err(errno::LOOP),
            Body::File(_) | Body::Special(..) => return Err(errno::NOT_DIRECTORY),
        }
        if self.inode(dir).has(flags::IMMUTABLE) {
            return Err(errno::NOT_PERMITTED);
        }
        self.may_change_subvolume(self.inode(dir))?;
        let ino = self.add_inode(dir, Body::File(Content::default()), mode);
        let inode = self.inode_mut(ino);
        (inode.nlink, inode.is_linkable) = (0, true);
        self.slots.insert(slot, ino);
        Ok(())
    }

    fn link_open(&mut self, slot: u8, to: &Bytes) -> Answer<()> {
        let ino = self.file(&File::Open(slot), false)?;
        self.may_cross_to(ino, to)?;
        let (dir, name) = self.vacancy(to)?;
        let inode = self.inode(ino);
        if inode.is_guarded() {
            return Err(errno::NOT_PERMITTED);
        }
        if inode.nlink == 0 && !inode.is_linkable {
            return Err(errno::NOT_FOUND);
        }
        self.are_in_one_subvolume(ino, dir)?;
        let inode = self.inode_mut(ino);
        inode.nlink += 1;
        inode.is_linkable = false;
        self.entries_mut(dir).insert(name.to_vec(), ino);
        Ok(())
    }

    /// Checks whether the name of `victim` in `dir` may be removed.
    pub(super) fn may_delete(&self, dir: u64, victim: u64, is_rmdir: bool) -> Answer<()> {
        let (dir, victim) = (self.inode(dir), self.inode(victim));
        if !dir.has(flags::IMMUTABLE) {
            self.may_change_subvolume(dir)?;
        }
        if dir.is_guarded() || victim.is_guarded() {
            return Err(errno::NOT_PERMITTED);
        }
        match (is_rmdir, victim.is_directory()) {
            (true, false) => Err(errno::NOT_DIRECTORY),
            (false, true) => Err(errno::IS_DIRECTORY),
            (true, true) | (false, false) => Ok(()),
        }
    }

    fn remove(&mut self, at: &Bytes, is_rmdir: bool) -> Answer<()> {
        let (dir, name) = self.parent(at)?;
        let ino = self.step(dir, name)?;
        self.may_delete(dir, ino, is_rmdir)?;
        if is_rmdir && !self.entries(ino)?.is_empty() {
            return Err(errno::NOT_EMPTY);
        }
        self.entries_mut(dir).remove(name);
        self.subvolumes.remove(&ino);
        self.drop_link(ino);
        Ok(())
    }

    fn drop_link(&mut self, ino: u64) {
        self.inode_mut(ino).nlink -= 1;
        self.forget_unused(ino);
    }

    fn rename(&mut self, from: &Bytes, to: &Bytes, how: Renaming) -> Answer<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        self.may_cross((from_dir, from_name), (to_dir, to_name), how)?;
        let source = self.step(from_dir, from_name)?;
        if to_name.len() > NAME_BYTES_MAX {
            return Err(errno::NAME_TOO_LONG);
        }
        let target = self.step(to_dir, to_name).ok();
        let is_exchange = how == Renaming::Exchange;
        match target {
            Some(_) if how == Renaming::NoReplace => return Err(errno::EXISTS),
            None if is_exchange => return Err(errno::NOT_FOUND),
            Some(_) | None => {}
        }
        if from_dir != to_dir {
            if self.is_within(source, to_dir) {
                return Err(errno::INVALID);
            }
            if target.is_some_and(|target| self.is_within(target, from_dir)) {
                return Err(if is_exchange { errno::INVALID } else { errno::NOT_EMPTY });
            }
        }
        if target == Some(source) {
            return Ok(());
        }
        let is_dir = self.inode(source).is_directory();
        self.may_delete(from_dir, source, is_dir)?;
        match target {
            None if self.inode(to_dir).has(flags::IMMUTABLE) => return Err(errno::NOT_PERMITTED),
            None => self.may_change_subvolume(self.inode(to_dir))?,
            Some(target) if is_exchange => {
                self.may_delete(to_dir, target, self.inode(target).is_directory())?;
            }
            Some(target) => {
                self.may_delete(to_dir, target, is_dir)?;
                self.are_in_one_subvolume(from_dir, to_dir)?;
                if is_dir && !self.entries(target)?.is_empty() {
                    return Err(errno::NOT_EMPTY);
                }
            }
        }
        if is_dir && from_dir != to_dir {
            self.may_change_subvolume(self.inode(source))?;
        }
        let exchanged = target.filter(|_| is_exchange && from_dir != to_dir);
        if let Some(target) = exchanged.filter(|target| self.inode(*target).is_directory()) {
            self.may_change_subvolume(self.inode(target))?;
        }
        if !self.subvolumes.contains_key(&source) {
            self.are_in_one_subvolume(from_dir, to_dir)?;
        }
        self.entries_mut(from_dir).remove(from_name);
        self.entries_mut(to_dir).insert(to_name.to_vec(), source);
        match (target, how) {
            (Some(target), Renaming::Exchange) => {
                self.entries_mut(from_dir).insert(from_name.to_vec(), target);
            }
            (Some(target), _) => self.drop_link(target),
            (None, _) => {}
        }
        if how == Renaming::Whiteout {
            let whiteout = self.add_inode(from_dir, Body::Special(Kind::Character, 0, 0), 0);
            self.entries_mut(from_dir).insert(from_name.to_vec(), whiteout);
        }
        Ok(())
    }

    /// Checks whether a name may move to another subvolume, for subjects that do it first.
    fn may_cross(&self, from: (u64, &[u8]), to: (u64, &[u8]), how: Renaming) -> Answer<()> {
        if !self.rules.checks_subvolumes_first || from.1.len() > NAME_BYTES_MAX {
            return Ok(());
        }
        let crosses = self.are_in_one_subvolume(from.0, to.0);
        if crosses.is_err() {
            if to.1.len() > NAME_BYTES_MAX {
                return Err(errno::NAME_TOO_LONG);
            }
            // A subvolume may cross, and two of them in an exchange.
            let mut moved = vec![self.step(from.0, from.1)?];
            if how == Renaming::Exchange {
                moved.push(self.step(to.0, to.1)?);
            }
            let is_subvolume = |ino| self.subvolumes.contains_key(ino);
            return if moved.iter().all(is_subvolume) { Ok(()) } else { crosses };
        }
        crosses
    }

    /// Returns whether `dir` is the directory `top` or below it.
    fn is_within(&self, top: u64, dir: u64) -> bool {
        if top == dir {
            return true;
        }
        let Body::Directory(entries) = &self.inode(top).body else { return false };
        entries.values().any(|child| self.is_within(*child, dir))
    }
}

fn special(kind: Special, rdev: (u32, u32)) -> (Kind, (u32, u32)) {
    match kind {
        Special::Fifo => (Kind::Fifo, (0, 0)),
        Special::Socket => (Kind::Socket, (0, 0)),
        Special::Character => (Kind::Character, rdev),
        Special::Block => (Kind::Block, rdev),
    }
}
