//! The library over a device that fails: each write and each flush in turn, once and from then on.
//! The error is told, nothing more is written where it cannot be made good, and what is on the
//! medium is clean and one of the model's states, none older than what was promised.
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
    /// An operation was refused for the device's sake.
    is_told: bool,
    /// There was a fault before the subject was dropped: of what comes then, nobody is told.
    is_struck: bool,
    /// Steps that a sync promised.
    promised: usize,
    trees: Vec<Tree>,
}

fn run(seed: u64, device: Arc<dyn Device>, is_struck: &dyn Fn() -> bool) -> Result<Ended> {
    let mut subject = LibrarySubject::open(device)?;
    let mut run = Run::of(&subject);
    let without = Without { reopen: true, ..Without::default() };
    let mut generator = Generator::new(seed).with_syncs(6).without(without);
    let trees = vec![run.model.tree().closed()];
    let mut ended = Ended { is_told: false, is_struck: false, promised: 0, trees };
    for step in 1..=STEPS {
        // Only a whole sync promises, and has all data that waits written at a known moment.
        // The last step is one too, or an error would find nobody to be told.
        let next = generator.next(&run.model);
        let is_sync = step == STEPS || matches!(next, Operation::Fsync { .. });
        let operation = if is_sync { Operation::Sync } else { next };
        let have = subject.apply(&operation)?;
        let mut model = run.model.clone();
        let want = model.apply(&operation);
        if have.has_failed_with(&[IO, READ_ONLY]) && have != want {
            ended.is_told = true;
            break;
        }
        let found = run.model.accepts_seek(&operation, &have) || have == want;
        if !found && is_struck() {
            // Data that went down behind a write that had returned is lost: the next sync says so.
            let synced = subject.apply(&Operation::Sync)?;
            ended.is_told = matches!(synced, Outcome::Failed(_));
            ensure!(ended.is_told, "step {step}: {operation:?}: {have:?}, and nobody is told why");
            break;
        }
        ensure!(found, "step {step}: {operation:?}: have {have:?}, want {want:?}");
        run.model = model;
        let mut closed = run.model.clone();
        closed.apply(&Operation::Reopen);
        ended.trees.push(closed.tree());
        if operation == Operation::Sync {
            ended.promised = step;
        }
    }
    ended.is_struck = is_struck();
    Ok(ended)
}

fn requests(seed: u64) -> Counts {
    let device = fresh(VOLUME_BYTES, &MkfsOptions::default()).expect("a fresh volume");
    let before = device.counters().now();
    let ended = run(seed, Arc::clone(&device), &|| false).expect("no faults");
    assert!(!ended.is_told, "seed {seed} is told of a fault that is not there");
    device.counters().now() - before
}

/// Says whether the error was told, and whether there was one to be told: how many requests there
/// are depends on what the flusher finds to do at once.
fn fail_one(seed: u64, fault: Fault, when: When) -> Result<(bool, bool)> {
    let medium = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let faulty = Arc::new(FaultyDevice::new(Arc::clone(&medium), seed));
    faulty.add(Rule { when, ..Rule::everywhere(fault) });
    let is_struck = || faulty.fault_counts() != FaultCounts::default();
    let ended = run(seed, Arc::<FaultyDevice>::clone(&faulty), &is_struck)?;
    check_crashed(&medium)?;
    let mut subject = LibrarySubject::open(medium)?;
    let have = subject.tree()?;
    // What failed may have been done as far as its own commit: bytes are looked at by check.
    let is_it = |want: &Tree| names_of(want).difference(&names_of(&have)).is_none();
    let found = ended.trees[ended.promised..].iter().any(is_it);
    ensure!(found, "none of the states from {} on is there", ended.promised);
    Ok((ended.is_told, ended.is_struck))
}

/// A tree without what follows a file's data, which goes down when it likes.
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
                let (is_told, is_struck) = fail_one(seed, fault, when)
                    .unwrap_or_else(|error| panic!("seed {seed}: {fault:?} {when:?}: {error:#}"));
                // A write that failed once may have been tried again, in its parts.
                let is_hideable = fault == Fault::WriteError && when == When::Nth(number);
                let is_right = is_told == is_struck || is_hideable && !is_told;
                assert!(is_right, "seed {seed}: {fault:?} {when:?} is told: {is_told}");
            }
        }
    }
}

#[test]
fn every_write_that_fails_leaves_what_was_promised() {
    fail_each(Fault::WriteError, |counts| counts.writes);
}

#[test]
fn every_flush_that_fails_leaves_what_was_promised() {
    fail_each(Fault::FlushError, |counts| counts.flushes);
}
