//! Changes of mode, owner, size and times, and the privileges that go with them.
//!
//! | what | besides |
//! |---|---|
//! | mode | the access ACL mirrors it |
//! | owner or group | set-user-id, set-group-id and capabilities of a file go, if asked for |
//! | size | mtime is now, unless the size is what it was; the same privileges go, if asked for |
//! | any, but the size that the file has | ctime is now |
//!
//! A call changes all that it is to change, or nothing ([`Filesystem::set_attributes`]).

use crate::change::Change;
use crate::inode_table::{Body, InodeEntry};
use crate::latency::Operation;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Privileges, Result, Stat, Time};
use butternut_format::inode::{self, Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, ACCESS_ACL, Acl, Moment, SetXattr, Xattr};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that may change: the inode's, and two attributes.
const ITEMS_OF_ATTRIBUTES: u32 = 4;

/// The attribute that holds a program's capabilities.
pub(crate) const CAPABILITIES: &[u8] = b"security.capability";

const PERMISSIONS: u32 = 0o7777;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// What the clock says.
    Now,
    At(Time),
}

/// What to change of an inode; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, with set-user-id, set-group-id and sticky; bits of the type are ignored.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Of a regular file.
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// When the change was made, where a cache in front of this library knows that better than its
    /// clock.
    pub ctime: Option<Time>,
    /// Such a cache sends late what was allowed when it was done: the flags of the inode are not
    /// asked again.
    pub is_late: bool,
    /// What privileges a file loses that gets another owner, group or size.
    pub privileges: Privileges,
}

impl SetAttributes {
    /// Nothing but the size, as truncate(2): the times stay where the size is what it was.
    pub fn size(size: u64) -> Self {
        Self { size: Some(size), ..Self::default() }
    }

    fn is_more_than_size(&self) -> bool {
        Self { size: None, privileges: Privileges::Keep, ..*self } != Self::default()
    }

    /// Whether both times become that of the change, as by `utime(NULL)`: an append-only inode lets
    /// that be done, and no other change of times. A cache that says when the change was made says
    /// so of the times too.
    fn touches(&self) -> bool {
        let is_now = |time| match time {
            Some(SetTime::Now) => true,
            Some(SetTime::At(at)) => self.ctime == Some(at),
            None => false,
        };
        is_now(self.atime) && is_now(self.mtime)
    }
}

impl Filesystem {
    /// Changes attributes, and says what they are then.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::NotPermitted`] for what is immutable or append-only;
    /// [`Error::IsDirectory`] or [`Error::InvalidArgument`] for the size of something else than a
    /// file.
    pub fn set_attributes(&self, id: FileId, set: &SetAttributes) -> Result<Stat> {
        let _timed = self.timed(Operation::SetAttributes);
        let writer = self.begin()?;
        let subvolume = self.writable_subvolume(writer, id)?;
        let entry = self.entry_of(writer, id)?;
        let mut body = entry.body_mut();
        let inode = self.facts(&entry)?;
        may_change(&inode, set)?;
        let plan = Plan::new(&subvolume, &entry, &inode, set)?;
        if let Some(size) = set.size {
            self.set_with_size(writer, &subvolume, (&entry, &mut *body), &plan, size)?;
        } else {
            let need = Need::items(ITEMS_OF_ATTRIBUTES);
            self.put_attributes(writer, &subvolume, &entry, &plan, need)?;
        }
        if set.mode.is_some() {
            entry.set_no_privileges(false);
        }
        drop(body);
        self.stat(id)
    }

    /// Changes everything but the size, in one transaction.
    fn put_attributes(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        plan: &Plan<'_>,
        need: Need,
    ) -> Result<()> {
        let (ino, inode) = (Ino(entry.id.ino), self.facts(entry)?);
        let changed = self.change(writer, subvolume, need, |change| {
            let changed = plan.changed(&inode, change.moment);
            change_xattrs(change, ino, plan)?;
            change.put(ino, &changed)?;
            Ok(changed)
        })?;
        entry.set(changed);
        Ok(())
    }

    /// Sets the size with the rest. The rest is in the inode's item, which the change of the size
    /// writes, but for extended attributes. Where those change, the rest is changed with them
    /// first, and changed back if the size is refused: a crash in between leaves an ACL and a mode
    /// of one state.
    fn set_with_size(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        (entry, body): (&Arc<InodeEntry>, &mut Body),
        plan: &Plan<'_>,
        size: u64,
    ) -> Result<()> {
        // A file can be cut on a full volume, whatever else is changed with its size.
        let need = Need::items(ITEMS_OF_ATTRIBUTES).deleting();
        let was = self.facts(entry)?;
        if plan.has_xattrs() {
            self.put_attributes(writer, subvolume, entry, plan, need)?;
        }
        let inode = self.facts(entry)?;
        let generation = self.forest().generation()?;
        let changed = plan.changed(&inode, Moment { generation, now: writer.clock.now() });
        let set = self.set_size(writer, subvolume, entry, body, (size, changed));
        if set.is_err() && plan.has_xattrs() {
            // What the caller is told is why the size was refused.
            self.restore_attributes(writer, subvolume, entry, plan, &was).unwrap_or_default();
        }
        set
    }

    /// Makes everything but the size what it was before [`Self::put_attributes`].
    fn restore_attributes(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        plan: &Plan<'_>,
        was: &Inode,
    ) -> Result<()> {
        let (ino, inode) = (Ino(entry.id.ino), self.facts(entry)?);
        let Inode { size, bytes_used, flags, .. } = inode;
        let need = Need::items(ITEMS_OF_ATTRIBUTES).deleting();
        let restored = self.change(writer, subvolume, need, |change| {
            let transid = change.moment.generation;
            let restored = Inode { size, bytes_used, flags, transid, ..*was };
            restore_xattrs(change, ino, plan)?;
            change.put(ino, &restored)?;
            Ok(restored)
        })?;
        entry.set(restored);
        Ok(())
    }

    /// Takes away the privileges of a file that is written to, if it has any. The caller has its
    /// body.
    pub(crate) fn strip_privileges(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        privileges: Privileges,
    ) -> Result<()> {
        if privileges == Privileges::Keep || entry.has_no_privileges() {
            return Ok(());
        }
        let mut inode = self.facts(entry)?;
        let ino = Ino(entry.id.ino);
        let mode = stripped(inode.mode, privileges);
        let has_capabilities = names::xattr(&subvolume.tree, ino, CAPABILITIES)?.is_some();
        if mode == inode.mode && !has_capabilities {
            entry.set_no_privileges(stripped(mode, Privileges::StripForeign) == mode);
            return Ok(());
        }
        self.shared.counters.privs_stripped.add();
        self.change(writer, subvolume, Need::items(ITEMS_OF_ATTRIBUTES), |change: &Change<'_>| {
            inode.mode = mode;
            names::changed(&mut inode, change.moment);
            if has_capabilities {
                names::remove_xattr(&change.edit, ino, CAPABILITIES)?;
            }
            change.put(ino, &inode)
        })?;
        entry.set(inode);
        Ok(())
    }
}

/// A change of attributes, with what it brings along.
struct Plan<'s> {
    set: &'s SetAttributes,
    mode: u32,
    /// The access ACL as it is, and as it will be, where it changes.
    acl: Option<(Vec<u8>, Vec<u8>)>,
    /// The capabilities that go.
    capabilities: Option<Vec<u8>>,
}

impl<'s> Plan<'s> {
    /// Looks up what a change of attributes brings with it; nothing is changed.
    fn new(
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        inode: &Inode,
        set: &'s SetAttributes,
    ) -> Result<Self> {
        let ino = Ino(entry.id.ino);
        let mut mode = inode.mode;
        if let Some(wanted) = set.mode {
            mode = inode.kind.mode_bits() | (wanted & PERMISSIONS);
        }
        let is_new_owner = set.uid.is_some() || set.gid.is_some();
        let is_stripped = is_new_owner || set.size.is_some();
        let strips = is_stripped && set.privileges != Privileges::Keep;
        let mut capabilities = None;
        if strips && inode.kind != FileKind::Directory {
            mode = stripped(mode, set.privileges);
            capabilities = names::xattr(&subvolume.tree, ino, CAPABILITIES)?;
        }
        let mut acl = None;
        if mode != inode.mode
            && let Some(old) = names::xattr(&subvolume.tree, ino, ACCESS_ACL)?
        {
            let new = Acl::parse(&old)?.map(|acl| acl.with_mode(mode).to_bytes());
            acl = new.filter(|new| *new != old).map(|new| (old, new));
        }
        Ok(Self { set, mode, acl, capabilities })
    }

    fn has_xattrs(&self) -> bool {
        self.acl.is_some() || self.capabilities.is_some()
    }

    /// The inode as it will be, but for its size.
    fn changed(&self, inode: &Inode, moment: Moment) -> Inode {
        let set = self.set;
        let time = |set: Option<SetTime>, was| match set {
            None => was,
            Some(SetTime::Now) => moment.now,
            Some(SetTime::At(Time { secs, nanos })) => inode::Time { secs, nanos },
        };
        let is_resized = set.size.is_some_and(|size| size != inode.size);
        let of_size = is_resized.then_some(SetTime::Now);
        let mut changed = *inode;
        changed.mode = self.mode;
        changed.uid = set.uid.unwrap_or(inode.uid);
        changed.gid = set.gid.unwrap_or(inode.gid);
        changed.atime = time(set.atime, inode.atime);
        changed.mtime = time(set.mtime.or(of_size), inode.mtime);
        if set.is_late && inode.flags.contains(InodeFlags::APPEND) {
            // What was appended past that cache is newer than its time, and nothing but
            // appending changes this time.
            changed.mtime = changed.mtime.max(inode.mtime);
        }
        // As the kernel's btrfs: truncate(2) to the size that a file has leaves its times.
        if changed != *inode || set.is_more_than_size() || is_resized {
            names::changed(&mut changed, moment);
        }
        if let Some(Time { secs, nanos }) = set.ctime {
            changed.ctime = inode::Time { secs, nanos };
        }
        changed
    }
}

/// Changes the extended attributes of a plan.
fn change_xattrs(change: &Change<'_>, ino: Ino, plan: &Plan<'_>) -> Result<()> {
    if let Some((_, value)) = &plan.acl {
        put_xattr(change, ino, ACCESS_ACL, value, SetXattr::Replace)?;
    }
    if plan.capabilities.is_some() {
        change.must(names::remove_xattr(&change.edit, ino, CAPABILITIES))?;
    }
    Ok(())
}

/// Makes the extended attributes what they were before [`change_xattrs`].
fn restore_xattrs(change: &Change<'_>, ino: Ino, plan: &Plan<'_>) -> Result<()> {
    if let Some(value) = &plan.capabilities {
        put_xattr(change, ino, CAPABILITIES, value, SetXattr::Create)?;
    }
    if let Some((value, _)) = &plan.acl {
        put_xattr(change, ino, ACCESS_ACL, value, SetXattr::Replace)?;
    }
    Ok(())
}

fn put_xattr(
    change: &Change<'_>,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    let xattr = Xattr { name, value };
    Ok(names::set_xattr(&change.edit, ino, &xattr, how, change.moment.generation)?)
}

/// The mode of a file that may keep no privileges. Set-group-id without the right to execute means
/// mandatory locking, and stays unless a stranger writes.
fn stripped(mode: u32, privileges: Privileges) -> u32 {
    let set_group_id = match privileges {
        Privileges::Keep | Privileges::StripCapabilities => return mode,
        Privileges::Strip if mode & GROUP_EXECUTE == 0 => 0,
        Privileges::Strip | Privileges::StripForeign => SET_GROUP_ID,
    };
    mode & !(SET_USER_ID | set_group_id)
}

/// Whether the inode's flags let this be changed.
fn may_change(inode: &Inode, set: &SetAttributes) -> Result<()> {
    if set.size.is_some() {
        match inode.kind {
            FileKind::File => Filesystem::may_change_content(inode)?,
            FileKind::Directory => return Err(Error::IsDirectory),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => {
                return Err(Error::InvalidArgument { what: "only files have a size" });
            }
        }
    }
    if !set.is_late && inode.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted { what: "the inode is immutable" });
    }
    let is_more_than_touched = set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.size.is_some()
        || (set.atime.is_some() || set.mtime.is_some()) && !set.touches();
    if !set.is_late && inode.flags.contains(InodeFlags::APPEND) && is_more_than_touched {
        return Err(Error::NotPermitted { what: "the inode is append-only" });
    }
    for time in [set.atime, set.mtime, set.ctime.map(SetTime::At)] {
        if let Some(SetTime::At(Time { nanos: 1_000_000_000.., .. })) = time {
            return Err(Error::InvalidArgument { what: "nanoseconds are below one second" });
        }
    }
    Ok(())
}
