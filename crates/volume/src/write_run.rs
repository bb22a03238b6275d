//! From logical ranges to few large device writes, the same on every copy.
//!
//! ```text
//! writes     | 16K | 16K |   16K |  1 MiB .......... |     as the caller has them
//! parts      | 16K | 16K |   16K |  1 MiB .......... |     cut where the chunk is, at most 1 MiB
//! runs       |    48K, copied    |  1 MiB, in place  |     neighbours on their places, joined
//! ```
//!
//! Laws:
//! 1. Parts that lie next to each other on every one of their places go down as one device write
//!    of at most [`RUN_BYTES_MAX`]. Small ones are copied together, once for all copies; one of
//!    [`WHOLE_BYTES_MIN`] or more is written from where it is.
//! 2. Memory to copy into is bounded: a batch that needs more goes down in rounds.
//! 3. When a run fails, its parts are written one by one, so that only those fail that must.
//! 4. Every failed request is counted on its device.

use crate::chunk_map::Chunks;
use crate::error::VolumeError;
use crate::stripe::{Layout, Piece, Place};
use crate::volume::Volume;
use butternut_device::{DeviceError, WriteFrom};
use butternut_format::units::{Logical, length};
use butternut_sys::buffer::Buffer;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The longest device write.
const RUN_BYTES_MAX: usize = 1 << 20;

/// From this length on, joining a part to its neighbours saves less than copying it costs.
const WHOLE_BYTES_MIN: usize = 256 << 10;

/// What one round copies at most.
const SLAB_BYTES: usize = 8 << 20;

/// Slabs kept for the next batch.
const SPARE_SLABS_MAX: usize = 4;

/// Memory to join small writes in.
#[derive(Debug, Default)]
pub(crate) struct Slabs(Mutex<Vec<Buffer>>);

/// A part of a write that lies together on each of its places.
#[derive(Debug)]
struct Part<'c, 'b> {
    /// Which write of the batch it is of.
    range: usize,
    layout: &'c Layout,
    piece: Piece,
    buf: &'b [u8],
}

/// Parts `parts` of the sorted batch, `bytes` in all, that go down as one.
#[derive(Debug)]
struct Run {
    parts: Range<usize>,
    bytes: usize,
}

/// A batch being put together.
#[derive(Debug)]
pub(crate) struct WriteBatch<'c, 'b> {
    volume: &'c Volume,
    chunks: &'c Chunks,
    parts: Vec<Part<'c, 'b>>,
}

impl Slabs {
    fn take(&self) -> Buffer {
        self.lock().pop().unwrap_or_else(|| Buffer::zeroed(SLAB_BYTES))
    }

    fn give_back(&self, slab: Buffer) {
        let mut spares = self.lock();
        if spares.len() < SPARE_SLABS_MAX {
            spares.push(slab);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'c, 'b> WriteBatch<'c, 'b> {
    /// Room for `writes`, and more.
    pub(crate) fn new(volume: &'c Volume, chunks: &'c Chunks, writes: usize) -> Self {
        Self { volume, chunks, parts: Vec::with_capacity(writes) }
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
    pub(crate) fn run(
        mut self,
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) -> Vec<(usize, VolumeError)> {
        self.parts.sort_unstable_by_key(|part| {
            (part.layout.logical(), part.piece.first, part.piece.within)
        });
        let parts = &self.parts;
        let mut failures = Vec::new();
        let mut singly = Vec::new();
        for (run, error) in self.volume.write_runs(parts, joined(parts), &mut meanwhile) {
            if run.parts.len() == 1 {
                failures.push((run.parts.start, error));
            } else {
                singly.extend(run.parts.filter_map(|part| {
                    let bytes = parts.get(part)?.buf.len();
                    Some(Run { parts: part..part.saturating_add(1), bytes })
                }));
            }
        }
        let failed = self.volume.write_runs(parts, singly, &mut meanwhile);
        if let Some(work) = meanwhile {
            work();
        }
        failures.extend(failed.into_iter().map(|(run, error)| (run.parts.start, error)));
        failures.sort_by_key(|(part, _)| *part);
        let failures = failures.into_iter();
        failures.filter_map(|(part, error)| Some((parts.get(part)?.range, error))).collect()
    }
}

/// The sorted parts as runs (law 1).
fn joined(parts: &[Part<'_, '_>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(parts.len());
    let mut before: Option<&Part<'_, '_>> = None;
    for (index, part) in parts.iter().enumerate() {
        let (bytes, behind) = (part.buf.len(), index.saturating_add(1));
        match (runs.last_mut(), before) {
            (Some(run), Some(before)) if continues(before, part, run.bytes) => {
                run.bytes = run.bytes.saturating_add(bytes);
                run.parts.end = behind;
            }
            _ => runs.push(Run { parts: index..behind, bytes }),
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
        && before.buf.len() < WHOLE_BYTES_MIN
        && part.buf.len() < WHOLE_BYTES_MIN
        && run_bytes.saturating_add(part.buf.len()) <= RUN_BYTES_MAX
}

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

    /// Writes runs in as many rounds as their memory needs (law 2), and returns those that failed.
    fn write_runs(
        &self,
        parts: &[Part<'_, '_>],
        runs: Vec<Run>,
        meanwhile: &mut Option<&mut dyn FnMut()>,
    ) -> Vec<(Run, VolumeError)> {
        let mut failed = Vec::new();
        let mut round = Vec::with_capacity(runs.len());
        let mut copied: usize = 0;
        for run in runs {
            let joined = if run.parts.len() > 1 { run.bytes } else { 0 };
            if copied.saturating_add(joined) > SLAB_BYTES {
                let full = std::mem::take(&mut round);
                failed.extend(self.write_round(parts, full, copied > 0, meanwhile));
                copied = 0;
            }
            copied = copied.saturating_add(joined);
            round.push(run);
        }
        failed.extend(self.write_round(parts, round, copied > 0, meanwhile));
        failed
    }

    fn write_round(
        &self,
        parts: &[Part<'_, '_>],
        runs: Vec<Run>,
        needs_slab: bool,
        meanwhile: &mut Option<&mut dyn FnMut()>,
    ) -> Vec<(Run, VolumeError)> {
        if !needs_slab {
            return self.write_from(parts, runs, &mut [], meanwhile);
        }
        let mut slab = self.slabs.take();
        let failed = self.write_from(parts, runs, &mut slab, meanwhile);
        self.slabs.give_back(slab);
        failed
    }

    fn write_from(
        &self,
        parts: &[Part<'_, '_>],
        runs: Vec<Run>,
        mut slab: &mut [u8],
        meanwhile: &mut Option<&mut dyn FnMut()>,
    ) -> Vec<(Run, VolumeError)> {
        let mut batch = Vec::with_capacity(runs.len().saturating_mul(2));
        let mut owners = Vec::with_capacity(batch.capacity());
        for (index, run) in runs.iter().enumerate() {
            let Some(run_parts) = parts.get(run.parts.clone()) else { continue };
            let Some(first) = run_parts.first() else { continue };
            let bytes = if run_parts.len() == 1 {
                first.buf
            } else {
                let free = std::mem::take(&mut slab);
                let Some((joint, later)) = free.split_at_mut_checked(run.bytes) else { continue };
                slab = later;
                join(run_parts, joint);
                joint
            };
            for place in first.layout.copies(&first.piece) {
                batch.push(write_of(first, place, bytes));
                owners.push(index);
            }
        }
        if batch.is_empty() {
            return Vec::new();
        }
        self.lanes.run_writes(&mut batch, meanwhile.take());
        let mut errors: Vec<Option<VolumeError>> = runs.iter().map(|_| None).collect();
        for (write, owner) in batch.into_iter().zip(owners) {
            let Err(source) = write.result else { continue };
            let Some(error) = errors.get_mut(owner) else { continue };
            let failure =
                self.write_failure(write.device, write.offset, length(write.buf.len()), source);
            error.get_or_insert(failure);
        }
        runs.into_iter().zip(errors).filter_map(|(run, error)| Some((run, error?))).collect()
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

fn write_of<'a>(first: &Part<'_, '_>, place: &Place, bytes: &'a [u8]) -> WriteFrom<'a> {
    // The places were checked when the part was added: `usize::MAX` is no device, and says so.
    let slot = place.slot.unwrap_or(usize::MAX);
    WriteFrom::new(slot, first.piece.physical(place).0, bytes)
}

fn join(parts: &[Part<'_, '_>], mut joint: &mut [u8]) {
    for part in parts {
        let Some((now, later)) = joint.split_at_mut_checked(part.buf.len()) else { return };
        now.copy_from_slice(part.buf);
        joint = later;
    }
}
