//! The export of `llvm-cov export -skip-functions`: how often each place of a source file was
//! reached, over all binaries and all instances of a generic function.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Export {
    data: Vec<Binaries>,
}

#[derive(Deserialize)]
struct Binaries {
    files: Vec<Covered>,
}

#[derive(Deserialize)]
struct Covered {
    filename: PathBuf,
    segments: Vec<Segment>,
}

/// Line, column, count, whether it has a count, whether a region begins here, and whether that is
/// a gap.
#[derive(Deserialize)]
struct Segment(u32, u32, u64, bool, bool, bool);

/// The counts of the regions, by the line and the column that they begin at, from 1.
pub struct Counts(HashMap<PathBuf, HashMap<(u32, u32), u64>>);

impl Counts {
    /// Reads an export.
    ///
    /// # Errors
    /// The file cannot be read, or has another form.
    pub fn read(export: &Path) -> Result<Self> {
        let file = BufReader::new(File::open(export)?);
        let export: Export = serde_json::from_reader(file).context("the export of llvm-cov")?;
        let mut all = HashMap::new();
        for covered in export.data.into_iter().flat_map(|binaries| binaries.files) {
            let begins = |segment: &Segment| segment.3 && segment.4 && !segment.5;
            let regions = covered.segments.into_iter().filter(begins);
            let counts = regions.map(|segment| ((segment.0, segment.1), segment.2));
            all.insert(covered.filename, counts.collect());
        }
        Ok(Self(all))
    }

    /// Returns the count of the region that begins at a place of a file.
    pub fn of(&self, file: &Path, line: u32, column: u32) -> Option<u64> {
        self.0.get(file)?.get(&(line, column)).copied()
    }
}
