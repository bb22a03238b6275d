//! One pass over all trees. The order gives each tree the results that its check needs.
//!
//! ```text
//! chunk tree        logical to physical mapping
//! root tree         the roots of the other trees
//! extent tree       allocated extents and their back references; builds the table of tree blocks
//! block groups, free space, checksums, devices, UUIDs, quotas
//! subvolumes        references to extents; names, inodes, files
//! other trees       relocation trees, logs, subvolumes that are being deleted
//! ```
//!
//! A pass posts every reference to its ledger, which is compared after the pass.

use crate::blocks::Reader;
use crate::checksum_items::{self, ChecksumSurvey};
use crate::chunk_tree::{ChunkSurvey, ChunkTree};
use crate::device_tree::{self, DeviceSurvey};
use crate::extent_items::{BlockTable, ExtentSurvey, Extents};
use crate::finding::Kind;
use crate::free_space::{self, FreeSurvey};
use crate::group_tree::{self, GroupSurvey};
use crate::inode::Rules;
use crate::ledger::Ledger;
use crate::misplaced::KeysOnly;
use crate::names;
use crate::roots::{self, Root, RootSurvey, Roots, UuidSurvey};
use crate::spans::Spans;
use crate::subvolume::{ReferenceSurvey, SubvolumeSurvey, Summary, check_root};
use crate::supers;
use crate::walk::{Memo, Route, Survey, Walker};
use butternut_format::block_group::BlockGroup;
use butternut_format::feature;
use butternut_format::key::ItemType;
use butternut_format::units::TreeId;
use std::sync::atomic::Ordering;

/// Trees with a survey of their own. The other trees are walked only for their references.
const OWN_SURVEY: [TreeId; 9] = [
    TreeId::ROOT,
    TreeId::CHUNK,
    TreeId::EXTENT,
    TreeId::BLOCK_GROUP,
    TreeId::FREE_SPACE,
    TreeId::CHECKSUM,
    TreeId::DEVICE,
    TreeId::UUID,
    TreeId::QUOTA,
];

/// Maximum number of subvolumes whose mismatched names are listed. For further subvolumes one
/// finding says that there are some.
const EXPLAINED_MAX: u32 = 64;

pub(crate) struct Pass<'a> {
    pub(crate) walker: Walker<'a>,
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) ledger: &'a Ledger,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        reader: &'a Reader<'a>,
        ledger: &'a Ledger,
        pool: Option<&'a rayon::ThreadPool>,
    ) -> Self {
        Self { walker: Walker::new(reader, ledger, pool), reader, ledger }
    }

    /// Walks the chunk tree.
    pub(crate) fn chunk_tree(&self) -> ChunkTree {
        let root = self.reader.volume().super_block().chunk_root();
        self.walker.tree(&ChunkSurvey { reader: self.reader }, root, &Route::default())
    }

    /// Walks all other trees.
    pub(crate) fn trees(&self, chunk_tree: &ChunkTree) {
        let super_block = self.reader.volume().super_block();
        let survey = RootSurvey { reader: self.reader, ledger: self.ledger };
        let roots = self.walker.tree(&survey, super_block.root(), &Route::default());
        self.require_trees(&roots);
        roots::check(&roots, self.reader);
        if !roots.is_lost {
            supers::check_backup(self.reader, &roots);
        }
        let mut extents = self.extents(&roots);
        let blocks = std::mem::take(&mut extents.blocks);
        self.walker.set_table(BlockTable::new(blocks));
        let mut groups = std::mem::take(&mut extents.groups);
        groups.extend(self.group_tree(&roots));
        groups.sort_by_key(|group| group.logical);
        self.block_groups(&groups, &extents.spans, chunk_tree);
        self.free_space(&roots, &groups, &extents.spans);
        let sums = self.sums(&roots, &extents.spans);
        self.devices(&roots, chunk_tree);
        self.uuids(&roots);
        self.quotas(&roots);
        self.subvolumes(&roots, &sums);
        self.others(&roots);
        self.log();
        if !self.reader.sink().is_mute() {
            roots::check_entries(&roots, self.reader);
        }
    }

    fn walk<S: Survey>(&self, survey: &S, root: &Root) -> S::Out {
        self.walker.tree(survey, root.expected(), &Route::default())
    }

    fn extents(&self, roots: &Roots) -> Extents {
        let survey = ExtentSurvey::new(self.reader, self.ledger);
        let Some(root) = roots.find(TreeId::EXTENT) else { return Extents::default() };
        let mut extents = self.walk(&survey, root);
        survey.finish(&mut extents);
        extents
    }

    fn group_tree(&self, roots: &Roots) -> Vec<BlockGroup> {
        let root = roots.find(TreeId::BLOCK_GROUP);
        root.map_or_else(Vec::new, |root| self.walk(&GroupSurvey { reader: self.reader }, root))
    }

    /// Compares allocated bytes with block groups, chunks and the superblock.
    fn block_groups(&self, groups: &[BlockGroup], spans: &Spans, chunk_tree: &ChunkTree) {
        let sink = self.reader.sink();
        if sink.lost.extents.load(Ordering::Relaxed) {
            return;
        }
        group_tree::check_chunks(groups, &chunk_tree.chunks, sink);
        let used = group_tree::check_used(groups, spans, sink);
        let have = self.reader.volume().super_block().raw().bytes_used.get();
        if have != used {
            let want = format!("{used}, as the extents");
            sink.add(Kind::SuperField, "superblock", "bytes_used", have, want);
        }
    }

    fn free_space(&self, roots: &Roots, groups: &[BlockGroup], spans: &Spans) {
        let super_block = self.reader.volume().super_block();
        let sink = self.reader.sink();
        let Some(root) = roots.find(TreeId::FREE_SPACE) else { return };
        let free = self.walk(&FreeSurvey { reader: self.reader }, root);
        if !super_block.has_compat_ro(feature::FREE_SPACE_TREE_VALID) {
            sink.note("the free space tree is marked invalid and is not compared");
            return;
        }
        if !sink.lost.extents.load(Ordering::Relaxed) {
            free_space::check(&free, groups, spans, sink);
        }
    }

    fn sums(&self, roots: &Roots, spans: &Spans) -> Spans {
        let checksum_bytes = self.reader.volume().super_block().csum().bytes();
        let Some(root) = roots.find(TreeId::CHECKSUM) else { return Spans::default() };
        let sums = self.walk(&ChecksumSurvey { reader: self.reader, checksum_bytes }, root);
        if !self.reader.sink().lost.extents.load(Ordering::Relaxed) {
            checksum_items::check_allocated(&sums, spans, self.reader.sink());
        }
        sums
    }

    fn devices(&self, roots: &Roots, chunk_tree: &ChunkTree) {
        let Some(root) = roots.find(TreeId::DEVICE) else { return };
        let tree = self.walk(&DeviceSurvey { reader: self.reader }, root);
        let chunks = self.reader.volume().chunks();
        device_tree::check(&tree, chunk_tree, &chunks, self.reader.sink());
    }

    fn uuids(&self, roots: &Roots) {
        let Some(root) = roots.find(TreeId::UUID) else { return };
        let lost = &self.reader.sink().lost.users;
        let was_lost = lost.load(Ordering::Relaxed);
        let entries = self.walk(&UuidSurvey { reader: self.reader }, root);
        let raw = self.reader.volume().super_block().raw();
        // A kernel without UUID tree support leaves it outdated; the next mount rebuilds it.
        let is_current = raw.uuid_tree_generation == raw.generation;
        if is_current && !roots.is_lost && lost.load(Ordering::Relaxed) == was_lost {
            roots::check_uuids(&entries, roots, self.reader);
        }
    }

    fn quotas(&self, roots: &Roots) {
        let Some(root) = roots.find(TreeId::QUOTA) else { return };
        let own = [
            ItemType::QGROUP_STATUS,
            ItemType::QGROUP_INFO,
            ItemType::QGROUP_LIMIT,
            ItemType::QGROUP_RELATION,
        ];
        self.walk(&KeysOnly { reader: self.reader, tree: TreeId::QUOTA, own: &own }, root);
    }

    fn subvolumes(&self, roots: &Roots, sums: &Spans) {
        let super_block = self.reader.volume().super_block();
        let sink = self.reader.sink();
        let lost_checksums = sink.lost.checksums();
        for lost in lost_checksums.iter() {
            let (start, end) = (lost.start, lost.end);
            sink.note(format!(
                "checksums of addresses {start} to {end} cannot be read, so whether data there \
                 has checksums is not checked"
            ));
        }
        let memo = Memo::<Summary>::default();
        let mut mismatched = 0;
        let is_checked =
            |root: &&Root| root.tree.is_subvolume() || root.tree == TreeId::DATA_RELOCATION;
        for root in roots.trees.iter().filter(is_checked).filter(|root| !root.is_being_deleted()) {
            let rules = Rules {
                tree: root.tree.0,
                has_no_holes: super_block.has(feature::NO_HOLES),
                wants_checksums: root.tree != TreeId::DATA_RELOCATION
                    && roots.find(TreeId::CHECKSUM).is_some(),
            };
            let survey = SubvolumeSurvey {
                reader: self.reader,
                ledger: self.ledger,
                table: self.walker.table(),
                sums,
                lost_checksums: &lost_checksums,
                memo: &memo,
                rules,
            };
            let summary = self.walk(&survey, root);
            let verdict = survey.finish(summary);
            sink.count(&sink.counters.subvolumes, u64::from(root.tree.is_subvolume()));
            check_root(root.tree, &verdict, self.reader);
            if verdict.has_mismatch && !sink.is_mute() {
                mismatched += 1;
                if mismatched <= EXPLAINED_MAX {
                    names::report_mismatches(&self.walker, root.tree, root.expected());
                } else {
                    let place = format!("tree {}", root.tree);
                    let want = "those of its inodes";
                    sink.add(Kind::EntryUnpaired, place, "names", "different", want);
                }
            }
        }
    }

    /// Walks the remaining trees, only for their references.
    fn others(&self, roots: &Roots) {
        let survey = ReferenceSurvey { ledger: self.ledger, table: self.walker.table() };
        for root in &roots.trees {
            let is_walked = OWN_SURVEY.contains(&root.tree)
                || root.tree == TreeId::DATA_RELOCATION
                || (root.tree.is_subvolume() && !root.is_being_deleted());
            if !is_walked {
                let route = Route { removed_to: root.removed_to(), ..Route::default() };
                self.walker.tree(&survey, root.expected(), &route);
            }
        }
    }

    /// Checks that the blocks of log trees can be read. They have no extent items.
    fn log(&self) {
        let Some(log_root) = self.reader.volume().super_block().log_root() else { return };
        let unused = Ledger::new();
        let survey = RootSurvey { reader: self.reader, ledger: &unused };
        let route = Route { is_unaccounted: true, ..Route::default() };
        let logs = self.walker.tree(&survey, log_root, &route);
        let own = ReferenceSurvey { ledger: &unused, table: None };
        for root in &logs.trees {
            self.walker.tree(&own, root.expected(), &route);
        }
    }

    /// Reports required trees that are missing.
    fn require_trees(&self, roots: &Roots) {
        if roots.is_lost {
            return;
        }
        let super_block = self.reader.volume().super_block();
        let mut want = vec![
            (TreeId::EXTENT, "extent tree"),
            (TreeId::DEVICE, "device tree"),
            (TreeId::FS, "top-level subvolume"),
            (TreeId::CHECKSUM, "checksum tree"),
        ];
        if super_block.has_compat_ro(feature::FREE_SPACE_TREE) {
            want.push((TreeId::FREE_SPACE, "free space tree"));
        }
        if super_block.has_compat_ro(feature::BLOCK_GROUP_TREE) {
            want.push((TreeId::BLOCK_GROUP, "block group tree"));
        }
        for (tree, name) in want {
            if roots.find(tree).is_none() {
                let sink = self.reader.sink();
                sink.add(Kind::TreeMissing, "tree root", format!("{name} ({tree})"), "none", "one");
            }
        }
    }
}
