//! Seeded workloads over an engine, and every crash of them held to the model.
//!
//! What must hold after a crash, in this order:
//!
//! 1. the engine's own checker finds the image clean, as it lies there;
//! 2. it opens, for writing;
//! 3. what it shows is the model after some step of the allowed range, whole; but for the bytes of
//!    files that nobody has synced, which may be as they were after any step since their last sync;
//! 4. and it goes on from there: more operations agree with that model, and so does what is there
//!    after closing and opening it once more.

use super::{JudgeOptions, Story, Telling, Verdict, judge};
use crate::content::SECTOR_BYTES;
use crate::generator::Generator;
use crate::model::Model;
use crate::operation::{Asked, Operation, flags};
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

/// Something that keeps a filesystem on a device.
pub trait Engine: Sync {
    /// Opens what is on the device, for writing. Dropping the subject must not write.
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Subject>>;

    /// Looks at an image without opening it; the error says what is wrong.
    fn check(&self, device: &Arc<dyn Device>) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub seed: u64,
    pub steps: usize,
    /// A sync after so many steps, about.
    pub sync_one_in: u64,
    /// A batch after so many, if not 0; some there are in the usual mix.
    pub batch_one_in: u64,
    /// Operations that go on after a crash, for one crash in so many.
    pub going_on: usize,
    pub going_on_one_in: u64,
    pub judging: JudgeOptions,
}

/// A workload that has run.
#[derive(Debug)]
pub struct Told {
    pub script: Vec<Operation>,
    pub story: Story,
    /// State `n`: the model after `n` steps, with nothing open.
    pub states: Vec<Model>,
    /// Of each state, the open files without a name, which may be given one later.
    pub unnamed: Vec<Vec<Node>>,
    /// Which file was synced by which step.
    pub synced: Vec<FileSync>,
}

/// A file that was synced alone: its bytes are promised, or those of some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSync {
    pub number: u64,
    /// Numbers of blocks of 4096 bytes; a part of them promises nothing of the file's end.
    pub blocks: Range<u64>,
    /// From this position of the log on.
    pub position: usize,
    /// The state after the sync.
    pub step: usize,
}

impl Workload {
    pub fn generator(&self) -> Generator {
        Generator::new(self.seed).with_syncs(self.sync_one_in).with_batches(self.batch_one_in)
    }

    /// Runs a script, or generates one, over `base`. It must agree with the model all along.
    pub fn tell(
        &self,
        engine: &dyn Engine,
        base: Arc<dyn Device>,
        mut generator: Generator,
        script: Option<&[Operation]>,
    ) -> Result<Result<Told, Found>> {
        let device = Arc::new(RecordingDevice::new(base));
        let recorded: Arc<dyn Device> = Arc::<RecordingDevice>::clone(&device);
        let mut subject = engine.open(recorded)?;
        let (mut run, mut telling) = (Run::of(&*subject), Telling::default());
        let mut told = (Vec::new(), vec![run.model.clone()]);
        let (mut synced, mut unnamed) = (Vec::new(), vec![run.model.unnamed()]);
        let steps = script.map_or(self.steps, <[Operation]>::len);
        for step in 0..steps {
            let operation = match script {
                Some(script) => script[step].clone(),
                None => generator.next(&run.model),
            };
            telling.begin_step(&device);
            if let Some(disagreement) = run.step(&mut *subject, &operation)? {
                told.0.push(operation);
                return Ok(Err(Found { seed: self.seed, script: told.0, disagreement }));
            }
            if operation.is_sync() {
                telling.promise(&device);
            }
            synced.extend(promises(&operation, &run.model, &mut telling, &device));
            let mut state = run.model.clone();
            state.apply(&Operation::Reopen);
            unnamed.push(run.model.unnamed());
            told.0.push(operation);
            told.1.push(state);
        }
        let story = telling.end(&device);
        Ok(Ok(Told { script: told.0, story, states: told.1, unnamed, synced }))
    }

    /// Generates, runs and judges; a script whose crashes break promises is made short.
    pub fn hold(
        &self,
        engine: &dyn Engine,
        base: &Arc<dyn Device>,
        shrinking: Duration,
    ) -> Result<Result<Verdict, Found>> {
        let whole = |script: &[Operation], verdict: &Verdict| Disagreement {
            at: script.len().saturating_sub(1),
            text: verdict.to_string(),
        };
        let look = |script: Option<&[Operation]>| -> Result<Result<Verdict, Found>> {
            let told = self.tell(engine, Arc::clone(base), self.generator(), script)?;
            Ok(told.and_then(|told| {
                let verdict = self.judge(engine, &told);
                if verdict.failed == 0 {
                    return Ok(verdict);
                }
                let disagreement = whole(&told.script, &verdict);
                Err(Found { seed: self.seed, script: told.script, disagreement })
            }))
        };
        let found = match look(None)? {
            Ok(verdict) => return Ok(Ok(verdict)),
            Err(found) => found,
        };
        let (script, disagreement) =
            shrink(found.script, found.disagreement, shrinking, |script| {
                if !are_fair(script) {
                    return Ok(None);
                }
                Ok(look(Some(script))?.err().map(|found| found.disagreement))
            })?;
        Ok(Err(Found { seed: self.seed, script, disagreement }))
    }

    pub fn judge(&self, engine: &dyn Engine, told: &Told) -> Verdict {
        let trees = told.trees();
        judge(&told.story, &self.judging, &|crash, image, allowed| {
            let goes_on = crash.number.is_multiple_of(self.going_on_one_in.max(1));
            let going_on = if goes_on { self.going_on } else { 0 };
            let seed = self.seed ^ crash.number;
            let place = CrashPlace { position: crash.position, allowed };
            look(engine, image, &place, (told, &trees), (going_on, seed))
                .map_err(|error| format!("{error:#}"))
        })
    }
}

/// Whether all batches are what batches are to be.
fn are_fair(script: &[Operation]) -> bool {
    let mut model = Model::default();
    script.iter().all(|operation| {
        let is_fair = model.is_fair(operation);
        model.apply(operation);
        is_fair
    })
}

/// What an operation that has returned promises of single files.
fn promises(
    operation: &Operation,
    model: &Model,
    telling: &mut Telling,
    device: &RecordingDevice,
) -> Vec<FileSync> {
    let (position, step) = (device.position(), telling.steps());
    let whole = 0..u64::MAX;
    if let Operation::Fsync { file } = operation
        && let Some(number) = model.number_of(file)
    {
        telling.promise_names(device, step);
        return vec![FileSync { number, blocks: whole, position, step }];
    }
    let Operation::Batch { requests } = operation else { return Vec::new() };
    let mut synced = Vec::new();
    for request in requests {
        let Some(number) = model.number_of(&request.file) else { continue };
        match request.what {
            // What else is in the batch was not done before it.
            Asked::Sync => {
                telling.promise_names(device, step - 1);
                let blocks = whole.clone();
                synced.push(FileSync { number, blocks, position, step: step - 1 });
            }
            Asked::Write { offset, bytes, is_durable: true, .. }
                if model.may_write(&request.file) =>
            {
                telling.promise_names(device, step);
                let blocks = offset / 4096..(offset + bytes).div_ceil(4096);
                synced.push(FileSync { number, blocks, position, step });
            }
            Asked::Read { .. } | Asked::Write { .. } | Asked::Append { .. } => {}
        }
    }
    synced
}

impl Told {
    /// What each state looks like.
    pub fn trees(&self) -> Vec<Tree> {
        self.states.iter().map(Model::tree).collect()
    }
}

/// Where in a story a crash was, and which states that allows.
#[derive(Clone, Debug)]
pub struct CrashPlace {
    pub position: usize,
    pub allowed: RangeInclusive<usize>,
}

impl Told {
    /// Which of the allowed states this is; the newest, if several look the same.
    pub fn state_of(&self, have: &Tree, place: &CrashPlace, trees: &[Tree]) -> Result<usize> {
        let is_it = |state: &usize| {
            let want = self.adapt(*state, have, place, trees);
            want.difference(have).is_none()
        };
        let newest = place.allowed.clone().rev().find(is_it);
        newest.ok_or_else(|| anyhow::anyhow!("{}", self.nearest(have, place, trees)))
    }

    /// State `state`, with the bytes of files as `have` has them where that is allowed: data that
    /// was written and not synced goes down when it likes, so each block of a file may be as after
    /// any step since its last sync, and so may the file's size.
    fn adapt(&self, state: usize, have: &Tree, place: &CrashPlace, trees: &[Tree]) -> Tree {
        let mut adapted = trees[state].clone();
        let whole = self.story.whole_promise(place.position);
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
            // What is written in place may be newer than the names, and may be torn.
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
                    // Where the file ends, nobody sees what was written behind that.
                    let is_cut = start < have.size && have.size < start + SECTOR_BYTES as u64;
                    let is_behind = start >= have.size && hash == 0;
                    let at = usize::try_from(at).expect("in a block");
                    is_cut || is_behind || blocks.iter().any(|block| block[at] == hash)
                })
            };
            let numbers = since.iter().flat_map(|(_, node)| node.content.numbers());
            if since.iter().any(|(_, node)| node.size == have.size)
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

    /// What is nearest to a state that is none of the allowed ones.
    fn nearest(&self, have: &Tree, place: &CrashPlace, trees: &[Tree]) -> String {
        let mut text = String::from("what is there is no state that is allowed");
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
            write!(text, "; from state {state} it differs so:\n{difference}")
                .expect("writing to a string cannot fail");
        }
        text
    }
}

fn look(
    engine: &dyn Engine,
    image: CrashImage,
    place: &CrashPlace,
    (told, trees): (&Told, &[Tree]),
    (going_on, seed): (usize, u64),
) -> Result<()> {
    let image: Arc<dyn Device> = Arc::new(image);
    engine.check(&image).map_err(|error| error.context("the image"))?;
    let mut subject = engine
        .open(Arc::clone(&image))
        .map_err(|error| error.context("the image does not open"))?;
    let have = subject.tree()?;
    let state = told.state_of(&have, place, trees)?;
    let is_whole = trees[state].difference(&have).is_none();
    if going_on == 0 || !is_whole {
        return Ok(());
    }
    let mut run = Run::from_model(told.states[state].clone());
    let mut generator = Generator::new(seed).with_syncs(8);
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
            bail!("going on from state {state}: {text}\n{script}");
        }
    }
    drop(subject);
    engine.check(&image).map_err(|error| error.context("the image, after going on"))
}
