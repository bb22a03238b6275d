//! All sequences of one or two operations and a sync, and seeded samples of longer ones.
//!
//! Only steps that succeed and change something are enumerated. A sync is of an inode that an
//! earlier step named, or of a directory that such an inode is or was in.

use super::library::expected;
use super::model::{Kind, ROOT, World};
use super::step::{DIRECTORIES, FILES, Initial, Path, Sequence, Step, VERBS, Verb};
use crate::random::Random;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Attempts at a random sequence before the seed is given up.
const ATTEMPTS: usize = 100;

/// Where the syncs stand in a sequence: operations before each of them.
pub type Shape = &'static [usize];

/// The shapes of which all sequences are verified.
pub const ALL: [Shape; 2] = [&[1], &[2]];
/// The shapes of which there are too many sequences to verify all of them.
pub const SAMPLED: [Shape; 5] = [&[1, 1], &[3], &[1, 2], &[2, 1], &[1, 1, 1]];

/// The state while sequences are built.
#[derive(Clone)]
struct Built {
    steps: Vec<Step>,
    world: World,
    /// Inodes that steps named, and whether their data changed.
    named: BTreeMap<usize, bool>,
    directories: BTreeSet<usize>,
}

/// Returns all operations on the set of names.
fn operations() -> Vec<Step> {
    let all: Vec<Path> = DIRECTORIES.iter().chain(&FILES).copied().collect();
    let mut steps = Vec::new();
    for (verb, _) in VERBS.into_iter().filter(|(verb, _)| !verb.is_sync()) {
        let paths: &[Path] = match verb {
            Verb::Mkdir | Verb::Rmdir => &DIRECTORIES,
            Verb::Rename | Verb::Exchange | Verb::SetXattr | Verb::RemoveXattr | Verb::Chmod => {
                &all
            }
            _ => &FILES,
        };
        for path in paths {
            if !verb.has_two_paths() {
                steps.push(Step::new(verb, path));
                continue;
            }
            let is_directory = DIRECTORIES.contains(path);
            for to in paths {
                let is_one_kind = is_directory == DIRECTORIES.contains(to);
                let is_ordered = verb != Verb::Exchange || path < to;
                if path != to && is_ordered && (is_one_kind || verb == Verb::Exchange) {
                    steps.push(Step { verb, path, to: Some(to) });
                }
            }
        }
    }
    steps
}

impl Built {
    fn new(world: World) -> Self {
        let (named, directories) = (BTreeMap::new(), BTreeSet::new());
        Self { steps: Vec::new(), world, named, directories }
    }

    /// Adds an operation, if it succeeds.
    fn with(&self, step: Step) -> Option<Self> {
        let actions = self.world.plan(step, self.steps.len())?;
        let mut built = self.clone();
        built.note(step);
        for action in &actions {
            built.world.apply(action);
        }
        built.note(step);
        built.steps.push(step);
        Some(built)
    }

    /// Notes the inodes that a step names.
    fn note(&mut self, step: Step) {
        for path in [Some(step.path), step.to].into_iter().flatten() {
            if let Some(inode) = self.world.find(path) {
                *self.named.entry(inode).or_default() |= step.verb.is_about_data();
            }
            let dir = path.rsplit_once('/').map_or("/", |(dir, _)| dir);
            self.directories.extend(self.world.find(dir));
        }
    }

    /// Returns the syncs that may follow.
    fn syncs(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let targets: BTreeSet<usize> =
            self.named.keys().chain(&self.directories).copied().collect();
        for inode in targets {
            let Some(path) = self.path_of(inode) else { continue };
            match self.world.inodes[inode].kind {
                Kind::Directory => steps.push(Step::new(Verb::FsyncDirectory, path)),
                Kind::Symlink => {}
                Kind::File => {
                    steps.push(Step::new(Verb::Fsync, path));
                    if self.named.get(&inode).is_some_and(|is_changed| *is_changed) {
                        steps.push(Step::new(Verb::Fdatasync, path));
                    }
                }
            }
        }
        steps
    }

    fn path_of(&self, inode: usize) -> Option<Path> {
        if inode == ROOT {
            return Some("/");
        }
        let mut all = DIRECTORIES.iter().chain(&FILES).copied();
        all.find(|path| self.world.find(path) == Some(inode))
    }

    fn with_sync(&self, step: Step) -> Self {
        let mut built = self.clone();
        built.steps.push(step);
        built
    }
}

/// Passes every sequence of a shape to `visit`.
pub fn each(initial: Initial, shape: Shape, visit: &mut dyn FnMut(Sequence)) -> Result<()> {
    let operations = operations();
    let mut kinds = Vec::new();
    for count in shape {
        kinds.extend(std::iter::repeat_n(false, *count));
        kinds.push(true);
    }
    extend(&Built::new(expected(initial)?), &kinds, &operations, &mut |steps| {
        visit(Sequence { initial, steps });
    });
    Ok(())
}

fn extend(built: &Built, kinds: &[bool], operations: &[Step], visit: &mut dyn FnMut(Vec<Step>)) {
    let Some((is_sync, rest)) = kinds.split_first() else {
        return visit(built.steps.clone());
    };
    if *is_sync {
        for step in built.syncs() {
            extend(&built.with_sync(step), rest, operations, visit);
        }
    } else {
        for built in operations.iter().filter_map(|step| built.with(*step)) {
            extend(&built, rest, operations, visit);
        }
    }
}

/// Returns a random sequence of a shape. Half of its operations name an inode or a directory of an
/// earlier one again.
pub fn sample(initial: Initial, shape: Shape, seed: u64) -> Result<Option<Sequence>> {
    let operations = operations();
    let world = expected(initial)?;
    let mut random = Random::new(seed);
    'attempts: for _ in 0..ATTEMPTS {
        let mut built = Built::new(world.clone());
        for count in shape {
            for _ in 0..*count {
                let Some(next) = pick(&built, &operations, &mut random) else {
                    continue 'attempts;
                };
                built = next;
            }
            let syncs = built.syncs();
            if syncs.is_empty() {
                continue 'attempts;
            }
            built = built.with_sync(*random.pick(&syncs));
        }
        return Ok(Some(Sequence { initial, steps: built.steps }));
    }
    Ok(None)
}

/// Returns a random operation that succeeds. First a verb is chosen, so that the many pairs of
/// paths do not crowd out the operations on one.
fn pick(built: &Built, operations: &[Step], random: &mut Random) -> Option<Built> {
    let wants_related = random.one_in(2) && !built.steps.is_empty();
    for _ in 0..ATTEMPTS {
        let verb = random.pick(&VERBS).0;
        let all: Vec<Built> = operations
            .iter()
            .filter(|step| step.verb == verb && (!wants_related || built.is_related(**step)))
            .filter_map(|step| built.with(*step))
            .collect();
        if !all.is_empty() {
            return Some(random.pick(&all).clone());
        }
    }
    None
}

impl Built {
    /// Whether a step has a path of an earlier one.
    fn is_related(&self, step: Step) -> bool {
        let paths = |step: &Step| [Some(step.path), step.to].into_iter().flatten();
        let earlier: BTreeSet<Path> = self.steps.iter().flat_map(paths).collect();
        paths(&step).any(|path| earlier.contains(path))
    }
}
