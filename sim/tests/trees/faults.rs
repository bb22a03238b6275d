//! Fails every request in turn. The error is reported, no partial change becomes durable, and the
//! medium is free of damage and holds the items of one commit, none older than the last that
//! returned.

use super::{Items, VOLUME_BYTES, is_long, items, open, step};
use anyhow::{Result, ensure};
use butternut_device::{Counts, Device, Fault, FaultyDevice, Rule, When};
use butternut_mkfs::MkfsOptions;
use butternut_sim::random::Random;
use butternut_sim::volume::{check_crashed, fresh};
use std::sync::Arc;

const STEPS: usize = 30;

/// The end of a workload: the error, the committed items, and those that may be committed.
struct Ended {
    error: Option<anyhow::Error>,
    committed: usize,
    states: Vec<Items>,
}

fn run(seed: u64, device: Arc<dyn Device>) -> Ended {
    let mut ended = Ended { error: None, committed: 0, states: vec![Items::new()] };
    let mut random = Random::new(seed);
    ended.error = (|| {
        let forest = open(device)?;
        for number in 0..STEPS {
            let mut state = ended.states.last().expect("the first one").clone();
            let is_commit = random.one_in(4);
            let done = if is_commit {
                forest.commit().map(drop).map_err(anyhow::Error::from)
            } else {
                step(&forest, &mut random, &mut state)
            };
            if done.is_err() && forest.write_error().is_some() {
                // Nothing is written after the failure, and the cause is kept.
                let again = step(&forest, &mut Random::new(1), &mut Items::new());
                ensure!(again.is_err(), "a change after the volume became read-only");
                ensure!(forest.commit().is_err(), "a commit after the volume became read-only");
            }
            done?;
            ended.states.push(state);
            if is_commit {
                ended.committed = number + 1;
            }
        }
        Ok(())
    })()
    .err();
    ended
}

/// Counts the requests of each kind that a workload makes.
fn requests(seed: u64) -> Result<Counts> {
    let device = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let before = device.counters().now();
    let ended = run(seed, Arc::clone(&device));
    ended.error.map_or(Ok(device.counters().now() - before), Err)
}

fn fail_one(seed: u64, fault: Fault, when: When) -> Result<bool> {
    let medium = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let faulty = FaultyDevice::new(Arc::clone(&medium), seed);
    faulty.add(Rule { when, ..Rule::everywhere(fault) });
    let ended = run(seed, Arc::new(faulty));
    check_crashed(&medium)?;
    let have = items(&open(medium)?)?;
    let found = ended.states[ended.committed..].contains(&have);
    ensure!(found, "after {:?}: the items are those of no allowed commit", ended.error);
    Ok(ended.error.is_some())
}

fn fail_each(seed: u64, fault: Fault, requests: u64) {
    let spacing = if is_long() { 1 } else { requests / 24 + 1 };
    for number in (0..requests).step_by(usize::try_from(spacing).expect("small")) {
        for when in [When::Nth(number), When::From(number)] {
            let is_reported = fail_one(seed, fault, when)
                .unwrap_or_else(|error| panic!("{fault:?} {when:?}: {error:#}"));
            // A read may be served from another copy, and a large write is retried in parts; a
            // failed flush cannot be repaired.
            let is_hideable = fault == Fault::ReadError
                || fault == Fault::WriteError && matches!(when, When::Nth(_));
            assert!(is_reported || is_hideable, "{fault:?} {when:?} of {requests} is not reported");
        }
    }
}

#[test]
fn failed_writes_are_reported_and_leave_a_whole_commit() {
    let counts = requests(1).expect("a workload without faults");
    assert!(counts.writes > 20, "{counts:?}");
    fail_each(1, Fault::WriteError, counts.writes);
}

#[test]
fn failed_flushes_are_reported_and_leave_a_whole_commit() {
    let counts = requests(2).expect("a workload without faults");
    assert!(counts.flushes >= 10, "{counts:?}");
    fail_each(2, Fault::FlushError, counts.flushes);
}

#[test]
fn failed_reads_leave_a_whole_commit() {
    let counts = requests(3).expect("a workload without faults");
    fail_each(3, Fault::ReadError, counts.reads);
}
