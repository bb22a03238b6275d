//! [`Limits`]: what ends a receive in the midst of a command, and how much its stream may seal.
//!
//! A seal by fs-verity hashes all bytes of a file, and its holes, too, and the volume has a tree of
//! the hashes, of up to a sixteenth of the file. A stream needs no data for a file of any size, so
//! neither the time of a receive nor the space is bounded by the size of its stream.

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

/// The field of the error for streams whose sealed files have more bytes than a [`SealLimits`]
/// allows.
pub const SEALED_BYTES_FIELD: &str = "bytes of sealed files";
/// The same for more bytes of hashes.
pub const HASHES_BYTES_FIELD: &str = "bytes of hashes of sealed files";

type GoesOn = dyn Fn() -> bool + Send + Sync;

/// Limits how much streams may seal by fs-verity, in proportion to their size. Its clones count
/// together, so the streams of several readers have one limit
/// ([`StreamReader::limit_seals`](super::StreamReader::limit_seals)).
#[derive(Clone, Debug, Default)]
pub struct SealLimits(Arc<Totals>);

/// The bytes that were counted of all streams.
#[derive(Debug, Default)]
struct Totals {
    streams: AtomicU64,
    sealed: AtomicU64,
    hashes: AtomicU64,
}

/// The limits of a receive. Without any, it ends with its stream.
#[derive(Clone, Default)]
pub(super) struct Limits {
    goes_on: Option<Arc<GoesOn>>,
    seals: Option<SealLimits>,
}

impl SealLimits {
    fn add_stream(&self, bytes: u64) {
        add(&self.0.streams, bytes);
    }

    fn add_seal(&self, file_bytes: u64, hashes_bytes: u64) -> Result<(), Refused> {
        let stream_bytes = self.0.streams.load(Ordering::Relaxed);
        let check = |field, have: u64, base: u64, per_byte: u64| {
            let most = stream_bytes.saturating_mul(per_byte).saturating_add(base);
            if have <= most {
                return Ok(());
            }
            let want = format!("at most {most}, for {stream_bytes} bytes of streams");
            Err(Refused::new(field, have, want))
        };
        let sealed_bytes = add(&self.0.sealed, file_bytes);
        check(SEALED_BYTES_FIELD, sealed_bytes, SEALED_BYTES, SEALED_PER_BYTE)?;
        let hashes_bytes = add(&self.0.hashes, hashes_bytes);
        check(HASHES_BYTES_FIELD, hashes_bytes, HASHES_BYTES, HASHES_PER_BYTE)
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

    pub(super) fn limit_seals(self, seals: SealLimits) -> Self {
        Self { seals: Some(seals), ..self }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.goes_on.as_ref().is_none_or(|goes_on| goes_on())
    }

    /// Counts a command of a stream.
    pub(super) fn add_stream(&self, bytes: u64) {
        if let Some(seals) = &self.seals {
            seals.add_stream(bytes);
        }
    }

    /// Counts a file that is to be sealed, with a tree of hashes of `hashes_bytes`.
    ///
    /// # Errors
    /// The streams up to here may not seal as much.
    pub(super) fn add_seal(&self, file_bytes: u64, hashes_bytes: u64) -> Result<(), Refused> {
        self.seals.as_ref().map_or(Ok(()), |seals| seals.add_seal(file_bytes, hashes_bytes))
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
        let limits = Limits::default().limit_seals(SealLimits::default());
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
    fn the_streams_of_several_readers_have_one_limit() {
        let seals = SealLimits::default();
        let seal = || {
            let limits = Limits::default().limit_seals(seals.clone());
            limits.add_stream(167);
            limits.add_seal(1 << 30, 64 << 20)
        };
        assert!(seal().is_ok() && seal().is_ok());
        assert!(seal().is_err());
    }
}
