//! [`FileState`]: one inode's data while it is being written.
//!
//! It owns what is newer than the trees: blocks that are dirty in memory, extents that are on disk
//! but in no tree yet, and the file's size. It does not own names, times or permissions.
//!
//! ```text
//!            write_at, small             flush                     merge
//! caller ---------------------> dirty ------------> on disk, ----------------> trees
//!    |                                              in no tree                   ^
//!    +---- write_at, large ---------------------------^                          |
//!    +---- truncate, punch_hole, zero_range, allocate ---------------------------+
//! ```
//!
//! Locking: there is no lock to take here beyond the caller's. The caller keeps a lock for each
//! inode around its state: shared for everything that takes `&self` and for every read through a
//! [`FileView`] of it, exclusive for what takes `&mut self`. That lock comes before a transaction:
//! calls that edit trees join one themselves, so nobody may hold a handle when making them. Before
//! others can come to share a file's extents (a snapshot, a clone), the caller merges it and keeps
//! its lock until they do.
//!
//! Laws:
//!
//! 1. A tree names data only when it is down on every copy.
//! 2. What could not be written was never there: the range reads as before. The writer who asks
//!    is told; every handle on the file is told once more ([`crate::error_sequence`]).
//! 3. Space is found before a write is accepted, not when its data goes down: for the data itself
//!    and, as well as it can be told ([`crate::promise`]), for the trees to name it.
//! 4. No data is read or written while a transaction handle is open.
//! 5. The item of the inode never says more bytes than the trees show of it: its size and byte
//!    count change in the transaction that changes its extents.

use crate::at_once::InHand;
use crate::error::FileError;
use crate::live::Live;
use crate::room::Room;
use crate::small::{PackedInline, Shape};
use crate::source::Source;
use crate::view::FileView;
use butternut_format::feature;
use butternut_format::file_extent::Compression;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::{Ino, SECTOR_BYTES, TreeId, length};
use butternut_pages::Stay;
use butternut_space::{Cluster, Ticket};
use butternut_tree::Tree;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a caller changes in the inode item, in the transaction that also changes its size and byte
/// count: times, sequence, flags. It runs after the file's own fields are set.
pub type Stamp<'a> = &'a mut dyn FnMut(&mut Inode);

/// Whether space set aside behind the end of a file makes the file longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEnd {
    Moves,
    Stays,
}

/// One inode's data while it is being written.
#[derive(Debug)]
pub struct FileState {
    pub(crate) source: Source,
    pub(crate) view: FileView,
    pub(crate) live: Arc<Live>,
    pub(crate) flags: InodeFlags,
    /// Space for the dirty blocks that are [`Backing::Reserved`], and perhaps more.
    pub(crate) room: Room,
    /// How much of the room dirty blocks count on.
    pub(crate) bytes_reserved: u64,
    /// What the write that is being done took hold of before.
    pub(crate) in_hand: InHand,
    /// Whether what is written now stays in the cache.
    pub(crate) stay: Stay,
    /// Space of the trees for what is above them.
    pub(crate) ticket: Mutex<Option<Ticket>>,
    /// What the inode item says.
    pub(crate) size_in_tree: u64,
    pub(crate) bytes_in_tree: AtomicU64,
    pub(crate) shape: Option<Shape>,
    /// Up to where the last part of a merge went.
    pub(crate) merged_to: u64,
    /// The algorithm that the file's property names.
    pub(crate) property: Option<Compression>,
    /// Packing did not pay; the flag that says so is to come into the tree.
    pub(crate) has_given_up: bool,
    /// The file as it is to be in the tree, packed, where that is so.
    pub(crate) packed_inline: Option<PackedInline>,
    /// Another state of the file may have been made: what the cache has dirty is its.
    has_ended: bool,
}

impl FileState {
    /// The state of file `ino` of `tree`, as its inode item says. There is one for each inode at a
    /// time.
    pub fn new(source: &Source, tree: &Tree, ino: Ino, inode: &Inode) -> Self {
        let view = FileView::new(tree.clone(), ino, inode);
        let pages = source.pages().file(view.key());
        let live = Arc::new(Live::new(pages, view.size(), view.has_sums()));
        Self {
            source: source.clone(),
            view: view.written(Arc::clone(&live)),
            live,
            flags: inode.flags,
            room: Room::default(),
            bytes_reserved: 0,
            in_hand: InHand::default(),
            stay: Stay::Cached,
            ticket: Mutex::default(),
            size_in_tree: inode.size,
            bytes_in_tree: AtomicU64::new(inode.bytes_used),
            shape: None,
            merged_to: 0,
            property: None,
            has_given_up: false,
            packed_inline: None,
            has_ended: false,
        }
    }

    /// Ends all writing to the volume: a thread panicked while it changed this file in memory.
    pub fn fail_after_panic(&self) {
        self.source.forest().fail_after_panic();
    }

    /// For reads, seeks and lists of extents. It shows every change from now on too, as long as
    /// this state lives: who keeps views open keeps the state.
    pub fn view(&self) -> &FileView {
        &self.view
    }

    pub fn size(&self) -> u64 {
        self.live.size()
    }

    /// Bytes of data space, as `stat` shows them: what is not in the trees yet counts, and what
    /// is there both ways counts once where that can be told from the file's size.
    pub fn bytes_used(&self) -> u64 {
        let whole = self.size().checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
        let in_tree = self.bytes_in_tree.load(Ordering::Acquire);
        let both = in_tree.saturating_add(self.live.overlay().bytes());
        both.min(whole.max(in_tree))
    }

    /// Nothing here is newer than the trees.
    pub fn is_clean(&self) -> bool {
        self.size() == self.size_in_tree && self.live.overlay().is_empty()
    }

    /// Whether data was lost and no handle was told of it: the next one is to be.
    pub fn has_untold_error(&self) -> bool {
        self.live.errors().has_untold()
    }

    /// Size and byte count as the inode item has them.
    pub fn in_tree(&self) -> (u64, u64) {
        (self.size_in_tree, self.bytes_in_tree.load(Ordering::Acquire))
    }

    /// Ends the use of the state if it is clean, and returns whether it is. The caller has the
    /// file's lock, and lets go of the state before another is made; the state itself may be
    /// dropped behind that, without the lock.
    pub fn end_if_clean(&mut self) -> bool {
        self.has_ended = self.is_clean();
        self.has_ended
    }

    /// Bytes in memory only.
    pub fn dirty_bytes(&self) -> u64 {
        length(self.live.pages().newer_pages()) * SECTOR_BYTES
    }

    /// The inode's flags are others now (`chattr`).
    pub fn set_flags(&mut self, flags: InodeFlags) {
        let packing = [InodeFlags::COMPRESS, InodeFlags::NOCOMPRESS];
        self.has_given_up &=
            packing.iter().all(|flag| flags.contains(*flag) == self.flags.contains(*flag));
        self.flags = flags;
        self.live.set_sums(!flags.contains(InodeFlags::NODATASUM));
    }

    /// Throws away what is not in the trees: for an inode that is gone.
    pub fn discard(&mut self) {
        self.quiet();
        self.drop_overlay(0..u64::MAX);
        self.live.set_size(self.size_in_tree);
        self.give_back_room();
        self.drop_ticket();
    }

    pub(crate) fn tree_id(&self) -> TreeId {
        self.view.tree().id()
    }

    pub(crate) fn ino(&self) -> Ino {
        self.view.ino()
    }

    /// Whether the volume wants an item for every hole.
    pub(crate) fn has_hole_items(&self) -> bool {
        !self.source.forest().volume().super_block().has(feature::NO_HOLES)
    }

    /// Large files lie each for themselves, small ones together.
    pub(crate) fn cluster(&self) -> Cluster {
        const LARGE_BYTES: u64 = 1 << 20;
        const LARGE_CLUSTERS: u64 = 8;
        let is_large = self.live.bytes_written().max(self.size_in_tree) >= LARGE_BYTES;
        Cluster(if is_large { 1 + self.ino().0 % LARGE_CLUSTERS } else { 0 })
    }

    /// Makes sure that there is room for `blocks` more blocks than those that count on it.
    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<(), FileError> {
        /// A file that goes on is given room ahead, so that it lies in long runs.
        const AHEAD_BYTES_MAX: u64 = 4 << 20;
        let wanted = self.bytes_reserved + length(blocks) * SECTOR_BYTES;
        while self.room.bytes() < wanted {
            let lack = wanted - self.room.bytes();
            let ahead = self.dirty_bytes().min(AHEAD_BYTES_MAX) / SECTOR_BYTES * SECTOR_BYTES;
            let run = self.allocate_run(lack.max(ahead))?;
            self.room.add(run);
        }
        self.bytes_reserved = wanted;
        Ok(())
    }

    /// New space, at most `bytes_max`.
    pub(crate) fn allocate_run(&self, bytes_max: u64) -> Result<Range<u64>, FileError> {
        self.allocate_between(SECTOR_BYTES, bytes_max)
    }

    /// New space in one run.
    pub(crate) fn allocate_between(
        &self,
        bytes_min: u64,
        bytes_max: u64,
    ) -> Result<Range<u64>, FileError> {
        let forest = self.source.forest();
        Ok(forest.allocate_data(bytes_min, bytes_max, self.cluster())?)
    }

    /// Space that nothing will ever have referenced is free again.
    pub(crate) fn release(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        for range in ranges {
            // Refused only on a volume that is not written.
            self.source.forest().release_data(range).ok();
        }
    }

    /// Gives back the room that no dirty block counts on.
    pub(crate) fn give_back_room(&mut self) {
        if self.bytes_reserved == 0 {
            let left: Vec<_> = self.room.empty().collect();
            self.release(left);
        }
    }

    /// Forgets all that is newer than the tree in `range`, which starts and ends with blocks.
    pub(crate) fn drop_overlay(&mut self, range: Range<u64>) {
        self.live.quiesce();
        self.forget_pages(&range);
        let freed = self.live.overlay_mut().cut(&range);
        self.release(freed);
    }

    /// Keeps a failure for the next `fsync` through each handle.
    pub(crate) fn note(&self, error: &FileError) {
        self.source.note(&self.live, error);
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        // What is in the trees, and in the cache, stays there.
        if self.has_ended || self.is_clean() {
            self.quiet();
            self.give_back_room();
        } else {
            self.discard();
        }
    }
}
