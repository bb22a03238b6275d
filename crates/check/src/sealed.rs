//! Verifies the trees of hashes of files that fs-verity has sealed.
//!
//! ```text
//! descriptor --hash--> root block --hash--> ... --hash--> blocks of level 0
//! ```
//!
//! 1. Every block of hashes has the hash that the block above it has for it, and the root block
//!    that of the descriptor. The first block of a file that has not is reported.
//! 2. A level and the one above it are read beside each other, in key order. Memory has a path of
//!    tree blocks and one block of hashes for each of both, whatever the size of the file.
//! 3. The files are those whose items are whole (`verity`). A file in a subtree that snapshots
//!    share is verified once.
//!
//! The data below level 0 is not read here: this crate reads no files.

use crate::blocks::Reader;
use crate::finding::Kind;
use crate::report::SealedFile;
use crate::roots::Roots;
use crate::verity::header;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, TreeBlock};
use butternut_format::refused::Hex;
use butternut_format::units::{TreeId, index};
use butternut_format::verity::VerityDescriptor;
use butternut_format::verity::hash::{HASH_BYTES_MAX, Hash};
use butternut_format::verity::merkle::{HashPlace, MerkleShape};
use butternut_sys::buffer::Buffer;
use butternut_volume::Volume;
use rayon::prelude::*;

/// Verifies the trees of hashes of files.
pub(crate) fn check(
    files: &[SealedFile],
    roots: &Roots,
    reader: &Reader<'_>,
    pool: Option<&rayon::ThreadPool>,
) {
    let check = |file: &SealedFile| {
        if let Some(root) = roots.find(TreeId(file.tree)) {
            let root = root.expected();
            // What cannot be read was reported before.
            check_file(&root, file.ino, reader).unwrap_or_default();
        }
    };
    match pool {
        Some(pool) => pool.install(|| files.par_iter().for_each(check)),
        None => files.iter().for_each(check),
    }
}

/// Verifies the tree of a file. Returns `None` if a part of it cannot be read.
fn check_file(root: &Expected, ino: u64, reader: &Reader<'_>) -> Option<()> {
    let volume = reader.volume();
    let key = Key::new(ino, ItemType::VERITY_DESC_ITEM, 1);
    let cursor = Cursor::seek(volume, *root, &key)?;
    let (_, data) = cursor.item().filter(|(found, _)| *found == key)?;
    let descriptor = header(data).0.ok()?;
    let shape = descriptor.parameters.shape(descriptor.data_bytes).ok()?;
    let levels = Levels { volume, root, ino, descriptor: &descriptor, shape: &shape };
    levels.find_mismatch(&mut |at, have, want| {
        let place = format_args!("tree {} inode {ino}", root.tree);
        let field = format_args!("hash of the block of hashes at {at}");
        let first = |hash: &Hash| hash.first_chunk::<8>().copied().unwrap_or_default();
        let have = format_args!("{}...", Hex(&first(have)));
        let source = if at == 0 { "the descriptor" } else { "the block above it" };
        let want = format_args!("{}..., as {source} has", Hex(&first(want)));
        reader.sink().add(Kind::VerityHashes, place, field, have, want);
    })
}

/// The levels of the tree of hashes of a file.
struct Levels<'a> {
    volume: &'a Volume,
    root: &'a Expected,
    ino: u64,
    descriptor: &'a VerityDescriptor,
    shape: &'a MerkleShape,
}

impl Levels<'_> {
    /// Passes the first block that has not the hash that is wanted, from the root on, to `report`:
    /// its byte in the tree, and both hashes. Returns `None` if a part cannot be read.
    fn find_mismatch(&self, report: &mut dyn FnMut(u64, &Hash, &Hash)) -> Option<()> {
        let parameters = &self.descriptor.parameters;
        let block_bytes = u64::from(parameters.block_bytes());
        let (hasher, hash_bytes) = (parameters.hasher(), parameters.hash().bytes());
        let mut block = vec![0; index(parameters.block_bytes())];
        for (level, (start, blocks)) in self.places().into_iter().enumerate().rev() {
            let mut above = match self.shape.place(level + 1, 0) {
                HashPlace::Tree { offset, .. } => Some(self.stream(offset)?),
                HashPlace::Root => None,
            };
            let mut stream = self.stream(start)?;
            for number in 0..blocks {
                stream.fill(&mut block)?;
                let have = hasher.hash(&block);
                let mut want: Hash = [0; HASH_BYTES_MAX];
                match &mut above {
                    Some(above) => above.fill(want.get_mut(..hash_bytes)?)?,
                    None => want = self.descriptor.root(),
                }
                if have != want {
                    let at = start.saturating_add(number.saturating_mul(block_bytes));
                    report(at, &have, &want);
                    return Some(());
                }
            }
        }
        Some(())
    }

    /// Returns where each level begins, and how many blocks it has; level 0 first.
    fn places(&self) -> Vec<(u64, u64)> {
        let block_bytes = u64::from(self.descriptor.parameters.block_bytes());
        let mut below = self.descriptor.data_bytes.div_ceil(block_bytes.max(1));
        let place = |level| {
            let HashPlace::Tree { offset: start, .. } = self.shape.place(level, 0) else {
                return None;
            };
            let last = self.shape.place(level, below.saturating_sub(1));
            let HashPlace::Tree { block, .. } = last else { return None };
            below = block.saturating_add(1);
            Some((start, below))
        };
        (0..self.shape.levels()).map_while(place).collect()
    }

    fn stream(&self, at: u64) -> Option<Hashes<'_>> {
        let key = Key::new(self.ino, ItemType::VERITY_MERKLE_ITEM, at);
        let cursor = Cursor::seek(self.volume, *self.root, &key)?;
        Some(Hashes { cursor, ino: self.ino, at })
    }
}

/// Reads the tree of hashes of a file from a byte on.
struct Hashes<'a> {
    cursor: Cursor<'a>,
    ino: u64,
    /// The next byte.
    at: u64,
}

impl Hashes<'_> {
    /// Reads the next bytes. Returns `None` if there are fewer.
    fn fill(&mut self, buf: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < buf.len() {
            let (key, data) = self.cursor.item()?;
            if key.objectid != self.ino || key.item_type != ItemType::VERITY_MERKLE_ITEM {
                return None;
            }
            let skip = usize::try_from(self.at.checked_sub(key.offset)?).ok()?;
            let found = data.get(skip..).unwrap_or_default();
            let place = buf.get_mut(done..)?;
            let bytes = found.len().min(place.len());
            place.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
            done += bytes;
            self.at = self.at.checked_add(u64::try_from(bytes).ok()?)?;
            if bytes == found.len() {
                self.cursor.advance();
            }
        }
        Some(())
    }
}

/// A place in a tree: the blocks from its root to a leaf, and a slot of each.
struct Cursor<'a> {
    volume: &'a Volume,
    root: Expected,
    path: Vec<(TreeBlock<Buffer>, usize)>,
}

impl<'a> Cursor<'a> {
    /// Returns the place of the last item at or before a key. Returns `None` if a block cannot be
    /// read.
    fn seek(volume: &'a Volume, root: Expected, key: &Key) -> Option<Self> {
        let mut cursor = Self { volume, root, path: Vec::new() };
        cursor.push(root, Some(key))?;
        cursor.descend(Some(key))?;
        Some(cursor)
    }

    /// Returns the item there; `None` behind the last one, or behind a block that cannot be read.
    fn item(&self) -> Option<(Key, &[u8])> {
        let (leaf, slot) = self.path.last()?;
        leaf.item(*slot)
    }

    fn advance(&mut self) {
        while let Some((block, slot)) = self.path.last_mut() {
            *slot += 1;
            if *slot < block.len() {
                break;
            }
            self.path.pop();
        }
        if self.descend(None).is_none() {
            self.path.clear();
        }
    }

    /// Goes on to a leaf. Levels decrease with each step.
    fn descend(&mut self, key: Option<&Key>) -> Option<()> {
        while let Some((block, slot)) = self.path.last()
            && let Some(child) = block.child(*slot)
        {
            let expected = Expected {
                logical: child.logical,
                generation: child.generation,
                level: block.level().checked_sub(1)?,
                tree: self.root.tree,
                first_key: Some(child.key),
                end_key: None,
            };
            self.push(expected, key)?;
        }
        Some(())
    }

    fn push(&mut self, expected: Expected, key: Option<&Key>) -> Option<()> {
        let block = self.volume.read_block(&expected).ok()?;
        let before = |key| block.find(key).unwrap_or_else(|slot| slot.saturating_sub(1));
        let slot = key.map_or(0, before);
        self.path.push((block, slot));
        Some(())
    }
}
