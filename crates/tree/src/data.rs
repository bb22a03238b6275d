//! Data extents: their space, the references of files to them, and their checksums.
//!
//! ```text
//! allocate_data --(the data is written)--> claim_data --> add_data_ref, drop_data_ref --> free
//!       |
//!       +--> release_data                (nothing came of it)
//! ```
//!
//! Laws:
//!
//! 1. An extent is claimed after its data is down, in the same handle as the item that names it.
//! 2. An extent that loses its last reference keeps its bytes until the commit is down: whoever
//!    reads it by an older state reads what he was promised.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::references::Ref;
use crate::references::item::read_extent;
use crate::refusals::Purpose;
use crate::transaction::Handle;
use butternut_format::extent::{DataRef, InlineRef};
use butternut_format::feature::Feature;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, Logical, TreeId};
use butternut_space::{Class, Cluster, NoSpace, Ticket, Want};
use std::ops::Range;
use std::sync::Arc;

/// The longest extent of data (`BTRFS_MAX_EXTENT_SIZE`), in bytes.
pub const DATA_EXTENT_BYTES_MAX: u64 = 128 << 20;

impl Forest {
    /// Space for data: as long a run as there is, between the two lengths, in whole sectors. Makes
    /// chunks, and commits, where that helps; so the caller must hold no handle.
    ///
    /// # Errors
    /// No space.
    pub fn allocate_data(
        self: &Arc<Self>,
        bytes_min: u64,
        bytes_max: u64,
        cluster: Cluster,
    ) -> Result<Range<u64>, TreeError> {
        let want = Want::data(bytes_min, bytes_max.min(DATA_EXTENT_BYTES_MAX), cluster);
        self.find_room(Purpose::Growth, |running| {
            let space = &running.space;
            if let Some(range) = space.allocate_spare(Class::Data, want) {
                return Ok(Ok(range));
            }
            // Where there is room, but not in one piece, a chunk more helps too.
            let (class, wanted) = (Class::Data, bytes_min);
            let refused = space.reserve(class, wanted).err();
            let unallocated = refused.is_none_or(|why| why.unallocated);
            let pinned_bytes = space.pinned_bytes();
            Ok(Err(NoSpace { class, wanted, pinned_bytes, unallocated }))
        })
    }

    /// The same, of what there is: nobody waits, nothing is made or committed.
    pub fn allocate_data_at_once(
        &self,
        bytes_min: u64,
        bytes_max: u64,
        cluster: Cluster,
    ) -> Option<Range<u64>> {
        let want = Want::data(bytes_min, bytes_max.min(DATA_EXTENT_BYTES_MAX), cluster);
        self.ask(Purpose::Growth).ok()?;
        self.running().ok()?.space.allocate_spare(Class::Data, want)
    }

    /// Promises space of the trees, for what will be merged into them some time later; the promise
    /// holds until it is dropped, which is when that is done. Makes chunks, and commits, where that
    /// helps; so the caller must hold no handle.
    ///
    /// # Errors
    /// No space.
    pub fn promise_metadata(self: &Arc<Self>, bytes: u64) -> Result<Ticket, TreeError> {
        self.find_room(Purpose::Growth, |running| Ok(running.space.reserve(Class::Metadata, bytes)))
    }

    /// The same, of what there is: nobody waits, nothing is made or committed.
    pub fn promise_metadata_at_once(&self, bytes: u64) -> Option<Ticket> {
        self.ask(Purpose::Growth).ok()?;
        self.running().ok()?.space.reserve(Class::Metadata, bytes).ok()
    }

    /// Gives back space that was allocated and never claimed.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn release_data(&self, range: Range<u64>) -> Result<(), TreeError> {
        let running = self.running()?;
        running.check(running.space.release(range));
        Ok(())
    }

    /// How often an extent is referred to, as of the running transaction; 0 where there is none.
    ///
    /// # Errors
    /// The extent tree cannot be read.
    pub fn data_refs(self: &Arc<Self>, at: Logical, bytes: u64) -> Result<u64, TreeError> {
        let running = self.running()?;
        let extents = self.tree(TreeId::EXTENT)?;
        let extents = extents.ok_or(TreeError::NoTree { tree: TreeId::EXTENT })?;
        let key = Key::new(at.0, ItemType::EXTENT_ITEM, bytes);
        let (written, look) = running.with_references(at, |_| match extents.find(&key)? {
            Some(item) => read_extent(self, key, item.data(), |extent| Ok(extent.refs)),
            None => Ok(0),
        })?;
        Ok(written.saturating_add_signed(look.sum))
    }

    /// Whether an extent is referred to in any other way than by `reference`, however often that
    /// is. Trees that share a leaf do not show here: that is told by the generations of the item
    /// and of the tree's last snapshot ([`Forest::last_snapshot`]).
    ///
    /// # Errors
    /// The extent tree cannot be read.
    pub fn is_shared(
        self: &Arc<Self>,
        at: Logical,
        bytes: u64,
        reference: &DataRef,
    ) -> Result<bool, TreeError> {
        let running = self.running()?;
        let own = Ref::data(*reference);
        let extents = self.tree(TreeId::EXTENT)?;
        let extents = extents.ok_or(TreeError::NoTree { tree: TreeId::EXTENT })?;
        let key = Key::new(at.0, ItemType::EXTENT_ITEM, bytes);
        let (is_shared, _) = running.with_references(at, |look| {
            if look.deltas.iter().any(|(known, _)| *known != own) {
                return Ok(true);
            }
            let Some(item) = extents.find(&key)? else { return Ok(false) };
            read_extent(self, key, item.data(), |extent| {
                let mut own_count = 0;
                for known in extent.inline_refs() {
                    if let InlineRef::Data(known) = known?
                        && Ref::data(known) == own
                    {
                        own_count = u64::from(known.count);
                    }
                }
                Ok(own_count != extent.refs)
            })
        })?;
        Ok(is_shared)
    }

    /// Shows the digests of a range that wait for the commit to `see`, in order. They are newer
    /// than what the checksum tree has, and what is not shown is in it already: so it is asked
    /// behind this.
    pub fn waiting_sums(&self, range: &Range<u64>, see: &mut dyn FnMut(Logical, &[u8])) {
        if let Ok(running) = self.running() {
            running.sums().find(range, see);
        }
    }

    /// The transaction in which a snapshot of a tree was made last; 0 where none was.
    ///
    /// # Errors
    /// There is no such tree.
    pub fn last_snapshot(self: &Arc<Self>, tree: TreeId) -> Result<Generation, TreeError> {
        let (_, root) = self.root_item(tree)?.ok_or(TreeError::NoTree { tree })?;
        Ok(Generation(root.raw().last_snapshot.get()))
    }
}

impl Handle {
    /// An extent of data comes into being, with its first reference.
    pub fn claim_data(&self, range: Range<u64>, reference: DataRef) {
        let bytes = range.end.saturating_sub(range.start);
        self.running().create_data(Logical(range.start), bytes, Ref::data(reference));
        self.touch();
    }

    /// Whoever reads the volume has to know a feature from now on: the superblock says so with the
    /// commit of this transaction.
    pub fn add_feature(&self, feature: Feature) {
        let mut raw = self.running().super_block();
        if !raw.has(feature) {
            let with = raw.incompat_flags.get() | feature.mask();
            raw.incompat_flags.set(with);
            self.touch();
        }
    }

    /// One more reference to an extent.
    pub fn add_data_ref(&self, at: Logical, bytes: u64, reference: DataRef) {
        self.running().change_data(at, bytes, Ref::data(reference), 1);
        self.touch();
    }

    /// One reference less; an extent without any is freed when the transaction is committed.
    pub fn drop_data_ref(&self, at: Logical, bytes: u64, reference: DataRef) {
        self.touch();
        let is_gone = self.running().change_data(at, bytes, Ref::data(reference), -1);
        if is_gone {
            let range = at.0..at.0.saturating_add(bytes);
            let running = self.running();
            running.sums().remove(&range);
            running.check(running.space.pin(range, self.generation()));
        }
    }

    /// Keeps the digests of the sectors from `start` on, packed one after another: they go into the
    /// checksum tree with the commit, and until then [`Forest::waiting_sums`] has them.
    pub fn put_sums(&self, start: Logical, digests: &[u8]) {
        self.running().sums().put(start, digests);
        self.touch();
    }
}
