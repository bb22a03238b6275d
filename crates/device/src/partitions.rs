//! Partition tables: which bytes of a disk are which partition. Reads GPT and MBR tables, with the
//! logical partitions of extended ones; writes none.
//!
//! ```text
//! sector 0     four records; 0xEE in one of them: a GPT follows        -> mbr, or gpt
//! sector 1     header of the GPT, its copy in the last sector          -> gpt
//! a record of type 0x05, 0x0f or 0x85: an extended partition, a chain of sectors like sector 0,
//!              each with one logical partition and the place of the next one
//! ```
//!
//! 1. A table is of another program, or of an enemy: at most [`PARTITIONS_MAX`] partitions are
//!    listed, a GPT has at most [`GPT_ENTRIES_MAX`] entries, a sector of a chain is read once, and
//!    no number of a table is trusted before it was compared with the size of the disk.
//! 2. A partition that is not inside the disk, that overlaps another one, or that is outside of its
//!    extended partition, is listed with a [`Problem`]. [`PartitionTable::find`] refuses it.
//! 3. Partitions have the numbers that Linux gives them.
//! 4. The ranges of the table itself are listed, and those of partitions that law 1 leaves out, for
//!    callers that write beside the partitions. A table that contradicts itself lists everything.
//!
//! The decoders of sectors and entries are those of the crate `gpt`, which panics for sizes of
//! entries other than 128 and allocates what a header says: both are checked before.

mod gpt;
mod mbr;
#[cfg(test)]
mod tests;

use crate::device::Device;
use crate::error::DeviceError;
use crate::file::{FileDevice, OpenDevice};
use butternut_sys::file::Sharing;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Maximum number of partitions that are listed, as in Linux.
pub const PARTITIONS_MAX: usize = 256;

/// Maximum number of entries in a GPT. The usual number is 128.
pub const GPT_ENTRIES_MAX: u32 = 4096;

/// Sizes of a sector that a table may be made for, in bytes.
const SECTOR_SIZES: [u32; 2] = [512, 4096];

/// The partitions of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    pub kind: TableKind,
    /// The unit of the table, in bytes.
    pub sector_bytes: u32,
    /// In the order of their numbers.
    pub partitions: Vec<Partition>,
    /// Ranges in bytes that are not free, besides those of the partitions (law 4).
    pub reserved: Vec<Range<u64>>,
    /// What is wrong with the table as a whole, one sentence each.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    Gpt,
    Mbr,
}

impl TableKind {
    /// Returns the name that sfdisk(8) uses: `gpt` or `dos`.
    pub fn name(self) -> &'static str {
        match self {
            TableKind::Gpt => "gpt",
            TableKind::Mbr => "dos",
        }
    }

    /// Returns the name of the format with its article, for messages.
    pub const fn what(self) -> &'static str {
        match self {
            TableKind::Gpt => "a GPT partition table",
            TableKind::Mbr => "an MBR partition table",
        }
    }
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From 1.
    pub number: u32,
    /// Where it starts, in bytes from the start of the disk.
    pub start: u64,
    /// Its size in bytes.
    pub bytes: u64,
    pub kind: PartitionKind,
    /// The name in a GPT; empty if there is none.
    pub name: String,
    /// Law 2.
    pub problem: Option<Problem>,
}

/// What a table says that a partition is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// The type of an MBR.
    Mbr(u8),
    /// The type and the identifier of a GPT, as UUIDs in lower case.
    Gpt { kind: String, id: String },
}

impl Partition {
    /// Returns its range in bytes, from the start of the disk.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.bytes)
    }
}

impl PartitionKind {
    /// Returns whether it is an extended partition, which only contains others.
    pub fn is_extended(&self) -> bool {
        matches!(self, PartitionKind::Mbr(kind) if mbr::is_extended(*kind))
    }
}

/// Why the bytes of a partition are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("ends {by} bytes past the end of the disk")]
    PastEnd { by: u64 },
    #[error("ends before it starts, or beyond 64 bits")]
    Range,
    #[error("overlaps partition {other}")]
    Overlap { other: u32 },
    #[error("is outside of the extended partition {extended}")]
    OutsideExtended { extended: u32 },
}

/// Why there is no such partition, or no table.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PartitionError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("there is no partition table")]
    NoTable,
    /// Neither the header of a GPT nor its copy can be used.
    #[error("the partition table is damaged: {primary}; the copy at the end: {copy}")]
    Damaged { primary: String, copy: String },
    #[error("partition: have {number}, want one of {}", Numbers(.known))]
    NoPartition { number: u32, known: Vec<u32> },
    #[error("partition {number} {problem}")]
    Unusable { number: u32, start: u64, problem: Problem },
    #[error("partition {number} is an extended partition, which contains others")]
    Extended { number: u32 },
}

/// Formats numbers of partitions; the numbers that Linux gives are at most [`PARTITIONS_MAX`].
struct Numbers<'a>(&'a [u32]);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none: the table is empty");
        }
        for (at, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl PartitionTable {
    /// Reads the table of a disk or of an image file, also if the volumes in it are in use.
    ///
    /// # Errors
    /// The disk cannot be read, has no table, or has one that is damaged.
    pub fn of_path(path: &Path) -> Result<Self, PartitionError> {
        let sharing = Sharing::Unlocked;
        let how = OpenDevice { direct: false, sharing, ..OpenDevice::default() };
        let disk = FileDevice::open(path, &how)?;
        let sector_bytes = disk.block_bytes();
        Self::read(&disk, sector_bytes)
    }

    /// Reads the table of a disk. The unit of the table is the sector of a block device,
    /// `sector_bytes`; for an image file, `None`, it is the size at which a GPT is found, or 512.
    ///
    /// # Errors
    /// As for [`PartitionTable::of_path`].
    pub fn read(disk: &dyn Device, sector_bytes: Option<u32>) -> Result<Self, PartitionError> {
        let Some(records) = mbr::first_sector(disk)? else { return Err(PartitionError::NoTable) };
        let mut table = if records.iter().any(|record| record.os_type == mbr::GPT_FOLLOWS) {
            let sizes = sector_bytes.map_or(SECTOR_SIZES.to_vec(), |bytes| vec![bytes]);
            gpt::read(disk, &sizes)?
        } else {
            mbr::read(disk, sector_bytes.unwrap_or(SECTOR_SIZES[0]), &records)?
        };
        table.find_problems(disk.bytes());
        Ok(table)
    }

    /// Returns the partition with a number.
    ///
    /// # Errors
    /// There is none, it is an extended one, or law 2 applies.
    pub fn find(&self, number: u32) -> Result<&Partition, PartitionError> {
        let found = self.partitions.iter().find(|partition| partition.number == number);
        let found = found.ok_or_else(|| PartitionError::NoPartition {
            number,
            known: self.partitions.iter().map(|partition| partition.number).collect(),
        })?;
        if found.kind.is_extended() {
            return Err(PartitionError::Extended { number });
        }
        match &found.problem {
            Some(problem) => {
                let (start, problem) = (found.start, problem.clone());
                Err(PartitionError::Unusable { number, start, problem })
            }
            None => Ok(found),
        }
    }

    /// Finds what law 2 names.
    fn find_problems(&mut self, disk_bytes: u64) {
        for partition in &mut self.partitions {
            let end = partition.start.saturating_add(partition.bytes);
            if partition.problem.is_none() && end > disk_bytes {
                partition.problem = Some(Problem::PastEnd { by: end - disk_bytes });
            }
        }
        // Extended partitions contain others, and are never used themselves.
        let is_used = |it: &Partition| it.bytes > 0 && !it.kind.is_extended();
        let used: Vec<(u32, u64, u64)> = self
            .partitions
            .iter()
            .filter(|it| is_used(it))
            .map(|it| (it.number, it.start, it.start.saturating_add(it.bytes)))
            .collect();
        for partition in self.partitions.iter_mut().filter(|it| is_used(it)) {
            let (start, end) = (partition.start, partition.start.saturating_add(partition.bytes));
            let other = used.iter().find(|(number, other_start, other_end)| {
                *number != partition.number && *other_start < end && start < *other_end
            });
            if let (None, Some((other, _, _))) = (&partition.problem, other) {
                partition.problem = Some(Problem::Overlap { other: *other });
            }
        }
    }
}

/// Returns the range of a partition in bytes, and what is wrong with numbers that have none.
fn range(start: u64, sectors: Option<u64>, sector_bytes: u32) -> (u64, u64, Option<Problem>) {
    let sector = u64::from(sector_bytes);
    let start = start.checked_mul(sector);
    let bytes = sectors.and_then(|sectors| sectors.checked_mul(sector));
    match (start, bytes) {
        (Some(start), Some(bytes)) if start.checked_add(bytes).is_some() => (start, bytes, None),
        (start, _) => (start.unwrap_or(u64::MAX), 0, Some(Problem::Range)),
    }
}
