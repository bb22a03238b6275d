//! Writeback: from dirty blocks, and from a caller's memory, to extents on disk. Direct writes that
//! are in flight without a lock go another way ([`crate::direct`]).
//!
//! ```text
//! runs -> compress (`compress`) -> allocate (`allocate`) -> write, and compute checksums
//!      -> complete: pending extents
//! ```
//!
//! Laws:
//!
//! 1. A run counts as written when the volume reports all of it as written, on every copy but those
//!    whose loss the profile tolerates; otherwise none of it does.
//! 2. Checksums are computed from the bytes that are handed to the devices, in memory that cannot
//!    change meanwhile.
//! 3. A batch holds at most [`BATCH_BYTES_MAX`] bytes of data, and at most as much again of
//!    compressed data.
//! 4. After a failed write in place the disk may hold old or new bytes, so no clean page of the
//!    range stays cached: the next read returns what the disk has. A direct write that fails does
//!    the same.

pub(crate) mod allocate;
pub(crate) mod batch;
pub(crate) mod compress;

use crate::compress::Compressor;
use crate::error::FileError;
use crate::overlay::{CompressedExtent, PendingExtent, Place};
use crate::shared_file::SharedFile;
use crate::source::Source;
use crate::state::FileState;
use crate::target::Target;
use crate::units::BLOCK;
use crate::units::in_memory;
use crate::units::pages_of;
use crate::writeback::allocate::{Unallocated, allocate};
use crate::writeback::compress::{CompressionPolicy, compress_runs};
use butternut_format::checksum::ChecksumKind;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{DiskRange, Ino, Logical, SECTOR_BYTES, TreeId, length};
use butternut_pages::{WritebackPages, WritebackResult};
use butternut_sys::lock::{Mark, rank};
use butternut_volume::{DataWrite, VolumeError};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of data in one batch (law 3).
pub(crate) const BATCH_BYTES_MAX: u64 = 16 << 20;
/// From this many bytes on, slow checksums are computed on the workers while the devices write. The
/// writing thread computes fast ones in less time than it takes to wake the workers.
const PARALLEL_SLOW_BYTES_MIN: u64 = 64 << 10;
/// Sectors whose checksums one worker computes in a row.
const CHECKSUMS_PER_CHUNK: usize = 32;

/// A run of blocks under writeback.
#[derive(Debug)]
pub(crate) struct WritebackRun<'a> {
    /// Index in the caller's list of files.
    pub(crate) file: usize,
    run_file: RunFile,
    /// Offset in that file, in bytes.
    pub(crate) start: u64,
    pub(crate) data: Data<'a>,
    pub(crate) target: Target,
    /// How to compress it, if at all.
    pub(crate) policy: Option<CompressionPolicy>,
    /// Compressing it saved nothing, and its file is to give up compression.
    pub(crate) gave_up_compression: bool,
    pub(crate) origin: RunOrigin,
    /// Logical address on disk, once it is allocated.
    pub(crate) logical: Logical,
    wants_checksums: bool,
    checksums: Vec<u8>,
    failure: Option<VolumeError>,
}

/// What a run needs of its file to complete.
#[derive(Clone, Debug)]
struct RunFile {
    shared: Arc<SharedFile>,
    tree: TreeId,
    ino: Ino,
}

/// The bytes of a run: whole blocks.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    /// Dirty blocks, which cannot change until they are written.
    Pages(WritebackPages),
    Slice(&'a [u8]),
    /// Compressed, padded to whole sectors; and the data that was compressed.
    Compressed {
        compressed: Vec<u8>,
        compression: Compression,
        plain: Box<Data<'a>>,
    },
}

/// Where the bytes of a run come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOrigin {
    Caller,
    /// Dirty blocks.
    Dirty,
    /// Dirty blocks whose space is in the file's data reservation.
    DirtyReserved,
    /// The file itself: the same bytes go to another place.
    Rewrite,
}

impl RunOrigin {
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::DirtyReserved)
    }

    pub(crate) fn is_reserved(self) -> bool {
        self == Self::DirtyReserved
    }
}

impl Data<'_> {
    /// Bytes of the file.
    fn bytes(&self) -> u64 {
        match self {
            Data::Pages(pages) => length(pages.frames().len()) * SECTOR_BYTES,
            Data::Slice(bytes) => length(bytes.len()),
            Data::Compressed { plain, .. } => plain.bytes(),
        }
    }
}

impl<'a> WritebackRun<'a> {
    /// A run of `file`, which is the `number`th of the files that are written back together.
    pub(crate) fn new(
        file: &FileState,
        number: usize,
        start: u64,
        (origin, data): (RunOrigin, Data<'a>),
        target: Target,
    ) -> Self {
        Self {
            file: number,
            run_file: RunFile {
                shared: Arc::clone(&file.shared),
                tree: file.tree_id(),
                ino: file.ino(),
            },
            start,
            origin,
            data,
            target,
            policy: file.compression_policy().filter(|_| target == Target::New),
            gave_up_compression: false,
            logical: Logical(0),
            wants_checksums: file.view.has_checksums(),
            checksums: Vec::new(),
            failure: None,
        }
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.data.bytes()
    }

    /// Compresses the run with `compressor`, whatever its file's flags and a sample of its data
    /// say.
    pub(crate) fn compress_always(&mut self, compressor: Compressor) {
        self.policy = Some(CompressionPolicy::always(compressor));
    }

    /// Whether the run is compressed because its caller wanted that.
    pub(crate) fn is_compressed_always(&self) -> bool {
        let is_forced = self.policy.is_some_and(CompressionPolicy::is_forced);
        is_forced && matches!(self.data, Data::Compressed { .. })
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match &self.data {
            Data::Compressed { compressed, .. } => length(compressed.len()),
            plain @ (Data::Pages(_) | Data::Slice(_)) => plain.bytes(),
        }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes()
    }

    /// Keeps the first `bytes` bytes, which are whole blocks, and returns the rest. The run is not
    /// compressed yet.
    pub(crate) fn split_off(&mut self, bytes: u64) -> Self {
        let at = in_memory(bytes);
        let data = match &mut self.data {
            Data::Pages(pages) => Data::Pages(pages.split_off(at / BLOCK)),
            Data::Slice(slice) => {
                let (now, later) = slice.split_at(at.min(slice.len()));
                *slice = now;
                Data::Slice(later)
            }
            Data::Compressed { .. } => unreachable!("compressed data is one extent"),
        };
        let (start, checksums, failure) = (self.start + bytes, Vec::new(), None);
        let Self {
            file,
            target,
            policy,
            gave_up_compression,
            origin,
            logical,
            wants_checksums,
            ..
        } = *self;
        let run_file = self.run_file.clone();
        Self {
            file,
            run_file,
            start,
            data,
            target,
            policy,
            gave_up_compression,
            origin,
            logical,
            wants_checksums,
            checksums,
            failure,
        }
    }

    /// The space of the run on disk, if it was allocated for it.
    pub(crate) fn new_space(&self) -> Option<DiskRange> {
        (self.target == Target::New).then(|| self.space())
    }

    /// The space of the run on disk.
    fn space(&self) -> DiskRange {
        DiskRange::new(self.logical, self.disk_bytes()).expect("it was allocated")
    }

    /// The parts of memory that are contiguous on disk.
    fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let (frames, slice) = match &self.data {
            Data::Pages(pages) => (pages.frames(), None),
            Data::Slice(bytes) => (&[][..], Some(*bytes)),
            Data::Compressed { compressed, .. } => (&[][..], Some(compressed.as_slice())),
        };
        frames.iter().map(|frame| &**frame).chain(slice)
    }
}

/// Compresses runs and allocates their space. Also returns the runs that found no space.
pub(crate) fn prepare<'a>(
    source: &Source,
    files: &mut [&mut FileState],
    runs: Vec<WritebackRun<'a>>,
) -> (Vec<WritebackRun<'a>>, Vec<Unallocated>) {
    let runs = compress_runs(source, files, runs);
    allocate(files, runs)
}

/// Writes runs that have their space, and completes them. Returns the first failed write; every
/// file records its own failures.
pub(crate) fn write_runs(
    source: &Source,
    mut runs: Vec<WritebackRun<'_>>,
) -> Result<(), FileError> {
    write_and_checksum(source, &mut runs);
    let mut result = Ok(());
    for run in runs {
        result = result.and(run.complete(source));
    }
    result
}

/// Writes all runs and computes their checksums. Stores the result in each run.
fn write_and_checksum(source: &Source, runs: &mut [WritebackRun<'_>]) {
    debug_assert!(!Mark::<rank::Handle>::is_held(), "law 4 of `state`");
    let csum = source.forest().volume().super_block().csum();
    let mut checksums: Vec<Vec<u8>> = runs.iter().map(|run| run.checksum_buffer(csum)).collect();
    let mut failures: Vec<Option<VolumeError>> = runs.iter().map(|_| None).collect();
    let bytes: u64 = runs.iter().map(WritebackRun::disk_bytes).sum();
    let is_slow = matches!(csum, ChecksumKind::Sha256 | ChecksumKind::Blake2b);
    if is_slow && bytes >= PARALLEL_SLOW_BYTES_MIN {
        let runs = &*runs;
        source.workers().in_place_scope(|scope| {
            scope.spawn(|_| checksum_in_parallel(csum, runs, &mut checksums));
            write(source, runs, &mut failures, &mut || {});
        });
    } else {
        let runs = &*runs;
        write(source, runs, &mut failures, &mut || {
            for (run, checksums) in runs.iter().zip(&mut checksums) {
                run.chunks().fold(0, |at, chunk| checksum_chunk(csum, chunk, checksums, at));
            }
        });
    }
    for ((run, checksums), failure) in runs.iter_mut().zip(checksums).zip(failures) {
        (run.checksums, run.failure) = (checksums, failure);
    }
}

impl WritebackRun<'_> {
    /// Zeroed memory for the checksums of the run.
    fn checksum_buffer(&self, csum: ChecksumKind) -> Vec<u8> {
        let sectors = if self.wants_checksums { self.disk_bytes() / SECTOR_BYTES } else { 0 };
        vec![0; in_memory(sectors) * csum.bytes()]
    }
}

/// Writes all runs, and calls `work` while the devices are busy.
fn write(
    source: &Source,
    runs: &[WritebackRun<'_>],
    failures: &mut [Option<VolumeError>],
    work: &mut dyn FnMut(),
) {
    let mut writes = Vec::new();
    let mut run_indexes = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut at = run.logical.0;
        for chunk in run.chunks() {
            writes.push(DataWrite::new(Logical(at), chunk));
            run_indexes.push(index);
            at += length(chunk.len());
        }
    }
    source.forest().volume().write_data_meanwhile(&mut writes, work);
    for (write, run_index) in writes.into_iter().zip(run_indexes) {
        if let Err(error) = write.result
            && let Some(failure) = failures.get_mut(run_index)
        {
            failure.get_or_insert(error);
        }
    }
}

fn checksum_in_parallel(csum: ChecksumKind, runs: &[WritebackRun<'_>], checksums: &mut [Vec<u8>]) {
    let mut chunks: Vec<(&[u8], &mut [u8])> = Vec::new();
    for (run, checksums) in runs.iter().zip(checksums).filter(|(run, _)| run.wants_checksums) {
        let mut buffer = checksums.as_mut_slice();
        for chunk in run.chunks() {
            for part in chunk.chunks(CHECKSUMS_PER_CHUNK * BLOCK) {
                let (now, later) = buffer.split_at_mut(part.len() / BLOCK * csum.bytes());
                buffer = later;
                chunks.push((part, now));
            }
        }
    }
    chunks.par_iter_mut().for_each(|(chunk, buffer)| {
        checksum_chunk(csum, chunk, buffer, 0);
    });
}

/// Stores the checksums of a chunk at `at` and returns where the next ones go. An empty buffer
/// means that no checksums are wanted.
fn checksum_chunk(csum: ChecksumKind, chunk: &[u8], buffer: &mut [u8], at: usize) -> usize {
    let each = csum.bytes();
    let places = buffer.get_mut(at..).unwrap_or_default().chunks_exact_mut(each);
    for (place, sector) in places.zip(chunk.chunks_exact(BLOCK)) {
        place.copy_from_slice(csum.compute(sector).get(..each).unwrap_or_default());
    }
    at + chunk.len() / BLOCK * each
}

impl WritebackRun<'_> {
    /// Ends a run that has been written or has failed. Other threads may share the file meanwhile,
    /// so the free of space that it no longer shows is deferred.
    fn complete(mut self, source: &Source) -> Result<(), FileError> {
        let shared = Arc::clone(&self.run_file.shared);
        let new_space = self.new_space();
        if let Some(failure) = self.failure.take() {
            // It fails only on a volume that is open read-only.
            if let Some(space) = new_space {
                source.forest().release_data(space).ok();
                source.forest().release_quota_charge(self.run_file.tree, space.bytes());
            }
            shared.bump_data_version();
            if self.target.logical().is_some() {
                // The disk may hold the old bytes or the new ones, or some of each (law 4).
                shared.pages().change().remove_clean(&pages_of(&self.range()));
            }
            let (RunFile { tree, ino, .. }, offset) = (self.run_file, self.start);
            self.data.end(WritebackResult::Lost);
            let error = FileError::Write { tree, ino, offset, source: Arc::new(failure) };
            if self.origin != RunOrigin::Rewrite {
                source.record_error(&shared, &error);
            }
            return Err(error);
        }
        shared.add_written(self.bytes());
        let range = self.range();
        let freed = match (&self.data, self.target) {
            (Data::Compressed { compression, .. }, _) => self.insert_compressed(*compression),
            (_, Target::New) => {
                let group = group_of(source, self.logical);
                self.insert_pending(Place::New { logical: self.logical, group })
            }
            (_, Target::Preallocated { extent, skip }) => {
                self.insert_pending(Place::Preallocated { extent, skip })
            }
            (_, Target::Overwrite(_)) => {
                source.forest().volume().note_in_place();
                shared.bump_data_version();
                Vec::new()
            }
        };
        shared.in_flight().defer_free(freed);
        if self.origin == RunOrigin::Caller {
            // Cached pages of the range are older than the disk.
            shared.bump_data_version();
            shared.pages().invalidate(&pages_of(&range));
        }
        self.data.end(WritebackResult::Written);
        Ok(())
    }

    /// Inserts pending extents for the written data. Returns the space that nothing shows any more.
    fn insert_pending(&mut self, place: Place) -> Vec<DiskRange> {
        let range = self.range();
        let mut freed = Vec::new();
        let mut overlay = self.run_file.shared.overlay_mut_same_data();
        // A pending extent is at most as long as one extent.
        let mut checksums = std::mem::take(&mut self.checksums);
        let each = checksums.len() / in_memory(self.bytes() / SECTOR_BYTES).max(1);
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(crate::overlay::EXTENT_BYTES_MAX);
            let later = in_memory(bytes / SECTOR_BYTES) * each;
            let rest = checksums.split_off(later.min(checksums.len()));
            let place = place.advanced(at - range.start);
            freed.extend(overlay.insert(at, PendingExtent::new(bytes, place, checksums)));
            checksums = rest;
            at += bytes;
        }
        freed
    }

    fn insert_compressed(&mut self, compression: Compression) -> Vec<DiskRange> {
        /// Serial number of the next compressed extent of any file.
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);
        let extent = CompressedExtent {
            disk: DiskExtent { logical: self.logical, bytes: self.disk_bytes() },
            ram_bytes: self.bytes(),
            compression,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let checksums = std::mem::take(&mut self.checksums);
        self.run_file
            .shared
            .overlay_mut_same_data()
            .insert_compressed(self.start, extent, checksums)
    }

    /// Abandons the run: its dirty data is lost.
    pub(crate) fn abandon(self) {
        self.data.end(WritebackResult::Lost);
    }
}

impl Data<'_> {
    /// Reports the result to the page cache.
    fn end(self, result: WritebackResult) {
        match self {
            Data::Pages(pages) => pages.end(result),
            Data::Compressed { plain, .. } => plain.end(result),
            Data::Slice(_) => {}
        }
    }
}

/// Whether two uncompressed runs follow one another in the file and on disk.
pub(crate) fn is_contiguous(one: &WritebackRun<'_>, next: &WritebackRun<'_>) -> bool {
    let is_plain = |run: &WritebackRun<'_>| !matches!(run.data, Data::Compressed { .. });
    is_plain(one)
        && is_plain(next)
        && one.range().end == next.start
        && one.logical.0.saturating_add(one.disk_bytes()) == next.logical.0
}

/// Start of the block group that contains an address.
fn group_of(source: &Source, logical: Logical) -> Logical {
    let chunks = source.forest().volume().chunks();
    chunks.find(logical).map_or(logical, |chunk| chunk.logical())
}
