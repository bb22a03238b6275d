//! Checksums of data sectors, for callers that move data through a [`DataQueue`](crate::DataQueue)
//! and verify and checksum it themselves.
//!
//! Laws:
//! 1. The checksums are those of the bytes that are written. Bytes that may change meanwhile are
//!    copied first, and the copy is checksummed.
//! 2. Copying and checksumming alternate sector by sector, so that the sector is in the L1 cache
//!    when it is checksummed. Measured with warm caches: 106 ns for each sector, where the CRC
//!    alone takes 63 ns and the copy alone 32 ns. Smaller steps are slower because each starts the
//!    CRC anew: 109 ns with 2048 bytes, 185 ns with 1024.

use crate::sectors::{Checksums, SECTOR};
use crate::volume::Volume;
use butternut_sys::buffer::Buffer;

impl Volume {
    /// Returns whether all sectors match their checksums. Returns true for bytes without checksums.
    pub fn verify(&self, bytes: &[u8], checksums: Checksums<'_>) -> bool {
        let Checksums::Stored(stored) = checksums else { return true };
        let csum = self.super_block().csum();
        let (sectors, rest) = bytes.as_chunks::<SECTOR>();
        rest.is_empty()
            && stored.len() == sectors.len().saturating_mul(csum.bytes())
            && sectors
                .iter()
                .zip(stored.chunks_exact(csum.bytes()))
                .all(|(sector, stored)| csum.matches(sector, stored))
    }

    /// Appends the checksums of whole sectors to `checksums`, concatenated as in the checksum tree.
    pub fn checksum(&self, bytes: &[u8], checksums: &mut Vec<u8>) {
        let csum = self.super_block().csum();
        for sector in bytes.chunks(SECTOR) {
            checksums
                .extend_from_slice(csum.compute(sector).get(..csum.bytes()).unwrap_or_default());
        }
    }

    /// Appends the checksums of a buffer's whole sectors. Sectors of memory that may change are
    /// copied first, so that a checksum is that of bytes that existed at one moment.
    pub fn checksum_buffer(&self, buffer: &Buffer, checksums: &mut Vec<u8>) {
        if buffer.is_stable() {
            return self.checksum(buffer, checksums);
        }
        let mut sector = [0; SECTOR];
        for at in (0..buffer.len()).step_by(SECTOR) {
            let bytes = SECTOR.min(buffer.len().saturating_sub(at));
            let Some(copy) = sector.get_mut(..bytes) else { return };
            self.copy_and_checksum(buffer, at, copy, checksums);
        }
    }

    /// Copies whole sectors from byte `at` of the buffer to `copy`, and appends the checksums of
    /// the copy.
    pub fn copy_and_checksum(
        &self,
        buffer: &Buffer,
        at: usize,
        copy: &mut [u8],
        checksums: &mut Vec<u8>,
    ) {
        let mut from = at;
        for sector in copy.chunks_mut(SECTOR) {
            buffer.copy_to(from, sector);
            self.checksum(sector, checksums);
            from = from.saturating_add(sector.len());
        }
    }
}
