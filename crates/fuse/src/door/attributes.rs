//! Attributes, shown and set.

use butternut::{Error, FileId, Privileges, SetAttributes, SetTime, Time};

use crate::caller;
use crate::door::{Door, Wanted};
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::Request;
use crate::shown;
use crate::wire::{AttrOut, SetattrIn, StatfsOut, fattr};

impl Door {
    pub(super) fn attributes(&self, request: &Request<'_>, reply: &mut Reply) -> Answer<()> {
        let stat = self.filesystem.stat(self.node(request)?)?;
        reply.put(&shown::attributes_out(&stat, self.nodes.number(stat.id)))
    }

    pub(super) fn statx(&self, request: &Request<'_>, reply: &mut Reply) -> Answer<()> {
        let stat = self.filesystem.stat(self.node(request)?)?;
        reply.put(&shown::statx(&stat, self.nodes.number(stat.id)))
    }

    /// Answers STATFS. Kernel btrfs shows what was deleted as free at once; here a commit makes it
    /// free, so one is made first where it makes a difference.
    pub(super) fn statfs(&self, request: &Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let stat = self.filesystem.statfs()?;
        if !self.filesystem.frees_much(&stat) {
            reply.put(&shown::statfs(&stat))?;
            return Ok(Wanted::Reply);
        }
        let filesystem = self.filesystem.clone();
        self.answer_on_thread(request, size_of::<StatfsOut>(), move |reply| {
            filesystem.settle();
            reply.put(&shown::statfs(&filesystem.statfs()?))
        })
    }

    pub(super) fn set_attributes(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let set: SetattrIn = request.take()?;
        let id = self.node(request)?;
        let is_of_cache = set.valid & !fattr::HANDLE == OF_CACHE;
        let is_late = is_of_cache && self.is_late(id, &set)?;
        let touches = self.touches(&set);
        let mut set = SetAttributes { is_late, ..meant(&set) };
        if touches {
            set.mtime = Some(SetTime::Now);
        }
        if set.privileges == Privileges::Strip && request.header.uid != 0 {
            let stat = self.filesystem.stat(id)?;
            set.privileges = caller::privileges(&request.header, &stat);
        }
        let stat = match self.filesystem.set_attributes(id, &set) {
            // The kernel sends the time of the removal after the file has gone, and would take a
            // refusal for lost data. It does not look at the attributes.
            Err(Error::Stale { .. }) if is_of_cache => return reply.put(&AttrOut::default()),
            set => set?,
        };
        reply.put(&shown::attributes_out(&stat, self.nodes.number(stat.id)))
    }

    /// Whether a change of the size is also one of the times, be the size what it was: ftruncate(2)
    /// and `O_TRUNC` are, truncate(2) is not. The kernel does not tell, except where it keeps the
    /// times. Only ftruncate(2) names the handle; of a size of 0, `O_TRUNC` is the likely cause.
    fn touches(&self, set: &SetattrIn) -> bool {
        let is_cut = set.valid & fattr::SIZE != 0 && set.valid & fattr::MTIME == 0;
        is_cut && !self.manner.writes_back() && (set.valid & fattr::HANDLE != 0 || set.size == 0)
    }

    /// Whether times come from the kernel's cache, late, rather than from a program that sets the
    /// time of modification: both look alike. A program's call names a path or an inode, never an
    /// open file; and where the cache sends times without one, no write was cached since it sent
    /// the last, so the time of modification is as it was.
    fn is_late(&self, id: FileId, set: &SetattrIn) -> Answer<bool> {
        if set.valid & fattr::HANDLE != 0 {
            return Ok(true);
        }
        match self.filesystem.stat(id) {
            Ok(stat) => Ok(stat.mtime == mtime(set)),
            Err(Error::Stale { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

fn mtime(set: &SetattrIn) -> Time {
    Time { secs: set.mtime.cast_signed(), nanos: set.mtimensec }
}

/// The times that the kernel keeps of what it caches.
const OF_CACHE: u32 = fattr::MTIME | fattr::CTIME;

/// A change of attributes, as the library has it. Whether it is late is not known here.
///
/// A change of the owner always costs a file its privileges, as in the kernel; one of the size
/// only where the kernel says so.
fn meant(set: &SetattrIn) -> SetAttributes {
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
