//! A volume on one device, made by mkfs.btrfs, and a walk over every block of it.
//!
//! The walk maps addresses by the first stripe of each chunk, which is all of the data wherever
//! there is one device and no striping.

#![allow(dead_code, reason = "each test file uses a part")]

use butternut_format::chunk::Chunk;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::refused::Refused;
use butternut_format::root::RootItem;
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::{Logical, TreeId, index};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct Image {
    file: File,
    pub(crate) super_block: SuperBlock,
    pub(crate) rules: BlockRules,
    chunks: Vec<Chunk>,
}

/// A folder that is gone when the test ends.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("butternut-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Runs mkfs.btrfs over a new sparse file in `folder`, filled from `folder/content`.
pub(crate) fn mkfs(folder: &Folder, options: &[&str]) -> PathBuf {
    let (image, content) = (folder.0.join("image"), folder.0.join("content"));
    File::create(&image).unwrap().set_len(1 << 30).unwrap();
    let mut command = Command::new("mkfs.btrfs");
    command.args(["-q", "-f"]).args(options);
    if content.exists() {
        command.arg("--rootdir").arg(&content);
    }
    let output = command.arg(&image).output().unwrap_or_else(|error| {
        panic!("mkfs.btrfs: {error} (install the package btrfs-progs)");
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    image
}

/// Files of every kind that mkfs can copy in: enough names and extents for trees of two levels.
pub(crate) fn fill(folder: &Folder) {
    let content = folder.0.join("content");
    std::fs::create_dir_all(content.join("many")).unwrap();
    for i in 0..3000 {
        let path = content.join("many").join(format!("a file with a rather long name, {i}"));
        std::fs::write(path, vec![b'x'; i]).unwrap();
    }
    std::fs::write(content.join("big"), vec![7; 20 << 20]).unwrap();
    std::os::unix::fs::symlink("many", content.join("link")).unwrap();
    std::fs::hard_link(content.join("big"), content.join("second name")).unwrap();
}

impl Image {
    pub(crate) fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let mut bytes = vec![0; SUPER_BLOCK_BYTES];
        file.read_exact_at(&mut bytes, COPY_OFFSETS[0]).unwrap();
        let super_block = SuperBlock::check(&bytes, 0).unwrap();
        let rules = BlockRules::of(&super_block);
        let chunks = super_block.system_chunks().map(Result::unwrap).collect();
        let mut image = Self { file, super_block, rules, chunks };
        let mut found = Vec::new();
        image.walk(image.super_block.chunk_root(), &mut |block| {
            found.extend(
                items(block)
                    .filter(|(key, _)| key.item_type == ItemType::CHUNK_ITEM)
                    .map(|(key, data)| Chunk::check(key, data, u64::MAX).unwrap()),
            );
        });
        image.chunks = found;
        image
    }

    pub(crate) fn read(&self, logical: Logical) -> Vec<u8> {
        let mut bytes = vec![0; index(self.rules.node_bytes)];
        let chunk = self.chunks.iter().find(|c| c.logical <= logical && logical < c.end());
        let chunk = chunk.unwrap_or_else(|| panic!("no chunk holds {logical}"));
        let offset = chunk.stripes[0].offset.0 + (logical.0 - chunk.logical.0);
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub(crate) fn block(&self, expected: &Expected) -> Result<TreeBlock<Vec<u8>>, Refused> {
        TreeBlock::check(self.read(expected.logical), expected, &self.rules)
    }

    /// Visits every block from `root` down; panics at the first that is refused.
    pub(crate) fn walk(&self, root: Expected, visit: &mut dyn FnMut(&TreeBlock<Vec<u8>>)) {
        let block = self.block(&root).unwrap();
        visit(&block);
        for child in (0..block.len()).filter_map(|slot| block.child(slot)) {
            let expected = Expected {
                logical: child.logical,
                generation: child.generation,
                level: root.level - 1,
                tree: root.tree,
                first_key: Some(child.key),
                end_key: None,
            };
            self.walk(expected, visit);
        }
    }

    /// The roots of all trees: chunk, root, log, and those that the root tree and the log name.
    pub(crate) fn roots(&self) -> Vec<Expected> {
        let mut roots = vec![self.super_block.chunk_root(), self.super_block.root()];
        roots.extend(self.super_block.log_root());
        for top in roots.clone().into_iter().skip(1) {
            self.walk(top, &mut |block| {
                roots.extend(items(block).filter_map(|(key, data)| {
                    let is_root = key.item_type == ItemType::ROOT_ITEM;
                    let item = is_root.then(|| RootItem::check(key, data).unwrap())?;
                    // A tree that is halfway dropped has lost blocks; its root is the rest's.
                    let is_whole = item.raw().drop_progress.objectid == 0;
                    is_whole.then(|| item.block(TreeId(key.objectid)))
                }));
            });
        }
        roots
    }

    /// Every block of the volume, checked; a shared one as often as it is reached.
    pub(crate) fn walk_all(&self, visit: &mut dyn FnMut(&TreeBlock<Vec<u8>>)) {
        for root in self.roots() {
            self.walk(root, visit);
        }
    }

    /// How many items of each type the volume has.
    pub(crate) fn tally(&self) -> BTreeMap<u8, usize> {
        let mut tally = BTreeMap::new();
        self.walk_all(&mut |block| {
            for (key, _) in items(block) {
                *tally.entry(key.item_type.0).or_default() += 1;
            }
        });
        tally
    }
}

pub(crate) fn items(block: &TreeBlock<Vec<u8>>) -> impl Iterator<Item = (Key, &[u8])> {
    (0..block.len()).filter_map(|slot| block.item(slot))
}
