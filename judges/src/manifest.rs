//! A manifest: everything that one view of a volume shows, with one entry for each name.
//!
//! Manifests are made by walking a directory ([`crate::walk`]) or the library ([`crate::library`]),
//! and are stored as one JSON object per line, so that they can also be compared by eye.
//!
//! Laws:
//!
//! 1. Paths are bytes, relative to the root of the view; the root is the empty path.
//! 2. Entries are sorted by their path components, so two manifests can be merged in one pass.
//! 3. `twin` is the first path in that order with the same identity (device and inode number). It
//!    shows which names are hard links of one inode, independent of inode numbers.

use anyhow::{Context, Result};
pub use butternut_sim::bytes::Bytes;
pub use butternut_sim::operation::Moment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

/// The unit in which content is hashed, in bytes, so that a difference has an offset.
pub const PIECE_BYTES: u64 = 128 * 1024;

/// Files up to this size, in bytes, are read whole, including their holes.
pub const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// The file type of an entry.
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

/// One name, and everything that is known about its inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: Bytes,
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits, without the file type.
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
    /// The position of this name in the listing of its directory.
    pub order: u32,
    pub target: Option<Bytes>,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Attribute flags as `lsattr` shows them; `None` if the view cannot show them.
    pub flags: Option<u32>,
    /// The content in pieces: the offset of each, and the result of reading it
    /// ([`pieces_to_read`]).
    pub pieces: Vec<(u64, Piece)>,
    /// The data ranges (start, end) that `SEEK_DATA` and `SEEK_HOLE` return.
    pub data: Vec<(u64, u64)>,
}

/// The hash of one piece of content, or the error number of reading it.
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
    /// Sorts the entries, and finds the twins by each entry's identity.
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

/// Compares paths in the order of law 2: by components, a directory before its entries.
pub fn path_order(a: &Bytes, b: &Bytes) -> std::cmp::Ordering {
    a.0.split(|byte| *byte == b'/').cmp(b.0.split(|byte| *byte == b'/'))
}

/// Returns the offsets of the pieces to read: all of a small file; of a large one those with data,
/// their neighbours and the last, because reading terabytes of holes takes too long.
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
    fn directories_sort_before_their_entries_and_longer_names() {
        let order = |a: &[u8], b: &[u8]| path_order(&Bytes(a.to_vec()), &Bytes(b.to_vec()));
        assert!(order(b"a", b"a/b").is_lt());
        assert!(order(b"a/b", b"a-").is_lt());
        assert!(order(b"", b"a").is_lt());
    }
}
