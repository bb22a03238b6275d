//! [`Map`]: where a file has data. A file with holes is a sparse member in version 1.0 of GNU tar's
//! format: its data begins with a list of the ranges, in lines of text, padded to a block.

use std::io::{self, Write};
use std::ops::Range;

use ::tar::EntryType;

use super::super::source::Source;
use super::member::{self, Member};

/// The data of a file.
pub(super) struct Map {
    ranges: Vec<Range<u64>>,
    size: u64,
    /// The list of the ranges; `None` for a file without holes.
    list: Option<Vec<u8>>,
}

impl Map {
    /// Finds the data of a file. Errors of the volume are reported.
    pub(super) fn of(source: Source<'_>, size: u64) -> io::Result<Self> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        source.data_ranges(0..size, |range| {
            ranges.push(range);
            Ok(())
        })?;
        let data = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
        let list = (data < size).then(|| list(&ranges, size));
        Ok(Self { ranges, size, list })
    }

    pub(super) fn data(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The bytes of data of the member.
    pub(super) fn bytes(&self) -> u64 {
        let Some(list) = &self.list else { return self.size };
        let data = self.ranges.iter().map(|range| range.end - range.start);
        data.fold(list.len() as u64, u64::saturating_add)
    }

    pub(super) fn member(&self, name: &[u8]) -> Member {
        if self.list.is_none() {
            return Member::new(name, EntryType::Regular);
        }
        // A program that does not know the format unpacks the list and the data under this name.
        let at = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, last) = name.split_at(at);
        let inside = [directory, b"GNUSparseFile.0/", last].concat();
        Member::new(&inside, EntryType::Regular)
            .record("GNU.sparse.major", b"1")
            .record("GNU.sparse.minor", b"0")
            .record("GNU.sparse.name", name)
            .record("GNU.sparse.realsize", self.size.to_string().as_bytes())
    }

    /// Writes what precedes the data.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(self.list.as_deref().unwrap_or_default())
    }
}

/// Returns the list of the ranges, padded. An empty range ends a file with a hole at its end.
fn list(ranges: &[Range<u64>], size: u64) -> Vec<u8> {
    let end = ranges.last().map_or(0, |range| range.end);
    let behind = (end < size).then_some(size..size);
    let count = ranges.len() + usize::from(behind.is_some());
    let mut list = format!("{count}\n").into_bytes();
    for range in ranges.iter().chain(&behind) {
        list.extend_from_slice(
            format!("{}\n{}\n", range.start, range.end - range.start).as_bytes(),
        );
    }
    let bytes = list.len() as u64;
    // Writes to a vector do not fail.
    member::pad(&mut list, bytes).unwrap_or_default();
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_padded_and_end_at_the_end_of_the_file() {
        let text = |ranges: &[Range<u64>], size| {
            let list = list(ranges, size);
            assert_eq!(list.len() % 512, 0);
            String::from_utf8(list).unwrap().trim_end_matches('\0').to_owned()
        };
        assert_eq!(text(&[], 9), "1\n9\n0\n");
        assert_eq!(text(&[4096..8192, 9000..9001], 9001), "2\n4096\n4096\n9000\n1\n");
        let two = [0..1, 4096..8192];
        assert_eq!(text(&two, 1 << 40), "3\n0\n1\n4096\n4096\n1099511627776\n0\n");
    }
}
