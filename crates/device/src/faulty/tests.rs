//! Tests of every fault, as the caller and as the medium sees it.

use super::*;
use crate::memory::MemoryDevice;
use std::time::Instant;

const BYTES: u64 = 1 << 20;

/// Returns a medium whose blocks are filled with their numbers, and a faulty device over it.
fn numbered(seed: u64) -> (Arc<MemoryDevice>, FaultyDevice) {
    let image: Vec<u8> = (0..BYTES).map(|at| (at / BLOCK_BYTES % 251) as u8).collect();
    let medium = Arc::new(MemoryDevice::copy_of("medium", &image));
    (Arc::clone(&medium), FaultyDevice::new(medium, seed))
}

fn read(device: &dyn Device, offset: u64, len: usize) -> Result<Vec<u8>, DeviceError> {
    let mut memory = vec![0xee; len];
    device.read_at(offset, &mut memory).map(|()| memory)
}

fn bits_apart(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[test]
fn a_read_error_affects_its_range_until_the_rule_is_removed() {
    let (_, device) = numbered(1);
    let rule = device.add(Rule::at(8192..8193, Fault::ReadError));
    assert!(read(&device, 0, 8192).is_ok());
    assert!(read(&device, 12288, 4096).is_ok());
    let error = read(&device, 4096, 5000).unwrap_err();
    assert_eq!(error.to_string(), "medium: cannot read 5000 bytes at 4096");
    assert_eq!(error.errno(), Errno::IO);
    assert!(device.remove(rule) && !device.remove(rule));
    assert!(read(&device, 4096, 5000).is_ok());
    assert_eq!(device.fault_counts().read_errors, 1);
    assert_eq!(device.counters().now().reads, 4, "a failed read is a read");
}

#[test]
fn the_same_seed_rots_the_same_bits_and_another_seed_others() {
    let rotten = |seed| {
        let (medium, device) = numbered(seed);
        device.add(Rule { range: 0..BYTES, when: When::OneIn(8), fault: Fault::Rot { bits: 3 } });
        let (whole, good) =
            (read(&device, 0, 1 << 20).unwrap(), read(&*medium, 0, 1 << 20).unwrap());
        // Reads in parts of odd size: the same bits must be flipped.
        let mut parts = Vec::new();
        while parts.len() < whole.len() {
            let len = 7777.min(whole.len() - parts.len());
            parts.extend(read(&device, parts.len() as u64, len).unwrap());
        }
        assert!(parts == whole);
        assert!(read(&*medium, 0, 1 << 20).unwrap() == good, "the medium is untouched");
        (bits_apart(&whole, &good), whole)
    };
    let (first, second, other) = (rotten(1), rotten(1), rotten(2));
    assert!(first == second && first.1 != other.1);
    assert!((30..=200).contains(&first.0), "32 of 256 blocks, 3 bits each: {}", first.0);
}

#[test]
fn misdirected_reads_and_writes_access_the_wrong_offset() {
    let (medium, device) = numbered(1);
    device.add(Rule::at(4096..8192, Fault::MisdirectedRead { by: 40960 }));
    let bytes = read(&device, 0, 12288).unwrap();
    assert_eq!((bytes[0], bytes[4096], bytes[8191], bytes[8192]), (0, 11, 11, 2));
    device.clear();
    device.add(Rule::at(0..4096, Fault::MisdirectedWrite { by: 8192 }));
    device.write_at(0, &[200; 4096]).unwrap();
    assert_eq!(read(&*medium, 0, 1).unwrap(), [0]);
    assert_eq!(read(&*medium, 8192, 4096).unwrap(), [200; 4096]);
    let counts = device.fault_counts();
    assert_eq!((counts.misdirected_reads, counts.misdirected_writes), (1, 1));
}

#[test]
fn torn_and_lost_writes_report_success() {
    let (medium, device) = numbered(3);
    let rule = device.add(Rule::everywhere(Fault::TornWrite));
    device.write_at(65536, &[99; 16384]).unwrap();
    let bytes = read(&*medium, 65536, 16384).unwrap();
    let kept = bytes.iter().take_while(|byte| **byte == 99).count();
    assert!(kept < 16384 && kept.is_multiple_of(512));
    assert!(bytes[kept..].iter().all(|byte| *byte != 99));
    device.remove(rule);
    device.add(Rule::everywhere(Fault::LostWrite));
    device.write_at(0, &[99; 4096]).unwrap();
    assert_eq!(read(&*medium, 0, 4096).unwrap(), [0; 4096]);
    let counts = device.fault_counts();
    assert_eq!((counts.torn_writes, counts.lost_writes), (1, 1));
    assert_eq!(device.counters().now().writes, 2, "a lost write is a write");
}

#[test]
fn write_and_flush_errors_change_nothing() {
    let (medium, device) = numbered(1);
    device.add(Rule::at(0..10, Fault::WriteError));
    device.add(Rule::everywhere(Fault::FlushError));
    assert!(device.write_at(0, &[1; 512]).is_err());
    assert!(device.write_at(4096, &[1; 512]).is_ok());
    assert!(device.flush().is_err());
    assert_eq!(read(&*medium, 0, 512).unwrap(), [0; 512]);
    device.clear();
    assert!(device.flush().is_ok());
}

#[test]
fn a_transient_fault_ends() {
    let (_, device) = numbered(1);
    device.add(Rule { range: 0..4096, when: When::Times(2), fault: Fault::ReadError });
    assert!(read(&device, 8192, 10).is_ok());
    let results: Vec<_> = (0..4).map(|_| read(&device, 0, 10).is_ok()).collect();
    assert_eq!(results, [false, false, true, true]);
}

#[test]
fn a_delay_blocks_the_request() {
    let (_, device) = numbered(1);
    device.add(Rule::at(0..4096, Fault::Delay(Duration::from_millis(30))));
    let start = Instant::now();
    read(&device, 0, 10).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(device.fault_counts().delays, 1);
}

#[test]
fn a_held_read_starts_when_its_rule_is_removed() {
    let (_, device) = numbered(1);
    let rule = device.add(Rule::at(0..4096, Fault::HeldRead));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&device, 0, 512).unwrap());
        device.wait_for_held_reads(1);
        device.write_at(0, &[9; 512]).unwrap();
        assert!(device.remove(rule));
        assert_eq!(reader.join().unwrap(), [9; 512]);
    });
    assert_eq!(device.fault_counts().held_reads, 1);
}

#[test]
fn a_held_write_starts_or_fails_when_its_rule_is_removed() {
    let (_, device) = numbered(1);
    for is_failing in [false, true] {
        let rule = device.add(Rule::at(0..4096, Fault::HeldWrite));
        if is_failing {
            device.add(Rule::at(0..4096, Fault::WriteError));
        }
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| device.write_at(0, &[9; 512]));
            device.wait_for_held_writes(1 + u64::from(is_failing));
            assert_ne!(read(&device, 0, 512).unwrap(), [9; 512]);
            assert!(device.remove(rule));
            assert_eq!(writer.join().unwrap().is_err(), is_failing);
        });
        if !is_failing {
            assert_eq!(read(&device, 0, 512).unwrap(), [9; 512]);
            device.write_at(0, &[8; 512]).unwrap();
        }
    }
    assert_eq!(device.fault_counts().held_writes, 2);
}

#[test]
fn the_nth_read_write_and_flush_fail_and_no_other() {
    for nth in 0..4 {
        let (_, device) = numbered(1);
        for fault in [Fault::ReadError, Fault::WriteError, Fault::FlushError] {
            device.add(Rule { when: When::Nth(nth), ..Rule::everywhere(fault) });
        }
        for number in 0..5 {
            let is_nth = number == nth;
            assert_eq!(device.write_at(number * 4096, &[1; 4096]).is_err(), is_nth);
            assert_eq!(read(&device, number * 4096, 4096).is_err(), is_nth);
            assert_eq!(device.flush().is_err(), is_nth);
        }
    }
}

#[test]
fn a_dead_device_stays_dead() {
    let (_, device) = numbered(1);
    device.add(Rule { when: When::From(2), ..Rule::everywhere(Fault::WriteError) });
    let writes = [0u64, 1, 2, 3, 4].map(|at| device.write_at(at * 4096, &[1; 512]).is_ok());
    assert_eq!(writes, [true, true, false, false, false]);
}
