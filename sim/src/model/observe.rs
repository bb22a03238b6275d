//! What is visible of a model: its tree, and the paths that a generator may use.

use super::{Body, Inode, Model, ROOT};
use crate::bytes::Bytes;
use crate::content::Digest;
use crate::operation::File;
use crate::tree::{Kind, Node, Tree};
use std::collections::BTreeMap;

impl Model {
    pub fn tree(&self) -> Tree {
        let mut nodes = BTreeMap::new();
        self.visit(ROOT, &Bytes::default(), &mut |path, ino| {
            nodes.insert(path.clone(), (self.inode(ino).node(), ino));
        });
        let open = self.slots.iter().map(|(slot, ino)| (*slot, self.open_node(*ino)));
        Tree::from_numbered(nodes, open.collect())
    }

    fn open_node(&self, ino: u64) -> Node {
        let mut node = self.inode(ino).node();
        if self.is_deleted(self.inode(ino).subvolume) && !self.rules.shows_xattrs_of_deleted {
            node.xattrs.clear();
        }
        node
    }

    /// Returns the open files without a name.
    pub fn unnamed(&self) -> Vec<Node> {
        let open = self.slots.values().filter(|ino| self.inode(**ino).nlink == 0);
        open.map(|ino| Node { number: *ino, ..self.inode(*ino).node() }).collect()
    }

    /// Returns every path but the root's, with its kind.
    pub fn places(&self) -> Vec<(Bytes, Kind)> {
        let mut places = Vec::new();
        self.visit(ROOT, &Bytes::default(), &mut |path, ino| {
            if !path.0.is_empty() {
                places.push((path.clone(), self.inode(ino).kind()));
            }
        });
        places
    }

    pub fn open_slots(&self) -> Vec<u8> {
        self.slots.keys().copied().collect()
    }

    /// Returns the bytes of memory that the contents use.
    pub fn stored_bytes(&self) -> u64 {
        let bytes = |inode: &Inode| match &inode.body {
            Body::File(content) => content.stored_bytes(),
            Body::Directory(_) | Body::Symlink(_) | Body::Special(..) => 0,
        };
        self.inodes.values().map(bytes).sum()
    }

    /// Returns the size of the file at a path, if it is a file.
    pub fn size_at(&self, at: &Bytes) -> Option<u64> {
        match &self.inode(self.lookup(at).ok()?).body {
            Body::File(content) => Some(content.size()),
            Body::Directory(_) | Body::Symlink(_) | Body::Special(..) => None,
        }
    }

    /// Returns the inode number of a file. A number is never used again.
    pub fn number_of(&self, file: &File) -> Option<u64> {
        self.file(file, false).ok()
    }

    /// Returns whether the file's flags allow every write, also through a file that is open.
    pub fn accepts_writes(&self, file: &File) -> bool {
        let is_free = |ino| !self.rules.guards_open_files || !self.inode(ino).is_guarded();
        self.file(file, true).is_ok_and(is_free)
    }

    pub fn size_open(&self, slot: u8) -> Option<u64> {
        self.slots.get(&slot).map(|ino| self.content(*ino).size())
    }

    pub(super) fn visit(&self, ino: u64, path: &Bytes, each: &mut impl FnMut(&Bytes, u64)) {
        each(path, ino);
        if let Body::Directory(entries) = &self.inode(ino).body {
            for (name, child) in entries {
                self.visit(*child, &path.join(name), each);
            }
        }
    }
}

impl Inode {
    fn kind(&self) -> Kind {
        match self.body {
            Body::File(_) => Kind::File,
            Body::Directory(_) => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Special(kind, ..) => kind,
        }
    }

    fn node(&self) -> Node {
        let (size, content, target, rdev) = match &self.body {
            Body::File(content) => (content.size(), content.digest(), Bytes::default(), (0, 0)),
            Body::Directory(entries) => {
                let size = entries.keys().map(|name| 2 * name.len() as u64).sum();
                (size, Digest::default(), Bytes::default(), (0, 0))
            }
            Body::Symlink(target) => {
                (target.0.len() as u64, Digest::default(), target.clone(), (0, 0))
            }
            Body::Special(_, major, minor) => {
                (0, Digest::default(), Bytes::default(), (*major, *minor))
            }
        };
        let shows_flags = matches!(self.body, Body::File(_) | Body::Directory(_));
        Node {
            kind: self.kind(),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size,
            nlink: self.nlink,
            rdev,
            content,
            target,
            xattrs: self.all_xattrs(),
            flags: shows_flags.then_some(self.flags),
            atime: self.atime,
            mtime: self.mtime,
            twin: Bytes::default(),
            number: 0,
        }
    }
}
