//! The crash checker over a small store with two alternating superblocks, each of which names a
//! body that was written before it. The checker must find every omitted flush.

use super::workload::{Engine, Workload};
use super::*;
use crate::model::Model;
use crate::operation::{Operation, Outcome};
use crate::script;
use crate::subject::Subject;
use crate::tree::Tree;
use butternut_device::{Device, MemoryDevice};
use std::sync::Arc;

const DEVICE_BYTES: u64 = 1 << 20;
const SUPER_BYTES: usize = 4096;
const BODY_BYTES: usize = 20_000;
const BODIES: u64 = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The superblock may reach the medium before the body.
    NoFlushBefore,
    /// The commit returns before the device has made it durable.
    NoFlushAfter,
    /// The body that the last superblock names is overwritten.
    BodyInPlace,
    /// A torn superblock is accepted.
    NoChecksum,
}

/// The state is a number; the body is filled with that number.
struct Store<'a> {
    device: &'a dyn Device,
    mistake: Mistake,
    sequence: u64,
}

impl Store<'_> {
    fn commit(&mut self, state: u64) {
        self.sequence += 1;
        let turn = if self.mistake == Mistake::BodyInPlace { 0 } else { self.sequence % 2 };
        let at = BODIES + turn * 65_536;
        let body = state.to_le_bytes().repeat(BODY_BYTES / 8);
        for (number, piece) in (0u64..).zip(body.chunks(7_777)) {
            self.device.write_at(at + number * 7_777, piece).unwrap();
        }
        if self.mistake != Mistake::NoFlushBefore {
            self.device.flush().unwrap();
        }
        let mut block = vec![0; SUPER_BYTES];
        block[..8].copy_from_slice(&self.sequence.to_le_bytes());
        block[4088..4096].copy_from_slice(&at.to_le_bytes());
        let sum = checksum(&block[..8], &block[16..]);
        block[8..16].copy_from_slice(&sum.to_le_bytes());
        self.device.write_at((self.sequence % 2) * SUPER_BYTES as u64, &block).unwrap();
        if self.mistake != Mistake::NoFlushAfter {
            self.device.flush().unwrap();
        }
    }
}

fn checksum(head: &[u8], tail: &[u8]) -> u64 {
    crate::content::read_digest(&[head, tail].concat())
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Returns the newest state on the medium.
fn recover(device: &dyn Device, mistake: Mistake) -> Result<u64, String> {
    let mut newest = (0, 0);
    for turn in 0..2 {
        let mut block = vec![0; SUPER_BYTES];
        device.read_at(turn * SUPER_BYTES as u64, &mut block).unwrap();
        let is_sound = word(&block[8..16]) == checksum(&block[..8], &block[16..]);
        if is_sound || mistake == Mistake::NoChecksum {
            newest = newest.max((word(&block[..8]), word(&block[4088..4096])));
        }
    }
    if newest.0 == 0 {
        return Ok(0);
    }
    let mut body = vec![0; BODY_BYTES];
    device.read_at(newest.1, &mut body).map_err(|error| error.to_string())?;
    let state = word(&body[..8]);
    let is_whole = body.chunks(8).all(|piece| word(piece) == state);
    if is_whole { Ok(state) } else { Err("the body is torn".into()) }
}

fn verdict(mistake: Mistake) -> Verdict {
    let device = RecordingDevice::new(Arc::new(MemoryDevice::new("toy", DEVICE_BYTES)));
    let mut builder = StoryBuilder::default();
    let mut store = Store { device: &device, mistake, sequence: 0 };
    for step in 1..=60u64 {
        builder.begin_step(&device);
        // Two steps of three change memory only.
        if step.is_multiple_of(3) {
            store.commit(step);
            builder.mark_all_durable(&device);
        }
    }
    let record = builder.end(&device);
    let crashes = CrashOptions {
        seed: 1,
        seeded_per_gap: 8,
        pivotal: |offset, _| offset < 2 * SUPER_BYTES as u64,
    };
    let options = JudgeOptions { crashes, threads: 2, one_in: 1 };
    judge(&record, &options, &|_, image, allowed| {
        let state = usize::try_from(recover(&image, mistake)?).unwrap();
        if allowed.contains(&state) { Ok(()) } else { Err(format!("state {state}")) }
    })
}

#[test]
fn a_store_with_all_flushes_survives_every_crash() {
    let verdict = verdict(Mistake::None);
    assert_eq!(verdict.failed, 0, "{verdict}");
    assert!(verdict.states > 400, "{verdict}");
}

#[test]
fn every_omitted_flush_is_found() {
    let mistakes =
        [Mistake::NoFlushBefore, Mistake::NoFlushAfter, Mistake::BodyInPlace, Mistake::NoChecksum];
    for mistake in mistakes {
        let verdict = verdict(mistake);
        assert!(verdict.failed > 0, "{mistake:?}: {verdict}");
        assert!(!verdict.failures.is_empty());
    }
}

/// An engine that stores the script of its operations, and replays it when it is opened.
#[derive(Clone, Copy)]
struct Scripted {
    forgets_flush: bool,
}

struct ScriptSubject {
    device: Arc<dyn Device>,
    how: Scripted,
    model: Model,
    script: Vec<Operation>,
    sequence: u64,
}

impl ScriptSubject {
    fn commit(&mut self) {
        self.sequence += 1;
        let text = script::to_text(&self.script);
        let at = BODIES + (self.sequence % 2) * (4 << 20);
        self.device.write_at(at, text.as_bytes()).unwrap();
        if !self.how.forgets_flush {
            self.device.flush().unwrap();
        }
        let fields = [self.sequence, text.len() as u64, at];
        let fields: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        let sum = checksum(&fields, text.as_bytes());
        let block = [&fields[..], &sum.to_le_bytes()[..]].concat();
        self.device.write_at((self.sequence % 2) * SUPER_BYTES as u64, &block).unwrap();
        self.device.flush().unwrap();
    }
}

impl Subject for ScriptSubject {
    fn apply(&mut self, operation: &Operation) -> anyhow::Result<Outcome> {
        let outcome = self.model.apply(operation);
        self.script.push(operation.clone());
        if operation.makes_durable() {
            self.commit();
        }
        Ok(outcome)
    }

    fn tree(&mut self) -> anyhow::Result<Tree> {
        Ok(self.model.tree())
    }
}

impl Engine for Scripted {
    fn open(&self, device: Arc<dyn Device>) -> anyhow::Result<Box<dyn Subject>> {
        let mut newest = (0, Vec::new());
        let mut believed = 0;
        for turn in 0..2 {
            let mut block = [0; 32];
            device.read_at(turn * SUPER_BYTES as u64, &mut block)?;
            let fields: Vec<u64> = block.chunks(8).map(word).collect();
            let mut text = vec![0; usize::try_from(fields[1])?];
            device.read_at(fields[2], &mut text)?;
            believed = believed.max(fields[0]);
            if fields[0] > newest.0 && fields[3] == checksum(&block[..24], &text) {
                newest = (fields[0], script::parse(std::str::from_utf8(&text)?)?);
            }
        }
        // A missing script that a superblock names is damage, not an older state.
        anyhow::ensure!(newest.0 == believed, "sequence {believed} has no script");
        let mut model = Model::default();
        for operation in &newest.1 {
            model.apply(operation);
        }
        model.apply(&Operation::Reopen);
        let (script, sequence) = (newest.1, newest.0);
        Ok(Box::new(ScriptSubject { device, how: *self, model, script, sequence }))
    }

    fn check(&self, _: &Arc<dyn Device>) -> anyhow::Result<()> {
        Ok(())
    }
}

fn workloads(engine: Scripted) -> Verdict {
    let mut sum = Verdict::default();
    for seed in 0..6 {
        let crashes = CrashOptions {
            seed,
            seeded_per_gap: 6,
            pivotal: |offset, _| offset < 2 * SUPER_BYTES as u64,
        };
        let judging = JudgeOptions { crashes, threads: 2, one_in: 1 };
        let workload = Workload {
            seed,
            steps: 40,
            sync_one_in: 6,
            batch_one_in: 0,
            subvolume_one_in: 0,
            going_on: 10,
            going_on_one_in: 4,
            judging,
        };
        let base: Arc<dyn Device> = Arc::new(MemoryDevice::new("toy", 16 << 20));
        let record = workload.record(&engine, base, workload.generator(), None).unwrap().unwrap();
        sum.merge(workload.judge(&engine, &record));
    }
    sum
}

#[test]
fn workloads_of_a_correct_engine_survive_every_crash() {
    let verdict = workloads(Scripted { forgets_flush: false });
    assert_eq!(verdict.failed, 0, "{verdict}");
    assert!(verdict.states > 300, "{verdict}");
}

#[test]
fn workloads_find_an_omitted_flush() {
    let verdict = workloads(Scripted { forgets_flush: true });
    assert!(verdict.failed > 10, "{verdict}");
}

#[test]
fn failing_workloads_are_shortened() {
    let crashes = CrashOptions { seed: 1, seeded_per_gap: 8, pivotal: |_, _| false };
    let judging = JudgeOptions { crashes, threads: 2, one_in: 1 };
    let workload = Workload {
        seed: 1,
        steps: 40,
        sync_one_in: 6,
        batch_one_in: 0,
        subvolume_one_in: 0,
        going_on: 0,
        going_on_one_in: 1,
        judging,
    };
    let base: Arc<dyn Device> = Arc::new(MemoryDevice::new("toy", 16 << 20));
    let engine = Scripted { forgets_flush: true };
    let found = workload.check(&engine, &base, std::time::Duration::from_mins(1)).unwrap();
    let found = found.expect_err("the omitted flush is found");
    assert!(found.script.len() <= 4, "{found}");
    assert!(found.script.contains(&Operation::Sync), "{found}");
}
