//! [`SetAttributes`]: changes of mode, owner, size and times, with the privileges that they strip.
//!
//! | changed | changes besides |
//! |---|---|
//! | mode | the access ACL mirrors it |
//! | owner or group | clears set-user-id, set-group-id and capabilities of a file, if asked to |
//! | size | mtime becomes now if the size differs; the same privileges are cleared, if asked to |
//! | any, except a size that is the file's already | ctime becomes now |
//!
//! A call that fails leaves all attributes as they were, as far as the volume can still be written,
//! except for the size: a long file may keep a size between the old and the new one. A crash during
//! a call that changes the size and an extended attribute may leave all changes but that of the
//! size.

use crate::change::Change;
use crate::inode::privileges::{CAPABILITIES, stripped};
use crate::inode::table::{InodeEntry, InodeState};
use crate::stats::latency::Operation;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Privileges, Result, Stat, Time};
use butternut_format::inode::{self, Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, ACCESS_ACL, Acl, Moment, SetXattr, Xattr};
use butternut_tree::Need;
use std::sync::Arc;

/// Items that a call may change: the inode's, and two extended attributes.
const ITEMS_OF_ATTRIBUTES: u32 = 4;

const PERMISSIONS: u32 = 0o7777;

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    At(Time),
}

/// The attributes to change; those that are `None` keep their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, with set-user-id, set-group-id and sticky; the type bits are ignored.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// The size of a regular file, in bytes.
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// The time of the change, if a cache in front of this library made it earlier.
    pub ctime: Option<Time>,
    /// A cache in front of this library writes back a change that was allowed when it was made: the
    /// flags of the inode are not checked again.
    pub is_late: bool,
    /// The privileges that a change of owner, group or size strips from a file.
    pub privileges: Privileges,
}

impl SetAttributes {
    /// Returns a change of the size only, as by truncate(2): the times change only if the size
    /// does.
    pub fn size(size: u64) -> Self {
        Self { size: Some(size), ..Self::default() }
    }

    fn is_more_than_size(&self) -> bool {
        Self { size: None, privileges: Privileges::Keep, ..*self } != Self::default()
    }

    /// Returns whether both times become that of the change, as by `utime(NULL)`. This is the one
    /// change of times that an append-only inode allows. If a cache sent the time of the change,
    /// the times must equal it.
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
    /// Changes attributes, and returns the attributes afterwards.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::NotPermitted`] for an inode that is immutable or append-only;
    /// [`Error::IsDirectory`] or [`Error::InvalidArgument`] for the size of an inode that is not a
    /// file.
    pub fn set_attributes(&self, id: FileId, set: &SetAttributes) -> Result<Stat> {
        let _timed = self.timed(Operation::SetAttributes);
        self.with_quota_room(id.subvolume, || self.set_attributes_once(id, set))
    }

    fn set_attributes_once(&self, id: FileId, set: &SetAttributes) -> Result<Stat> {
        let writing = self.begin()?;
        let write_state = &*writing;
        let subvolume = self.writable_subvolume(write_state, id)?;
        let entry = self.entry_of(write_state, id)?;
        let mut state = entry.lock();
        let inode = self.attributes(&entry)?;
        may_change(&inode, set)?;
        if set.size.is_some() {
            entry.may_change_content()?;
        }
        let plan = Plan::new(&subvolume, &entry, &inode, set)?;
        if set.mode.is_some() {
            // Before the change, which may fail after it has set the mode.
            entry.set_no_privileges(false);
        }
        if let Some(size) = set.size {
            self.set_with_size(write_state, &subvolume, (&entry, &mut *state), &plan, size)?;
        } else {
            // At the limit of a quota, too, where `rm` may need it.
            let need = Need::items(ITEMS_OF_ATTRIBUTES).uncharged();
            self.put_attributes(write_state, &subvolume, &entry, &plan, need)?;
        }
        drop(state);
        self.stat(id)
    }

    /// Changes everything except the size, in one transaction.
    fn put_attributes(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        plan: &Plan<'_>,
        need: Need,
    ) -> Result<()> {
        let (ino, inode) = (Ino(entry.id.ino), self.attributes(entry)?);
        let changed = self.change(write_state, subvolume, need, |change| {
            let changed = plan.changed(&inode, change.moment);
            change_xattrs(change, ino, plan)?;
            change.put(ino, &changed)?;
            Ok(changed)
        })?;
        entry.set(changed);
        Ok(())
    }

    /// Sets the size together with the other attributes. The change of the size writes the inode
    /// item, and with it all attributes that are not extended. If extended attributes change too, a
    /// transaction of its own changes all other attributes first, and another one restores them if
    /// the size is refused. A crash between the two leaves an ACL and a mode that agree.
    fn set_with_size(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        (entry, state): (&Arc<InodeEntry>, &mut InodeState),
        plan: &Plan<'_>,
        size: u64,
    ) -> Result<()> {
        // A file can be truncated on a full volume, whatever else is changed with its size.
        let need = Need::items(ITEMS_OF_ATTRIBUTES).deleting();
        let was = self.attributes(entry)?;
        if plan.has_xattrs() {
            self.put_attributes(write_state, subvolume, entry, plan, need)?;
        }
        let inode = self.attributes(entry)?;
        let generation = self.forest().generation()?;
        let changed = plan.changed(&inode, Moment { generation, now: write_state.clock.now() });
        let set = self.set_size(write_state, subvolume, entry, state, (size, changed));
        if set.is_err() && plan.has_xattrs() {
            // The caller gets the error that refused the size.
            self.restore_attributes(write_state, subvolume, entry, plan, &was).unwrap_or_default();
        }
        set
    }

    /// Restores everything except the size to its value before [`Self::put_attributes`].
    fn restore_attributes(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        plan: &Plan<'_>,
        was: &Inode,
    ) -> Result<()> {
        let (ino, inode) = (Ino(entry.id.ino), self.attributes(entry)?);
        let Inode { size, bytes_used, flags, .. } = inode;
        let need = Need::items(ITEMS_OF_ATTRIBUTES).deleting();
        let restored = self.change(write_state, subvolume, need, |change| {
            let transid = change.moment.generation;
            let restored = Inode { size, bytes_used, flags, transid, ..*was };
            restore_xattrs(change, ino, plan)?;
            change.put(ino, &restored)?;
            Ok(restored)
        })?;
        entry.set(restored);
        Ok(())
    }
}

/// A change of attributes, with the changes that it entails.
struct Plan<'s> {
    set: &'s SetAttributes,
    mode: u32,
    /// The access ACL before and after, if it changes.
    acl: Option<(Vec<u8>, Vec<u8>)>,
    /// The capabilities that are removed.
    capabilities: Option<Vec<u8>>,
}

impl<'s> Plan<'s> {
    /// Computes what a change of attributes entails; changes nothing.
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

    /// Returns the changed inode item, with the old size.
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
            // An append past that cache is newer than its time, and nothing but an append changes
            // the mtime of an append-only file.
            changed.mtime = changed.mtime.max(inode.mtime);
        }
        // As in the kernel's btrfs, truncate(2) to the size that a file has leaves its times.
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
        change.step(names::remove_xattr(&change.edit, ino, CAPABILITIES))?;
    }
    Ok(())
}

/// Restores the extended attributes to their values before [`change_xattrs`].
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
    change.step(names::set_xattr(&change.edit, ino, &xattr, how, change.moment.generation))
}

/// Checks that the kind and the flags of the inode allow the change.
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
