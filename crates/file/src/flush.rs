//! Flushes: dirty blocks of many files, to disk.
//!
//! Laws:
//!
//! 1. Blocks of a file go down in file order, so that what is together in the file is together on
//!    disk. Files go one behind the other.
//! 2. A block stays dirty until it is down, or lost: then the file reads as it did before, and
//!    knows of it.
//! 3. Inline files stay in memory: they go into the trees with the next merge.

use crate::assign::Unplaced;
use crate::down::{BATCH_BYTES_MAX, Data, Descent, Down, Owner, bring_down};
use crate::error::FileError;
use crate::overlay::Backing;
use crate::place::Target;
use crate::source::{Source, in_memory};
use crate::state::FileState;
use butternut_format::units::SECTOR_BYTES;
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
        for file in &mut *files {
            let decided = file.decide_inline();
            result = result.and(decided);
        }
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
                let lost = bring_all(files, &source, std::mem::take(&mut runs));
                result = result.and(lost);
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
                self.drop_dirty(range);
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
        let (owner, targets) = match row.backing {
            Backing::Reserved => (Owner::FileWithRoom, vec![(row.range.clone(), Target::New)]),
            Backing::InPlace => (Owner::File, self.targets(&row.range)?),
            Backing::Inline => return Ok(()),
        };
        let mut blocks = row.blocks.into_iter();
        for (part, target) in targets {
            let count = in_memory((part.end - part.start) / SECTOR_BYTES);
            let data = Data::Blocks(blocks.by_ref().take(count).collect());
            runs.push(Descent::new(self, number, part.start, (owner, data), target));
        }
        Ok(())
    }
}

/// Brings a batch down. What found no space is lost.
fn bring_all(
    files: &mut [&mut FileState],
    source: &Source,
    runs: Vec<Descent<'_>>,
) -> Result<(), FileError> {
    let Down { mut result, unplaced } = bring_down(source, files, runs);
    for Unplaced { file, range, error } in unplaced {
        if let Some(file) = files.get_mut(file) {
            file.note(&error);
            file.drop_dirty(range);
        }
        result = result.and(Err(error));
    }
    result
}
