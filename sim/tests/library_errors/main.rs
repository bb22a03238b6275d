//! Errors at every step of a script that uses every lane: each reservation, each read and write of
//! data and of metadata, and each flush fails once, one in each run. A volume repeats some requests
//! for data, so all of them from each one on fail too.
//!
//! 1. An operation that fails returns the errno (ENOSPC, EIO) and changes nothing: the file has its
//!    old content and size, and so has everything else. Only writes that reach the devices in parts
//!    (unaligned direct writes, requests of a batch) may be done in part, and copies that return a
//!    short length.
//! 2. Without the fault, the same operation succeeds. At the end, and after closing and opening,
//!    every acknowledged change is there, and the checker finds nothing.
//! 3. If the volume has become read-only, or a sync has reported failed writeback, the state of the
//!    last successful sync is there after reopening.
//!
//! For read errors the volume is opened again before each operation, so that each one has to read,
//! except before a sync, which reads what the operation before it has changed.
//!
//! Further scripts: subvolumes and clones (`subvolumes`), send streams (`received`), and the replay
//! of a log (`replay`). `stepwise` fails requests of each step from the same bytes.
//!
//! Each test lists the operations that its kind of error must reach, so a test notices when an
//! operation no longer meets such errors. `BUTTERNUT_LONG=1` fails every request and compares the
//! table (of the thousands of reads of a volume without a node cache, it leaves some out);
//! otherwise some requests fail. `BUTTERNUT_ERROR=kind:number` runs one.

#![allow(clippy::print_stdout, reason = "a long run prints what it reached")]
#![allow(clippy::wildcard_enum_match_arm, reason = "few operations are done in part")]

mod injector;
mod received;
mod replay;
mod script;
mod stepwise;
mod subvolumes;

use anyhow::{Context, Result, ensure};
use butternut::format::chunk::BlockGroupFlags;
use butternut::{EnospcInjector, Filesystem, MountOptions};
use butternut_device::{Device, MemoryDevice};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::content::Digest;
use butternut_sim::library::LibrarySubject;
use butternut_sim::model::Model;
use butternut_sim::operation::{File, Lane, Operation, Outcome};
use butternut_sim::run::Run;
use butternut_sim::subject::Subject;
use butternut_sim::tree::Tree;
use butternut_sim::volume::{check, check_crashed, fresh};
use injector::{Injector, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 128 << 20;
const NODE_CACHE_BYTES: u64 = 32 << 10;
const PAGE_CACHE_BYTES: u64 = 192 << 10;

/// A volume whose trees do not fit into the node cache.
struct Template {
    image: Vec<u8>,
    data: Range<u64>,
    model: Model,
}

/// The kinds of errors that each operation has failed with, by name.
type Reached = BTreeMap<&'static str, BTreeSet<Kind>>;

/// One run.
struct Trial<'a> {
    kind: Kind,
    medium: Arc<dyn Device>,
    injector: Arc<Injector>,
    subject: LibrarySubject,
    model: Model,
    /// The tree after each operation, as another mount would show it.
    states: Vec<Tree>,
    /// The index of the state that the last sync made durable.
    durable: usize,
    reached: &'a mut Reached,
}

/// How a run continues after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoesOn,
    /// Law 3 applies.
    Lossy,
}

impl Template {
    fn new() -> Result<Template> {
        Self::with_fillers(&(0..script::FILLERS).collect::<Vec<_>>())
    }

    fn with_fillers(numbers: &[u64]) -> Result<Template> {
        let profiles = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
        let device = fresh(VOLUME_BYTES, &profiles)?;
        let mut subject = LibrarySubject::open(Arc::clone(&device))?;
        let mut run = Run::of(&subject);
        for operation in script::fillers(numbers) {
            let have = subject.apply(&operation)?;
            ensure!(have == Outcome::Done, "{operation:?}: {have:?}");
            run.model.apply(&operation);
        }
        ensure!(subject.apply(&Operation::Reopen)? == Outcome::Done, "it closes");
        run.model.apply(&Operation::Reopen);
        drop(subject);
        let devices = vec![Arc::clone(&device)];
        let filesystem = Filesystem::open_devices(devices, &MountOptions::default())?;
        let data = data_range(&filesystem)?;
        let mut image = vec![0; usize::try_from(device.bytes())?];
        device.read_at(0, &mut image)?;
        Ok(Template { image, data, model: run.model })
    }
}

/// Returns the range of the device that holds data.
fn data_range(filesystem: &Filesystem) -> Result<Range<u64>> {
    let chunks = filesystem.inspect().chunks();
    let data = chunks.iter().find(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    let data = data.context("a chunk for data")?;
    let (_, at) = data.stripes.first().context("a stripe")?;
    Ok(*at..*at + data.bytes)
}

fn options(enospc_injector: &EnospcInjector) -> MountOptions {
    LibrarySubject::options()
        .enospc_injector(Some(enospc_injector.clone()))
        .node_cache_bytes(NODE_CACHE_BYTES)
        .page_cache_bytes(PAGE_CACHE_BYTES)
}

/// The request to fail.
#[derive(Clone, Copy, Debug)]
struct Aim {
    kind: Kind,
    /// Its number, counted from 1 from the first step with that name, or from the start.
    nth: u64,
    from: Option<&'static str>,
}

/// Runs the script while one request fails. Returns whether a request failed.
fn run(template: &Template, aim: Aim, reached: &mut Reached) -> Result<bool> {
    let Aim { kind, nth, mut from } = aim;
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &template.image));
    let injector = Arc::new(Injector::new(Arc::clone(&medium), template.data.clone()));
    let device: Arc<dyn Device> = Arc::<Injector>::clone(&injector);
    let subject = LibrarySubject::open_as(device, options(injector.enospc()))?;
    let model = template.model.clone();
    let states = vec![model.tree().closed()];
    let mut trial = Trial { kind, medium, injector, subject, model, states, durable: 0, reached };
    if from.is_none() {
        trial.injector.arm(kind, nth);
    }
    let mut next = Next::GoesOn;
    for (step, (name, operation)) in script::script().into_iter().enumerate() {
        if kind.is_read() && !is_sync(&operation) {
            trial.reopen()?;
        }
        if from == Some(name) {
            trial.injector.arm(kind, nth);
            from = None;
        }
        let done = trial.step(name, &operation);
        next = done.with_context(|| format!("step {step}, {name}: {operation:?}"))?;
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
    /// Empties every cache, so that the next operation reads what it needs.
    fn reopen(&mut self) -> Result<()> {
        self.injector.set_paused(true);
        let done = self.subject.apply(&Operation::Reopen)?;
        ensure!(done == Outcome::Done, "reopening fails: {done:?}");
        self.injector.set_paused(false);
        self.model.apply(&Operation::Reopen);
        self.durable = self.states.len() - 1;
        Ok(())
    }

    fn acknowledge(&mut self, operation: &Operation, model: Model) {
        self.model = model;
        let mut closed = self.model.clone();
        closed.apply(&Operation::Reopen);
        self.states.push(closed.tree());
        if *operation == Operation::Sync {
            self.durable = self.states.len() - 1;
        }
    }

    fn step(&mut self, name: &'static str, operation: &Operation) -> Result<Next> {
        let mut model = self.model.clone();
        let want = model.apply(operation);
        let have = self.subject.apply(operation)?;
        if have == want {
            self.acknowledge(operation, model);
            return Ok(Next::GoesOn);
        }
        ensure!(self.injector.is_struck(), "have {have:?}, want {want:?}, and nothing has failed");
        let is_short =
            matches!((&have, &want), (Outcome::Copied(have), Outcome::Copied(want)) if have < want);
        if !have.has_failed_with(self.kind.errnos()) && !is_short {
            // After failed writeback the data reads as before; the next sync must report it.
            ensure!(self.kind.is_data_write(), "have {have:?}, want {want:?}");
            let synced = self.subject.apply(&Operation::Sync)?;
            ensure!(
                matches!(synced, Outcome::Failed(_)),
                "failed writeback is not reported: {synced:?}"
            );
            return Ok(Next::Lossy);
        }
        self.reached.entry(name).or_default().insert(self.kind);
        self.injector.disarm();
        if !self.subject.is_writable() {
            return Ok(Next::Lossy);
        }
        if is_sync(operation) && self.kind.is_data_write() {
            return Ok(Next::Lossy);
        }
        if self.kind == Kind::DataWrites
            && matches!(self.subject.apply(&Operation::Sync)?, Outcome::Failed(_))
        {
            // Data of earlier writes was lost, too. A part of this one may be there.
            let mut partly = self.model.tree();
            for path in done_in_part(operation, is_short) {
                partly.nodes.remove(&path.into());
            }
            self.states.push(partly);
            return Ok(Next::Lossy);
        }
        self.assert_left_nothing(operation, is_short)?;
        let again = self.subject.apply(operation)?;
        ensure!(again == want, "again: have {again:?}, want {want:?}; first {have:?}");
        let difference = model.tree().difference(&self.subject.tree()?);
        ensure!(difference.is_none(), "done again:\n{}", difference.unwrap_or_default());
        self.acknowledge(operation, model);
        Ok(Next::GoesOn)
    }

    /// Checks law 1.
    fn assert_left_nothing(&mut self, operation: &Operation, is_short: bool) -> Result<()> {
        let paths = done_in_part(operation, is_short);
        let cleared = |mut tree: Tree| {
            for path in &paths {
                if let Some(node) = tree.nodes.get_mut(&(*path).into()) {
                    (node.size, node.content, node.mtime) = (0, Digest::default(), None);
                }
            }
            tree
        };
        let (want, have) = (cleared(self.model.tree()), cleared(self.subject.tree()?));
        let difference = want.difference(&have);
        ensure!(
            difference.is_none(),
            "the operation failed, but changed:\n{}",
            difference.unwrap_or_default()
        );
        Ok(())
    }

    /// Checks law 2.
    fn end(mut self) -> Result<()> {
        let synced = self.subject.apply(&Operation::Sync)?;
        if matches!(synced, Outcome::Failed(_)) {
            ensure!(self.kind.is_data_write(), "the last sync: {synced:?}");
            return self.end_lossy();
        }
        ensure!(self.subject.apply(&Operation::Reopen)? == Outcome::Done, "reopening fails");
        self.model.apply(&Operation::Reopen);
        let difference = self.model.tree().difference(&self.subject.tree()?);
        ensure!(difference.is_none(), "opened again:\n{}", difference.unwrap_or_default());
        drop(self.subject);
        check(&self.medium)
    }

    /// Checks law 3.
    fn end_lossy(self) -> Result<()> {
        drop(self.subject);
        check_crashed(&self.medium)?;
        let mut subject = LibrarySubject::open(Arc::clone(&self.medium))?;
        let have = subject.tree()?;
        check_one_of(self.states.get(self.durable..).context("the last synced state")?, have)
    }
}

/// Checks that one of some states is there, but for the data of files, and all that the states have
/// in common.
fn check_one_of(states: &[Tree], have: Tree) -> Result<()> {
    let is_there = |want: &Tree| names_of(want).difference(&names_of(&have)).is_none();
    ensure!(states.iter().any(is_there), "none of the states since the last sync is there");
    let (first, later) = states.split_first().context("the last synced state")?;
    let mut untouched = first.clone();
    untouched
        .nodes
        .retain(|path, node| later.iter().all(|state| state.nodes.get(path) == Some(&*node)));
    let mut kept = have;
    kept.nodes.retain(|path, _| untouched.nodes.contains_key(path));
    let difference = untouched.difference(&kept);
    ensure!(difference.is_none(), "synced, and gone:\n{}", difference.unwrap_or_default());
    Ok(())
}

fn is_sync(operation: &Operation) -> bool {
    matches!(operation, Operation::Sync | Operation::Fsync { .. })
}

/// Returns the files of which a failed operation, or a copy that returned a short length, may have
/// written a part.
fn done_in_part(operation: &Operation, is_short: bool) -> Vec<&str> {
    let name = |file: &'_ File| match file {
        File::At(path) => script_name(&path.0),
        File::Open(_) => "",
    };
    match operation {
        Operation::Write { file, lane: Lane::Direct, .. } => vec![name(file)],
        Operation::Copy { to, .. } if is_short => vec![name(to)],
        Operation::Batch { requests } => {
            requests.iter().map(|request| name(&request.file)).collect()
        }
        _ => Vec::new(),
    }
}

fn script_name(path: &[u8]) -> &'static str {
    let names = ["plain", "place", "packed", "small", "prealloc"];
    names.into_iter().find(|name| name.as_bytes() == path).unwrap_or_default()
}

/// Returns a tree without the attributes that depend on data, which may be written back at any
/// time.
fn names_of(tree: &Tree) -> Tree {
    let mut tree = tree.closed();
    for node in tree.nodes.values_mut() {
        (node.size, node.content, node.mtime) = (0, Digest::default(), None);
    }
    tree
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

/// Runs a script while one request fails. Returns whether a request failed.
type OneRun<'a> = &'a dyn Fn(Aim, &mut Reached) -> Result<bool>;

/// Fails the requests of a kind, one in each run, until none is left. Returns the number of runs.
/// In a short run, the next request to fail is `1 / spacing` further from the start.
fn fail_each(kind: Kind, spacing: u64, run: OneRun<'_>) -> (u64, Reached) {
    let mut reached = Reached::new();
    let only = std::env::var("BUTTERNUT_ERROR").ok();
    let only = only.and_then(|only| only.split_once(':')?.1.parse::<u64>().ok());
    let (mut nth, mut runs) = (only.unwrap_or(1), 0);
    loop {
        let is_struck = run(Aim { kind, nth, from: None }, &mut reached)
            .unwrap_or_else(|error| panic!("{kind:?}:{nth}: {error:#}"));
        runs += u64::from(is_struck);
        if !is_struck || only.is_some() {
            break;
        }
        // At the beginning many different call sites follow each other.
        nth += match (is_long(), kind) {
            (true, Kind::UncachedRead) => 1 + nth / 16,
            (true, _) => 1,
            (false, _) => 1 + nth / spacing,
        };
    }
    println!("{kind:?}: {runs} runs, {reached:?}");
    (runs, reached)
}

fn check_kind(kind: Kind, expected: &[&'static str]) {
    let template = Template::new().expect("a volume");
    check_runs(kind, 4, expected, &|aim, reached| run(&template, aim, reached));
}

fn check_runs(kind: Kind, spacing: u64, expected: &[&'static str], run: OneRun<'_>) {
    let (runs, reached) = fail_each(kind, spacing, run);
    assert!(runs > 3, "{kind:?}: {runs} runs");
    if is_long() {
        let is_missed =
            |name: &&'static str| !reached.contains_key(name) && !fail_in_step(kind, name, run);
        let missing: Vec<&str> = expected.iter().copied().filter(is_missed).collect();
        assert!(missing.is_empty(), "{kind:?} no longer reaches {missing:?}");
    }
}

/// Fails the first requests of one step, one in each run. Returns whether the step met one:
/// background threads may shift the numbers of requests from run to run.
fn fail_in_step(kind: Kind, name: &'static str, run: OneRun<'_>) -> bool {
    const REQUESTS: u64 = 8;
    let mut reached = Reached::new();
    (1..=REQUESTS).any(|nth| {
        let aim = Aim { kind, nth, from: Some(name) };
        run(aim, &mut reached).unwrap_or_else(|error| panic!("{aim:?}: {error:#}"));
        reached.contains_key(name)
    })
}

#[test]
fn the_script_succeeds_without_errors() {
    let template = Template::new().unwrap();
    let aim = Aim { kind: Kind::Flush, nth: 0, from: None };
    let is_struck = run(&template, aim, &mut Reached::new()).unwrap();
    assert!(!is_struck);
}

#[test]
fn each_reservation_fails() {
    let reached = [
        "chmod",
        "chown",
        "create",
        "link",
        "link tmpfile",
        "mkdir",
        "mknod",
        "outgrow inline",
        "preallocate",
        "punch",
        "punch dirty",
        "remove xattr",
        "rename",
        "rename exchange",
        "rename over",
        "rename whiteout",
        "rmdir",
        "set acl",
        "set flags",
        "set times",
        "set xattr",
        "symlink",
        "sync",
        "tmpfile",
        "truncate",
        "truncate inline",
        "unlink",
        "zero",
        "zero past the end",
    ];
    check_kind(Kind::Reservation, &reached);
}

#[test]
fn each_read_of_metadata_fails() {
    let reached = [
        "append",
        "batch",
        "chmod",
        "chown",
        "copy",
        "create",
        "fsync",
        "grow",
        "link",
        "mkdir",
        "mknod",
        "outgrow inline",
        "preallocate",
        "punch",
        "punch dirty",
        "read cached",
        "read direct",
        "read uncached",
        "remove xattr",
        "rename",
        "rename exchange",
        "rename over",
        "rename whiteout",
        "rmdir",
        "set acl",
        "set flags",
        "set times",
        "set xattr",
        "symlink",
        "tmpfile",
        "truncate",
        "truncate inline",
        "unlink",
        "write cached",
        "write cached part",
        "write compressed",
        "write direct",
        "write direct in place",
        "write direct over compressed",
        "write direct part",
        "write direct past the end",
        "write direct preallocated",
        "write in place",
        "write inline",
        "write preallocated",
        "write uncached part",
        "zero",
        "zero past the end",
    ];
    check_kind(Kind::MetadataRead, &reached);
}

#[test]
fn each_read_of_data_fails() {
    let reached = [
        "batch",
        "copy",
        "grow",
        "punch",
        "punch dirty",
        "read cached",
        "read uncached",
        "truncate",
        "write direct part",
        "zero",
        "zero past the end",
    ];
    check_kind(Kind::DataRead, &reached);
}

#[test]
fn each_write_of_data_fails() {
    let reached = [
        "batch",
        "fsync",
        "sync",
        "write direct",
        "write direct over compressed",
        "write direct past the end",
        "write direct preallocated",
    ];
    check_kind(Kind::DataWrite, &reached);
}

#[test]
fn all_reads_of_data_fail_from_each_one_on() {
    let reached = [
        "batch",
        "copy",
        "grow",
        "punch",
        "read cached",
        "read direct",
        "read uncached",
        "truncate",
        "write direct part",
        "zero",
    ];
    check_kind(Kind::DataReads, &reached);
}

#[test]
fn all_writes_of_data_fail_from_each_one_on() {
    check_kind(Kind::DataWrites, &["batch", "fsync", "sync", "write direct"]);
}

#[test]
fn each_write_of_metadata_fails() {
    let reached = ["fsync", "sync"];
    check_kind(Kind::MetadataWrite, &reached);
}

#[test]
fn each_flush_fails() {
    let reached = ["fsync", "sync"];
    check_kind(Kind::Flush, &reached);
}
