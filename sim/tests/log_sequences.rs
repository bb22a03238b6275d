//! The crashes of all short sequences of operations that end with a sync.
//!
//! Each sequence begins on a copy-on-write copy of a committed volume. Its crashes are the states
//! at all flushes, and seeded subsets and tears of the writes after the last flush. Each is
//! checked, opened for reading or for writing, compared with the rules, and checked again.
//!
//! `BUTTERNUT_LONG=1` runs all sequences of one or two operations and a sync, and a large sample of
//! those of three operations or several syncs; otherwise a sample of both. A failure prints its
//! sequence; `BUTTERNUT_SEQUENCE="..."` runs it with more crashes. `BUTTERNUT_SEED=N` selects
//! another sample.

use anyhow::{Context, Result, ensure};
use butternut::Filesystem;
use butternut_device::{Crash, CrashOptions, Crashes, Device, Fate, Record, RecordingDevice};
use butternut_mkfs::MkfsOptions;
use butternut_sim::random::{Random, mix};
use butternut_sim::sequences::library::{self, no_orphans, observe, options, prepare};
use butternut_sim::sequences::{
    ALL, History, INITIALS, Initial, Prepared, SAMPLED, Sequence, enumerate,
};
use butternut_sim::volume::{check_crashed, fresh, is_super_block};
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const VOLUME_BYTES: u64 = 128 << 20;
const THREADS: usize = 2;
const FAILURES_SHOWN: usize = 12;

/// Which crashes of a sequence are verified, and how.
struct How {
    seeded_per_gap: u32,
    /// One in so many crashes that lose or tear one superblock copy.
    special_one_in: u64,
}

const USUAL: How = How { seeded_per_gap: 1, special_one_in: 8 };
const THOROUGH: How = How { seeded_per_gap: 8, special_one_in: 1 };

/// A committed initial state in memory. It is never written again.
struct Base {
    device: Arc<dyn Device>,
    prepared: Prepared,
}

#[derive(Debug, Default)]
struct Sum {
    sequences: AtomicU64,
    states: AtomicU64,
    failed: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Base {
    fn new(initial: Initial) -> Result<Self> {
        let device = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
        let filesystem = Filesystem::open_devices(vec![Arc::clone(&device)], &options())?;
        let prepared = prepare(initial, &filesystem)?;
        filesystem.close()?;
        Ok(Self { device, prepared })
    }

    /// Runs a sequence and verifies its crashes.
    fn judge(&self, sequence: &Sequence, how: &How, sum: &Sum) -> Result<()> {
        let seed = sequence.to_string().bytes().fold(0, |seed, byte| mix(seed ^ u64::from(byte)));
        let device = Arc::new(RecordingDevice::new(Arc::clone(&self.device)));
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as Arc<dyn Device>];
        let filesystem = Filesystem::open_devices(devices, &options())?;
        let history = library::run(&self.prepared, sequence, &filesystem, &|| device.position())?;
        filesystem.abandon();
        drop(filesystem);
        let recording = device.recording();
        let seeded_per_gap = how.seeded_per_gap;
        let crashes = CrashOptions { seed, seeded_per_gap, pivotal: is_super_block };
        for crash in Crashes::new(recording.clone(), crashes) {
            let crash = crash?;
            if is_repeated(&crash, recording.log()) {
                continue;
            }
            // Other tests of the log verify all fates of a superblock.
            let is_special = !matches!(crash.fate, Fate::All | Fate::None | Fate::Seeded(_));
            if is_special && !mix(seed ^ crash.number).is_multiple_of(how.special_one_in) {
                continue;
            }
            sum.states.fetch_add(1, Ordering::Relaxed);
            let image: Arc<dyn Device> = Arc::new(crash.image(&recording)?);
            let read_only = (crash.number + seed).is_multiple_of(2);
            verify(crash.position, &image, &history, read_only).with_context(|| {
                let Crash { number, position, fate, .. } = &crash;
                let log = recording.log().len();
                format!("crash {number} at {position} of {log} ({fate:?}), read_only {read_only}")
            })?;
        }
        Ok(())
    }
}

/// Whether another crash is the same image with more syncs that have returned: everything is
/// durable up to a flush, and writes follow it. Nor does the state before the first write count.
fn is_repeated(crash: &Crash, log: &[Record]) -> bool {
    let first_flush = log.iter().position(|record| *record == Record::Flush);
    match crash.fate {
        Fate::All => log.get(crash.position + 1).is_some_and(|next| *next != Record::Flush),
        Fate::None => Some(crash.position) == first_flush,
        Fate::Lost(_) | Fate::Alone(_) | Fate::Torn { .. } | Fate::Seeded(_) => false,
    }
}

fn verify(
    position: usize,
    image: &Arc<dyn Device>,
    history: &History,
    read_only: bool,
) -> Result<()> {
    check_crashed(image).context("with its log")?;
    let options = options().read_only(read_only);
    let filesystem = Filesystem::open_devices(vec![Arc::clone(image)], &options)?;
    let notices = filesystem.notices();
    ensure!(notices.is_empty(), "{notices:?}");
    let observed = observe(&filesystem)?;
    history.verify(position, &observed)?;
    if !read_only {
        no_orphans(&filesystem, history, &observed)?;
    }
    filesystem.close()?;
    if read_only {
        let writes = image.counters().now().writes;
        ensure!(writes == 0, "{writes} writes to a volume that is open for reading");
        return Ok(());
    }
    check_crashed(image).context("after the replay")
}

/// Judges sequences on several threads.
fn judge_all(bases: &[Base], sequences: &[Sequence], sum: &Sum) {
    let next = AtomicUsize::new(0);
    let judge_next = || {
        while let Some(sequence) = sequences.get(next.fetch_add(1, Ordering::Relaxed)) {
            let base = bases.iter().find(|base| base.prepared.initial == sequence.initial);
            let base = base.expect("every initial state has a base");
            sum.sequences.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = base.judge(sequence, &USUAL, sum) {
                sum.failed.fetch_add(1, Ordering::Relaxed);
                let mut failures = sum.failures.lock().expect("no thread panics");
                if failures.len() < FAILURES_SHOWN {
                    failures.push(format!("BUTTERNUT_SEQUENCE=\"{sequence}\"\n    {error:#}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(judge_next);
        }
    });
}

fn bases() -> Vec<Base> {
    INITIALS.into_iter().map(|initial| Base::new(initial).expect("an initial state")).collect()
}

/// Returns all sequences of one or two operations and a sync.
fn all_sequences() -> Vec<Sequence> {
    let mut all = Vec::new();
    for initial in INITIALS {
        for shape in ALL {
            enumerate::each(initial, shape, &mut |sequence| all.push(sequence))
                .expect("an initial state");
        }
    }
    all
}

/// Returns a sample of sequences of three operations or several syncs.
fn sampled_sequences(seed: u64, count: usize) -> Vec<Sequence> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    while all.len() < count {
        let (initial, shape) = (*random.pick(&INITIALS), *random.pick(&SAMPLED));
        all.extend(enumerate::sample(initial, shape, random.number()).expect("an initial state"));
    }
    all
}

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn judge_one(text: &str, how: &How) -> Result<()> {
    let sequence: Sequence = text.parse()?;
    Base::new(sequence.initial)?.judge(&sequence, how, &Sum::default()).context(text.to_owned())
}

#[test]
fn every_crash_of_a_short_sequence_keeps_the_rules() {
    if let Ok(text) = std::env::var("BUTTERNUT_SEQUENCE") {
        judge_one(&text, &THOROUGH).unwrap_or_else(|error| panic!("{error:#}"));
        return;
    }
    let bases = bases();
    let begun = Instant::now();
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seed = number_in("BUTTERNUT_SEED").unwrap_or(1);
    let mut sequences = all_sequences();
    let count = sequences.len();
    let sum = Sum::default();
    if !is_long {
        let mut random = Random::new(seed);
        sequences = (0..250).map(|_| random.pick(&sequences).clone()).collect();
    }
    sequences.extend(sampled_sequences(seed, if is_long { 50_000 } else { 350 }));
    judge_all(&bases, &sequences, &sum);
    let Sum { sequences, states, failed, failures } = sum;
    let (sequences, states, failed) =
        (sequences.into_inner(), states.into_inner(), failed.into_inner());
    let failures = failures.into_inner().expect("no thread panics").join("\n");
    let seconds = begun.elapsed().as_secs();
    let text = format!(
        "{failed} of {sequences} sequences ({count} of up to two operations and a sync) failed; \
         {states} states in {seconds} s; seed {seed}\n\
         {failures}"
    );
    // Shown with `--no-capture`, and with a failure.
    writeln!(std::io::stdout(), "{text}").expect("a test can print");
    assert_eq!(failed, 0, "{text}");
    assert!(states >= if is_long { 50_000 } else { 2000 }, "{text}");
}

#[test]
fn a_torn_superblock_of_a_commit_keeps_the_log() {
    judge_one("empty: write bar; fsync bar; mkdir B; fsync-directory /", &THOROUGH)
        .unwrap_or_else(|error| panic!("{error:#}"));
}
