//! Batches: dirty blocks of many files, written to disk together.
//!
//! ```text
//! start_writeback, inode locked         WritebackBatch, no lock      complete
//! which blocks, compressed, where   --> checksums, devices       --> pending extents, clean pages
//! ```
//!
//! Laws:
//!
//! 1. The blocks of a file are written in file order, so that data that is contiguous in the file
//!    is contiguous on disk. Files follow each other.
//! 2. A block is newer than the disk until it is written or lost. When it is lost, the file reads
//!    as before the write, and records the error.
//! 3. Inline data stays in memory: the next merge writes it into the tree.
//! 4. A batch counts as in flight on each of its files until it has completed, and needs none of
//!    their inode locks to complete. A thread that holds a batch must not wait for an inode lock.
//! 5. A block whose write target cannot be looked up, because a tree cannot be read, stays dirty:
//!    the sync fails, and a later one tries again. Only a failed write, or a lack of space, loses
//!    data.

use crate::error::FileError;
use crate::shared_file::InFlight;
use crate::source::Source;
use crate::state::FileState;
use crate::state::backing::Backing;
use crate::target::Target;
use crate::units::in_memory;
use crate::units::pages_of;
use crate::writeback::allocate::Unallocated;
use crate::writeback::{BATCH_BYTES_MAX, Data, RunOrigin, WritebackRun, prepare, write_runs};
use butternut_format::units::SECTOR_BYTES;
use butternut_pages::{WritebackPages, WritebackReason, WritebackResult};
use butternut_sys::wait::Wait;

/// Dirty blocks of some files whose space is allocated.
#[derive(Debug)]
#[must_use = "its files cannot be drained while it exists"]
pub struct WritebackBatch {
    source: Source,
    runs: Vec<WritebackRun<'static>>,
    /// Declared after the runs, so that it is dropped when they have completed (law 4).
    in_flight: Vec<InFlight>,
}

impl WritebackBatch {
    /// Bytes from which on a batch is full.
    pub const BYTES_MAX: u64 = BATCH_BYTES_MAX;

    /// Returns how many bytes of the files the batch holds.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(WritebackRun::bytes).sum()
    }

    /// Returns whether the batch should be written before anything is added to it.
    pub fn is_full(&self) -> bool {
        self.bytes() >= BATCH_BYTES_MAX
    }

    /// Appends this batch to `before`, so that both are written together.
    pub fn join(mut self, before: Option<Self>) -> Self {
        let Some(mut all) = before else { return self };
        all.runs.append(&mut self.runs);
        all.in_flight.append(&mut self.in_flight);
        all
    }

    /// Writes all runs and completes them. Returns the first failed write; each file records its
    /// own.
    pub fn write_and_complete(self) -> Result<(), FileError> {
        let Self { source, runs, in_flight } = self;
        let result = write_runs(&source, runs);
        drop(in_flight);
        result
    }
}

impl FileState {
    /// Writes all dirty data of the file to disk. The trees do not change.
    ///
    /// # Errors
    /// Data could not be written and is lost, or a tree could not be read and the data stays
    /// dirty.
    pub fn write_back(&mut self) -> Result<(), FileError> {
        Self::write_back_many(&mut [self], WritebackReason::Sync)
    }

    /// Writes the dirty data of many files to disk, in batches that they share. Each file records
    /// its own errors; the first is returned.
    pub fn write_back_many(
        files: &mut [&mut Self],
        reason: WritebackReason,
    ) -> Result<(), FileError> {
        let mut result = Ok(());
        let mut batch: Option<WritebackBatch> = None;
        for file in &mut *files {
            loop {
                let bytes_left = BATCH_BYTES_MAX - batch.as_ref().map_or(0, WritebackBatch::bytes);
                let (more, planned) = file.start_writeback(bytes_left, reason);
                result = result.and(planned);
                let Some(more) = more else { break };
                batch = Some(more.join(batch.take()));
                if let Some(full) = batch.take_if(|batch| batch.is_full()) {
                    result = result.and(full.write_and_complete());
                }
            }
        }
        if let Some(rest) = batch {
            result = result.and(rest.write_and_complete());
        }
        for file in files {
            file.release_unused_data();
            file.drain();
        }
        result
    }

    /// Starts writeback of at most `bytes_max` bytes in file order; returns `None` where nothing is
    /// dirty. Data for which there is no space is lost, and the error recorded.
    pub fn start_writeback(
        &mut self,
        bytes_max: u64,
        reason: WritebackReason,
    ) -> (Option<WritebackBatch>, Result<(), FileError>) {
        let mut result = self.decide_inline();
        let pages_max = in_memory((bytes_max / SECTOR_BYTES).max(1));
        let all = 0..u64::MAX / SECTOR_BYTES;
        let tags = Backing::writeback_tags();
        let writebacks = self.shared.pages().begin_writeback(&all, pages_max, tags, reason);
        if writebacks.is_empty() {
            return (None, result);
        }
        let in_flight: Vec<InFlight> = self.view.begin_request().into_iter().collect();
        let mut runs = Vec::new();
        for writeback in writebacks {
            let planned = self.plan_range(writeback, &mut runs);
            result = result.and(planned);
        }
        let source = self.source.clone();
        let (runs, unallocated) = prepare(&source, &mut [&mut *self], runs);
        for Unallocated { error, .. } in unallocated {
            self.shared.bump_data_version();
            self.record_error(&error);
            result = result.and(Err(error));
        }
        self.release_unused_data();
        ((!runs.is_empty()).then_some(WritebackBatch { source, runs, in_flight }), result)
    }

    /// Plans the runs of a range of dirty pages, which takes its part of the data reservation
    /// along.
    fn plan_range(
        &mut self,
        writeback: WritebackPages,
        runs: &mut Vec<WritebackRun<'static>>,
    ) -> Result<(), FileError> {
        let pages = writeback.pages();
        let range = pages.start * SECTOR_BYTES..pages.end * SECTOR_BYTES;
        debug_assert_eq!(pages_of(&range), pages, "pages are blocks");
        let planned = match Backing::of(writeback.tag()) {
            Backing::Reserved => {
                self.bytes_reserved -= range.end - range.start;
                Ok((RunOrigin::DirtyReserved, vec![(range, Target::New)]))
            }
            Backing::InPlace | Backing::Inline | Backing::CompressedInline => {
                self.write_targets(&range, Wait::Block).map(|targets| (RunOrigin::Dirty, targets))
            }
        };
        let (origin, targets) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                // Law 5. Its pages hold no reservation that is gone now.
                writeback.end(WritebackResult::Redirty);
                return Err(error);
            }
        };
        let mut rest = writeback;
        for (part, target) in targets {
            let count = in_memory((part.end - part.start) / SECTOR_BYTES);
            let later = rest.split_off(count);
            let data = Data::Pages(std::mem::replace(&mut rest, later));
            runs.push(WritebackRun::new(self, 0, part.start, (origin, data), target));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::test_volume::{file, open_on};
    use butternut_device::MemoryDevice;
    use butternut_format::extent::DataRef;
    use butternut_format::inode::InodeFlags;
    use butternut_format::units::{Ino, Logical, TreeId};
    use butternut_tree::{EnospcInjector, ForestOptions, Need};
    use std::sync::Arc;

    /// More extents than were once recorded each (law 4 of `tree::references::dropped`).
    const DROPS: u64 = (1 << 16) + 2;

    #[test]
    fn many_dropped_references_take_no_space_from_a_write_in_place() {
        let injector = EnospcInjector::default();
        let options =
            ForestOptions { enospc_injector: Some(injector.clone()), ..Default::default() };
        let source = open_on(Arc::new(MemoryDevice::new("memory", 256 << 20)), options);
        source.set_flusher(true);
        let mut file = file(&source);
        file.set_flags(InodeFlags::NODATACOW.with(InodeFlags::NODATASUM));
        file.write_at(0, &[1; 8192]).expect("space");
        file.merge(&mut |_| {}).expect("a merge");
        source.forest().commit().expect("a commit");
        // It overwrites its own extent, so nothing is reserved for it.
        file.write_at(0, &[2; 8192]).expect("a write in place");
        // As a deletion of files with very many extents that snapshots still have. It is never
        // committed here.
        let handle = source.forest().join(Need::items(1)).expect("space");
        for number in 0..DROPS {
            // The last two enclose all addresses.
            let at = match DROPS - number {
                1 => 4096,
                2 => 1 << 60,
                _ => (1 << 50) + number * 4096,
            };
            let reference = DataRef { tree: TreeId(300), ino: Ino(300), offset: 0, count: 1 };
            handle.drop_data_ref(Logical(at), 4096, reference);
        }
        drop(handle);
        injector.fail_growth();
        file.write_back().expect("it needs no space");
        injector.fail_none();
        let mut have = vec![0; 8192];
        assert_eq!(source.read_at(file.view(), 0, &mut have).expect("a read"), 8192);
        assert!(have == [2; 8192], "the write is lost");
    }
}
