//! [`Limits`]: what ends a receive in the midst of a command, and how much its stream may seal,
//! clone and free.
//!
//! A seal by fs-verity hashes all bytes of a file, and its holes, too, and the volume has a tree of
//! the hashes, of up to a sixteenth of the file. A stream needs no data for a file of any size, so
//! neither the time of a receive nor the space is bounded by the size of its stream.
//!
//! A clone shares all extents of its range, each with an item in the file and a reference. A file
//! may be cloned to its own end, which doubles its extents with each command of some hundred bytes.
//! Where the offsets differ in their blocks, the range is copied block by block. A truncation or
//! the removal of the last name frees all extents, and a snapshot of the subvolume has them again.
//!
//! A receive into a volume has no such limits: its user chooses the volume, whose space bounds the
//! items, and can end it at any time.

use crate::{Error, Result};
use butternut_format::refused::Refused;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that streams may seal, whatever their size: some minutes of hashing.
const SEALED_BYTES: u64 = 64 << 30;
/// Bytes that they may seal for each of their bytes. Compressed data has at most 32; the rest is
/// for clones, and for holes.
const SEALED_PER_BYTE: u64 = 1024;
/// Bytes of trees of hashes that streams may make, whatever their size: those of 16 GiB with the
/// default hash and blocks. The volume has two copies of them.
const HASHES_BYTES: u64 = 130 << 20;
/// Bytes of trees that they may make for each of their bytes: twice those of compressed data with
/// the largest hashes and the smallest blocks.
const HASHES_PER_BYTE: u64 = 4;

/// Extents that streams may clone or free, whatever their size: some seconds of work. A file of
/// 100,000 extents may be cloned a few times.
const EXTENTS: u64 = 1 << 19;
/// Bytes of streams for each further extent that they may clone or free. A clone of one extent, as
/// in a deduplicated tree, has more than 100 bytes; a file's own extents have 4 KiB each, so a file
/// may be cloned or freed 256 times.
const BYTES_PER_EXTENT: u64 = 16;

/// The field of the error for streams whose sealed files have more bytes than a [`StreamLimits`]
/// allows.
pub const SEALED_BYTES_FIELD: &str = "bytes of sealed files";
/// The same for more bytes of hashes.
pub const HASHES_BYTES_FIELD: &str = "bytes of hashes of sealed files";
/// The same for more extents that are cloned or freed, or blocks that are copied for a clone.
pub const EXTENTS_FIELD: &str = "extents that are cloned or freed";

type GoesOn = dyn Fn() -> bool + Send + Sync;

/// Limits how much streams may seal by fs-verity, clone and free, in proportion to their size. Its
/// clones count together, so the streams of several readers have one limit
/// ([`StreamReader::limit_work`](super::StreamReader::limit_work)).
#[derive(Clone, Debug, Default)]
pub struct StreamLimits(Arc<Totals>);

/// The bytes that were counted of all streams.
#[derive(Debug, Default)]
struct Totals {
    streams: AtomicU64,
    sealed: AtomicU64,
    hashes: AtomicU64,
    extents: AtomicU64,
}

/// The limits of a receive. Without any, it ends with its stream.
#[derive(Clone, Default)]
pub(super) struct Limits {
    goes_on: Option<Arc<GoesOn>>,
    work: Option<StreamLimits>,
}

impl StreamLimits {
    fn add_stream(&self, bytes: u64) {
        add(&self.0.streams, bytes);
    }

    fn add_seal(&self, file_bytes: u64, hashes_bytes: u64) -> Result<(), Refused> {
        let stream_bytes = self.0.streams.load(Ordering::Relaxed);
        let most = |base: u64, per_byte| base.saturating_add(stream_bytes.saturating_mul(per_byte));
        let sealed_bytes = add(&self.0.sealed, file_bytes);
        let sealed_most = most(SEALED_BYTES, SEALED_PER_BYTE);
        self.check(SEALED_BYTES_FIELD, sealed_bytes, sealed_most)?;
        let hashes_bytes = add(&self.0.hashes, hashes_bytes);
        self.check(HASHES_BYTES_FIELD, hashes_bytes, most(HASHES_BYTES, HASHES_PER_BYTE))
    }

    fn extents_max(&self) -> u64 {
        let stream_bytes = self.0.streams.load(Ordering::Relaxed);
        EXTENTS.saturating_add(stream_bytes / BYTES_PER_EXTENT)
    }

    /// Returns how many extents streams of this size may still clone or free.
    fn extents_left(&self) -> u64 {
        let before = self.0.extents.load(Ordering::Relaxed);
        self.extents_max().saturating_sub(before)
    }

    fn add_extents(&self, extents: u64) -> Result<(), Refused> {
        let have = add(&self.0.extents, extents);
        self.check(EXTENTS_FIELD, have, self.extents_max())
    }

    fn check(&self, field: &'static str, have: u64, most: u64) -> Result<(), Refused> {
        if have <= most {
            return Ok(());
        }
        let stream_bytes = self.0.streams.load(Ordering::Relaxed);
        let want = format!("at most {most}, for {stream_bytes} bytes of streams");
        Err(Refused::new(field, have, want))
    }
}

/// Adds to a total, and returns it.
fn add(total: &AtomicU64, bytes: u64) -> u64 {
    let sum = |before: u64| before.saturating_add(bytes);
    let before = total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| Some(sum(it)));
    before.map_or(u64::MAX, sum)
}

impl Limits {
    pub(super) fn end_unless(self, goes_on: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { goes_on: Some(Arc::new(goes_on)), ..self }
    }

    pub(super) fn limit_work(self, limits: &StreamLimits) -> Self {
        Self { work: Some(limits.clone()), ..self }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.goes_on.as_ref().is_none_or(|goes_on| goes_on())
    }

    /// Counts a command of a stream.
    pub(super) fn add_stream(&self, bytes: u64) {
        if let Some(work) = &self.work {
            work.add_stream(bytes);
        }
    }

    /// Counts a file that is to be sealed, with a tree of hashes of `hashes_bytes`.
    ///
    /// # Errors
    /// The streams up to here may not seal as much.
    pub(super) fn add_seal(&self, file_bytes: u64, hashes_bytes: u64) -> Result<(), Refused> {
        self.work.as_ref().map_or(Ok(()), |work| work.add_seal(file_bytes, hashes_bytes))
    }
}

impl Limits {
    /// Counts the extents of a range that is to be cloned or freed. `count` counts them up to a
    /// number.
    ///
    /// # Errors
    /// The streams up to here may not clone or free as many; an error of `count`.
    pub(super) fn add_extents(&self, count: impl FnOnce(u64) -> Result<u64>) -> Result<()> {
        let Some(work) = &self.work else { return Ok(()) };
        let extents = count(work.extents_left().saturating_add(1))?;
        work.add_extents(extents).map_err(Error::Stream)
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seals a file after a stream of some size.
    fn seal(stream_bytes: u64, file_bytes: u64, hashes_bytes: u64) -> Result<(), Refused> {
        let limits = Limits::default().limit_work(&StreamLimits::default());
        limits.add_stream(stream_bytes);
        limits.add_seal(file_bytes, hashes_bytes)
    }

    #[test]
    fn large_sparse_files_are_sealed_and_huge_ones_are_not() {
        assert!(seal(166, 16 << 30, (16 << 30) / 127).is_ok());
        assert!(seal(1 << 30, 64 << 30, (64 << 30) / 127).is_ok());
        assert!(seal(166, 64 << 30, 0).is_ok());
        assert!(seal(1 << 30, 1 << 40, 0).is_ok());
        assert!(seal(166, 65 << 30, 0).is_err());
        assert!(seal(1 << 40, u64::MAX, 0).is_err());
        assert!(Limits::default().add_seal(u64::MAX, u64::MAX).is_ok());
    }

    #[test]
    fn the_space_for_hashes_is_limited_too() {
        let refused = seal(167, 64 << 30, 64 << 26).unwrap_err();
        assert_eq!(refused.field(), HASHES_BYTES_FIELD);
        assert!(seal(1 << 30, 32 << 30, 32 << 26).is_ok(), "a compressed file");
    }

    #[test]
    fn clones_of_many_extents_pass_and_those_of_a_doubled_file_do_not() {
        // A command of `bytes` clones `extents`, again and again.
        let refused_at = |bytes, extents, most: u32| {
            let limits = Limits::default().limit_work(&StreamLimits::default());
            (1..=most).find(|_| {
                limits.add_stream(bytes);
                limits.add_extents(|_| Ok(extents)).is_err()
            })
        };
        assert_eq!(refused_at(120, 100_000, 5), None, "clones of a fragmented file");
        assert_eq!(refused_at(4 << 20, 100_000, 100_000), None, "with data for each");
        assert_eq!(refused_at(110, 1, 10_000_000), None, "one extent for each command");
        assert_eq!(refused_at(330, 100_000, 100), Some(6));
        let limits = Limits::default().limit_work(&StreamLimits::default());
        let doubled = (0..64).find(|times| {
            limits.add_stream(330);
            limits.add_extents(|most| Ok(most.min(1 << times))).is_err()
        });
        assert_eq!(doubled, Some(19));
        assert!(Limits::default().add_extents(|_| Ok(u64::MAX)).is_ok());
    }

    #[test]
    fn the_streams_of_several_readers_have_one_limit() {
        let seals = StreamLimits::default();
        let seal = || {
            let limits = Limits::default().limit_work(&seals);
            limits.add_stream(167);
            limits.add_seal(1 << 30, 64 << 20)
        };
        assert!(seal().is_ok() && seal().is_ok());
        assert!(seal().is_err());
    }
}
