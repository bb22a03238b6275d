//! A volume on one device, created by mkfs.btrfs, and a walk over every block of it.
//!
//! The walk maps addresses by the first stripe of each chunk, which has all of the data on one
//! device without striping.

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

/// A directory that is removed when the test ends.
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

/// Runs mkfs.btrfs over a new sparse file in `folder`, with the contents of `folder/content`.
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

/// Creates files of every kind that mkfs can copy, with enough names and extents for trees of two
/// levels.
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

    /// Visits every block from `root` down. Panics at the first invalid block.
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

    /// Returns the roots of all trees: chunk, root, log, and those in the root tree and the log.
    pub(crate) fn roots(&self) -> Vec<Expected> {
        let mut roots = vec![self.super_block.chunk_root(), self.super_block.root()];
        roots.extend(self.super_block.log_root());
        for top in roots.clone().into_iter().skip(1) {
            self.walk(top, &mut |block| {
                roots.extend(items(block).filter_map(|(key, data)| {
                    let is_root = key.item_type == ItemType::ROOT_ITEM;
                    let item = is_root.then(|| RootItem::check(key, data).unwrap())?;
                    // Blocks of a partly dropped tree may be freed already, so it is skipped.
                    let is_whole = item.raw().drop_progress.objectid == 0;
                    is_whole.then(|| item.block(TreeId(key.objectid)))
                }));
            });
        }
        roots
    }

    /// Visits every block of the volume; a shared one as often as it is reached.
    pub(crate) fn walk_all(&self, visit: &mut dyn FnMut(&TreeBlock<Vec<u8>>)) {
        for root in self.roots() {
            self.walk(root, visit);
        }
    }

    /// Returns the number of items of each type.
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
