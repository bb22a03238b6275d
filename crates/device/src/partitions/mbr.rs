//! MBR tables: the four records of the first sector, and the chains of extended partitions.

use super::{PARTITIONS_MAX, Partition, PartitionKind, PartitionTable, Problem, TableKind, range};
use crate::device::Device;
use crate::error::DeviceError;
use gpt::disk::LogicalBlockSize;
use gpt::mbr::{PartRecord, ProtectiveMBR};
use std::collections::HashSet;

/// A sector with records has them in its first 512 bytes, whatever its size.
const RECORDS_BYTES: usize = 512;

/// Type of the record that protects a GPT.
pub(super) const GPT_FOLLOWS: u8 = 0xee;

/// The number of the first logical partition.
const LOGICAL_FIRST: u32 = 5;

/// Returns whether a type is that of an extended partition.
pub(super) fn is_extended(kind: u8) -> bool {
    matches!(kind, 0x05 | 0x0f | 0x85)
}

/// Returns the records of the first sector, or `None` if it is no partition table: a filesystem may
/// begin with a boot sector, which has the same signature and no valid records.
pub(super) fn first_sector(disk: &dyn Device) -> Result<Option<[PartRecord; 4]>, DeviceError> {
    let records = records(disk, 0)?;
    let is_valid = |record: &PartRecord| matches!(record.boot_indicator, 0 | 0x80);
    Ok(records.filter(|records| records.iter().all(is_valid) && records.iter().any(is_used)))
}

fn is_used(record: &PartRecord) -> bool {
    record.os_type != 0 && record.lb_size != 0
}

/// Returns the records at an offset, or `None` if there is no signature or the disk ends before.
fn records(disk: &dyn Device, offset: u64) -> Result<Option<[PartRecord; 4]>, DeviceError> {
    let is_inside = offset.checked_add(RECORDS_BYTES as u64).is_some_and(|end| end <= disk.bytes());
    if !is_inside {
        return Ok(None);
    }
    let mut sector = [0; RECORDS_BYTES];
    disk.read_at(offset, &mut sector)?;
    let Ok(decoded) = ProtectiveMBR::from_bytes(&sector, LogicalBlockSize::Lb512) else {
        return Ok(None);
    };
    Ok(Some([0, 1, 2, 3].map(|at| decoded.partition(at).unwrap_or_else(PartRecord::zero))))
}

/// Returns the table whose first sector has these records.
pub(super) fn read(
    disk: &dyn Device,
    sector_bytes: u32,
    first: &[PartRecord; 4],
) -> Result<PartitionTable, DeviceError> {
    let mut table = PartitionTable {
        kind: TableKind::Mbr,
        sector_bytes,
        partitions: Vec::new(),
        reserved: Vec::new(),
        notes: Vec::new(),
    };
    table.reserved.push(0..sector_bytes.into());
    for (number, record) in (1..).zip(first).filter(|(_, record)| is_used(record)) {
        table.partitions.push(partition(number, record, 0, sector_bytes));
    }
    let extended: Vec<Partition> =
        table.partitions.iter().filter(|it| it.kind.is_extended()).cloned().collect();
    for extended in extended {
        read_chain(disk, &extended, &mut table)?;
    }
    Ok(table)
}

fn partition(number: u32, record: &PartRecord, base: u64, sector_bytes: u32) -> Partition {
    let start = base.saturating_add(u64::from(record.lb_start));
    let (start, bytes, problem) = range(start, Some(record.lb_size.into()), sector_bytes);
    let kind = PartitionKind::Mbr(record.os_type);
    Partition { number, start, bytes, kind, name: String::new(), problem }
}

/// Adds the logical partitions of an extended one. The start of a partition counts from the sector
/// of its record, the place of the next sector from the start of the extended partition.
///
/// Those that Linux has get the same numbers (block/partitions/msdos.c): every record with sectors
/// counts, also of type 0; in the third and the fourth place, only inside both the extended
/// partition and the link that led there.
fn read_chain(
    disk: &dyn Device,
    extended: &Partition,
    table: &mut PartitionTable,
) -> Result<(), DeviceError> {
    let sector_bytes = u64::from(table.sector_bytes);
    let end = extended.start.saturating_add(extended.bytes);
    let (mut at, mut link_bytes, mut seen) = (extended.start, extended.bytes, HashSet::new());
    // Progress: no sector is read twice, and their number is bounded.
    for _ in 0..PARTITIONS_MAX {
        if !seen.insert(at) {
            table.notes.push(format!(
                "the chain of logical partitions leads back to its sector at byte {at}"
            ));
            reserve_rest(extended, table);
            return Ok(());
        }
        table.reserved.push(at..at.saturating_add(sector_bytes));
        let Some(records) = records(disk, at)? else {
            // An extended partition without logical ones needs no sector.
            if at != extended.start {
                table.notes.push(format!(
                    "the chain of logical partitions leads to byte {at}, which has no records"
                ));
                reserve_rest(extended, table);
            }
            return Ok(());
        };
        let base = at / sector_bytes;
        let is_logical = |(place, it): &(usize, &PartRecord)| {
            let offset = u64::from(it.lb_start) * sector_bytes;
            let bytes = u64::from(it.lb_size) * sector_bytes;
            let start = at.saturating_add(offset);
            let is_inside = offset.saturating_add(bytes) <= link_bytes
                && start >= extended.start
                && start.saturating_add(bytes) <= end;
            it.lb_size != 0 && !is_extended(it.os_type) && (*place < 2 || is_inside)
        };
        for (_, record) in records.iter().enumerate().filter(is_logical) {
            let known = table.partitions.iter().map(|it| it.number).max().unwrap_or(0);
            let number = known.saturating_add(1).max(LOGICAL_FIRST);
            let mut logical = partition(number, record, base, table.sector_bytes);
            let is_inside = extended.start <= logical.start
                && logical.start.saturating_add(logical.bytes) <= end;
            if !is_inside && logical.problem.is_none() {
                logical.problem = Some(Problem::OutsideExtended { extended: extended.number });
            }
            table.partitions.push(logical);
        }
        let link = records.iter().find(|it| it.lb_size != 0 && is_extended(it.os_type));
        let Some(link) = link else { return Ok(()) };
        // At most 2^32 sectors of 4096 bytes after a start of that size.
        at = extended.start.saturating_add(u64::from(link.lb_start) * sector_bytes);
        link_bytes = u64::from(link.lb_size) * sector_bytes;
    }
    reserve_rest(extended, table);
    let note = "the chain of logical partitions has more than 256 sectors; the rest is left out";
    table.notes.push(note.to_owned());
    Ok(())
}

/// Reserves what the extended partition has beside its logical ones that are listed: others may be
/// lost.
fn reserve_rest(extended: &Partition, table: &mut PartitionTable) {
    let mut listed: Vec<_> = table
        .partitions
        .iter()
        .filter(|it| it.number >= LOGICAL_FIRST && it.problem.is_none())
        .map(Partition::range)
        .collect();
    listed.sort_unstable_by_key(|range| range.start);
    let mut at = extended.start;
    for range in listed {
        if at < range.start {
            table.reserved.push(at..range.start);
        }
        at = at.max(range.end);
    }
    let end = extended.range().end;
    if at < end {
        table.reserved.push(at..end);
    }
}
