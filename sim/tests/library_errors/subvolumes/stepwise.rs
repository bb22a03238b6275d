//! The script of subvolumes, without a node cache (`crate::stepwise`).

use super::steps::{Step, steps};
use super::view::View;
use super::{Template, options};
use crate::injector::Kind;
use crate::stepwise::{Done, Script, fail_each};
use anyhow::{Context, Result, ensure};
use butternut::{EnospcInjector, Error, Filesystem, TreeError};
use butternut_device::Device;
use std::sync::Arc;

/// A directory of files that is listed and changed.
const FILLERS: usize = 5;

pub(super) struct Subvolumes {
    pub(super) steps: Vec<Step>,
    /// The state before the first step, and that after each.
    pub(super) views: Vec<View>,
}

impl Subvolumes {
    fn step(&self, step: usize) -> Result<&Step> {
        self.steps.get(step).context("a step")
    }

    fn states(&self, step: usize) -> Result<&[View]> {
        self.views.get(step..step + 2).context("the states around a step")
    }
}

fn done(result: &butternut::Result<()>, want: Result<(), i32>) -> Result<Done> {
    match result {
        Err(Error::Tree(TreeError::QuotaUsage { .. })) => Ok(Done::Uncounted),
        result if result.as_ref().map_err(Error::errno).copied() == want => Ok(Done::AsWanted),
        Err(error) => Ok(Done::Failed(error.errno())),
        Ok(()) => anyhow::bail!("a call that should fail succeeds"),
    }
}

impl Script for Subvolumes {
    type Volume = Filesystem;

    fn names(&self) -> Vec<&'static str> {
        self.steps.iter().map(|step| step.name).collect()
    }

    fn open(&self, device: Arc<dyn Device>, enospc: &EnospcInjector) -> Result<Filesystem> {
        let options = options(enospc).node_cache_bytes(0);
        Ok(Filesystem::open_devices(vec![device], &options)?)
    }

    fn apply(&self, volume: &mut Filesystem, step: usize) -> Result<Done> {
        let step = self.step(step)?;
        done(&(step.call)(volume), step.outcome)
    }

    fn sync(&self, volume: &mut Filesystem) -> Result<Done> {
        done(&volume.sync(), Ok(()))
    }

    fn count_again(&self, volume: &mut Filesystem) -> Result<()> {
        Ok(volume.rescan_quotas()?)
    }

    fn is_writable(&self, volume: &Filesystem) -> bool {
        volume.is_writable()
    }

    fn compare(&self, volume: &mut Filesystem, step: usize, is_done: bool) -> Result<()> {
        if !is_done && self.step(step)?.is_in_steps {
            return Ok(());
        }
        let [before, after] = self.states(step)? else { anyhow::bail!("two states") };
        let want = if is_done { after } else { before };
        let difference = want.difference(&View::of(volume)?);
        ensure!(difference.is_empty(), "{difference}");
        Ok(())
    }

    fn compare_crashed(&self, device: Arc<dyn Device>, step: usize) -> Result<()> {
        let volume = super::open(&device, &EnospcInjector::default())?;
        let have = View::of(&volume)?;
        let states = self.states(step)?;
        let is_there = |want: &View| want.without_data() == have.without_data();
        if !self.step(step)?.is_in_steps {
            let difference = states.last().map(|state| state.difference(&have));
            ensure!(states.iter().any(is_there), "{}", difference.unwrap_or_default());
        }
        let gone = View::untouched(states).lost_in(&have);
        ensure!(gone.is_empty(), "synced, and gone:\n{gone}");
        super::check_quotas(&volume, true)?;
        Ok(volume.close()?)
    }

    fn abandon(&self, volume: Filesystem) {
        volume.abandon();
    }

    fn close(&self, volume: Filesystem) -> Result<()> {
        Ok(volume.close()?)
    }
}

fn check_kind(kind: Kind) {
    let Template { image, data, views } = Template::with_fillers(FILLERS).expect("a volume");
    let script = Subvolumes { steps: steps(), views };
    let trials = fail_each(&script, kind, &image, data);
    assert!(trials.unwrap_or_else(|error| panic!("{error:#}")) > 10);
}

#[test]
fn each_reservation_of_each_step_of_subvolumes_fails() {
    check_kind(Kind::Reservation);
}

#[test]
fn each_read_of_metadata_of_each_step_of_subvolumes_fails() {
    check_kind(Kind::UncachedRead);
}

#[test]
fn each_write_of_metadata_of_each_step_of_subvolumes_fails() {
    check_kind(Kind::MetadataWrite);
}

#[test]
fn each_flush_of_each_step_of_subvolumes_fails() {
    check_kind(Kind::Flush);
}
