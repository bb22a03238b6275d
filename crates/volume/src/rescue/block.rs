//! A tree block from other copies.
//!
//! A block lies in one piece, but for old volumes whose chunks do not begin at a multiple of the
//! block size: there it may lie across two elements of a row. Then every combination of their
//! copies is a copy of the block.

use super::row::Row;
use super::{in_order, mirror};
use crate::error::{BadRange, CopyFault, CopyKind, CopyVerdict, Unreadable, VolumeError};
use crate::request::{Answer, Asked};
use crate::troubles::TroubleKind;
use crate::volume::Volume;
use butternut_format::node::{BlockRules, Expected, TreeBlock};
use butternut_format::refused::Refused;
use butternut_format::units::{Logical, index};
use butternut_sys::buffer::Buffer;
use std::sync::atomic::Ordering;

/// Combinations of copies tried for a block that lies in several pieces.
const COMBINATIONS_MAX: usize = 256;

/// One copy of one piece.
struct Version {
    kind: CopyKind,
    /// The device it was read from; `None` if it was computed.
    slot: Option<usize>,
    bytes: Vec<u8>,
}

impl Volume {
    /// Finds a good copy of a block whose first read was refused, or failed (`refused` is `None`).
    pub(crate) fn rescue_block(
        &self,
        expected: &Expected,
        pieces: &[Asked<'_>],
        refused: Option<Refused>,
        rules: &BlockRules,
    ) -> Result<TreeBlock<Buffer>, VolumeError> {
        let mut verdicts = Vec::new();
        let mut tried = None;
        if let [piece] = pieces {
            tried = self.note_first(piece, refused, &mut verdicts);
        }
        // Mirrors before parity: a row costs as many reads as it has elements.
        for with_parity in [false, true] {
            let mut versions = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let with_mirrors = !with_parity || pieces.len() > 1;
                versions.push(self.versions(
                    piece,
                    tried,
                    with_mirrors,
                    with_parity,
                    &mut verdicts,
                ));
            }
            if let Some(block) = self.combine(expected, &versions, rules, &mut verdicts) {
                self.rescues.blocks.fetch_add(1, Ordering::Relaxed);
                self.report_block(expected.logical, pieces, verdicts.first());
                return Ok(block);
            }
            if !pieces.iter().any(|piece| piece.layout.facts().parities > 0) {
                break;
            }
        }
        self.rescues.blocks_lost.fetch_add(1, Ordering::Relaxed);
        let bytes = u64::from(rules.node_bytes);
        let range = BadRange { logical: expected.logical, bytes, copies: verdicts };
        Err(VolumeError::Unreadable(Box::new(Unreadable { ranges: vec![range] })))
    }

    /// Reports a block whose first copy was no good, and that another copy gave.
    fn report_block(&self, at: Logical, pieces: &[Asked<'_>], verdict: Option<&CopyVerdict>) {
        for asked in pieces {
            let (Answer::Read { copy } | Answer::Failed { copy, .. }) = &asked.answer else {
                continue;
            };
            let slot = asked.layout.copies(&asked.piece).get(*copy).and_then(|place| place.slot);
            self.note_trouble(slot, TroubleKind::Block, Some(at), || {
                verdict.map_or_else(|| "wrong contents".to_owned(), ToString::to_string)
            });
        }
    }

    /// Writes down, and counts, what the first copy of a block in one piece did; says which it was.
    fn note_first(
        &self,
        asked: &Asked<'_>,
        refused: Option<Refused>,
        verdicts: &mut Vec<CopyVerdict>,
    ) -> Option<usize> {
        let (copy, fault) = match (&asked.answer, refused) {
            (Answer::Read { copy }, Some(refused)) => {
                let place = asked.layout.copies(&asked.piece).get(*copy);
                self.count_refused(place.and_then(|place| place.slot), &refused);
                (*copy, CopyFault::Refused(refused))
            }
            (Answer::Failed { copy, error }, _) => (*copy, CopyFault::Device(error.clone())),
            (Answer::NoCopy | Answer::Read { .. }, _) => return None,
        };
        let kind = mirror(asked.layout, &asked.piece, copy)?;
        verdicts.push(CopyVerdict { copy: kind, fault });
        Some(copy)
    }

    /// The copies of a piece that can be read: its mirrors, or (with parity) what its row gives.
    /// With parity and more pieces than one, both.
    fn versions(
        &self,
        asked: &Asked<'_>,
        tried: Option<usize>,
        with_mirrors: bool,
        with_parity: bool,
        verdicts: &mut Vec<CopyVerdict>,
    ) -> Vec<Version> {
        let mut versions = Vec::new();
        if with_mirrors {
            self.mirrors(asked, tried, with_parity, verdicts, &mut versions);
        }
        if with_parity {
            self.computed(asked, verdicts, &mut versions);
        }
        versions
    }

    fn mirrors(
        &self,
        asked: &Asked<'_>,
        tried: Option<usize>,
        is_again: bool,
        verdicts: &mut Vec<CopyVerdict>,
        versions: &mut Vec<Version>,
    ) {
        let (layout, piece) = (asked.layout, &asked.piece);
        let order = in_order(self, layout, piece).into_iter().filter(|copy| tried != Some(*copy));
        for copy in order {
            let Some(kind) = mirror(layout, piece, copy) else { continue };
            let place = layout.copies(piece).get(copy);
            let fault = match place.and_then(|place| Some((place.slot?, piece.physical(place)))) {
                None => CopyFault::Missing,
                Some((slot, physical)) => {
                    let bytes = usize::try_from(piece.bytes).unwrap_or_default();
                    let read = self.read_places(&[(slot, physical.0)], bytes).pop();
                    let Some(read) = read else { continue };
                    let Some(error) = read.first_error() else {
                        versions.push(Version { kind, slot: Some(slot), bytes: read.bytes });
                        continue;
                    };
                    CopyFault::Device(error.clone())
                }
            };
            if !is_again {
                verdicts.push(CopyVerdict { copy: kind, fault });
            }
        }
    }

    fn computed(
        &self,
        asked: &Asked<'_>,
        verdicts: &mut Vec<CopyVerdict>,
        versions: &mut Vec<Version>,
    ) {
        let Some(row) = Row::read(self, asked.layout, &asked.piece) else { return };
        let ways = row.ways_whole();
        if ways.is_empty() {
            let copy = row.lost_kind(0);
            verdicts.push(CopyVerdict { copy, fault: CopyFault::TooManyLost });
        }
        let bytes = usize::try_from(asked.piece.bytes).unwrap_or_default();
        for way in ways {
            if let Some(bytes) = row.whole(way, bytes) {
                versions.push(Version { kind: row.kind(way), slot: None, bytes });
            }
        }
    }

    /// Tries the combinations of copies, one of each piece, until one is a good block.
    fn combine(
        &self,
        expected: &Expected,
        versions: &[Vec<Version>],
        rules: &BlockRules,
        verdicts: &mut Vec<CopyVerdict>,
    ) -> Option<TreeBlock<Buffer>> {
        let combinations: usize =
            versions.iter().fold(1, |product, all| product.saturating_mul(all.len()));
        for nth in 0..combinations.min(COMBINATIONS_MAX) {
            let chosen = combination(versions, nth)?;
            let mut buffer = Buffer::zeroed(index(rules.node_bytes));
            fill(&mut buffer, &chosen);
            match TreeBlock::check(buffer, expected, rules) {
                Ok(block) => {
                    self.count_differing(versions, &chosen);
                    return Some(block);
                }
                Err(refused) => {
                    if let [version] = chosen.as_slice() {
                        self.count_refused(version.slot, &refused);
                    }
                    if let Some(version) = chosen.first() {
                        let copy = version.kind.clone();
                        verdicts.push(CopyVerdict { copy, fault: CopyFault::Refused(refused) });
                    }
                }
            }
        }
        None
    }

    /// Of a block in several pieces only success tells which copies were wrong: those that differ.
    fn count_differing(&self, versions: &[Vec<Version>], chosen: &[&Version]) {
        if chosen.len() < 2 {
            return;
        }
        for (all, good) in versions.iter().zip(chosen) {
            for version in all.iter().filter(|version| version.bytes != good.bytes) {
                let refused = Refused::new("bytes", "another content", "that of the good copy");
                self.count_refused(version.slot, &refused);
            }
        }
    }
}

/// The `nth` combination, the last piece turning fastest.
fn combination(versions: &[Vec<Version>], mut nth: usize) -> Option<Vec<&Version>> {
    let mut chosen = Vec::with_capacity(versions.len());
    for all in versions.iter().rev() {
        chosen.push(all.get(nth.checked_rem(all.len())?)?);
        nth = nth.checked_div(all.len())?;
    }
    chosen.reverse();
    Some(chosen)
}

fn fill(buffer: &mut [u8], chosen: &[&Version]) {
    let bytes = chosen.iter().flat_map(|version| &version.bytes);
    for (out, byte) in buffer.iter_mut().zip(bytes) {
        *out = *byte;
    }
}
