//! Unpacking: the packed extents of a plan, into the places that want them.
//!
//! Laws:
//!
//! 1. An extent that one piece wants whole is unpacked straight into that piece. Any other is
//!    unpacked into memory of its own, which is kept for the next read of the extent.
//! 2. Several extents are unpacked on all workers, each by one; by a worker that reads ahead, one
//!    after the other.
//! 3. What cannot be unpacked is not kept.

use crate::compress::{Origin, decompress};
use crate::plan::{Manner, PackedNeed, Plan};
use crate::source::{Source, in_memory};
use butternut_format::refused::Refused;
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::sync::Arc;

/// One packed extent on its way.
struct Job<'p> {
    need: &'p PackedNeed,
    /// The bytes read; `None` where they could not be, or need not.
    packed: Option<&'p [u8]>,
    /// Places, and which byte of the unpacked extent each starts with.
    places: Vec<(usize, &'p mut [u8])>,
    result: Result<Option<Arc<Vec<u8>>>, Refused>,
}

/// The packed extents of a plan, in its order.
pub(crate) struct Unpackings<'p>(Vec<Job<'p>>);

impl<'p> Unpackings<'p> {
    /// `packed` holds what was read, extent after extent. `is_bad` tells which could not be.
    pub(crate) fn new(plan: &'p Plan, packed: &'p [u8], is_bad: impl Fn(usize) -> bool) -> Self {
        let mut rest = packed;
        let jobs = plan.packed.iter().enumerate().map(|(index, need)| {
            let mut packed = None;
            if need.known.is_none() {
                let bytes = in_memory(need.extent.bytes).min(rest.len());
                let (now, later) = rest.split_at(bytes);
                rest = later;
                packed = Some(now).filter(|_| !is_bad(index));
            }
            Job { need, packed, places: Vec::new(), result: Ok(None) }
        });
        Self(jobs.collect())
    }

    /// Says that `place` is to hold the bytes from `skip` on of extent `index`.
    pub(crate) fn want(&mut self, index: usize, skip: usize, place: &'p mut [u8]) {
        if let Some(job) = self.0.get_mut(index) {
            job.places.push((skip, place));
        }
    }

    /// Fills every place. Says which extents could not be unpacked, and why.
    pub(crate) fn run(mut self, source: &Source, manner: Manner) -> Vec<(usize, Refused)> {
        let several = self.0.iter().filter(|job| job.packed.is_some()).count() > 1;
        if several && manner != Manner::Ahead {
            source.workers().install(|| self.0.par_iter_mut().for_each(Job::run));
        } else {
            self.0.iter_mut().for_each(Job::run);
        }
        let mut refusals = Vec::new();
        for (index, job) in self.0.into_iter().enumerate() {
            match job.result {
                Ok(None) => {}
                Ok(Some(unpacked)) => {
                    let key = (job.need.extent.logical, job.need.packing.generation.0);
                    let bytes = unpacked.len();
                    source.unpacked().insert(key, unpacked, bytes);
                }
                Err(refused) => {
                    let place = format_args!("extent at logical {}", job.need.extent.logical);
                    refusals.push((index, refused.at(place)));
                }
            }
        }
        refusals
    }
}

impl Job<'_> {
    fn run(&mut self) {
        self.result = self.unpack();
    }

    /// Fills the places. Returns what is worth keeping.
    fn unpack(&mut self) -> Result<Option<Arc<Vec<u8>>>, Refused> {
        let packing = &self.need.packing;
        if let Some(known) = &self.need.known {
            copy_out(known, &mut self.places);
            return Ok(None);
        }
        let Some(packed) = self.packed else { return Ok(None) };
        if self.need.is_direct
            && let [(0, place)] = self.places.as_mut_slice()
        {
            decompress(packing.compression, Origin::Disk, packed, place)?;
            return Ok(None);
        }
        let mut unpacked = vec![0; in_memory(packing.ram_bytes)];
        decompress(packing.compression, Origin::Disk, packed, &mut unpacked)?;
        copy_out(&unpacked, &mut self.places);
        Ok(Some(Arc::new(unpacked)))
    }
}

fn copy_out(unpacked: &[u8], places: &mut [(usize, &mut [u8])]) {
    for (skip, place) in places {
        let from = unpacked.get(*skip..*skip + place.len()).unwrap_or_default();
        if from.len() == place.len() {
            place.copy_from_slice(from);
        }
    }
}
