//! Sectors and their checksums, for who moves data through a [`DataQueue`](crate::DataQueue) and so
//! verifies and sums it himself.
//!
//! Laws:
//! 1. What is summed is what is written: of bytes that may change meanwhile a copy is made, and the
//!    copy is summed.
//! 2. Copying and summing take turns, sector by sector: the sector is in the nearest cache when it
//!    is summed. Measured, with the bytes near by: 106 ns a sector for both, 63 for the CRC alone,
//!    32 for the copy alone. Turns shorter than a sector, down to 256 bytes, cost more, for each
//!    begins the CRC anew: 109 ns with 2048 bytes, 185 with 1024.

use crate::read_data::{SECTOR, Sums};
use crate::volume::Volume;
use butternut_sys::buffer::Buffer;

impl Volume {
    /// Whether all sectors are as their checksums say. Bytes that have none hold.
    pub fn verify(&self, bytes: &[u8], sums: Sums<'_>) -> bool {
        let Sums::Packed(packed) = sums else { return true };
        let csum = self.super_block().csum();
        let (sectors, rest) = bytes.as_chunks::<SECTOR>();
        rest.is_empty()
            && packed.len() == sectors.len().saturating_mul(csum.bytes())
            && sectors
                .iter()
                .zip(packed.chunks_exact(csum.bytes()))
                .all(|(sector, stored)| csum.matches(sector, stored))
    }

    /// Adds the digests of whole sectors, packed as in the checksum tree.
    pub fn sum(&self, bytes: &[u8], sums: &mut Vec<u8>) {
        let csum = self.super_block().csum();
        for sector in bytes.chunks(SECTOR) {
            sums.extend_from_slice(csum.digest(sector).get(..csum.bytes()).unwrap_or_default());
        }
    }

    /// Adds the digests of a buffer's whole sectors. Of memory that is not stable each sector is
    /// copied first, so that a digest is one of bytes that were there at one moment.
    pub fn sum_buffer(&self, buffer: &Buffer, sums: &mut Vec<u8>) {
        if buffer.is_stable() {
            return self.sum(buffer, sums);
        }
        let mut sector = [0; SECTOR];
        for at in (0..buffer.len()).step_by(SECTOR) {
            let bytes = SECTOR.min(buffer.len().saturating_sub(at));
            let Some(copy) = sector.get_mut(..bytes) else { return };
            self.copy_and_sum(buffer, at, copy, sums);
        }
    }

    /// Fills `copy`, whole sectors, with the buffer's bytes from `at` on, and adds their digests:
    /// those of the copy, whatever the buffer holds by then.
    pub fn copy_and_sum(&self, buffer: &Buffer, at: usize, copy: &mut [u8], sums: &mut Vec<u8>) {
        let mut from = at;
        for sector in copy.chunks_mut(SECTOR) {
            buffer.copy_to(from, sector);
            self.sum(sector, sums);
            from = from.saturating_add(sector.len());
        }
    }
}
