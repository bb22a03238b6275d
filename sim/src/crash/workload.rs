//! Seeded workloads over an engine, and every crash of them held to the model.
//!
//! What must hold after a crash, in this order:
//!
//! 1. the engine's own checker finds the image clean, as it lies there;
//! 2. it opens, for writing;
//! 3. what it shows is the model after some step of the allowed range, whole;
//! 4. and it goes on from there: more operations agree with that model, and so does what is there
//!    after closing and opening it once more.

use super::{JudgeOptions, Story, Telling, Verdict, judge};
use crate::generator::Generator;
use crate::model::Model;
use crate::operation::Operation;
use crate::run::{Disagreement, Found, Run};
use crate::shrink::shrink;
use crate::subject::Subject;
use crate::tree::Tree;
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
            let mut state = run.model.clone();
            state.apply(&Operation::Reopen);
            told.0.push(operation);
            told.1.push(state);
        }
        let story = telling.end(&device);
        Ok(Ok(Told { script: told.0, story, states: told.1 }))
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
            look(engine, image, allowed, (told, &trees), (going_on, seed))
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

/// Which of the allowed states this is; the newest, if several look the same.
pub fn state_of(have: &Tree, allowed: RangeInclusive<usize>, trees: &[Tree]) -> Result<usize> {
    let newest = allowed.clone().rev().find(|state| trees[*state].difference(have).is_none());
    newest.ok_or_else(|| anyhow::anyhow!("{}", nearest(have, allowed, trees)))
}

fn look(
    engine: &dyn Engine,
    image: CrashImage,
    allowed: RangeInclusive<usize>,
    (told, trees): (&Told, &[Tree]),
    (going_on, seed): (usize, u64),
) -> Result<()> {
    let image: Arc<dyn Device> = Arc::new(image);
    engine.check(&image).map_err(|error| error.context("the image"))?;
    let mut subject = engine
        .open(Arc::clone(&image))
        .map_err(|error| error.context("the image does not open"))?;
    let have = subject.tree()?;
    let state = state_of(&have, allowed, trees)?;
    if going_on == 0 {
        return Ok(());
    }
    let mut run = Run::from_model(told.states[state].clone());
    let mut generator = Generator::new(seed).with_syncs(8);
    for _ in 0..going_on {
        let operation = generator.next(&run.model);
        if let Some(found) = run.step(&mut *subject, &operation)? {
            bail!("going on from state {state}: {found}");
        }
    }
    for operation in [Operation::Sync, Operation::Reopen] {
        if let Some(found) = run.step(&mut *subject, &operation)? {
            bail!("going on from state {state}: {found}");
        }
    }
    drop(subject);
    engine.check(&image).map_err(|error| error.context("the image, after going on"))
}

/// What is nearest to a state that is none of the allowed ones.
fn nearest(have: &Tree, allowed: RangeInclusive<usize>, trees: &[Tree]) -> String {
    let mut text = String::from("what is there is no state that is allowed");
    let elsewhere = (0..trees.len()).find(|state| trees[*state].difference(have).is_none());
    if let Some(state) = elsewhere {
        write!(text, ", but state {state}").expect("writing to a string cannot fail");
        return text;
    }
    let best = allowed.filter_map(|state| Some((trees[state].difference(have)?, state)));
    if let Some((difference, state)) = best.min_by_key(|(difference, _)| difference.len()) {
        write!(text, "; from state {state} it differs so:\n{difference}")
            .expect("writing to a string cannot fail");
    }
    text
}
