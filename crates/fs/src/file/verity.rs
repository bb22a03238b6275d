//! fs-verity: seals a file, whose bytes can never change then, and reads what was stored for it.
//!
//! ```text
//! begin   no bytes change from here on; orphan item; items that an earlier call left are removed
//! build   data is written back; parts are read and hashed; blocks of hashes become items
//! end     descriptor, flag of the inode, feature of the volume; the orphan item is removed
//! ```
//!
//! Laws:
//!
//! 1. The bytes and the size of the file are the same from the begin to the end of a call: every
//!    change fails with `ETXTBSY`, and writes in flight are drained before.
//! 2. No lock is held between two parts, nor while one is hashed. A part is at most [`PART_BYTES`]
//!    of data, or [`ITEMS_PER_STEP`] items in one transaction. Memory does not depend on the size
//!    of the file.
//! 3. The file is sealed in one transaction, which also has its descriptor. What was built before
//!    is guarded by an orphan item: after a crash, and in a snapshot that was made meanwhile, the
//!    items are removed with the orphans, and the file can be written.
//! 4. A call that fails leaves nothing. Where its items cannot be removed, they are left for the
//!    next open, as orphans are.
//! 5. The seal is durable after a sync or the next commit. A sync of the file commits, because the
//!    log has no items of fs-verity.

use crate::background::merger::MergeScope;
use crate::change::Change;
use crate::inode::table::InodeEntry;
use crate::{Error, ExtentKind, File, Filesystem, Result};
use butternut_file::{FileState, read_descriptor, read_metadata, verity_keys};
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{Ino, TreeId, length};
use butternut_format::verity::hash::VerityHash;
use butternut_format::verity::merkle::MerkleBuilder;
use butternut_format::verity::{
    ITEM_BYTES_MAX, RawVerityDescriptorItem, SALT_BYTES_MAX, SIGNATURE_BYTES_MAX, VerityDescriptor,
    VerityParameters,
};
use butternut_names::{self as names, NamesError};
use butternut_sys::wait::Wait;
use butternut_tree::Need;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of data that are read and hashed at a time.
const PART_BYTES: usize = 1 << 20;
/// Items that one transaction inserts.
const ITEMS_PER_STEP: usize = 64;
/// Items of the last transaction: a descriptor with its signature, the inode's, the orphan's.
const ITEMS_OF_END: u32 = 12;
/// How often data that was rewritten meanwhile (by a defragmentation) is written back, before the
/// call fails.
const ATTEMPTS_MAX: u32 = 16;

/// How [`File::enable_verity`] seals a file. The default is SHA-256 of blocks of 4096 bytes,
/// without a salt or signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityOptions {
    hash: VerityHash,
    block_bytes: u32,
    salt: Vec<u8>,
    signature: Vec<u8>,
}

/// The digest of a sealed file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerityMeasurement {
    pub hash: VerityHash,
    pub digest: Vec<u8>,
}

/// What [`File::read_verity_metadata`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerityMetadata {
    /// The tree of hashes, root first.
    MerkleTree,
    /// The descriptor, with a size of 0 of its signature: its hash is the digest.
    Descriptor,
    /// The signature.
    Signature,
}

/// A part of a file that is being sealed: [`SealPart::hash`] does all the hashing for it. It may
/// run in another thread, and no lock is held meanwhile.
#[derive(Debug)]
pub struct SealPart {
    ino: u64,
    data: Vec<u8>,
    builder: MerkleBuilder,
    /// The items of the blocks of hashes that are full.
    items: Vec<NewItem>,
}

/// A call that enables fs-verity, until it is dropped.
struct Sealing<'a>(&'a Arc<InodeEntry>);

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        self.0.set_being_sealed(false);
    }
}

type NewItem = (Key, Vec<u8>);

impl Default for VerityOptions {
    fn default() -> Self {
        let (salt, signature) = (Vec::new(), Vec::new());
        Self { hash: VerityHash::Sha256, block_bytes: 4096, salt, signature }
    }
}

impl SealPart {
    /// Hashes the data. To be called once for each part.
    #[must_use]
    pub fn hash(mut self) -> Self {
        let Self { ino, data, builder, items } = &mut self;
        builder.add(data, &mut |at, block| add_items(items, *ino, at, block));
        self
    }
}

impl VerityOptions {
    /// Sets the hash function.
    #[must_use]
    pub fn hash(mut self, hash: VerityHash) -> Self {
        self.hash = hash;
        self
    }

    /// Sets the size of a block that is hashed, in bytes: 1024, 2048 or 4096.
    #[must_use]
    pub fn block_bytes(mut self, block_bytes: u32) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// Sets the salt, of at most 32 bytes.
    #[must_use]
    pub fn salt(mut self, salt: &[u8]) -> Self {
        self.salt = salt.to_vec();
        self
    }

    /// Sets a signature of at most 16,128 bytes, which is stored and not verified.
    #[must_use]
    pub fn signature(mut self, signature: &[u8]) -> Self {
        self.signature = signature.to_vec();
        self
    }

    pub(crate) fn parameters(&self) -> Result<VerityParameters> {
        if self.salt.len() > SALT_BYTES_MAX {
            return Err(Error::ArgumentTooLong { what: "a salt has at most 32 bytes" });
        }
        if self.signature.len() > SIGNATURE_BYTES_MAX {
            return Err(Error::ArgumentTooLong { what: "a signature has at most 16128 bytes" });
        }
        let what = "a block that is hashed has 1024, 2048 or 4096 bytes";
        VerityParameters::new(self.hash, self.block_bytes, &self.salt)
            .map_err(|_| Error::InvalidArgument { what })
    }
}

impl File {
    /// Seals the file by fs-verity (`FS_IOC_ENABLE_VERITY`): its bytes and size can never change
    /// again, and every read of it is verified by a tree of hashes. [`File::measure_verity`] then
    /// returns a digest of its contents. While it runs, other calls may read the file, rename and
    /// unlink it, and every change of its bytes fails with `ETXTBSY`.
    ///
    /// # Errors
    /// [`Error::Exists`] for a file that is sealed; [`Error::SealInProgress`];
    /// [`Error::NotPermitted`] for one that is immutable or append-only; [`Error::ReadOnly`];
    /// [`Error::InvalidArgument`] and [`Error::ArgumentTooLong`] for options that are invalid; no
    /// space; data that cannot be read. The file is as it was then.
    pub fn enable_verity(&self, options: &VerityOptions) -> Result<()> {
        self.enable_verity_while(options, &|| true)
    }

    /// As [`File::enable_verity`], as long as `goes_on` returns true, which is called before each
    /// part.
    ///
    /// # Errors
    /// As [`File::enable_verity`]; [`Error::Interrupted`] when `goes_on` has returned false.
    pub fn enable_verity_while(
        &self,
        options: &VerityOptions,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        self.enable_verity_by(options, goes_on, &|part| Some(part.hash()))
    }

    /// As [`File::enable_verity_while`]. `hash` calls [`SealPart::hash`] of each part, in any
    /// thread, and returns the result.
    ///
    /// # Errors
    /// As [`File::enable_verity_while`]; [`Error::Interrupted`] when `hash` has returned `None`.
    pub fn enable_verity_by(
        &self,
        options: &VerityOptions,
        goes_on: &dyn Fn() -> bool,
        hash: &dyn Fn(SealPart) -> Option<SealPart>,
    ) -> Result<()> {
        let parameters = options.parameters()?;
        let _watch = self.watch_panics();
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let sealing = filesystem.begin_seal(entry)?;
        let built = self.build_seal(parameters, &options.signature, (goes_on, hash));
        if built.is_err() {
            // Law 4. The caller gets the error that ended the call.
            if filesystem.roll_back_seal(entry).is_err()
                && let Ok(write_state) = filesystem.write_state()
            {
                write_state.set_left_seals();
            }
        }
        drop(sealing);
        built
    }

    /// Returns the digest of a sealed file (`FS_IOC_MEASURE_VERITY`).
    ///
    /// # Errors
    /// [`Error::NotSealed`]; a descriptor that cannot be read.
    pub fn measure_verity(&self) -> Result<VerityMeasurement> {
        let (descriptor, _) = self.verity_descriptor()?;
        let hash = descriptor.parameters.hash();
        Ok(VerityMeasurement { hash, digest: descriptor.digest() })
    }

    /// Reads what fs-verity has stored for a sealed file (`FS_IOC_READ_VERITY_METADATA`) from
    /// `offset` on, and returns the number of bytes read: fewer than `buf` has only at the end.
    ///
    /// # Errors
    /// [`Error::NotSealed`]; items that cannot be read; [`Error::NoAttribute`] for the signature of
    /// a file that has none.
    pub fn read_verity_metadata(
        &self,
        what: VerityMetadata,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let (descriptor, signature) = self.verity_descriptor()?;
        let all = match what {
            VerityMetadata::MerkleTree => {
                let shape = descriptor.parameters.shape(descriptor.data_bytes);
                let left = shape.map_err(|bad| self.bad_verity(bad))?.bytes();
                let left = usize::try_from(left.saturating_sub(offset)).unwrap_or(usize::MAX);
                let wanted = left.min(buf.len());
                let (view, buf) = (self.view(), &mut buf[..wanted]);
                let read = read_metadata(view.tree(), view.ino(), offset, buf)?;
                if read < wanted {
                    return Err(self.bad_verity(Refused::new("tree of hashes", read, wanted)));
                }
                return Ok(read);
            }
            VerityMetadata::Descriptor => {
                VerityDescriptor { signature_bytes: 0, ..descriptor }.to_bytes().to_vec()
            }
            VerityMetadata::Signature if signature.is_empty() => return Err(Error::NoAttribute),
            VerityMetadata::Signature => signature,
        };
        let from = usize::try_from(offset).ok().and_then(|from| all.get(from..));
        let from = from.unwrap_or_default();
        let bytes = from.len().min(buf.len());
        buf[..bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }

    /// Verifies the holes of a sealed file in a range of bytes, for a caller that leaves them out
    /// of a copy: a hash says what a block has, and not whether it lies in a hole. Other files have
    /// nothing to verify.
    ///
    /// # Errors
    /// A block has other bytes than zeros, or cannot be verified.
    pub fn verify_holes(&self, range: Range<u64>) -> Result<()> {
        if !self.view().is_sealed() {
            return Ok(());
        }
        let mut part = vec![0; PART_BYTES];
        let end = self.len().min(range.end);
        for extent in self.extents(range.start.min(end)..end) {
            let extent = extent?;
            if !matches!(extent.kind, ExtentKind::Hole | ExtentKind::Prealloc { .. }) {
                continue;
            }
            let mut at = extent.offset.max(range.start);
            let hole_end = extent.offset.saturating_add(extent.bytes).min(end);
            while at < hole_end {
                let bytes = usize::try_from(hole_end - at).unwrap_or(PART_BYTES).min(PART_BYTES);
                match self.read_at(at, &mut part[..bytes])? {
                    0 => return Err(Error::EndOfFile),
                    read => at += length(read),
                }
            }
        }
        Ok(())
    }

    fn verity_descriptor(&self) -> Result<(VerityDescriptor, Vec<u8>)> {
        let view = self.view();
        if !view.is_sealed() {
            return Err(Error::NotSealed);
        }
        let found = read_descriptor(view.tree(), view.ino())?;
        found.ok_or_else(|| self.bad_verity(Refused::new("descriptor", "none", "one")))
    }

    fn bad_verity(&self, source: Refused) -> Error {
        let id = self.id();
        let source = source.at(format_args!("inode {}: fs-verity", id.ino));
        Error::Corrupt { tree: TreeId(id.subvolume), source }
    }

    /// Builds the tree of hashes, and seals the file.
    fn build_seal(
        &self,
        parameters: VerityParameters,
        signature: &[u8],
        (goes_on, hash): (&dyn Fn() -> bool, &dyn Fn(SealPart) -> Option<SealPart>),
    ) -> Result<()> {
        let pin = self.pin()?;
        let filesystem = pin.filesystem();
        let write_state = filesystem.may_begin()?;
        // The orphan item, before any other.
        self.insert_verity_items(&[])?;
        filesystem.write_back_one(write_state, pin.entry(), MergeScope::Whole)?;
        let size = self.len();
        let what = "the tree of hashes would have more than 8 levels";
        let builder = MerkleBuilder::new(parameters, size);
        let builder = builder.map_err(|_| Error::InvalidArgument { what })?;
        let (data, items) = (Vec::new(), Vec::new());
        let mut part = SealPart { ino: self.id().ino, data, builder, items };
        let mut offset = 0;
        while offset < size {
            if !goes_on() {
                return Err(Error::Interrupted);
            }
            let bytes = usize::try_from(size - offset).unwrap_or(usize::MAX).min(PART_BYTES);
            part.data.resize(bytes, 0);
            self.read_part(offset, &mut part.data)?;
            part = hash(part).ok_or(Error::Interrupted)?;
            offset += length(bytes);
            while part.items.len() >= ITEMS_PER_STEP {
                let rest = part.items.split_off(ITEMS_PER_STEP);
                self.insert_verity_items(&std::mem::replace(&mut part.items, rest))?;
            }
        }
        let SealPart { ino, builder, mut items, .. } = part;
        let signature_bytes = u32::try_from(signature.len()).unwrap_or(u32::MAX);
        let emit = &mut |at, block: &[u8]| add_items(&mut items, ino, at, block);
        let descriptor = builder.finish(signature_bytes, emit);
        for step in items.chunks(ITEMS_PER_STEP) {
            self.insert_verity_items(step)?;
        }
        if !goes_on() {
            return Err(Error::Interrupted);
        }
        self.end_seal(&descriptor_items(ino, &descriptor, signature))
    }

    /// Reads a part of the file as a whole.
    fn read_part(&self, offset: u64, part: &mut [u8]) -> Result<()> {
        let _state = self.shared_lock();
        let mut done = 0;
        while done < part.len() {
            match self.read_in_flight(offset + length(done), &mut part[done..])? {
                0 => return Err(Error::EndOfFile),
                more => done += more,
            }
        }
        Ok(())
    }

    /// Inserts items in one transaction, and the orphan item that guards them.
    fn insert_verity_items(&self, items: &[NewItem]) -> Result<()> {
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX).saturating_add(1);
        self.with_space(|| {
            let writing = filesystem.begin()?;
            let subvolume = filesystem.writable_subvolume(&writing, entry.id)?;
            let _state = entry.lock_without_drain();
            // An orphan without a name has its item.
            let has_name = filesystem.attributes(entry)?.nlink > 0;
            filesystem.change(&writing, &subvolume, Need::items(count), |change| {
                if has_name {
                    change.step(names::add_orphan(&change.edit, Ino(entry.id.ino)))?;
                }
                put_items(change, items)
            })
        })
    }

    /// Seals the file (law 3).
    fn end_seal(&self, items: &[NewItem]) -> Result<()> {
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let write_state = filesystem.may_begin()?;
        for _ in 0..ATTEMPTS_MAX {
            filesystem.write_back_one(write_state, entry, MergeScope::Whole)?;
            if self.with_space(|| self.try_to_end_seal(items))? {
                return Ok(());
            }
        }
        Err(Error::BeingSealed)
    }

    /// As [`Self::end_seal`]. Returns false if some of the data is not in the trees.
    fn try_to_end_seal(&self, items: &[NewItem]) -> Result<bool> {
        let pin = self.pin()?;
        let (filesystem, entry) = (pin.filesystem(), pin.entry());
        let writing = filesystem.begin()?;
        let subvolume = filesystem.writable_subvolume(&writing, entry.id)?;
        let mut state = entry.lock();
        let file = filesystem.file_state(&subvolume.tree, entry, &mut state, Wait::Block)?;
        if !file.is_clean() {
            return Ok(false);
        }
        let ino = Ino(entry.id.ino);
        let mut inode = filesystem.attributes(entry)?;
        inode.flags = inode.flags.with(InodeFlags::VERITY);
        filesystem.change(&writing, &subvolume, Need::items(ITEMS_OF_END), |change| {
            put_items(change, items)?;
            inode.transid = change.moment.generation;
            change.put(ino, &inode)?;
            if inode.nlink > 0 {
                change.step(names::remove_orphan(&change.edit, ino))?;
            }
            change.add_verity_feature();
            Ok(())
        })?;
        entry.set(inode);
        seal_file(file, &inode);
        Ok(true)
    }
}

impl Filesystem {
    /// Checks that a file may be sealed, and refuses changes of its bytes from now on (law 1).
    fn begin_seal<'a>(&self, entry: &'a Arc<InodeEntry>) -> Result<Sealing<'a>> {
        let writing = self.begin()?;
        let subvolume = self.writable_subvolume(&writing, entry.id);
        // Writes in flight have completed.
        let state = entry.lock();
        let inode = self.attributes(entry)?;
        if inode.flags.contains(InodeFlags::APPEND) || inode.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted { what: "the file is immutable or append-only" });
        }
        subvolume?;
        if inode.flags.contains(InodeFlags::VERITY) {
            return Err(Error::Exists);
        }
        if entry.set_being_sealed(true) {
            return Err(Error::SealInProgress);
        }
        let sealing = Sealing(entry);
        drop(state);
        drop(writing);
        let tree = self.tree_of(entry.id)?;
        if !verity_keys(&tree, Ino(entry.id.ino), 1)?.is_empty() {
            // An earlier call could not remove them.
            self.roll_back_seal(entry)?;
        }
        Ok(sealing)
    }
}

fn seal_file(file: &mut FileState, inode: &Inode) {
    file.set_flags(inode.flags);
    file.seal();
}

fn put_items(change: &Change<'_>, items: &[NewItem]) -> Result<()> {
    items.iter().try_for_each(|(key, data)| {
        change.step(change.edit.put(key, data).map_err(NamesError::from))
    })
}

/// Adds the items of a block of hashes at a byte of the tree.
fn add_items(items: &mut Vec<NewItem>, ino: u64, offset: u64, block: &[u8]) {
    for (number, bytes) in block.chunks(ITEM_BYTES_MAX).enumerate() {
        let at = offset + length(number * ITEM_BYTES_MAX);
        items.push((Key::new(ino, ItemType::VERITY_MERKLE_ITEM, at), bytes.to_vec()));
    }
}

/// Returns the items of a descriptor and of the signature behind it.
fn descriptor_items(ino: u64, descriptor: &VerityDescriptor, signature: &[u8]) -> Vec<NewItem> {
    let all = [descriptor.to_bytes().as_slice(), signature].concat();
    let key = |offset| Key::new(ino, ItemType::VERITY_DESC_ITEM, offset);
    let first = RawVerityDescriptorItem::new(all.len()).as_bytes().to_vec();
    let mut items = vec![(key(0), first)];
    for (number, bytes) in all.chunks(ITEM_BYTES_MAX).enumerate() {
        items.push((key(1 + length(number * ITEM_BYTES_MAX)), bytes.to_vec()));
    }
    items
}

#[cfg(test)]
mod tests;
