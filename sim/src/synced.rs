//! A seeded workload of files that are synced one by one, and a model of what is durable.
//!
//! The workload creates, writes, truncates, punches, renames, links and deletes files in three
//! directories through the library, and syncs some of them. The model keeps, for each file, its
//! state at the moment that made it durable: its own sync, or a commit. So it knows exactly what a
//! crash between two steps leaves, whether a sync of a file commits or writes to the log.
//!
//! 1. The filesystem has no committer, so nothing becomes durable but by a sync.
//! 2. A sync that the log makes durable covers its file and its names. It also covers the names of
//!    each inode that a replay would otherwise lose or leave in a wrong place: what had one of
//!    these names, and what has a name that one of these inodes has lost.
//! 3. A sync of a file that commits covers all names, and the data of its file only. The workload
//!    syncs everything right after it ([`Step::Inexact`]).

use crate::random::Random;
use anyhow::{Context, Result, ensure};
use butternut::{
    Allocate, DevicePath, File, FileId, Filesystem, MountOptions, NewInode, RenameFlags,
    SetAttributes, SetXattr, Tunables,
};
use butternut_device::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The directories of the workload, from the root on, which is the first.
pub const DIRECTORIES: [&str; 3] = ["", "x", "y"];
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const BLOCK: u64 = 4096;

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub mode: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

struct Modelled {
    id: FileId,
    now: Content,
    durable: Option<Arc<Content>>,
    committed: Option<Arc<Content>>,
}

/// A name: the number of its directory, and the name in it.
pub type Name = (usize, &'static str);

/// A file as a crash leaves it.
#[derive(Clone, Debug)]
pub struct DurableFile {
    pub id: FileId,
    pub content: Arc<Content>,
}

/// Everything that a crash leaves, by name.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    pub names: BTreeMap<Name, DurableFile>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A crash in its course leaves what was durable before it, or after it.
    Exact,
    /// It committed twice: a crash in its course may leave a state between these two.
    Inexact,
}

/// A run of the workload.
pub struct SyncedFiles {
    random: Random,
    filesystem: Filesystem,
    size_max: u64,
    directories: Vec<FileId>,
    files: Vec<Modelled>,
    names: BTreeMap<Name, usize>,
    committed_names: BTreeMap<Name, usize>,
    /// The names that the log gives to files, and those of the last commit that it deletes.
    logged_names: BTreeMap<usize, BTreeSet<Name>>,
    deleted_names: BTreeSet<Name>,
    commits: u64,
    /// Syncs that the log made durable.
    pub fast: u64,
}

/// Returns the options of the workload: no committer, and syncs that write to the log.
pub fn options() -> MountOptions {
    let tunables = Tunables::default().log_tree(true);
    MountOptions::default().read_only(false).commit_seconds(0).tunables(tunables)
}

/// Makes the directories of the workload.
pub fn prepare(devices: Vec<Arc<dyn Device>>) -> Result<()> {
    make_directories(&Filesystem::open_devices(devices, &options())?)
}

/// Makes the directories of the workload in an image.
pub fn prepare_image(image: &std::path::Path) -> Result<()> {
    make_directories(&Filesystem::open(&[DevicePath::from(image)], &options())?)
}

fn make_directories(filesystem: &Filesystem) -> Result<()> {
    for name in &DIRECTORIES[1..] {
        filesystem.mkdir(filesystem.root(), name.as_bytes(), &NewInode::new(0o755))?;
    }
    Ok(filesystem.sync()?)
}

impl SyncedFiles {
    /// Begins a run on a prepared volume that was opened with [`options`]. Files have up to about
    /// `size_max` bytes.
    pub fn new(seed: u64, size_max: u64, filesystem: Filesystem) -> Result<Self> {
        let root = filesystem.root();
        let mut directories = vec![root];
        for name in &DIRECTORIES[1..] {
            directories.push(filesystem.lookup(root, name.as_bytes())?);
        }
        let commits = filesystem.stats().commits;
        Ok(Self {
            random: Random::new(seed),
            filesystem,
            size_max,
            directories,
            files: Vec::new(),
            names: BTreeMap::new(),
            committed_names: BTreeMap::new(),
            logged_names: BTreeMap::new(),
            deleted_names: BTreeSet::new(),
            commits,
            fast: 0,
        })
    }

    /// Ends the run as a crash does: nothing more is written.
    pub fn abandon(self) {
        self.filesystem.abandon();
    }

    /// Returns what a crash would leave now.
    pub fn durable(&self) -> Durable {
        let file = |number: usize| {
            let file = &self.files[number];
            let content = file.durable.clone().expect("a durable name has a durable file");
            DurableFile { id: file.id, content }
        };
        let names = self.durable_names();
        Durable { names: names.into_iter().map(|(name, number)| (name, file(number))).collect() }
    }

    /// Replays the names of the log.
    fn durable_names(&self) -> BTreeMap<Name, usize> {
        let mut names = self.committed_names.clone();
        names.retain(|name, file| {
            let has_moved = |logged: &BTreeSet<Name>| logged.iter().any(|new| new.0 == name.0);
            !self.deleted_names.contains(name)
                && !self.logged_names.get(file).is_some_and(has_moved)
        });
        for (file, logged) in &self.logged_names {
            names.extend(logged.iter().map(|name| (*name, *file)));
        }
        names
    }

    fn names_of(names: &BTreeMap<Name, usize>, file: usize) -> BTreeSet<Name> {
        names.iter().filter(|(_, known)| **known == file).map(|(name, _)| *name).collect()
    }

    /// Logs the names of a file, if they changed, and what depends on them (law 2).
    fn log_names(&mut self, file: usize) {
        let known = self.logged_names.get(&file).cloned();
        let known = known.unwrap_or_else(|| Self::names_of(&self.committed_names, file));
        if known == Self::names_of(&self.names, file) {
            return;
        }
        let (mut queue, mut seen) = (vec![file], BTreeSet::from([file]));
        while let Some(number) = queue.pop() {
            let others = self.log_names_of(number);
            queue.extend(others.into_iter().filter(|other| seen.insert(*other)));
        }
    }

    /// Logs the names of one file. Returns the files that depend on them.
    fn log_names_of(&mut self, number: usize) -> BTreeSet<usize> {
        let now = Self::names_of(&self.names, number);
        let committed = Self::names_of(&self.committed_names, number);
        let logged = self.logged_names.remove(&number).unwrap_or_default();
        let mut others = BTreeSet::new();
        for name in &now {
            others.extend(self.committed_names.get(name));
            let at = self.logged_names.iter().filter(|(_, names)| names.contains(name));
            others.extend(at.map(|(other, _)| *other));
        }
        for name in committed.union(&logged).filter(|name| !now.contains(name)) {
            others.extend(self.names.get(name));
            if committed.contains(name) {
                self.deleted_names.insert(*name);
            }
        }
        let state = &mut self.files[number];
        if now.is_empty() {
            state.durable.clone_from(&state.committed);
        } else {
            self.logged_names.insert(number, now);
            let old = state.durable.as_deref();
            let bytes = old.map_or(Vec::new(), |old| old.bytes.clone());
            let mode = old.map_or(state.now.mode, |old| old.mode);
            let xattrs = state.now.xattrs.clone();
            state.durable = Some(Arc::new(Content { bytes, mode, xattrs }));
        }
        others
    }

    fn name(&mut self) -> Name {
        (self.random.index(self.directories.len()), *self.random.pick(&NAMES))
    }

    fn at(&self, name: Name) -> (FileId, &'static [u8]) {
        (self.directories[name.0], name.1.as_bytes())
    }

    /// Chooses a name that a file has.
    fn existing(&mut self) -> Option<(Name, usize)> {
        let at = self.random.index(self.names.len().max(1));
        self.names.iter().nth(at).map(|(name, file)| (*name, *file))
    }

    /// Runs one step.
    pub fn step(&mut self) -> Result<Step> {
        let mut step = Step::Exact;
        match self.random.below(24) {
            0..=3 => self.create()?,
            4 => self.link()?,
            5 => self.rename()?,
            6 => self.unlink()?,
            7 if self.random.one_in(6) => {
                self.filesystem.sync()?;
            }
            7..=17 => self.change()?,
            _ => step = self.fsync()?,
        }
        self.note_commits();
        Ok(step)
    }

    /// A commit makes everything durable.
    fn note_commits(&mut self) {
        let commits = self.filesystem.stats().commits;
        if commits > self.commits {
            self.commits = commits;
            self.committed_names.clone_from(&self.names);
            self.logged_names.clear();
            self.deleted_names.clear();
            for file in &mut self.files {
                file.durable = Some(Arc::new(file.now.clone()));
                file.committed.clone_from(&file.durable);
            }
        }
    }

    fn create(&mut self) -> Result<()> {
        let name = self.name();
        if self.names.contains_key(&name) {
            return Ok(());
        }
        let (dir, text) = self.at(name);
        let id = self.filesystem.create(dir, text, &NewInode::new(0o644))?;
        let now = Content { mode: 0o644, ..Content::default() };
        self.names.insert(name, self.files.len());
        self.files.push(Modelled { id, now, durable: None, committed: None });
        if self.random.one_in(2) { self.change_file(self.files.len() - 1) } else { Ok(()) }
    }

    fn link(&mut self) -> Result<()> {
        let new = self.name();
        let Some((_, file)) = self.existing().filter(|_| !self.names.contains_key(&new)) else {
            return Ok(());
        };
        let (dir, text) = self.at(new);
        self.filesystem.link(self.files[file].id, dir, text)?;
        self.names.insert(new, file);
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let new = self.name();
        let Some((old, file)) = self.existing() else { return Ok(()) };
        if self.names.get(&new) == Some(&file) {
            return Ok(());
        }
        self.filesystem.rename(self.at(old), self.at(new), RenameFlags::default())?;
        self.names.remove(&old);
        self.names.insert(new, file);
        Ok(())
    }

    fn unlink(&mut self) -> Result<()> {
        let Some((name, _)) = self.existing() else { return Ok(()) };
        let (dir, text) = self.at(name);
        self.filesystem.unlink(dir, text)?;
        self.names.remove(&name);
        Ok(())
    }

    fn change(&mut self) -> Result<()> {
        let Some((_, file)) = self.existing() else { return Ok(()) };
        self.change_file(file)
    }

    fn range(&mut self) -> (u64, u64) {
        let (start, bytes) =
            (self.random.below(self.size_max), 1 + self.random.below(self.size_max / 3));
        if self.random.one_in(2) {
            (start / BLOCK * BLOCK, bytes.next_multiple_of(BLOCK))
        } else {
            (start, bytes)
        }
    }

    fn change_file(&mut self, file: usize) -> Result<()> {
        let id = self.files[file].id;
        let open = self.filesystem.open_file(id)?;
        let (start, bytes) = self.range();
        let kind = self.random.below(12);
        let byte = u8::try_from(self.random.below(256))?;
        let small = self.random.below(1500);
        let content = &mut self.files[file].now;
        match kind {
            0..=3 => write(&open, content, start, bytes, byte, false)?,
            4 => write(&open, content, 0, small, byte, false)?,
            5 => write(
                &open,
                content,
                start / BLOCK * BLOCK,
                bytes.next_multiple_of(BLOCK),
                byte,
                true,
            )?,
            6 => {
                open.truncate(start)?;
                content.bytes.resize(usize::try_from(start)?, 0);
            }
            7 | 8 => {
                let how = if kind == 7 { Allocate::PunchHole } else { Allocate::ZeroKeepSize };
                open.allocate(start..start + bytes, how)?;
                let end = content.bytes.len().min(usize::try_from(start + bytes)?);
                let start = end.min(usize::try_from(start)?);
                content.bytes[start..end].fill(0);
            }
            9 => open.allocate(start..start + bytes, Allocate::KeepSize)?,
            10 => {
                let mode = 0o600 | u32::from(byte & 0o77);
                self.filesystem.set_attributes(
                    id,
                    &SetAttributes { mode: Some(mode), ..SetAttributes::default() },
                )?;
                content.mode = mode;
            }
            _ => {
                let key = format!("user.{}", ["one", "two", "three"][usize::from(byte) % 3]);
                if byte.is_multiple_of(4) && content.xattrs.remove(&key).is_some() {
                    self.filesystem.remove_xattr(id, key.as_bytes())?;
                } else {
                    let value = vec![byte; usize::from(byte)];
                    self.filesystem.set_xattr(id, key.as_bytes(), &value, SetXattr::Either)?;
                    content.xattrs.insert(key, value);
                }
            }
        }
        Ok(())
    }

    fn fsync(&mut self) -> Result<Step> {
        let Some((_, file)) = self.existing() else { return Ok(Step::Exact) };
        let before = self.filesystem.sync_counts().fast;
        self.filesystem.open_file(self.files[file].id)?.sync_all()?;
        let is_fast = self.filesystem.sync_counts().fast > before;
        if !is_fast {
            // The commit has only the data of this file: bring the others to a known state, too.
            self.filesystem.sync()?;
        }
        self.note_commits();
        if is_fast {
            self.fast += 1;
            self.log_names(file);
            self.files[file].durable = Some(Arc::new(self.files[file].now.clone()));
        }
        Ok(if is_fast { Step::Exact } else { Step::Inexact })
    }
}

fn write(
    file: &File,
    content: &mut Content,
    start: u64,
    bytes: u64,
    first: u8,
    is_direct: bool,
) -> Result<()> {
    let data: Vec<u8> =
        (0..bytes).map(|at| first.wrapping_add((at / 97 % 256).to_le_bytes()[0])).collect();
    if is_direct {
        let written = file.write_direct(start, &data, butternut::Privileges::Keep)?;
        ensure!(written == data.len(), "a short direct write");
    } else {
        file.write_all_at(start, &data)?;
    }
    let (start, end) = (usize::try_from(start)?, usize::try_from(start + bytes)?);
    if content.bytes.len() < end {
        content.bytes.resize(end, 0);
    }
    content.bytes[start..end].copy_from_slice(&data);
    Ok(())
}

impl Durable {
    /// Compares everything with what the library shows.
    pub fn compare(&self, filesystem: &Filesystem) -> Result<()> {
        let root = filesystem.root();
        for (number, dir) in DIRECTORIES.into_iter().enumerate() {
            let id = if dir.is_empty() { root } else { filesystem.lookup(root, dir.as_bytes())? };
            let entries = filesystem.read_dir(id, 0)?.collect::<butternut::Result<Vec<_>>>()?;
            let listed = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name));
            let listed = listed.filter(|name| name != "." && name != "..").map(Into::into);
            self.compare_names(number, &listed.collect())?;
        }
        for (name, want) in &self.names {
            let path = format!("/{}/{}", DIRECTORIES[name.0], name.1);
            let open = filesystem.open_path(path.as_bytes())?;
            let stat = open.metadata()?;
            ensure!(open.id() == want.id, "{name:?}: {:?}", open.id());
            let mut have = Content { mode: stat.mode & 0o7777, ..Content::default() };
            have.bytes.resize(usize::try_from(open.len())?, 0);
            open.read_exact_at(0, &mut have.bytes)?;
            for key in filesystem.xattr_names(open.id())? {
                let value = filesystem.xattr(open.id(), &key)?;
                have.xattrs.insert(String::from_utf8_lossy(&key).into_owned(), value);
            }
            self.compare_file(*name, &have, stat.nlink.into())?;
        }
        Ok(())
    }

    /// Compares the names of one directory.
    pub fn compare_names(&self, dir: usize, have: &BTreeSet<String>) -> Result<()> {
        let own = self.names.keys().filter(|name| name.0 == dir).map(|name| name.1.to_owned());
        let mut want: BTreeSet<String> = own.collect();
        if dir == 0 {
            want.extend(DIRECTORIES[1..].iter().map(|name| (*name).to_owned()));
        }
        ensure!(*have == want, "directory {:?}: have {have:?}, want {want:?}", DIRECTORIES[dir]);
        Ok(())
    }

    /// Compares one file.
    pub fn compare_file(&self, name: Name, have: &Content, nlink: u64) -> Result<()> {
        let file = self.names.get(&name).context("a name of the model")?;
        let want = &*file.content;
        let links = self.names.values().filter(|other| other.id == file.id).count();
        ensure!(nlink == links as u64, "{name:?}: {nlink} links, want {links}");
        ensure!(have.mode == want.mode, "{name:?}: mode {:o}, want {:o}", have.mode, want.mode);
        let (bytes, wanted) = (have.bytes.len(), want.bytes.len());
        ensure!(bytes == wanted, "{name:?}: {bytes} bytes, want {wanted}");
        let differs = have.bytes.iter().zip(&want.bytes).position(|(have, want)| have != want);
        ensure!(differs.is_none(), "{name:?}: byte {differs:?} differs");
        ensure!(have.xattrs == want.xattrs, "{name:?}: extended attributes differ");
        Ok(())
    }
}
