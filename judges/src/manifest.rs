//! A manifest: everything one view of a volume shows, one entry per name.
//!
//! It is what the judges compare. A manifest is made by walking a directory ([`crate::walk`]) or
//! the library ([`crate::library`]), and is kept as one JSON object per line, so that two of them
//! can also be compared by eye.
//!
//! Laws:
//!
//! 1. Paths are bytes, relative to the root of the view; the root itself is the empty path.
//! 2. Entries stand in the order of their path components, so two manifests merge in one pass.
//! 3. `twin` is the first path in that order with the same identity (device and inode number):
//!    it says which names are hard links of each other without saying what the numbers are.

use anyhow::{Context, Result};
pub use butternut_sim::bytes::Bytes;
pub use butternut_sim::operation::Moment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

/// Content is hashed in pieces of this size, so that a difference names its place.
pub const PIECE_BYTES: u64 = 128 * 1024;

/// Up to this size every byte of a file is read, also in its holes.
pub const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// What kind of thing a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Character,
    Block,
    Fifo,
    Socket,
    Unknown,
}

/// One name and everything known about what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: Bytes,
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits, without the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub nlink: u64,
    pub rdev: (u32, u32),
    pub atime: Moment,
    pub mtime: Moment,
    pub ctime: Moment,
    pub btime: Option<Moment>,
    pub ino: u64,
    pub twin: Bytes,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// The place of this name in its directory's listing.
    pub order: u32,
    pub target: Option<Bytes>,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Attribute flags as `lsattr` reads them; `None` where the view cannot tell.
    pub flags: Option<u32>,
    /// The content by pieces: where each starts, and what reading it gave ([`pieces_to_read`]).
    pub pieces: Vec<(u64, Piece)>,
    /// Ranges (start, end) that seeking calls data.
    pub data: Vec<(u64, u64)>,
}

/// The hash of one piece of content, or the error number that reading it gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Piece {
    Hash(u64),
    Errno(i32),
}

/// All entries of one view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    pub entries: Vec<Entry>,
}

impl Manifest {
    /// Puts the entries in order and finds the twins from each entry's identity.
    pub fn from_identified(mut entries: Vec<(Entry, (u64, u64))>) -> Self {
        entries.sort_by(|a, b| path_order(&a.0.path, &b.0.path));
        let mut first: BTreeMap<(u64, u64), Bytes> = BTreeMap::new();
        let entries = entries
            .into_iter()
            .map(|(mut entry, identity)| {
                entry.twin = first.entry(identity).or_insert_with(|| entry.path.clone()).clone();
                entry
            })
            .collect();
        Self { entries }
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
        let mut out = BufWriter::new(file);
        for entry in &self.entries {
            serde_json::to_writer(&mut out, entry)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    pub fn read(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        let mut entries = Vec::new();
        for line in BufReader::new(file).lines() {
            entries.push(serde_json::from_str(&line?)?);
        }
        Ok(Self { entries })
    }

    pub fn find(&self, path: &[u8]) -> Option<&Entry> {
        let path = Bytes(path.to_vec());
        let slot = self.entries.binary_search_by(|entry| path_order(&entry.path, &path)).ok()?;
        self.entries.get(slot)
    }
}

/// The order of law 2: by components, a directory before what it holds.
pub fn path_order(a: &Bytes, b: &Bytes) -> std::cmp::Ordering {
    a.0.split(|byte| *byte == b'/').cmp(b.0.split(|byte| *byte == b'/'))
}

/// The starts of the pieces that are read: all of them, but in a large file only those that hold
/// data, and their neighbours, and the last. Nobody has the time to read a hole of terabytes.
pub fn pieces_to_read(size: u64, data: &[(u64, u64)]) -> Vec<u64> {
    if size <= WHOLE_BYTES_MAX {
        return (0..size.div_ceil(PIECE_BYTES)).map(|number| number * PIECE_BYTES).collect();
    }
    let last = (size - 1) / PIECE_BYTES;
    let mut numbers = BTreeSet::from([0, last]);
    for (start, end) in data {
        let first = (start / PIECE_BYTES).saturating_sub(1);
        numbers.extend(first..=(end.div_ceil(PIECE_BYTES)).min(last));
    }
    numbers.into_iter().map(|number| number * PIECE_BYTES).collect()
}

/// Hashes one piece of content.
pub fn hash(bytes: &[u8]) -> u64 {
    twox_hash::XxHash64::oneshot(0, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_read_around_its_data_and_at_its_end() {
        assert_eq!(pieces_to_read(PIECE_BYTES + 1, &[]), [0, PIECE_BYTES]);
        let size = 1 << 40;
        let data = [(10 * PIECE_BYTES + 5, 11 * PIECE_BYTES)];
        let numbers: Vec<_> =
            pieces_to_read(size, &data).iter().map(|at| at / PIECE_BYTES).collect();
        assert_eq!(numbers, [0, 9, 10, 11, size / PIECE_BYTES - 1]);
    }

    #[test]
    fn a_directory_stands_before_what_it_holds_and_before_longer_names() {
        let order = |a: &[u8], b: &[u8]| path_order(&Bytes(a.to_vec()), &Bytes(b.to_vec()));
        assert!(order(b"a", b"a/b").is_lt());
        assert!(order(b"a/b", b"a-").is_lt());
        assert!(order(b"", b"a").is_lt());
    }
}
