//! Recursive snapshots: of a subvolume, and of every subvolume inside it at any depth.
//!
//! ```text
//! source            snapshot
//!   dir/nested        dir/nested'    nested' is a snapshot of nested; its entry takes the place
//!     deep              deep'        of the placeholder, under the same name and index
//! ```
//!
//! Laws:
//!
//! 1. All snapshots are made inside one commit, while operations that write are excluded. So they
//!    show one instant, and a crash or a failure leaves all of them or none. The laws of a snapshot
//!    ([`super::create`]) hold for each.
//! 2. What could fail is checked before the commit: owners, that the root block of each subvolume
//!    can be read, and that each nested one is where its reference says. A subvolume that no
//!    directory lists cannot be found in the snapshot, so it fails the call.
//! 3. Every snapshot is made before the first entry is changed, so none contains an entry of the
//!    new ones, also if the new tree is made inside the old one.
//! 4. Only entries and references change in a new tree, also in a read-only one: its directories
//!    keep their sizes and times.

use crate::names::bounded::{Bounded, STEPS_MAX};
use crate::subvolume::CHILDREN_MAX;
use crate::subvolume::create::{
    NewSubvolume, Origin, SnapshotAccess, check_levels, describe_snapshot, new_uuid,
};
use crate::subvolume::uuid_tree::UuidTree;
use crate::write_state::WriteState;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::key::ItemType;
use butternut_format::quota::QgroupId;
use butternut_format::refused::{Refused, require};
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Ino, TreeId};
use butternut_format::uuid::Uuid;
use butternut_names::{self as names, Found, NewName, SubvolumeLink, SubvolumePair, Target};
use butternut_sys::wait::Wait;
use butternut_tree::AtCommit;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

/// Maximum number of subvolumes in one recursive snapshot. All of them are in one commit.
const SUBVOLUMES_MAX: usize = 4096;

/// How a recursive snapshot is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecursiveSnapshot {
    /// Whether the snapshots can be written to.
    pub access: SnapshotAccess,
    /// The user that every subvolume must belong to; `None` for a caller that may use all.
    pub owner: Option<u32>,
}

impl RecursiveSnapshot {
    /// Returns a description of snapshots, for a caller that may use all subvolumes.
    pub fn new(access: SnapshotAccess) -> Self {
        Self { access, owner: None }
    }

    /// Fails if a subvolume does not belong to this user.
    #[must_use]
    pub fn owned_by(self, owner: Option<u32>) -> Self {
        Self { owner, ..self }
    }
}

/// The snapshot of a nested subvolume, and its place in the snapshot of its parent.
struct Nested {
    link: SubvolumeLink,
    id: TreeId,
    origin: Origin,
    uuids: Vec<(ItemType, Uuid)>,
}

impl Filesystem {
    /// Returns a subvolume and every subvolume inside it at any depth, each behind its parent.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`]; [`Error::InvalidArgument`] if there are more than 4096; the root
    /// tree cannot be read, or a subvolume is inside itself.
    pub fn subvolumes_below(&self, top: u64) -> Result<Vec<u64>> {
        self.subvolume_tree(top)?;
        // Renames of subvolumes exclude this: one that moves would be found twice, or not at all.
        let unmoved = self.write_state().ok().map(|state| state.snapshots.share(Wait::Block));
        let links = self.links_below(top)?;
        drop(unmoved);
        Ok(std::iter::once(top).chain(links.iter().map(|link| link.child.0)).collect())
    }

    /// Makes a snapshot of subvolume `source` under a name, and in it, in the places of the
    /// subvolumes inside the source, snapshots of these. All are of one instant, and durable when
    /// this returns; if it fails, none is made. Returns the ids of each subvolume and its snapshot,
    /// those of `source` first. Data that is dirty in memory is written back first.
    ///
    /// # Errors
    /// As [`Filesystem::snapshot`], for every subvolume; [`Error::InvalidArgument`] if there are
    /// more than 4096; [`Error::NotPermitted`] if one belongs to another user than
    /// [`RecursiveSnapshot::owner`]; [`Error::Corrupt`] if one is not where its reference says.
    pub fn snapshot_recursive(
        &self,
        source: u64,
        dir: FileId,
        name: &[u8],
        options: RecursiveSnapshot,
    ) -> Result<Vec<(u64, u64)>> {
        self.snapshot_recursive_in_qgroups(source, (dir, name), options, &[])
    }

    /// As [`Filesystem::snapshot_recursive`], of snapshots that these quota groups include, each of
    /// them, which the same commit notes. They are ignored if quotas are off.
    ///
    /// # Errors
    /// As [`Filesystem::snapshot_recursive`]; [`Error::NoQuotaGroup`]; [`Error::Quota`] for a group
    /// of level 0.
    pub fn snapshot_recursive_in_qgroups(
        &self,
        source: u64,
        (dir, name): (FileId, &[u8]),
        options: RecursiveSnapshot,
        qgroups: &[QgroupId],
    ) -> Result<Vec<(u64, u64)>> {
        check_levels(qgroups)?;
        let write_state = self.may_begin()?;
        let before = self.subvolumes_below(source)?;
        self.open_before_exclusion(write_state, dir)?;
        let begin = self.shared.source.error_position();
        for id in before {
            // Most of the data is written back while operations may still write. What fails here is
            // found below.
            drop(self.read_root(id));
            drop(self.write_back_subvolume(write_state, id, &begin));
        }
        let excluded = write_state.snapshots.exclude_writes();
        // Some may have been created or deleted meanwhile.
        self.subvolume_tree(source)?;
        let links = self.links_below(source)?;
        for id in std::iter::once(source).chain(links.iter().map(|link| link.child.0)) {
            self.check_owner(id, options.owner)?;
            self.read_root(id)?;
            self.write_back_subvolume(write_state, id, &begin)?;
        }
        let how = (options.access, qgroups);
        let made = self.snapshot_all(write_state, (source, links), (dir, name), how);
        self.shared.source.forget_write_targets();
        drop(excluded);
        if let (Ok(made), SnapshotAccess::ReadOnly) = (&made, options.access) {
            for (_, id) in made {
                self.delete_orphans_of_read_only(write_state, *id);
            }
        }
        made
    }

    /// Makes the snapshots of a source and of the subvolumes inside it.
    fn snapshot_all(
        &self,
        write_state: &WriteState,
        (source, links): (u64, Vec<SubvolumeLink>),
        at: (FileId, &[u8]),
        (access, qgroups): (SnapshotAccess, &[QgroupId]),
    ) -> Result<Vec<(u64, u64)>> {
        let top = write_state.allocate_subvolume(self.forest())?;
        let mut nested = Vec::with_capacity(links.len());
        let steps_left = Cell::new(STEPS_MAX);
        for link in links {
            let link = self.place_of(link, &steps_left)?;
            let id = write_state.allocate_subvolume(self.forest())?;
            let origin = Origin { uuid: new_uuid()?, now: write_state.clock.now() };
            let mut uuids = vec![(ItemType::UUID_SUBVOL, origin.uuid)];
            let received = self.received_uuid(link.child.0, access)?;
            uuids.extend(received.map(|received| (ItemType::UUID_RECEIVED_SUBVOL, received)));
            nested.push(Nested { link, id, origin, uuids });
        }
        let received = self.received_uuid(source, access)?;
        // Several may have been received from one subvolume, and are listed in one item.
        let mut uuids: Vec<_> = nested.iter().flat_map(|nested| nested.uuids.clone()).collect();
        uuids.extend(received.map(|received| (ItemType::UUID_RECEIVED_SUBVOL, received)));
        let uuid_tree = UuidTree::of(self.forest(), &uuids);
        // Of each nested subvolume, the snapshot is one change, and its entry another.
        let changes = u64::try_from(nested.len()).unwrap_or(u64::MAX).saturating_mul(2);
        let changes = changes.saturating_add(1);
        let new = NewSubvolume { id: Some(top), received, changes, qgroups: qgroups.to_vec() };
        // What is in it is in the same quota groups, or inherits them.
        let inside = TreeId(at.0.subvolume);
        let id = self.add_subvolume(write_state, at, &new, &mut |at_commit, top| {
            let generation = at_commit.generation();
            at_commit.snapshot(TreeId(source), top.id, |root| {
                describe_snapshot(root, &top.origin, generation, access);
            })?;
            let mut copies = HashMap::from([(TreeId(source), top.id)]);
            for Nested { link, id, origin, .. } in &nested {
                at_commit.snapshot(link.child, *id, |root| {
                    describe_snapshot(root, origin, generation, access);
                })?;
                copies.insert(link.child, *id);
            }
            for nested in &nested {
                let parent = copies.get(&nested.link.parent).ok_or(Error::NotFound)?;
                replace_placeholder(at_commit, *parent, nested)?;
                at_commit.write_root_item(nested.id)?;
                at_commit.include_new_subvolume(nested.id, inside, qgroups)?;
                uuid_tree.add(at_commit, &nested.uuids, nested.id)?;
            }
            Ok(())
        })?;
        let pairs = nested.iter().map(|nested| (nested.link.child.0, nested.id.0));
        Ok(std::iter::once((source, id)).chain(pairs).collect())
    }

    /// Returns the subvolumes inside a subvolume at any depth, each behind its parent.
    fn links_below(&self, top: u64) -> Result<Vec<SubvolumeLink>> {
        let roots = self.forest().root_tree();
        let mut found = names::children(&roots, TreeId(top), CHILDREN_MAX)?;
        let mut seen = HashSet::from([TreeId(top)]);
        let mut at = 0;
        while let Some(link) = found.get(at) {
            // Each subvolume is looked at once, so this ends.
            require(seen.insert(link.child), "parent", "two, or one inside itself", "one")
                .map_err(corrupt)?;
            if found.len() >= SUBVOLUMES_MAX {
                let what = "more than 4096 subvolumes for one recursive snapshot";
                return Err(Error::InvalidArgument { what });
            }
            let child = link.child;
            found.extend(names::children(&roots, child, CHILDREN_MAX)?);
            at += 1;
        }
        Ok(found)
    }

    /// Reads the root block of a subvolume, which its snapshot needs.
    fn read_root(&self, id: u64) -> Result<()> {
        let tree = self.subvolume_tree(id)?;
        tree.block(&tree.root())?;
        Ok(())
    }

    fn check_owner(&self, id: u64, owner: Option<u32>) -> Result<()> {
        let Some(owner) = owner else { return Ok(()) };
        if self.stat(FileId::root_of(id))?.uid == owner {
            return Ok(());
        }
        Err(Error::NotPermitted { what: "a subvolume belongs to another user" })
    }

    /// Returns the place of a nested subvolume with the index that its directory has (law 2).
    fn place_of(&self, link: SubvolumeLink, steps_left: &Cell<u32>) -> Result<SubvolumeLink> {
        let tree = self.subvolume_tree(link.parent.0)?;
        let target = names::lookup(&tree, link.dir, &link.name)?.map(|found| found.target);
        let is_named = target == Some(Target::Subvolume(link.child));
        require(is_named, "parent", "another entry", "one that leads here").map_err(corrupt)?;
        let index = names::index_of_subvolume(&Bounded { tree: &tree, steps_left }, &link)?;
        let entry = names::list(&tree, link.dir, index).next().transpose()?;
        let is_listed = entry.is_some_and(|entry| entry.index == index && entry.name == link.name);
        require(is_listed, "index", "no entry", "one of this name").map_err(corrupt)?;
        Ok(SubvolumeLink { index, ..link })
    }
}

/// Makes an entry of a snapshot lead to the snapshot of a nested subvolume. The entry is changed in
/// place: nodes that a split added would have the generation of the snapshot, and the kernel's
/// deletion of a snapshot takes all blocks of that generation for those of its source.
fn replace_placeholder(at_commit: &AtCommit<'_>, parent: TreeId, nested: &Nested) -> Result<()> {
    let Nested { link: SubvolumeLink { dir, index, name, .. }, id, .. } = nested;
    let (dir, index, generation): (Ino, u64, _) = (*dir, *index, at_commit.generation());
    let edit = at_commit.tree(parent)?;
    let found = Found { target: Target::Subvolume(*id), kind: FileKind::Directory };
    names::retarget(&edit, &NewName { dir, name, index, found, generation })?;
    let roots = at_commit.tree(TreeId::ROOT)?;
    let pair = SubvolumePair { child: *id, parent };
    names::put_root_ref(&roots, pair, &RootRef { dir, index, name })?;
    Ok(())
}

fn corrupt(source: Refused) -> Error {
    Error::Corrupt { tree: TreeId::ROOT, source }
}
