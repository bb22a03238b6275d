//! The door of one filesystem: requests in, replies out. What a request means, the library says.
//!
//! | file | requests |
//! |---|---|
//! | `negotiation` | INIT |
//! | `names` | LOOKUP, what makes and takes names, FORGET |
//! | `attributes` | GETATTR, SETATTR, STATX, STATFS |
//! | `xattrs` | extended attributes |
//! | `listing` | OPENDIR, READDIR, READDIRPLUS, RELEASEDIR |
//! | `open` | OPEN, RELEASE; how the file of a request was opened |
//! | `lane` | which way bytes go |
//! | `data` | READ, FALLOCATE, COPY_FILE_RANGE, FSYNC |
//! | `write` | WRITE |
//! | `seek` | LSEEK |
//! | `flags` | IOCTL: the flags of `chattr` |
//! | `volume_calls` | IOCTL: label, discard, shutdown |
//! | `aside` | what waits for the kernel's cache |

mod aside;
mod attributes;
mod data;
mod flags;
mod lane;
mod listing;
mod names;
pub(crate) mod negotiation;
mod open;
mod seek;
mod volume_calls;
mod write;
mod xattrs;

use std::error::Error as StdError;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use butternut::{Error, FileId, Filesystem};

use crate::connection;
use crate::handles::Handles;
use crate::nodes::Nodes;
use crate::options::Caching;
use crate::recent::Recent;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::op;

/// Called once, when the volume becomes read-only because something went wrong.
pub type Report = Box<dyn Fn(&(dyn StdError + 'static)) + Send + Sync>;

/// Whether the kernel waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Reply,
    Nothing,
}

/// How the door behaves.
pub(crate) struct Manner {
    /// The kernel checks permissions and ACLs.
    pub(crate) checks_permissions: bool,
    pub(crate) is_writable: bool,
    pub(crate) caching: Caching,
    pub(crate) report: Report,
}

impl Manner {
    /// The kernel holds back what programs write, and keeps the times and the sizes of files.
    pub(crate) fn writes_back(&self) -> bool {
        self.is_writable && self.caching == Caching::WriteBack
    }
}

pub(crate) struct Door {
    filesystem: Filesystem,
    nodes: Nodes,
    handles: Handles,
    /// Of a mount where nothing is opened.
    recent: Recent,
    listings: listing::Listings,
    manner: Manner,
    /// For telling the kernel something unasked.
    device: Arc<OwnedFd>,
    has_reported: AtomicBool,
    /// Writes from the kernel's cache that failed. The kernel does not send them again.
    lost_writes: AtomicU64,
    /// Writes that wait for the kernel to drop pages.
    waiting_writes: Arc<AtomicU64>,
    /// The kernel sends the longer form of SETXATTR.
    has_long_setxattr: AtomicBool,
    aside: Mutex<Vec<JoinHandle<()>>>,
    /// The volume was shut down by a caller: nothing is written any more.
    is_shut_down: Arc<AtomicBool>,
}

/// Runs what answers a request. A panic is an answer too: `EIO`, and nothing is written any more.
fn guarded<T>(filesystem: &Filesystem, answer: impl FnOnce() -> Answer<T>) -> Answer<T> {
    // What a panic leaves half-done in memory is not written, and is not looked at by the door.
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
        filesystem.fail_after_panic();
        Err(Refusal::IO)
    })
}

impl Door {
    /// Serves the directory `root` of a filesystem, and what is below.
    pub(crate) fn new(
        filesystem: Filesystem,
        root: FileId,
        manner: Manner,
        device: Arc<OwnedFd>,
    ) -> Self {
        Self {
            nodes: Nodes::new(root),
            filesystem,
            handles: Handles::default(),
            recent: Recent::default(),
            listings: listing::Listings::default(),
            manner,
            device,
            has_reported: AtomicBool::new(false),
            lost_writes: AtomicU64::new(0),
            waiting_writes: Arc::default(),
            has_long_setxattr: AtomicBool::new(false),
            aside: Mutex::default(),
            is_shut_down: Arc::default(),
        }
    }

    /// Answers one request. One that panics is refused with `EIO`, and nothing is written any more:
    /// the thread goes on with the next request, and no caller waits for ever.
    pub(crate) fn serve(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let answer = guarded(&self.filesystem, || self.serve_request(request, reply));
        if answer == Err(Refusal::IO) || answer == Err(Refusal::READ_ONLY) {
            self.report();
        }
        answer
    }

    fn serve_request(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let opcode = request.header.opcode;
        if !self.is_served(opcode) {
            return Err(Refusal::IO);
        }
        match opcode {
            op::LSEEK => return self.seek(request, reply),
            op::IOCTL => return self.ioctl(request, reply),
            op::WRITE => return self.write(request, reply),
            op::STATFS => return self.statfs(request, reply),
            op::FORGET | op::BATCH_FORGET => {
                self.forget(request)?;
                return Ok(Wanted::Nothing);
            }
            // Nothing takes long enough to be interrupted, and nothing was asked of the kernel.
            op::INTERRUPT | op::NOTIFY_REPLY => return Ok(Wanted::Nothing),
            _ => {}
        }
        self.answer(opcode, request, reply).map(|()| Wanted::Reply)
    }

    fn answer(&self, opcode: u32, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        match opcode {
            op::LOOKUP => self.lookup(request, reply),
            op::GETATTR => self.attributes(request, reply),
            op::SETATTR => self.set_attributes(request, reply),
            op::STATX => self.statx(request, reply),
            op::READLINK => reply.data(&self.filesystem.read_link(self.node(request)?)?),
            op::SYMLINK => self.symlink(request, reply),
            op::MKNOD => self.mknod(request, reply),
            op::MKDIR => self.mkdir(request, reply),
            op::CREATE => self.create(request, reply),
            op::TMPFILE => self.tmpfile(request, reply),
            op::LINK => self.link(request, reply),
            op::UNLINK => Ok(self.filesystem.unlink(self.node(request)?, request.name()?)?),
            op::RMDIR => Ok(self.filesystem.rmdir(self.node(request)?, request.name()?)?),
            op::RENAME | op::RENAME2 => self.rename(request),
            op::OPEN => self.open(request, reply),
            op::READ => self.read(request, reply),
            op::RELEASE => self.release(request),
            op::FSYNC => self.sync(request),
            // The last request of all, where there is one, is DESTROY: who unmounts waits for it.
            // Nothing sees its answer, and a program that syncs a directory asks for names: neither
            // takes a loss of data from those who are to be told of it.
            op::FSYNCDIR | op::DESTROY => Ok(self.filesystem.sync_names()?),
            op::SYNCFS => Ok(self.filesystem.sync()?),
            op::FALLOCATE => self.allocate(request),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => self.copy_range(request, reply),
            op::SETXATTR => self.set_xattr(request),
            op::GETXATTR => self.xattr(request, reply),
            op::LISTXATTR => self.xattr_names(request, reply),
            op::REMOVEXATTR => self.remove_xattr(request),
            op::OPENDIR => self.open_directory(request, reply),
            op::READDIR | op::READDIRPLUS => self.list(request, reply),
            op::RELEASEDIR => self.release_directory(request),
            // Among them FLUSH and ACCESS, which the kernel knows to do without.
            _ => Err(Refusal::NO_CALL),
        }
    }

    /// The file that a request is about.
    fn node(&self, request: &Request<'_>) -> Answer<FileId> {
        self.id(request.header.nodeid)
    }

    fn id(&self, node: u64) -> Answer<FileId> {
        let unknown = Error::Stale { id: FileId::new(0, node) };
        self.nodes.id(node).ok_or(unknown.into())
    }

    /// Says why the volume is read-only, if it was not opened so.
    fn report(&self) {
        if let Some(error) = self.filesystem.write_error()
            && !self.has_reported.swap(true, Ordering::AcqRel)
        {
            (self.manner.report)(&error);
        }
    }

    /// Has the kernel ask for a file's attributes again.
    fn invalidate_attributes(&self, node: u64) {
        connection::invalidate_attributes(&self.device, node);
    }

    /// Has the kernel send the changed pages of every file that is open for writing, and waits
    /// for that. Other threads take them.
    pub(crate) fn take_pages(&self) {
        for id in self.handles.written() {
            connection::write_pages_back(&self.device, self.nodes.number(id));
        }
    }

    /// Brings down what was written.
    pub(crate) fn commit(&self) -> butternut::Result<()> {
        self.filesystem.sync_untold()
    }

    /// Lets go of everything that is open, and of the filesystem.
    pub(crate) fn close(self) -> butternut::Result<()> {
        let Self { filesystem, nodes, handles, recent, aside, .. } = self;
        Self::end_aside(aside.into_inner().unwrap_or_else(PoisonError::into_inner));
        drop((nodes, handles, recent));
        filesystem.close()
    }
}
