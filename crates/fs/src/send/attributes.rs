//! Attributes and data of inodes, after all names are those of the new subvolume.
//!
//! For each inode, in this order:
//!
//! ```text
//! extended attributes -> data, size -> owner -> mode -> file capabilities -> times
//! ```
//!
//! Laws:
//!
//! 1. Extended attributes come before data, because `btrfs.compression` decides how the receiver
//!    stores it.
//! 2. A change of the owner or of data removes file capabilities, and may remove the set-ID bits.
//!    So both are set after that, even if they are the same in both subvolumes.
//! 3. A POSIX ACL and the mode change each other. The mode comes after an ACL, and is set whenever
//!    the ACL is.
//! 4. Times are set last, and for every directory in which a name was changed.

use crate::Result;
use crate::send::contents::Contents;
use crate::send::inodes::{Changed, corrupt};
use crate::send::names::Touched;
use crate::send::output::Output;
use crate::send::paths::Paths;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::stream::{Command, StreamVersion};
use butternut_format::units::Ino;
use butternut_names::{self as names, ACCESS_ACL};
use butternut_tree::Tree;
use std::collections::BTreeMap;

const CAPABILITY: &[u8] = b"security.capability";

/// The set-ID bits.
const SET_ID_BITS: u32 = 0o6000;
const PERMISSION_BITS: u32 = 0o7777;

/// Maximum number of extended attributes of an inode.
const XATTRS_MAX: usize = 1 << 16;

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// One inode of the new subvolume, and its state in the parent if it is kept.
struct Subject<'a> {
    ino: u64,
    path: &'a [u8],
    old: Option<Inode>,
    new: Inode,
    old_xattrs: Xattrs,
    new_xattrs: Xattrs,
}

/// Sends the attributes and data of all inodes that differ, and the times of `touched`.
pub(crate) fn send_inodes(
    paths: &mut Paths,
    out: &mut Output<'_>,
    contents: &mut Contents<'_>,
    touched: &BTreeMap<u64, Touched>,
) -> Result<()> {
    let mut touched = touched.iter().peekable();
    let mut last = 0;
    loop {
        let changed = paths.inodes.after(last);
        let next = touched.peek().map(|(ino, _)| **ino);
        let Some(ino) = changed.map(|(ino, _)| ino).into_iter().chain(next).min() else {
            return Ok(());
        };
        last = ino;
        out.require_wanted()?;
        let touch = touched.next_if(|(other, _)| **other == ino).map(|(_, touch)| touch);
        let changed = changed.filter(|(other, _)| *other == ino).map(|(_, changed)| changed);
        if changed.is_some_and(|changed| changed.new.is_none()) {
            continue;
        }
        send_inode(paths, out, contents, ino, changed, touch)?;
    }
}

fn send_inode(
    paths: &mut Paths,
    out: &mut Output<'_>,
    contents: &mut Contents<'_>,
    ino: u64,
    changed: Option<Changed>,
    touch: Option<&Touched>,
) -> Result<()> {
    let path = paths.of_new_inode(ino)?;
    let trees = paths.trees.clone();
    let is_kept = changed.is_none_or(|changed| changed.is_kept);
    let missing = || corrupt(&trees.new, ino, "none", "an inode");
    let new = names::inode(&trees.new, Ino(ino))?.ok_or_else(missing)?;
    let old = match &trees.old {
        Some(tree) if is_kept => names::inode(tree, Ino(ino))?,
        _ => None,
    };
    let removed = touch.map(|touch| &touch.removed[..]).unwrap_or_default();
    let mut subject = Subject {
        ino,
        path: &path,
        old,
        new,
        old_xattrs: Xattrs::new(),
        new_xattrs: Xattrs::new(),
    };
    let has_xattrs = changed.is_some_and(|changed| changed.parts.xattrs);
    let has_data = changed.is_some_and(|changed| changed.parts.data);
    if has_xattrs || !removed.is_empty() {
        subject.read_xattrs(trees.old.as_ref(), &trees.new)?;
        subject.old_xattrs.retain(|name, _| !removed.contains(&&name[..]));
    }
    let acl_is_set = subject.put_xattrs(out)?;
    let resized = subject.old.is_none_or(|old| old.size != new.size);
    let has_written = new.kind == FileKind::File
        && (has_data || resized)
        && contents.send(out, paths, (ino, &path), subject.old.is_some())?;
    let is_owned = subject.put_owner(out)?;
    subject.put_mode(out, acl_is_set, is_owned || has_written)?;
    subject.put_capability(out, &trees.new, is_owned || has_written)?;
    subject.put_times(out)
}

impl Subject<'_> {
    fn read_xattrs(&mut self, old: Option<&Tree>, new: &Tree) -> Result<()> {
        if let Some(old) = old.filter(|_| self.old.is_some()) {
            self.old_xattrs = xattrs(old, self.ino)?;
        }
        self.new_xattrs = xattrs(new, self.ino)?;
        Ok(())
    }

    /// Sends the extended attributes that differ, except for new file capabilities. Returns whether
    /// there was a change of the access ACL.
    fn put_xattrs(&self, out: &mut Output<'_>) -> Result<bool> {
        let mut acl_is_set = false;
        for name in self.old_xattrs.keys() {
            if !self.new_xattrs.contains_key(name) {
                out.put(&Command::RemoveXattr { path: self.path, name })?;
                acl_is_set |= name == ACCESS_ACL;
            }
        }
        for (name, value) in &self.new_xattrs {
            if self.old_xattrs.get(name) != Some(value) && name != CAPABILITY {
                out.put(&Command::SetXattr { path: self.path, name, value })?;
                acl_is_set |= name == ACCESS_ACL;
            }
        }
        Ok(acl_is_set)
    }

    /// Returns whether the owner was set.
    fn put_owner(&self, out: &mut Output<'_>) -> Result<bool> {
        let Inode { uid, gid, .. } = self.new;
        if self.old.is_some_and(|old| (old.uid, old.gid) == (uid, gid)) {
            return Ok(false);
        }
        out.put(&Command::Chown { path: self.path, uid, gid })?;
        Ok(true)
    }

    fn put_mode(&self, out: &mut Output<'_>, acl_is_set: bool, is_changed: bool) -> Result<()> {
        // chmod(2) follows symbolic links.
        if self.new.kind == FileKind::Symlink {
            return Ok(());
        }
        let mode = self.new.mode & PERMISSION_BITS;
        let is_same = self.old.is_some_and(|old| old.mode == self.new.mode);
        if is_same && !acl_is_set && !(is_changed && mode & SET_ID_BITS != 0) {
            return Ok(());
        }
        out.put(&Command::Chmod { path: self.path, mode })
    }

    /// Law 2.
    fn put_capability(&self, out: &mut Output<'_>, new: &Tree, is_changed: bool) -> Result<()> {
        let is_known = !self.new_xattrs.is_empty() || !self.old_xattrs.is_empty();
        let value = if is_known {
            self.new_xattrs.get(CAPABILITY).cloned()
        } else if is_changed && self.new.kind == FileKind::File {
            names::xattr(new, Ino(self.ino), CAPABILITY)?
        } else {
            None
        };
        let Some(value) = value else { return Ok(()) };
        if is_changed || self.old_xattrs.get(CAPABILITY) != Some(&value) {
            out.put(&Command::SetXattr { path: self.path, name: CAPABILITY, value: &value })?;
        }
        Ok(())
    }

    fn put_times(&self, out: &mut Output<'_>) -> Result<()> {
        let Inode { atime, mtime, ctime, otime, .. } = self.new;
        let otime = (out.version() != StreamVersion::One).then_some(otime);
        out.put(&Command::Utimes { path: self.path, atime, mtime, ctime, otime })
    }
}

/// Reads all extended attributes of an inode.
fn xattrs(tree: &Tree, ino: u64) -> Result<Xattrs> {
    let mut all = Xattrs::new();
    for name in names::xattr_names(tree, Ino(ino), XATTRS_MAX)? {
        if let Some(value) = names::xattr(tree, Ino(ino), &name)? {
            all.insert(name, value);
        }
    }
    Ok(all)
}
