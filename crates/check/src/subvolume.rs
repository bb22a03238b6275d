//! Checks a subvolume.
//!
//! Leaves that snapshots share, and the references from them, are processed once. Names and inodes
//! of the whole tree are compared by sums of hashes ([`crate::hash`]). Only if these differ,
//! [`crate::names`] walks the tree again and reports the mismatches.

use crate::blocks::{Block, Reader};
use crate::extent_items::BlockTable;
use crate::finding::Kind;
use crate::hash;
use crate::inode::{
    Balance, ChecksumState, ExtentFields, InodeFields, InodePart, ROOT_DIR, Rules, entry_kind,
    kind_word, link, orphan,
};
use crate::ledger::{Ledger, RefKind, Reference};
use crate::misplaced::misplaced;
use crate::run::Run;
use crate::sink::Sink;
use crate::spans::Spans;
use crate::walk::{Memo, Survey};
use butternut_format::dir::{DirEntries, DirEntry, EntryKind};
use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::inode::Inode;
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{SECTOR_BYTES, TreeId};

/// Maximum length of an inline extent after decompression, in bytes.
const INLINE_BYTES_MAX: u64 = SECTOR_BYTES;

/// The result of the leaves of a subtree.
#[derive(Clone, Default)]
pub(crate) struct Summary {
    run: Run<Box<InodePart>>,
    balance: Balance,
    is_lost: bool,
}

pub(crate) struct SubvolumeSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) ledger: &'a Ledger,
    pub(crate) table: Option<&'a BlockTable>,
    pub(crate) sums: &'a Spans,
    /// Addresses whose checksums could not be read.
    pub(crate) lost_checksums: &'a Spans,
    pub(crate) memo: &'a Memo<Summary>,
    pub(crate) rules: Rules,
}

/// The result of a subvolume.
pub(crate) struct Verdict {
    /// Names, types or orphan items do not match the inodes.
    pub(crate) has_mismatch: bool,
    pub(crate) has_root: bool,
    pub(crate) is_lost: bool,
}

impl SubvolumeSurvey<'_> {
    /// Closes the inodes at both ends and returns the result of the whole tree.
    pub(crate) fn finish(&self, summary: Summary) -> Verdict {
        let Summary { run, mut balance, is_lost } = summary;
        run.finish(&mut |part| self.close(&part, &mut balance));
        let matches = balance.names == 0 && balance.kinds == 0 && balance.orphans == 0;
        if !is_lost {
            report_loops(&mut balance.parents, self.rules.tree, self.reader.sink());
        }
        Verdict { has_mismatch: !matches && !is_lost, has_root: balance.has_root, is_lost }
    }

    fn close(&self, part: &InodePart, balance: &mut Balance) {
        part.check(&self.rules, self.reader.sink(), balance);
    }

    fn item(&self, leaf: &LeafContext<'_, '_>, key: Key, data: &[u8], out: &mut Summary) {
        let Summary { run, balance, .. } = out;
        if key.item_type == ItemType::ORPHAN_ITEM {
            balance.orphans = balance.orphans.wrapping_sub(orphan(key.offset));
            return;
        }
        if !is_of_an_inode(key.item_type) {
            misplaced(self.reader, TreeId(self.rules.tree), leaf.block, key);
            return;
        }
        let mut closed = Balance::default();
        let make = |ino| Box::new(InodePart::new(ino));
        let part = run.part_of(key.objectid, make, &mut |part| self.close(&part, &mut closed));
        balance.add(closed);
        let Some(part) = part else { return };
        match key.item_type {
            ItemType::INODE_ITEM => {
                if let Ok(inode) = Inode::check(data) {
                    part.set_item(InodeFields::from(&inode));
                }
            }
            ItemType::INODE_REF => {
                for entry in InodeRefs::new(data).flatten() {
                    let link = (key.offset, entry.index, entry.name);
                    add_ref(part, balance, link);
                }
            }
            ItemType::INODE_EXTREF => {
                for entry in InodeExtrefs::new(data).flatten() {
                    add_ref(part, balance, (entry.parent.0, entry.index, entry.name));
                }
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                for entry in DirEntries::new(data).flatten() {
                    add_name(part, balance, key, &entry);
                }
            }
            ItemType::XATTR_ITEM => self.xattrs(key, data),
            ItemType::EXTENT_DATA => self.file_extent(leaf, key, data, part),
            ItemType::VERITY_DESC_ITEM | ItemType::VERITY_MERKLE_ITEM => part.add_verity(key, data),
            _ => {}
        }
    }

    fn file_extent(&self, leaf: &LeafContext<'_, '_>, key: Key, data: &[u8], part: &mut InodePart) {
        let Ok(extent) = FileExtent::check(data, key.offset) else { return };
        if leaf.is_first {
            count_data(self.ledger, leaf, key, &extent);
        }
        let sink = self.reader.sink();
        let place =
            || format!("tree {} inode {} extent at {}", self.rules.tree, part.ino, key.offset);
        let (bytes, is_inline) = match extent.body {
            ExtentBody::Inline(_) => (extent.ram_bytes, true),
            ExtentBody::Hole { .. } => (0, false),
            ExtentBody::Regular { run, .. } | ExtentBody::Preallocated { run, .. } => {
                (run.num_bytes, false)
            }
        };
        if is_inline && extent.ram_bytes > INLINE_BYTES_MAX {
            let want = format!("at most {INLINE_BYTES_MAX} of an inline extent");
            sink.add(Kind::FileExtentForm, place(), "ram_bytes", extent.ram_bytes, want);
        }
        if matches!(extent.body, ExtentBody::Preallocated { .. })
            && extent.compression != Compression::None
        {
            let want = "none where preallocated";
            let have = format!("{:?}", extent.compression);
            sink.add(Kind::FileExtentForm, place(), "compression", have, want);
        }
        let newest = self.reader.volume().super_block().generation();
        if extent.generation > newest {
            let want = format!("at most {newest}, the volume's");
            sink.add(Kind::FileExtentForm, place(), "generation", extent.generation, want);
        }
        let sums = self.checksums_of(&extent);
        if sums == ChecksumState::Unexpected {
            sink.add(
                Kind::ChecksumsUnexpected,
                place(),
                "checksums",
                "some",
                "none where preallocated",
            );
        }
        let end = key.offset.saturating_add(extent.file_bytes());
        let facts = ExtentFields {
            start: key.offset,
            end,
            bytes,
            is_inline,
            is_compressed: extent.compression != Compression::None,
            is_written: matches!(extent.body, ExtentBody::Inline(_) | ExtentBody::Regular { .. }),
            sums,
        };
        if let Err(end) = part.add_extent(&facts) {
            self.overlap(part.ino, key.offset, end);
        }
    }

    fn overlap(&self, ino: u64, start: u64, end: u64) {
        let place = format!("tree {} inode {ino}", self.rules.tree);
        let want = format!("at least {end}, where the extent before ends");
        self.reader.sink().add(Kind::FileExtentOverlap, place, "extent", start, want);
    }

    fn checksums_of(&self, extent: &FileExtent<'_>) -> ChecksumState {
        if !self.rules.wants_checksums {
            return ChecksumState::None;
        }
        let (disk, run, is_written) = match extent.body {
            ExtentBody::Regular { disk, run } => (disk, run, true),
            ExtentBody::Preallocated { disk, run } => (disk, run, false),
            ExtentBody::Inline(_) | ExtentBody::Hole { .. } => return ChecksumState::None,
        };
        let start = disk.logical.0;
        let (start, end) = if extent.compression == Compression::None {
            let start = start.saturating_add(run.offset);
            (start, start.saturating_add(run.num_bytes))
        } else {
            (start, start.saturating_add(disk.bytes))
        };
        if self.lost_checksums.covered(start, end) > 0 {
            return ChecksumState::None;
        }
        let covered = self.sums.covered(start, end);
        match (covered, is_written) {
            (0, true) if end > start => ChecksumState::Missing,
            (0, _) => ChecksumState::None,
            (_, false) => ChecksumState::Unexpected,
            (covered, true) if covered == end.saturating_sub(start) => ChecksumState::All,
            (_, true) => ChecksumState::Some,
        }
    }

    /// Checks that the names of an item are distinct. Attributes whose hashes collide share an
    /// item.
    fn xattrs(&self, key: Key, data: &[u8]) {
        let mut names: Vec<&[u8]> =
            DirEntries::new(data).flatten().map(|entry| entry.name).collect();
        let count = names.len();
        if count < 2 {
            return;
        }
        names.sort_unstable();
        names.dedup();
        if names.len() != count {
            let place = format!("tree {} inode {}", self.rules.tree, key.objectid);
            let want = format!("{} names, each once", names.len());
            self.reader.sink().add(Kind::XattrTwice, place, "attributes", count, want);
        }
    }
}

impl Survey for SubvolumeSurvey<'_> {
    type Out = Summary;

    fn leaf(&self, leaf: &Block<'_>, is_first: bool) -> Summary {
        let facts = LeafContext::of(leaf, is_first, self.table);
        let mut out = Summary::default();
        for slot in 0..leaf.len() {
            if let Some((key, data)) = leaf.item(slot) {
                self.item(&facts, key, data, &mut out);
            }
        }
        out
    }

    fn join(&self, left: &mut Summary, right: Summary) {
        left.balance.add(right.balance);
        left.is_lost |= right.is_lost;
        if let Some((ino, (start, end))) = left.run.seam(&right.run).and_then(|(before, behind)| {
            before.overlap(behind).map(|overlap| (before.ino, overlap))
        }) {
            self.overlap(ino, start, end);
        }
        let Summary { run, balance, .. } = left;
        run.join(right.run, &mut |part| self.close(&part, balance));
    }

    fn lost(&self) -> Summary {
        Summary { run: Run::lost(), is_lost: true, ..Summary::default() }
    }

    fn memo(&self) -> Option<&Memo<Summary>> {
        Some(self.memo)
    }
}

/// A leaf, and the form of its references.
pub(crate) struct LeafContext<'l, 'b> {
    pub(crate) block: &'l Block<'b>,
    is_first: bool,
    is_full: bool,
}

impl<'l, 'b> LeafContext<'l, 'b> {
    fn of(block: &'l Block<'b>, is_first: bool, table: Option<&BlockTable>) -> Self {
        let item = table.filter(|_| is_first).and_then(|table| table.find(block.logical()));
        Self { block, is_first, is_full: item.is_some_and(|item| item.is_full) }
    }
}

/// Posts the reference that a file extent makes, if it has a data extent.
fn count_data(ledger: &Ledger, leaf: &LeafContext<'_, '_>, key: Key, extent: &FileExtent<'_>) {
    let (disk, run) = match extent.body {
        ExtentBody::Regular { disk, run } | ExtentBody::Preallocated { disk, run } => (disk, run),
        ExtentBody::Inline(_) | ExtentBody::Hole { .. } => return,
    };
    let start = disk.logical.0;
    let reference = if leaf.is_full {
        Reference::of(start, RefKind::SharedData, leaf.block.logical().0)
    } else {
        Reference {
            start,
            kind: RefKind::Data,
            from: leaf.block.owner().0,
            ino: key.objectid,
            offset: key.offset.wrapping_sub(run.offset),
        }
    };
    ledger.add_use(&reference);
    ledger.add_use(&Reference::of(start, RefKind::Bytes, disk.bytes));
}

fn add_ref(part: &mut InodePart, balance: &mut Balance, (dir, index, name): (u64, u64, &[u8])) {
    part.add_ref(dir);
    // The root directory is its own parent, without a directory entry.
    if part.ino != ROOT_DIR || dir != ROOT_DIR {
        let link = link(dir, index, hash::name(name), part.ino);
        balance.names = balance.names.wrapping_sub(link);
    }
}

fn add_name(part: &mut InodePart, balance: &mut Balance, key: Key, entry: &DirEntry<'_>) {
    let name = hash::name(entry.name);
    let EntryKind::File(kind) = entry.kind else { return };
    let location = &entry.location;
    let is_index = key.item_type == ItemType::DIR_INDEX;
    let target =
        hash::words([location.objectid, u64::from(location.item_type.0), kind_word(kind), name]);
    part.add_name(is_index, entry.name.len(), target);
    // Entries of subvolumes are compared with the references in the root tree.
    if is_index && location.item_type == ItemType::INODE_ITEM {
        let link = link(key.objectid, key.offset, name, location.objectid);
        balance.names = balance.names.wrapping_add(link);
        balance.kinds = balance.kinds.wrapping_add(entry_kind(location.objectid, kind));
    }
}

pub(crate) fn is_of_an_inode(item_type: ItemType) -> bool {
    matches!(
        item_type,
        ItemType::INODE_ITEM
            | ItemType::INODE_REF
            | ItemType::INODE_EXTREF
            | ItemType::XATTR_ITEM
            | ItemType::VERITY_DESC_ITEM
            | ItemType::VERITY_MERKLE_ITEM
            | ItemType::DIR_ITEM
            | ItemType::DIR_INDEX
            | ItemType::EXTENT_DATA
    )
}

/// Reports loops of directories, which no path from the root reaches. A directory whose parent does
/// not exist is reported by its missing entry.
fn report_loops(parents: &mut [(u64, u64)], tree: u64, sink: &Sink<'_>) {
    parents.sort_unstable();
    let find = |dir: u64| parents.binary_search_by_key(&dir, |(dir, _)| *dir).ok();
    // For each directory the number of the upward walk that visited it first, or 0.
    let mut walk_of = vec![0_usize; parents.len()];
    for start in 0..parents.len() {
        let mut next = Some(start);
        while let Some(at) = next.filter(|at| walk_of.get(*at) == Some(&0)) {
            if let Some(walk_of) = walk_of.get_mut(at) {
                *walk_of = start + 1;
            }
            next = parents.get(at).and_then(|(_, parent)| find(*parent));
        }
        let Some(end) = next.filter(|at| walk_of.get(*at) == Some(&(start + 1))) else { continue };
        if let Some((dir, parent)) = parents.get(end) {
            let place = format!("tree {tree} directory {dir}");
            let have = format!("{parent}, which is inside it");
            sink.add(Kind::DirectoryLoop, place, "parent", have, "a directory above it");
        }
    }
}

/// Posts the references of a tree whose inodes are not checked, such as a subvolume that is being
/// deleted.
pub(crate) struct ReferenceSurvey<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) table: Option<&'a BlockTable>,
}

impl Survey for ReferenceSurvey<'_> {
    type Out = ();

    fn leaf(&self, leaf: &Block<'_>, is_first: bool) {
        if is_first {
            count_leaf(self.ledger, leaf, self.table);
        }
    }

    fn join(&self, _left: &mut (), _right: ()) {}
}

/// Posts all references to data extents of a leaf.
pub(crate) fn count_leaf(ledger: &Ledger, leaf: &Block<'_>, table: Option<&BlockTable>) {
    let facts = LeafContext::of(leaf, true, table);
    for slot in 0..leaf.len() {
        let Some((key, data)) = leaf.item(slot) else { continue };
        if key.item_type == ItemType::EXTENT_DATA
            && let Ok(extent) = FileExtent::check(data, key.offset)
        {
            count_data(ledger, &facts, key, &extent);
        }
    }
}

/// Checks that a subvolume has its root directory.
pub(crate) fn check_root(tree: TreeId, verdict: &Verdict, reader: &Reader<'_>) {
    if !verdict.has_root && !verdict.is_lost {
        let place = format!("tree {tree}");
        let have = format!("no directory {ROOT_DIR}");
        reader.sink().add(Kind::RootDirectory, place, "root directory", have, "one");
    }
}
