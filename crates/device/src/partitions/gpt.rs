//! GPT tables: the header in the second sector, or its copy in the last one, and their entries.

use super::{
    GPT_ENTRIES_MAX, PARTITIONS_MAX, Partition, PartitionError, PartitionKind, PartitionTable,
    TableKind, range,
};
use crate::device::Device;
use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderError, read_header_from_arbitrary_device};
use gpt::partition::file_read_partitions;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::iter;
use std::ops::Range;

/// Size of an entry in bytes, the only one that the decoder and Linux accept.
const ENTRY_BYTES: u32 = 128;

/// Reads the table, with the first of some sizes of a sector that gives one.
pub(super) fn read(disk: &dyn Device, sizes: &[u32]) -> Result<PartitionTable, PartitionError> {
    let mut refused = None;
    for bytes in sizes {
        match read_with(disk, *bytes) {
            Ok(table) => return Ok(table),
            // The usual size is the first, and its reasons are the ones to show.
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    Err(refused.unwrap_or(PartitionError::NoTable))
}

fn read_with(disk: &dyn Device, sector_bytes: u32) -> Result<PartitionTable, PartitionError> {
    let unknown = || PartitionError::Damaged {
        primary: format!("sector size: have {sector_bytes}, want 512 or 4096"),
        copy: "not read".to_owned(),
    };
    let size = LogicalBlockSize::try_from(u64::from(sector_bytes)).map_err(|_| unknown())?;
    let primary = match entries(disk, size, None) {
        Ok(table) => return Ok(table),
        Err(refused) => refused,
    };
    // The last whole sector.
    let last = (disk.bytes() / size.as_u64()).saturating_sub(1);
    match entries(disk, size, Some(last)) {
        Ok(mut table) => {
            let note = format!("the table is damaged ({primary}); its copy at the end is used");
            table.notes.push(note);
            Ok(table)
        }
        Err(copy) => Err(PartitionError::Damaged { primary, copy }),
    }
}

/// Reads the table of the header in sector 1, or in sector `copy`. An error is a sentence about
/// where, which field, and what it has and should have.
fn entries(
    disk: &dyn Device,
    size: LogicalBlockSize,
    copy: Option<u64>,
) -> Result<PartitionTable, String> {
    let sector = copy.unwrap_or(1);
    let header = header(disk, size, sector)
        .map_err(|error| format!("header in sector {sector}: {error}"))?;
    let require = |field: &str, have: u64, is_wanted: bool, want: &str| {
        let refused = || format!("header in sector {sector}: {field}: have {have}, want {want}");
        is_wanted.then_some(()).ok_or_else(refused)
    };
    let (at, count) = (header.current_lba, header.num_parts);
    require("own sector", at, at == sector, &sector.to_string())?;
    let entry = header.part_size;
    require("bytes of an entry", entry.into(), entry == ENTRY_BYTES, "128")?;
    let most = format!("at most {GPT_ENTRIES_MAX}");
    require("number of entries", count.into(), count <= GPT_ENTRIES_MAX, &most)?;
    let mut disk = BufReader::new(Disk { disk, at: 0 });
    let entries = file_read_partitions(&mut disk, &header, size)
        .map_err(|error| format!("entries of the header in sector {sector}: {error}"))?;
    let sector_bytes = u32::try_from(size.as_u64()).unwrap_or(u32::MAX);
    let mut table = PartitionTable {
        kind: TableKind::Gpt,
        sector_bytes,
        partitions: Vec::new(),
        reserved: reserved(&header, sector_bytes),
        notes: Vec::new(),
    };
    let mut is_full = false;
    for (number, entry) in entries.into_iter().filter(|(_, entry)| entry.is_used()) {
        let sectors = entry.last_lba.checked_sub(entry.first_lba).and_then(|it| it.checked_add(1));
        let (start, bytes, problem) = range(entry.first_lba, sectors, sector_bytes);
        if table.partitions.len() == PARTITIONS_MAX {
            is_full = true;
            table.reserved.push(start..start.saturating_add(bytes));
            continue;
        }
        let kind = PartitionKind::Gpt {
            kind: entry.part_type_guid.guid.as_hyphenated().to_string(),
            id: entry.part_guid.as_hyphenated().to_string(),
        };
        table.partitions.push(Partition { number, start, bytes, kind, name: entry.name, problem });
    }
    if is_full {
        table.notes.push(format!("only the first {PARTITIONS_MAX} partitions are listed"));
    }
    Ok(table)
}

/// Returns the ranges in front of and behind the sectors that partitions may use.
fn reserved(header: &Header, sector_bytes: u32) -> Vec<Range<u64>> {
    let place = |sector: u64| sector.saturating_mul(sector_bytes.into());
    if header.first_usable > header.last_usable {
        // A table that contradicts itself.
        return iter::once(0..u64::MAX).collect();
    }
    let behind = place(header.last_usable.saturating_add(1));
    let last = header.current_lba.max(header.backup_lba);
    let end = place(last.saturating_add(1)).max(behind);
    vec![0..place(header.first_usable), behind..end]
}

/// Reads the header in a sector. The decoder reads sector 1, so it is shown the sector there.
fn header(disk: &dyn Device, size: LogicalBlockSize, sector: u64) -> Result<Header, HeaderError> {
    let mut bytes = vec![0; size.as_usize() * 2];
    let (_, second) = bytes.split_at_mut(size.as_usize());
    let offset = sector.checked_mul(size.as_u64()).ok_or(HeaderError::Overflow("sector"))?;
    disk.read_at(offset, second).map_err(|error| HeaderError::Io(io::Error::other(error)))?;
    read_header_from_arbitrary_device(&mut io::Cursor::new(bytes), size)
}

/// A disk as a stream, for the decoder.
struct Disk<'a> {
    disk: &'a dyn Device,
    at: u64,
}

impl Read for Disk<'_> {
    fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
        let left = self.disk.bytes().saturating_sub(self.at);
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(memory.len());
        let part = memory.get_mut(..bytes).unwrap_or_default();
        if !part.is_empty() {
            self.disk.read_at(self.at, part).map_err(io::Error::other)?;
        }
        self.at = self.at.saturating_add(bytes as u64);
        Ok(bytes)
    }
}

impl Seek for Disk<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.disk.bytes().checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
