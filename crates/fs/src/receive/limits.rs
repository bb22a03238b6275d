//! [`Limits`]: what ends a receive in the midst of a command, and how much its stream may seal.
//!
//! A seal by fs-verity hashes all bytes of a file, and its holes, too. A stream needs no data for a
//! file of any size, so the time of a receive is not bounded by the size of its stream.

use butternut_format::refused::Refused;
use std::fmt;
use std::sync::Arc;

/// Bytes that a stream may seal, whatever its size: some minutes of hashing.
const SEALED_BYTES: u64 = 64 << 30;
/// Bytes that it may seal for each of its bytes. Compressed data has at most 32; the rest is for
/// clones, and for holes.
const SEALED_PER_BYTE: u64 = 1024;

/// The field of the error for a stream that seals more than [`StreamReader::limit_seals`] allows.
///
/// [`StreamReader::limit_seals`]: super::StreamReader::limit_seals
pub const SEALED_BYTES_FIELD: &str = "bytes of sealed files";

type GoesOn = dyn Fn() -> bool + Send + Sync;

/// The limits of a receive. Without any, it ends with its stream.
#[derive(Clone, Default)]
pub(super) struct Limits {
    goes_on: Option<Arc<GoesOn>>,
    has_limited_seals: bool,
}

impl Limits {
    pub(super) fn end_unless(self, goes_on: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { goes_on: Some(Arc::new(goes_on)), ..self }
    }

    pub(super) fn limit_seals(self) -> Self {
        Self { has_limited_seals: true, ..self }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.goes_on.as_ref().is_none_or(|goes_on| goes_on())
    }

    /// Checks that files of `sealed_bytes` in all may be sealed after `stream_bytes` of a stream.
    pub(super) fn check_seals(&self, sealed_bytes: u64, stream_bytes: u64) -> Result<(), Refused> {
        let most = stream_bytes.saturating_mul(SEALED_PER_BYTE).saturating_add(SEALED_BYTES);
        if self.has_limited_seals && sealed_bytes > most {
            let want = format!("at most {most}, for {stream_bytes} bytes of a stream");
            return Err(Refused::new(SEALED_BYTES_FIELD, sealed_bytes, want));
        }
        Ok(())
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

    #[test]
    fn large_sparse_files_are_sealed_and_huge_ones_are_not() {
        let limits = Limits::default().limit_seals();
        assert!(limits.check_seals(64 << 30, 166).is_ok());
        assert!(limits.check_seals(1 << 40, 1 << 30).is_ok());
        assert!(limits.check_seals(65 << 30, 166).is_err());
        assert!(limits.check_seals(u64::MAX, 1 << 40).is_err());
        assert!(Limits::default().check_seals(u64::MAX, 166).is_ok());
    }
}
