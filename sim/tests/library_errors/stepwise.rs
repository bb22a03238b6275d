//! Errors at the requests of each step, over volumes that keep no tree block in memory, so that
//! each search of a step reads the devices. Each step begins on a volume that was just opened. It
//! is made, and then synced, while one request fails; the next trial begins from the same bytes.
//!
//! 1. A step that fails returns ENOSPC or EIO and changes nothing, and succeeds without the fault.
//!    Exceptions are those of the scripts.
//! 2. A sync that fails on a volume that stays writable has changed nothing that is visible, and
//!    succeeds without the fault.
//! 3. If the volume has become read-only, then after opening it again the step is there or not, and
//!    everything else is there. The checker finds nothing.
//!
//! `BUTTERNUT_LONG=1` fails the first 32 requests of each step, and some of the others; otherwise a
//! few of each step fail.

mod files;

use crate::injector::{Injector, Kind};
use crate::is_long;
use anyhow::{Context, Result, ensure};
use butternut::EnospcInjector;
use butternut_device::{Device, MemoryDevice};
use butternut_sim::volume::check_crashed;
use std::ops::Range;
use std::sync::Arc;

/// What a step or a sync has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// What it returns without errors.
    AsWanted,
    Failed(i32),
    /// A copy has ended early.
    Short,
    /// It has failed after its change: the usage of quota groups is not known.
    Uncounted,
}

/// A script of steps, and what is visible before and after each.
pub(crate) trait Script {
    type Volume;

    fn names(&self) -> Vec<&'static str>;

    /// Opens a volume without a node cache.
    fn open(&self, device: Arc<dyn Device>, enospc: &EnospcInjector) -> Result<Self::Volume>;

    fn apply(&self, volume: &mut Self::Volume, step: usize) -> Result<Done>;

    fn sync(&self, volume: &mut Self::Volume) -> Result<Done>;

    /// Computes the usage of quota groups.
    fn count_again(&self, volume: &mut Self::Volume) -> Result<()>;

    fn is_writable(&self, volume: &Self::Volume) -> bool;

    /// Compares what is visible with the state before or after a step. If the step has failed, and
    /// may be done in part, what it may have changed is not compared.
    fn compare(&self, volume: &mut Self::Volume, step: usize, is_done: bool) -> Result<()>;

    /// Checks law 3 for a volume whose step failed, or was not made durable.
    fn compare_crashed(&self, device: Arc<dyn Device>, step: usize) -> Result<()>;

    /// Ends the use of a volume, without what is not durable.
    fn abandon(&self, volume: Self::Volume);

    fn close(&self, volume: Self::Volume) -> Result<()>;
}

/// The bytes that each trial of a step begins from.
struct Begin {
    medium: MemoryDevice,
    data: Range<u64>,
}

impl Begin {
    /// Makes a step while the `nth` request of a kind fails. Returns the bytes to continue from if
    /// no request failed.
    fn trial<S: Script>(
        &self,
        script: &S,
        step: usize,
        (kind, nth): (Kind, u64),
    ) -> Result<Option<MemoryDevice>> {
        let medium = Arc::new(self.medium.fork());
        let device: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&medium);
        let injector = Arc::new(Injector::new(Arc::clone(&device), self.data.clone()));
        let mut volume = script.open(Arc::<Injector>::clone(&injector), injector.enospc())?;
        injector.arm(kind, nth);
        let mut done = script.apply(&mut volume, step)?;
        let is_done = matches!(done, Done::AsWanted | Done::Uncounted);
        if done == Done::AsWanted {
            done = script.sync(&mut volume)?;
        }
        injector.disarm();
        if !injector.is_struck() {
            ensure!(done == Done::AsWanted, "have {done:?}, and nothing has failed");
            script.close(volume)?;
            return Ok(Some(medium.fork()));
        }
        if let Done::Failed(errno) = done {
            ensure!(kind.errnos().contains(&errno), "have errno {errno}");
        }
        if !script.is_writable(&volume) {
            script.abandon(volume);
            check_crashed(&device)?;
            script.compare_crashed(device, step)?;
            return Ok(None);
        }
        if done == Done::Uncounted {
            script.count_again(&mut volume)?;
        }
        script.compare(&mut volume, step, is_done).context("after the error")?;
        if !is_done {
            let again = script.apply(&mut volume, step)?;
            ensure!(again == Done::AsWanted, "again: have {again:?}; first {done:?}");
            script.compare(&mut volume, step, true).context("done again")?;
        }
        let synced = script.sync(&mut volume)?;
        ensure!(synced == Done::AsWanted, "the last sync: {synced:?}; first {done:?}");
        script.abandon(volume);
        check_crashed(&device)?;
        Ok(None)
    }
}

/// Fails the requests of a kind, one in each trial. Returns the number of trials.
pub(crate) fn fail_each<S: Script>(
    script: &S,
    kind: Kind,
    image: &[u8],
    data: Range<u64>,
) -> Result<u64> {
    let mut trials = 0;
    let mut begin = Begin { medium: MemoryDevice::copy_of("memory", image), data };
    for (step, name) in script.names().into_iter().enumerate() {
        let mut nth = if is_long() { 1 } else { 1 + step as u64 % 5 };
        begin.medium = loop {
            let ended = begin.trial(script, step, (kind, nth));
            let ended = ended.with_context(|| format!("step {step}, {name}, {kind:?}:{nth}"))?;
            if let Some(medium) = ended {
                break medium;
            }
            trials += 1;
            // The first requests are those of different call sites.
            nth += if is_long() { 1 + nth / 32 } else { 7 + 4 * nth };
        };
    }
    println!("{kind:?}: {trials} trials");
    Ok(trials)
}
