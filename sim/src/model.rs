//! [`Model`]: a filesystem whose inodes are a map, and which defines the outcome of each operation.
//!
//! 1. Errors are checked in the order in which Linux checks them.
//! 2. An attribute is known or unknown: a time is known from when it is set until another operation
//!    changes it; change times and birth times are never known.
//! 3. An inode exists while it has a name or is open.
//! 4. A directory has one link, and its size is twice the length of its names.
//! 5. A snapshot is a copy of all inodes with a name; where its source has another subvolume, the
//!    snapshot has a placeholder. Files of a deleted subvolume exist while they are open.
//! 6. The result of a seek depends on the layout, which is not modelled: [`Model::accepts_seek`]
//!    tells which results are possible.

mod attributes;
mod data;
mod names;
mod observe;
mod subvolumes;

use crate::acl::Acl;
use crate::bytes::Bytes;
use crate::content::Content;
use crate::errno;
use crate::operation::{File, Moment, Operation, Outcome, flags};
use crate::tree::Kind;
use std::collections::BTreeMap;
pub use subvolumes::Subvolume;

const ROOT: u64 = 1;
const NAME_BYTES_MAX: usize = 255;

const BLOCK_HEADER_BYTES: u64 = 101;
const ITEM_HEADER_BYTES: u64 = 25;
const XATTR_HEADER_BYTES: u64 = 30;
const INLINE_HEADER_BYTES: u64 = 21;

pub(crate) type Answer<T> = Result<T, i32>;

/// Permitted differences between a subject and Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether immutable and append-only flags are checked at every change. Linux checks them when
    /// a file is opened; the library without the VFS checks them at every change.
    pub guards_open_files: bool,
    /// Whether a change in a read-only subvolume, and a link or a rename between subvolumes, is
    /// refused as soon as the directories are found. Linux checks names, kinds and flags first.
    pub checks_subvolumes_first: bool,
    /// Whether the xattrs of a file that is open in a deleted subvolume can be read.
    pub shows_xattrs_of_deleted: bool,
    /// Bytes of a tree block, which limit the size of an item.
    pub node_bytes: u32,
    /// The compression of `chattr +c`: the algorithm of the mount options, or zlib.
    pub compression: &'static str,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            guards_open_files: false,
            checks_subvolumes_first: false,
            shows_xattrs_of_deleted: true,
            node_bytes: 16_384,
            compression: "zlib",
        }
    }
}

impl Rules {
    /// Returns the bytes of the largest item.
    fn item_bytes_max(self) -> u64 {
        u64::from(self.node_bytes) - BLOCK_HEADER_BYTES - ITEM_HEADER_BYTES
    }

    /// Returns the bytes of the largest name and value of an xattr together.
    fn xattr_bytes_max(self) -> u64 {
        self.item_bytes_max() - XATTR_HEADER_BYTES
    }

    fn symlink_bytes_max(self) -> u64 {
        self.item_bytes_max() - INLINE_HEADER_BYTES
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    rules: Rules,
    inodes: BTreeMap<u64, Inode>,
    slots: BTreeMap<u8, u64>,
    /// Root directories of subvolumes with a name, and whether the subvolume is read-only.
    subvolumes: BTreeMap<u64, bool>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Inode {
    body: Body,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u64,
    atime: Option<Moment>,
    mtime: Option<Moment>,
    xattrs: BTreeMap<Bytes, Bytes>,
    access: Option<Acl>,
    default: Option<Acl>,
    flags: u32,
    /// Whether the inode was created by `O_TMPFILE` and may still be linked.
    is_linkable: bool,
    /// The root directory of the subvolume that has the inode.
    subvolume: u64,
    /// Whether this is the empty directory that a snapshot has in the place of a subvolume.
    is_placeholder: bool,
}

#[derive(Clone, Debug)]
enum Body {
    File(Content),
    Directory(BTreeMap<Vec<u8>, u64>),
    Symlink(Bytes),
    Special(Kind, u32, u32),
}

impl Default for Model {
    fn default() -> Model {
        let root = Inode::new(Body::Directory(BTreeMap::new()), 0o755);
        let rules = Rules::default();
        let inodes = BTreeMap::from([(ROOT, root)]);
        let (slots, subvolumes) = (BTreeMap::new(), BTreeMap::new());
        Model { rules, inodes, slots, subvolumes, next: ROOT + 1 }
    }
}

impl Model {
    pub fn with_rules(rules: Rules) -> Model {
        Model { rules, ..Model::default() }
    }

    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        match self.answer(operation) {
            Ok(outcome) => outcome,
            Err(errno) => Outcome::Failed(errno),
        }
    }

    fn answer(&mut self, operation: &Operation) -> Answer<Outcome> {
        if let Some(outcome) = self.name_operation(operation) {
            return outcome.map(|()| Outcome::Done);
        }
        if let Some(outcome) = self.attribute_operation(operation) {
            return outcome.map(|()| Outcome::Done);
        }
        if let Some(outcome) = self.subvolume_operation(operation) {
            return outcome;
        }
        self.data_operation(operation)
    }

    fn inode(&self, ino: u64) -> &Inode {
        self.inodes.get(&ino).expect("law 3")
    }

    fn inode_mut(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("law 3")
    }

    /// Returns the directory of a path's last component, and that component.
    fn parent<'a>(&self, at: &'a Bytes) -> Answer<(u64, &'a [u8])> {
        let mut components = at.components();
        let name = components.next_back().ok_or(errno::INVALID)?;
        let mut dir = ROOT;
        for component in components {
            dir = self.step(dir, component)?;
        }
        self.entries(dir)?;
        Ok((dir, name))
    }

    fn step(&self, dir: u64, name: &[u8]) -> Answer<u64> {
        let entries = self.entries(dir)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(errno::NAME_TOO_LONG);
        }
        entries.get(name).copied().ok_or(errno::NOT_FOUND)
    }

    fn entries(&self, dir: u64) -> Answer<&BTreeMap<Vec<u8>, u64>> {
        match &self.inode(dir).body {
            Body::Directory(entries) => Ok(entries),
            // In the middle of a path a symlink is followed, and no target exists.
            Body::Symlink(_) => Err(errno::NOT_FOUND),
            Body::File(_) | Body::Special(..) => Err(errno::NOT_DIRECTORY),
        }
    }

    fn entries_mut(&mut self, dir: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        let inode = self.inode_mut(dir);
        inode.mtime = None;
        match &mut inode.body {
            Body::Directory(entries) => entries,
            Body::File(_) | Body::Symlink(_) | Body::Special(..) => {
                unreachable!("the caller passes directories only")
            }
        }
    }

    fn lookup(&self, at: &Bytes) -> Answer<u64> {
        if at.0.is_empty() {
            return Ok(ROOT);
        }
        let (dir, name) = self.parent(at)?;
        self.step(dir, name)
    }

    /// Returns the inode number of a file that is given by its name or is open.
    fn file(&self, file: &File, is_writing: bool) -> Answer<u64> {
        let at = match file {
            File::Open(slot) => return self.slots.get(slot).copied().ok_or(errno::BAD_FILE),
            File::At(at) => at,
        };
        let ino = self.lookup(at)?;
        let inode = self.inode(ino);
        match inode.body {
            Body::File(_) if is_writing => self.may_open_for_writing(inode).map(|()| ino),
            Body::File(_) => Ok(ino),
            Body::Directory(_) => Err(errno::IS_DIRECTORY),
            Body::Symlink(_) => Err(errno::LOOP),
            Body::Special(..) => Err(errno::NO_ADDRESS),
        }
    }

    fn may_open_for_writing(&self, inode: &Inode) -> Answer<()> {
        if inode.has(flags::IMMUTABLE) {
            return Err(errno::NOT_PERMITTED);
        }
        self.may_change_subvolume(inode)?;
        if inode.has(flags::APPEND) { Err(errno::NOT_PERMITTED) } else { Ok(()) }
    }

    /// Checks whether the flags of an open file allow a write at `offset`, for subjects that check
    /// open files.
    fn may_write_open(&self, ino: u64, offset: u64) -> Answer<()> {
        let inode = self.inode(ino);
        let is_elsewhere = offset != self.content(ino).size();
        let is_refused = inode.has(flags::IMMUTABLE) || inode.has(flags::APPEND) && is_elsewhere;
        if self.rules.guards_open_files && is_refused {
            return Err(errno::NOT_PERMITTED);
        }
        Ok(())
    }

    fn content(&self, ino: u64) -> &Content {
        match &self.inode(ino).body {
            Body::File(content) => content,
            Body::Directory(_) | Body::Symlink(_) | Body::Special(..) => {
                unreachable!("the caller passes files only")
            }
        }
    }

    fn content_mut(&mut self, ino: u64) -> &mut Content {
        let inode = self.inode_mut(ino);
        inode.mtime = None;
        match &mut inode.body {
            Body::File(content) => content,
            Body::Directory(_) | Body::Symlink(_) | Body::Special(..) => {
                unreachable!("the caller passes files only")
            }
        }
    }

    fn close(&mut self, slot: u8) {
        if let Some(ino) = self.slots.remove(&slot) {
            self.forget_unused(ino);
        }
    }

    /// Removes an inode without names that is not open (law 3).
    fn forget_unused(&mut self, ino: u64) {
        let inode = self.inode(ino);
        let is_named = inode.nlink > 0 && !self.is_deleted(inode.subvolume);
        if !is_named && !self.slots.values().any(|open| *open == ino) {
            self.inodes.remove(&ino);
        }
    }
}

impl Inode {
    fn new(body: Body, mode: u32) -> Inode {
        Inode {
            body,
            mode,
            uid: 0,
            gid: 0,
            nlink: 1,
            atime: None,
            mtime: None,
            xattrs: BTreeMap::new(),
            access: None,
            default: None,
            flags: 0,
            is_linkable: false,
            subvolume: ROOT,
            is_placeholder: false,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether the inode is immutable or append-only.
    fn is_guarded(&self) -> bool {
        self.has(flags::IMMUTABLE | flags::APPEND)
    }
}
