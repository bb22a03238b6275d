//! Subvolumes and snapshots: their properties, parents and paths.

pub(crate) mod barrier;
pub(crate) mod clean;
pub(crate) mod create;
mod delete;
pub(crate) mod exchanges;
pub(crate) mod listings;
pub(crate) mod mark;
pub(crate) mod merges;
mod properties;
pub(crate) mod recursive;
mod rename;
mod renaming;
pub(crate) mod roots;
pub(crate) mod sent;
pub(crate) mod uuid_tree;

use crate::names::path::PATH_STEPS_MAX;
use crate::{Error, FileId, Filesystem, Result, TOP_LEVEL, Time};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::{Refused, require};
use butternut_format::root::{RootFlags, RootItem};
use butternut_format::root_ref::RootRef;
use butternut_format::units::TreeId;
use butternut_names::{self as names, NamesError, PathBudget, SubvolumeLink};

/// Maximum nesting depth of subvolumes on a path.
const NESTING_MAX: usize = 2048;
/// Bytes of the directories on a path, at most: 16 times the longest path that system calls take.
const PATH_BYTES_MAX: usize = 1 << 16;

/// Maximum number of nested subvolumes that are listed for one subvolume.
const CHILDREN_MAX: usize = 1 << 20;

/// One subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubvolumeInfo {
    pub id: u64,
    /// The parent subvolume; `None` for the top level and for deleted subvolumes.
    pub parent: Option<u64>,
    /// Inode number of the directory in `parent`, and the name there.
    pub dir: u64,
    pub name: Vec<u8>,
    /// The path from the top-level subvolume, without a leading `/`; "" for the top level itself;
    /// `None` for a subvolume that is deleted and not yet cleaned, and for one in directories whose
    /// path has more than 64 KiB or 2,048 names.
    pub path: Option<Vec<u8>>,
    pub uuid: [u8; 16],
    /// The UUID of the subvolume that this is a snapshot of; zero if there is none.
    pub parent_uuid: [u8; 16],
    pub received_uuid: [u8; 16],
    pub generation: u64,
    /// The generation in which it was created.
    pub created_generation: u64,
    pub changed_generation: u64,
    pub sent_generation: u64,
    pub received_generation: u64,
    pub created: Time,
    pub changed: Time,
    pub sent: Time,
    pub received: Time,
    /// The `BTRFS_ROOT_SUBVOL_*` bits as stored.
    pub flags: u64,
    pub read_only: bool,
    /// Deleted, and not yet cleaned.
    pub deleted: bool,
}

impl SubvolumeInfo {
    /// Returns what the items of a subvolume in the root tree say: its root item, and its reference
    /// with the id of its parent. `path` is its path from the top level.
    pub fn of_items(
        id: u64,
        root: &RootItem,
        parent: Option<(u64, RootRef<'_>)>,
        path: Option<Vec<u8>>,
    ) -> Self {
        let deleted = id != TOP_LEVEL && (root.refs() == 0 || parent.is_none());
        let parent = parent.filter(|_| !deleted);
        let history = root.history().unwrap_or_default();
        Self {
            id,
            parent: parent.map(|(parent, _)| parent),
            dir: parent.map_or(0, |(_, entry)| entry.dir.0),
            name: parent.map_or_else(Vec::new, |(_, entry)| entry.name.to_vec()),
            path: path.filter(|_| !deleted),
            uuid: history.uuid,
            parent_uuid: history.parent_uuid,
            received_uuid: history.received_uuid,
            generation: root.generation().0,
            created_generation: history.origin.0.0,
            changed_generation: history.change.0.0,
            sent_generation: history.send.0.0,
            received_generation: history.receive.0.0,
            created: history.origin.1.into(),
            changed: history.change.1.into(),
            sent: history.send.1.into(),
            received: history.receive.1.into(),
            flags: root.flags().0,
            read_only: root.flags().contains(RootFlags::READ_ONLY),
            deleted,
        }
    }
}

impl Filesystem {
    /// Returns all subvolumes except the top level, by id, including deleted ones that are still on
    /// disk.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let mut found = Vec::new();
        let mut budget = PathBudget::new(PATH_STEPS_MAX);
        let mut cursor = self.forest().root_tree().scan();
        cursor.seek(&Key::new(256, ItemType::ROOT_ITEM, 0))?;
        while let Some((key, data)) = cursor.item_parts() {
            if !TreeId(key.objectid).is_subvolume() {
                break;
            }
            if key.item_type == ItemType::ROOT_ITEM {
                let root = root_item(key, data)?;
                found.push(self.subvolume_info(key.objectid, &root, &mut budget)?);
            }
            cursor.advance()?;
        }
        Ok(found)
    }

    /// Returns one subvolume; 5 is the top level.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`] if there is none with this id.
    pub fn subvolume(&self, id: u64) -> Result<SubvolumeInfo> {
        let tree = TreeId(id);
        let root = if tree.is_subvolume() { self.forest().root_item(tree)? } else { None };
        let (_, root) = root.ok_or_else(|| Error::NoSubvolume { what: id.to_string() })?;
        self.subvolume_info(id, &root, &mut PathBudget::new(PATH_STEPS_MAX))
    }

    /// Returns the subvolumes nested directly in `parent`: id, directory and name.
    pub fn nested_subvolumes(&self, parent: u64) -> Result<Vec<(u64, u64, Vec<u8>)>> {
        let children = names::children(&self.forest().root_tree(), TreeId(parent), CHILDREN_MAX)?;
        Ok(children.into_iter().map(|link| (link.child.0, link.dir.0, link.name)).collect())
    }

    /// Returns the default subvolume, which a mount without options shows.
    pub fn default_subvolume(&self) -> Result<u64> {
        let set = names::default_subvolume(&self.forest().root_tree())?;
        Ok(set.map_or(TOP_LEVEL, |id| id.0))
    }

    /// Returns the link of subvolume `id`, whose entry is a name in a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has no parent; [`Error::Corrupt`] if its reference in the root
    /// tree names another entry.
    fn subvolume_link_at(&self, id: TreeId, entry: (FileId, &[u8])) -> Result<SubvolumeLink> {
        let (dir, name) = entry;
        let link = names::parent_link(&self.forest().root_tree(), id)?.ok_or(Error::NotFound)?;
        let is_here = (link.parent.0, link.dir.0) == (dir.subvolume, dir.ino) && link.name == name;
        let have = format_args!("an entry in directory {} of {}", link.dir.0, link.parent.0);
        let want = format_args!("this one, in directory {} of {}", dir.ino, dir.subvolume);
        require(is_here, "parent", have, want).map_err(corrupt_root_tree)?;
        Ok(link)
    }

    fn subvolume_info(
        &self,
        id: u64,
        root: &RootItem,
        budget: &mut PathBudget,
    ) -> Result<SubvolumeInfo> {
        let link = names::parent_link(&self.forest().root_tree(), TreeId(id))?;
        let deleted = id != TOP_LEVEL && (root.refs() == 0 || link.is_none());
        let link = link.filter(|_| !deleted);
        let path = if deleted {
            None
        } else {
            // Any user can make directories so deep or long that the path has no use; one of them
            // must not hide the other subvolumes.
            budget.begin_path();
            match self.subvolume_path(id, budget) {
                Err(Error::Names(NamesError::TooMany { .. })) => None,
                found => found?,
            }
        };
        let link = link.as_ref().map(|SubvolumeLink { parent, dir, index, name, .. }| {
            (parent.0, RootRef { dir: *dir, index: *index, name })
        });
        Ok(SubvolumeInfo::of_items(id, root, link, path))
    }

    /// Returns the path of a subvolume from the top level; `None` if it, or one of its ancestors,
    /// has no parent, or the path is longer than [`PATH_BYTES_MAX`].
    fn subvolume_path(&self, id: u64, budget: &mut PathBudget) -> Result<Option<Vec<u8>>> {
        let root_tree = self.forest().root_tree();
        let (mut parts, mut bytes) = (Vec::new(), 0_usize);
        let mut at = TreeId(id);
        for _ in 0..NESTING_MAX {
            if at == TreeId::FS {
                parts.reverse();
                return Ok(Some(parts.join(&b'/')));
            }
            budget.step()?;
            let Some(link) = names::parent_link(&root_tree, at)? else { return Ok(None) };
            let Some(parent) = self.forest().tree(link.parent)? else { return Ok(None) };
            let Some(dir) = names::directory_path(&parent, link.dir, budget)? else {
                return Ok(None);
            };
            bytes = bytes.saturating_add(dir.len());
            if bytes > PATH_BYTES_MAX {
                return Ok(None);
            }
            parts.push(link.name);
            if !dir.is_empty() {
                parts.push(dir);
            }
            at = link.parent;
        }
        Ok(None)
    }
}

fn corrupt_root_tree(source: Refused) -> Error {
    Error::Corrupt { tree: TreeId::ROOT, source }
}

fn root_item(key: Key, data: &[u8]) -> Result<RootItem> {
    RootItem::check(key, data)
        .map_err(|refused| corrupt_root_tree(refused.at(format_args!("item {key}"))))
}
