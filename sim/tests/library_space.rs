//! The library on a volume on which every n-th reservation fails, or every n-th charge to a quota
//! group. The operation fails with ENOSPC or EDQUOT, changes nothing but data that it had already
//! written, and succeeds once space is available. While growth fails permanently, everything can
//! still be removed.
//!
//! `BUTTERNUT_LONG=1` runs more seeds, and every n up to 100.

#![allow(clippy::wildcard_enum_match_arm, reason = "few operations write bytes")]

use anyhow::{Context, Result, ensure};
use butternut::EnospcInjector;
use butternut_mkfs::MkfsOptions;
use butternut_sim::bytes::Bytes;
use butternut_sim::content::Digest;
use butternut_sim::generator::{Generator, Without};
use butternut_sim::library::LibrarySubject;
use butternut_sim::model::Model;
use butternut_sim::operation::{File, Operation, Outcome};
use butternut_sim::run::Run;
use butternut_sim::subject::Subject;
use butternut_sim::tree::{Kind, Tree};
use butternut_sim::volume::{check, fresh};
use std::sync::Arc;

const VOLUME_BYTES: u64 = 160 << 20;
const STEPS: usize = 150;

/// What is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NoSpace,
    OverQuota,
}

impl Refusal {
    fn outcome(self) -> Outcome {
        Outcome::Failed(match self {
            Self::NoSpace => 28,
            Self::OverQuota => 122,
        })
    }

    /// Makes every n-th request fail.
    fn begin(self, injector: &EnospcInjector, every: u64) {
        match self {
            Self::NoSpace => injector.fail_every(every),
            Self::OverQuota => injector.fail_charges(every),
        }
    }

    /// Makes every request fail that does not free space in the end.
    fn begin_for_growth(self, injector: &EnospcInjector) {
        match self {
            Self::NoSpace => injector.fail_growth(),
            Self::OverQuota => injector.fail_charges(1),
        }
    }
}

/// Counts of a run.
#[derive(Debug, Default)]
struct SpaceCounts {
    /// Operations that failed with the injected error.
    refused: u64,
    /// Those of them that were done in part.
    partly: u64,
    removed: u64,
}

/// Returns a tree without the attributes that depend on the data of a file that was written in
/// part.
fn without_bytes_of(file: Option<&File>, model: &Model, tree: &Tree) -> Tree {
    let number = file.and_then(|file| model.number_of(file));
    let is_it = |other: &File| number.is_some() && model.number_of(other) == number;
    let mut tree = tree.clone();
    let named = tree.nodes.iter_mut().map(|(at, node)| (File::At(at.clone()), node));
    let open = tree.open.iter_mut().map(|(slot, node)| (File::Open(*slot), node));
    for (_, node) in named.chain(open).filter(|(other, _)| is_it(other)) {
        (node.size, node.content, node.mtime) = (0, Digest::default(), None);
    }
    tree
}

/// Returns the file that an operation writes sequentially: it may have written a part before space
/// ran out. Truncating, punching, zeroing and preallocating are atomic.
fn written(operation: &Operation) -> Option<File> {
    match operation {
        Operation::Write { file, .. } | Operation::Copy { to: file, .. } => Some(file.clone()),
        Operation::Append { at, .. } => Some(File::At(at.clone())),
        _ => None,
    }
}

/// Returns the operation that reverts a partial write which has grown its file.
fn cut_back(operation: &Operation, model: &Model) -> Option<Operation> {
    let file = written(operation)?;
    if !matches!(operation, Operation::Append { .. } | Operation::Copy { .. }) {
        return None;
    }
    let tree = model.tree();
    let node = match &file {
        File::At(at) => tree.nodes.get(at),
        File::Open(slot) => tree.open.get(slot),
    };
    Some(Operation::Truncate { size: node?.size, file })
}

/// Checks that a failed operation has changed nothing else.
fn compare_refused(operation: &Operation, model: &Model, have: &Tree) -> Result<bool> {
    let want = model.tree();
    if want.difference(have).is_none() {
        return Ok(false);
    }
    let file = written(operation);
    let cleared = |tree: &Tree| without_bytes_of(file.as_ref(), model, tree);
    let difference = cleared(&want).difference(&cleared(have));
    ensure!(
        difference.is_none(),
        "the operation failed, but changed:\n{}",
        difference.unwrap_or_default()
    );
    Ok(true)
}

fn run(refusal: Refusal, seed: u64, every: u64) -> Result<SpaceCounts> {
    let device = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let enospc_injector = EnospcInjector::default();
    let mut subject = LibrarySubject::open_with_injector(Arc::clone(&device), &enospc_injector)?;
    let mut run = Run::of(&subject);
    let without = Without { reopen: true, guard_flags: true, batches: true, ..Without::default() };
    let mut generator = Generator::new(seed).with_syncs(12).without(without);
    let mut counts = SpaceCounts::default();
    refusal.begin(&enospc_injector, every);
    for step in 0..STEPS {
        let operation = generator.next(&run.model);
        let where_ = || format!("step {step}: {operation:?}");
        let mut model = run.model.clone();
        let want = model.apply(&operation);
        let have = subject.apply(&operation)?;
        let is_short =
            matches!((&have, &want), (Outcome::Copied(have), Outcome::Copied(want)) if have < want);
        if have == want || run.model.accepts_seek(&operation, &have) {
            run.model = model;
            continue;
        }
        ensure!(
            have == refusal.outcome() || is_short,
            "{}: have {have:?}, want {want:?}",
            where_()
        );
        counts.refused += 1;
        if let Operation::Tmpfile { slot, .. } | Operation::Open { slot, .. } = &operation {
            // The subject closes the file in the slot before it reserves space.
            run.model.apply(&Operation::Close { slot: *slot });
        }
        let is_partly =
            compare_refused(&operation, &run.model, &subject.tree()?).with_context(where_)?;
        counts.partly += u64::from(is_partly);
        // Space is available again, so the failed operation succeeds.
        enospc_injector.fail_none();
        if let (true, Some(cut)) = (is_partly, cut_back(&operation, &run.model)) {
            ensure!(
                subject.apply(&cut)? == Outcome::Done,
                "{}: cannot truncate what was written",
                where_()
            );
        }
        let again = subject.apply(&operation)?;
        ensure!(again == want, "{}: again: have {again:?}, want {want:?}", where_());
        let (have, want) = (subject.tree()?, model.tree());
        let difference = want.difference(&have);
        ensure!(difference.is_none(), "{}: {}", where_(), difference.unwrap_or_default());
        run.model = model;
        refusal.begin(&enospc_injector, every);
    }
    enospc_injector.fail_none();
    ensure!(
        counts.refused == 0 || enospc_injector.failed() > 0,
        "an operation failed without an injected error"
    );
    ensure!(subject.apply(&Operation::Reopen)? == Outcome::Done, "reopening fails");
    run.model.apply(&Operation::Reopen);
    let difference = run.model.tree().difference(&subject.tree()?);
    ensure!(difference.is_none(), "reopened:\n{}", difference.unwrap_or_default());
    check(&device)?;
    refusal.begin_for_growth(&enospc_injector);
    counts.removed = remove_all(&mut subject, &mut run.model)?;
    ensure!(subject.apply(&Operation::Sync)? == Outcome::Done, "a sync after the removals fails");
    enospc_injector.fail_none();
    ensure!(subject.apply(&Operation::Reopen)? == Outcome::Done, "reopening fails");
    ensure!(subject.tree()?.nodes.len() == 1, "not all names were removed");
    check(&device)?;
    Ok(counts)
}

/// Removes everything while growth fails.
fn remove_all(subject: &mut LibrarySubject, model: &mut Model) -> Result<u64> {
    let nodes = model.tree().nodes;
    // Children sort behind their parents.
    for (at, node) in nodes.iter().rev().filter(|(at, _)| **at != Bytes::default()) {
        let at = at.clone();
        let removal = match node.kind {
            Kind::Directory => Operation::Rmdir { at },
            _ => Operation::Unlink { at },
        };
        let (have, want) = (subject.apply(&removal)?, model.apply(&removal));
        ensure!(have == want && have == Outcome::Done, "{removal:?}: {have:?}");
    }
    Ok(nodes.len() as u64 - 1)
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

/// Runs seeds with every n-th request refused. Returns the number of runs, and the sum of their
/// counts.
fn run_all(refusal: Refusal) -> (u64, SpaceCounts) {
    let (seeds, most) = if is_long() { (20, 100) } else { (6, 8) };
    let (mut runs, mut sum) = (0, SpaceCounts::default());
    for seed in 0..seeds {
        for every in 1..=most {
            let seen = run(refusal, seed, every).unwrap_or_else(|error| {
                panic!("{refusal:?}, seed {seed}, every {every}: {error:#}")
            });
            runs += 1;
            sum.refused += seen.refused;
            sum.partly += seen.partly;
            sum.removed += seen.removed;
        }
    }
    (runs, sum)
}

#[test]
fn enospc_changes_nothing_and_can_be_retried() {
    let (runs, sum) = run_all(Refusal::NoSpace);
    println!("{runs} runs: {sum:?}");
    assert!(sum.refused > runs * 2 && sum.partly > 0 && sum.removed > runs, "{sum:?}");
}

#[test]
fn edquot_changes_nothing_and_can_be_retried() {
    let (runs, sum) = run_all(Refusal::OverQuota);
    println!("{runs} runs: {sum:?}");
    assert!(sum.refused > runs * 2 && sum.removed > runs, "{sum:?}");
}
