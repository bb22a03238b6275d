//! Power loss at any moment: all files read as at the last commit, or all as at the commit that was
//! running. Data that was written in place in between is not visible if its space was only
//! preallocated.

use crate::script::{Script, Step, same};
use crate::volume::{create, fresh, open, open_device_to_read, state};

use butternut_device::{CrashOptions, Crashes, Device, RecordingDevice};
use butternut_file::FileState;
use butternut_format::inode::InodeFlags;
use std::sync::Arc;

const FIRST_INO: u64 = 300;
const FILES: u64 = 3;

/// The contents of the files at a commit, and the length of the log when it ended.
struct Committed {
    ended: usize,
    contents: Vec<Vec<u8>>,
}

fn check(seed: u64, reach: u64) {
    let seed = seed + std::env::var("BUTTERNUT_SEED").map_or(0, |more| more.parse().unwrap());
    let base = fresh(256);
    {
        let source = open(&base);
        for ino in FIRST_INO..FIRST_INO + FILES {
            create(&source, ino, InodeFlags::default());
        }
        source.forest().commit().unwrap();
    }
    let recorder = Arc::new(RecordingDevice::new(base));
    let commits = write(&recorder, seed, reach);
    let recording = recorder.recording();
    let pivotal = |offset, bytes| bytes == 4096 && (offset == 65_536 || offset == 64 << 20);
    let options = CrashOptions { seed, seeded_per_gap: 6, pivotal };
    let mut crashes = 0;
    for crash in Crashes::new(recording.clone(), options) {
        let crash = crash.unwrap();
        let image: Arc<dyn Device> = Arc::new(crash.image(&recording).unwrap());
        let contents = read(&image);
        let last = commits.iter().rposition(|commit| commit.ended <= crash.position).unwrap();
        let allowed = &commits[last..commits.len().min(last + 2)];
        if !allowed.iter().any(|commit| commit.contents == contents) {
            for (have, want) in contents.iter().zip(&allowed[0].contents) {
                same(have, want, 0);
            }
            panic!("seed {seed}: {:?} at {} mixes commits", crash.fate, crash.position);
        }
        crashes += 1;
    }
    assert!(crashes > 100, "{crashes}");
}

/// Rounds of changes, each committed. Returns the state at each commit.
fn write(recorder: &Arc<RecordingDevice>, seed: u64, reach: u64) -> Vec<Committed> {
    let device: Arc<dyn Device> = Arc::<RecordingDevice>::clone(recorder);
    let source = open(&device);
    let mut contents = vec![Vec::new(); FILES as usize];
    let mut commits = vec![Committed { ended: 0, contents: contents.clone() }];
    let mut files: Vec<FileState> =
        (0..FILES).map(|number| state(&source, FIRST_INO + number)).collect();
    let mut script = Script::new(seed, reach);
    script.is_skipped = |step| matches!(step, Step::Commit);
    for _ in 0..10 {
        for (file, bytes) in files.iter_mut().zip(&mut contents) {
            for _ in 0..8 {
                script.run(&source, file, bytes);
            }
        }
        for file in &mut files {
            file.merge(&mut |_| {}).unwrap();
        }
        source.forest().commit().unwrap();
        commits.push(Committed { ended: recorder.position(), contents: contents.clone() });
    }
    commits
}

fn read(image: &Arc<dyn Device>) -> Vec<Vec<u8>> {
    let source = open_device_to_read(image);
    (0..FILES)
        .map(|number| {
            let file = state(&source, FIRST_INO + number);
            let mut bytes = vec![0xEE; file.size() as usize];
            let read = source.read_at(file.view(), 0, &mut bytes).unwrap();
            assert_eq!(read, bytes.len());
            bytes
        })
        .collect()
}

#[test]
fn small_files_read_as_at_a_commit_after_a_crash() {
    for seed in 0..3 {
        check(seed, 10_000);
    }
}

#[test]
fn larger_files_read_as_at_a_commit_after_a_crash() {
    for seed in 10..12 {
        check(seed, 600_000);
    }
}
