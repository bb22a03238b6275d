//! [`Overlap`]: what a new volume inside a file or device would overwrite, besides what begins at
//! its own start.
//!
//! ```text
//! 0        1M         2M ... 8M             offset         end
//! | table, | filesystem,     | ...           | new volume   |
//! | or filesystem ------------------------------- overlaps |
//! ```
//!
//! 1. A filesystem at the start of the file is found, and one at an offset that partitions commonly
//!    begin at, also without a partition table. It reaches as far as its superblock says, and to
//!    the end of the file if its format is one whose size is not known here.
//! 2. A volume may be a partition, or the front of one, or in a range that no partition has.
//! 3. Beside a table that is damaged, nothing is known to be free.
//! 4. It guards against mistakes. A filesystem at another offset is not found.

use crate::signature::{self, BTRFS, EXT, GPT, Signature, XFS};
use butternut_device::partitions::{Partition, PartitionError, PartitionTable};
use butternut_device::{Device, DeviceError, FileDevice, OpenDevice, Sharing};
use butternut_format::super_block::{RawSuperBlock, SUPER_BLOCK_BYTES};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use zerocopy::FromBytes;

/// The first partition began here when disks had cylinders, in bytes.
const OLD_START: u64 = 63 * 512;
/// Partitions begin at multiples of this, in bytes.
const ALIGNMENT: u64 = 1 << 20;
/// Number of multiples that are looked at (law 1).
const ALIGNED_STARTS: u64 = 8;
/// Offset of the superblock of btrfs.
const SUPER_AT: usize = 64 << 10;

/// What a range overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlap {
    Filesystem {
        signature: Signature,
        /// In bytes.
        range: Range<u64>,
    },
    Partition {
        /// Name of the table's format, with its article.
        table: &'static str,
        number: u32,
        /// In bytes.
        range: Range<u64>,
    },
    /// The partition table itself.
    Table { table: &'static str },
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filesystem { signature, range } => {
                write!(f, "{signature}, bytes {} to {}", range.start, range.end)
            }
            Self::Partition { table, number, range } => {
                write!(f, "partition {number} of {table}, bytes {} to {}", range.start, range.end)
            }
            Self::Table { table } => f.write_str(table),
        }
    }
}

impl Overlap {
    /// Returns what a new volume in `range` would overwrite of the file or device at `path`. With
    /// `own`, a volume in that range grows to `range`: what is in it already belongs to it.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn find(
        path: &Path,
        range: &Range<u64>,
        own: Option<&Range<u64>>,
    ) -> Result<Option<Self>, DeviceError> {
        let sharing = Sharing::Unlocked;
        let how = OpenDevice { direct: false, sharing, ..OpenDevice::default() };
        let disk = FileDevice::open(path, &how)?;
        let table = match range.start {
            0 => None,
            _ => Some(PartitionTable::read(&disk, disk.block_bytes())),
        };
        // What the table names as a partition is one, also where the disk was a volume before.
        let is_front = |it: &&Partition| {
            let is_used = it.problem.is_none() && !it.kind.is_extended();
            is_used && it.start == range.start && range.end <= it.range().end
        };
        let listed = table.as_ref().and_then(|table| table.as_ref().ok());
        let is_listed = listed.is_some_and(|table| table.partitions.iter().any(|it| is_front(&it)));
        // What begins where a new volume begins is found in the volume's own range.
        let is_own = |at: &u64| {
            *at == range.start
                || own.is_some_and(|own| own.contains(at))
                || is_listed && *at < range.start
        };
        if let Some(found) = Self::with_filesystem(&disk, range, &is_own)? {
            return Ok(Some(found));
        }
        let Some(table) = table else { return Ok(None) };
        match table {
            Ok(table) => Ok(Self::with_table(&table, range)),
            Err(PartitionError::Device(error)) => Err(error),
            // Law 3: only a GPT has what can be damaged.
            Err(PartitionError::Damaged { .. }) => Ok(Some(Self::Table { table: GPT })),
            // A GPT without the record in sector 0 that protects it is none for other programs.
            Err(
                PartitionError::NoTable
                | PartitionError::NoPartition { .. }
                | PartitionError::Unusable { .. }
                | PartitionError::Extended { .. },
            ) => {
                let found = signature::marked(&signature::front(&disk, 0)?);
                let is_gpt = found.is_some_and(|found| found.what == GPT);
                Ok(is_gpt.then_some(Self::Table { table: GPT }))
            }
        }
    }

    fn with_filesystem(
        disk: &dyn Device,
        range: &Range<u64>,
        is_own: &dyn Fn(&u64) -> bool,
    ) -> Result<Option<Self>, DeviceError> {
        let bytes = disk.bytes();
        let aligned = (1..=ALIGNED_STARTS).map(|number| number * ALIGNMENT);
        let starts = [0, OLD_START].into_iter().chain(aligned).filter(|at| !is_own(at));
        for start in starts.take_while(|start| *start < bytes) {
            let front = signature::front(disk, start)?;
            let Some(signature) = signature::marked(&front) else { continue };
            let end = match end_of(&signature, &front) {
                Some(len) => start.saturating_add(len),
                None if start == 0 && !signature.is_partition_table() => bytes,
                // Not a known size: too little to go on.
                None => continue,
            };
            if start < range.end && range.start < end {
                return Ok(Some(Self::Filesystem { signature, range: start..end }));
            }
        }
        Ok(None)
    }

    /// Law 2.
    fn with_table(table: &PartitionTable, range: &Range<u64>) -> Option<Self> {
        let overlaps = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        let what = table.kind.what();
        // Extended partitions only contain others.
        for partition in table.partitions.iter().filter(|it| !it.kind.is_extended()) {
            let (number, taken) = (partition.number, partition.range());
            let is_inside = range.start == taken.start && range.end <= taken.end;
            if overlaps(&taken) && !is_inside {
                return Some(Self::Partition { table: what, number, range: taken });
            }
        }
        table.reserved.iter().any(overlaps).then_some(Self::Table { table: what })
    }
}

/// Returns the size of a filesystem in bytes, if its format is one whose superblock is read here.
fn end_of(signature: &Signature, front: &[u8]) -> Option<u64> {
    match signature.what {
        BTRFS => {
            let block = front.get(SUPER_AT..SUPER_AT + SUPER_BLOCK_BYTES)?;
            let raw = RawSuperBlock::ref_from_bytes(block).ok()?;
            Some(raw.dev_item.total_bytes.get())
        }
        EXT => {
            let block = front.get(1024..)?;
            let (log_size, group) = (le32(block, 24), le32(block, 88) >> 16);
            let is_64bit = le32(block, 96) & 0x80 != 0;
            let high = if is_64bit { le32(block, 336) } else { 0 };
            let blocks = (u64::from(high) << 32) | u64::from(le32(block, 4));
            // Copies of the superblock name the group that they are in.
            (group == 0 && log_size <= 6).then(|| blocks.saturating_mul(1024 << log_size))
        }
        XFS => {
            let block_bytes = u64::from(le32(front, 4).swap_bytes());
            Some(le64(front, 8).swap_bytes().saturating_mul(block_bytes))
        }
        _ => None,
    }
}

/// Returns the number at an offset; 0 behind the end.
fn le32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map_or(0, u32::from_le_bytes)
}

/// Returns the number at an offset; 0 behind the end.
fn le64(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_device::partitions::{Partition, PartitionKind, TableKind};

    fn with(partitions: &[Range<u64>], range: Range<u64>) -> Option<String> {
        let partition = |(number, range): (u32, &Range<u64>)| Partition {
            number,
            start: range.start,
            bytes: range.end - range.start,
            kind: PartitionKind::Gpt { kind: String::new(), id: String::new() },
            name: String::new(),
            problem: None,
        };
        let table = PartitionTable {
            kind: TableKind::Gpt,
            sector_bytes: 1,
            partitions: (1..).zip(partitions).map(partition).collect(),
            reserved: vec![0..10, 90..100],
            notes: Vec::new(),
        };
        Overlap::with_table(&table, &range).map(|found| found.to_string())
    }

    #[test]
    fn a_volume_may_be_a_partition_or_its_front_or_in_free_space() {
        let both = [20..40, 50..60];
        for range in [20..40, 20..39, 50..60, 40..50, 10..20, 60..90, 100..200] {
            assert_eq!(with(&both, range.clone()), None, "{range:?}");
        }
        let first = "partition 1 of a GPT partition table, bytes 20 to 40";
        for range in [20..41, 21..40, 15..200, 39..50] {
            assert_eq!(with(&both, range.clone()).as_deref(), Some(first), "{range:?}");
        }
        for range in [5..20, 60..91] {
            assert_eq!(with(&both, range).as_deref(), Some("a GPT partition table"));
        }
    }
}
