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
use crate::generator::Generator;
use crate::model::Model;
use crate::operation::Operation;
use crate::run::{Disagreement, Found, Run};
use crate::script;
use crate::shrink::shrink;
use crate::subject::Subject;
use crate::tree::{Kind, Node, Tree};
use anyhow::{Result, bail};
use butternut_device::{CrashImage, Device, RecordingDevice};
use std::fmt::Write;
use std::ops::RangeInclusive;
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
    /// Which file was synced by which step.
    pub synced: Vec<FileSync>,
}

/// A file that was synced alone: its bytes are promised, and all changes of names and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSync {
    pub number: u64,
    /// From this position of the log on.
    pub position: usize,
    /// The state after the sync.
    pub step: usize,
}

impl Workload {
    pub fn generator(&self) -> Generator {
        Generator::new(self.seed).with_syncs(self.sync_one_in)
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
        let mut synced = Vec::new();
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
            if let Operation::Fsync { file } = &operation
                && let Some(number) = run.model.number_of(file)
            {
                telling.promise_names(&device);
                synced.push(FileSync { number, position: device.position(), step: step + 1 });
            }
            let mut state = run.model.clone();
            state.apply(&Operation::Reopen);
            told.0.push(operation);
            told.1.push(state);
        }
        let story = telling.end(&device);
        Ok(Ok(Told { script: told.0, story, states: told.1, synced }))
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
            let own = self
                .synced
                .iter()
                .filter(|sync| sync.number == node.number && sync.position <= place.position);
            let oldest = own.map(|sync| sync.step).max().unwrap_or(0).max(whole);
            let since: Vec<&Node> = (oldest..=state)
                .filter_map(|state| trees[state].nodes.values().find(|n| n.number == node.number))
                .collect();
            let is_of = |number: u64| {
                let hash = have.content.block(number);
                since.iter().any(|node| node.content.block(number) == hash)
            };
            let numbers = since.iter().flat_map(|node| node.content.numbers());
            if since.iter().any(|node| node.size == have.size)
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
