//! Tables that lie: every one is refused or listed, in bounded time and memory.

use super::*;
use crate::memory::MemoryDevice;
use ::gpt::GptConfig;
use ::gpt::mbr::ProtectiveMBR;
use std::io::Cursor;

const DISK_BYTES: usize = 1 << 20;

/// A disk with a GPT and two partitions of 64 KiB.
fn gpt_disk() -> Vec<u8> {
    let mut cursor = Cursor::new(vec![0; DISK_BYTES]);
    let sectors = u32::try_from(DISK_BYTES / 512 - 1).unwrap();
    ProtectiveMBR::with_lb_size(sectors).overwrite_lba0(&mut cursor).unwrap();
    let config = GptConfig::new().writable(true);
    let mut disk = config.create_from_device(cursor, None).unwrap();
    for name in ["one", "two"] {
        disk.add_partition(name, 64 << 10, ::gpt::partition_types::LINUX_FS, 0, None).unwrap();
    }
    disk.write().unwrap().into_inner()
}

/// CRC-32 of ISO 3309, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

/// Sets a field of the header in sector 1, and its checksum.
fn set_field(disk: &mut [u8], at: usize, bytes: &[u8]) {
    disk[512 + at..512 + at + bytes.len()].copy_from_slice(bytes);
    disk[512 + 16..512 + 20].fill(0);
    let sum = crc32(&disk[512..512 + 92]);
    disk[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
}

/// Sets bytes of the entries of the first table, and both checksums.
fn set_entry(disk: &mut [u8], at: usize, bytes: &[u8]) {
    disk[1024 + at..1024 + at + bytes.len()].copy_from_slice(bytes);
    let sum = crc32(&disk[1024..1024 + 128 * 128]);
    set_field(disk, 88, &sum.to_le_bytes());
}

fn read(disk: &[u8]) -> Result<PartitionTable, PartitionError> {
    PartitionTable::read(&MemoryDevice::copy_of("disk", disk), None)
}

#[test]
fn a_gpt_is_listed() {
    let table = read(&gpt_disk()).unwrap();
    assert_eq!((table.kind, table.sector_bytes), (TableKind::Gpt, 512));
    assert!(table.notes.is_empty(), "{:?}", table.notes);
    let found = table.find(2).unwrap();
    assert_eq!((found.bytes, found.name.as_str()), (64 << 10, "two"));
    // The first 34 sectors, and the last 33.
    let (front, end) = (34 * 512, DISK_BYTES as u64);
    assert_eq!(table.reserved, [0..front, end - 33 * 512..end]);
    assert_eq!(table.find(3).unwrap_err().to_string(), "partition: have 3, want one of 1, 2");
}

#[test]
fn numbers_of_a_header_are_not_trusted() {
    for (at, bytes, refused) in [
        (80, u32::MAX.to_le_bytes(), "number of entries: have 4294967295, want at most 4096"),
        (80, 4097_u32.to_le_bytes(), "number of entries: have 4097, want at most 4096"),
        (84, 0_u32.to_le_bytes(), "bytes of an entry: have 0, want 128"),
        (84, 256_u32.to_le_bytes(), "bytes of an entry: have 256, want 128"),
        (24, 7_u32.to_le_bytes(), "own sector: have 7, want 1"),
        (88, [0; 4], "partition table CRC mismatch"),
        // The place of the entries: beyond the disk, and beyond 64 bits.
        (75, [1; 4], "entries of the header in sector 1: "),
        (76, [0xff; 4], "entries of the header in sector 1: "),
    ] {
        let mut disk = gpt_disk();
        set_field(&mut disk, at, &bytes);
        let table = read(&disk).unwrap();
        assert!(table.notes[0].contains(refused), "{at}: {:?}", table.notes);
        assert_eq!(table.partitions.len(), 2, "of the copy at the end");
        disk[DISK_BYTES - 512..].fill(0);
        let error = read(&disk).unwrap_err().to_string();
        assert!(error.contains(refused) && error.contains("at the end: header in"), "{error}");
    }
}

#[test]
fn numbers_of_an_entry_are_not_trusted() {
    let check = |first: u64, last: u64| {
        let mut disk = gpt_disk();
        set_entry(&mut disk, 32, &[first.to_le_bytes(), last.to_le_bytes()].concat());
        let table = read(&disk).unwrap();
        (table.partitions[0].problem.clone(), table.partitions[1].problem.clone())
    };
    let second = read(&gpt_disk()).unwrap().partitions[1].start / 512;
    assert_eq!(check(34, 35), (None, None));
    assert_eq!(check(35, 34), (Some(Problem::Range), None));
    assert_eq!(check(36, 34), (Some(Problem::Range), None));
    assert_eq!(check(0, u64::MAX), (Some(Problem::Range), None));
    assert_eq!(check(u64::MAX, u64::MAX), (Some(Problem::Range), None));
    let by = ((1 << 40) + 1) * 512 - (1 << 20);
    assert_eq!(check(34, 1 << 40).0, Some(Problem::PastEnd { by }));
    let overlap = |other| Some(Problem::Overlap { other });
    assert_eq!(check(34, second), (overlap(2), overlap(1)));
}

/// Sets a record of a sector: its type, first sector and number of sectors.
fn set_record(disk: &mut [u8], sector: usize, index: usize, kind: u8, start: u32, sectors: u32) {
    let at = sector * 512 + 446 + index * 16;
    disk[at + 4] = kind;
    disk[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
    disk[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[sector * 512 + 510..sector * 512 + 512].copy_from_slice(b"\x55\xaa");
}

/// Number, first sector and end of each partition, in sectors.
fn sectors(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    let range = |it: &Partition| (it.number, it.start / 512, it.range().end / 512);
    table.partitions.iter().map(range).collect()
}

#[test]
fn logical_partitions_have_their_numbers_and_their_sectors_are_reserved() {
    let mut disk = vec![0; DISK_BYTES];
    set_record(&mut disk, 0, 0, 0x83, 8, 100);
    set_record(&mut disk, 0, 2, 0x05, 200, 1500);
    set_record(&mut disk, 200, 0, 0x83, 8, 32);
    set_record(&mut disk, 200, 1, 0x05, 1000, 64);
    set_record(&mut disk, 1200, 0, 0x83, 8, 16);
    let table = read(&disk).unwrap();
    assert_eq!(sectors(&table), [(1, 8, 108), (3, 200, 1700), (5, 208, 240), (6, 1208, 1224)]);
    assert_eq!(table.reserved, [0, 200, 1200].map(|at| at * 512..(at + 1) * 512));
    assert!(table.notes.is_empty() && table.find(6).is_ok(), "{table:?}");
    // A chain that leads back ends.
    set_record(&mut disk, 1200, 1, 0x05, 0, 64);
    let table = read(&disk).unwrap();
    assert_eq!(table.partitions.len(), 4);
    assert!(table.notes[0].contains("leads back to its sector at byte 102400"), "{table:?}");
    // Other logical partitions may be lost.
    let is_reserved = |sector: u64| table.reserved.iter().any(|it| it.contains(&(sector * 512)));
    assert!(is_reserved(300) && is_reserved(1600) && !is_reserved(210), "{table:?}");
}

#[test]
fn a_gpt_that_contradicts_itself_reserves_everything() {
    let mut disk = gpt_disk();
    set_field(&mut disk, 40, &5000_u64.to_le_bytes());
    let reserved = read(&disk).unwrap().reserved;
    assert_eq!((reserved.len(), reserved[0].clone()), (1, 0..u64::MAX));
}

#[test]
fn partitions_that_are_not_listed_are_reserved() {
    let mut cursor = Cursor::new(vec![0; DISK_BYTES]);
    let all = u32::try_from(DISK_BYTES / 512 - 1).unwrap();
    ProtectiveMBR::with_lb_size(all).overwrite_lba0(&mut cursor).unwrap();
    let config = GptConfig::new().writable(true).change_partition_count(true);
    let mut disk = config.create_from_device(cursor, None).unwrap();
    for _ in 0..300 {
        disk.add_partition("", 512, ::gpt::partition_types::LINUX_FS, 0, None).unwrap();
    }
    let table = read(&disk.write().unwrap().into_inner()).unwrap();
    assert_eq!((table.partitions.len(), table.reserved.len()), (PARTITIONS_MAX, 2 + 44));
    assert_eq!(table.notes, ["only the first 256 partitions are listed"]);
}

#[test]
fn a_table_has_a_bounded_number_of_partitions() {
    // A chain of 300 sectors, each with one logical partition of one sector.
    let mut disk = vec![0; DISK_BYTES];
    let mut record = |sector: usize, index: usize, kind: u8, start: u32, sectors: u32| {
        set_record(&mut disk, sector, index, kind, start, sectors);
    };
    record(0, 0, 0x05, 2, 2000);
    for link in 0..300 {
        record(2 + link * 2, 0, 0x83, 1, 1);
        record(2 + link * 2, 1, 0x05, u32::try_from(link * 2 + 2).unwrap(), 2);
    }
    let table = read(&disk).unwrap();
    assert_eq!(table.partitions.len(), 1 + PARTITIONS_MAX);
    assert_eq!(table.partitions[256].number, 260);
    let end = |range: &std::ops::Range<u64>| range.end;
    let extended = end(&table.partitions[0].range());
    assert_eq!(table.reserved.last().map(end), Some(extended), "the rest of the chain");
    assert!(table.notes[0].contains("more than 256 sectors"), "{:?}", table.notes);
    assert!(table.partitions.iter().all(|it| it.problem.is_none()), "{table:?}");
}

#[test]
fn what_is_no_table_is_none() {
    let none = |disk: &[u8]| matches!(read(disk), Err(PartitionError::NoTable));
    assert!(none(&[]) && none(&[0; 100]) && none(&[0; 4096]));
    let mut boot_sector = [0x17; 512];
    (boot_sector[510], boot_sector[511]) = (0x55, 0xaa);
    assert!(none(&boot_sector));
    boot_sector.fill(0);
    (boot_sector[510], boot_sector[511]) = (0x55, 0xaa);
    assert!(none(&boot_sector), "a table without partitions");
}

#[test]
fn random_changes_never_panic() {
    let (good, mut state) = (gpt_disk(), 0x9e37_79b9_7f4a_7c15_u64);
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let rounds = 500;
    let mut listed = 0;
    for _ in 0..rounds {
        let mut disk = good.clone();
        for _ in 0..=random(6) {
            let byte = u8::try_from(random(256)).unwrap();
            match random(3) {
                0 => set_field(&mut disk, random(92), &[byte]),
                1 => set_entry(&mut disk, random(512), &[byte]),
                _ => disk[446 + random(66)] = byte,
            }
        }
        if let Ok(table) = read(&disk) {
            listed += 1;
            for partition in &table.partitions {
                let found = table.find(partition.number);
                let is_inside = partition.start.checked_add(partition.bytes) <= Some(1 << 20);
                assert!(found.is_err() || is_inside, "{table:?}");
            }
        }
    }
    assert!(listed > rounds / 10, "{listed}");
}

/// Linux, and partx(8), count every record with sectors that is no extended one: also of type 0,
/// and those in the third and fourth place that are inside the extended partition (OS/2).
#[test]
fn logical_partitions_have_the_numbers_that_linux_gives_them() {
    let mut disk = vec![0; DISK_BYTES];
    set_record(&mut disk, 0, 0, 0x05, 200, 1500);
    // Deleted by its type alone.
    set_record(&mut disk, 200, 0, 0x00, 8, 32);
    set_record(&mut disk, 200, 1, 0x05, 1000, 600);
    set_record(&mut disk, 1200, 0, 0x83, 8, 16);
    set_record(&mut disk, 1200, 2, 0x83, 64, 16);
    set_record(&mut disk, 1200, 3, 0x83, 128, 16);
    let table = read(&disk).unwrap();
    let logical: Vec<_> = sectors(&table).into_iter().filter(|it| it.0 > 4).collect();
    assert_eq!(logical, [(5, 208, 240), (6, 1208, 1224), (7, 1264, 1280), (8, 1328, 1344)]);
}
