//! Decompression: the compressed extents of a plan, into the segments that show them.
//!
//! Laws:
//!
//! 1. An extent that one segment shows whole is decompressed straight into that segment. Any other
//!    is decompressed into memory of its own, which is cached for the next read of the extent.
//! 2. Several extents are decompressed on all workers, each extent by one of them. A worker that
//!    reads ahead decompresses one after the other.
//! 3. Data that cannot be decompressed is not cached.

use crate::compress::{Origin, decompress};
use crate::extent_map::plan::{NeededExtent, Plan, ReadKind};
use crate::source::Source;
use crate::units::in_memory;
use butternut_format::refused::Refused;
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::sync::Arc;

/// One compressed extent to decompress.
struct DecompressJob<'p> {
    need: &'p NeededExtent,
    /// The compressed bytes; `None` where they could not be read, or need not be.
    compressed: Option<&'p [u8]>,
    /// Destinations, and the byte of the decompressed extent that each starts with.
    places: Vec<(usize, &'p mut [u8])>,
    result: Result<Option<Arc<Vec<u8>>>, Refused>,
}

/// The compressed extents of a plan, in its order.
pub(crate) struct Decompressions<'p>(Vec<DecompressJob<'p>>);

impl<'p> Decompressions<'p> {
    /// `compressed` holds the bytes that were read, extent after extent. `is_bad` tells which
    /// extents could not be read.
    pub(crate) fn new(
        plan: &'p Plan,
        compressed: &'p [u8],
        is_bad: impl Fn(usize) -> bool,
    ) -> Self {
        let mut rest = compressed;
        let jobs = plan.compressed.iter().enumerate().map(|(index, need)| {
            let mut compressed = None;
            if need.contents.is_none() {
                let bytes = in_memory(need.extent.bytes).min(rest.len());
                let (now, later) = rest.split_at(bytes);
                rest = later;
                compressed = Some(now).filter(|_| !is_bad(index));
            }
            DecompressJob { need, compressed, places: Vec::new(), result: Ok(None) }
        });
        Self(jobs.collect())
    }

    /// Adds `place` as the destination of the bytes from `skip` on of extent `index`.
    pub(crate) fn add_place(&mut self, index: usize, skip: usize, place: &'p mut [u8]) {
        if let Some(job) = self.0.get_mut(index) {
            job.places.push((skip, place));
        }
    }

    /// Fills every destination. Returns which extents could not be decompressed, and why.
    pub(crate) fn run(mut self, source: &Source, read_kind: ReadKind) -> Vec<(usize, Refused)> {
        let several = self.0.iter().filter(|job| job.compressed.is_some()).count() > 1;
        if several && read_kind != ReadKind::Readahead {
            source.workers().install(|| self.0.par_iter_mut().for_each(DecompressJob::run));
        } else {
            self.0.iter_mut().for_each(DecompressJob::run);
        }
        let mut failures = Vec::new();
        for (index, job) in self.0.into_iter().enumerate() {
            match job.result {
                Ok(None) => {}
                Ok(Some(decompressed)) => {
                    let key = (job.need.extent.logical, job.need.encoding.generation.0);
                    let bytes = decompressed.len();
                    source.lookups().decompressed.insert(key, decompressed, bytes);
                }
                Err(refused) => {
                    let place = format_args!("extent at logical {}", job.need.extent.logical);
                    failures.push((index, refused.at(place)));
                }
            }
        }
        failures
    }
}

impl DecompressJob<'_> {
    fn run(&mut self) {
        self.result = self.decompress_into_places();
    }

    /// Fills the destinations. Returns the decompressed extent if it is to be cached.
    fn decompress_into_places(&mut self) -> Result<Option<Arc<Vec<u8>>>, Refused> {
        let encoding = &self.need.encoding;
        if let Some(contents) = &self.need.contents {
            copy_out(contents, &mut self.places);
            return Ok(None);
        }
        let Some(compressed) = self.compressed else { return Ok(None) };
        if self.need.is_direct
            && let [(0, place)] = self.places.as_mut_slice()
        {
            decompress(encoding.compression, Origin::Disk, compressed, place)?;
            return Ok(None);
        }
        let mut decompressed = vec![0; in_memory(encoding.ram_bytes)];
        decompress(encoding.compression, Origin::Disk, compressed, &mut decompressed)?;
        copy_out(&decompressed, &mut self.places);
        Ok(Some(Arc::new(decompressed)))
    }
}

fn copy_out(decompressed: &[u8], places: &mut [(usize, &mut [u8])]) {
    for (skip, place) in places {
        let from = decompressed.get(*skip..*skip + place.len()).unwrap_or_default();
        if from.len() == place.len() {
            place.copy_from_slice(from);
        }
    }
}
