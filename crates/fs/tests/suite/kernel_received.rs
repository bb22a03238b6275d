//! Compares what Butternut has received of a stream of the kernel with what was sent, entry by
//! entry, as the kernel shows both.
//!
//! The kernel receives the same stream, which decides what the stream says:
//!
//! 1. A stream of the kernel does not restore the mtime of each directory that it changes. The
//!    mtime of a directory is compared where the kernel's receive restores it.
//! 2. After a whole stream, a file has the holes of the source. After an incremental one, which may
//!    have zeros in the place of holes, it has those of the file that the kernel has received, or
//!    more: a hole at the end of a file stays one when the file is extended, and the kernel fills
//!    the block of the old end with zeros.

use crate::kernel_history::describe;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// Compares `ours`, which Butternut has received, with the source and with `kernels`, which the
/// kernel has received.
pub(crate) fn assert_received(source: &Path, ours: &Path, kernels: &Path, is_whole: bool) {
    let (want, have, by_kernel) = (describe(source), describe(ours), describe(kernels));
    for (path, want) in &want {
        let have = have.get(path).map_or("missing", String::as_str);
        let what = ours.join(path);
        // Rule 1.
        let is_directory = want.starts_with("40");
        if is_directory && mtime(want) != mtime(&by_kernel[path]) {
            let without = |text: &str| text.replacen(&format!(" mtime {}", mtime(text)), "", 1);
            assert_eq!(without(have), without(want), "{}", what.display());
        } else {
            assert_eq!(have, want, "{}", what.display());
        }
        // Rule 2.
        let data = data_ranges(&what);
        let kernel = data_ranges(&kernels.join(path));
        let is_in = |range: &Range<u64>| kernel.iter().any(|of| range_is_in(range, of));
        let is_within = data.iter().all(is_in);
        assert!(is_within, "data of {}: {data:?}, the kernel's {kernel:?}", what.display());
        if is_whole {
            assert_eq!(data, data_ranges(&source.join(path)), "data of {}", what.display());
        }
    }
    assert_eq!(have.len(), want.len(), "{}: entries are left over", ours.display());
}

fn range_is_in(range: &Range<u64>, other: &Range<u64>) -> bool {
    other.start <= range.start && range.end <= other.end
}

/// Returns the time of the last modification in a description.
fn mtime(text: &str) -> &str {
    text.split(" mtime ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("")
}

/// Returns the ranges of a file that are no holes.
fn data_ranges(path: &Path) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    if !path.symlink_metadata().unwrap().is_file() {
        return ranges;
    }
    let file = File::open(path).unwrap();
    let mut at = 0;
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        ranges.push(start..at);
    }
    ranges
}
