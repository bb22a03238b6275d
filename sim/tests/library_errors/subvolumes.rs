//! Errors at every step of a script of subvolumes, snapshots, clones, properties and quotas, which
//! the model does not have: the script calls the library. The kinds of errors are those of `main`.
//!
//! 1. A call that fails returns ENOSPC or EIO and changes nothing: everything that is visible is as
//!    it was before the call. Only a call that has made its change and could not compute the usage
//!    of quota groups returns an error for it, and a rescan follows. A call that consists of steps
//!    may have done some of them.
//! 2. Without the fault, the same call succeeds. At the end, and after closing and opening, every
//!    acknowledged change is there, the usage of quota groups is that of a rescan, and the checker
//!    finds nothing.
//! 3. If the volume has become read-only, or a writeback has failed, then after reopening every
//!    change is there that a call has made durable, and no change is there in part.
//! 4. A call that a limit of a quota refuses fails with EDQUOT and changes nothing.
//!
//! The states to compare with are those of a run without errors.

mod logging;
mod reading;
pub(crate) mod steps;
mod stepwise;
pub(crate) mod view;

use crate::injector::{Injector, Kind};
use crate::{Aim, Next, Reached};
use anyhow::{Context, Result, ensure};
use butternut::format::quota::STATUS_INCONSISTENT;
use butternut::{EnospcInjector, Error, Filesystem, MountOptions, Subvolume, TOP_LEVEL, TreeError};
use butternut_device::{Device, MemoryDevice};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::volume::{check, check_crashed, fresh};
use std::ops::Range;
use std::sync::Arc;
use steps::{Durable, Step, steps};
use view::View;

pub(crate) const VOLUME_BYTES: u64 = 128 << 20;
const NODE_CACHE_BYTES: u64 = 32 << 10;
/// The number of files that fill the trees, so that a small node cache cannot hold them.
pub(crate) const FILLERS: usize = 150;
const PAGE_CACHE_BYTES: u64 = 192 << 10;

/// A volume, and what a run without errors shows.
struct Template {
    image: Vec<u8>,
    data: Range<u64>,
    /// The state before the first step, and that after each.
    views: Vec<View>,
}

pub(crate) fn options(enospc_injector: &EnospcInjector) -> MountOptions {
    MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .workers(1)
        .subvolume(Subvolume::Id(TOP_LEVEL))
        .enospc_injector(Some(enospc_injector.clone()))
        .node_cache_bytes(NODE_CACHE_BYTES)
        .page_cache_bytes(PAGE_CACHE_BYTES)
}

pub(crate) fn open(
    device: &Arc<dyn Device>,
    enospc_injector: &EnospcInjector,
) -> Result<Filesystem> {
    Ok(Filesystem::open_devices(vec![Arc::clone(device)], &options(enospc_injector))?)
}

/// Opens a volume for a run that fails requests of a kind.
pub(crate) fn open_for(
    kind: Kind,
    device: &Arc<dyn Device>,
    enospc: &EnospcInjector,
) -> butternut::Result<Filesystem> {
    let mut options = options(enospc);
    if kind == Kind::UncachedRead {
        options = options.node_cache_bytes(0);
    }
    Filesystem::open_devices(vec![Arc::clone(device)], &options)
}

impl Template {
    fn new() -> Result<Self> {
        Self::with_fillers(FILLERS)
    }

    fn with_fillers(fillers: usize) -> Result<Self> {
        let profiles = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
        let device = fresh(VOLUME_BYTES, &profiles)?;
        let none = EnospcInjector::default();
        let filesystem = open(&device, &none)?;
        steps::fill(&filesystem, fillers)?;
        let data = crate::data_range(&filesystem)?;
        filesystem.close()?;
        let mut image = vec![0; usize::try_from(device.bytes())?];
        device.read_at(0, &mut image)?;
        let mut template = Self { image, data, views: Vec::new() };
        let filesystem = open(&device, &none)?;
        template.views.push(View::of(&filesystem)?);
        for step in steps() {
            let outcome = (step.call)(&filesystem).map_err(|error| error.errno());
            ensure!(outcome == step.outcome, "{}: {outcome:?}, want {:?}", step.name, step.outcome);
            template.views.push(View::of(&filesystem)?);
            let views = template.views.last_chunk::<2>();
            let is_changed = views.is_some_and(|[before, after]| before != after);
            ensure!(is_changed == step.is_visible, "{}: is it visible?", step.name);
        }
        check_quotas(&filesystem, false)?;
        filesystem.close()?;
        check(&device)?;
        Ok(template)
    }
}

/// One run.
struct Trial<'a> {
    template: &'a Template,
    kind: Kind,
    medium: Arc<dyn Device>,
    device: Arc<dyn Device>,
    injector: Arc<Injector>,
    filesystem: Filesystem,
    /// The number of steps that are done.
    done: usize,
    /// The number of steps after which the names were made durable, and the data.
    durable: (usize, usize),
}

/// Runs the script while one request fails. Returns whether a request failed.
fn run(template: &Template, aim: Aim, reached: &mut Reached) -> Result<bool> {
    let Aim { kind, nth, mut from } = aim;
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &template.image));
    let injector = Arc::new(Injector::new(Arc::clone(&medium), template.data.clone()));
    let device: Arc<dyn Device> = Arc::<Injector>::clone(&injector);
    let filesystem = open(&device, injector.enospc())?;
    let mut trial =
        Trial { template, kind, medium, device, injector, filesystem, done: 0, durable: (0, 0) };
    if from.is_none() {
        trial.injector.arm(kind, nth);
    }
    let mut next = Next::GoesOn;
    for step in steps() {
        // A call that commits reads what the call before it has changed.
        if kind.is_read() && step.durable == Durable::Nothing {
            trial = trial.reopened()?;
        }
        if from == Some(step.name) {
            trial.injector.arm(kind, nth);
            from = None;
        }
        let (number, name) = (trial.done, step.name);
        next = trial.step(&step, reached).with_context(|| format!("step {number}, {name}"))?;
        if next == Next::Lossy {
            break;
        }
    }
    let is_struck = trial.injector.is_struck();
    trial.injector.disarm();
    match next {
        Next::GoesOn => trial.end()?,
        Next::Lossy => trial.end_lossy()?,
    }
    Ok(is_struck)
}

impl Trial<'_> {
    /// Empties every cache, so that the next call reads what it needs.
    fn reopened(self) -> Result<Self> {
        self.injector.set_paused(true);
        self.filesystem.close().context("closing")?;
        let filesystem = open(&self.device, self.injector.enospc())?;
        self.injector.set_paused(false);
        let durable = (self.done, self.done);
        Ok(Self { filesystem, durable, ..self })
    }

    fn step(&mut self, step: &Step, reached: &mut Reached) -> Result<Next> {
        let want = step.outcome;
        let have = (step.call)(&self.filesystem);
        let errno = have.as_ref().map_err(Error::errno).copied();
        if errno == want {
            self.acknowledge(step);
            return Ok(Next::GoesOn);
        }
        let error = have.err().context("a call that should fail succeeds")?;
        ensure!(self.injector.is_struck(), "{error:?}, and nothing has failed");
        ensure!(self.kind.errnos().contains(&error.errno()), "have {error:?}, want {want:?}");
        reached.entry(step.name).or_default().insert(self.kind);
        self.injector.disarm();
        if !self.filesystem.is_writable() {
            return Ok(Next::Lossy);
        }
        if self.kind.is_data_write() {
            // The call may have lost data that was dirty, which is its error.
            let want = self.template.views[self.done].without_data();
            let difference = want.difference(&View::of(&self.filesystem)?.without_data());
            ensure!(difference.is_empty(), "the call failed, but changed:\n{difference}");
            return Ok(Next::Lossy);
        }
        if matches!(error, Error::Tree(TreeError::QuotaUsage { .. })) {
            self.filesystem.rescan_quotas()?;
        } else {
            if !step.is_in_steps {
                self.compare("the call failed, but changed")?;
            }
            let again = (step.call)(&self.filesystem).map_err(|error| error.errno());
            ensure!(again == want, "again: have {again:?}, want {want:?}; first {error:?}");
        }
        self.acknowledge(step);
        self.compare("done again")?;
        Ok(Next::GoesOn)
    }

    /// A commit that cannot read what it needs to compute the usage of quota groups succeeds, and
    /// marks the usage as inconsistent.
    fn may_be_inconsistent(&self) -> bool {
        self.kind == Kind::MetadataRead && self.injector.is_struck()
    }

    fn acknowledge(&mut self, step: &Step) {
        self.done += 1;
        match step.durable {
            Durable::Nothing => {}
            Durable::Names => self.durable.0 = self.done,
            Durable::All => self.durable = (self.done, self.done),
        }
    }

    /// Compares what is visible with the run without errors.
    fn compare(&self, what: &str) -> Result<()> {
        let want = &self.template.views[self.done];
        let difference = want.difference(&View::of(&self.filesystem)?);
        ensure!(difference.is_empty(), "{what}:\n{difference}");
        Ok(())
    }

    /// Checks law 2.
    fn end(mut self) -> Result<()> {
        if let Err(error) = self.filesystem.sync() {
            ensure!(self.kind.is_data_write(), "the last sync: {error:?}");
            return self.end_lossy();
        }
        self = self.reopened()?;
        self.compare("opened again")?;
        check_quotas(&self.filesystem, self.may_be_inconsistent())?;
        self.filesystem.close()?;
        check(&self.medium)
    }

    /// Checks law 3. The data of files may be missing that was written since the last sync.
    fn end_lossy(self) -> Result<()> {
        let may_be_inconsistent = self.may_be_inconsistent();
        self.filesystem.abandon();
        drop(self.filesystem);
        check_crashed(&self.medium)?;
        let filesystem = open(&self.medium, &EnospcInjector::default())?;
        let have = View::of(&filesystem)?;
        // The step that failed may have become durable.
        let last = self.template.views.len().min(self.done + 2);
        let states = &self.template.views[self.durable.0..last];
        let is_there = |want: &View| want.without_data() == have.without_data();
        let nearest = states.last().map(View::without_data);
        let difference = nearest.map(|state| state.difference(&have.without_data()));
        ensure!(
            states.iter().any(is_there),
            "none of the states {:?}; of the last one:\n{}",
            self.durable.0..last,
            difference.unwrap_or_default()
        );
        let states = &self.template.views[self.durable.1..last];
        let gone = View::untouched(states).lost_in(&have);
        ensure!(gone.is_empty(), "synced, and gone:\n{gone}");
        check_quotas(&filesystem, may_be_inconsistent)?;
        filesystem.close()?;
        check_crashed(&self.medium)
    }
}

/// Checks that the usage of all quota groups is that of a rescan, or known to be inconsistent.
fn check_quotas(filesystem: &Filesystem, may_be_inconsistent: bool) -> Result<()> {
    filesystem.sync()?;
    let Some(before) = filesystem.quotas()? else { return Ok(()) };
    let is_inconsistent = before.status.flags & STATUS_INCONSISTENT != 0;
    ensure!(!is_inconsistent || may_be_inconsistent, "the usage is inconsistent");
    filesystem.rescan_quotas()?;
    if is_inconsistent {
        return Ok(());
    }
    let after = filesystem.quotas()?.context("quotas are disabled")?;
    ensure!(
        before.groups == after.groups,
        "the usage is {:?}, and that of a rescan {:?}",
        before.groups,
        after.groups
    );
    Ok(())
}

fn check_kind(kind: Kind, expected: &[&'static str]) {
    let template = Template::new().expect("a run without errors");
    crate::check_runs(kind, 2, expected, &|aim, reached| run(&template, aim, reached));
}

/// The steps that reserve space.
const RESERVE: &[&str] = &[
    "assign qgroup",
    "clean",
    "create",
    "create in subvolume",
    "create nested subvolume",
    "create qgroup",
    "create subvolume",
    "defragment shared",
    "delete nested subvolume",
    "delete subvolume",
    "disable quotas",
    "enable quotas",
    "limit qgroup",
    "preallocate at limit",
    "punch long",
    "recursive snapshot",
    "remove qgroup",
    "rename subvolume",
    "rescan",
    "set default",
    "set label",
    "set property",
    "set read-only",
    "set writable",
    "snapshot",
    "snapshot counted",
    "truncate long",
    "truncate shared",
    "unassign qgroup",
    "unlink shared",
];

/// The steps that commit.
const COMMIT: &[&str] = &[
    "assign qgroup",
    "create nested subvolume",
    "create qgroup",
    "create subvolume",
    "defragment shared",
    "delete nested subvolume",
    "delete subvolume",
    "disable quotas",
    "enable quotas",
    "limit qgroup",
    "recursive snapshot",
    "remove qgroup",
    "rename subvolume",
    "rescan",
    "set default",
    "set read-only",
    "set writable",
    "snapshot",
    "snapshot counted",
    "sync",
    "unassign qgroup",
];

/// The steps that read metadata.
const READ: &[&str] = &[
    "assign qgroup",
    "clean",
    "clone",
    "clone from dirty",
    "clone inline",
    "clone over dirty",
    "create",
    "create in subvolume",
    "create nested subvolume",
    "create subvolume",
    "dedupe",
    "dedupe different",
    "defragment",
    "defragment shared",
    "delete nested subvolume",
    "delete subvolume",
    "enable quotas",
    "limit qgroup",
    "preallocate at limit",
    "punch long",
    "recursive snapshot",
    "rename subvolume",
    "rescan",
    "set default",
    "set property",
    "set read-only",
    "set writable",
    "snapshot",
    "snapshot counted",
    "truncate long",
    "truncate shared",
    "unassign qgroup",
    "unlink shared",
    "write below limit",
    "write compressed",
    "write dirty",
    "write in subvolume",
    "write over shared",
];

#[test]
fn each_reservation_of_subvolumes_fails() {
    check_kind(Kind::Reservation, RESERVE);
}

#[test]
fn each_read_of_metadata_of_subvolumes_fails() {
    check_kind(Kind::MetadataRead, READ);
}

#[test]
fn each_read_of_data_of_subvolumes_fails() {
    check_kind(Kind::DataRead, &["defragment", "truncate shared", "write over shared"]);
}

#[test]
fn each_write_of_data_of_subvolumes_fails() {
    check_kind(Kind::DataWrite, &["defragment shared", "recursive snapshot", "sync"]);
}

#[test]
fn all_reads_of_data_of_subvolumes_fail_from_each_one_on() {
    check_kind(Kind::DataReads, &["defragment", "truncate shared", "write over shared"]);
}

#[test]
fn all_writes_of_data_of_subvolumes_fail_from_each_one_on() {
    check_kind(Kind::DataWrites, &["defragment shared", "recursive snapshot", "sync"]);
}

#[test]
fn each_write_of_metadata_of_subvolumes_fails() {
    check_kind(Kind::MetadataWrite, COMMIT);
}

#[test]
fn each_flush_of_subvolumes_fails() {
    check_kind(Kind::Flush, COMMIT);
}

/// An operation that finds no space is attempted again after a commit. Here every reservation
/// fails, that of the second attempt too.
#[test]
fn every_reservation_of_a_clone_fails() {
    let template = Template::new().expect("a run without errors");
    let run: crate::OneRun<'_> = &|aim, reached| run(&template, aim, reached);
    for name in ["clone", "clone over dirty", "clone inline", "dedupe", "defragment"] {
        let is_reached = crate::fail_in_step(Kind::Reservation, name, run);
        assert!(is_reached, "{name} reserves nothing");
    }
}
