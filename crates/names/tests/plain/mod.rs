//! A minimal filesystem of names only: it resolves paths, uses one handle for each operation, reads
//! and writes inodes every time, and stores no file data.

use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_format::inode::{DeviceNumber, FileKind, Inode, Time};
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{
    Exchanged, Found, Moment, Move, NamesError, NewInode, NewName, OldName, OldTarget, SetXattr,
    SubvolumePair, Target, Xattr, add_orphan, changed, create, entry_added, entry_removed,
    exchange, inode, insert_inode, link, link_added, link_removed, lookup, next_index, next_ino,
    parent_link, put_inode, put_root_ref, put_symlink_target, remove_inode, remove_orphan,
    remove_xattr, rename, set_xattr, unlink,
};
use butternut_tree::{Forest, ForestOptions, Handle, Need, TreeEdit};
use butternut_volume::{OpenOptions, Volume};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const ROOT: Ino = Ino(256);

fn volume(image: &Path, writable: bool) -> Arc<Volume> {
    let options = OpenDevice { writable, ..OpenDevice::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &options).unwrap());
    Arc::new(Volume::open(vec![device], OpenOptions::default()).unwrap())
}

pub(crate) fn readable(image: &Path) -> Arc<Forest> {
    Forest::open(volume(image, false), ForestOptions::default()).unwrap()
}

pub(crate) fn writable(image: &Path) -> Arc<Forest> {
    Forest::open_writable(volume(image, true), ForestOptions::default()).unwrap()
}

/// The top-level subvolume of a volume, and the numbers it has given out.
pub(crate) struct Plain {
    forest: Arc<Forest>,
    next_ino: Ino,
    next_index: HashMap<Ino, u64>,
}

/// A name and the directory it is in, or is to be in.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: Ino,
    name: &'a [u8],
}

/// One operation under way.
struct Operation<'a> {
    edit: TreeEdit<'a>,
    moment: Moment,
}

fn side(place: Place<'_>, target: (Ino, FileKind), index: u64) -> Exchanged<'_> {
    let Place { dir, name } = place;
    let found = Found { target: Target::Inode(target.0), kind: target.1 };
    Exchanged { dir, name, found, old_target: OldTarget::Inode(target.0), index }
}

fn operation(handle: &Handle) -> Operation<'_> {
    let now = Time { secs: 1_700_000_000, nanos: 5 };
    let moment = Moment { generation: handle.generation(), now };
    Operation { edit: handle.tree(TreeId::FS).unwrap(), moment }
}

impl Operation<'_> {
    fn found(&self, place: Place<'_>) -> Option<(Ino, FileKind)> {
        let found = lookup(self.edit.tree(), place.dir, place.name).unwrap()?;
        let Target::Inode(ino) = found.target else { panic!("a subvolume") };
        Some((ino, found.kind))
    }

    fn place<'a>(&self, path: &'a str) -> Place<'a> {
        let mut parts = path.split('/').map(str::as_bytes);
        let name = parts.next_back().unwrap();
        let down = |dir, name| self.found(Place { dir, name }).unwrap().0;
        Place { dir: parts.fold(ROOT, down), name }
    }

    fn change(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut Inode) -> Result<(), NamesError>,
    ) -> Result<(), NamesError> {
        let mut inode = inode(self.edit.tree(), ino)?.unwrap();
        change(&mut inode)?;
        put_inode(&self.edit, ino, &inode)
    }

    fn entry_added(&self, place: Place<'_>) -> Result<(), NamesError> {
        self.change(place.dir, |dir| {
            entry_added(dir, place.name, self.moment);
            Ok(())
        })
    }

    fn entry_removed(&self, place: Place<'_>) -> Result<(), NamesError> {
        self.change(place.dir, |dir| {
            entry_removed(dir, place.name, self.moment);
            Ok(())
        })
    }

    fn new_name<'a>(&self, place: Place<'a>, target: (Ino, FileKind), index: u64) -> NewName<'a> {
        let found = Found { target: Target::Inode(target.0), kind: target.1 };
        let Place { dir, name } = place;
        NewName { dir, name, index, found, generation: self.moment.generation }
    }

    /// Updates an inode that lost a name. It is not in use, so it is deleted with its last name.
    fn lost_name(&self, ino: Ino, kind: FileKind) -> Result<(), NamesError> {
        self.change(ino, |inode| {
            link_removed(inode, self.moment);
            Ok(())
        })?;
        let gone = inode(self.edit.tree(), ino)?.unwrap().nlink == 0;
        if gone {
            add_orphan(&self.edit, ino)?;
            remove_inode(&self.edit, ino, kind, &mut |_, _| {})?;
            assert!(remove_orphan(&self.edit, ino)?);
        }
        Ok(())
    }
}

impl Plain {
    pub(crate) fn new(forest: &Arc<Forest>) -> Self {
        let tree = forest.tree(TreeId::FS).unwrap().unwrap();
        let next_ino = next_ino(&tree).unwrap();
        Self { forest: Arc::clone(forest), next_ino, next_index: HashMap::new() }
    }

    fn join(&self) -> Handle {
        self.forest.join(Need::items(40).deleting()).unwrap()
    }

    fn take_ino(&mut self) -> Ino {
        let ino = self.next_ino;
        self.next_ino = Ino(ino.0 + 1);
        ino
    }

    fn take_index(&mut self, operation: &Operation<'_>, dir: Ino) -> u64 {
        let first = || next_index(operation.edit.tree(), dir).unwrap();
        let next = self.next_index.entry(dir).or_insert_with(first);
        *next += 1;
        *next - 1
    }

    /// Creates an inode with a name.
    fn made(
        &mut self,
        operation: &Operation<'_>,
        place: Place<'_>,
        new: &NewInode,
    ) -> Result<Ino, NamesError> {
        let parent = inode(operation.edit.tree(), place.dir)?.unwrap();
        let made = new.inode(&parent, operation.moment);
        let (ino, index) = (self.take_ino(), self.take_index(operation, place.dir));
        let name = operation.new_name(place, (ino, new.kind), index);
        create(&operation.edit, &name, ino, &made)?;
        operation.entry_added(place)?;
        Ok(ino)
    }

    pub(crate) fn create(
        &mut self,
        path: &str,
        kind: FileKind,
        permissions: u32,
    ) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let device = kind == FileKind::CharDevice;
        let rdev = if device { DeviceNumber::new(5, 300) } else { DeviceNumber::default() };
        let new = NewInode { kind, permissions, uid: 0, gid: 0, rdev };
        self.made(&operation, operation.place(path), &new).map(drop)
    }

    pub(crate) fn symlink(&mut self, path: &str, text: &str) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (kind, rdev) = (FileKind::Symlink, DeviceNumber::default());
        let new = NewInode { kind, permissions: 0o777, uid: 0, gid: 0, rdev };
        let ino = self.made(&operation, operation.place(path), &new)?;
        let generation = operation.moment.generation;
        put_symlink_target(&operation.edit, ino, text.as_bytes(), generation)?;
        let bytes = u64::try_from(text.len()).unwrap();
        operation.change(ino, |inode| {
            (inode.size, inode.bytes_used) = (bytes, bytes);
            Ok(())
        })
    }

    pub(crate) fn link(&mut self, from: &str, to: &str) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let target = operation.found(operation.place(from)).unwrap();
        let to = operation.place(to);
        let index = self.take_index(&operation, to.dir);
        link(&operation.edit, &operation.new_name(to, target, index))?;
        operation.change(target.0, |inode| link_added(inode, operation.moment))?;
        operation.entry_added(to)
    }

    pub(crate) fn remove(&mut self, path: &str) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let place = operation.place(path);
        let (ino, kind) = operation.found(place).unwrap();
        let Place { dir, name } = place;
        unlink(&operation.edit, &OldName { dir, name, target: OldTarget::Inode(ino) })?;
        operation.entry_removed(place)?;
        operation.lost_name(ino, kind)
    }

    pub(crate) fn rename(
        &mut self,
        from: &str,
        to: &str,
        whiteout: bool,
    ) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (from, to) = (operation.place(from), operation.place(to));
        let (target, victim) = (operation.found(from).unwrap(), operation.found(to));
        if victim.is_some_and(|(ino, _)| ino == target.0) {
            return Ok(());
        }
        let index = self.take_index(&operation, to.dir);
        let change = Move {
            from: OldName { dir: from.dir, name: from.name, target: OldTarget::Inode(target.0) },
            to: operation.new_name(to, target, index),
            replaces: victim.map(|(ino, _)| OldTarget::Inode(ino)),
        };
        rename(&operation.edit, &change)?;
        operation.entry_removed(from)?;
        if let Some((ino, kind)) = victim {
            operation.lost_name(ino, kind)?;
        } else {
            operation.entry_added(to)?;
        }
        operation.change(target.0, |inode| {
            changed(inode, operation.moment);
            Ok(())
        })?;
        if whiteout {
            let (kind, rdev) = (FileKind::CharDevice, DeviceNumber::default());
            let new = NewInode { kind, permissions: 0, uid: 0, gid: 0, rdev };
            self.made(&operation, from, &new)?;
        }
        Ok(())
    }

    /// Moves a subvolume, with its references in the root tree.
    pub(crate) fn rename_subvolume(&mut self, from: &str, to: &str) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (from, to) = (operation.place(from), operation.place(to));
        let found = lookup(operation.edit.tree(), from.dir, from.name)?.unwrap();
        let Target::Subvolume(child) = found.target else { panic!("no subvolume") };
        let roots = handle.tree(TreeId::ROOT)?;
        let pair = SubvolumePair { child, parent: TreeId::FS };
        let old = parent_link(roots.tree(), child)?.unwrap();
        assert_eq!((old.parent, old.dir, old.name.as_slice()), (TreeId::FS, from.dir, from.name));
        let index = self.take_index(&operation, to.dir);
        let old_target = OldTarget::Unreferenced { index: old.index };
        let generation = operation.moment.generation;
        let change = Move {
            from: OldName { dir: from.dir, name: from.name, target: old_target },
            to: NewName { dir: to.dir, name: to.name, index, found, generation },
            replaces: None,
        };
        rename(&operation.edit, &change)?;
        put_root_ref(&roots, pair, &RootRef { dir: to.dir, index, name: to.name })?;
        operation.entry_removed(from)?;
        operation.entry_added(to)
    }

    pub(crate) fn exchange(&mut self, one: &str, other: &str) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (one, other) = (operation.place(one), operation.place(other));
        let targets = [one, other].map(|place| operation.found(place).unwrap());
        if targets[0].0 == targets[1].0 {
            return Ok(());
        }
        let other_index = self.take_index(&operation, other.dir);
        let one_index = self.take_index(&operation, one.dir);
        let sides = (side(one, targets[0], one_index), side(other, targets[1], other_index));
        exchange(&operation.edit, &sides.0, &sides.1, operation.moment.generation)?;
        for place in [one, other] {
            operation.change(place.dir, |dir| {
                changed(dir, operation.moment);
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(crate) fn chmod(&mut self, path: &str, permissions: u32) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (ino, _) = operation.found(operation.place(path)).unwrap();
        operation.change(ino, |inode| {
            inode.mode = inode.kind.mode_bits() | permissions;
            changed(inode, operation.moment);
            Ok(())
        })
    }

    pub(crate) fn set_xattr(
        &mut self,
        path: &str,
        name: &str,
        value: &str,
    ) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (ino, _) = operation.found(operation.place(path)).unwrap();
        let xattr = Xattr { name: name.as_bytes(), value: value.as_bytes() };
        let generation = operation.moment.generation;
        set_xattr(&operation.edit, ino, &xattr, SetXattr::Either, generation)
    }

    pub(crate) fn remove_xattr(&mut self, path: &str, name: &str) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (ino, _) = operation.found(operation.place(path)).unwrap();
        assert!(remove_xattr(&operation.edit, ino, name.as_bytes())?);
        Ok(())
    }

    /// Creates a file without a name, which gets a name later or is deleted.
    pub(crate) fn temporary(&mut self, to: Option<&str>) -> Result<(), NamesError> {
        let handle = self.join();
        let operation = operation(&handle);
        let (kind, rdev) = (FileKind::File, DeviceNumber::default());
        let new = NewInode { kind, permissions: 0o600, uid: 0, gid: 0, rdev };
        let root = inode(operation.edit.tree(), ROOT)?.unwrap();
        let made = Inode { nlink: 0, ..new.inode(&root, operation.moment) };
        let ino = self.take_ino();
        insert_inode(&operation.edit, ino, &made)?;
        add_orphan(&operation.edit, ino)?;
        let Some(to) = to.map(|to| operation.place(to)) else {
            assert_eq!(remove_inode(&operation.edit, ino, kind, &mut |_, _| {})?, 1);
            assert!(remove_orphan(&operation.edit, ino)?);
            return Ok(());
        };
        let index = self.take_index(&operation, to.dir);
        link(&operation.edit, &operation.new_name(to, (ino, kind), index))?;
        operation.change(ino, |inode| link_added(inode, operation.moment))?;
        assert!(remove_orphan(&operation.edit, ino)?);
        operation.entry_added(to)
    }
}
