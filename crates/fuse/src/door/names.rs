//! Names: LOOKUP and FORGET, and requests that create, link and rename.

use butternut::server::FileExt;
use butternut::{Error, FileId, FileKind, NewInode, RenameFlags};

use crate::attr;
use crate::connection::protocol::{
    BatchForgetIn, CreateIn, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn, op,
};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::Door;
use crate::errno::{Errno, ErrnoResult};

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 1 << 1;
const RENAME_WHITEOUT: u32 = 1 << 2;

const PERMISSIONS: u32 = 0o7777;

impl Door {
    pub(super) fn lookup(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let parent = self.node(request)?;
        let name = request.name()?;
        // The kernel looks up dots when it has only a node id (NFS export).
        let found = match name {
            b"." => Ok(parent),
            b".." => self.filesystem.parent(parent),
            name => self.filesystem.lookup(parent, name),
        };
        match found {
            // After the lookup: the entry of a subvolume that is not complete exists only while its
            // name is hidden.
            _ if self.hidden_names.has(parent, name) => Err(Errno::ENOENT),
            Ok(id) => self.entry(id, reply),
            Err(Error::NotFound) => reply.push(&attr::negative_entry()),
            Err(error) => Err(error.into()),
        }
    }

    /// Replies with a file, and counts the lookup.
    fn entry(&self, id: FileId, reply: &mut Reply) -> ErrnoResult<()> {
        let stat = self.filesystem.stat(id)?;
        let number = self.nodes.count_lookup(&self.filesystem, &stat);
        reply.push(&attr::entry_out(&stat, number))
    }

    pub(super) fn forget(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        if request.header.opcode == op::FORGET {
            let forget: ForgetIn = request.take()?;
            self.forget_one(request.header.nodeid, forget.nlookup);
            return Ok(());
        }
        let batch: BatchForgetIn = request.take()?;
        for _ in 0..batch.count {
            let one: ForgetOne = request.take()?;
            self.forget_one(one.nodeid, one.nlookup);
        }
        Ok(())
    }

    fn forget_one(&self, node: u64, count: u64) {
        let id = if self.options.is_writable { None } else { self.nodes.file_id(node) };
        self.nodes.forget(node, count);
        if let Some(id) = id {
            self.open_cache.forget(id);
        }
    }

    pub(super) fn mkdir(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let input: MkdirIn = request.take()?;
        let new = new_inode(request, input.mode, input.umask);
        let id = self.filesystem.mkdir(self.node(request)?, request.name()?, &new)?;
        self.entry(id, reply)
    }

    pub(super) fn mknod(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let input: MknodIn = request.take()?;
        let new = new_inode(request, input.mode, input.umask);
        let kind = attr::kind_of_mode(input.mode).ok_or(Errno::EINVAL)?;
        let (dir, name) = (self.node(request)?, request.name()?);
        let id = if kind == FileKind::File {
            self.filesystem.create(dir, name, &new)?
        } else {
            let rdev = attr::decode_rdev(input.rdev);
            self.filesystem.mknod(dir, name, &new, kind, rdev)?
        };
        self.entry(id, reply)
    }

    pub(super) fn symlink(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let (name, text) = (request.name()?, request.name()?);
        let new = new_inode(request, 0o777, 0);
        let id = self.filesystem.symlink(self.node(request)?, name, text, &new)?;
        self.entry(id, reply)
    }

    pub(super) fn create(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let input: CreateIn = request.take()?;
        let new = new_inode(request, input.mode, input.umask);
        let dir = self.node(request)?;
        let writer = self.begin_open(dir, input.flags)?;
        let id = self.filesystem.create(dir, request.name()?, &new)?;
        let file = self.filesystem.open_file(id)?;
        self.entry(id, reply)?;
        self.opened(file.checked_at_open(), (input.flags, writer), false, reply)
    }

    /// Creates and opens a file without a name (`O_TMPFILE`).
    pub(super) fn tmpfile(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let input: CreateIn = request.take()?;
        let new = new_inode(request, input.mode, input.umask);
        let dir = self.node(request)?;
        let writer = self.begin_open(dir, input.flags)?;
        let file = self.filesystem.open_unnamed(dir, &new)?;
        self.entry(file.id(), reply)?;
        self.opened(file.checked_at_open(), (input.flags, writer), false, reply)
    }

    pub(super) fn link(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let link: LinkIn = request.take()?;
        let id = self.file_id(link.oldnodeid)?;
        self.filesystem.link(id, self.node(request)?, request.name()?)?;
        self.entry(id, reply)
    }

    pub(super) fn rename(&self, request: &mut Request<'_>) -> ErrnoResult<()> {
        let (to, flags) = if request.header.opcode == op::RENAME {
            (request.take::<RenameIn>()?.newdir, 0)
        } else {
            let rename: Rename2In = request.take()?;
            (rename.newdir, rename.flags)
        };
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT) != 0 {
            return Err(Errno::EINVAL);
        }
        let owner = (request.header.uid, request.header.gid);
        let flags = RenameFlags {
            no_replace: flags & RENAME_NOREPLACE != 0,
            exchange: flags & RENAME_EXCHANGE != 0,
            whiteout: (flags & RENAME_WHITEOUT != 0).then_some(owner),
        };
        let (from, to) = (self.node(request)?, self.file_id(to)?);
        let (old, new) = (request.name()?, request.name()?);
        Ok(self.filesystem.rename((from, old), (to, new), flags)?)
    }
}

/// Returns the owner and mode of an inode that the caller creates.
pub(super) fn new_inode(request: &Request<'_>, mode: u32, umask: u32) -> NewInode {
    let (uid, gid) = (request.header.uid, request.header.gid);
    NewInode { permissions: mode & PERMISSIONS, umask, uid, gid }
}
