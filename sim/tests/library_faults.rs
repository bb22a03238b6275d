//! The library on a device that fails: each write and each flush in turn, once or from then on. The
//! library reports the error and stops writing if it cannot repair it. What is on the medium is
//! free of damage and one of the model's states, none older than the last sync.
//!
//! `BUTTERNUT_LONG=1` fails every request of more seeds.

use anyhow::{Result, ensure};
use butternut_device::{Counts, Device, Fault, FaultCounts, FaultyDevice, Rule, When};
use butternut_mkfs::MkfsOptions;
use butternut_sim::generator::{Generator, Without};
use butternut_sim::library::LibrarySubject;
use butternut_sim::operation::{Operation, Outcome};
use butternut_sim::run::Run;
use butternut_sim::subject::Subject;
use butternut_sim::tree::Tree;
use butternut_sim::volume::{check_crashed, fresh};
use std::sync::Arc;

const VOLUME_BYTES: u64 = 160 << 20;
const STEPS: usize = 60;
const IO: i32 = 5;
const READ_ONLY: i32 = 30;

struct Ended {
    /// An operation reported an error of the device.
    is_reported: bool,
    /// A fault happened before the subject was dropped; later ones are not reported.
    is_struck: bool,
    /// The number of steps that a sync has made durable.
    durable: usize,
    trees: Vec<Tree>,
}

fn run(seed: u64, device: Arc<dyn Device>, is_struck: &dyn Fn() -> bool) -> Result<Ended> {
    let mut subject = LibrarySubject::open(device)?;
    let mut run = Run::of(&subject);
    let without = Without { reopen: true, ..Without::default() };
    let mut generator = Generator::new(seed).with_syncs(6).without(without);
    let trees = vec![run.model.tree().closed()];
    let mut ended = Ended { is_reported: false, is_struck: false, durable: 0, trees };
    for step in 1..=STEPS {
        // Only full syncs, because they write back all dirty data at a known step. The last step is
        // a sync, so that an error is reported.
        let next = generator.next(&run.model);
        let is_sync = step == STEPS || matches!(next, Operation::Fsync { .. });
        let operation = if is_sync { Operation::Sync } else { next };
        let have = subject.apply(&operation)?;
        let mut model = run.model.clone();
        let want = model.apply(&operation);
        if have.has_failed_with(&[IO, READ_ONLY]) && have != want {
            ended.is_reported = true;
            break;
        }
        let found = run.model.accepts_seek(&operation, &have) || have == want;
        if !found && is_struck() {
            // The writeback of an earlier write failed: the next sync reports it.
            let synced = subject.apply(&Operation::Sync)?;
            ended.is_reported = matches!(synced, Outcome::Failed(_));
            ensure!(
                ended.is_reported,
                "step {step}: {operation:?}: {have:?}, but no error is reported"
            );
            break;
        }
        ensure!(found, "step {step}: {operation:?}: have {have:?}, want {want:?}");
        run.model = model;
        let mut closed = run.model.clone();
        closed.apply(&Operation::Reopen);
        ended.trees.push(closed.tree());
        if operation == Operation::Sync {
            ended.durable = step;
        }
    }
    ended.is_struck = is_struck();
    Ok(ended)
}

fn requests(seed: u64) -> Counts {
    let device = fresh(VOLUME_BYTES, &MkfsOptions::default()).expect("a fresh volume");
    let before = device.counters().now();
    let ended = run(seed, Arc::clone(&device), &|| false).expect("no faults");
    assert!(!ended.is_reported, "seed {seed} reports an error without a fault");
    device.counters().now() - before
}

/// Returns whether the error was reported, and whether a fault happened: the number of requests
/// depends on what the flusher finds.
fn fail_one(seed: u64, fault: Fault, when: When) -> Result<(bool, bool)> {
    let medium = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&medium), seed));
    faulty.add(Rule { when, ..Rule::everywhere(fault) });
    let is_struck = || faulty.fault_counts() != FaultCounts::default();
    let ended = run(seed, Arc::<FaultyDevice>::clone(&faulty), &is_struck)?;
    check_crashed(&medium)?;
    let mut subject = LibrarySubject::open(medium)?;
    let have = subject.tree()?;
    // A failed operation may have been committed in part; file data is checked by the checker.
    let is_it = |want: &Tree| names_of(want).difference(&names_of(&have)).is_none();
    let found = ended.trees[ended.durable..].iter().any(is_it);
    ensure!(found, "none of the states from {} on is there", ended.durable);
    Ok((ended.is_reported, ended.is_struck))
}

/// Returns a tree without the attributes that depend on data, which may be written back at any
/// time.
fn names_of(tree: &Tree) -> Tree {
    let mut tree = tree.closed();
    for node in tree.nodes.values_mut() {
        (node.size, node.content, node.mtime) =
            (0, butternut_sim::content::Digest::default(), None);
    }
    tree
}

fn fail_each(fault: Fault, count: fn(&Counts) -> u64) {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    for seed in 0..if is_long { 12 } else { 2 } {
        let requests = count(&requests(seed));
        assert!(requests > 4, "seed {seed}: {requests} requests");
        let spacing = if is_long { 1 } else { requests / 12 + 1 };
        for number in (0..requests).step_by(usize::try_from(spacing).expect("few")) {
            for when in [When::Nth(number), When::From(number)] {
                let (is_reported, is_struck) = fail_one(seed, fault, when)
                    .unwrap_or_else(|error| panic!("seed {seed}: {fault:?} {when:?}: {error:#}"));
                // A write that failed once may have been retried in parts.
                let is_hideable = fault == Fault::WriteError && when == When::Nth(number);
                let is_right = is_reported == is_struck || is_hideable && !is_reported;
                assert!(is_right, "seed {seed}: {fault:?} {when:?} is reported: {is_reported}");
            }
        }
    }
}

#[test]
fn failed_writes_keep_what_was_synced() {
    fail_each(Fault::WriteError, |counts| counts.writes);
}

#[test]
fn failed_flushes_keep_what_was_synced() {
    fail_each(Fault::FlushError, |counts| counts.flushes);
}
