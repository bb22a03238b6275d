//! Space for runs on their way down.
//!
//! Laws:
//!
//! 1. A packed extent lies in one run of space. Where there is none so long, it goes down as it was
//!    before it was packed.
//! 2. What has room that is held for it uses that: it cannot be refused.
//! 3. Of data that is still the caller's, what follows a run without space is not looked at: it is
//!    written from its start on, as far as there is space.
//! 4. Space that was found and not used is given back.

use crate::down::{Data, Descent};
use crate::error::FileError;
use crate::place::Target;
use crate::room::Room;
use crate::state::FileState;
use butternut_format::units::{Logical, SECTOR_BYTES};
use std::ops::Range;

/// A part of a file that found no space.
#[derive(Debug)]
pub(crate) struct Unplaced {
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
    pub(crate) error: FileError,
}

/// Space that is found for the runs of one file, beside what it holds already.
#[derive(Default)]
struct Found {
    file: usize,
    room: Room,
    /// What is still to be placed.
    bytes_left: u64,
}

/// The second stage of going down: each run learns where it goes. One that has to go to several
/// places becomes several.
pub(crate) fn assign<'a>(
    files: &mut [&mut FileState],
    runs: Vec<Descent<'a>>,
) -> (Vec<Descent<'a>>, Vec<Unplaced>) {
    let (mut placed, mut unplaced): (Vec<Descent<'a>>, Vec<Unplaced>) = Default::default();
    let mut lefts: Vec<u64> = vec![0; files.len()];
    for run in runs.iter().filter(|run| run.target == Target::New && !run.owner.has_room()) {
        if let Some(left) = lefts.get_mut(run.file) {
            *left += run.disk_bytes();
        }
    }
    let mut found = Found::of(usize::MAX, 0);
    for run in runs {
        let number = run.file;
        let Some(file) = files.get_mut(number) else { continue };
        if found.file != number {
            let left = lefts.get(number).copied().unwrap_or_default();
            let old = std::mem::replace(&mut found, Found::of(number, left));
            old.give_back(file);
        }
        let is_over =
            unplaced.last().is_some_and(|last| last.file == number) && !run.owner.is_dirty();
        if !is_over {
            unplaced.extend(found.place(file, run, &mut placed));
        }
    }
    if let Some(file) = files.get(found.file) {
        found.give_back(file);
    }
    (placed, unplaced)
}

impl Found {
    fn of(file: usize, bytes_left: u64) -> Self {
        Self { file, bytes_left, ..Self::default() }
    }

    /// Law 4.
    fn give_back(mut self, file: &FileState) {
        file.release(self.room.empty());
    }

    /// Places a run; or says what of it found no space.
    fn place<'a>(
        &mut self,
        file: &mut FileState,
        mut run: Descent<'a>,
        placed: &mut Vec<Descent<'a>>,
    ) -> Option<Unplaced> {
        if let Some(logical) = run.target.place() {
            run.logical = logical;
            placed.push(run);
            return None;
        }
        if matches!(run.data, Data::Packed { .. }) {
            if let Ok(space) = self.whole(file, run.disk_bytes(), run.owner.has_room()) {
                run.logical = Logical(space.start);
                placed.push(run);
                return None;
            }
            run.unpack();
        }
        loop {
            let space = match self.some(file, run.bytes(), run.owner.has_room()) {
                Ok(space) => space,
                Err(error) => {
                    let (file, range) = (run.file, run.range());
                    run.give_up();
                    return Some(Unplaced { file, range, error });
                }
            };
            run.logical = Logical(space.start);
            let bytes = space.end - space.start;
            if bytes >= run.bytes() {
                placed.push(run);
                return None;
            }
            let rest = run.split_off(bytes);
            placed.push(std::mem::replace(&mut run, rest));
        }
    }

    /// One run of exactly so many bytes.
    fn whole(
        &mut self,
        file: &mut FileState,
        bytes: u64,
        has_room: bool,
    ) -> Result<Range<u64>, FileError> {
        if has_room {
            let held = file.room.take_whole(bytes);
            return held.map_or_else(|| file.allocate_between(bytes, bytes), Ok);
        }
        if let Some(space) = self.room.take_whole(bytes) {
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            return Ok(space);
        }
        let wanted = self.bytes_left.saturating_sub(self.room.bytes()).max(bytes);
        let space = file.allocate_between(bytes, wanted)?;
        Ok(self.keep(space, bytes))
    }

    /// One run of at most so many bytes.
    fn some(
        &mut self,
        file: &mut FileState,
        bytes: u64,
        has_room: bool,
    ) -> Result<Range<u64>, FileError> {
        if has_room {
            return file.room.take(bytes).map_or_else(|| file.allocate_run(bytes), Ok);
        }
        if let Some(space) = self.room.take(bytes) {
            self.bytes_left = self.bytes_left.saturating_sub(space.end - space.start);
            return Ok(space);
        }
        let space = file.allocate_between(SECTOR_BYTES, self.bytes_left.max(bytes))?;
        let bytes = bytes.min(space.end - space.start);
        Ok(self.keep(space, bytes))
    }

    /// Takes the first `bytes` bytes of new space; keeps the rest for what follows.
    fn keep(&mut self, space: Range<u64>, bytes: u64) -> Range<u64> {
        let taken = space.start..space.start + bytes;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        if taken.end < space.end {
            self.room.add(taken.end..space.end);
        }
        taken
    }
}
