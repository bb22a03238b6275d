//! From logical ranges to few large device writes, the same on every copy.
//!
//! ```text
//! writes     | 16K | 16K |   16K |  1 MiB .......... |     as the caller has them
//! parts      | 16K | 16K |   16K |  1 MiB .......... |     cut where the chunk is, at most 1 MiB
//! runs       |        48K        |  1 MiB .......... |     neighbours on their places, joined
//! ```
//!
//! Laws:
//! 1. Parts that lie next to each other on every one of their places go down as one device write
//!    of at most [`RUN_BYTES_MAX`], out of the memory that each is in: nothing is copied here.
//! 2. When a copy of a run fails, its parts are written again one by one, so that only those fail
//!    that must; a copy that passed by an error that does not last is whole again.
//! 3. Every failed request is counted on its device.
//! 4. A run fails when more of its copies fail than may (law 1 of [`crate::tolerance`]); fewer are
//!    reported and leave it a success.

use crate::chunk_map::Chunks;
use crate::error::{VolumeError, chain};
use crate::stripe::{Layout, Piece, Place};
use crate::tolerance::{Content, spare_copies};
use crate::troubles::TroubleKind;
use crate::volume::Volume;
use butternut_device::{DeviceError, WriteFrom};
use butternut_format::units::{Logical, length};
use std::ops::Range;

/// The longest device write.
const RUN_BYTES_MAX: usize = 1 << 20;

/// A part of a write that lies together on each of its places.
#[derive(Debug)]
struct Part<'c, 'b> {
    /// Which write of the batch it is of.
    range: usize,
    layout: &'c Layout,
    piece: Piece,
    buf: &'b [u8],
}

/// A batch being put together.
#[derive(Debug)]
pub(crate) struct WriteBatch<'c, 'b> {
    volume: &'c Volume,
    chunks: &'c Chunks,
    content: Content,
    parts: Vec<Part<'c, 'b>>,
}

impl<'c, 'b> WriteBatch<'c, 'b> {
    /// Room for `writes`, and more.
    pub(crate) fn new(
        volume: &'c Volume,
        chunks: &'c Chunks,
        content: Content,
        writes: usize,
    ) -> Self {
        Self { volume, chunks, content, parts: Vec::with_capacity(writes) }
    }

    /// Adds a write. One that cannot reach every copy adds nothing.
    pub(crate) fn add(
        &mut self,
        range: usize,
        logical: Logical,
        buf: &'b [u8],
    ) -> Result<(), VolumeError> {
        let before = self.parts.len();
        let added = self.add_parts(range, logical, buf);
        if added.is_err() {
            self.parts.truncate(before);
        }
        added
    }

    fn add_parts(
        &mut self,
        range: usize,
        logical: Logical,
        buf: &'b [u8],
    ) -> Result<(), VolumeError> {
        let unmapped = || VolumeError::Unmapped { logical, bytes: length(buf.len()) };
        let (mut at, mut rest) = (logical, buf);
        while !rest.is_empty() {
            let layout = self.chunks.find(at).ok_or_else(unmapped)?;
            let most = length(rest.len().min(RUN_BYTES_MAX));
            let piece = layout.piece(at, most).ok_or_else(unmapped)?;
            self.volume.check_places(layout, &piece)?;
            let bytes = usize::try_from(piece.bytes).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_checked(bytes).ok_or_else(unmapped)?;
            self.parts.push(Part { range, layout, piece, buf: now });
            at = at.checked_add(piece.bytes).ok_or_else(unmapped)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes everything, and does once what there is to do meanwhile; says which writes failed,
    /// in the order of their places.
    pub(crate) fn run(mut self, meanwhile: Option<&mut dyn FnMut()>) -> Vec<(usize, VolumeError)> {
        self.parts.sort_unstable_by_key(|part| {
            (part.layout.logical(), part.piece.first, part.piece.within)
        });
        let (volume, content, parts) = (self.volume, self.content, &self.parts);
        let spare =
            |part: usize| parts.get(part).map_or(0, |part| spare_copies(part.layout, content));
        let mut failures = Vec::new();
        let mut singly = Vec::new();
        for (run, failed) in volume.write_runs(parts, joined(parts), meanwhile) {
            let is_tolerated = failed.len() <= spare(run.start);
            match failed.into_iter().next() {
                Some((_, error)) if run.len() == 1 && !is_tolerated => {
                    failures.push((run.start, error));
                }
                _ => singly.extend(run.map(|part| part..part.saturating_add(1))),
            }
        }
        for (run, failed) in volume.write_runs(parts, singly, None) {
            if failed.len() <= spare(run.start) {
                let at = parts.get(run.start).map(|part| part.piece.logical);
                volume.note_missed_copies(at, &failed);
            } else {
                let first = failed.into_iter().next();
                failures.extend(first.map(|(_, error)| (run.start, error)));
            }
        }
        failures.sort_by_key(|(part, _)| *part);
        let failures = failures.into_iter();
        failures.filter_map(|(part, error)| Some((parts.get(part)?.range, error))).collect()
    }
}

/// The sorted parts as runs (law 1): which of them go down as one write.
fn joined(parts: &[Part<'_, '_>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    let mut before: Option<&Part<'_, '_>> = None;
    let mut run_bytes: usize = 0;
    for (index, part) in parts.iter().enumerate() {
        let (bytes, behind) = (part.buf.len(), index.saturating_add(1));
        match (runs.last_mut(), before) {
            (Some(run), Some(before)) if continues(before, part, run_bytes) => {
                run_bytes = run_bytes.saturating_add(bytes);
                run.end = behind;
            }
            _ => {
                runs.push(index..behind);
                run_bytes = bytes;
            }
        }
        before = Some(part);
    }
    runs
}

/// Whether a part goes into the run of `run_bytes` whose last part is `before`.
fn continues(before: &Part<'_, '_>, part: &Part<'_, '_>, run_bytes: usize) -> bool {
    std::ptr::eq(before.layout, part.layout)
        && before.piece.first == part.piece.first
        && before.piece.within.saturating_add(before.piece.bytes) == part.piece.within
        && run_bytes.saturating_add(part.buf.len()) <= RUN_BYTES_MAX
}

/// A run of parts of which copies failed: the slot of the device and the error of each.
type FailedRun = (Range<usize>, Vec<(usize, VolumeError)>);

impl Volume {
    /// Law 1 of [`crate::write_data`], before anything is written.
    pub(crate) fn check_places(&self, layout: &Layout, piece: &Piece) -> Result<(), VolumeError> {
        let facts = layout.facts();
        if facts.parities > 0 {
            return Err(VolumeError::ParityWrite { logical: piece.logical, profile: facts.name });
        }
        for place in layout.copies(piece) {
            let member = place.slot.and_then(|slot| self.members.get(slot));
            let Some(member) = member else {
                return Err(VolumeError::MissingDevices { devids: vec![place.devid] });
            };
            if member.is_seed {
                let name = member.device.name();
                return Err(VolumeError::Device {
                    device: name.to_owned(),
                    offset: piece.physical(place).0,
                    bytes: piece.bytes,
                    source: DeviceError::ReadOnly { device: name.into() },
                });
            }
        }
        Ok(())
    }

    /// Writes runs, and returns those of which copies failed, with the slot of each such copy.
    fn write_runs(
        &self,
        parts: &[Part<'_, '_>],
        runs: Vec<Range<usize>>,
        meanwhile: Option<&mut dyn FnMut()>,
    ) -> Vec<FailedRun> {
        if runs.is_empty() {
            if let Some(work) = meanwhile {
                work();
            }
            return Vec::new();
        }
        let row: Vec<&[u8]> = parts.iter().map(|part| part.buf).collect();
        let mut batch = Vec::with_capacity(runs.len().saturating_mul(2));
        let mut owners = Vec::with_capacity(batch.capacity());
        for (index, run) in runs.iter().enumerate() {
            let Some(first) = parts.get(run.start) else { continue };
            let Some(row) = row.get(run.clone()) else { continue };
            for place in first.layout.copies(&first.piece) {
                batch.push(write_of(first, place, row));
                owners.push(index);
            }
        }
        self.lanes.run_writes(&mut batch, meanwhile);
        let mut failures: Vec<Vec<(usize, VolumeError)>> =
            runs.iter().map(|_| Vec::new()).collect();
        for (write, owner) in batch.into_iter().zip(owners) {
            let bytes = length(write.bytes());
            let Err(source) = write.result else {
                self.remove_missed(write.device, write.offset, bytes);
                continue;
            };
            let failure = self.write_failure(write.device, write.offset, bytes, source);
            if let Some(failures) = failures.get_mut(owner) {
                failures.push((write.device, failure));
            }
        }
        let written = runs.into_iter().zip(failures);
        written.filter(|(_, failures)| !failures.is_empty()).collect()
    }

    /// Reports and remembers copies of a write that failed while the others are enough.
    pub(crate) fn note_missed_copies(
        &self,
        at: Option<Logical>,
        failures: &[(usize, VolumeError)],
    ) {
        for (slot, error) in failures {
            if let VolumeError::Device { offset, bytes, .. } = error {
                self.add_missed(*slot, *offset, *bytes);
            }
            self.note_trouble(Some(*slot), TroubleKind::Write, at, || chain(error));
        }
    }

    /// Counts a failed write, and says which it was.
    pub(crate) fn write_failure(
        &self,
        slot: usize,
        offset: u64,
        bytes: u64,
        source: DeviceError,
    ) -> VolumeError {
        let member = self.members.get(slot);
        if let Some(member) = member {
            member.errors.count_write();
        }
        let device = member.map_or_else(String::new, |member| member.device.name().to_owned());
        VolumeError::Device { device, offset, bytes, source }
    }
}

fn write_of<'a>(first: &Part<'_, '_>, place: &Place, row: &'a [&'a [u8]]) -> WriteFrom<'a> {
    // The places were checked when the part was added: `usize::MAX` is no device, and says so.
    let slot = place.slot.unwrap_or(usize::MAX);
    WriteFrom::row(slot, first.piece.physical(place).0, row)
}
