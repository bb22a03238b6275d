//! Preallocated blocks that are written again while their first writeback completes, on a full
//! volume: the second write has reserved space, or is refused.

use crate::volume::{TestVolume, new};
use butternut::device::{Fault, Rule};
use butternut::format::chunk::BlockGroupFlags;
use butternut::{Allocate, ExtentKind, File, Filesystem, MountOptions};
use butternut_mkfs::MkfsOptions;
use std::ops::Range;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 10;
const ROUNDS: u64 = 60;
/// Duration of the first writeback on the device, and the interval around its end in which the
/// second write begins.
const DELAY: Duration = Duration::from_millis(3);
const AROUND_MICROS: u64 = 600;

/// Writes until there is no space for data.
fn fill(fs: &Filesystem) {
    let id = fs.create(fs.root(), b"filler", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let mut at = 0;
    for step in [1 << 20, 64 << 10, 4096] {
        while let Ok(done) = file.write_at(at, &vec![7; step]) {
            at += done as u64;
            if file.sync_all().is_err() || done < step {
                break;
            }
        }
    }
    fs.sync().ok();
}

/// Returns the device range of the first preallocated block of a file.
fn place(fs: &Filesystem, file: &File) -> Range<u64> {
    let first = file.extents(0..BYTES as u64).next().unwrap().unwrap();
    let ExtentKind::Prealloc { logical } = first.kind else { panic!("{first:?}") };
    let holds = |start: u64, bytes: u64| (start..start + bytes).contains(&logical);
    let chunks = fs.inspect().chunks();
    let mut data = chunks.iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    let chunk = data.find(|chunk| holds(chunk.logical.0, chunk.bytes)).unwrap();
    let at = chunk.stripes[0].1 + (logical - chunk.logical.0);
    at..at + 4096
}

#[test]
fn rewriting_a_block_at_the_end_of_its_writeback_has_space_or_is_refused() {
    let volume = TestVolume::of(112 << 20, &MkfsOptions::default());
    let (device, fs) = volume.open_faulty(&MountOptions::default());
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.allocate(0..BYTES as u64, Allocate::Extend).unwrap();
    fs.sync().unwrap();
    fill(&fs);
    for round in 0..ROUNDS {
        file.truncate(0).unwrap();
        fs.sync().unwrap();
        file.allocate(0..BYTES as u64, Allocate::Extend).unwrap();
        fs.sync().unwrap();
        device.add(Rule::at(place(&fs, &file), Fault::Delay(DELAY)));
        file.write_at(0, &vec![1; BYTES]).unwrap();
        let before = device.fault_counts().delays;
        let second = std::thread::scope(|scope| {
            let syncing = scope.spawn(|| file.sync_all());
            while device.fault_counts().delays == before && !syncing.is_finished() {
                std::hint::spin_loop();
            }
            let (delayed, earlier) = (Instant::now(), round * 37 % AROUND_MICROS);
            while delayed.elapsed() + Duration::from_micros(earlier) < DELAY {
                std::hint::spin_loop();
            }
            let second = file.write_at(0, &vec![2; BYTES]);
            syncing.join().unwrap().unwrap();
            second
        });
        device.clear();
        // Accepted bytes must be on the volume; refused ones returned an error.
        let accepted = second.unwrap_or(0);
        file.sync_all().unwrap_or_else(|error| panic!("round {round}: {error}"));
        let mut bytes = vec![0; BYTES];
        file.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..accepted].iter().all(|byte| *byte == 2), "round {round}");
    }
}
