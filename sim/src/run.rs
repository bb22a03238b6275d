//! Runs a subject beside the model: outcomes are compared after every operation, the whole tree at
//! every sync, after every reopen and at the end.

use crate::generator::Generator;
use crate::model::Model;
use crate::operation::{Operation, Outcome};
use crate::script;
use crate::shrink::shrink;
use crate::subject::Subject;
use anyhow::Result;
use std::fmt;
use std::time::Duration;

/// Where and how a subject disagreed with the model.
#[derive(Clone, Debug)]
pub struct Disagreement {
    /// The index of the operation in the run, or the length of the run if the tree differed at the
    /// end.
    pub at: usize,
    pub text: String,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}: {}", self.at, self.text)
    }
}

#[derive(Debug)]
pub struct Run {
    pub model: Model,
    steps: usize,
}

impl Run {
    /// Returns a run over a new subject.
    pub fn of(subject: &dyn Subject) -> Run {
        Run::from_model(Model::with_rules(subject.rules()))
    }

    /// Returns a run over a subject whose state equals this model.
    pub fn from_model(model: Model) -> Run {
        Run { model, steps: 0 }
    }

    /// Applies one operation to both.
    pub fn step(
        &mut self,
        subject: &mut dyn Subject,
        operation: &Operation,
    ) -> Result<Option<Disagreement>> {
        let at = self.steps;
        self.steps += 1;
        let have = subject.apply(operation)?;
        let is_seek = matches!(operation, Operation::Seek { .. });
        let want = self.model.apply(operation);
        let agrees = want == have
            || is_seek && !is_refusal(&want) && self.model.accepts_seek(operation, &have);
        if !agrees {
            let text = format!("{operation:?}: have {have:?}, want {want:?}");
            return Ok(Some(Disagreement { at, text }));
        }
        if operation.is_sync() { self.compare(subject, at) } else { Ok(None) }
    }

    pub fn compare(&self, subject: &mut dyn Subject, at: usize) -> Result<Option<Disagreement>> {
        let difference = self.model.tree().difference(&subject.tree()?);
        Ok(difference.map(|text| Disagreement { at, text: format!("the tree differs:\n{text}") }))
    }
}

/// Returns whether a seek failed.
fn is_refusal(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_))
}

/// Runs a script on a new subject.
pub fn replay(subject: &mut dyn Subject, operations: &[Operation]) -> Result<Option<Disagreement>> {
    let mut run = Run::of(subject);
    for operation in operations {
        if let Some(found) = run.step(subject, operation)? {
            return Ok(Some(found));
        }
    }
    run.compare(subject, operations.len())
}

/// A failing seeded run with its shortened script.
#[derive(Clone, Debug)]
pub struct Found {
    pub seed: u64,
    pub script: Vec<Operation>,
    pub disagreement: Disagreement,
}

/// Runs the given number of generated operations. `make` returns a new, empty subject: it is called
/// once, and again for every shorter script that is tried after a failure.
pub fn check_seed(
    mut generator: Generator,
    seed: u64,
    operations: usize,
    shrinking: Duration,
    make: &mut dyn FnMut() -> Result<Box<dyn Subject>>,
) -> Result<Option<Found>> {
    let mut script = Vec::new();
    let mut found = None;
    {
        let mut subject = make()?;
        let mut run = Run::of(&*subject);
        while script.len() < operations && found.is_none() {
            let operation = generator.next(&run.model);
            found = run.step(&mut *subject, &operation)?;
            script.push(operation);
        }
        if found.is_none() {
            found = run.compare(&mut *subject, script.len())?;
        }
    }
    let Some(found) = found else { return Ok(None) };
    let (script, disagreement) = shrink(script, found, shrinking, |script| {
        let mut subject = make()?;
        let mut model = Model::with_rules(subject.rules());
        let is_allowed = |operation: &Operation| {
            let is_allowed = generator.allows(operation, &model);
            model.apply(operation);
            is_allowed
        };
        if script.iter().all(is_allowed) { replay(&mut *subject, script) } else { Ok(None) }
    })?;
    Ok(Some(Found { seed, script, disagreement }))
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# seed {}, {}",
            self.seed,
            self.disagreement.to_string().replace('\n', "\n# ")
        )?;
        f.write_str(&script::to_text(&self.script))
    }
}
