//! Rescues a tree block from other mirrors or from parity.
//!
//! A block is in one segment, except on old volumes whose chunks do not begin at a multiple of the
//! block size. There a block may span two elements of a full stripe. Then the combinations of the
//! mirrors and reconstructions of its segments are tried, at most [`COMBINATIONS_MAX`] of them.

use super::full_stripe::FullStripe;
use super::{mirror_source, mirrors_in_order};
use crate::device_events::DeviceEventKind;
use crate::error::{BadRange, ReadSource, SourceFault, SourceVerdict, Unreadable, VolumeError};
use crate::read_batch::{ReadOutcome, SegmentRead};
use crate::volume::Volume;
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, index};
use butternut_sys::buffer::Buffer;
use std::sync::atomic::Ordering;

/// Maximum number of combinations tried for a block in several segments.
const COMBINATIONS_MAX: usize = 256;

/// One source of one segment.
struct Source {
    kind: ReadSource,
    /// The device that it was read from; `None` if it was reconstructed.
    slot: Option<usize>,
    bytes: Vec<u8>,
}

impl Volume {
    /// Finds a good source of a block whose first read failed (`refused` is `None`) or was refused
    /// by the check.
    pub(crate) fn rescue_block(
        &self,
        expected: &Expected,
        segments: &[SegmentRead<'_>],
        refused: Option<Refused>,
        rules: &BlockRules,
    ) -> Result<TreeBlock<Buffer>, VolumeError> {
        let mut verdicts = Vec::new();
        let mut tried = None;
        if let [segment] = segments {
            tried = self.record_first_read(segment, refused, &mut verdicts);
        }
        // Mirrors before parity: a reconstruction needs a read of every other element.
        for with_parity in [false, true] {
            let mut sources = Vec::with_capacity(segments.len());
            for segment in segments {
                let with_mirrors = !with_parity || segments.len() > 1;
                sources.push(self.sources(
                    segment,
                    tried,
                    with_mirrors,
                    with_parity,
                    &mut verdicts,
                ));
            }
            if let Some(block) = self.combine(expected, &sources, rules, &mut verdicts) {
                self.rescues.blocks.fetch_add(1, Ordering::Relaxed);
                self.report_block(expected.logical, segments, verdicts.first());
                return Ok(block);
            }
            if !segments.iter().any(|segment| segment.layout.attributes().parities > 0) {
                break;
            }
        }
        self.rescues.blocks_lost.fetch_add(1, Ordering::Relaxed);
        let bytes = u64::from(rules.node_bytes);
        let range = BadRange { logical: expected.logical, bytes, sources: verdicts };
        Err(VolumeError::Unreadable(Box::new(Unreadable { ranges: vec![range] })))
    }

    /// Records an event for a block whose first mirror was bad and that was rescued.
    fn report_block(
        &self,
        at: Logical,
        segments: &[SegmentRead<'_>],
        verdict: Option<&SourceVerdict>,
    ) {
        for segment_read in segments {
            let (ReadOutcome::Read { mirror } | ReadOutcome::Failed { mirror, .. }) =
                &segment_read.outcome
            else {
                continue;
            };
            let slot = segment_read
                .layout
                .mirrors(&segment_read.segment)
                .get(*mirror)
                .and_then(|stripe| stripe.slot);
            self.record_event(slot, DeviceEventKind::Block, Some(at), || {
                verdict.map_or_else(|| "wrong contents".to_owned(), ToString::to_string)
            });
        }
    }

    /// Records and counts the fault of the first mirror of a block in one segment. Returns which
    /// mirror it was.
    fn record_first_read(
        &self,
        segment_read: &SegmentRead<'_>,
        refused: Option<Refused>,
        verdicts: &mut Vec<SourceVerdict>,
    ) -> Option<usize> {
        let (mirror, fault) = match (&segment_read.outcome, refused) {
            (ReadOutcome::Read { mirror }, Some(refused)) => {
                let stripe = segment_read.layout.mirrors(&segment_read.segment).get(*mirror);
                self.count_refused(stripe.and_then(|stripe| stripe.slot), &refused);
                (*mirror, SourceFault::Refused(refused))
            }
            (ReadOutcome::Failed { mirror, error }, _) => {
                (*mirror, SourceFault::Device(error.clone()))
            }
            (ReadOutcome::NoMirror | ReadOutcome::Read { .. }, _) => return None,
        };
        let kind = mirror_source(segment_read.layout, &segment_read.segment, mirror)?;
        verdicts.push(SourceVerdict { source: kind, fault });
        Some(mirror)
    }

    /// Reads the sources of a segment: its mirrors, or (with parity) reconstructions from its full
    /// stripe. With parity and several segments, both.
    fn sources(
        &self,
        segment_read: &SegmentRead<'_>,
        tried: Option<usize>,
        with_mirrors: bool,
        with_parity: bool,
        verdicts: &mut Vec<SourceVerdict>,
    ) -> Vec<Source> {
        let mut sources = Vec::new();
        if with_mirrors {
            self.mirrors(segment_read, tried, with_parity, verdicts, &mut sources);
        }
        if with_parity {
            self.reconstructed(segment_read, verdicts, &mut sources);
        }
        sources
    }

    fn mirrors(
        &self,
        segment_read: &SegmentRead<'_>,
        tried: Option<usize>,
        is_again: bool,
        verdicts: &mut Vec<SourceVerdict>,
        sources: &mut Vec<Source>,
    ) {
        let (layout, segment) = (segment_read.layout, &segment_read.segment);
        let order = mirrors_in_order(self, layout, segment)
            .into_iter()
            .filter(|mirror| tried != Some(*mirror));
        for mirror in order {
            let Some(kind) = mirror_source(layout, segment, mirror) else { continue };
            let stripe = layout.mirrors(segment).get(mirror);
            let fault =
                match stripe.and_then(|stripe| Some((stripe.slot?, segment.physical(stripe)))) {
                    None => SourceFault::Missing,
                    Some((slot, physical)) => {
                        let bytes = usize::try_from(segment.bytes).unwrap_or_default();
                        let read = self.read_ranges(&[(slot, physical.0)], bytes).pop();
                        let Some(read) = read else { continue };
                        let Some(error) = read.first_error() else {
                            sources.push(Source { kind, slot: Some(slot), bytes: read.bytes });
                            continue;
                        };
                        SourceFault::Device(error.clone())
                    }
                };
            if !is_again {
                verdicts.push(SourceVerdict { source: kind, fault });
            }
        }
    }

    fn reconstructed(
        &self,
        segment_read: &SegmentRead<'_>,
        verdicts: &mut Vec<SourceVerdict>,
        sources: &mut Vec<Source>,
    ) {
        let Some(full_stripe) = FullStripe::read(self, segment_read.layout, &segment_read.segment)
        else {
            return;
        };
        let reconstructions = full_stripe.reconstructions_of_all();
        if reconstructions.is_empty() {
            let source = full_stripe.lost_kind(0);
            verdicts.push(SourceVerdict { source, fault: SourceFault::TooManyLost });
        }
        let bytes = usize::try_from(segment_read.segment.bytes).unwrap_or_default();
        for reconstruction in reconstructions {
            if let Some(bytes) = full_stripe.whole(reconstruction, bytes) {
                sources.push(Source { kind: full_stripe.kind(reconstruction), slot: None, bytes });
            }
        }
    }

    /// Tries the combinations of one source for each segment until one is a good block.
    fn combine(
        &self,
        expected: &Expected,
        sources: &[Vec<Source>],
        rules: &BlockRules,
        verdicts: &mut Vec<SourceVerdict>,
    ) -> Option<TreeBlock<Buffer>> {
        let combinations: usize =
            sources.iter().fold(1, |product, all| product.saturating_mul(all.len()));
        for nth in 0..combinations.min(COMBINATIONS_MAX) {
            let chosen = combination(sources, nth)?;
            let mut buffer = Buffer::zeroed(index(rules.node_bytes));
            fill(&mut buffer, &chosen);
            match TreeBlock::check(buffer, expected, rules) {
                Ok(block) => {
                    self.count_differing(sources, &chosen);
                    return Some(block);
                }
                Err(refused) => {
                    if let [source] = chosen.as_slice() {
                        self.count_refused(source.slot, &refused);
                    }
                    if let Some(source) = chosen.first() {
                        let source = source.kind.clone();
                        verdicts
                            .push(SourceVerdict { source, fault: SourceFault::Refused(refused) });
                    }
                }
            }
        }
        None
    }

    /// For a block in several segments only a good combination tells which sources are wrong: those
    /// that differ from it.
    fn count_differing(&self, sources: &[Vec<Source>], chosen: &[&Source]) {
        if chosen.len() < 2 {
            return;
        }
        for (all, good) in sources.iter().zip(chosen) {
            for source in all.iter().filter(|source| source.bytes != good.bytes) {
                let refused = Refused::new("bytes", "other bytes", "those of the good copy");
                self.count_refused(source.slot, &refused);
            }
        }
    }
}

/// Returns the `nth` combination; the last segment varies fastest.
fn combination(sources: &[Vec<Source>], mut nth: usize) -> Option<Vec<&Source>> {
    let mut chosen = Vec::with_capacity(sources.len());
    for all in sources.iter().rev() {
        chosen.push(all.get(nth.checked_rem(all.len())?)?);
        nth = nth.checked_div(all.len())?;
    }
    chosen.reverse();
    Some(chosen)
}

fn fill(buffer: &mut [u8], chosen: &[&Source]) {
    let bytes = chosen.iter().flat_map(|source| &source.bytes);
    for (out, byte) in buffer.iter_mut().zip(bytes) {
        *out = *byte;
    }
}
