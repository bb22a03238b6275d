//! Reports the names, types and orphan items of a subvolume that do not match its inodes. It walks
//! the tree again, after the sums of hashes have differed.

use crate::blocks::Block;
use crate::finding::Kind;
use crate::hash;
use crate::inode::{ROOT_DIR, kind_word};
use crate::ledger::Ledger;
use crate::sink::Sink;
use crate::walk::{Route, Survey, Walker};
use butternut_format::dir::{DirEntries, EntryKind};
use butternut_format::inode::Inode;
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key};
use butternut_format::node::Expected;
use butternut_format::units::TreeId;

/// One name, of an entry by index or of an inode's reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Link {
    dir: u64,
    index: u64,
    ino: u64,
    name: u64,
}

/// All items of a tree that are about names.
#[derive(Clone, Debug, Default)]
struct Names {
    entries: Vec<(Link, u64)>,
    refs: Vec<Link>,
    /// Inode number, type, whether it has no links.
    inodes: Vec<(u64, u64, bool)>,
    orphans: Vec<u64>,
    /// Inodes with items of fs-verity.
    verity: Vec<u64>,
}

struct NameSurvey;

impl Survey for NameSurvey {
    type Out = Names;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> Names {
        let mut out = Names::default();
        for slot in 0..leaf.len() {
            if let Some((key, data)) = leaf.item(slot) {
                add(key, data, &mut out);
            }
        }
        out
    }

    fn join(&self, left: &mut Names, right: Names) {
        left.entries.extend(right.entries);
        left.refs.extend(right.refs);
        left.inodes.extend(right.inodes);
        left.orphans.extend(right.orphans);
        left.verity.extend(right.verity);
    }
}

fn add(key: Key, data: &[u8], out: &mut Names) {
    match key.item_type {
        ItemType::INODE_ITEM => {
            if let Ok(inode) = Inode::check(data) {
                out.inodes.push((key.objectid, kind_word(inode.kind), inode.nlink == 0));
            }
        }
        ItemType::INODE_REF => out.refs.extend(InodeRefs::new(data).flatten().map(|entry| Link {
            dir: key.offset,
            index: entry.index,
            ino: key.objectid,
            name: hash::name(entry.name),
        })),
        ItemType::INODE_EXTREF => {
            out.refs.extend(InodeExtrefs::new(data).flatten().map(|entry| Link {
                dir: entry.parent.0,
                index: entry.index,
                ino: key.objectid,
                name: hash::name(entry.name),
            }));
        }
        ItemType::DIR_INDEX => {
            for entry in DirEntries::new(data).flatten() {
                if let (EntryKind::File(kind), ItemType::INODE_ITEM) =
                    (entry.kind, entry.location.item_type)
                {
                    let link = Link {
                        dir: key.objectid,
                        index: key.offset,
                        ino: entry.location.objectid,
                        name: hash::name(entry.name),
                    };
                    out.entries.push((link, kind_word(kind)));
                }
            }
        }
        ItemType::ORPHAN_ITEM => out.orphans.push(key.offset),
        ItemType::VERITY_DESC_ITEM | ItemType::VERITY_MERKLE_ITEM
            if out.verity.last() != Some(&key.objectid) =>
        {
            out.verity.push(key.objectid);
        }
        _ => {}
    }
}

/// Reports the mismatches in the names of a tree.
pub(crate) fn report_mismatches(walker: &Walker<'_>, tree: TreeId, root: Expected) {
    let ledger = Ledger::new();
    let again = Walker::new(walker.reader, &ledger, walker.pool());
    let sink = walker.reader.sink();
    let was_mute = sink.is_mute();
    sink.mute(true);
    let mut names =
        again.tree(&NameSurvey, root, &Route { is_unaccounted: true, ..Route::default() });
    sink.mute(was_mute);
    names.refs.retain(|link| link.ino != ROOT_DIR || link.dir != ROOT_DIR);
    names.refs.sort_unstable();
    names.entries.sort_unstable();
    names.inodes.sort_unstable();
    names.orphans.sort_unstable();
    names.verity.sort_unstable();
    unpaired(&names, tree, sink);
    kinds(&names, tree, sink);
    orphans(&names, tree, sink);
}

fn unpaired(names: &Names, tree: TreeId, sink: &Sink<'_>) {
    for (link, _) in &names.entries {
        if names.refs.binary_search(link).is_err() {
            let place = format!("tree {tree} directory {} entry {}", link.dir, link.index);
            let want = format!("one of inode {}", link.ino);
            sink.add(Kind::EntryUnpaired, place, "reference", "none", want);
        }
    }
    for link in &names.refs {
        if names.entries.binary_search_by_key(link, |(entry, _)| *entry).is_err() {
            let place = format!("tree {tree} inode {}", link.ino);
            let field = format!("entry {} of directory {}", link.index, link.dir);
            sink.add(Kind::ReferenceUnpaired, place, field, "none", "one with its name");
        }
    }
}

fn kinds(names: &Names, tree: TreeId, sink: &Sink<'_>) {
    for (link, kind) in &names.entries {
        let Ok(at) = names.inodes.binary_search_by_key(&link.ino, |(ino, ..)| *ino) else {
            continue;
        };
        if let Some((_, want, _)) = names.inodes.get(at)
            && kind != want
        {
            let place = format!("tree {tree} directory {} entry {}", link.dir, link.index);
            let (have, want) = (format!("{kind:#o}"), format!("{want:#o}, as the inode's mode"));
            sink.add(Kind::EntryKind, place, "type", have, want);
        }
    }
}

fn orphans(names: &Names, tree: TreeId, sink: &Sink<'_>) {
    for (ino, ..) in names.inodes.iter().filter(|(_, _, is_unlinked)| *is_unlinked) {
        if names.orphans.binary_search(ino).is_err() {
            let place = format!("tree {tree} inode {ino}");
            sink.add(Kind::OrphanMissing, place, "orphan item", "none", "one, for it has no links");
        }
    }
    for ino in &names.orphans {
        let found = names.inodes.binary_search_by_key(ino, |(ino, ..)| *ino).ok();
        let inode = found.and_then(|at| names.inodes.get(at));
        // The item guards a file on which fs-verity was being enabled.
        let is_guard = inode.is_some() && names.verity.binary_search(ino).is_ok();
        if inode.is_none_or(|(_, _, is_unlinked)| !is_unlinked) && !is_guard {
            let place = format!("tree {tree} orphan {ino}");
            let have = if inode.is_some() { "with links" } else { "none" };
            sink.add(Kind::OrphanExtra, place, "inode", have, "one without links");
        }
    }
}
