//! What a crash must and may leave of a sequence: [`History`] and [`History::verify`].
//!
//! The history has the world after every action; world 0 is the last commit. A crash may show
//! worlds up to the last action that had begun. Each sync that has returned raises the oldest world
//! that may be shown of what it covers:
//!
//! | sync | covers |
//! |---|---|
//! | fsync of a file | its data, size, mode, extended attributes and names |
//! | fdatasync | its data, size and names |
//! | fsync of a directory | its entries, mode, extended attributes and names |
//!
//! Nothing here depends on how a sync became durable. Rules, where the worlds of a thing are those
//! from the oldest to the newest that may be shown of it:
//!
//! 1. An inode has a mode and extended attributes of one of its worlds, a size of one of them, and
//!    each byte of one of them. So a synced file that did not change later is exactly as it was.
//! 2. An entry of a directory leads to an inode that it had in one of the directory's worlds. It
//!    is absent only if it is absent in one of them. So a rename over a name never leaves it
//!    absent, and a synced directory has exactly its entries.
//! 3. A name of an inode is one of its worlds' names. A link that exists in all worlds of an inode
//!    that was committed or synced is found under one of its names, and under two of them only if
//!    the inode had both at once. A rename keeps the link. An inode that is deleted in one of the
//!    worlds may be absent.
//! 4. An inode that was neither committed nor synced may be absent, or empty.
//! 5. Link counts equal the number of names. Directories have one name, and a size of twice the
//!    bytes of their entries' names.

use super::model::{Inode, Kind, Link, Name, ROOT, World};
use super::step::Verb;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// A sync that has returned.
#[derive(Clone, Copy, Debug)]
pub struct Synced {
    pub inode: usize,
    pub verb: Verb,
    /// The world when it was called.
    pub world: usize,
    /// The position of the device's log when it had returned.
    pub position: usize,
}

/// Everything that was true while a sequence ran.
#[derive(Clone, Debug)]
pub struct History {
    pub worlds: Vec<World>,
    /// The position of the device's log when the action that led to each world began.
    pub begun: Vec<usize>,
    pub syncs: Vec<Synced>,
    /// The inode numbers of the volume, by the numbers of the model.
    pub inos: Vec<u64>,
}

/// An inode as a volume shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub inode: Inode,
    pub nlink: u64,
    pub size: u64,
}

/// All that a volume shows, by inode numbers of the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub inodes: BTreeMap<u64, Shown>,
    pub names: BTreeMap<(u64, String), u64>,
}

/// The worlds that a crash may show of an inode.
#[derive(Clone, Copy, Debug, Default)]
struct Oldest {
    data: usize,
    attributes: usize,
    names: usize,
    entries: usize,
    is_synced: bool,
}

/// One comparison.
struct Judgement<'a> {
    history: &'a History,
    newest: usize,
    oldest: Vec<Oldest>,
    observed: &'a Observed,
    /// The names that were found, in terms of the model.
    names: BTreeMap<Name, usize>,
}

impl History {
    /// Compares what a volume shows after a crash at a position of the device's log.
    pub fn verify(&self, position: usize, observed: &Observed) -> Result<()> {
        let newest = self.begun.iter().rposition(|at| *at < position).unwrap_or(0);
        let returned = self.syncs.iter().filter(|synced| synced.position <= position);
        self.judge(newest, returned, observed)
    }

    fn judge<'a>(
        &self,
        mut newest: usize,
        returned: impl Iterator<Item = &'a Synced>,
        observed: &Observed,
    ) -> Result<()> {
        let mut oldest = vec![Oldest::default(); self.inos.len()];
        for synced in returned {
            let of = &mut oldest[synced.inode];
            // A sync of an unchanged file writes nothing.
            newest = newest.max(synced.world);
            of.is_synced = true;
            of.names = synced.world;
            of.data = synced.world;
            if synced.verb != Verb::Fdatasync {
                of.attributes = synced.world;
            }
            if synced.verb == Verb::FsyncDirectory {
                of.entries = synced.world;
            }
        }
        let mut judgement =
            Judgement { history: self, newest, oldest, observed, names: BTreeMap::new() };
        judgement.translate_names()?;
        for inode in 0..self.inos.len() {
            let ino = self.inos[inode];
            judgement.inode(inode).with_context(|| format!("inode {ino} ({inode})"))?;
        }
        Ok(())
    }

    /// Returns the inode numbers that a volume does not show.
    pub fn absent<'a>(&'a self, observed: &'a Observed) -> impl Iterator<Item = u64> + 'a {
        self.inos.iter().copied().filter(|ino| !observed.inodes.contains_key(ino))
    }
}

impl Judgement<'_> {
    fn worlds(&self, oldest: usize) -> &[World] {
        &self.history.worlds[oldest..=self.newest]
    }

    fn number_of(&self, ino: u64) -> Result<usize> {
        let found = self.history.inos.iter().position(|known| *known == ino);
        found.with_context(|| format!("inode {ino} was never created"))
    }

    /// Translates the names and checks them by themselves (rules 2 and 3).
    fn translate_names(&mut self) -> Result<()> {
        for ((dir, name), target) in &self.observed.names {
            let what = || format!("name {name:?} in inode {dir}");
            let dir = self.number_of(*dir).with_context(what)?;
            let target = self.number_of(*target).with_context(what)?;
            let known = self.history.worlds.iter().flat_map(|world| world.names.keys());
            let text = known.map(|name| name.1).find(|known| known == name);
            let text = text.with_context(what).context("it never existed")?;
            self.names.insert((dir, text), target);
        }
        Ok(())
    }

    fn inode(&self, inode: usize) -> Result<()> {
        let ino = self.history.inos[inode];
        let oldest = self.oldest[inode];
        let worlds = self.worlds(oldest.names);
        let is_kept = worlds.iter().all(|world| inode < world.inodes.len())
            && self.history.worlds[self.newest].is_linked(inode);
        let is_known = oldest.is_synced || inode < self.history.worlds[0].inodes.len();
        let Some(shown) = self.observed.inodes.get(&ino) else {
            ensure!(!(is_kept && is_known), "it is absent");
            return Ok(());
        };
        self.content(inode, shown)?;
        if inode != ROOT {
            self.links(inode, shown, is_kept && is_known)?;
        }
        if shown.inode.kind == Kind::Directory {
            self.entries(inode, shown)?;
        }
        Ok(())
    }

    /// Rule 1.
    fn content(&self, inode: usize, shown: &Shown) -> Result<()> {
        let states = |oldest: usize| -> Vec<&Inode> {
            self.worlds(oldest).iter().filter_map(|world| world.inodes.get(inode)).collect()
        };
        let Oldest { data, attributes, .. } = self.oldest[inode];
        let states_of_attributes = states(attributes);
        ensure!(!states_of_attributes.is_empty(), "it exists before its creation");
        let is_known = |have: &dyn Fn(&Inode) -> bool| states_of_attributes.iter().any(|s| have(s));
        ensure!(is_known(&|state| state.kind == shown.inode.kind), "kind {:?}", shown.inode.kind);
        let mode = shown.inode.mode;
        ensure!(is_known(&|state| state.mode == mode), "mode {mode:o}");
        let xattrs = &shown.inode.xattrs;
        ensure!(is_known(&|state| state.xattrs == *xattrs), "extended attributes {xattrs:?}");
        if shown.inode.kind == Kind::Directory {
            return Ok(());
        }
        let states = states(data);
        let have = &*shown.inode.bytes;
        ensure!(shown.size == have.len() as u64, "size {}, {} bytes", shown.size, have.len());
        ensure!(
            states.iter().any(|state| state.bytes.len() == have.len()),
            "size {}, want one of {:?}",
            have.len(),
            states.iter().map(|state| state.bytes.len()).collect::<Vec<_>>()
        );
        if states.iter().any(|state| *state.bytes == *have) {
            return Ok(());
        }
        let wrong = have.iter().enumerate().find(|(at, have)| {
            // Bytes past the end of a state are zeros.
            !states.iter().any(|state| state.bytes.get(*at).unwrap_or(&0) == *have)
        });
        ensure!(wrong.is_none(), "size {}: byte {wrong:?} was never there", have.len());
        Ok(())
    }

    /// Rules 3 and 5 for an inode that is shown.
    fn links(&self, inode: usize, shown: &Shown, is_kept: bool) -> Result<()> {
        let own = self.names.iter().filter(|(_, target)| **target == inode);
        let found: BTreeSet<Name> = own.map(|(name, _)| *name).collect();
        let (count, nlink) = (found.len(), shown.nlink);
        ensure!(nlink == count as u64, "{nlink} links, {count} names: {found:?}");
        let is_single = shown.inode.kind != Kind::Directory || count == 1;
        ensure!(is_single, "a directory with {count} names: {found:?}");
        let worlds = self.worlds(self.oldest[inode].names);
        let mut by_link: BTreeMap<usize, BTreeSet<Name>> = BTreeMap::new();
        let mut in_worlds: BTreeMap<usize, usize> = BTreeMap::new();
        let mut ever = BTreeSet::new();
        for world in worlds {
            for (name, Link { inode: target, number }) in &world.names {
                if *target == inode {
                    by_link.entry(*number).or_default().insert(*name);
                    *in_worlds.entry(*number).or_default() += 1;
                    ever.insert(*name);
                }
            }
        }
        let strange: Vec<&Name> = found.difference(&ever).collect();
        ensure!(strange.is_empty(), "names {strange:?}, want some of {ever:?}");
        for (number, names) in by_link {
            let shown: Vec<&Name> = names.intersection(&found).collect();
            let is_in_all = in_worlds[&number] == worlds.len();
            let is_lost = shown.is_empty() && is_kept && is_in_all;
            ensure!(!is_lost, "no name of {names:?}");
            not_under_two_names(inode, &shown, worlds)?;
        }
        Ok(())
    }

    /// Rules 2 and 5 for a directory that is shown.
    fn entries(&self, dir: usize, shown: &Shown) -> Result<()> {
        let worlds = self.worlds(self.oldest[dir].entries);
        let own = |names: &mut dyn Iterator<Item = &Name>| -> BTreeSet<Name> {
            names.filter(|name| name.0 == dir).copied().collect()
        };
        let found = own(&mut self.names.keys());
        let bytes: usize = found.iter().map(|name| 2 * name.1.len()).sum();
        ensure!(shown.size == bytes as u64, "size {}, want {bytes}", shown.size);
        let known = own(&mut worlds.iter().flat_map(|world| world.names.keys()));
        for name in found.union(&known) {
            let have = self.names.get(name).copied();
            let target = |world: &World| world.names.get(name).map(|link| link.inode);
            ensure!(
                worlds.iter().any(|world| target(world) == have),
                "entry {:?} has inode {have:?}, want one of {:?}",
                name.1,
                worlds.iter().map(target).collect::<Vec<_>>()
            );
        }
        Ok(())
    }
}

/// A rename moves a name: an inode is under two names only if it had both.
fn not_under_two_names(inode: usize, shown: &[&Name], worlds: &[World]) -> Result<()> {
    for (at, one) in shown.iter().enumerate() {
        for other in &shown[at + 1..] {
            let had_both = worlds.iter().any(|world| {
                let is_there =
                    |name: &Name| world.names.get(name).is_some_and(|link| link.inode == inode);
                is_there(one) && is_there(other)
            });
            ensure!(had_both, "under {one:?} and {other:?}, which a rename exchanged");
        }
    }
    Ok(())
}
