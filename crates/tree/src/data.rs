//! Data extents: their space, their references by files, and their checksums.
//!
//! ```text
//! allocate_data --(write the data)--> add_data_extent --> add_data_ref, drop_data_ref --> freed
//!       |
//!       +--> release_data           (the write failed, or was cancelled)
//! ```
//!
//! Laws:
//!
//! 1. An extent is added after its data has been written, with the same handle as the file extent
//!    item that names it.
//! 2. An extent that loses its last reference keeps its bytes until the commit is complete: a
//!    reader of an older state still finds its data.
//! 3. An extent is not written in place while a crash may bring back a reference to it that another
//!    file, or another place of the file, has dropped ([`Forest::is_shared`]).

use crate::error::TreeError;
use crate::forest::Forest;
use crate::references::Ref;
use crate::references::item::read_extent;
use crate::transaction::Handle;
use crate::transaction::enospc::Purpose;
use butternut_format::extent::{DataRef, InlineRef};
use butternut_format::feature::Feature;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{DiskRange, Generation, Logical, TreeId};
use butternut_space::{AllocationRequest, Class, Cluster, Reservation};
use butternut_sys::wait::Wait;
use std::ops::Range;
use std::sync::Arc;

/// The longest data extent (`BTRFS_MAX_EXTENT_SIZE`), in bytes.
pub const DATA_EXTENT_BYTES_MAX: u64 = 128 << 20;

impl Forest {
    /// Allocates space for data: one range of `bytes_min` to `bytes_max` bytes, in whole sectors,
    /// as long as possible. With [`Wait::Block`], adds chunks and commits if necessary, so the
    /// caller must hold no handle.
    ///
    /// # Errors
    /// There is no space, or the volume is read-only; [`TreeError::WouldBlock`].
    pub fn allocate_data(
        self: &Arc<Self>,
        bytes_min: u64,
        bytes_max: u64,
        cluster: Cluster,
        wait: Wait,
    ) -> Result<DiskRange, TreeError> {
        let request =
            AllocationRequest::data(bytes_min, bytes_max.min(DATA_EXTENT_BYTES_MAX), cluster);
        let found = self.reserve_or_flush(Purpose::Growth, wait, |running| {
            Ok(running.space.allocate_unreserved(Class::Data, request))
        })?;
        Ok(DiskRange::of(found).expect("a free run ends after its start"))
    }

    /// Reserves metadata space for changes that will be written to the trees later, until the
    /// reservation is dropped. With [`Wait::Block`], adds chunks and commits if necessary, so the
    /// caller must hold no handle.
    ///
    /// # Errors
    /// There is no space, or the volume is read-only; [`TreeError::WouldBlock`].
    pub fn reserve_metadata(
        self: &Arc<Self>,
        bytes: u64,
        wait: Wait,
    ) -> Result<Reservation, TreeError> {
        self.reserve_or_flush(Purpose::Growth, wait, |running| {
            Ok(running.space.reserve(Class::Metadata, bytes))
        })
    }

    /// Frees space that was allocated and that no extent was added for.
    ///
    /// # Errors
    /// The volume was opened for reading.
    pub fn release_data(&self, range: DiskRange) -> Result<(), TreeError> {
        let running = self.running()?;
        running.check(running.space.release(range.addresses()));
        Ok(())
    }

    /// Returns the reference count of an extent in the running transaction; 0 if there is no such
    /// extent.
    ///
    /// # Errors
    /// The extent tree cannot be read.
    pub fn data_refs(self: &Arc<Self>, at: Logical, bytes: u64) -> Result<u64, TreeError> {
        let running = self.running()?;
        let extents = self.tree(TreeId::EXTENT)?;
        let extents = extents.ok_or(TreeError::NoTree { tree: TreeId::EXTENT })?;
        let key = Key::new(at.0, ItemType::EXTENT_ITEM, bytes);
        let (written, pending) =
            running.with_pending_refs(at, None, |_| match extents.find(&key)? {
                Some(item) => {
                    read_extent(self.volume(), key, item.data(), |extent| Ok(extent.refs))
                }
                None => Ok(0),
            })?;
        Ok(written.saturating_add_signed(pending.sum))
    }

    /// Returns whether a range is one data extent of the last commit or of the running transaction,
    /// which may have dropped all its references.
    ///
    /// # Errors
    /// The extent tree cannot be read.
    pub fn has_extent(self: &Arc<Self>, at: Logical, bytes: u64) -> Result<bool, TreeError> {
        let running = self.running()?;
        let extents = self.tree(TreeId::EXTENT)?;
        let extents = extents.ok_or(TreeError::NoTree { tree: TreeId::EXTENT })?;
        let key = Key::new(at.0, ItemType::EXTENT_ITEM, bytes);
        let (is_written, pending) =
            running.with_pending_refs(at, None, |_| Ok(extents.find(&key)?.is_some()))?;
        Ok(is_written || pending.created_bytes == Some(bytes))
    }

    /// Returns whether an extent has other references than `reference`, whatever the count of that
    /// one, or would have them after a crash: a reference that was dropped counts until a commit
    /// has made that durable. A range that is not exactly one extent counts as shared: another may
    /// have its bytes.
    /// Trees that share a leaf are not detected: compare the generation of the item with the one of
    /// the last snapshot of the tree ([`Forest::last_snapshot`]).
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
        let (is_shared, _) = running.with_pending_refs(at, Some(own), |pending| {
            if pending.has_others || pending.dropped.has_other_than(own) {
                return Ok(true);
            }
            let Some(item) = extents.find(&key)? else {
                return Ok(pending.created_bytes != Some(bytes));
            };
            read_extent(self.volume(), key, item.data(), |extent| {
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

    /// Passes the pending checksums of a range to `visit`, in order. They are newer than those in
    /// the checksum tree. Read the tree after this call: a checksum that was not passed is in the
    /// tree, if the sector has one.
    pub fn pending_checksums(&self, range: &Range<u64>, visit: &mut dyn FnMut(Logical, &[u8])) {
        if let Ok(running) = self.running() {
            running.pending_checksums().find(range, visit);
        }
    }

    /// Returns the generation of the last snapshot of a tree; 0 if there is none.
    ///
    /// # Errors
    /// There is no such tree, or the volume was opened for reading.
    pub fn last_snapshot(self: &Arc<Self>, tree: TreeId) -> Result<Generation, TreeError> {
        let running = self.running()?.tree(tree)?.ok_or(TreeError::NoTree { tree })?;
        let state = running.state();
        // The record is newer than the root item while a commit makes a snapshot.
        let snapshot = state.record.as_ref().map(|record| record.raw.last_snapshot.get());
        Ok(Generation(snapshot.unwrap_or_default()))
    }
}

impl Handle {
    /// Adds a data extent with its first reference.
    pub fn add_data_extent(&self, at: Logical, bytes: u64, reference: DataRef) {
        self.running().create_data(at, bytes, Ref::data(reference));
        self.mark_changed();
    }

    /// Sets a feature bit of the superblock, which the commit of this transaction writes.
    pub fn add_feature(&self, feature: Feature) {
        if self.running().add_feature(feature) {
            self.mark_changed();
        }
    }

    /// Sets a feature bit of the superblock that old kernels only read, as [`Self::add_feature`].
    pub fn add_compat_ro_feature(&self, feature: Feature) {
        if self.running().add_compat_ro_feature(feature) {
            self.mark_changed();
        }
    }

    /// Adds a reference to an extent.
    pub fn add_data_ref(&self, at: Logical, bytes: u64, reference: DataRef) {
        self.running().change_data(at, bytes, Ref::data(reference), 1);
        self.mark_changed();
    }

    /// Drops a reference to an extent. The commit of this transaction frees an extent without
    /// references.
    pub fn drop_data_ref(&self, at: Logical, bytes: u64, reference: DataRef) {
        self.mark_changed();
        let owner = self.running().references().owner(at);
        let is_freed = self.running().change_data(at, bytes, Ref::data(reference), -1);
        if is_freed {
            let range = at.0..at.0.saturating_add(bytes);
            let running = self.running();
            running.pending_checksums().remove(&range);
            running.check(running.space.pin(range, self.generation()));
            if let Some(owner) = owner {
                running.remove_charged(owner, bytes);
            }
        } else {
            self.running().note_dropped_data(reference.tree);
        }
    }

    /// Adds the checksums of the sectors from `start` on, stored one after another. The commit
    /// writes them into the checksum tree; until then [`Forest::pending_checksums`] returns them.
    pub fn put_checksums(&self, start: Logical, checksums: &[u8]) {
        self.running().pending_checksums().put(start, checksums);
        self.mark_changed();
    }
}
