//! Bringing data down: the one way from bytes in memory to extents on disk.
//!
//! ```text
//! runs -> pack (`pack`) -> find space (`assign`) -> write, and make digests -> land: patches
//! ```
//!
//! Laws:
//!
//! 1. A run is down when every copy of all of it is; otherwise it counts as not written at all.
//! 2. Digests are of the bytes that were handed to the device: they are in memory that nobody
//!    changes meanwhile.
//! 3. What a batch holds and asks for is bounded by [`BATCH_BYTES_MAX`], and as much once more
//!    for what is packed.

use crate::assign::{Unplaced, assign};
use crate::dirty::pages_of;
use crate::error::FileError;
use crate::live::Live;
use crate::overlay::{BLOCK, PackedExtent, Patch, Place};
use crate::pack::{Packing, pack};
use crate::place::Target;
use crate::source::{Source, in_memory};
use crate::state::FileState;
use butternut_format::checksum::ChecksumKind;
use butternut_format::file_extent::{Compression, DiskExtent};
use butternut_format::units::{Ino, Logical, SECTOR_BYTES, TreeId, length};
use butternut_pages::{Landing, Writeback};
use butternut_volume::{DataWrite, VolumeError};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Data of one batch (law 3).
pub(crate) const BATCH_BYTES_MAX: u64 = 16 << 20;
/// From here on slow digests are made on the workers while the device writes. Quick ones take the
/// writer less time than waking the workers would.
const PARALLEL_SLOW_BYTES_MIN: u64 = 64 << 10;
/// A worker makes this many digests in a row.
const DIGESTS_PER_PIECE: usize = 32;

/// A run of blocks on its way down.
#[derive(Debug)]
pub(crate) struct Descent<'a> {
    /// Which of the caller's files it is of.
    pub(crate) file: usize,
    home: Home,
    /// Where in that file.
    pub(crate) start: u64,
    pub(crate) data: Data<'a>,
    pub(crate) target: Target,
    /// It is to be packed, if that pays.
    pub(crate) packing: Option<Packing>,
    /// That did not pay, which is to be remembered.
    pub(crate) has_given_up: bool,
    pub(crate) owner: Owner,
    /// Where on disk, once that is found.
    pub(crate) logical: Logical,
    wants_digests: bool,
    digests: Vec<u8>,
    failure: Option<VolumeError>,
}

/// The file that a run is of, as far as it is told.
#[derive(Clone, Debug)]
struct Home {
    live: Arc<Live>,
    tree: TreeId,
    ino: Ino,
}

/// The bytes of a run, in whole blocks.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    /// Dirty blocks, which stay as they are until they are down.
    Pages(Writeback),
    Slice(&'a [u8]),
    /// Packed, in whole sectors; and what was packed.
    Packed {
        packed: Vec<u8>,
        compression: Compression,
        plain: Box<Data<'a>>,
    },
}

/// Whose the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Caller,
    /// Dirty blocks.
    File,
    /// The same, and space for them is held in the file's room.
    FileWithRoom,
}

/// How a batch went.
#[derive(Debug)]
pub(crate) struct Down {
    /// The first failure to write; the files keep each its own.
    pub(crate) result: Result<(), FileError>,
    /// What was not written, in the order of the runs.
    pub(crate) unplaced: Vec<Unplaced>,
}

impl Owner {
    pub(crate) fn is_dirty(self) -> bool {
        self != Self::Caller
    }

    pub(crate) fn has_room(self) -> bool {
        self == Self::FileWithRoom
    }
}

impl Data<'_> {
    /// Bytes of the file.
    fn bytes(&self) -> u64 {
        match self {
            Data::Pages(pages) => length(pages.frames().len()) * SECTOR_BYTES,
            Data::Slice(bytes) => length(bytes.len()),
            Data::Packed { plain, .. } => plain.bytes(),
        }
    }
}

impl<'a> Descent<'a> {
    /// A run of `file`, which is the `number`th of those that go down together.
    pub(crate) fn new(
        file: &FileState,
        number: usize,
        start: u64,
        (owner, data): (Owner, Data<'a>),
        target: Target,
    ) -> Self {
        Self {
            file: number,
            home: Home { live: Arc::clone(&file.live), tree: file.tree_id(), ino: file.ino() },
            start,
            owner,
            data,
            target,
            packing: file.packing().filter(|_| target == Target::New),
            has_given_up: false,
            logical: Logical(0),
            wants_digests: file.view.has_sums(),
            digests: Vec::new(),
            failure: None,
        }
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.data.bytes()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match &self.data {
            Data::Packed { packed, .. } => length(packed.len()),
            plain @ (Data::Pages(_) | Data::Slice(_)) => plain.bytes(),
        }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes()
    }

    /// Keeps the first `bytes` bytes, whole blocks; returns the rest. It is not packed yet.
    pub(crate) fn split_off(&mut self, bytes: u64) -> Self {
        let at = in_memory(bytes);
        let data = match &mut self.data {
            Data::Pages(pages) => Data::Pages(pages.split_off(at / BLOCK)),
            Data::Slice(slice) => {
                let (now, later) = slice.split_at(at.min(slice.len()));
                *slice = now;
                Data::Slice(later)
            }
            Data::Packed { .. } => {
                debug_assert!(false, "what is packed is one extent");
                Data::Slice(&[])
            }
        };
        let (start, digests, failure) = (self.start + bytes, Vec::new(), None);
        let Self { file, target, packing, has_given_up, owner, logical, wants_digests, .. } = *self;
        let home = self.home.clone();
        Self {
            file,
            home,
            start,
            data,
            target,
            packing,
            has_given_up,
            owner,
            logical,
            wants_digests,
            digests,
            failure,
        }
    }

    /// Where on disk it went.
    fn space(&self) -> Range<u64> {
        self.logical.0..self.logical.0 + self.disk_bytes()
    }

    /// Pieces of memory that follow one another on disk.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (frames, slice) = match &self.data {
            Data::Pages(pages) => (pages.frames(), None),
            Data::Slice(bytes) => (&[][..], Some(*bytes)),
            Data::Packed { packed, .. } => (&[][..], Some(packed.as_slice())),
        };
        frames.iter().map(|frame| &**frame).chain(slice)
    }
}

/// Brings runs of some files down, and tells the files.
pub(crate) fn bring_down(
    source: &Source,
    files: &mut [&mut FileState],
    runs: Vec<Descent<'_>>,
) -> Down {
    let (runs, unplaced) = prepare(source, files, runs);
    Down { result: carry(source, runs), unplaced }
}

/// Packs runs, and finds their space. Says what found none.
pub(crate) fn prepare<'a>(
    source: &Source,
    files: &mut [&mut FileState],
    runs: Vec<Descent<'a>>,
) -> (Vec<Descent<'a>>, Vec<Unplaced>) {
    let runs = pack(source, files, runs);
    assign(files, runs)
}

/// Writes runs that have their space, and lets them land. The first failure to write; the files
/// keep each its own.
pub(crate) fn carry(source: &Source, mut runs: Vec<Descent<'_>>) -> Result<(), FileError> {
    write_and_digest(source, &mut runs);
    let mut result = Ok(());
    for run in runs {
        result = result.and(run.land(source));
    }
    result
}

/// Writes all runs and makes their digests. Each run knows how it went.
fn write_and_digest(source: &Source, runs: &mut [Descent<'_>]) {
    let csum = source.forest().volume().super_block().csum();
    let mut digests: Vec<Vec<u8>> = runs.iter().map(|run| run.room_for_digests(csum)).collect();
    let mut failures: Vec<Option<VolumeError>> = runs.iter().map(|_| None).collect();
    let bytes: u64 = runs.iter().map(Descent::disk_bytes).sum();
    let is_slow = matches!(csum, ChecksumKind::Sha256 | ChecksumKind::Blake2b);
    if is_slow && bytes >= PARALLEL_SLOW_BYTES_MIN {
        let runs = &*runs;
        source.workers().in_place_scope(|scope| {
            scope.spawn(|_| digest_in_parallel(csum, runs, &mut digests));
            write(source, runs, &mut failures, &mut || {});
        });
    } else {
        let runs = &*runs;
        write(source, runs, &mut failures, &mut || {
            for (run, digests) in runs.iter().zip(&mut digests) {
                run.pieces().fold(0, |at, piece| digest_piece(csum, piece, digests, at));
            }
        });
    }
    for ((run, digests), failure) in runs.iter_mut().zip(digests).zip(failures) {
        (run.digests, run.failure) = (digests, failure);
    }
}

impl Descent<'_> {
    /// Zeroes where the digests will be.
    fn room_for_digests(&self, csum: ChecksumKind) -> Vec<u8> {
        let sectors = if self.wants_digests { self.disk_bytes() / SECTOR_BYTES } else { 0 };
        vec![0; in_memory(sectors) * csum.bytes()]
    }
}

/// Writes all runs, and does the work meanwhile.
fn write(
    source: &Source,
    runs: &[Descent<'_>],
    failures: &mut [Option<VolumeError>],
    work: &mut dyn FnMut(),
) {
    let mut writes = Vec::new();
    let mut owners = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut at = run.logical.0;
        for piece in run.pieces() {
            writes.push(DataWrite::new(Logical(at), piece));
            owners.push(index);
            at += length(piece.len());
        }
    }
    source.forest().volume().write_data_meanwhile(&mut writes, work);
    for (write, owner) in writes.into_iter().zip(owners) {
        if let Err(error) = write.result
            && let Some(failure) = failures.get_mut(owner)
        {
            failure.get_or_insert(error);
        }
    }
}

fn digest_in_parallel(csum: ChecksumKind, runs: &[Descent<'_>], digests: &mut [Vec<u8>]) {
    let mut pieces: Vec<(&[u8], &mut [u8])> = Vec::new();
    for (run, digests) in runs.iter().zip(digests).filter(|(run, _)| run.wants_digests) {
        let mut room = digests.as_mut_slice();
        for piece in run.pieces() {
            for part in piece.chunks(DIGESTS_PER_PIECE * BLOCK) {
                let (now, later) = room.split_at_mut(part.len() / BLOCK * csum.bytes());
                room = later;
                pieces.push((part, now));
            }
        }
    }
    pieces.par_iter_mut().for_each(|(piece, room)| {
        digest_piece(csum, piece, room, 0);
    });
}

/// Puts the digests of a piece at `at`; gives where the next one goes. Without room, none are
/// wanted.
fn digest_piece(csum: ChecksumKind, piece: &[u8], room: &mut [u8], at: usize) -> usize {
    let each = csum.bytes();
    let places = room.get_mut(at..).unwrap_or_default().chunks_exact_mut(each);
    for (place, sector) in places.zip(piece.chunks_exact(BLOCK)) {
        place.copy_from_slice(csum.digest(sector).get(..each).unwrap_or_default());
    }
    at + piece.len() / BLOCK * each
}

impl Descent<'_> {
    /// Takes note of a run that is down, or is not. The file may be shared meanwhile: space that
    /// it shows no more is retired.
    fn land(mut self, source: &Source) -> Result<(), FileError> {
        let live = Arc::clone(&self.home.live);
        let new_space = (self.target == Target::New).then(|| self.space());
        if let Some(failure) = self.failure.take() {
            // Refused only on a volume that is not written.
            new_space.map(|space| source.forest().release_data(space).ok());
            live.touch();
            let (Home { tree, ino, .. }, offset) = (self.home, self.start);
            self.data.end(Landing::Lost);
            let error = FileError::Write { tree, ino, offset, source: Arc::new(failure) };
            source.note(&live, &error);
            return Err(error);
        }
        live.add_written(self.bytes());
        let range = self.range();
        let freed = match (&self.data, self.target) {
            (Data::Packed { compression, .. }, _) => self.show_packed(*compression),
            (_, Target::New) => {
                let group = group_of(source, self.logical);
                self.show(Place::New { logical: self.logical, group })
            }
            (_, Target::SetAside { extent, skip }) => self.show(Place::SetAside { extent, skip }),
            (_, Target::Over(_)) => {
                source.forest().volume().note_in_place();
                live.touch();
                Vec::new()
            }
        };
        live.traffic().retire(freed);
        if !self.owner.is_dirty() {
            // Whatever memory has of it is older.
            live.touch();
            live.pages().invalidate(&pages_of(&range));
        }
        self.data.end(Landing::Written);
        Ok(())
    }

    /// Puts patches over what is on disk now. Returns the space that nothing shows any more.
    fn show(&mut self, place: Place) -> Vec<Range<u64>> {
        let range = self.range();
        let mut freed = Vec::new();
        let mut overlay = self.home.live.overlay_to_settle();
        // A patch is one extent at most.
        let mut digests = std::mem::take(&mut self.digests);
        let each = digests.len() / in_memory(self.bytes() / SECTOR_BYTES).max(1);
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(crate::overlay::EXTENT_BYTES_MAX);
            let later = in_memory(bytes / SECTOR_BYTES) * each;
            let rest = digests.split_off(later.min(digests.len()));
            let place = place.advanced(at - range.start);
            freed.extend(overlay.insert(at, Patch::new(bytes, place, digests)));
            digests = rest;
            at += bytes;
        }
        freed
    }

    fn show_packed(&mut self, compression: Compression) -> Vec<Range<u64>> {
        /// The next packed extent of any file.
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);
        let extent = PackedExtent {
            disk: DiskExtent { logical: self.logical, bytes: self.disk_bytes() },
            ram_bytes: self.bytes(),
            compression,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let digests = std::mem::take(&mut self.digests);
        self.home.live.overlay_to_settle().insert_packed(self.start, extent, digests)
    }

    /// It will not go down: what was dirty is lost.
    pub(crate) fn give_up(self) {
        self.data.end(Landing::Lost);
    }
}

impl Data<'_> {
    /// Tells the cache how its pages fared.
    fn end(self, landing: Landing) {
        match self {
            Data::Pages(pages) => pages.end(landing),
            Data::Packed { plain, .. } => plain.end(landing),
            Data::Slice(_) => {}
        }
    }
}

/// Where the block group starts that an address is in.
fn group_of(source: &Source, logical: Logical) -> Logical {
    let chunks = source.forest().volume().chunks();
    chunks.find(logical).map_or(logical, |chunk| chunk.logical())
}
