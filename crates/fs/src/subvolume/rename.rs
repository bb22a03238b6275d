//! Renames of subvolumes: within a directory, across directories and across subvolumes.
//!
//! Only the entry of a subvolume moves, and the references to it in the root tree. Both are changed
//! in one commit, so the new name is durable when the call returns.
//!
//! Laws:
//!
//! 1. A subvolume never becomes its own descendant.
//! 2. Everything that can be refused is refused before the commit begins: a commit that fails ends
//!    writing to the volume.
//! 3. A rename replaces no entry.
//! 4. Readers do not wait for the commit. The old entry is removed before the reference to it, and
//!    the new entry is added after its reference, so none is taken for a placeholder; and the
//!    subvolume has a parent at every moment.

use crate::inode::new_inode::next_index;
use crate::inode::table::LockedInodes;
use crate::names::create::check_name;
use crate::names::unlink::may_lose_entry;
use crate::subvolume::{NESTING_MAX, corrupt_root_tree};
use crate::write_state::WriteState;
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::refused::require;
use butternut_format::root::RootFlags;
use butternut_format::root_ref::RootRef;
use butternut_format::units::{Ino, TreeId};
use butternut_names::{
    self as names, Found, Moment, NewName, OldName, OldTarget, SubvolumePair, Target,
};
use butternut_tree::{ReservationLevel, Tree};

impl Filesystem {
    /// Returns the subvolume that has this name; `None` for every other inode.
    fn subvolume_named(&self, (dir, name): (FileId, &[u8])) -> Result<Option<TreeId>> {
        let (id, _) = self.entry(dir, name)?;
        let is_other = id.is_subvolume_root() && id.subvolume != dir.subvolume;
        Ok(is_other.then_some(TreeId(id.subvolume)))
    }

    /// Moves the entry of a subvolume. Returns whether `from` is one.
    ///
    /// # Errors
    /// As [`Filesystem::rename`].
    pub(crate) fn rename_subvolume(
        &self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
    ) -> Result<bool> {
        if self.subvolume_named(from)?.is_none() {
            return Ok(false);
        }
        check_name(to.1)?;
        let write_state = self.may_begin()?;
        self.open_before_exclusion(write_state, from.0)?;
        self.open_before_exclusion(write_state, to.0)?;
        let excluded = write_state.snapshots.exclude_writes();
        // The name may refer to something else by now.
        let renamed = self.subvolume_named(from).and_then(|id| {
            id.map(|id| self.rename_excluded(write_state, id, from, to)).transpose()
        });
        drop(excluded);
        renamed.map(|renamed| renamed.is_some())
    }

    fn rename_excluded(
        &self,
        write_state: &WriteState,
        id: TreeId,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
    ) -> Result<()> {
        let source = self.writable_subvolume(write_state, from.0)?;
        let target = self.writable_subvolume(write_state, to.0)?;
        let from_dir = self.entry_of(write_state, from.0)?;
        let to_dir = self.entry_of(write_state, to.0)?;
        if from == to {
            return Ok(());
        }
        self.check_nesting(id, target.id)?;
        let mut locked = LockedInodes::lock(&[&from_dir, &to_dir]);
        let mut from_inode = self.directory_to_change(&from_dir)?;
        let is_across = from.0 != to.0;
        let mut to_inode = is_across.then(|| self.directory_to_change(&to_dir)).transpose()?;
        may_lose_entry(&from_inode, &self.inode(FileId::root_of(id.0))?)?;
        if is_across {
            self.may_leave_directory(id)?;
        }
        let limits = names::Limits::of(self.super_block());
        names::check_addable(&target.tree, limits, Ino(to.0.ino), to.1)?;
        let old_index = self.index_of_subvolume(&source.tree, id, from)?;
        let index = next_index(&target, &to_dir, locked.of(&to_dir))?;
        let now = write_state.clock.now();
        self.forest().commit_with(ReservationLevel::Normal, |at_commit| -> Result<()> {
            let generation = at_commit.generation();
            let moment = Moment { generation, now };
            let edit = at_commit.tree(source.id)?;
            let old = OldTarget::Unreferenced { index: old_index };
            let dir = Ino(from.0.ino);
            names::unlink(&edit, &OldName { dir, name: from.1, target: old })?;
            names::entry_removed(&mut from_inode, from.1, moment);
            names::put_inode(&edit, dir, &from_inode)?;
            let roots = at_commit.tree(TreeId::ROOT)?;
            let reference = RootRef { dir: Ino(to.0.ino), index, name: to.1 };
            let pair = SubvolumePair { child: id, parent: target.id };
            names::put_root_ref(&roots, pair, &reference)?;
            if target.id != source.id {
                names::remove_root_ref(&roots, SubvolumePair { child: id, parent: source.id })?;
            }
            let edit = at_commit.tree(target.id)?;
            let found = Found { target: Target::Subvolume(id), kind: FileKind::Directory };
            let dir = Ino(to.0.ino);
            names::link(&edit, &NewName { dir, name: to.1, index, found, generation })?;
            let inode = to_inode.as_mut().unwrap_or(&mut from_inode);
            names::entry_added(inode, to.1, moment);
            Ok(names::put_inode(&edit, dir, inode)?)
        })?;
        locked.of(&to_dir).next_index = index.checked_add(1);
        from_dir.set(from_inode);
        if let Some(to_inode) = to_inode {
            to_dir.set(to_inode);
        }
        Ok(())
    }

    /// Checks law 1 for subvolume `id` and the subvolume that it moves to.
    fn check_nesting(&self, id: TreeId, target: TreeId) -> Result<()> {
        let roots = self.forest().root_tree();
        let mut ancestor = target;
        for _ in 0..NESTING_MAX {
            if ancestor == id {
                return Err(Error::InvalidArgument { what: "a subvolume cannot be below itself" });
            }
            match names::parent_link(&roots, ancestor)? {
                Some(link) => ancestor = link.parent,
                None => return Ok(()),
            }
        }
        Err(Error::InvalidArgument { what: "subvolumes are nested too deeply" })
    }

    /// Checks that the root directory of a subvolume may get another parent, for which the kernel
    /// wants it to be writable.
    fn may_leave_directory(&self, id: TreeId) -> Result<()> {
        let root = self.forest().root_item(id)?;
        let is_read_only =
            root.is_some_and(|(_, root)| root.flags().contains(RootFlags::READ_ONLY));
        if is_read_only { Err(Error::ReadOnly { what: "the subvolume" }) } else { Ok(()) }
    }

    /// Returns the index of the entry of a subvolume, which the directory and the root tree must
    /// agree on (law 2).
    fn index_of_subvolume(&self, tree: &Tree, id: TreeId, entry: (FileId, &[u8])) -> Result<u64> {
        let link = self.subvolume_link_at(id, entry)?;
        let index = names::index_of_subvolume(tree, &link)?;
        require(index == link.index, "index", index, link.index).map_err(corrupt_root_tree)?;
        Ok(index)
    }
}
