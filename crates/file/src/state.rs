//! [`FileState`]: the data of one inode while it is being written.
//!
//! It owns what is newer than the trees: blocks that are dirty in memory, extents that are on disk
//! but in no tree yet, and the file's size. It does not own names, times or permissions.
//!
//! ```text
//!            write_at, small            writeback                    merge
//! caller ---------------------> dirty ------------> pending extents --------> trees
//!    |                                                 ^                        ^
//!    +---- write_at, large ----------------------------+                        |
//!    +---- truncate, punch_hole, zero_range, allocate --------------------------+
//! ```
//!
//! Locking: the state itself has no lock. The caller keeps an inode lock around each state, and
//! holds it shared for everything that takes `&self` and for every read through a [`FileView`] of
//! it, exclusively for everything that takes `&mut self`. The inode lock comes before the
//! transaction: calls that edit trees join a transaction themselves, so the caller must not hold a
//! handle. Before a snapshot or a clone shares the file's extents, the caller merges the file, and
//! keeps the inode lock until they are shared.
//!
//! Laws:
//!
//! 1. A tree references data only when its write has succeeded.
//! 2. A write that fails changes nothing: the range reads as before, except where the data was to
//!    be written in place. The writer gets the error, and every handle of the file reports it once
//!    more ([`crate::error_sequence`]).
//! 3. Space is reserved before a write is accepted, not when its data is written back: for the data
//!    itself and, as well as that can be estimated ([`metadata_reservation`]), for the metadata
//!    that references it.
//! 4. No data is read or written while a transaction handle is open.
//! 5. The inode item never claims more bytes than the trees show: its size and byte count change in
//!    the transaction that changes the file's extents.

pub(crate) mod backing;
pub(crate) mod data_reservation;
pub(crate) mod inline;
pub(crate) mod metadata_reservation;

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::sealed_file::SealedFile;
use crate::shared_file::SharedFile;
use crate::source::Source;
use crate::state::data_reservation::DataReservation;
use crate::state::inline::{CompressedInline, InlineShape};
use crate::units::FILE_BYTES_MAX;
use butternut_format::feature;
use butternut_format::file_extent::Compression;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::{DiskRange, Ino, SECTOR_BYTES, TreeId, length};
use butternut_pages::CacheMode;
use butternut_space::{Cluster, Reservation};
use butternut_sys::lock::{Mutex, rank};
use butternut_sys::wait::Wait;
use butternut_tree::Tree;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a caller changes in the inode item, in the transaction that also changes its size and byte
/// count: times, sequence, flags. It is called after the file's own fields are set.
pub type InodeUpdate<'a> = &'a mut dyn FnMut(&mut Inode);

/// Whether preallocation past the end of a file increases its size (`FALLOC_FL_KEEP_SIZE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateSize {
    Extend,
    Keep,
}

/// The data of one inode while it is being written.
#[derive(Debug)]
pub struct FileState {
    pub(crate) source: Source,
    pub(crate) view: FileView,
    pub(crate) shared: Arc<SharedFile>,
    pub(crate) flags: InodeFlags,
    /// Space for the dirty blocks that are [`backing::Backing::Reserved`], and perhaps more.
    pub(crate) data_reservation: DataReservation,
    /// Bytes of `data_reservation` that dirty blocks need.
    pub(crate) bytes_reserved: u64,
    /// Whether pages that are written now stay in the page cache.
    pub(crate) stay: CacheMode,
    /// Metadata space for merging what is newer than the trees.
    pub(crate) metadata_reservation: Mutex<Option<Reservation>, rank::MetadataReservation>,
    /// Edges that are prepared and not dirty yet, whose metadata is reserved.
    pub(crate) prepared_edges: u64,
    /// Size of the file as the inode item has it, and byte count of the inode item.
    pub(crate) size_in_tree: u64,
    pub(crate) bytes_in_tree: AtomicU64,
    pub(crate) shape: Option<InlineShape>,
    /// Where the next partial merge starts.
    pub(crate) merged_to: u64,
    /// The algorithm that the file's property names.
    pub(crate) property: Option<Compression>,
    /// Compression saved too little; the next merge sets the flag nocompress.
    pub(crate) gave_up_compression: bool,
    /// The compressed contents of a file that is to become inline, if it is compressed.
    pub(crate) compressed_inline: Option<CompressedInline>,
    /// The next writeback writes the first block to disk, because extents will follow it.
    pub(crate) is_leaving_inline: bool,
    /// The count of evicted pages at the last [`FileState::had_evictions`].
    evictions_seen: u64,
    /// Another state of the file may have been created, which owns the dirty pages.
    has_ended: bool,
}

impl FileState {
    /// Returns the state of file `ino` of `tree`, as its inode item says. There must be only one
    /// for each inode at a time.
    pub fn new(source: &Source, tree: &Tree, ino: Ino, inode: &Inode) -> Self {
        let view = FileView::new(tree.clone(), ino, inode);
        let pages = source.pages().file(view.key());
        let (pending, has_checksums) = (source.pending().file(), view.has_checksums());
        let shared = Arc::new(SharedFile::new(pages, pending, view.size(), has_checksums));
        Self {
            source: source.clone(),
            view: view.with_shared(Arc::clone(&shared)),
            shared,
            flags: inode.flags,
            data_reservation: DataReservation::default(),
            bytes_reserved: 0,
            stay: CacheMode::Cached,
            metadata_reservation: Mutex::default(),
            prepared_edges: 0,
            // As the view: a larger size cannot be reached, and the next change corrects it.
            size_in_tree: inode.size.min(FILE_BYTES_MAX),
            bytes_in_tree: AtomicU64::new(inode.bytes_used),
            shape: None,
            merged_to: 0,
            property: None,
            gave_up_compression: false,
            compressed_inline: None,
            is_leaving_inline: false,
            evictions_seen: 0,
            has_ended: false,
        }
    }

    /// Makes the volume read-only: a thread panicked while it changed this file in memory.
    pub fn fail_after_panic(&self) {
        self.source.forest().fail_after_panic();
    }

    /// Returns the view for reads, seeks and lists of extents. It also shows later changes while
    /// this state exists, so a caller that keeps a view must keep the state.
    pub fn view(&self) -> &FileView {
        &self.view
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.shared.size()
    }

    /// Returns the bytes of data space, as `stat` shows them. Data that is not in the trees yet
    /// counts; data that is in both counts once, as far as the file's size tells.
    pub fn bytes_used(&self) -> u64 {
        let whole = self.size().checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
        let in_tree = self.bytes_in_tree.load(Ordering::Acquire);
        let both = in_tree.saturating_add(self.shared.overlay().bytes());
        both.min(whole.max(in_tree))
    }

    /// Returns whether nothing is newer than the trees.
    pub fn is_clean(&self) -> bool {
        self.size() == self.size_in_tree && self.shared.overlay().is_empty()
    }

    /// Returns whether there is a writeback error that no handle has reported.
    pub fn has_unreported_error(&self) -> bool {
        self.shared.errors().has_unreported()
    }

    /// Returns the size and byte count of the inode item.
    pub fn in_tree(&self) -> (u64, u64) {
        (self.size_in_tree, self.bytes_in_tree.load(Ordering::Acquire))
    }

    /// Ends the use of the state if it is clean, and returns whether it has ended, now or before.
    /// The caller holds the inode lock and releases the state before another is created. The state
    /// itself may be dropped later, without the lock. Once it has ended, dirty pages of the file
    /// are those of the next state.
    pub fn end_if_clean(&mut self) -> bool {
        self.has_ended = self.has_ended || self.is_clean();
        self.has_ended
    }

    /// Returns whether pages of the file were evicted since the last call.
    pub fn had_evictions(&mut self) -> bool {
        let evicted = self.shared.pages().evicted_pages();
        std::mem::replace(&mut self.evictions_seen, evicted) != evicted
    }

    /// Returns the dirty bytes of the file.
    pub fn dirty_bytes(&self) -> u64 {
        length(self.shared.pages().newer_pages()) * SECTOR_BYTES
    }

    /// Sets the inode's flags (`chattr`).
    pub fn set_flags(&mut self, flags: InodeFlags) {
        let flags_of_compression = [InodeFlags::COMPRESS, InodeFlags::NOCOMPRESS];
        self.gave_up_compression &= flags_of_compression
            .iter()
            .all(|flag| flags.contains(*flag) == self.flags.contains(*flag));
        let was_charged = self.is_metadata_charged();
        self.flags = flags;
        self.move_charge(was_charged);
        self.shared.set_has_checksums(!flags.contains(InodeFlags::NODATASUM));
    }

    /// Makes all later reads verify the file by the hashes of fs-verity. Its data and items are in
    /// the tree, and the caller refuses every further change of its bytes. Pages that were read
    /// before, which nothing has verified, are dropped.
    pub fn seal(&mut self) {
        debug_assert!(self.is_clean(), "its data is in the tree");
        let verity = SealedFile::new(self.view.tree().clone(), self.ino());
        self.shared.set_verity(Arc::new(verity));
        // A thread that has read ahead before keeps none of what it has read.
        self.shared.bump_data_version();
        self.invalidate_pages(&(0..self.size()));
    }

    /// Drops everything that is not in the trees, for an inode that is deleted.
    pub fn discard(&mut self) {
        self.drain();
        self.drop_overlay(0..u64::MAX);
        self.shared.set_size(self.size_in_tree);
        self.release_unused_data();
        self.drop_metadata();
    }

    pub(crate) fn tree_id(&self) -> TreeId {
        self.view.tree().id()
    }

    pub(crate) fn ino(&self) -> Ino {
        self.view.ino()
    }

    /// Whether the volume needs an item for every hole.
    pub(crate) fn has_hole_items(&self) -> bool {
        !self.source.forest().volume().super_block().has(feature::NO_HOLES)
    }

    /// The cluster to allocate from: small files share one, so that they are close together; large
    /// files use several others, so that they stay contiguous.
    pub(crate) fn cluster(&self) -> Cluster {
        const LARGE_BYTES: u64 = 1 << 20;
        const LARGE_CLUSTERS: u64 = 8;
        let is_large = self.shared.bytes_written().max(self.size_in_tree) >= LARGE_BYTES;
        Cluster(if is_large { 1 + self.ino().0 % LARGE_CLUSTERS } else { 0 })
    }

    /// Reserves space for `blocks` more dirty blocks. If that fails, a part of the space stays in
    /// the data reservation.
    pub(crate) fn reserve(&mut self, blocks: usize, wait: Wait) -> Result<(), FileError> {
        /// A file with many dirty blocks reserves up to this many bytes ahead, so that it is
        /// written in long runs.
        const AHEAD_BYTES_MAX: u64 = 4 << 20;
        let wanted = self.bytes_reserved + length(blocks) * SECTOR_BYTES;
        while self.data_reservation.bytes() < wanted {
            let shortfall = wanted - self.data_reservation.bytes();
            let ahead = self.dirty_bytes().min(AHEAD_BYTES_MAX) / SECTOR_BYTES * SECTOR_BYTES;
            let run = self.allocate_between(SECTOR_BYTES, shortfall.max(ahead), wait)?;
            self.data_reservation.add(run);
        }
        self.bytes_reserved = wanted;
        Ok(())
    }

    /// Allocates at most `bytes_max` contiguous bytes.
    pub(crate) fn allocate_run(&self, bytes_max: u64) -> Result<DiskRange, FileError> {
        self.allocate_between(SECTOR_BYTES, bytes_max, Wait::Block)
    }

    /// Allocates contiguous space.
    pub(crate) fn allocate_between(
        &self,
        bytes_min: u64,
        bytes_max: u64,
        wait: Wait,
    ) -> Result<DiskRange, FileError> {
        let (forest, tree) = (self.source.forest(), self.tree_id());
        // Charged before it is allocated: what a quota refuses allocates nothing.
        let charged = forest.charge_data(tree, bytes_min, bytes_max)?;
        let found = forest.allocate_data(bytes_min, charged, self.cluster(), wait);
        let bytes = found.as_ref().map_or(0, |range| range.bytes());
        forest.release_quota_charge(tree, charged.saturating_sub(bytes));
        Ok(found?)
    }

    /// Frees space that nothing has referenced.
    pub(crate) fn release(&self, ranges: impl IntoIterator<Item = DiskRange>) {
        self.source.release(self.tree_id(), ranges);
    }

    /// Frees the data reservation if no dirty block needs any of it.
    pub(crate) fn release_unused_data(&mut self) {
        if self.bytes_reserved == 0 {
            let left: Vec<_> = self.data_reservation.empty().collect();
            self.release(left);
        }
    }

    /// Drops everything that is newer than the tree in `range`, which consists of whole blocks.
    pub(crate) fn drop_overlay(&mut self, range: Range<u64>) {
        self.shared.wait_for_readahead();
        self.invalidate_pages(&range);
        let freed = self.shared.overlay_mut().cut(&range);
        self.release(freed);
    }

    /// Records a writeback error, which the next `fsync` through each handle reports.
    pub(crate) fn record_error(&self, error: &FileError) {
        self.source.record_error(&self.shared, error);
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        // The data is in the trees, and its pages stay cached.
        if self.has_ended || self.is_clean() {
            self.drain();
            self.release_unused_data();
            self.drop_metadata();
        } else {
            self.discard();
        }
    }
}
