//! The door of one filesystem: turns each FUSE request into calls of the library.
//!
//! | file | requests |
//! |---|---|
//! | `negotiation` | INIT |
//! | `names` | LOOKUP, FORGET, creating, renaming and removing names |
//! | `attributes` | GETATTR, SETATTR, STATX, STATFS |
//! | `xattrs` | extended attributes, SYNCFS |
//! | `listing` | OPENDIR, READDIR, READDIRPLUS, RELEASEDIR |
//! | `open` | OPEN, RELEASE; the open file of a request |
//! | `lane` | the path of file data: cached, uncached or direct |
//! | `data` | READ, FSYNC |
//! | `parts` | changes of data in parts, after the kernel has dropped its pages |
//! | `range_changes` | FALLOCATE, COPY_FILE_RANGE |
//! | `write` | WRITE |
//! | `seek` | LSEEK |
//! | `ioctl_defragment` | IOCTL: defragmentation of files |
//! | `ioctl_extents` | IOCTL: extents of a file, deduplication |
//! | `ioctl_flags` | IOCTL: inode flags (`chattr`) |
//! | `ioctl_info` | IOCTL: the volume and its devices |
//! | `ioctl_lookup` | IOCTL: lookups of subvolumes by any user |
//! | `ioctl_search` | IOCTL: searches of trees |
//! | `interrupts` | INTERRUPT |
//! | `ioctl_verity` | IOCTL: fs-verity |
//! | `ioctl_volume` | IOCTL: label, trim, shutdown |
//! | `ioctl_subvolume` | IOCTL: subvolumes and snapshots |
//! | `unsent` | data that the kernel has cached and not sent |
//! | `send_unsent` | which files may have such data, and replies that wait for it |
//! | `volume_syncs` | syncs of the volume that wait for that |
//! | `deferred` | replies that wait for the kernel's writeback, or take long |
//! | `name_invalidations` | names that the kernel forgets |
//! | `hidden_names` | names that programs do not see yet |
//! | `user_calls` | how many deferred calls of users run at a time; others are queued |
//! | `seal_hashers` | the threads that hash files for the seals of users |
//! | `user_limit` | how many calls of users that are not queued there may be |
//! | `access` | whether a caller may access a file, where the kernel has not checked it |
//! | `caller` | groups and capabilities of a caller |
//! | `checked_caller` | which mounts the caller of a change sees, and its descriptors |

mod access;
mod attributes;
pub(crate) mod caller;
mod checked_caller;
mod data;
mod deferred;
mod deleted_names;
pub(crate) mod hidden_names;
mod interrupts;
mod ioctl_defragment;
mod ioctl_extents;
mod ioctl_flags;
mod ioctl_info;
mod ioctl_lookup;
mod ioctl_search;
mod ioctl_subvolume;
mod ioctl_verity;
mod ioctl_volume;
mod lane;
mod listing;
mod lost_writes;
pub(crate) mod name_invalidations;
mod names;
pub(crate) mod negotiation;
mod open;
mod parts;
mod range_changes;
mod seal_hashers;
mod seek;
mod send_unsent;
mod unsent;
mod user_calls;
mod user_limit;
mod volume_syncs;
mod write;
mod xattrs;

use butternut::server::FilesystemExt;
use butternut_sys::lock::{Mutex, rank};
use std::error::Error as StdError;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use butternut::{Error, FileId, Filesystem};

use crate::connection;
use crate::connection::protocol::op;
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::hidden_names::HiddenNames;
use crate::door::lost_writes::LostWrites;
use crate::door::name_invalidations::NameInvalidations;
use crate::door::user_limit::UserLimit;
use crate::errno::{Errno, ErrnoResult};
use crate::handles::Handles;
use crate::handles::open_cache::OpenCache;
use crate::nodes::Nodes;
use crate::options::{Caching, Synchronous};

/// Called once, when an error or a panic has made the filesystem read-only.
pub type Report = Box<dyn Fn(&(dyn StdError + 'static)) + Send + Sync>;

/// Whether a worker sends the reply of a served request. `NoReply` stands for a request without a
/// reply, and for a deferred one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Reply,
    NoReply,
}

/// The options of a door.
pub(crate) struct DoorOptions {
    /// The kernel checks modes and ACLs.
    pub(crate) checks_permissions: bool,
    pub(crate) is_writable: bool,
    /// Users may delete subvolumes.
    pub(crate) users_delete_subvolumes: bool,
    pub(crate) caching: Caching,
    /// Every change of file data is durable before its call returns.
    pub(crate) is_synchronous: Synchronous,
    pub(crate) report: Report,
}

impl DoorOptions {
    /// Returns whether the kernel caches writes, and keeps the times and sizes of files.
    pub(crate) fn writes_back(&self) -> bool {
        self.is_writable && self.caching == Caching::WriteBack
    }
}

pub(crate) struct Door {
    filesystem: Filesystem,
    nodes: Arc<Nodes>,
    /// A deferred reply may keep them, and no other thread: the close waits for it first.
    handles: Arc<Handles>,
    /// Open files of a mount without handles.
    open_cache: OpenCache,
    listings: listing::Listings,
    options: DoorOptions,
    /// For notifications.
    device: Arc<OwnedFd>,
    /// The device number (major, minor) of the mount; `None` where it could not be read.
    device_number: Option<(u32, u32)>,
    has_reported: AtomicBool,
    lost_writes: LostWrites,
    /// WRITE requests that wait for the kernel to invalidate pages.
    invalidating_writes: Arc<AtomicU64>,
    /// Threads that wait for the kernel to forget the name of a file.
    forgetting_names: Arc<AtomicU64>,
    /// The kernel sends the long form of SETXATTR.
    has_long_setxattr: AtomicBool,
    deferred: Mutex<Vec<JoinHandle<()>>, rank::DeferredThreads>,
    user_calls: user_calls::UserCalls,
    defragmentations: user_calls::UserCalls,
    long_seals: user_calls::UserCalls,
    seal_hashers: seal_hashers::SealHashers,
    snapshots: user_calls::UserCalls,
    /// Switches of subvolumes between read-only and writable.
    subvolume_switches: user_calls::UserCalls,
    seeks: UserLimit,
    flag_changes: UserLimit,
    cleaning_waits: UserLimit,
    name_changes: UserLimit,
    volume_syncs: volume_syncs::VolumeSyncs,
    name_invalidations: NameInvalidations,
    hidden_names: HiddenNames,
    interrupts: interrupts::Interrupts,
    /// An ioctl has shut the volume down: nothing is written any more.
    is_shut_down: Arc<AtomicBool>,
}

/// Runs `answer`. A panic in it becomes `EIO` and makes the filesystem read-only.
fn guarded<T>(filesystem: &Filesystem, answer: impl FnOnce() -> ErrnoResult<T>) -> ErrnoResult<T> {
    // The filesystem does not write the state that a panic leaves half-changed, and the door has no
    // such state.
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
        filesystem.fail_after_panic();
        Err(Errno::EIO)
    })
}

impl Door {
    /// Creates the door of a filesystem. The root directory of the mount is `filesystem.root()`.
    pub(crate) fn new(
        filesystem: Filesystem,
        options: DoorOptions,
        device: Arc<OwnedFd>,
        device_number: Option<(u32, u32)>,
    ) -> Self {
        let nodes = Arc::new(Nodes::new(filesystem.root()));
        let name_invalidations = NameInvalidations::default();
        let hidden_names =
            HiddenNames::new(Arc::clone(&nodes), &device, name_invalidations.clone());
        Self {
            nodes,
            filesystem,
            handles: Arc::default(),
            open_cache: OpenCache::default(),
            listings: listing::Listings::default(),
            options,
            device,
            device_number,
            has_reported: AtomicBool::new(false),
            lost_writes: LostWrites::default(),
            invalidating_writes: Arc::default(),
            forgetting_names: Arc::default(),
            has_long_setxattr: AtomicBool::new(false),
            deferred: Mutex::default(),
            user_calls: user_calls::UserCalls::default(),
            defragmentations: user_calls::UserCalls::of_long_calls(),
            long_seals: user_calls::UserCalls::of_long_seals(),
            seal_hashers: seal_hashers::SealHashers::default(),
            snapshots: user_calls::UserCalls::of_long_calls(),
            subvolume_switches: user_calls::UserCalls::default(),
            seeks: UserLimit::with_lock(),
            flag_changes: UserLimit::with_lock(),
            cleaning_waits: UserLimit::of_cleaning(),
            name_changes: UserLimit::of_names(),
            volume_syncs: volume_syncs::VolumeSyncs::default(),
            name_invalidations,
            hidden_names,
            interrupts: interrupts::Interrupts::default(),
            is_shut_down: Arc::default(),
        }
    }

    /// Serves one request. A panic is answered with `EIO` and makes the filesystem read-only; the
    /// thread goes on with the next request, so no caller waits for ever.
    pub(crate) fn serve(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let result = guarded(&self.filesystem, || self.serve_request(request, reply));
        if result == Err(Errno::EIO) || result == Err(Errno::EROFS) {
            self.report();
        }
        result
    }

    fn serve_request(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<Outcome> {
        let opcode = request.header.opcode;
        if !self.is_served(opcode) {
            return Err(Errno::EIO);
        }
        match opcode {
            op::LSEEK => return self.seek(request, reply),
            op::IOCTL => return self.ioctl(request, reply),
            op::WRITE => return self.write(request, reply),
            op::STATFS => return self.statfs(request, reply),
            op::GETXATTR => return self.xattr(request, reply),
            op::SYNCFS => return self.sync_filesystem(request),
            op::FALLOCATE => return self.allocate(request, reply),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => return self.copy_range(request, reply),
            op::FORGET | op::BATCH_FORGET => {
                self.forget(request)?;
                return Ok(Outcome::NoReply);
            }
            op::INTERRUPT => {
                self.interrupt(request.take()?);
                return Ok(Outcome::NoReply);
            }
            // The door sends no NOTIFY_RETRIEVE.
            op::NOTIFY_REPLY => return Ok(Outcome::NoReply),
            _ => {}
        }
        self.serve_with_reply(opcode, request, reply).map(|()| Outcome::Reply)
    }

    fn serve_with_reply(
        &self,
        opcode: u32,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        match opcode {
            op::LOOKUP => self.lookup(request, reply),
            op::GETATTR => self.attributes(request, reply),
            op::SETATTR => self.set_attributes(request, reply),
            op::STATX => self.statx(request, reply),
            op::READLINK => reply.push_bytes(&self.filesystem.read_link(self.node(request)?)?),
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
            op::FSYNCDIR => Ok(self.filesystem.sync_directory(self.node(request)?)?),
            op::DESTROY => {
                self.destroy();
                Ok(())
            }
            op::SETXATTR => self.set_xattr(request),
            op::LISTXATTR => self.xattr_names(request, reply),
            op::REMOVEXATTR => self.remove_xattr(request),
            op::OPENDIR => self.open_directory(request, reply),
            op::READDIR | op::READDIRPLUS => self.list(request, reply),
            op::RELEASEDIR => self.release_directory(request),
            // FLUSH and ACCESS among others: the kernel does without them.
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Serves the last request of a mount of type `fuseblk`. umount(2) waits for the reply, and
    /// then the kernel releases the block device, so nothing may write to it any more. The kernel
    /// ignores the result: errors are left for [`Self::close`].
    fn destroy(&self) {
        // No FORGET follows, and a pin keeps a removed directory.
        self.nodes.clear();
        self.filesystem.end_writes();
    }

    /// Returns the file that a request is about.
    fn node(&self, request: &Request<'_>) -> ErrnoResult<FileId> {
        self.file_id(request.header.nodeid)
    }

    fn file_id(&self, node: u64) -> ErrnoResult<FileId> {
        let unknown = Error::Stale { id: FileId::new(0, node) };
        self.nodes.file_id(node).ok_or(unknown.into())
    }

    /// Reports once why the volume has become read-only.
    fn report(&self) {
        if let Some(error) = self.filesystem.write_error()
            && !self.has_reported.swap(true, Ordering::AcqRel)
        {
            (self.options.report)(&error);
        }
    }

    /// Returns the names that programs do not see yet.
    pub(crate) fn hidden_names(&self) -> HiddenNames {
        self.hidden_names.clone()
    }

    /// Returns the waits for names that the kernel forgets, for an end of the process without
    /// [`Self::close`].
    pub(crate) fn name_invalidations(&self) -> NameInvalidations {
        self.name_invalidations.clone()
    }

    /// Returns whether the mount is synchronous.
    pub(crate) fn synchronous(&self) -> Synchronous {
        self.options.is_synchronous.clone()
    }

    /// Makes the kernel fetch the attributes of a file again.
    fn invalidate_attributes(&self, node: u64) {
        connection::invalidate_attributes(&self.device, node);
    }

    /// Commits. The close returns the same errors again: the result of this may reach no caller.
    pub(crate) fn commit(&self) -> butternut::Result<()> {
        self.filesystem.sync_and_keep_errors()
    }

    /// Waits for deferred replies, closes all open files and closes the filesystem.
    pub(crate) fn close(self) -> butternut::Result<()> {
        let Self { filesystem, nodes, handles, open_cache, deferred, .. } = self;
        // A deferred reply may wait for a file to be closed, which is closed below, or for a lock
        // of the kernel, which a program may hold for any time.
        self.interrupts.end();
        self.name_invalidations.end();
        let short = [self.user_calls, self.subvolume_switches];
        let long = [self.snapshots, self.defragmentations, self.long_seals];
        for calls in short.into_iter().chain(long) {
            calls.end().into_iter().for_each(|call| call(Err(Errno::EIO)));
        }
        // No caller is left, and the close commits.
        drop(self.volume_syncs.end());
        let deferred = deferred.into_inner();
        if deferred.iter().any(|thread| !thread.is_finished()) {
            // What was written is not to wait for them. The close returns the errors.
            filesystem.sync_and_keep_errors().unwrap_or_default();
        }
        Self::join_deferred(deferred);
        // Others share the nodes (`hidden_names`). A pin of a removed directory deletes it when it
        // is dropped, which must precede the last commit.
        nodes.clear();
        drop((nodes, handles, open_cache));
        filesystem.close()
    }
}
