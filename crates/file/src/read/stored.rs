//! Reads an extent as it is stored: compressed, if it is compressed.

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::source::Source;
use crate::units::in_memory;
use crate::wait::Lookup;
use butternut_format::file_extent::DiskExtent;
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use butternut_sys::wait::Wait;
use butternut_volume::{Checksums, DataRead};
use std::sync::Arc;

impl Source {
    /// Reads all bytes of a data extent of a file, which has at most 128 KiB as every compressed
    /// one, and verifies their checksums. `offset` is where the file shows it.
    ///
    /// # Errors
    /// The extent cannot be read, or no mirror has it with a matching checksum.
    pub fn read_stored(
        &self,
        view: &FileView,
        offset: u64,
        extent: DiskExtent,
    ) -> Result<Vec<u8>, FileError> {
        let (tree, ino) = (view.tree().id(), view.ino());
        let mut bytes = vec![0; in_memory(extent.bytes)];
        let mut stored = Vec::new();
        if view.has_checksums() {
            let sectors = in_memory(extent.bytes / SECTOR_BYTES);
            let mut lookup = Lookup::new(Wait::Block);
            let checksums = &self.lookups().checksums;
            let found = checksums.gather(extent.logical, sectors, &mut lookup, &mut stored);
            if let Some(failure) = found.failure {
                return Err(failure.into());
            }
            if found.sectors < sectors {
                let skip = length(found.sectors).saturating_mul(SECTOR_BYTES);
                let logical = Logical(extent.logical.0.saturating_add(skip));
                return Err(FileError::NoChecksum { tree, ino, offset, logical });
            }
        }
        let wanted =
            if view.has_checksums() { Checksums::Stored(&stored) } else { Checksums::None };
        let mut requests = [DataRead::new(extent.logical, &mut bytes, wanted)];
        self.forest().volume().read_data(&mut requests);
        let [request] = requests;
        let read = request.result;
        read.map_err(|error| FileError::Data { tree, ino, offset, source: Arc::new(error) })?;
        Ok(bytes)
    }
}
