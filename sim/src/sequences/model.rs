//! [`World`]: the expected names and inodes, and what a step does to them.

use super::step::{Path, Step, Verb};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The root directory's number.
pub const ROOT: usize = 0;
/// The name of the extended attribute that the steps set and remove.
pub const XATTR: &str = "user.note";
/// The text of every symbolic link.
pub const TARGET: &[u8] = b"some/where";

const BLOCK: u64 = 4096;
const WRITE_BYTES: u64 = 12_388;
const SMALL_BYTES: u64 = 1000;
const MORE_BYTES: u64 = 5000;

/// A name: the number of its directory's inode, and the name in it.
pub type Name = (usize, &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
}

/// What an inode holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub kind: Kind,
    /// The data of a file, or the text of a symbolic link.
    pub bytes: Arc<Vec<u8>>,
    pub mode: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// An inode under a name. A rename keeps the number of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub inode: usize,
    pub number: usize,
}

/// All inodes and names at one moment. Inodes keep their numbers, also after their deletion.
#[derive(Clone, Debug)]
pub struct World {
    pub inodes: Vec<Inode>,
    pub names: BTreeMap<Name, Link>,
    links: usize,
}

/// What a step does, in terms of inodes.
#[derive(Clone, Debug)]
pub enum Action {
    Make { at: Name, kind: Kind },
    Write { inode: usize, offset: u64, bytes: Vec<u8> },
    Truncate { inode: usize, size: u64 },
    Punch { inode: usize, range: Range<u64> },
    Preallocate { inode: usize, range: Range<u64> },
    Link { inode: usize, at: Name },
    Rename { from: Name, to: Name },
    Exchange { from: Name, to: Name },
    Unlink { at: Name },
    Rmdir { at: Name },
    SetXattr { inode: usize, value: Vec<u8> },
    RemoveXattr { inode: usize },
    Chmod { inode: usize, mode: u32 },
    Sync { inode: usize, verb: Verb },
}

impl Inode {
    pub fn new(kind: Kind) -> Self {
        let (bytes, mode) = match kind {
            Kind::File => (Vec::new(), 0o644),
            Kind::Directory => (Vec::new(), 0o755),
            Kind::Symlink => (TARGET.to_vec(), 0o777),
        };
        Self { kind, bytes: Arc::new(bytes), mode, xattrs: BTreeMap::new() }
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl Default for World {
    fn default() -> Self {
        let inodes = vec![Inode::new(Kind::Directory)];
        Self { inodes, names: BTreeMap::new(), links: 0 }
    }
}

/// Returns bytes that no other step writes.
fn pattern(number: usize, bytes: u64) -> Vec<u8> {
    let first = u8::try_from(number * 37 % 251).unwrap_or(0);
    (0..bytes).map(|at| 1 + (first.wrapping_add((at / 61 % 251).to_le_bytes()[0]) % 255)).collect()
}

impl World {
    /// Returns the directory and the last name of a path, if the directory exists.
    fn place(&self, path: Path) -> Option<Name> {
        match path.rsplit_once('/') {
            None => Some((ROOT, path)),
            Some((dir, name)) => {
                let dir = self.find(dir)?;
                (self.inodes[dir].kind == Kind::Directory).then_some((dir, name))
            }
        }
    }

    /// Returns the inode at a path; `/` is the root.
    pub fn find(&self, path: Path) -> Option<usize> {
        if path == "/" {
            return Some(ROOT);
        }
        let at = self.place(path)?;
        self.names.get(&at).map(|link| link.inode)
    }

    /// Returns the names of an inode.
    pub fn names_of(&self, inode: usize) -> BTreeSet<Name> {
        let own = self.names.iter().filter(|(_, link)| link.inode == inode);
        own.map(|(name, _)| *name).collect()
    }

    pub fn is_linked(&self, inode: usize) -> bool {
        inode == ROOT || self.names.values().any(|link| link.inode == inode)
    }

    fn is_empty(&self, dir: usize) -> bool {
        !self.names.keys().any(|name| name.0 == dir)
    }

    /// Whether `inode` is `dir` or below it.
    fn is_within(&self, mut inode: usize, dir: usize) -> bool {
        loop {
            if inode == dir {
                return true;
            }
            let above = self.names.iter().find(|(_, link)| link.inode == inode);
            let Some((name, _)) = above else { return false };
            inode = name.0;
        }
    }

    /// Returns what a step does; `None` if it fails or does nothing. `number` distinguishes the
    /// data of steps.
    pub fn plan(&self, step: Step, number: usize) -> Option<Vec<Action>> {
        match step.verb {
            Verb::Create | Verb::Write | Verb::WriteSmall | Verb::Mkdir | Verb::Symlink => {
                self.plan_make(step, number)
            }
            Verb::Link | Verb::Rename | Verb::Exchange => self.plan_two(step),
            Verb::Unlink | Verb::Rmdir => self.plan_remove(step),
            _ => self.plan_inode(step, number),
        }
    }

    fn plan_make(&self, step: Step, number: usize) -> Option<Vec<Action>> {
        let at = self.place(step.path).filter(|at| !self.names.contains_key(at))?;
        let kind = match step.verb {
            Verb::Mkdir => Kind::Directory,
            Verb::Symlink => Kind::Symlink,
            _ => Kind::File,
        };
        let mut actions = vec![Action::Make { at, kind }];
        let size = match step.verb {
            Verb::Write => WRITE_BYTES,
            Verb::WriteSmall => SMALL_BYTES,
            _ => return Some(actions),
        };
        let (inode, bytes) = (self.inodes.len(), pattern(number, size));
        actions.push(Action::Write { inode, offset: 0, bytes });
        Some(actions)
    }

    fn plan_two(&self, step: Step) -> Option<Vec<Action>> {
        let (from, to) = (self.place(step.path)?, self.place(step.to?)?);
        let source = self.names.get(&from)?.inode;
        let target = self.names.get(&to).map(|link| link.inode);
        let is_directory = |inode: usize| self.inodes[inode].kind == Kind::Directory;
        if from == to || target == Some(source) {
            return None;
        }
        let action = match (step.verb, target) {
            (Verb::Link, None) if !is_directory(source) => Action::Link { inode: source, at: to },
            (Verb::Rename, _) if self.is_within(to.0, source) => return None,
            (Verb::Rename, None) => Action::Rename { from, to },
            (Verb::Rename, Some(target)) => {
                let is_allowed = is_directory(source) == is_directory(target);
                if !is_allowed || !self.is_empty(target) {
                    return None;
                }
                Action::Rename { from, to }
            }
            (Verb::Exchange, Some(target)) => {
                if self.is_within(to.0, source) || self.is_within(from.0, target) {
                    return None;
                }
                Action::Exchange { from, to }
            }
            _ => return None,
        };
        Some(vec![action])
    }

    fn plan_remove(&self, step: Step) -> Option<Vec<Action>> {
        let at = self.place(step.path)?;
        let inode = self.names.get(&at)?.inode;
        let is_directory = self.inodes[inode].kind == Kind::Directory;
        let action = match step.verb {
            Verb::Unlink if !is_directory => Action::Unlink { at },
            Verb::Rmdir if is_directory && self.is_empty(inode) => Action::Rmdir { at },
            _ => return None,
        };
        Some(vec![action])
    }

    /// Plans a step on one existing inode.
    fn plan_inode(&self, step: Step, number: usize) -> Option<Vec<Action>> {
        let inode = self.find(step.path)?;
        let content = &self.inodes[inode];
        let size = content.size();
        let is_file = content.kind == Kind::File;
        let has_data = is_file && size > 0;
        let note = content.xattrs.contains_key(XATTR);
        let action = match step.verb {
            Verb::Append if is_file => {
                Action::Write { inode, offset: size, bytes: pattern(number, MORE_BYTES) }
            }
            Verb::Overwrite if has_data => {
                Action::Write { inode, offset: size / 4, bytes: pattern(number, size / 2) }
            }
            Verb::Shrink if has_data => Action::Truncate { inode, size: size / 2 },
            Verb::Grow if is_file => Action::Truncate { inode, size: size + MORE_BYTES },
            Verb::Punch if has_data => {
                let start = if size > 2 * BLOCK { BLOCK } else { 0 };
                Action::Punch { inode, range: start..start + BLOCK }
            }
            Verb::Preallocate if is_file => {
                let start = size.next_multiple_of(BLOCK);
                Action::Preallocate { inode, range: start..start + 2 * BLOCK }
            }
            Verb::SetXattr if content.kind != Kind::Symlink => {
                let value = format!("value {number}").into_bytes();
                Action::SetXattr { inode, value }
            }
            Verb::RemoveXattr if note => Action::RemoveXattr { inode },
            Verb::Chmod if content.kind != Kind::Symlink => {
                let mode = 0o700 | u32::try_from(number % 56).unwrap_or(0);
                Action::Chmod { inode, mode }
            }
            Verb::Fsync | Verb::Fdatasync if is_file => Action::Sync { inode, verb: step.verb },
            Verb::FsyncDirectory if content.kind == Kind::Directory => {
                Action::Sync { inode, verb: step.verb }
            }
            _ => return None,
        };
        Some(vec![action])
    }

    /// Changes the world by an action that [`World::plan`] returned.
    pub fn apply(&mut self, action: &Action) {
        match action {
            Action::Make { at, kind } => {
                let inode = self.inodes.len();
                self.inodes.push(Inode::new(*kind));
                self.add_name(*at, inode);
            }
            Action::Link { inode, at } => self.add_name(*at, *inode),
            Action::Rename { from, to } => {
                let link = self.names.remove(from);
                self.names.extend(link.map(|link| (*to, link)));
            }
            Action::Exchange { from, to } => {
                let (one, other) = (self.names.remove(from), self.names.remove(to));
                self.names.extend(one.map(|link| (*to, link)));
                self.names.extend(other.map(|link| (*from, link)));
            }
            Action::Unlink { at } | Action::Rmdir { at } => {
                self.names.remove(at);
            }
            Action::SetXattr { inode, value } => {
                self.inodes[*inode].xattrs.insert(XATTR.to_owned(), value.clone());
            }
            Action::RemoveXattr { inode } => {
                self.inodes[*inode].xattrs.remove(XATTR);
            }
            Action::Chmod { inode, mode } => self.inodes[*inode].mode = *mode,
            Action::Write { .. } | Action::Truncate { .. } | Action::Punch { .. } => {
                self.apply_to_data(action);
            }
            Action::Preallocate { .. } | Action::Sync { .. } => {}
        }
    }

    fn add_name(&mut self, at: Name, inode: usize) {
        self.names.insert(at, Link { inode, number: self.links });
        self.links += 1;
    }

    fn apply_to_data(&mut self, action: &Action) {
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        match action {
            Action::Write { inode, offset, bytes } => {
                let data = Arc::make_mut(&mut self.inodes[*inode].bytes);
                let (start, end) = (index(*offset), index(*offset) + bytes.len());
                data.resize(data.len().max(end), 0);
                data[start..end].copy_from_slice(bytes);
            }
            Action::Truncate { inode, size } => {
                Arc::make_mut(&mut self.inodes[*inode].bytes).resize(index(*size), 0);
            }
            Action::Punch { inode, range } => {
                let data = Arc::make_mut(&mut self.inodes[*inode].bytes);
                let end = data.len().min(index(range.end));
                data[index(range.start).min(end)..end].fill(0);
            }
            _ => {}
        }
    }
}
