//! Holes of image files, which are filled before a measurement: otherwise copy-on-write would pay
//! for the allocation, and overwriting in place would not.

use anyhow::Result;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of each write that fills a hole.
const FILL_BYTES: usize = 1 << 20;

/// Allocates every hole of an image, and writes it to the device below. `goes_on` is called before
/// each write.
///
/// # Errors
///
/// The image cannot be written, or `goes_on` fails.
pub fn fill(image: &Path, goes_on: impl Fn() -> Result<()>) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    let zeroes = vec![0; FILL_BYTES];
    let image_bytes = file.metadata()?.len();
    let mut from = 0;
    while let Ok(hole) = seek(&file, SeekFrom::Hole(from))
        && hole < image_bytes
    {
        let end = seek(&file, SeekFrom::Data(hole)).unwrap_or(image_bytes);
        let mut at = hole;
        while at < end {
            goes_on()?;
            let bytes = zeroes.len().min(usize::try_from(end - at)?);
            file.write_all_at(&zeroes[..bytes], at)?;
            at += u64::try_from(bytes)?;
        }
        from = end.max(hole + 1);
    }
    Ok(file.sync_all()?)
}
