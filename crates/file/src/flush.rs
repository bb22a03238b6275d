//! Flushes: dirty blocks of many files, to disk.
//!
//! ```text
//! begin_flush, with the file alone        Flight, with no lock          landing
//! which blocks, packed, and where to  --> digests, and the devices --> patches, clean pages
//! ```
//!
//! Laws:
//!
//! 1. Blocks of a file go down in file order, so that what is together in the file is together on
//!    disk. Files go one behind the other.
//! 2. A block is newer than the disk until it is down, or lost: then the file reads as it did
//!    before, and knows of it.
//! 3. Inline files stay in memory: they go into the trees with the next merge.
//! 4. A flight counts as traffic of its files until it has landed, and needs no lock of theirs for
//!    that. Who has one in hand waits for no file.
//! 5. A block whose place cannot be looked up, because a tree cannot be read, stays dirty: the sync
//!    fails, and a later one tries again. Only a failed write, or space that cannot be had, loses
//!    data.

use crate::assign::Unplaced;
use crate::direct::InFlight;
use crate::dirty::{Backing, pages_of};
use crate::down::{BATCH_BYTES_MAX, Data, Descent, Owner, carry, prepare};
use crate::error::FileError;
use crate::place::Target;
use crate::source::{Source, in_memory};
use crate::state::FileState;
use butternut_format::units::SECTOR_BYTES;
use butternut_pages::{Landing, Reason, Writeback};

/// Dirty blocks of some files that know where they go.
#[derive(Debug)]
#[must_use = "its files wait for it"]
pub struct Flight {
    source: Source,
    runs: Vec<Descent<'static>>,
    /// Behind the runs: they have landed when these go (law 4).
    holds: Vec<InFlight>,
}

impl Flight {
    /// Where one is full.
    pub const BYTES_MAX: u64 = BATCH_BYTES_MAX;

    /// Bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(Descent::bytes).sum()
    }

    /// Whether no more should join.
    pub fn is_full(&self) -> bool {
        self.bytes() >= BATCH_BYTES_MAX
    }

    /// This, behind what `before` has, to go down together.
    pub fn join(mut self, before: Option<Self>) -> Self {
        let Some(mut all) = before else { return self };
        all.runs.append(&mut self.runs);
        all.holds.append(&mut self.holds);
        all
    }

    /// Writes everything, and lets it land. The first failure; each file keeps its own.
    pub fn carry(self) -> Result<(), FileError> {
        let Self { source, runs, holds } = self;
        let carried = carry(&source, runs);
        drop(holds);
        carried
    }
}

impl FileState {
    /// Brings all dirty data down. The trees do not change.
    pub fn flush(&mut self) -> Result<(), FileError> {
        Self::flush_many(&mut [self], Reason::Sync)
    }

    /// Brings the dirty data of many files down, in batches that they share. Each file keeps its
    /// own error; the first is returned.
    pub fn flush_many(files: &mut [&mut Self], reason: Reason) -> Result<(), FileError> {
        let mut result = Ok(());
        let mut flight: Option<Flight> = None;
        for file in &mut *files {
            loop {
                let room = BATCH_BYTES_MAX - flight.as_ref().map_or(0, Flight::bytes);
                let (more, planned) = file.begin_flush(room, reason);
                result = result.and(planned);
                let Some(more) = more else { break };
                flight = Some(more.join(flight.take()));
                if let Some(full) = flight.take_if(|flight| flight.is_full()) {
                    result = result.and(full.carry());
                }
            }
        }
        if let Some(rest) = flight {
            result = result.and(rest.carry());
        }
        for file in files {
            file.give_back_room();
            file.quiet();
        }
        result
    }

    /// Begins to bring at most so many bytes down, in file order; `None` where there is nothing.
    /// What finds no space is lost, and told of.
    pub fn begin_flush(
        &mut self,
        bytes_max: u64,
        reason: Reason,
    ) -> (Option<Flight>, Result<(), FileError>) {
        let mut result = self.decide_inline();
        let pages_max = in_memory((bytes_max / SECTOR_BYTES).max(1));
        let all = 0..u64::MAX / SECTOR_BYTES;
        let tags = Backing::flushable();
        let rows = self.live.pages().begin_writeback(&all, pages_max, tags, reason);
        if rows.is_empty() {
            return (None, result);
        }
        let holds: Vec<InFlight> = self.view.begin_request().into_iter().collect();
        let mut runs = Vec::new();
        for row in rows {
            let planned = self.plan_row(row, &mut runs);
            result = result.and(planned);
        }
        let source = self.source.clone();
        let (runs, unplaced) = prepare(&source, &mut [&mut *self], runs);
        for Unplaced { error, .. } in unplaced {
            self.live.touch();
            self.note(&error);
            result = result.and(Err(error));
        }
        self.give_back_room();
        ((!runs.is_empty()).then_some(Flight { source, runs, holds }), result)
    }

    /// Plans a row: the room that it counts on goes with it.
    fn plan_row(
        &mut self,
        row: Writeback,
        runs: &mut Vec<Descent<'static>>,
    ) -> Result<(), FileError> {
        let pages = row.pages();
        let range = pages.start * SECTOR_BYTES..pages.end * SECTOR_BYTES;
        debug_assert_eq!(pages_of(&range), pages, "pages are blocks");
        let planned = match Backing::of(row.tag()) {
            Backing::Reserved => {
                self.bytes_reserved -= range.end - range.start;
                Ok((Owner::FileWithRoom, vec![(range, Target::New)]))
            }
            Backing::InPlace | Backing::Inline => {
                self.targets(&range).map(|targets| (Owner::File, targets))
            }
        };
        let (owner, targets) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                // Law 5. Its pages hold no room that went with them.
                row.end(Landing::Again);
                return Err(error);
            }
        };
        let mut rest = row;
        for (part, target) in targets {
            let count = in_memory((part.end - part.start) / SECTOR_BYTES);
            let later = rest.split_off(count);
            let data = Data::Pages(std::mem::replace(&mut rest, later));
            runs.push(Descent::new(self, 0, part.start, (owner, data), target));
        }
        Ok(())
    }
}
