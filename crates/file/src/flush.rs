//! Flushes: dirty blocks of many files, to disk.
//!
//! Laws:
//!
//! 1. Blocks of a file go down in file order, so that what is together in the file is together on
//!    disk. Files go one behind the other.
//! 2. A block stays dirty until it is down, or lost: then the file reads as it did before, and
//!    knows of it.
//! 3. Inline files stay in memory: they go into the trees with the next merge.

use crate::down::{BATCH_BYTES_MAX, Data, Descent, bring_down};
use crate::error::FileError;
use crate::overlay::Backing;
use crate::place::Target;
use crate::state::FileState;
use butternut_format::units::{Logical, SECTOR_BYTES, length};
use std::ops::Range;
use std::sync::Arc;

/// Neighbouring dirty blocks with the same way to their space.
struct Row {
    range: Range<u64>,
    backing: Backing,
    blocks: Vec<Arc<[u8]>>,
}

impl FileState {
    /// Brings all dirty data down. The trees do not change.
    pub fn flush(&mut self) -> Result<(), FileError> {
        Self::flush_many(&mut [self])
    }

    /// Brings the dirty data of many files down, in batches that they share. Each file keeps its
    /// own error; the first is returned.
    pub fn flush_many(files: &mut [&mut Self]) -> Result<(), FileError> {
        let Some(source) = files.first().map(|file| file.source.clone()) else { return Ok(()) };
        let mut result = Ok(());
        let mut runs = Vec::new();
        let mut first = 0;
        while let Some(file) = files.get_mut(first) {
            let planned: u64 = runs.iter().map(Descent::bytes).sum();
            let room = BATCH_BYTES_MAX.saturating_sub(planned);
            let is_whole = file.plan_flush(first, room, &mut runs, &mut result);
            if is_whole {
                first += 1;
            }
            if !is_whole || first == files.len() {
                land_all(files, &source, &mut runs, &mut result);
            }
        }
        for file in files {
            file.give_back_room();
        }
        result
    }

    /// Plans at most `bytes_max` bytes. Says whether that is all there is.
    fn plan_flush(
        &mut self,
        number: usize,
        bytes_max: u64,
        runs: &mut Vec<Descent<'_>>,
        result: &mut Result<(), FileError>,
    ) -> bool {
        let (rows, is_whole) = self.rows(bytes_max);
        if !rows.is_empty() {
            self.live.quiesce();
        }
        for row in rows {
            let range = row.range.clone();
            if let Err(error) = self.plan_row(number, row, runs) {
                self.note(&error);
                // What was planned of the row goes down; the rest is lost.
                let planned = runs.last().filter(|run| run.file == number);
                let from = planned.map_or(range.start, |run| run.range().end.max(range.start));
                self.drop_dirty(from..range.end);
                if result.is_ok() {
                    *result = Err(error);
                }
            }
        }
        is_whole
    }

    fn rows(&self, bytes_max: u64) -> (Vec<Row>, bool) {
        let mut rows: Vec<Row> = Vec::new();
        let mut bytes = 0;
        let overlay = self.live.overlay();
        for (start, block) in overlay.dirty_in(0..u64::MAX) {
            if block.backing == Backing::Inline {
                continue;
            }
            if bytes >= bytes_max {
                return (rows, false);
            }
            bytes += SECTOR_BYTES;
            match rows.last_mut() {
                Some(row) if row.range.end == start && row.backing == block.backing => {
                    row.range.end += SECTOR_BYTES;
                    row.blocks.push(Arc::clone(&block.bytes));
                }
                _ => rows.push(Row {
                    range: start..start + SECTOR_BYTES,
                    backing: block.backing,
                    blocks: vec![Arc::clone(&block.bytes)],
                }),
            }
        }
        (rows, true)
    }

    fn plan_row(
        &mut self,
        number: usize,
        row: Row,
        runs: &mut Vec<Descent<'_>>,
    ) -> Result<(), FileError> {
        let has_sums = self.view.has_sums();
        let targets = match row.backing {
            Backing::Reserved => vec![(row.range.clone(), Target::New)],
            Backing::InPlace => self.targets(&row.range)?,
            Backing::Inline => return Ok(()),
        };
        let mut blocks = row.blocks.into_iter();
        for (part, target) in targets {
            let mut at = part.start;
            while at < part.end {
                let target = target.advanced(at - part.start);
                let left = part.end - at;
                let space = match target.place() {
                    Some(logical) => logical.0..logical.0 + left,
                    None if row.backing == Backing::Reserved => {
                        self.take_room(left).map_or_else(|| self.allocate_run(left), Ok)?
                    }
                    None => self.allocate_run(left)?,
                };
                let bytes = space.end - space.start;
                let count = crate::source::in_memory(bytes / SECTOR_BYTES);
                let data = Data::Blocks(blocks.by_ref().take(count).collect());
                let place = (target, Logical(space.start));
                runs.push(Descent::new(number, at, data, place, has_sums));
                at += bytes;
            }
        }
        Ok(())
    }

    /// Room for blocks that count on it. They stay counted until they are down.
    fn take_room(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        self.room.take(bytes_max)
    }
}

fn land_all(
    files: &mut [&mut FileState],
    source: &crate::source::Source,
    runs: &mut Vec<Descent<'_>>,
    result: &mut Result<(), FileError>,
) {
    bring_down(source, runs);
    for run in runs.drain(..) {
        debug_assert!(length(files.len()) > length(run.file), "runs are of these files");
        let Some(file) = files.get_mut(run.file) else { continue };
        let landed = file.land(run);
        if result.is_ok() {
            *result = landed;
        }
    }
}
