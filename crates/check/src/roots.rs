//! Checks the root tree: the roots of all trees, and the references between subvolumes.
//!
//! 1. A subvolume that is not being deleted has one parent directory in another subvolume, with a
//!    matching pair of `ROOT_REF` and `ROOT_BACKREF`. The top-level subvolume has no parent.
//! 2. That directory has an entry for it, by hash and by index.
//! 3. A subvolume that is being deleted has no references. It has an orphan item until the deletion
//!    is complete.
//! 4. The UUID tree has an entry for the UUID, and for the received UUID, of every subvolume.

use crate::blocks::{Block, Reader};
use crate::extent_items::BlockTable;
use crate::finding::Kind;
use crate::ledger::Ledger;
use crate::misplaced::misplaced;
use crate::subvolume::{count_leaf, is_of_an_inode};
use crate::walk::Survey;
use butternut_format::checksum::name_hash;
use butternut_format::dir::DirEntries;
use butternut_format::free_space::FREE_SPACE_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::root::RootItem;
use butternut_format::root_ref::RootRef;
use butternut_format::units::TreeId;
use butternut_format::uuid::{Uuid, subvolume_ids};
use std::collections::{HashMap, HashSet};

/// A tree and its root item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) tree: TreeId,
    pub(crate) item: RootItem,
}

impl Root {
    pub(crate) fn expected(&self) -> Expected {
        self.item.block(self.tree)
    }

    /// Returns whether the subvolume is being deleted.
    pub(crate) fn is_being_deleted(&self) -> bool {
        self.tree.is_subvolume() && self.item.refs() == 0
    }

    /// Returns the progress of its deletion, if it has begun.
    pub(crate) fn removed_to(&self) -> Option<(u8, Key)> {
        let key = Key::from(&self.item.raw().drop_progress);
        let begun = self.tree != TreeId::TREE_RELOCATION && key != Key::default();
        begun.then_some((self.item.raw().drop_level, key))
    }
}

/// A `ROOT_REF` or `ROOT_BACKREF`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    parent: u64,
    child: u64,
    dir: u64,
    index: u64,
    name: Vec<u8>,
}

/// Contents of the root tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots {
    pub(crate) trees: Vec<Root>,
    forward: Vec<Reference>,
    back: Vec<Reference>,
    orphans: Vec<u64>,
    /// The target of the directory entry "default".
    default: Option<u64>,
    pub(crate) is_lost: bool,
}

impl Roots {
    pub(crate) fn find(&self, tree: TreeId) -> Option<&Root> {
        // Sorted by key; of several items of one tree the last is the newest.
        let after = self.trees.partition_point(|root| root.tree <= tree);
        self.trees.get(after.checked_sub(1)?).filter(|root| root.tree == tree)
    }
}

pub(crate) struct RootSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) ledger: &'a Ledger,
}

impl RootSurvey<'_> {
    fn item(&self, leaf: &Block<'_>, key: Key, data: &[u8], out: &mut Roots) {
        match key.item_type {
            ItemType::ROOT_ITEM => {
                if let Ok(item) = RootItem::check(key, data) {
                    out.trees.push(Root { tree: TreeId(key.objectid), item });
                }
            }
            ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
                let Ok(found) = RootRef::check(data) else { return };
                let is_forward = key.item_type == ItemType::ROOT_REF;
                let (parent, child) = if is_forward {
                    (key.objectid, key.offset)
                } else {
                    (key.offset, key.objectid)
                };
                let (dir, index, name) = (found.dir.0, found.index, found.name.to_vec());
                let side = if is_forward { &mut out.forward } else { &mut out.back };
                side.push(Reference { parent, child, dir, index, name });
            }
            ItemType::ORPHAN_ITEM => out.orphans.push(key.offset),
            ItemType::DIR_ITEM if key.objectid == TreeId::ROOT_DIR.0 => {
                let entries = DirEntries::new(data).flatten();
                let default = entries.filter(|entry| entry.name == b"default").last();
                out.default = default.map(|entry| entry.location.objectid);
            }
            ItemType(0) if key.objectid == FREE_SPACE_OBJECTID => {}
            ItemType::TEMPORARY_ITEM | ItemType::PERSISTENT_ITEM | ItemType::STRING_ITEM => {}
            other if is_of_an_inode(other) => {}
            _ => misplaced(self.reader, TreeId::ROOT, leaf, key),
        }
    }
}

impl Survey for RootSurvey<'_> {
    type Out = Roots;

    fn leaf(&self, leaf: &Block<'_>, is_first: bool) -> Roots {
        let mut out = Roots::default();
        for slot in 0..leaf.len() {
            if let Some((key, data)) = leaf.item(slot) {
                self.item(leaf, key, data, &mut out);
            }
        }
        if is_first {
            // Free space caches (v1) are files of this tree. Its blocks are never shared.
            let unshared: Option<&BlockTable> = None;
            count_leaf(self.ledger, leaf, unshared);
        }
        out
    }

    fn join(&self, left: &mut Roots, right: Roots) {
        left.trees.extend(right.trees);
        left.forward.extend(right.forward);
        left.back.extend(right.back);
        left.orphans.extend(right.orphans);
        left.default = left.default.or(right.default);
        left.is_lost |= right.is_lost;
    }

    fn lost(&self) -> Roots {
        Roots { is_lost: true, ..Roots::default() }
    }
}

/// Checks laws 1 and 3, and that the default subvolume exists.
pub(crate) fn check(roots: &Roots, reader: &Reader<'_>) {
    if roots.is_lost {
        return;
    }
    let sink = reader.sink();
    pairs(roots, reader);
    let mut parents: HashMap<u64, (usize, usize)> = HashMap::new();
    roots.forward.iter().for_each(|found| parents.entry(found.child).or_default().0 += 1);
    roots.back.iter().for_each(|found| parents.entry(found.child).or_default().1 += 1);
    for root in roots.trees.iter().filter(|root| root.tree.is_subvolume()) {
        let tree = root.tree;
        let place = format!("root item of tree {tree}");
        // Orphan items are sorted by key.
        let is_orphan = roots.orphans.binary_search(&tree.0).is_ok();
        if root.is_being_deleted() {
            if !is_orphan {
                sink.add(Kind::RootOrphan, &place, "orphan item", "none", "one, for refs is 0");
            }
            continue;
        }
        let (forward, back) = parents.get(&tree.0).copied().unwrap_or_default();
        let parents = forward.max(back);
        if tree != TreeId::FS && parents == 0 {
            sink.add(Kind::RootUnreachable, &place, "references", "none", "one");
        }
        if root.item.refs() != 1 || parents > 1 {
            let have = root.item.refs().max(u32::try_from(parents).unwrap_or(u32::MAX));
            sink.add(Kind::RootItem, &place, "refs", have, 1);
        }
        if root.item.root_dirid() != crate::inode::ROOT_DIR {
            let have = root.item.root_dirid();
            sink.add(Kind::RootItem, &place, "root_dirid", have, crate::inode::ROOT_DIR);
        }
    }
    for found in roots.forward.iter().chain(&roots.back) {
        if roots.find(TreeId(found.child)).is_none() {
            let place = format!("reference from tree {}", found.parent);
            let have = format!("none of tree {}", found.child);
            sink.add(Kind::RootReference, place, "root item", have, "one");
        }
    }
    if let Some(default) = roots.default.filter(|tree| roots.find(TreeId(*tree)).is_none()) {
        let place = "tree root: directory entry default";
        sink.add(Kind::RootItem, place, "location", default, "a subvolume");
    }
}

fn pairs(roots: &Roots, reader: &Reader<'_>) {
    let (mut forward, mut back) = (roots.forward.clone(), roots.back.clone());
    forward.sort();
    back.sort();
    let report = |found: &Reference, field: &str| {
        let place =
            format!("tree {} in directory {} of tree {}", found.child, found.dir, found.parent);
        let want =
            format!("one, index {} name {:?}", found.index, found.name.escape_ascii().to_string());
        reader.sink().add(Kind::RootReference, place, field, "none that is the same", want);
    };
    forward.iter().filter(|found| back.binary_search(found).is_err()).for_each(|found| {
        report(found, "back reference");
    });
    back.iter().filter(|found| forward.binary_search(found).is_err()).for_each(|found| {
        report(found, "reference");
    });
}

/// Checks law 2.
pub(crate) fn check_entries(roots: &Roots, reader: &Reader<'_>) {
    for found in &roots.forward {
        let Some(parent) = roots.find(TreeId(found.parent)) else { continue };
        if parent.is_being_deleted() {
            continue;
        }
        let leads = |data: &[u8]| {
            DirEntries::new(data).flatten().any(|entry| {
                entry.name == found.name
                    && entry.location.item_type == ItemType::ROOT_ITEM
                    && entry.location.objectid == found.child
            })
        };
        let keys = [
            ("by index", Key::new(found.dir, ItemType::DIR_INDEX, found.index)),
            ("by hash", Key::new(found.dir, ItemType::DIR_ITEM, name_hash(&found.name))),
        ];
        for (how, key) in keys {
            if !find(reader, parent.expected(), &key, &leads).unwrap_or(true) {
                let place = format!("tree {} in tree {}", found.child, found.parent);
                let field = format!("entry {how} in directory {}", found.dir);
                let want = format!("{:?}", found.name.escape_ascii().to_string());
                reader.sink().add(Kind::RootEntry, place, field, "none", want);
            }
        }
    }
}

/// Returns whether a tree has an item at `key` that `suits` accepts; `None` if a block on the path
/// cannot be read.
fn find(
    reader: &Reader<'_>,
    root: Expected,
    key: &Key,
    suits: &dyn Fn(&[u8]) -> bool,
) -> Option<bool> {
    let mut next = root;
    loop {
        let mut answer = None;
        let mut child = None;
        reader.read(&[next], &mut |_, block| {
            let Some(block) = block else { return };
            let slot = match block.find(key) {
                Ok(slot) => slot,
                Err(0) => return answer = Some(false),
                Err(slot) => slot - 1,
            };
            if block.is_leaf() {
                let item = block.item(slot).filter(|(found, _)| found == key);
                answer = Some(item.is_some_and(|(_, data)| suits(data)));
            }
            child = block.child(slot);
        });
        let Some(found) = child else { return answer };
        next = Expected {
            logical: found.logical,
            generation: found.generation,
            level: next.level.checked_sub(1)?,
            tree: root.tree,
            first_key: Some(found.key),
            end_key: None,
        };
    }
}

/// Reads the UUID tree.
pub(crate) struct UuidSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
}

impl Survey for UuidSurvey<'_> {
    /// Keys and subvolume ids.
    type Out = Vec<(Key, u64)>;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> Self::Out {
        let mut out = Vec::new();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            match key.item_type {
                ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
                    let ids = subvolume_ids(data).into_iter().flatten();
                    out.extend(ids.map(|tree| (key, tree.0)));
                }
                _ => misplaced(self.reader, TreeId::UUID, leaf, key),
            }
        }
        out
    }

    fn join(&self, left: &mut Self::Out, right: Self::Out) {
        left.extend(right);
    }
}

/// Checks law 4.
pub(crate) fn check_uuids(entries: &[(Key, u64)], roots: &Roots, reader: &Reader<'_>) {
    let sink = reader.sink();
    let known: HashSet<(Key, u64)> = entries.iter().copied().collect();
    let uuids = |root: &Root| {
        let history = root.item.history().unwrap_or_default();
        [
            (ItemType::UUID_SUBVOL, Uuid(history.uuid)),
            (ItemType::UUID_RECEIVED_SUBVOL, Uuid(history.received_uuid)),
        ]
    };
    for root in
        roots.trees.iter().filter(|root| root.tree.is_subvolume() && !root.is_being_deleted())
    {
        for (item_type, uuid) in uuids(root).into_iter().filter(|(_, uuid)| !uuid.is_nil()) {
            let key = uuid.key(item_type);
            if !known.contains(&(key, root.tree.0)) {
                let place = format!("tree {}", root.tree);
                sink.add(Kind::UuidEntry, place, "entry in the uuid tree", "none", uuid);
            }
        }
    }
    for (key, tree) in entries {
        let root = roots.find(TreeId(*tree));
        let has_uuid = root.is_some_and(|root| {
            uuids(root).iter().any(|(item_type, uuid)| uuid.key(*item_type) == *key)
        });
        if !has_uuid {
            let place = format!("uuid {}", Uuid::from_key(key));
            let want = "a subvolume with this uuid";
            sink.add(Kind::UuidEntry, place, "subvolume", tree, want);
        }
    }
}
