//! The group commit of the log under random thread schedules: its own source, compiled with locks
//! that a scheduler controls, over a device that is a few variables. Threads append and sync while
//! batches fail and transactions are committed. What a sync has acknowledged must be on the device,
//! and every thread must end.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    reason = "the source is that of the library, of which a test uses a part; it panics on \
              failure"
)]

#[path = "../../src/log/group_commit.rs"]
mod group_commit;
#[path = "../../src/log/reason.rs"]
mod reason;
#[path = "../../../sys/tests/scheduled/mod.rs"]
mod sync;

pub(crate) use reason::CommitReason;

use butternut_format::units::Generation;
use group_commit::{GroupCommit, Leader, LogNumber, Waited};
use shuttle::rand::Rng;
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a crash leaves.
#[derive(Clone, Debug, Default)]
struct Device {
    /// The generation of the last commit.
    committed: u64,
    /// Entries that commits have made durable.
    entries: BTreeSet<u32>,
    /// Entries in the log that the superblock names.
    log: BTreeSet<u32>,
}

/// The gate of transactions: members may append, a commit waits until there are none.
#[derive(Debug)]
struct Gate {
    generation: u64,
    committed: u64,
    members: u32,
    is_freezing: bool,
}

struct World {
    gate: Mutex<Gate>,
    changed: Condvar,
    group: GroupCommit<BTreeSet<u32>>,
    /// The lock of the superblock, of batches and commits.
    device: Mutex<Device>,
    /// What a crash would leave now, without a lock: superblocks are written in one step.
    durable: Mutex<Device>,
    committing: Mutex<()>,
    /// Of 8 batches, how many fail.
    failures: u32,
}

const FIRST: u64 = 7;

impl World {
    fn new(failures: u32) -> Arc<Self> {
        let device = Device { committed: FIRST, ..Device::default() };
        let gate = Gate { generation: FIRST + 1, committed: FIRST, members: 0, is_freezing: false };
        Arc::new(Self {
            gate: Mutex::new(gate),
            changed: Condvar::new(),
            group: GroupCommit::new(Generation(FIRST + 1), BTreeSet::new()),
            device: Mutex::new(device.clone()),
            durable: Mutex::new(device),
            committing: Mutex::new(()),
            failures,
        })
    }

    /// Waits for the commit before and joins the transaction, like `Forest::begin_log`.
    fn join(&self) -> u64 {
        let mut gate = self.gate.lock().unwrap();
        while gate.is_freezing || gate.committed + 1 != gate.generation {
            gate = self.changed.wait(gate).unwrap();
        }
        gate.members += 1;
        gate.generation
    }

    fn end(&self) {
        self.gate.lock().unwrap().members -= 1;
        self.changed.notify_all();
    }

    /// Appends an entry and makes it durable.
    fn sync(&self, entry: u32) {
        let generation = self.join();
        let appended = self.group.append(|entries| {
            entries.insert(entry);
            Ok(())
        });
        self.end();
        let logged = appended.and_then(|number| self.sync_entry(generation, number));
        if logged.is_err() {
            // The entry is in the tree, which a commit makes durable.
            self.commit(Some(entry));
        }
        let durable = self.durable.lock().unwrap();
        assert!(durable.entries.contains(&entry) || durable.log.contains(&entry), "{durable:?}");
    }

    fn sync_entry(&self, generation: u64, number: LogNumber) -> Result<(), CommitReason> {
        loop {
            match self.group.wait(Generation(generation), number) {
                Waited::Durable => return Ok(()),
                Waited::Failed(reason) => return Err(reason),
                Waited::Ended => {
                    let mut gate = self.gate.lock().unwrap();
                    while gate.committed < generation {
                        gate = self.changed.wait(gate).unwrap();
                    }
                    return Ok(());
                }
                Waited::Lead(leader) => self.lead(&leader),
            }
        }
    }

    fn lead(&self, leader: &Leader<'_, BTreeSet<u32>>) {
        let device = self.device.lock().unwrap();
        let generation = leader.generation();
        if self.gate.lock().unwrap().committed + 1 != generation.0 {
            return;
        }
        let fails = shuttle::rand::thread_rng().gen_range(0..16);
        let composed = leader.compose(generation, |entries| {
            if fails < self.failures { Err(CommitReason::NoSpace) } else { Ok(entries.clone()) }
        });
        let Some(batch) = composed else { return };
        // The blocks are written here.
        thread::yield_now();
        if (8..8 + self.failures).contains(&fails) {
            leader.fail(batch.generation, CommitReason::WriteFailed);
            return;
        }
        let mut durable = self.durable.lock().unwrap();
        assert_eq!(durable.committed, device.committed, "commits hold the lock");
        assert_eq!(durable.committed + 1, batch.generation.0, "a log is over its last commit");
        assert!(batch.content.is_superset(&durable.log), "a log has what was logged before");
        durable.log.clone_from(&batch.content);
        drop(durable);
        leader.complete(&batch, |_, _| {});
    }

    /// Commits, with an entry that could not be logged.
    fn commit(&self, entry: Option<u32>) {
        let _one = self.committing.lock().unwrap();
        let mut gate = self.gate.lock().unwrap();
        gate.is_freezing = true;
        while gate.members > 0 {
            gate = self.changed.wait(gate).unwrap();
        }
        let generation = gate.generation;
        let mut frozen = self.group.end_transaction(Generation(generation + 1), BTreeSet::new());
        frozen.extend(entry);
        gate.generation += 1;
        gate.is_freezing = false;
        drop(gate);
        self.changed.notify_all();
        let mut device = self.device.lock().unwrap();
        thread::yield_now();
        let mut durable = self.durable.lock().unwrap();
        durable.committed = generation;
        durable.entries.append(&mut frozen);
        durable.log.clear();
        device.clone_from(&durable);
        drop(durable);
        self.gate.lock().unwrap().committed = generation;
        drop(device);
        self.changed.notify_all();
    }
}

/// Runs the test under `rounds` random schedules, and as many with few preemptions.
fn explore(rounds: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), rounds);
    shuttle::check_pct(test, rounds, 3);
}

fn run(failures: u32, threads: u32, commits: u32) {
    let world = World::new(failures);
    let syncs = (0..threads).map(|thread| {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            for entry in 0..2 {
                world.sync(thread * 2 + entry);
            }
        })
    });
    let mut running: Vec<_> = syncs.collect();
    let committer = Arc::clone(&world);
    running.push(thread::spawn(move || {
        for _ in 0..commits {
            committer.commit(None);
        }
    }));
    for thread in running {
        thread.join().unwrap();
    }
    let durable = world.durable.lock().unwrap();
    let synced = durable.entries.union(&durable.log).count();
    assert_eq!(synced, threads as usize * 2, "{durable:?}");
}

#[test]
fn syncs_join_batches() {
    explore(1000, || run(0, 3, 0));
}

#[test]
fn syncs_join_batches_beside_commits() {
    explore(1000, || run(0, 3, 2));
}

#[test]
fn a_batch_that_fails_makes_its_syncs_commit() {
    explore(1000, || run(3, 3, 1));
}
