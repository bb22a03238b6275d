//! Verification of reads of files that fs-verity has sealed.
//!
//! ```text
//! block of data --hash--> block of level 0 --hash--> ... --hash--> root hash, in the descriptor
//! ```
//!
//! Laws:
//!
//! 1. Every byte of a sealed file that a read returns is of a block whose hash agrees with the tree
//!    of hashes, up to the root hash. A read of a part of a block reads and hashes all of it. A
//!    read ends in front of the first block that does not agree, or fails there; each is counted.
//! 2. A block of hashes is cached only after its own hash was found to agree.
//! 3. A block that ends past the end of the file is hashed with zeros there.
//! 4. A file whose descriptor is missing, invalid or of another size cannot be read at all.
//!
use crate::error::FileError;
use crate::extent_map::plan::ReadKind;
use crate::extent_map::view::FileView;
use crate::read::ReadAt;
use crate::sealed_file::{Loaded, SealedFile, read_items};
use crate::source::Source;
use crate::units::in_memory;
use butternut_format::key::ItemType;
use butternut_format::refused::{Hex, Refused};
use butternut_format::units::{index, length};
use butternut_format::verity::hash::{HASH_BYTES_MAX, Hash};
use butternut_format::verity::merkle::HashPlace;
use std::sync::Arc;

impl SealedFile {
    fn disagrees(&self, source: &Source, offset: u64, refused: Refused) -> FileError {
        source.count_verity_error();
        let (tree, ino) = (self.tree.id(), self.ino);
        FileError::Verity { tree, ino, offset, source: Box::new(refused) }
    }

    /// Verifies a block of data, which begins at byte `offset` of the file.
    fn verify(
        &self,
        source: &Source,
        loaded: &Loaded,
        offset: u64,
        block: &[u8],
    ) -> Result<(), FileError> {
        let number = offset / u64::from(loaded.descriptor.parameters.block_bytes());
        let have = loaded.hasher.hash(block);
        let want = self.wanted(source, loaded, offset, (0, number))?;
        if have == want {
            return Ok(());
        }
        Err(self.disagrees(source, offset, of_hashes("hash", &have, &want)))
    }

    /// Returns the verified hash of a block, whose number is that in its level
    /// ([`MerkleShape::place`]). `offset` is where the file is read.
    fn wanted(
        &self,
        source: &Source,
        loaded: &Loaded,
        offset: u64,
        (level, number): (usize, u64),
    ) -> Result<Hash, FileError> {
        let HashPlace::Tree { level, block, offset: at, skip } = loaded.shape.place(level, number)
        else {
            return Ok(loaded.descriptor.root());
        };
        let blocks = &source.lookups().verity_blocks;
        let key = (self.tree.id().0, self.ino.0, at);
        let bytes = if let Some(bytes) = blocks.find(&key) {
            bytes
        } else {
            let read = self.hash_block(source, loaded, offset, (level, block, at))?;
            let bytes: Arc<[u8]> = read.into();
            blocks.insert(key, Arc::clone(&bytes), bytes.len());
            bytes
        };
        let mut hash: Hash = [0; HASH_BYTES_MAX];
        let hash_bytes = loaded.descriptor.parameters.hash().bytes();
        let found = bytes.get(skip..skip.saturating_add(hash_bytes)).unwrap_or_default();
        hash.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
        Ok(hash)
    }

    /// Reads a block of a level of the tree, and verifies it.
    fn hash_block(
        &self,
        source: &Source,
        loaded: &Loaded,
        offset: u64,
        (level, block, at): (usize, u64, u64),
    ) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; index(loaded.descriptor.parameters.block_bytes())];
        // As in the kernel, what is missing counts as zeros: the hash decides.
        read_items(&self.tree, self.ino, ItemType::VERITY_MERKLE_ITEM, at, &mut bytes)?;
        let have = loaded.hasher.hash(&bytes);
        let want = self.wanted(source, loaded, offset, (level + 1, block))?;
        if have == want {
            return Ok(bytes);
        }
        let refused = of_hashes("hash of hashes", &have, &want);
        Err(self.disagrees(source, offset, refused))
    }
}

fn of_hashes(field: &'static str, have: &Hash, want: &Hash) -> Refused {
    let first = |hash: &Hash| hash.first_chunk::<8>().copied().unwrap_or_default();
    Refused::new(field, Hex(&first(have)), Hex(&first(want)))
}

impl FileView {
    /// Reads the descriptor of a sealed file, which its reads need.
    ///
    /// # Errors
    /// The descriptor is missing or invalid (law 4).
    pub fn check_verity(&self) -> Result<(), FileError> {
        self.verity().map_or(Ok(()), |verity| verity.loaded(self.size()).map(drop))
    }
}

impl Source {
    /// Verifies what a read has read, and returns how much of it is good (law 1).
    pub(crate) fn verify_read(
        &self,
        verity: &SealedFile,
        read_kind: ReadKind,
        view: &FileView,
        read: &mut ReadAt<'_>,
    ) -> Result<usize, FileError> {
        let filled = std::mem::replace(&mut read.result, Ok(0))?;
        if filled == 0 {
            return Ok(0);
        }
        let loaded = verity.loaded(view.size())?;
        let block_bytes = u64::from(loaded.descriptor.parameters.block_bytes());
        let mut done = 0;
        while done < filled {
            let at = read.offset.saturating_add(length(done));
            let start = at - at % block_bytes;
            let end = start.saturating_add(block_bytes).min(view.size());
            let bytes = in_memory(end.saturating_sub(at)).min(filled - done);
            let place = read.buf.get_mut(done..done + bytes).unwrap_or_default();
            let verified = if start == at && length(bytes) == end - start {
                verity.verify(self, loaded, start, place)
            } else {
                self.read_block(verity, (loaded, read_kind), view, start..end, (at, place))
            };
            match verified {
                Ok(()) => done += bytes,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads a whole block, verifies it, and copies the bytes from `at` on.
    fn read_block(
        &self,
        verity: &SealedFile,
        (loaded, read_kind): (&Loaded, ReadKind),
        view: &FileView,
        block: std::ops::Range<u64>,
        (at, place): (u64, &mut [u8]),
    ) -> Result<(), FileError> {
        let mut bytes = vec![0; in_memory(block.end - block.start)];
        let mut read = [ReadAt::new(block.start, &mut bytes)];
        self.read_unverified(read_kind, view, &mut read);
        let [ReadAt { result, .. }] = read;
        let filled = result?;
        if filled < bytes.len() {
            // The rest of the block cannot be read: the error of a read from there on.
            let rest = block.start.saturating_add(length(filled));
            let mut last = [ReadAt::new(rest, &mut bytes)];
            self.read_unverified(read_kind, view, &mut last);
            let [ReadAt { result, .. }] = last;
            result?;
            let refused = Refused::new("block", filled, block.end - block.start);
            return Err(verity.corrupt(refused));
        }
        verity.verify(self, loaded, block.start, &bytes)?;
        let from = bytes.get(in_memory(at - block.start)..).unwrap_or_default();
        place.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}
