//! Maps logical ranges to few large device writes, the same on every mirror.
//!
//! ```text
//! writes     | 16K | 16K |   16K |  1 MiB .......... |     as the caller gives them
//! parts      | 16K | 16K |   16K |  1 MiB .......... |     split at segments, at most 1 MiB
//! runs       |        48K        |  1 MiB .......... |     parts that are adjacent, coalesced
//! ```
//!
//! Laws:
//! 1. Parts that are adjacent on all of their stripes are one device write of at most
//!    [`RUN_BYTES_MAX`], gathered from the caller's memory: nothing is copied here.
//! 2. If a mirror of a run fails, each part of the run is written again by itself, so that only the
//!    failing parts fail. A mirror with a transient error is then complete again. A run of one part
//!    that has failed by law 4 is not written again.
//! 3. Every failed request is counted on its device.
//! 4. A part fails if more of its mirrors fail than are tolerated (law 1 of [`crate::tolerance`]).
//!    Otherwise the failures are reported, and the write succeeds.
//! 5. A durable batch is one device write that flushes the device. If it fails, it is not known
//!    whether the write failed or the flush, which a device reports once. So it counts as a failed
//!    flush, and nothing is written again.
//! 6. Of parts that overlap on a device, the first is written and the others fail: which of them
//!    the device keeps would be undefined. They come from volumes whose extents overlap.
//! 7. A batch is submitted in slices of about [`SLICE_BYTES`], and the write guard is checked
//!    before each of them ([`crate::write_guard`]): so at most one slice is written after the
//!    device has been lost. The runs of a slice that is refused fail, on all of their mirrors.

use crate::chunk_map::Chunks;
use crate::device_events::DeviceEventKind;
use crate::error::{VolumeError, chain};
use crate::stripe::{IoStripe, Layout, Segment};
use crate::tolerance::{Content, failures_allowed};
use crate::volume::Volume;
use crate::write_guard::WriteRefused;
use butternut_device::{DeviceError, WriteFrom};
use butternut_format::units::{Logical, length};
use std::ops::Range;

/// Maximum length of a device write, in bytes.
const RUN_BYTES_MAX: usize = 1 << 20;

/// The bytes after which a slice ends (law 7). The largest batch of file data is one slice: a slice
/// is complete before the next one is submitted.
const SLICE_BYTES: usize = 16 << 20;

/// A part of a write that is contiguous on each of its stripes.
#[derive(Debug)]
struct Part<'c, 'b> {
    /// The index of its write in the batch.
    range: usize,
    layout: &'c Layout,
    segment: Segment,
    buf: &'b [u8],
}

/// A batch that is being filled.
#[derive(Debug)]
pub(crate) struct WriteBatch<'c, 'b> {
    volume: &'c Volume,
    chunks: &'c Chunks,
    content: Content,
    parts: Vec<Part<'c, 'b>>,
    /// The writes that share bytes with another one, and their errors.
    overlapping: Vec<(usize, VolumeError)>,
}

impl<'c, 'b> WriteBatch<'c, 'b> {
    /// Makes a batch with capacity for `writes`; it grows as needed.
    pub(crate) fn new(
        volume: &'c Volume,
        chunks: &'c Chunks,
        content: Content,
        writes: usize,
    ) -> Self {
        let (parts, overlapping) = (Vec::with_capacity(writes), Vec::new());
        Self { volume, chunks, content, parts, overlapping }
    }

    /// Whether the batch is one device write, and a durable one flushes the device (law 5).
    pub(crate) fn can_flush(&mut self) -> bool {
        self.sort();
        self.overlapping.is_empty()
            && coalesced(&self.parts).len() == 1
            && self.parts.first().is_some_and(|part| {
                part.layout.mirrors(&part.segment).len() == 1 && self.volume.durable_write_flushes()
            })
    }

    /// Sorts the parts by where they are on their device, and removes those that overlap the part
    /// before them (law 6).
    fn sort(&mut self) {
        self.parts.sort_unstable_by_key(|part| {
            (part.layout.logical(), part.segment.first_mirror, part.segment.stripe_offset)
        });
        if self.parts.is_sorted_by(|before, after| !overlaps(before, after)) {
            return;
        }
        let mut apart: Vec<Part<'c, 'b>> = Vec::with_capacity(self.parts.len());
        for part in std::mem::take(&mut self.parts) {
            if apart.last().is_some_and(|before| overlaps(before, &part)) {
                let (logical, bytes) = (part.segment.logical, part.segment.bytes);
                self.overlapping.push((part.range, VolumeError::Overlap { logical, bytes }));
            } else {
                apart.push(part);
            }
        }
        self.parts = apart;
    }

    /// Adds a write. Adds nothing if it cannot be written to every mirror.
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
            let segment = layout.segment(at, most).ok_or_else(unmapped)?;
            self.volume.check_mirrors(layout, &segment)?;
            let bytes = usize::try_from(segment.bytes).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_checked(bytes).ok_or_else(unmapped)?;
            self.parts.push(Part { range, layout, segment, buf: now });
            at = at.checked_add(segment.bytes).ok_or_else(unmapped)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes everything, and calls `meanwhile` once while the writes are in flight. Returns the
    /// writes that failed, in the order of their addresses.
    pub(crate) fn run(mut self, meanwhile: Option<&mut dyn FnMut()>) -> Vec<(usize, VolumeError)> {
        self.sort();
        let (volume, content, parts) = (self.volume, self.content, &self.parts);
        let allowed =
            |part: usize| parts.get(part).map_or(0, |part| failures_allowed(part.layout, content));
        let mut failures = Vec::new();
        let mut singly = Vec::new();
        for (run, failed) in volume.write_runs(parts, &coalesced(parts), meanwhile) {
            let is_tolerated = failed.len() <= allowed(run.start);
            match failed.into_iter().next() {
                Some((_, error)) if run.len() == 1 && !is_tolerated => {
                    failures.push((run.start, error));
                }
                _ => singly.extend(run.map(|part| part..part.saturating_add(1))),
            }
        }
        for (run, failed) in volume.write_runs(parts, &singly, None) {
            if failed.len() <= allowed(run.start) {
                let at = parts.get(run.start).map(|part| part.segment.logical);
                volume.record_failed_mirrors(at, &failed);
            } else {
                let first = failed.into_iter().next();
                failures.extend(first.map(|(_, error)| (run.start, error)));
            }
        }
        failures.sort_by_key(|(part, _)| *part);
        let failures =
            failures.into_iter().filter_map(|(part, error)| Some((parts.get(part)?.range, error)));
        failures.chain(self.overlapping).collect()
    }

    /// Writes a batch that can flush, and flushes (law 5). The caller has checked the write guard:
    /// a write that is refused has lost nothing.
    pub(crate) fn run_durably(self) -> Result<(), VolumeError> {
        let (volume, parts) = (self.volume, &self.parts);
        let buffers: Vec<&[u8]> = parts.iter().map(|part| part.buf).collect();
        let failed = volume.submit_runs(parts, &buffers, &coalesced(parts), true, None);
        let first = failed.into_iter().flat_map(|(_, mirrors)| mirrors).next();
        first.map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// Coalesces sorted parts into runs (law 1).
fn coalesced(parts: &[Part<'_, '_>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    let mut before: Option<&Part<'_, '_>> = None;
    let mut run_bytes: usize = 0;
    for (index, part) in parts.iter().enumerate() {
        let (bytes, end) = (part.buf.len(), index.saturating_add(1));
        match (runs.last_mut(), before) {
            (Some(run), Some(before)) if continues(before, part, run_bytes) => {
                run_bytes = run_bytes.saturating_add(bytes);
                run.end = end;
            }
            _ => {
                runs.push(index..end);
                run_bytes = bytes;
            }
        }
        before = Some(part);
    }
    runs
}

/// Returns whether sorted parts share bytes of a device.
fn overlaps(before: &Part<'_, '_>, after: &Part<'_, '_>) -> bool {
    std::ptr::eq(before.layout, after.layout)
        && before.segment.first_mirror == after.segment.first_mirror
        && before.segment.stripe_offset.saturating_add(before.segment.bytes)
            > after.segment.stripe_offset
}

/// Returns whether a part can be appended to a run of `run_bytes` whose last part is `before`.
fn continues(before: &Part<'_, '_>, part: &Part<'_, '_>, run_bytes: usize) -> bool {
    std::ptr::eq(before.layout, part.layout)
        && before.segment.first_mirror == part.segment.first_mirror
        && before.segment.stripe_offset.saturating_add(before.segment.bytes)
            == part.segment.stripe_offset
        && run_bytes.saturating_add(part.buf.len()) <= RUN_BYTES_MAX
}

/// A run with failed mirrors: for each, the slot of the device and the error.
type FailedRun = (Range<usize>, Vec<(usize, VolumeError)>);

impl Volume {
    /// Checks that every mirror of a segment can be written (law 1 of [`crate::write_data`]).
    pub(crate) fn check_mirrors(
        &self,
        layout: &Layout,
        segment: &Segment,
    ) -> Result<(), VolumeError> {
        let attributes = layout.attributes();
        if attributes.parities > 0 {
            return Err(VolumeError::ParityWrite {
                logical: segment.logical,
                profile: attributes.name,
            });
        }
        for stripe in layout.mirrors(segment) {
            let member = stripe.slot.and_then(|slot| self.members.get(slot));
            let Some(member) = member else {
                return Err(VolumeError::MissingDevices { devids: vec![stripe.devid] });
            };
            if member.is_seed {
                let name = member.device.name();
                return Err(VolumeError::Device {
                    device: name.to_owned(),
                    offset: segment.physical(stripe).0,
                    bytes: segment.bytes,
                    source: DeviceError::ReadOnly { device: name.into() },
                });
            }
        }
        Ok(())
    }

    /// Writes runs in slices (law 7), and calls `meanwhile` once, if possible while the first slice
    /// is in flight. Returns the runs with failed mirrors.
    fn write_runs(
        &self,
        parts: &[Part<'_, '_>],
        runs: &[Range<usize>],
        mut meanwhile: Option<&mut dyn FnMut()>,
    ) -> Vec<FailedRun> {
        let buffers: Vec<&[u8]> = parts.iter().map(|part| part.buf).collect();
        let mut failed = Vec::new();
        let mut rest = runs;
        while let Some((slice, later)) = rest.split_at_checked(slice_runs(parts, rest)) {
            if slice.is_empty() {
                break;
            }
            rest = later;
            match self.check_may_write() {
                Ok(()) => {
                    let work = meanwhile.take();
                    failed.extend(self.submit_runs(parts, &buffers, slice, false, work));
                }
                Err(refused) => {
                    failed.extend(slice.iter().map(|run| fail_run(parts, run, &refused)));
                }
            }
        }
        if let Some(work) = meanwhile {
            work();
        }
        failed
    }

    /// Submits runs. Returns those with failed mirrors.
    fn submit_runs(
        &self,
        parts: &[Part<'_, '_>],
        buffers: &[&[u8]],
        runs: &[Range<usize>],
        is_durable: bool,
        meanwhile: Option<&mut dyn FnMut()>,
    ) -> Vec<FailedRun> {
        let mut batch = Vec::with_capacity(runs.len().saturating_mul(2));
        let mut owners = Vec::with_capacity(batch.capacity());
        for (index, run) in runs.iter().enumerate() {
            let Some(first) = parts.get(run.start) else { continue };
            let Some(buffers) = buffers.get(run.clone()) else { continue };
            for stripe in first.layout.mirrors(&first.segment) {
                let mut write = write_of(first, stripe, buffers);
                write.is_durable = is_durable;
                batch.push(write);
                owners.push(index);
            }
        }
        self.queues.run_writes(&mut batch, meanwhile);
        let mut failures: Vec<Vec<(usize, VolumeError)>> =
            runs.iter().map(|_| Vec::new()).collect();
        for (write, owner) in batch.into_iter().zip(owners) {
            let bytes = length(write.bytes());
            let Err(source) = write.result else {
                self.remove_stale_range(write.device, write.offset, bytes);
                continue;
            };
            let failure = self.write_failure(write.device, write.offset, bytes, source);
            if let Some(failures) = failures.get_mut(owner) {
                failures.push((write.device, failure));
            }
        }
        let written = runs.iter().cloned().zip(failures);
        written.filter(|(_, failures)| !failures.is_empty()).collect()
    }

    /// Records mirrors whose write failed while the write as a whole succeeded.
    pub(crate) fn record_failed_mirrors(
        &self,
        at: Option<Logical>,
        failures: &[(usize, VolumeError)],
    ) {
        for (slot, error) in failures {
            if let VolumeError::Device { offset, bytes, .. } = error {
                self.add_stale_range(*slot, *offset, *bytes);
            }
            self.record_event(Some(*slot), DeviceEventKind::Write, at, || chain(error));
        }
    }

    /// Counts a failed write and returns its error.
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

/// Returns a run that the write guard has refused: it fails on each of its mirrors (law 7).
fn fail_run(parts: &[Part<'_, '_>], run: &Range<usize>, refused: &WriteRefused) -> FailedRun {
    let first = parts.get(run.start);
    let mirrors = first.map_or(&[][..], |first| first.layout.mirrors(&first.segment));
    let slots = mirrors.iter().map(slot_of);
    let failures = slots.map(|slot| (slot, refused.clone().into())).collect();
    (run.clone(), failures)
}

/// Returns how many of the first runs are one slice (law 7).
fn slice_runs(parts: &[Part<'_, '_>], runs: &[Range<usize>]) -> usize {
    let mut bytes: usize = 0;
    let fits = |run: &&Range<usize>| {
        let is_in_slice = bytes < SLICE_BYTES;
        let parts = parts.get((*run).clone()).unwrap_or_default();
        bytes = parts.iter().fold(bytes, |sum, part| sum.saturating_add(part.buf.len()));
        is_in_slice
    };
    runs.iter().take_while(fits).count()
}

fn write_of<'a>(first: &Part<'_, '_>, stripe: &IoStripe, buffers: &'a [&'a [u8]]) -> WriteFrom<'a> {
    WriteFrom::vectored(slot_of(stripe), first.segment.physical(stripe).0, buffers)
}

/// Returns the slot of a mirror. The mirrors were checked when the part was added. `usize::MAX` is
/// no device, so a request to it fails.
fn slot_of(stripe: &IoStripe) -> usize {
    stripe.slot.unwrap_or(usize::MAX)
}
