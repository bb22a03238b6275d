//! Allocation: the space of runs that are written back.
//!
//! Laws:
//!
//! 1. A compressed extent needs contiguous space. Where there is none of that length, the run is
//!    written uncompressed.
//! 2. A run whose space is in the data reservation uses the reservation, so it cannot fail.
//! 3. Where the data belongs to the caller, nothing after a run without space is allocated: the
//!    write is done from its start on, as far as there is space.
//! 4. Space that was allocated and not used is freed.

use crate::error::FileError;
use crate::state::FileState;
use crate::state::data_reservation::DataReservation;
use crate::target::Target;
use crate::writeback::{Data, WritebackRun};
use butternut_format::units::{DiskRange, SECTOR_BYTES};
use butternut_sys::wait::Wait;
use std::ops::Range;

/// A range of a file that found no space.
#[derive(Debug)]
pub(crate) struct Unallocated {
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
    pub(crate) error: FileError,
}

/// Space allocated for the runs of one file, besides its data reservation.
#[derive(Default)]
struct FoundSpace {
    file: usize,
    surplus: DataReservation,
    /// Bytes that still need space.
    bytes_left: u64,
}

/// The second step of writeback: allocates the space of each run. A run that does not fit one free
/// extent is split.
pub(crate) fn allocate<'a>(
    files: &mut [&mut FileState],
    runs: Vec<WritebackRun<'a>>,
) -> (Vec<WritebackRun<'a>>, Vec<Unallocated>) {
    let (mut placed, mut unallocated): (Vec<WritebackRun<'a>>, Vec<Unallocated>) =
        Default::default();
    let mut bytes_needed: Vec<u64> = vec![0; files.len()];
    for run in runs.iter().filter(|run| run.target == Target::New && !run.origin.is_reserved()) {
        if let Some(left) = bytes_needed.get_mut(run.file) {
            *left += run.disk_bytes();
        }
    }
    let mut found = FoundSpace::of(usize::MAX, 0);
    for run in runs {
        let number = run.file;
        let Some(file) = files.get_mut(number) else { continue };
        if found.file != number {
            let left = bytes_needed.get(number).copied().unwrap_or_default();
            let old = std::mem::replace(&mut found, FoundSpace::of(number, left));
            old.release(file);
        }
        let is_over =
            unallocated.last().is_some_and(|last| last.file == number) && !run.origin.is_dirty();
        if !is_over {
            unallocated.extend(found.place(file, run, &mut placed));
        }
    }
    if let Some(file) = files.get(found.file) {
        found.release(file);
    }
    (placed, unallocated)
}

impl FoundSpace {
    fn of(file: usize, bytes_left: u64) -> Self {
        Self { file, bytes_left, ..Self::default() }
    }

    /// Frees what was not used (law 4).
    fn release(mut self, file: &FileState) {
        file.release(self.surplus.empty());
    }

    /// Allocates the space of a run, or returns the range that found none.
    fn place<'a>(
        &mut self,
        file: &mut FileState,
        mut run: WritebackRun<'a>,
        placed: &mut Vec<WritebackRun<'a>>,
    ) -> Option<Unallocated> {
        if let Some(logical) = run.target.logical() {
            run.logical = logical;
            placed.push(run);
            return None;
        }
        if matches!(run.data, Data::Compressed { .. }) {
            if let Ok(space) = self.allocate_whole(file, run.disk_bytes(), run.origin.is_reserved())
            {
                run.logical = space.start();
                placed.push(run);
                return None;
            }
            run.revert_compression();
        }
        loop {
            let space = match self.allocate_some(file, run.bytes(), run.origin.is_reserved()) {
                Ok(space) => space,
                Err(error) => {
                    let (file, range) = (run.file, run.range());
                    run.abandon();
                    return Some(Unallocated { file, range, error });
                }
            };
            run.logical = space.start();
            let bytes = space.bytes();
            if bytes >= run.bytes() {
                placed.push(run);
                return None;
            }
            let rest = run.split_off(bytes);
            placed.push(std::mem::replace(&mut run, rest));
        }
    }

    /// Returns `bytes` contiguous bytes.
    fn allocate_whole(
        &mut self,
        file: &mut FileState,
        bytes: u64,
        is_reserved: bool,
    ) -> Result<DiskRange, FileError> {
        if is_reserved {
            let reserved = file.data_reservation.take_whole(bytes);
            return reserved.map_or_else(|| file.allocate_between(bytes, bytes, Wait::Block), Ok);
        }
        if let Some(space) = self.surplus.take_whole(bytes) {
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            return Ok(space);
        }
        let wanted = self.bytes_left.saturating_sub(self.surplus.bytes()).max(bytes);
        let space = file.allocate_between(bytes, wanted, Wait::Block)?;
        Ok(self.take_front(space, bytes))
    }

    /// Returns at most `bytes` contiguous bytes.
    fn allocate_some(
        &mut self,
        file: &mut FileState,
        bytes: u64,
        is_reserved: bool,
    ) -> Result<DiskRange, FileError> {
        if is_reserved {
            return file.data_reservation.take(bytes).map_or_else(|| file.allocate_run(bytes), Ok);
        }
        if let Some(space) = self.surplus.take(bytes) {
            self.bytes_left = self.bytes_left.saturating_sub(space.bytes());
            return Ok(space);
        }
        let space = file.allocate_between(SECTOR_BYTES, self.bytes_left.max(bytes), Wait::Block)?;
        let bytes = bytes.min(space.bytes());
        Ok(self.take_front(space, bytes))
    }

    /// Returns the first `bytes` bytes of new space and keeps the rest for the following runs.
    fn take_front(&mut self, mut space: DiskRange, bytes: u64) -> DiskRange {
        let taken = space.take_front(bytes);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        if !space.is_empty() {
            self.surplus.add(space);
        }
        taken
    }
}
