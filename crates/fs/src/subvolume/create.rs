//! New subvolumes: empty ones, and snapshots.
//!
//! Both are made inside a commit ([`Forest::commit_with`](butternut_tree::Forest::commit_with)), so
//! they are durable when the call returns, and a crash leaves all of them or nothing.
//!
//! Laws:
//!
//! 1. A snapshot contains every operation that returned before the call began, and of those that
//!    run beside it each one as a whole or not at all: operations that write are excluded
//!    (`barrier`) while the data in memory is written back and the commit closes its gate.
//! 2. Before operations may write again, no file of the source writes in place to what the snapshot
//!    shares: write targets that were looked up before are forgotten.
//! 3. A snapshot does not contain its own entry. It contains the entries of subvolumes inside its
//!    source as placeholders; a recursive snapshot (`recursive`) replaces them.
//! 4. A snapshot that is read-only keeps what its source says of the stream that it was received
//!    from, and the UUID tree lists it under the received UUID. A snapshot that is writable keeps
//!    nothing of it, because its contents will differ. (As in the kernel, the snapshot decides, not
//!    the source.)
//! 5. The root directory of a new subvolume inherits what the kernel lets it inherit: the mode that
//!    the default ACL of its directory permits, but no ACL, group, set-group-id bit or flag; and
//!    the compression property of the root of the subvolume that it is made in, not of its
//!    directory.
//! 6. The quota groups of a new subvolume are checked before the commit changes anything. Where
//!    quotas are off, they are ignored, as in the kernel. With simple quotas, a subvolume without
//!    any is in the groups of the subvolume that it is made in.
//! 7. A checkpoint of a receive gets its mark in the commit that makes it (`mark`), so that no
//!    other thread sees one that is writable. It keeps nothing of what law 4 says.
//! 8. A lookup that finds the name of a new subvolume finds the subvolume, also before the commit
//!    ends: its root item and the reference to its name are in the root tree before its entry.

use crate::inode::id::ROOT_DIRECTORY;
use crate::inode::inheritance::Inheritance;
use crate::inode::new_inode::{NewInode, next_index};
use crate::inode::table::InodeEntry;
use crate::names::create::check_name;
use crate::subvolume::mark::CheckpointMark;
use crate::subvolume::uuid_tree::UuidTree;
use crate::write_state::WriteState;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::{DeviceNumber, Inode, InodeFlags, RawInodeItem, Time};
use butternut_format::key::ItemType;
use butternut_format::quota::QgroupId;
use butternut_format::refused::Refused;
use butternut_format::root::{RawRootItem, RootFlags};
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Generation, Ino, TreeId};
use butternut_format::uuid::Uuid;
use butternut_names::{
    self as names, COMPRESSION, CompressionProperty, Found, Moment, NewName, SetXattr,
    SubvolumePair, Target, Xattr,
};
use butternut_sys::random;
use butternut_tree::{AtCommit, Tree};
use std::sync::Arc;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

/// Items whose blocks a new subvolume may add: three blocks, as in the kernel.
const SUBVOLUME_ITEMS: u32 = 9;

/// Whether a snapshot can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAccess {
    ReadOnly,
    ReadWrite,
}

/// The entry of a new subvolume.
pub(crate) struct NewEntry<'a> {
    parent: Arc<InodeEntry>,
    name: &'a [u8],
    index: u64,
    pub(crate) id: TreeId,
    pub(crate) origin: Origin,
}

/// What [`Filesystem::add_subvolume`] adds.
pub(crate) struct NewSubvolume {
    /// Its id, if that is allocated already.
    pub(crate) id: Option<TreeId>,
    /// The UUID of the subvolume that it was received from, if there is one.
    pub(crate) received: Option<Uuid>,
    /// The number of subvolumes that are made with it, and of other trees that are changed.
    pub(crate) changes: u64,
    /// The quota groups that include it.
    pub(crate) qgroups: Vec<QgroupId>,
}

impl NewSubvolume {
    fn one(received: Option<Uuid>, qgroups: &[QgroupId]) -> Self {
        Self { id: None, received, changes: 1, qgroups: qgroups.to_vec() }
    }
}

/// The UUID of a new subvolume, and when it is made.
pub(crate) struct Origin {
    pub(crate) uuid: Uuid,
    pub(crate) now: Time,
}

impl Filesystem {
    /// Creates an empty subvolume under a name, and returns its id. It is durable when this
    /// returns.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn create_subvolume(&self, dir: FileId, name: &[u8], new: &NewInode) -> Result<u64> {
        self.create_subvolume_in_qgroups(dir, name, new, &[])
    }

    /// As [`Filesystem::create_subvolume`], of a subvolume that these quota groups include, which
    /// the same commit notes. They are ignored if quotas are off.
    ///
    /// # Errors
    /// As [`Filesystem::create_subvolume`]; [`Error::NoQuotaGroup`]; [`Error::Quota`] for a group
    /// of level 0.
    pub fn create_subvolume_in_qgroups(
        &self,
        dir: FileId,
        name: &[u8],
        new: &NewInode,
        qgroups: &[QgroupId],
    ) -> Result<u64> {
        self.create_with(dir, name, new, qgroups, None)
    }

    /// Makes a checkpoint of a receive under a name (law 7): a snapshot of `source`, or an empty
    /// subvolume. It is durable when this returns.
    ///
    /// # Errors
    /// As [`Filesystem::snapshot`].
    pub(crate) fn create_checkpoint(
        &self,
        source: Option<u64>,
        (dir, name): (FileId, &[u8]),
        mark: CheckpointMark,
    ) -> Result<u64> {
        match source {
            None => self.create_with(dir, name, &NewInode::new(0o755), &[], Some(mark)),
            Some(source) => {
                let access = SnapshotAccess::ReadOnly;
                self.snapshot_with(source, (dir, name), access, &[], Some(mark))
            }
        }
    }

    fn create_with(
        &self,
        dir: FileId,
        name: &[u8],
        new: &NewInode,
        qgroups: &[QgroupId],
        mark: Option<CheckpointMark>,
    ) -> Result<u64> {
        check_levels(qgroups)?;
        let writing = self.begin()?;
        let subvolume = self.writable_subvolume(&writing, dir)?;
        let directory = RootDirectory::inherit(&subvolume.tree, Ino(dir.ino), new)?;
        self.add_subvolume(
            &writing,
            (dir, name),
            &NewSubvolume::one(mark.map(|mark| mark.0), qgroups),
            &mut |at_commit, entry| {
                let mut root =
                    empty_root(entry, at_commit.generation(), self.super_block().node_bytes());
                if let Some(mark) = mark {
                    mark.set(&mut root);
                }
                at_commit.create_tree(entry.id, &root)?;
                directory.insert(at_commit, entry)
            },
        )
    }

    /// Makes a snapshot of subvolume `source` under a name, and returns its id. It is durable when
    /// this returns. Its cost does not depend on the size of the source; data that is dirty in
    /// memory is written back first.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::NoSubvolume`]; data of the source that is lost during
    /// the call because it cannot be written back.
    pub fn snapshot(
        &self,
        source: u64,
        dir: FileId,
        name: &[u8],
        access: SnapshotAccess,
    ) -> Result<u64> {
        self.snapshot_in_qgroups(source, (dir, name), access, &[])
    }

    /// As [`Filesystem::snapshot`], of a snapshot that these quota groups include, which the same
    /// commit notes. They are ignored if quotas are off.
    ///
    /// # Errors
    /// As [`Filesystem::snapshot`]; [`Error::NoQuotaGroup`]; [`Error::Quota`] for a group of level
    /// 0.
    pub fn snapshot_in_qgroups(
        &self,
        source: u64,
        (dir, name): (FileId, &[u8]),
        access: SnapshotAccess,
        qgroups: &[QgroupId],
    ) -> Result<u64> {
        self.snapshot_with(source, (dir, name), access, qgroups, None)
    }

    fn snapshot_with(
        &self,
        source: u64,
        (dir, name): (FileId, &[u8]),
        access: SnapshotAccess,
        qgroups: &[QgroupId],
        mark: Option<CheckpointMark>,
    ) -> Result<u64> {
        check_levels(qgroups)?;
        let write_state = self.may_begin()?;
        // Raises the error of a source that does not exist.
        self.subvolume_tree(source)?;
        self.open_before_exclusion(write_state, dir)?;
        let begin = self.shared.source.error_position();
        // Most of the data is written back while operations may still write.
        self.write_back_subvolume(write_state, source, &begin)?;
        let excluded = write_state.snapshots.exclude_writes();
        // It may have been deleted meanwhile.
        self.subvolume_tree(source)?;
        self.write_back_subvolume(write_state, source, &begin)?;
        let received = match mark {
            Some(mark) => Some(mark.0),
            None => self.received_uuid(source, access)?,
        };
        let (at, new) = ((dir, name), NewSubvolume::one(received, qgroups));
        let made = self.add_subvolume(write_state, at, &new, &mut |at_commit, entry| {
            at_commit.snapshot(TreeId(source), entry.id, |root| {
                describe_snapshot(root, &entry.origin, at_commit.generation(), access);
                if let Some(mark) = mark {
                    mark.set(root);
                }
            })?;
            Ok(())
        });
        self.shared.source.forget_write_targets();
        drop(excluded);
        // A deletion of orphans would change a checkpoint, which then has no mark.
        if let (Ok(id), SnapshotAccess::ReadOnly, None) = (&made, access, mark) {
            self.delete_orphans_of_read_only(write_state, *id);
        }
        made
    }

    /// Adds a subvolume that `make` makes inside the commit.
    pub(crate) fn add_subvolume(
        &self,
        write_state: &WriteState,
        (dir, name): (FileId, &[u8]),
        new: &NewSubvolume,
        make: &mut dyn FnMut(&AtCommit<'_>, &NewEntry<'_>) -> Result<()>,
    ) -> Result<u64> {
        check_name(name)?;
        let subvolume = self.writable_subvolume(write_state, dir)?;
        let parent = self.entry_of(write_state, dir)?;
        let mut state = parent.lock();
        let mut parent_inode = self.directory_to_change(&parent)?;
        let limits = names::Limits::of(self.super_block());
        names::check_addable(&subvolume.tree, limits, Ino(dir.ino), name)?;
        let index = next_index(&subvolume, &parent, &mut state)?;
        let id = match new.id {
            Some(id) => id,
            None => write_state.allocate_subvolume(self.forest())?,
        };
        let (uuid, now) = (new_uuid()?, write_state.clock.now());
        let origin = Origin { uuid, now };
        let entry = NewEntry { parent: Arc::clone(&parent), name, index, id, origin };
        let mut uuids = vec![(ItemType::UUID_SUBVOL, uuid)];
        uuids.extend(new.received.map(|received| (ItemType::UUID_RECEIVED_SUBVOL, received)));
        let uuid_tree = UuidTree::of(self.forest(), &uuids);
        let inside = TreeId(dir.subvolume);
        let relations = match new.qgroups.len() {
            0 => self.forest().inherited_qgroups(inside).len(),
            given => given,
        };
        let relations = u64::try_from(relations).unwrap_or(u64::MAX);
        // Half of the changes are those of nested subvolumes, which have the relations.
        let nested = relations.saturating_mul((new.changes / 2).saturating_add(1));
        let changes = new.changes.saturating_add(nested);
        // As in the kernel, the subvolume that the new one is made in must have room for its
        // blocks: they count for its groups.
        let is_charged = self.forest().has_simple_quotas();
        let hold = is_charged.then(|| self.hold_quota(inside, SUBVOLUME_ITEMS)).transpose()?;
        self.forest().commit_many(changes, |at_commit| -> Result<()> {
            if let Some(id) = at_commit.missing_qgroup(&new.qgroups) {
                return Err(Error::NoQuotaGroup { id });
            }
            make(at_commit, &entry)?;
            add_entry(at_commit, &entry, &mut parent_inode)?;
            uuid_tree.add(at_commit, &uuids, entry.id)?;
            Ok(at_commit.include_new_subvolume(entry.id, inside, &new.qgroups)?)
        })?;
        drop(hold);
        state.next_index = index.checked_add(1);
        parent.set(parent_inode);
        Ok(id.0)
    }

    /// Returns the UUID that a snapshot of a subvolume keeps of what it was received from (law 4).
    pub(crate) fn received_uuid(
        &self,
        source: u64,
        access: SnapshotAccess,
    ) -> Result<Option<Uuid>> {
        if access == SnapshotAccess::ReadWrite {
            return Ok(None);
        }
        let root = self.forest().root_item(TreeId(source))?;
        let history = root.and_then(|(_, root)| root.history());
        let received = history.map(|history| Uuid(history.received_uuid));
        Ok(received.filter(|uuid| !uuid.is_nil()))
    }
}

/// The root directory of a new subvolume (law 5).
struct RootDirectory {
    new: names::NewInode,
    flags: InodeFlags,
    compression: Option<&'static [u8]>,
}

impl RootDirectory {
    /// Returns a root directory as the caller describes it, for a subvolume that is made in `dir`.
    fn inherit(parent: &Tree, dir: Ino, new: &NewInode) -> Result<Self> {
        let (kind, rdev) = (FileKind::Directory, DeviceNumber::default());
        let acl = Inheritance::read(parent, dir)?.acl;
        let wanted = new.permissions & 0o777 & !new.umask;
        let permissions = names::inherit_acl(acl.as_ref(), kind, wanted, 0).permissions;
        let root = Inheritance::read(parent, Ino(ROOT_DIRECTORY))?;
        let compression = names::inherited_compression(root.compression.as_deref(), kind);
        let property = compression.and_then(CompressionProperty::parse);
        let none = InodeFlags::default();
        let flags = property.map_or(none, |property| property.flags(none));
        let new = names::NewInode { kind, permissions, uid: new.uid, gid: new.gid, rdev };
        Ok(Self { new, flags, compression })
    }

    fn insert(&self, at_commit: &AtCommit<'_>, entry: &NewEntry<'_>) -> Result<()> {
        let generation = at_commit.generation();
        let edit = at_commit.tree(entry.id)?;
        let inode =
            self.new.without_parent(self.flags, Moment { generation, now: entry.origin.now });
        names::insert_root_directory(&edit, &inode)?;
        if let Some(value) = self.compression {
            let (ino, how) = (Ino(ROOT_DIRECTORY), SetXattr::Create);
            let xattr = Xattr { name: COMPRESSION, value };
            names::set_xattr(&edit, ino, &xattr, how, generation)?;
        }
        Ok(())
    }
}

/// Fails for groups of level 0, as the kernel does before it looks for them.
pub(crate) fn check_levels(qgroups: &[QgroupId]) -> Result<()> {
    let low = qgroups.iter().find(|id| id.level() == 0);
    let refused = |id: &QgroupId| Refused::new("quota group", *id, "one above level 0");
    low.map_or(Ok(()), |id| Err(Error::Quota(refused(id))))
}

/// Adds the directory entry of a new subvolume and its references in the root tree.
fn add_entry(at_commit: &AtCommit<'_>, entry: &NewEntry<'_>, parent: &mut Inode) -> Result<()> {
    let FileId { subvolume, ino, .. } = entry.parent.id;
    let (dir, generation) = (Ino(ino), at_commit.generation());
    let (name, index) = (entry.name, entry.index);
    let pair = SubvolumePair { child: entry.id, parent: TreeId(subvolume) };
    let roots = at_commit.tree(TreeId::ROOT)?;
    names::put_root_ref(&roots, pair, &RootRef { dir, index, name })?;
    at_commit.write_root_item(entry.id)?;
    let edit = at_commit.tree(TreeId(subvolume))?;
    let found = Found { target: Target::Subvolume(entry.id), kind: FileKind::Directory };
    names::link(&edit, &NewName { dir, name, index, found, generation })?;
    names::entry_added(parent, name, Moment { generation, now: entry.origin.now });
    names::put_inode(&edit, dir, parent)?;
    Ok(())
}

/// Returns the root item of an empty subvolume, as the kernel writes it.
fn empty_root(entry: &NewEntry<'_>, generation: Generation, node_bytes: u32) -> RawRootItem {
    let inode = RawInodeItem {
        generation: U64::new(1),
        size: U64::new(3),
        nlink: U32::new(1),
        nbytes: U64::new(node_bytes.into()),
        mode: U32::new(FileKind::Directory.mode_bits() | 0o755),
        flags: U64::new(InodeFlags::ROOT_ITEM_INIT.0),
        ..RawInodeItem::new_zeroed()
    };
    let mut root = RawRootItem { inode, refs: U32::new(1), ..RawRootItem::new_zeroed() };
    root.root_dirid.set(ROOT_DIRECTORY);
    root.uuid = entry.origin.uuid.0;
    set_origin(&mut root, &entry.origin, generation);
    (root.ctransid, root.ctime) = (root.otransid, root.otime);
    root
}

/// Changes the root item of a source into that of its snapshot.
pub(crate) fn describe_snapshot(
    root: &mut RawRootItem,
    origin: &Origin,
    generation: Generation,
    access: SnapshotAccess,
) {
    root.parent_uuid = root.uuid;
    root.uuid = origin.uuid.0;
    let flags = root.flags.get() & !RootFlags::READ_ONLY.0;
    match access {
        SnapshotAccess::ReadOnly => root.flags.set(flags | RootFlags::READ_ONLY.0),
        SnapshotAccess::ReadWrite => {
            root.flags.set(flags);
            // Law 4.
            root.forget_received();
        }
    }
    root.refs.set(1);
    set_origin(root, origin, generation);
}

fn set_origin(root: &mut RawRootItem, origin: &Origin, generation: Generation) {
    root.otransid.set(generation.0);
    root.otime = origin.now.into();
}

/// Returns a random UUID (version 4, RFC 9562).
pub(crate) fn new_uuid() -> Result<Uuid> {
    let bytes = random::bytes::<16>().map_err(|error| Error::Random(error.into()))?;
    Ok(Uuid::version_4(bytes))
}
