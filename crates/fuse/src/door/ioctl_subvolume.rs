//! IOCTL: subvolumes, by the calls of the kernel's btrfs.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | `SUBVOL_CREATE`, `_V2` | may write to the directory | creates an empty subvolume |
//! | `SNAP_CREATE`, `_V2` | as above, and may change the source | creates a snapshot |
//! | `SNAP_DESTROY`, `_V2` | law 2 | deletes a subvolume |
//! | `SUBVOL_GETFLAGS`, `GET_SUBVOL_INFO` | any caller | tells of a subvolume |
//! | `SUBVOL_SETFLAGS` | owner, `CAP_FOWNER` or administrator | makes it read-only, or writable |
//! | `DEFAULT_SUBVOL` | administrator | sets the default subvolume |
//! | `SUBVOL_SYNC_WAIT` | any caller | waits until deleted subvolumes are freed |
//!
//! 1. The VFS checks nothing for these calls: a caller that can open a directory for reading can
//!    send them. So each change checks its caller here, as kernel btrfs does.
//! 2. Only an administrator deletes subvolumes; with `user_subvol_rm_allowed` also the owner of a
//!    subvolume that may write to its directory. Where the mount checks no permissions, the user
//!    that mounted is an administrator.
//! 3. Writes that the kernel has cached and not sent are in a snapshot: they are sent first, and
//!    the call fails if one of them is lost. With write-back caching, the kernel does not send the
//!    times of a file with its data: a file that was written since the kernel sent its times has
//!    the new data and the old times in the snapshot. A subvolume becomes read-only only while no
//!    file of it is open for writing, so there are no writes that it would refuse
//!    ([`write_gates`]).
//! 4. The source of a snapshot is a descriptor of the caller, which must be on this mount
//!    ([`checked_caller`]).
//! 5. The calls commit, so their replies are deferred. The kernel forgets the name that has changed
//!    before the reply is sent, unless the mount ends ([`name_invalidations`]): it holds no inode
//!    lock during these calls. A program may hold the lock of the directory for any time, so few
//!    calls of a user wait for it, and further ones fail with EAGAIN ([`user_limit`]).
//! 6. The thread of the reply checks through which mounts the caller sees the volume, before it
//!    changes anything ([`checked_caller`]).
//! 7. The kernel copies nothing back of the arguments of `SUBVOL_SYNC_WAIT`, so those of its modes
//!    that return a number are not served. Programs search the root tree then.
//! 8. A deletion is of the subvolume that the caller was checked for, also if its name is another
//!    subvolume's by then.
//! 9. FUSE does not pass on what the kernel's flag for quota groups points to. Another flag has
//!    their ids in the arguments. As in the kernel, any caller may use it.
//! 10. A flag of `SNAP_CREATE_V2` that kernel btrfs refuses makes a recursive snapshot. Its caller
//!     must be able to change every subvolume that is in it.
//! 11. After a deleted subvolume, the kernel forgets the names of what is in use in it
//!     ([`deleted_names`]), so that it is freed when its last user has ended. The caller does not
//!     wait for that: a program may hold the lock of a directory in it.
//! 12. The order of the checks is the kernel's: the directory, the form of the name, the source of
//!     a snapshot (owner first), and what looking up the name finds.
//!
//! [`write_gates`]: crate::handles::write_gates
//! [`checked_caller`]: crate::door::checked_caller
//! [`name_invalidations`]: crate::door::name_invalidations
//! [`user_limit`]: crate::door::user_limit
//! [`deleted_names`]: crate::door::deleted_names

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use butternut::format::quota::QgroupId;
use butternut::server::FilesystemExt;
use butternut::{
    Error, FileId, FileKind, Filesystem, RecursiveSnapshot, SnapshotAccess, SubvolumeInfo,
    TOP_LEVEL, Time,
};
use butternut_sys::subvolume_calls;
use zerocopy::{FromBytes, IntoBytes};

use crate::connection;
use crate::connection::protocol::{IoctlIn, IoctlOut, SubvolumeWait};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::name_invalidations::NamesBelow;
use crate::door::names::new_inode;
use crate::door::user_calls::UserCalls;
use crate::door::{Door, Outcome, caller};
use crate::errno::{Errno, ErrnoResult};

const CREATE: u32 = 0x5000_940e;
const CREATE_2: u32 = 0x5000_9418;
const SNAPSHOT: u32 = 0x5000_9401;
const SNAPSHOT_2: u32 = 0x5000_9417;
const DESTROY: u32 = 0x5000_940f;
const DESTROY_2: u32 = 0x5000_943f;
const SET_DEFAULT: u32 = 0x4008_9413;
const GET_FLAGS: u32 = 0x8008_9419;
const SET_FLAGS: u32 = 0x4008_941a;
const GET_INFO: u32 = 0x81f8_943c;
const SYNC_WAIT: u32 = 0x4010_9441;

/// Flags of arguments and of a subvolume.
const READ_ONLY: u64 = 1 << 1;
/// Of `SNAP_CREATE_V2`, and only here (law 10).
const RECURSIVE: u64 = subvolume_calls::RECURSIVE;
/// Of `SUBVOL_CREATE_V2` and `SNAP_CREATE_V2`, and only here (law 9).
const IN_QGROUPS: u64 = subvolume_calls::IN_QGROUPS;
const BY_ID: u64 = 1 << 4;

/// Modes of `SUBVOL_SYNC_WAIT` (law 7).
const FOR_ONE: u32 = 0;
const FOR_ALL: u32 = 1;
/// The range of ids of subvolumes that can be deleted, and 0.
const FIRST_ID: u64 = 256;
const LAST_ID: u64 = u64::MAX - 255;

/// Mode of a new subvolume, without the umask of the caller.
const PERMISSIONS: u32 = 0o777;
const STICKY: u32 = 0o1000;
/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Size of the result of `GET_SUBVOL_INFO`, in bytes, and of the name in it.
const INFO_BYTES: usize = 504;
const INFO_NAME_BYTES: usize = 256;

/// `struct btrfs_ioctl_vol_args` and `btrfs_ioctl_vol_args_v2`, which have one size.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    const BYTES: u32 = 4096;

    fn take(request: &mut Request<'a>) -> ErrnoResult<Self> {
        request.data(Self::BYTES).map(Self)
    }

    fn word(&self, at: usize) -> u64 {
        let word = self.0.get(at..).and_then(|bytes| u64::read_from_prefix(bytes).ok());
        word.map_or(0, |(word, _)| word)
    }

    /// The descriptor of a source.
    fn fd(&self) -> u64 {
        self.word(0)
    }

    fn flags_2(&self) -> u64 {
        self.word(16)
    }

    fn id_2(&self) -> u64 {
        self.word(56)
    }

    fn name(&self) -> Name<'a> {
        Name::until_zero(&self.0[8..])
    }

    fn name_2(&self) -> Name<'a> {
        Name::until_zero(&self.0[56..])
    }

    /// The quota groups of a new subvolume (law 9).
    fn qgroups(&self) -> ErrnoResult<Vec<QgroupId>> {
        const AT: usize = subvolume_calls::QGROUPS_AT;
        if self.flags_2() & IN_QGROUPS == 0 {
            return Ok(Vec::new());
        }
        let count = usize::try_from(self.word(AT)).unwrap_or(usize::MAX);
        if count > subvolume_calls::QGROUPS_MAX {
            return Err(Errno::EINVAL);
        }
        Ok((1..=count).map(|number| QgroupId(self.word(AT + number * size_of::<u64>()))).collect())
    }
}

/// Names that the kernel is to forget, each with the node id of its directory.
type Names = Vec<(u64, Vec<u8>)>;

/// A name in the arguments (law 12).
#[derive(Clone, Copy)]
struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    fn until_zero(bytes: &'a [u8]) -> Self {
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Self(&bytes[..len])
    }

    /// Checks the form of the name of a new subvolume.
    fn check_new(self) -> ErrnoResult<()> {
        match self.0 {
            name if name.contains(&b'/') => Err(Errno::EINVAL),
            b"." | b".." => Err(Errno::EEXIST),
            _ => Ok(()),
        }
    }

    /// Checks the form of the name of a subvolume to delete.
    fn check_old(self) -> ErrnoResult<()> {
        match self.0 {
            name if name.contains(&b'/') || name == b".." => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Returns the name, if it can be looked up.
    fn to_look_up(self) -> ErrnoResult<Vec<u8>> {
        match self.0 {
            b"" | b"." => Err(Errno::EACCES),
            name if name.len() > NAME_BYTES_MAX => Err(Errno::ENAMETOOLONG),
            name => Ok(name.to_vec()),
        }
    }
}

impl Door {
    /// Serves a call about a subvolume. Returns `None` for every other call.
    pub(super) fn subvolume_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Option<ErrnoResult<Outcome>> {
        Some(match call.cmd {
            CREATE => self.create_subvolume(request),
            CREATE_2 => self.create_subvolume_2(request),
            SNAPSHOT => self.snapshot(request),
            SNAPSHOT_2 => self.snapshot_2(request),
            DESTROY => self.delete_subvolume(request),
            DESTROY_2 => self.delete_subvolume_2(request),
            SET_DEFAULT => self.set_default_subvolume(request),
            SET_FLAGS => self.set_subvolume_flags(request),
            SYNC_WAIT => self.wait_until_cleaned(request),
            GET_FLAGS => self.subvolume_flags(request, reply).map(|()| Outcome::Reply),
            GET_INFO => self.subvolume_info(request, reply).map(|()| Outcome::Reply),
            _ => return None,
        })
    }

    fn create_subvolume(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        self.require_directory(request)?;
        let name = Arguments::take(request)?.name();
        self.create_named(request, name, Vec::new())
    }

    fn create_subvolume_2(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        self.require_directory(request)?;
        let arguments = Arguments::take(request)?;
        if arguments.flags_2() & !IN_QGROUPS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        self.create_named(request, arguments.name_2(), arguments.qgroups()?)
    }

    fn create_named(
        &self,
        request: &Request<'_>,
        name: Name<'_>,
        qgroups: Vec<QgroupId>,
    ) -> ErrnoResult<Outcome> {
        name.check_new()?;
        let (name, dir) = (name.to_look_up()?, self.node(request)?);
        self.may_write_to_directory(&request.header, dir)?;
        let umask = caller::umask(&request.header);
        let new = new_inode(request, PERMISSIONS, umask);
        self.change_name(&self.user_calls, request, name, move |filesystem, name| {
            Ok(filesystem.create_subvolume_in_qgroups(dir, name, &new, &qgroups).map(drop)?)
        })
    }

    fn snapshot(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        self.require_directory(request)?;
        let arguments = Arguments::take(request)?;
        self.snapshot_named(request, (arguments.fd(), arguments.name()), 0, Vec::new())
    }

    fn snapshot_2(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        self.require_directory(request)?;
        let arguments = Arguments::take(request)?;
        let flags = arguments.flags_2();
        if flags & !(READ_ONLY | RECURSIVE | IN_QGROUPS) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (source, qgroups) = ((arguments.fd(), arguments.name_2()), arguments.qgroups());
        self.snapshot_named(request, source, flags, qgroups?)
    }

    /// Makes a snapshot of the subvolume of a descriptor, under a name.
    fn snapshot_named(
        &self,
        request: &Request<'_>,
        (fd, name): (u64, Name<'_>),
        flags: u64,
        qgroups: Vec<QgroupId>,
    ) -> ErrnoResult<Outcome> {
        name.check_new()?;
        let name = name.to_look_up();
        let dir = self.node(request)?;
        self.may_write_to_directory(&request.header, dir)?;
        let is_read_only = flags & READ_ONLY != 0;
        let access =
            if is_read_only { SnapshotAccess::ReadOnly } else { SnapshotAccess::ReadWrite };
        let is_recursive = flags & RECURSIVE != 0;
        let caller = self.checked_caller(request);
        let (nodes, unsent) = (Arc::clone(&self.nodes), self.unsent_files());
        // From now on, also while the call is queued.
        let losses = self.lost_writes.watch();
        let device = Arc::clone(request.device);
        // The name that the kernel is to forget if the call succeeds.
        let changed = name.clone().unwrap_or_default();
        self.change_name(&self.snapshots, request, changed, move |filesystem, _| {
            let node = caller.node_of_descriptor(fd).map_err(|errno| match errno {
                Errno::EBADF => Errno::EINVAL,
                errno => errno,
            })?;
            let source = nodes.file_id(node).ok_or(Errno::ESTALE)?;
            if !caller.owns(filesystem, source)? {
                return Err(Errno::EPERM);
            }
            if !source.is_subvolume_root() {
                return Err(Errno::EINVAL);
            }
            let name = name?;
            let name = &name[..];
            let source = source.subvolume;
            let send = |sources: &HashSet<u64>| {
                unsent.of_subvolumes(sources).send(&device);
                losses.check_subvolumes(sources)
            };
            if !is_recursive {
                send(&[source].into())?;
                let made = filesystem.snapshot_in_qgroups(source, (dir, name), access, &qgroups);
                return Ok(made.map(drop)?);
            }
            // Law 10.
            let sources = filesystem.subvolumes_below(source)?.into_iter().collect();
            send(&sources)?;
            let options = RecursiveSnapshot::new(access).owned_by(caller.limited_to_owner());
            let at = (dir, name);
            let made = filesystem.snapshot_recursive_in_qgroups(source, at, options, &qgroups);
            Ok(made.map(drop)?)
        })
    }

    fn delete_subvolume(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let name = Arguments::take(request)?.name();
        self.delete_entry(request, name)
    }

    fn delete_entry(&self, request: &Request<'_>, name: Name<'_>) -> ErrnoResult<Outcome> {
        name.check_old()?;
        self.require_directory(request)?;
        self.delete_name(request, self.node(request)?, name.to_look_up()?, None)
    }

    fn delete_subvolume_2(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let arguments = Arguments::take(request)?;
        match arguments.flags_2() {
            0 => return self.delete_entry(request, arguments.name_2()),
            BY_ID => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        // The name may be in a directory that the caller could not reach.
        if !self.is_administrator(request) {
            return Err(Errno::EPERM);
        }
        let found = self.filesystem.subvolume(arguments.id_2())?;
        let parent = found.parent.ok_or(Errno::ENOENT)?;
        self.delete_name(request, FileId::new(parent, found.dir), found.name, Some(found.id))
    }

    /// Deletes the subvolume of a name, which is the one that was checked (law 8).
    fn delete_name(
        &self,
        request: &Request<'_>,
        dir: FileId,
        name: Vec<u8>,
        wanted: Option<u64>,
    ) -> ErrnoResult<Outcome> {
        let is_administrator = self.is_administrator(request);
        if !is_administrator {
            self.may_delete_in(request, dir)?;
        }
        let root = self.filesystem.lookup(dir, &name)?;
        if !is_administrator {
            // The kernel checks less of what is no subvolume, and in this order.
            if root.subvolume == dir.subvolume {
                return Err(Errno::EINVAL);
            }
            self.may_delete(request, dir, root)?;
        }
        if self.filesystem.stat(root)?.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let id = wanted.unwrap_or(root.subvolume);
        let node = self.nodes.node_id(dir);
        let (used, nodes) = (self.names_to_delete(id), Arc::clone(&self.nodes));
        self.change_name_in(&self.user_calls, request, (node, name), move |filesystem, name| {
            // Law 11.
            let used = used.look_up(filesystem, &nodes);
            filesystem.delete_subvolume_of_id(dir, name, id)?;
            Ok(used)
        })
    }

    /// Checks that a caller that is no administrator may delete subvolumes of a directory (law 2).
    fn may_delete_in(&self, request: &Request<'_>, dir: FileId) -> ErrnoResult<()> {
        if !self.options.users_delete_subvolumes {
            return Err(Errno::EPERM);
        }
        self.may_write_to_directory(&request.header, dir)
    }

    /// Checks that a caller that is no administrator may delete a subvolume (law 2).
    fn may_delete(&self, request: &Request<'_>, dir: FileId, root: FileId) -> ErrnoResult<()> {
        self.may_write_to_directory(&request.header, root)?;
        let (above, below) = (self.filesystem.stat(dir)?, self.filesystem.stat(root)?);
        let is_sticky = above.mode & STICKY != 0;
        let owners = [above.uid, below.uid];
        if is_sticky && !owners.iter().any(|uid| caller::is_owner(&request.header, *uid)) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    fn set_default_subvolume(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        if !self.is_administrator(request) {
            return Err(Errno::EPERM);
        }
        let id: u64 = request.take()?;
        let id = if id == 0 { TOP_LEVEL } else { id };
        let (caller, filesystem) = (self.checked_caller(request), self.filesystem.clone());
        self.reply_deferred(request, size_of::<IoctlOut>(), move |reply| {
            caller.may_change()?;
            filesystem.set_default_subvolume(id)?;
            reply.push(&IoctlOut::default())
        })
    }

    fn wait_until_cleaned(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let wait: SubvolumeWait = request.take()?;
        let is_id = wait.id == 0 || (FIRST_ID..=LAST_ID).contains(&wait.id);
        let ids = match wait.mode {
            FOR_ONE if !is_id => return Err(Errno::EINVAL),
            FOR_ONE => vec![self.filesystem.subvolume(wait.id)?.id],
            FOR_ALL => self.filesystem.deleted_subvolumes()?,
            _ => return Err(Errno::ENOTTY),
        };
        if ids.is_empty() {
            return Err(Errno::ENOENT);
        }
        let filesystem = self.filesystem.clone();
        let counted = self.cleaning_waits.begin(self.counted_user(request)).ok_or(Errno::EAGAIN)?;
        let waiting = self.interrupts.begin(request.header.unique);
        self.reply_deferred(request, size_of::<IoctlOut>(), move |reply| {
            let _counted = counted;
            for id in ids {
                if !filesystem.wait_until_cleaned(id, &|| waiting.goes_on())? {
                    return Err(Errno::EINTR);
                }
            }
            // So that the space is free, and the usage of quotas has it, when the call returns. A
            // loss of file data is reported to the users of that file.
            match filesystem.sync_and_keep_errors() {
                Ok(()) | Err(Error::File(_)) => {}
                Err(error) => return Err(error.into()),
            }
            reply.push(&IoctlOut::default())
        })
    }

    fn set_subvolume_flags(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let flags: u64 = request.take()?;
        let caller = self.checked_caller(request);
        if !caller.owns(&self.filesystem, self.node(request)?)? {
            return Err(Errno::EPERM);
        }
        let root = self.subvolume_root(request)?;
        if flags & !READ_ONLY != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let read_only = flags & READ_ONLY != 0;
        let (gates, filesystem) = (Arc::clone(self.handles.write_gates()), self.filesystem.clone());
        // It waits for a short time for programs to close their files.
        let bytes = size_of::<IoctlOut>();
        self.reply_deferred_within(&self.subvolume_switches, request, bytes, move |reply| {
            caller.may_change()?;
            let closed = if read_only { Some(gates.close(root.subvolume)?) } else { None };
            filesystem.set_subvolume_read_only(root.subvolume, read_only)?;
            drop(closed);
            reply.push(&IoctlOut::default())
        })
    }

    fn subvolume_flags(&self, request: &Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let root = self.subvolume_root(request)?;
        let is_read_only = self.filesystem.subvolume(root.subvolume)?.read_only;
        reply.push(&IoctlOut::default())?;
        reply.push(if is_read_only { &READ_ONLY } else { &0_u64 })
    }

    fn subvolume_info(&self, request: &Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let id = self.node(request)?.subvolume;
        let info = info_bytes(&self.filesystem.subvolume(id)?);
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(&info)
    }

    /// Fails for a file. The kernel checks that before anything else (law 12).
    fn require_directory(&self, request: &Request<'_>) -> ErrnoResult<()> {
        let kind = self.filesystem.stat(self.node(request)?)?.kind;
        if kind == FileKind::Directory { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    /// Returns the root directory that a request is about.
    fn subvolume_root(&self, request: &Request<'_>) -> ErrnoResult<FileId> {
        let id = self.node(request)?;
        if id.is_subvolume_root() { Ok(id) } else { Err(Errno::EINVAL) }
    }

    pub(super) fn is_administrator(&self, request: &Request<'_>) -> bool {
        let caller = &request.header;
        let is_unchecked = !self.options.checks_permissions && caller::is_owner_of_mount(caller);
        is_unchecked || caller::is_administrator(caller)
    }

    fn change_name(
        &self,
        calls: &UserCalls,
        request: &Request<'_>,
        name: Vec<u8>,
        change: impl FnOnce(&Filesystem, &[u8]) -> ErrnoResult<()> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        let changed = (request.header.nodeid, name);
        self.change_name_in(calls, request, changed, |filesystem, name| {
            change(filesystem, name).map(|()| Vec::new())
        })
    }

    /// Defers a change of the entry `name` in the directory with node id `parent` (laws 5 and 6).
    /// The kernel then forgets the names below it that `change` returns.
    fn change_name_in(
        &self,
        calls: &UserCalls,
        request: &Request<'_>,
        (parent, name): (u64, Vec<u8>),
        change: impl FnOnce(&Filesystem, &[u8]) -> ErrnoResult<Names> + Send + 'static,
    ) -> ErrnoResult<Outcome> {
        let (device, filesystem) = (Arc::clone(request.device), self.filesystem.clone());
        let (caller, invalidations) =
            (self.checked_caller(request), self.name_invalidations.clone());
        let (user, unique) = (self.counted_user(request), request.header.unique);
        let limit = self.name_changes.clone();
        self.defer_within(calls, request, size_of::<IoctlOut>(), move |_| {
            // Not while it is queued: it would take the place of calls of others that wait.
            let counted = limit.begin_in(parent, user).ok_or(Errno::EAGAIN)?;
            caller.may_change()?;
            // The kernel unmounts what is mounted below a name that it forgets, so a call that has
            // changed nothing must not make it forget one.
            let names_below = change(&filesystem, &name)?;
            let counted = Arc::new(counted);
            let below = NamesBelow::new(names_below, &counted);
            let answer = move |device: BorrowedFd<'_>| {
                connection::invalidate_attributes(device, parent);
                let mut reply = Reply::new(size_of::<IoctlOut>());
                let result = reply.push(&IoctlOut::default());
                drop(counted);
                connection::send_reply(device, unique, result, &mut reply);
            };
            invalidations.forget_name_before(&device, (parent, name), answer, below);
            Ok(Outcome::NoReply)
        })
    }
}

/// Returns `struct btrfs_ioctl_get_subvol_info_args`.
fn info_bytes(of: &SubvolumeInfo) -> Vec<u8> {
    let mut bytes = of.id.as_bytes().to_vec();
    let mut name = of.name.clone();
    name.truncate(INFO_NAME_BYTES - 1);
    name.resize(INFO_NAME_BYTES, 0);
    bytes.extend(name);
    for word in [of.parent.unwrap_or(0), of.dir, of.generation, of.flags] {
        bytes.extend(word.as_bytes());
    }
    for uuid in [of.uuid, of.parent_uuid, of.received_uuid] {
        bytes.extend(uuid);
    }
    let generations =
        [of.changed_generation, of.created_generation, of.sent_generation, of.received_generation];
    bytes.extend(generations.as_bytes());
    for Time { secs, nanos, .. } in [of.changed, of.created, of.sent, of.received] {
        bytes.extend(secs.as_bytes());
        bytes.extend(u64::from(nanos).as_bytes());
    }
    // The rest is reserved.
    bytes.resize(INFO_BYTES, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_as_by_kernel_btrfs() {
        let long = [b'a'; 300];
        for (name, to_create, to_delete) in [
            (&b"a/b"[..], Errno::EINVAL, Errno::EINVAL),
            (b"", Errno::EACCES, Errno::EACCES),
            (b".", Errno::EEXIST, Errno::EACCES),
            (b"..", Errno::EEXIST, Errno::EINVAL),
            (&long, Errno::ENAMETOOLONG, Errno::ENAMETOOLONG),
        ] {
            let name = Name::until_zero(name);
            let create = name.check_new().and_then(|()| name.to_look_up());
            assert_eq!(create, Err(to_create), "{:?}", name.0);
            let delete = name.check_old().and_then(|()| name.to_look_up());
            assert_eq!(delete, Err(to_delete), "{:?}", name.0);
        }
        assert_eq!(Name::until_zero(b"name\0rest").to_look_up(), Ok(b"name".to_vec()));
    }
}
