//! Reads tree blocks: checks each, and reads another mirror if it is bad.

use crate::error::VolumeError;
use crate::read_batch::{ReadBatch, ReadOutcome, SegmentRead};
use crate::volume::Volume;
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::refused::require;
use butternut_format::units::{Logical, SECTOR_BYTES, index};
use butternut_sys::buffer::Buffer;

impl Volume {
    /// Reads one block and checks it against what its parent expects.
    pub fn read_block(&self, expected: &Expected) -> Result<TreeBlock<Buffer>, VolumeError> {
        let missing = VolumeError::Unmapped { logical: expected.logical, bytes: 0 };
        self.read_blocks(std::slice::from_ref(expected)).pop().unwrap_or(Err(missing))
    }

    /// Reads several blocks as one batch. The results are in the order of `expected`.
    pub fn read_blocks(
        &self,
        expected: &[Expected],
    ) -> Vec<Result<TreeBlock<Buffer>, VolumeError>> {
        let rules = self.rules.load();
        let chunks = self.chunks.load();
        let node_bytes = index(rules.node_bytes);
        let mut buffers: Vec<Buffer> =
            expected.iter().map(|_| Buffer::zeroed(node_bytes)).collect();
        let mut batch = ReadBatch::new(self, expected.len());
        let added: Vec<Result<(), VolumeError>> = buffers
            .iter_mut()
            .zip(expected)
            .enumerate()
            .map(|(range, (buffer, expected))| {
                aligned(expected.logical)?;
                batch.add(&chunks, range, expected.logical, buffer)
            })
            .collect();
        let segments_read = batch.run();
        let mut segments_read = segments_read.chunk_by(|a, b| a.range == b.range);
        let blocks = added.into_iter().zip(buffers).zip(expected);
        blocks
            .map(|((added, buffer), expected)| {
                added?;
                let segments = segments_read.next().unwrap_or_default();
                self.checked(buffer, expected, segments, &rules)
            })
            .collect()
    }

    fn checked(
        &self,
        buffer: Buffer,
        expected: &Expected,
        segments: &[SegmentRead<'_>],
        rules: &BlockRules,
    ) -> Result<TreeBlock<Buffer>, VolumeError> {
        let is_read =
            segments.iter().all(|segment| matches!(segment.outcome, ReadOutcome::Read { .. }));
        let refused = if is_read {
            match TreeBlock::check(buffer, expected, rules) {
                Ok(block) => return Ok(block),
                Err(refused) => Some(refused),
            }
        } else {
            None
        };
        self.rescue_block(expected, segments, refused, rules)
    }
}

fn aligned(logical: Logical) -> Result<(), VolumeError> {
    let aligned = logical.0.is_multiple_of(SECTOR_BYTES);
    require(aligned, "logical", logical, "a multiple of 4096")
        .map_err(|refused| VolumeError::InvalidRange { logical, refused })
}
