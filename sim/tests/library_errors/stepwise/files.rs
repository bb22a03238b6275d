//! The script of files and names, beside the model.

use super::{Done, Script, fail_each};
use crate::injector::Kind;
use crate::{Template, check_one_of, done_in_part, script};
use anyhow::{Context, Result, ensure};
use butternut::EnospcInjector;
use butternut_device::Device;
use butternut_sim::content::Digest;
use butternut_sim::library::LibrarySubject;
use butternut_sim::operation::{Operation, Outcome};
use butternut_sim::subject::Subject;
use butternut_sim::tree::Tree;
use std::sync::Arc;

/// The names of the files that the script uses. The others only fill the trees.
const NUMBERS: [u64; 13] = [5, 10, 30, 45, 50, 60, 80, 90, 100, 110, 120, 130, 140];

/// A step, what it returns, and what is visible before and after it.
struct Step {
    name: &'static str,
    operation: Operation,
    outcome: Outcome,
    before: Tree,
    after: Tree,
}

struct Files(Vec<Step>);

impl Files {
    fn new(template: &Template) -> Self {
        let mut model = template.model.clone();
        let steps = script::script().into_iter().map(|(name, operation)| {
            let before = model.tree();
            let outcome = model.apply(&operation);
            let after = model.tree();
            model.apply(&Operation::Reopen);
            Step { name, operation, outcome, before, after }
        });
        Self(steps.collect())
    }

    fn step(&self, step: usize) -> Result<&Step> {
        self.0.get(step).context("a step")
    }
}

impl Script for Files {
    type Volume = LibrarySubject;

    fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|step| step.name).collect()
    }

    fn open(&self, device: Arc<dyn Device>, enospc: &EnospcInjector) -> Result<LibrarySubject> {
        LibrarySubject::open_as(device, crate::options(enospc).node_cache_bytes(0))
    }

    fn apply(&self, volume: &mut LibrarySubject, step: usize) -> Result<Done> {
        let step = self.step(step)?;
        let have = volume.apply(&step.operation)?;
        Ok(match &have {
            _ if have == step.outcome => Done::AsWanted,
            Outcome::Failed(errno) => Done::Failed(*errno),
            Outcome::Copied(_) => Done::Short,
            // A request of the batch failed.
            Outcome::Batch(_) => {
                let has_failed = |errno: &i32| have.has_failed_with(&[*errno]);
                let errno = [28, 5, 30].into_iter().find(has_failed);
                Done::Failed(errno.with_context(|| format!("have {have:?}"))?)
            }
            _ => anyhow::bail!("have {have:?}, want {:?}", step.outcome),
        })
    }

    fn sync(&self, volume: &mut LibrarySubject) -> Result<Done> {
        Ok(match volume.apply(&Operation::Sync)? {
            Outcome::Failed(errno) => Done::Failed(errno),
            _ => Done::AsWanted,
        })
    }

    fn count_again(&self, _: &mut LibrarySubject) -> Result<()> {
        Ok(())
    }

    fn is_writable(&self, volume: &LibrarySubject) -> bool {
        volume.is_writable()
    }

    fn compare(&self, volume: &mut LibrarySubject, step: usize, is_done: bool) -> Result<()> {
        let Step { operation, before, after, .. } = self.step(step)?;
        let want = if is_done { after } else { before };
        let paths = if is_done { Vec::new() } else { done_in_part(operation, true) };
        let cleared = |tree: &Tree| {
            let mut tree = tree.clone();
            for path in &paths {
                if let Some(node) = tree.nodes.get_mut(&(*path).into()) {
                    (node.size, node.content, node.mtime) = (0, Digest::default(), None);
                }
            }
            tree
        };
        let difference = cleared(want).difference(&cleared(&volume.tree()?));
        ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
        Ok(())
    }

    fn compare_crashed(&self, device: Arc<dyn Device>, step: usize) -> Result<()> {
        let mut volume = LibrarySubject::open(device)?;
        let Step { before, after, .. } = self.step(step)?;
        check_one_of(&[before.closed(), after.closed()], volume.tree()?)
    }

    fn abandon(&self, volume: LibrarySubject) {
        drop(volume);
    }

    fn close(&self, mut volume: LibrarySubject) -> Result<()> {
        let done = volume.apply(&Operation::Reopen)?;
        ensure!(done == Outcome::Done, "reopening fails: {done:?}");
        Ok(())
    }
}

fn check_kind(kind: Kind) {
    let template = Template::with_fillers(&NUMBERS).expect("a volume");
    let files = Files::new(&template);
    let trials = fail_each(&files, kind, &template.image, template.data.clone());
    assert!(trials.unwrap_or_else(|error| panic!("{error:#}")) > 10);
}

#[test]
fn each_reservation_of_each_step_fails() {
    check_kind(Kind::Reservation);
}

#[test]
fn each_read_of_metadata_of_each_step_fails() {
    check_kind(Kind::UncachedRead);
}

#[test]
fn each_write_of_metadata_of_each_step_fails() {
    check_kind(Kind::MetadataWrite);
}

#[test]
fn each_flush_of_each_step_fails() {
    check_kind(Kind::Flush);
}
