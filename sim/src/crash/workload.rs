//! Runs seeded workloads on an engine, and compares every crash with the model.
//!
//! After a crash, in this order:
//!
//! 1. The engine's own checker finds no damage in the image as the crash left it.
//! 2. The image opens for writing.
//! 3. It shows the model's state after one step of the allowed range. Data of files that were not
//!    synced is excepted: it may be as after any step since the file's last sync, and a copy may
//!    have grown the file by a part of its whole blocks.
//! 4. More operations agree with that state, and so does the tree after closing and opening the
//!    image again.

use super::{JudgeOptions, Story, StoryBuilder, Verdict, judge};
use crate::content::SECTOR_BYTES;
use crate::generator::{Generator, Without};
use crate::model::Model;
use crate::operation::{Operation, RequestKind, flags};
use crate::run::{Disagreement, Found, Run};
use crate::script;
use crate::shrink::shrink;
use crate::subject::Subject;
use crate::tree::{Kind, Node, Tree};
use anyhow::{Result, bail};
use butternut_device::{CrashImage, Device, RecordingDevice};
use std::fmt::Write;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

/// A filesystem implementation that stores its data on a device.
pub trait Engine: Sync {
    /// Opens what is on the device for writing. Dropping the subject must not write.
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Subject>>;

    /// Checks an image without opening it. The error names the damage.
    fn check(&self, device: &Arc<dyn Device>) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub seed: u64,
    pub steps: usize,
    /// One operation in about so many is a sync.
    pub sync_one_in: u64,
    /// One operation in about so many is a batch, besides those of the usual mix; 0 adds none.
    pub batch_one_in: u64,
    /// One operation in about so many is one of subvolumes or shared extents; 0 for none.
    pub subvolume_one_in: u64,
    /// Operations that are applied after a crash.
    pub going_on: usize,
    pub going_on_one_in: u64,
    pub judging: JudgeOptions,
}

/// A workload that has run.
#[derive(Debug)]
pub struct WorkloadRecord {
    pub script: Vec<Operation>,
    pub story: Story,
    /// State `n`: the model after `n` steps, without open files.
    pub states: Vec<Model>,
    /// The open files without a name in each state. A later operation may link them.
    pub unnamed: Vec<Vec<Node>>,
    /// The syncs of single files.
    pub synced: Vec<FileSync>,
}

/// A sync of a single file, which makes all of its data durable, or that of some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSync {
    pub number: u64,
    /// Numbers of blocks of 4096 bytes. A sync of a part does not cover the file's size.
    pub blocks: Range<u64>,
    /// The position of the log from which on the sync holds.
    pub position: usize,
    /// The state after the sync.
    pub step: usize,
}

impl Workload {
    pub fn generator(&self) -> Generator {
        let generator =
            Generator::new(self.seed).with_syncs(self.sync_one_in).with_batches(self.batch_one_in);
        self.with_subvolumes(generator)
    }

    fn with_subvolumes(&self, generator: Generator) -> Generator {
        match self.subvolume_one_in {
            0 => generator,
            // Open files of a deleted subvolume can be read, but not changed or cloned.
            one_in => {
                let without = Without { files_of_deleted: true, ..Without::default() };
                generator.without(without).with_subvolumes(one_in)
            }
        }
    }

    /// Runs the script, or generates one, over `base`. Every outcome must agree with the model.
    pub fn record(
        &self,
        engine: &dyn Engine,
        base: Arc<dyn Device>,
        mut generator: Generator,
        script: Option<&[Operation]>,
    ) -> Result<Result<WorkloadRecord, Found>> {
        let device = Arc::new(RecordingDevice::new(base));
        let recorded: Arc<dyn Device> = Arc::<RecordingDevice>::clone(&device);
        let mut subject = engine.open(recorded)?;
        let (mut run, mut builder) = (Run::of(&*subject), StoryBuilder::default());
        let mut record = (Vec::new(), vec![run.model.clone()]);
        let (mut synced, mut unnamed) = (Vec::new(), vec![run.model.unnamed()]);
        let steps = script.map_or(self.steps, <[Operation]>::len);
        for step in 0..steps {
            let operation = match script {
                Some(script) => script[step].clone(),
                None => generator.next(&run.model),
            };
            builder.begin_step(&device);
            if let Some(disagreement) = run.step(&mut *subject, &operation)? {
                record.0.push(operation);
                return Ok(Err(Found { seed: self.seed, script: record.0, disagreement }));
            }
            if operation.is_sync() {
                builder.mark_all_durable(&device);
            }
            synced.extend(record_file_syncs(&operation, &run.model, &mut builder, &device));
            let mut state = run.model.clone();
            state.apply(&Operation::Reopen);
            unnamed.push(run.model.unnamed());
            record.0.push(operation);
            record.1.push(state);
        }
        let story = builder.end(&device);
        Ok(Ok(WorkloadRecord { script: record.0, story, states: record.1, unnamed, synced }))
    }

    /// Generates, runs and checks a workload; the script of a failing one is shortened.
    pub fn check(
        &self,
        engine: &dyn Engine,
        base: &Arc<dyn Device>,
        shrinking: Duration,
    ) -> Result<Result<Verdict, Found>> {
        let whole = |script: &[Operation], verdict: &Verdict| Disagreement {
            at: script.len().saturating_sub(1),
            text: verdict.to_string(),
        };
        let attempt = |script: Option<&[Operation]>| -> Result<Result<Verdict, Found>> {
            let record = self.record(engine, Arc::clone(base), self.generator(), script)?;
            Ok(record.and_then(|record| {
                let verdict = self.judge(engine, &record);
                if verdict.failed == 0 {
                    return Ok(verdict);
                }
                let disagreement = whole(&record.script, &verdict);
                Err(Found { seed: self.seed, script: record.script, disagreement })
            }))
        };
        let found = match attempt(None)? {
            Ok(verdict) => return Ok(Ok(verdict)),
            Err(found) => found,
        };
        let (script, disagreement) =
            shrink(found.script, found.disagreement, shrinking, |script| {
                if !are_fair(script, &self.generator()) {
                    return Ok(None);
                }
                Ok(attempt(Some(script))?.err().map(|found| found.disagreement))
            })?;
        Ok(Err(Found { seed: self.seed, script, disagreement }))
    }

    pub fn judge(&self, engine: &dyn Engine, record: &WorkloadRecord) -> Verdict {
        let trees = record.trees();
        judge(&record.story, &self.judging, &|crash, image, allowed| {
            let goes_on = crash.number.is_multiple_of(self.going_on_one_in.max(1));
            let going_on = if goes_on { self.going_on } else { 0 };
            let generator = self.with_subvolumes(Generator::new(self.seed ^ crash.number));
            let place = CrashPlace { position: crash.position, allowed };
            check_crash(engine, image, &place, (record, &trees), (going_on, generator))
                .map_err(|error| format!("{error:#}"))
        })
    }
}

/// Returns whether every batch has a result that does not depend on the order of its requests, and
/// the model knows every outcome.
fn are_fair(script: &[Operation], generator: &Generator) -> bool {
    let mut model = Model::default();
    script.iter().all(|operation| {
        let is_fair = model.is_fair(operation) && generator.allows(operation, &model);
        model.apply(operation);
        is_fair
    })
}

/// Records what an operation that has returned makes durable of single files.
fn record_file_syncs(
    operation: &Operation,
    model: &Model,
    builder: &mut StoryBuilder,
    device: &RecordingDevice,
) -> Vec<FileSync> {
    let (position, step) = (device.position(), builder.steps());
    let whole = 0..u64::MAX;
    if let Operation::Fsync { file } = operation
        && let Some(number) = model.number_of(file)
    {
        builder.mark_names_durable(device, step);
        return vec![FileSync { number, blocks: whole, position, step }];
    }
    let Operation::Batch { requests } = operation else { return Vec::new() };
    let mut synced = Vec::new();
    for request in requests {
        let Some(number) = model.number_of(&request.file) else { continue };
        match request.what {
            // The sync does not cover the other requests of its batch.
            RequestKind::Sync => {
                builder.mark_names_durable(device, step - 1);
                let blocks = whole.clone();
                synced.push(FileSync { number, blocks, position, step: step - 1 });
            }
            RequestKind::Write { offset, bytes, is_durable: true, .. }
                if model.accepts_writes(&request.file) =>
            {
                builder.mark_names_durable(device, step);
                let blocks = offset / 4096..(offset + bytes).div_ceil(4096);
                synced.push(FileSync { number, blocks, position, step });
            }
            RequestKind::Read { .. } | RequestKind::Write { .. } | RequestKind::Append { .. } => {}
        }
    }
    synced
}

impl WorkloadRecord {
    /// Returns the tree of each state.
    pub fn trees(&self) -> Vec<Tree> {
        self.states.iter().map(Model::tree).collect()
    }
}

/// A crash's position in a story, and the states that it may leave.
#[derive(Clone, Debug)]
pub struct CrashPlace {
    pub position: usize,
    pub allowed: RangeInclusive<usize>,
}

impl WorkloadRecord {
    /// Returns which of the allowed states the tree is; the newest, if several are equal.
    pub fn state_of(&self, have: &Tree, place: &CrashPlace, trees: &[Tree]) -> Result<usize> {
        let is_it = |state: &usize| {
            let want = self.adapt(*state, have, place, trees);
            want.difference(have).is_none()
        };
        let newest = place.allowed.clone().rev().find(is_it);
        newest.ok_or_else(|| anyhow::anyhow!("{}", self.nearest(have, place, trees)))
    }

    /// Returns state `state` with the data of files as `have` has it, where that is allowed. Data
    /// that was written and not synced may be written back at any time, so each block of a file,
    /// and its size, may be as after any step since the file's last sync.
    fn adapt(&self, state: usize, have: &Tree, place: &CrashPlace, trees: &[Tree]) -> Tree {
        let mut adapted = trees[state].clone();
        let whole = self.story.steps_durable_with_data(place.position);
        for (path, node) in &mut adapted.nodes {
            let Some(have) = have.nodes.get(path) else { continue };
            if node.kind != Kind::File || node.size == have.size && node.content == have.content {
                continue;
            }
            let own: Vec<&FileSync> = self
                .synced
                .iter()
                .filter(|sync| sync.number == node.number && sync.position <= place.position)
                .collect();
            let oldest_of = |is_it: &dyn Fn(&FileSync) -> bool| {
                let steps = own.iter().filter(|sync| is_it(sync)).map(|sync| sync.step);
                steps.max().unwrap_or(0).max(whole)
            };
            let oldest = oldest_of(&|sync| sync.blocks == (0..u64::MAX));
            // Data that is overwritten in place may be newer than the names, and may be torn.
            let is_in_place = node.flags.is_some_and(|flags| flags & flags::NO_COW != 0);
            let newest = if is_in_place { *place.allowed.end() } else { state };
            let since: Vec<(usize, &Node)> = (oldest..=newest)
                .filter_map(|state| {
                    let mut known = trees[state].nodes.values().chain(&self.unnamed[state]);
                    let found = known.find(|known| known.number == node.number);
                    found.map(|node| (state, node))
                })
                .collect();
            let is_of = |number: u64| {
                let hashes = have.content.block(number);
                let oldest = oldest_of(&|sync| sync.blocks.contains(&number));
                let mut blocks = since
                    .iter()
                    .filter(|(step, _)| *step >= oldest)
                    .map(|(_, node)| node.content.block(number));
                if !is_in_place {
                    return blocks.any(|block| block == hashes);
                }
                let blocks: Vec<_> = blocks.collect();
                (0u64..).zip(hashes).all(|(at, hash)| {
                    let start = number * 4096 + at * SECTOR_BYTES as u64;
                    // Bytes that were written behind the end of the file are not visible in its
                    // last block.
                    let is_cut = start < have.size && have.size < start + SECTOR_BYTES as u64;
                    let is_behind = start >= have.size && hash == 0;
                    let at = usize::try_from(at).expect("in a block");
                    is_cut || is_behind || blocks.iter().any(|block| block[at] == hash)
                })
            };
            let numbers = since.iter().flat_map(|(_, node)| node.content.numbers());
            let is_of_state = since.iter().any(|(_, node)| node.size == have.size);
            if (is_of_state || self.is_size_within_copy(have.size, &since))
                && numbers
                    .chain(have.content.numbers())
                    .all(|number| number * 4096 >= have.size || is_of(number))
            {
                node.size = have.size;
                node.content = have.content.clone();
                node.mtime = None;
            }
        }
        adapted
    }

    /// Returns whether a file may have this size after a part of a copy, of whose states `since` is
    /// a list: a copy shares whole blocks before it writes the rest.
    fn is_size_within_copy(&self, size: u64, since: &[(usize, &Node)]) -> bool {
        since.windows(2).any(|pair| {
            let [(before, old), (after, new)] = pair else { return false };
            let is_copy = matches!(self.script.get(*before), Some(Operation::Copy { .. }));
            let is_whole = size.is_multiple_of(4096);
            *after == before + 1 && is_copy && is_whole && (old.size..=new.size).contains(&size)
        })
    }

    /// Describes how the tree differs from the allowed state that is most like it.
    fn nearest(&self, have: &Tree, place: &CrashPlace, trees: &[Tree]) -> String {
        let mut text = String::from("the tree is none of the allowed states");
        let elsewhere = (0..trees.len()).find(|state| trees[*state].difference(have).is_none());
        if let Some(state) = elsewhere {
            write!(text, ", but state {state}").expect("writing to a string cannot fail");
            return text;
        }
        let differs = |state: usize| {
            let want = self.adapt(state, have, place, trees);
            Some((want.difference(have)?, state))
        };
        let best = place.allowed.clone().filter_map(differs);
        if let Some((difference, state)) = best.min_by_key(|(difference, _)| difference.len()) {
            write!(text, "; the difference from state {state}:\n{difference}")
                .expect("writing to a string cannot fail");
        }
        text
    }
}

fn check_crash(
    engine: &dyn Engine,
    image: CrashImage,
    place: &CrashPlace,
    (record, trees): (&WorkloadRecord, &[Tree]),
    (going_on, generator): (usize, Generator),
) -> Result<()> {
    let image: Arc<dyn Device> = Arc::new(image);
    engine.check(&image).map_err(|error| error.context("the image"))?;
    let mut subject = engine
        .open(Arc::clone(&image))
        .map_err(|error| error.context("the image cannot be opened"))?;
    let have = subject.tree()?;
    let state = record.state_of(&have, place, trees)?;
    let is_whole = trees[state].difference(&have).is_none();
    if going_on == 0 || !is_whole {
        return Ok(());
    }
    let mut run = Run::from_model(record.states[state].clone());
    let mut generator = generator.with_syncs(8);
    let mut script = Vec::new();
    let last = [Operation::Sync, Operation::Reopen];
    for number in 0..going_on + last.len() {
        let operation = match number.checked_sub(going_on) {
            None => generator.next(&run.model),
            Some(number) => last[number].clone(),
        };
        script.push(operation);
        let found = run.step(&mut *subject, &script[number]).map_err(|error| format!("{error:#}"));
        if let Some(text) = found.map_or_else(Some, |found| found.map(|found| found.to_string())) {
            let script = script::to_text(&script);
            bail!("continuing from state {state}: {text}\n{script}");
        }
    }
    drop(subject);
    engine.check(&image).map_err(|error| error.context("the image after more operations"))
}
