//! Requests: one line per operation. What a line does is below it; what it means, the library says.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use butternut::{DirEntry, Error, File, FileId, Filesystem, ReadAt, Result};
use butternut_sys::buffer::Buffer;
use fuser::{
    AccessFlags, Errno, FileHandle, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::ids::Ids;
use crate::recent::Recent;
use crate::replies::{self, FOR_GOOD};
use crate::session::DAEMON_XATTR;

/// The largest read that the kernel may ask for.
pub(crate) const READ_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have in flight for readahead and asynchronous reads.
const BACKGROUND_MAX: u16 = 256;

/// `lseek`'s two questions.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The door of one filesystem.
pub(crate) struct Door {
    filesystem: Filesystem,
    ids: Ids,
    recent: Recent,
    posix_acls: bool,
}

thread_local! {
    /// Where a worker reads into: the memory that the reply is sent from.
    static READ_BUFFER: RefCell<Buffer> = RefCell::new(Buffer::zeroed(READ_BYTES_MAX as usize));
}

impl Door {
    pub(crate) fn new(filesystem: Filesystem, posix_acls: bool) -> Self {
        let ids = Ids::new(filesystem.root());
        Self { filesystem, ids, recent: Recent::default(), posix_acls }
    }

    fn id(&self, node: INodeNo) -> Result<FileId> {
        let unknown = Error::Stale { id: FileId::new(0, node.0) };
        self.ids.id(node.0).ok_or(unknown)
    }

    fn negotiate(&self, config: &mut KernelConfig) {
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        ];
        let acls = self.posix_acls.then_some(InitFlags::FUSE_POSIX_ACL);
        for flag in wanted.into_iter().chain(acls) {
            // An older kernel goes without, and is slower.
            config.add_capabilities(flag).unwrap_or_default();
        }
        // Each takes the nearest value where the kernel has a lower limit.
        if let Err(nearest) = config.set_max_write(READ_BYTES_MAX) {
            config.set_max_write(nearest).unwrap_or_default();
        }
        if let Err(nearest) = config.set_max_readahead(READ_BYTES_MAX) {
            config.set_max_readahead(nearest).unwrap_or_default();
        }
        config.set_max_background(BACKGROUND_MAX).unwrap_or_default();
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<Option<butternut::Stat>> {
        let parent = self.id(parent)?;
        // The kernel asks for "." of files too, when it has only a node id.
        let found =
            if name == "." { Ok(parent) } else { self.filesystem.lookup(parent, name.as_bytes()) };
        match found {
            Ok(id) => self.filesystem.stat(id).map(Some),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_into(&self, node: INodeNo, offset: u64, memory: &mut [u8]) -> Result<usize> {
        let file = self.recent.file(node.0, || self.filesystem.open_file(self.id(node)?))?;
        read_whole(&file, offset, memory)
    }

    fn seek(&self, node: INodeNo, offset: i64, whence: i32) -> Result<Option<u64>> {
        let bad = Error::InvalidArgument { what: "seek" };
        let offset = u64::try_from(offset).map_err(|_| bad)?;
        let file = self.filesystem.open_file(self.id(node)?)?;
        match whence {
            SEEK_DATA => file.seek_data(offset),
            SEEK_HOLE => file.seek_hole(offset),
            _ => Err(Error::InvalidArgument { what: "seek" }),
        }
    }

    fn attribute(&self, node: INodeNo, name: &OsStr) -> Result<Vec<u8>> {
        if name == DAEMON_XATTR {
            return Ok(std::process::id().to_string().into_bytes());
        }
        self.filesystem.xattr(self.id(node)?, name.as_bytes())
    }

    fn attribute_names(&self, node: INodeNo) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        for name in self.filesystem.xattr_names(self.id(node)?)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    /// Hands the entries from `cookie` on to `add` until it is full.
    fn entries(
        &self,
        node: INodeNo,
        cookie: u64,
        mut add: impl FnMut(DirEntry) -> Result<bool>,
    ) -> Result<()> {
        for entry in self.filesystem.read_dir(self.id(node)?, cookie)? {
            if add(entry?)? {
                break;
            }
        }
        Ok(())
    }

    fn add_plus(&self, reply: &mut ReplyDirectoryPlus, entry: &DirEntry) -> bool {
        // Without attributes the name is still shown; whoever asks for the file gets its error.
        let Ok(stat) = self.filesystem.stat(entry.id) else { return add_bare(reply, entry) };
        let is_dots = entry.name == b"." || entry.name == b"..";
        // The kernel does not count dots as told.
        let number = if is_dots { entry.id.as_u64() } else { self.ids.tell(entry.id) };
        let attributes = replies::attributes(&stat, number);
        let generation = Generation(stat.generation);
        let name = OsStr::from_bytes(&entry.name);
        let full =
            reply.add(INodeNo(number), entry.cookie, name, &FOR_GOOD, &attributes, generation);
        if full && !is_dots {
            self.ids.forget(number, 1);
        }
        full
    }
}

/// Fills `memory` up to the end of the file. The kernel takes a short answer for the end, so what
/// is damaged must be an error; it then asks again for the single pages that it needs.
///
/// The kernel reads ahead on its own, and several threads serve it: each reads straight into its
/// reply. Going through the library's readahead as well would only copy everything once more.
fn read_whole(file: &File, offset: u64, memory: &mut [u8]) -> Result<usize> {
    let mut read = 0;
    while read < memory.len() {
        let mut one = [ReadAt::new(offset + read as u64, &mut memory[read..])];
        file.read_many(&mut one);
        let [one] = one;
        match one.result? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// An entry without attributes: the kernel looks the name up when it needs them.
fn add_bare(reply: &mut ReplyDirectoryPlus, entry: &DirEntry) -> bool {
    let mut attributes = replies::nothing();
    attributes.kind = replies::kind(entry.kind);
    let name = OsStr::from_bytes(&entry.name);
    reply.add(INodeNo(0), entry.cookie, name, &FOR_GOOD, &attributes, Generation(0))
}

/// Replies with bytes in the way of extended attributes: 0 asks for their number.
fn send_sized(reply: ReplyXattr, size: u32, value: Result<Vec<u8>>) {
    match value {
        Ok(value) => match u32::try_from(value.len()) {
            Ok(bytes) if size == 0 => reply.size(bytes),
            Ok(bytes) if bytes <= size => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
        Err(error) => reply.error(replies::errno(&error)),
    }
}

impl fuser::Filesystem for Door {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(Some(stat)) => {
                let attributes = replies::attributes(&stat, self.ids.tell(stat.id));
                reply.entry(&FOR_GOOD, &attributes, Generation(stat.generation));
            }
            Ok(None) => reply.entry(&FOR_GOOD, &replies::nothing(), Generation(0)),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        self.ids.forget(node.0, count);
        self.recent.forget(node.0);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.id(node).and_then(|id| self.filesystem.stat(id)) {
            Ok(stat) => reply.attr(&FOR_GOOD, &replies::attributes(&stat, stat.id.as_u64())),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.id(node).and_then(|id| self.filesystem.read_link(id)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }

    /// Opening is not needed, and the kernel keeps what it has read.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let memory = &mut buffer.whole_mut()[..size.min(READ_BYTES_MAX) as usize];
            match self.read_into(node, offset, memory) {
                Ok(read) => reply.data(&memory[..read]),
                Err(error) => reply.error(replies::errno(&error)),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.entries(node, cookie, |entry| {
            let (number, kind) = (INodeNo(entry.id.as_u64()), replies::kind(entry.kind));
            Ok(reply.add(number, entry.cookie, kind, OsStr::from_bytes(&entry.name)))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.entries(node, cookie, |entry| Ok(self.add_plus(&mut reply, &entry))) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.filesystem.statfs() {
            Ok(of) => reply.statfs(
                of.blocks,
                of.blocks_free,
                of.blocks_available,
                of.files,
                of.files_free,
                of.block_bytes,
                of.name_bytes_max,
                of.block_bytes,
            ),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        send_sized(reply, size, self.attribute(node, name));
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        send_sized(reply, size, self.attribute_names(node));
    }

    /// Asked only where the kernel does not check permissions: then whoever is let in may look.
    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek(node, offset, whence) {
            Ok(Some(at)) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(replies::errno(&error)),
        }
    }
}
