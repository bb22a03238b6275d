//! GETATTR, STATX, SETATTR and STATFS.
//!
//! 1. With write-back caching, the kernel sends the times that it keeps of a file, and the times
//!    that a program sets, with the same bits. What it keeps of a file that is open for writing has
//!    a handle, and is late: the flags of the inode may have changed since the write. A program's
//!    call names a path or an inode, and never has a handle. Without a handle, the kernel sends the
//!    ctime of a change of the file's names or attributes, with the file locked since that change
//!    was allowed (since Linux 5.16): the flags are as they were. So they are checked.

use butternut::server::FilesystemExt;
use butternut::{Error, Privileges, SetAttributes, SetTime, Time};

use crate::attr;
use crate::connection::protocol::{AttrOut, SetattrIn, StatfsOut, fattr};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, Outcome, caller};
use crate::errno::ErrnoResult;

impl Door {
    pub(super) fn attributes(&self, request: &Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let stat = self.filesystem.stat(self.node(request)?)?;
        reply.push(&attr::attr_out(&stat, self.nodes.node_id(stat.id)))
    }

    pub(super) fn statx(&self, request: &Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let stat = self.filesystem.stat(self.node(request)?)?;
        reply.push(&attr::statx_out(&stat, self.nodes.node_id(stat.id)))
    }

    /// Answers STATFS. Kernel btrfs shows deleted space as free at once; here a commit frees it. So
    /// where much space was deleted, the reply is deferred until after a commit.
    pub(super) fn statfs(&self, request: &Request<'_>, reply: &mut Reply) -> ErrnoResult<Outcome> {
        let stat = self.filesystem.statfs()?;
        if !self.filesystem.frees_much(&stat) {
            reply.push(&attr::statfs_out(&stat))?;
            return Ok(Outcome::Reply);
        }
        let filesystem = self.filesystem.clone();
        self.reply_deferred_to_user(request, size_of::<StatfsOut>(), move |reply| {
            filesystem.sync_best_effort();
            reply.push(&attr::statfs_out(&filesystem.statfs()?))
        })
    }

    pub(super) fn set_attributes(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let set: SetattrIn = request.take()?;
        let id = self.node(request)?;
        // Law 1.
        let is_from_cache = set.valid & !fattr::HANDLE == CACHED_TIMES;
        let is_late = is_from_cache && set.valid & fattr::HANDLE != 0;
        let sets_mtime = self.sets_mtime(&set);
        let mut set = SetAttributes { is_late, ..to_set_attributes(&set) };
        if sets_mtime {
            set.mtime = Some(SetTime::Now);
        }
        if set.privileges == Privileges::Strip && request.header.uid != 0 {
            let stat = self.filesystem.stat(id)?;
            set.privileges = caller::privileges(&request.header, &stat);
        }
        let stat = match self.filesystem.set_attributes(id, &set) {
            // The kernel sends the ctime of a removal after the file is gone, and would report an
            // error as lost data. It ignores the attributes of the reply.
            Err(Error::Stale { .. }) if is_from_cache => return reply.push(&AttrOut::default()),
            set => set?,
        };
        reply.push(&attr::attr_out(&stat, self.nodes.node_id(stat.id)))
    }

    /// Returns whether a change of the size also sets mtime, even where the size stays the same.
    /// ftruncate(2) and `O_TRUNC` do, truncate(2) does not. The kernel says so only where it keeps
    /// the times. Otherwise a handle in the request means ftruncate(2), and a size of 0 most likely
    /// means `O_TRUNC`.
    fn sets_mtime(&self, set: &SetattrIn) -> bool {
        let is_size_change = set.valid & fattr::SIZE != 0 && set.valid & fattr::MTIME == 0;
        is_size_change
            && !self.options.writes_back()
            && (set.valid & fattr::HANDLE != 0 || set.size == 0)
    }
}

/// The times that the kernel keeps of a file that it caches.
const CACHED_TIMES: u32 = fattr::MTIME | fattr::CTIME;

/// Converts a SETATTR for the library, with `is_late` still to be set.
///
/// A change of the owner always removes privileges, as in the kernel; one of the size only where
/// the kernel sets the flag.
fn to_set_attributes(set: &SetattrIn) -> SetAttributes {
    let has = |flag| set.valid & flag != 0;
    let time = |given, now, secs: u64, nanos| {
        if has(now) {
            Some(SetTime::Now)
        } else {
            has(given).then_some(SetTime::At(Time { secs: secs.cast_signed(), nanos }))
        }
    };
    let ctime = Time { secs: set.ctime.cast_signed(), nanos: set.ctimensec };
    SetAttributes {
        ctime: has(fattr::CTIME).then_some(ctime),
        is_late: false,
        mode: has(fattr::MODE).then_some(set.mode),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size: has(fattr::SIZE).then_some(set.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec),
        privileges: if has(fattr::UID) || has(fattr::GID) || has(fattr::KILL_SUIDGID) {
            Privileges::Strip
        } else {
            Privileges::Keep
        },
    }
}
