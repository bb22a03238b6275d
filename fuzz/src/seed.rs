//! Seeds: small volumes that the kernel wrote, stored compressed, and devices over them with
//! changed pages.
//!
//! All inputs share the seeds; a [`PatchedDevice`] has only the pages that differ.

use butternut_device::{Counters, Device, DeviceError};
use butternut_format::checksum::ChecksumKind;
use butternut_format::super_block::SuperBlock;
use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::{Arc, LazyLock};

pub const PAGE_BYTES: usize = 4096;

/// Address of the first superblock.
pub const SUPER_OFFSET: u64 = 64 << 10;

type Page = [u8; PAGE_BYTES];

/// A volume of one device.
pub struct Seed {
    pub name: &'static str,
    pub bytes: u64,
    pages: HashMap<u64, Box<Page>>,
    /// Addresses of the tree blocks that the roots reach, without older copies of blocks,
    /// and the length of each.
    pub blocks: Vec<u64>,
    pub node_bytes: usize,
    pub csum: ChecksumKind,
    /// Pages that hold neither zeros, nor a superblock, nor a tree block: data.
    pub data_pages: Vec<u64>,
}

const RICH: &[u8] = include_bytes!("../seeds/rich-4k.img.zst");
const PLAIN: &[u8] = include_bytes!("../seeds/plain-16k.img.zst");
const WRITTEN: &[u8] = include_bytes!("../seeds/written-16k.img.zst");
const LOGGED_4K: &[u8] = include_bytes!("../seeds/logged-4k.img.zst");
const LOGGED_16K: &[u8] = include_bytes!("../seeds/logged-16k.img.zst");

/// The seeds of targets that read, decompressed once.
pub static SEEDS: LazyLock<Vec<Arc<Seed>>> = LazyLock::new(|| {
    vec![
        Arc::new(Seed::decompress("rich-4k", RICH)),
        Arc::new(Seed::decompress("plain-16k", PLAIN)),
    ]
});

/// The seeds of targets that write. `plain-16k` has quota groups and cannot be opened for writing.
pub static WRITABLE_SEEDS: LazyLock<Vec<Arc<Seed>>> = LazyLock::new(|| {
    vec![Arc::clone(&SEEDS[0]), Arc::new(Seed::decompress("written-16k", WRITTEN))]
});

/// The seeds with a log tree, which the kernel wrote and has not replayed.
pub static LOGGED_SEEDS: LazyLock<Vec<Arc<Seed>>> = LazyLock::new(|| {
    vec![
        Arc::new(Seed::decompress("logged-4k", LOGGED_4K)),
        Arc::new(Seed::decompress("logged-16k", LOGGED_16K)),
    ]
});

impl Seed {
    fn decompress(name: &'static str, compressed: &[u8]) -> Self {
        let mut pages = HashMap::new();
        let mut reader = zstd::Decoder::new(compressed).expect("the seed can be decompressed");
        let mut page: Box<Page> = Box::new([0; PAGE_BYTES]);
        let mut bytes = 0;
        while reader.read_exact(page.as_mut_slice()).is_ok() {
            if page.iter().any(|byte| *byte != 0) {
                pages.insert(bytes, page.clone());
            }
            bytes += PAGE_BYTES as u64;
        }
        let super_block = SuperBlock::check(pages[&SUPER_OFFSET].as_slice(), 0)
            .expect("the seed has a valid superblock");
        let node_bytes = usize::try_from(super_block.node_bytes()).expect("a 64-bit machine");
        let mut seed = Self {
            name,
            bytes,
            pages,
            blocks: Vec::new(),
            node_bytes,
            csum: super_block.csum(),
            data_pages: Vec::new(),
        };
        seed.survey(&super_block.metadata_uuid());
        let mut roots = vec![super_block.root().logical.0, super_block.chunk_root().logical.0];
        roots.extend(super_block.log_root().map(|root| root.logical.0));
        seed.keep_reachable_blocks(&roots);
        seed
    }

    /// Keeps only the blocks that the roots reach.
    fn keep_reachable_blocks(&mut self, roots: &[u64]) {
        let blocks = self.blocks.iter().map(|at| (*at, self.read(*at, self.node_bytes)));
        let by_logical: HashMap<u64, (u64, Vec<u8>)> =
            blocks.map(|(at, block)| (word(&block, 48), (at, block))).collect();
        let (mut ahead, mut reachable) = (roots.to_vec(), BTreeSet::new());
        while let Some(logical) = ahead.pop() {
            let Some((at, block)) = by_logical.get(&logical) else { continue };
            if reachable.insert(*at) {
                ahead.extend(children(block));
            }
        }
        assert!(reachable.len() > 8, "{}: {} blocks", self.name, reachable.len());
        self.blocks = reachable.into_iter().collect();
    }

    /// Separates tree blocks from data by filesystem UUID and checksum.
    fn survey(&mut self, fsid: &[u8; 16]) {
        let mut offsets: Vec<u64> = self.pages.keys().copied().collect();
        offsets.sort_unstable();
        let mut covered = 0;
        for offset in offsets {
            if offset < covered || offset == SUPER_OFFSET || offset == 64 << 20 {
                continue;
            }
            let block = self.read(offset, self.node_bytes);
            if &block[32..48] == fsid && self.csum.matches(&block[32..], &block[..32]) {
                self.blocks.push(offset);
                covered = offset + self.node_bytes as u64;
            } else {
                self.data_pages.push(offset);
            }
        }
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (index, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
            let at = offset + (index * PAGE_BYTES) as u64;
            if let Some(from) = self.pages.get(&at) {
                page.copy_from_slice(&from[..page.len()]);
            }
        }
        bytes
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// Returns the logical addresses of the children of a node, and of the tree roots in a leaf
/// (`struct btrfs_header`, `btrfs_item`, `btrfs_key_ptr`, `btrfs_root_item`).
fn children(block: &[u8]) -> Vec<u64> {
    const HEADER: usize = 101;
    const ROOT_ITEM: u8 = 132;
    let count = usize::try_from(word(block, 96) & 0xffff).unwrap_or(0);
    let is_leaf = block[100] == 0;
    let step = if is_leaf { 25 } else { 33 };
    let entries = (0..count).map(|slot| HEADER + slot * step);
    if !is_leaf {
        return entries.map(|at| word(block, at + 17)).collect();
    }
    let data = |at: usize| HEADER + usize::try_from(word(block, at + 17) & 0xffff).unwrap_or(0);
    entries.filter(|at| block[at + 8] == ROOT_ITEM).map(|at| word(block, data(at) + 176)).collect()
}

/// A seed with some pages changed. Read-only.
pub struct PatchedDevice {
    seed: Arc<Seed>,
    changed: HashMap<u64, Page>,
    counters: Counters,
    reads_max: u64,
}

impl PatchedDevice {
    /// Returns a device over `seed` that panics after `reads_max` reads, since the walk then does
    /// not end.
    pub fn new(seed: &Arc<Seed>, reads_max: u64) -> Self {
        let counters = Counters::default();
        Self { seed: Arc::clone(seed), changed: HashMap::new(), counters, reads_max }
    }

    fn page(&self, offset: u64) -> Option<&Page> {
        self.changed.get(&offset).or_else(|| self.seed.pages.get(&offset).map(|page| &**page))
    }

    /// Returns the current bytes. The offset is a multiple of the page size.
    pub fn bytes_at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (index, to) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
            if let Some(page) = self.page(offset + (index * PAGE_BYTES) as u64) {
                to.copy_from_slice(&page[..to.len()]);
            }
        }
        bytes
    }

    pub fn change(&mut self, offset: u64, bytes: &[u8]) {
        for (index, from) in bytes.chunks(PAGE_BYTES).enumerate() {
            let at = offset + (index * PAGE_BYTES) as u64;
            let mut page = self.page(at).copied().unwrap_or([0; PAGE_BYTES]);
            page[..from.len()].copy_from_slice(from);
            self.changed.insert(at, page);
        }
    }
}

impl std::fmt::Debug for PatchedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut changed: Vec<_> = self.changed.keys().collect();
        changed.sort_unstable();
        f.debug_struct("PatchedDevice")
            .field("seed", &self.seed.name)
            .field("changed", &changed)
            .finish_non_exhaustive()
    }
}

impl Device for PatchedDevice {
    fn name(&self) -> &str {
        self.seed.name
    }

    fn bytes(&self) -> u64 {
        self.seed.bytes
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.counters.count_read(memory.len());
        let reads = self.counters.now().reads;
        assert!(reads <= self.reads_max, "{reads} device reads: the walk does not end");
        let mut done = 0;
        while done < memory.len() {
            let at = offset + done as u64;
            let inside = usize::try_from(at % PAGE_BYTES as u64).expect("below a page");
            let len = (PAGE_BYTES - inside).min(memory.len() - done);
            let to = &mut memory[done..done + len];
            match self.page(at - inside as u64) {
                Some(page) => to.copy_from_slice(&page[inside..inside + len]),
                None => to.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _memory: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly { device: self.name().into() })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly { device: self.name().into() })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
