//! Runs sequences through the library, and returns what the library shows.

use super::model::{Action, Inode, Kind, Name, ROOT, World, XATTR};
use super::rules::{History, Observed, Shown, Synced};
use super::step::{Initial, Sequence, Verb, parse_steps};
use anyhow::{Context, Result, bail, ensure};
use butternut::server::FilesystemExt;
use butternut::{
    Allocate, File, FileId, FileKind, Filesystem, MountOptions, NewInode, RenameFlags,
    SetAttributes, SetXattr, Tunables,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of the first step of an initial state, which is above those of sequences.
const INITIAL_STEP: usize = 16;
/// Names that a volume may show before the walk ends with an error.
const NAMES_MAX: usize = 1000;

/// A committed initial state on a volume.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub initial: Initial,
    pub world: World,
    ids: Vec<FileId>,
}

/// Returns the options of a run: no committer, and syncs that write to the log.
pub fn options() -> MountOptions {
    let tunables = Tunables::default().log_tree(true);
    MountOptions::default().read_only(false).commit_seconds(0).workers(1).tunables(tunables)
}

/// Makes an initial state on an empty volume, and commits it.
pub fn prepare(initial: Initial, filesystem: &Filesystem) -> Result<Prepared> {
    let mut world = World::default();
    let mut ids = vec![filesystem.root()];
    for (at, step) in parse_steps(initial.steps)?.into_iter().enumerate() {
        let actions = world.plan(step, INITIAL_STEP + at);
        for action in actions.with_context(|| format!("{}: {step} fails", initial.name))? {
            perform(filesystem, &mut ids, &action).with_context(|| step.to_string())?;
            world.apply(&action);
        }
    }
    filesystem.sync()?;
    Ok(Prepared { initial, world, ids })
}

/// Returns the initial state that the steps of this initial state make, without a volume.
pub fn expected(initial: Initial) -> Result<World> {
    let mut world = World::default();
    for (at, step) in parse_steps(initial.steps)?.into_iter().enumerate() {
        let actions = world.plan(step, INITIAL_STEP + at);
        for action in actions.with_context(|| format!("{}: {step} fails", initial.name))? {
            world.apply(&action);
        }
    }
    Ok(world)
}

/// Runs a sequence on a volume in its initial state. `position` returns the position of the
/// device's log.
pub fn run(
    prepared: &Prepared,
    sequence: &Sequence,
    filesystem: &Filesystem,
    position: &dyn Fn() -> usize,
) -> Result<History> {
    let mut ids = prepared.ids.clone();
    let mut history = History {
        worlds: vec![prepared.world.clone()],
        begun: vec![0],
        syncs: Vec::new(),
        inos: Vec::new(),
    };
    for (number, step) in sequence.steps.iter().enumerate() {
        let mut world = history.worlds.last().context("a world")?.clone();
        let actions = world.plan(*step, number).with_context(|| format!("{step} fails"))?;
        for action in actions {
            let begun = position();
            perform(filesystem, &mut ids, &action).with_context(|| step.to_string())?;
            if let Action::Sync { inode, verb } = action {
                let (world, position) = (history.worlds.len() - 1, position());
                history.syncs.push(Synced { inode, verb, world, position });
                continue;
            }
            world.apply(&action);
            history.worlds.push(world.clone());
            history.begun.push(begun);
        }
    }
    history.inos = ids.iter().map(|id| id.ino).collect();
    Ok(history)
}

fn perform(filesystem: &Filesystem, ids: &mut Vec<FileId>, action: &Action) -> Result<()> {
    let at = |name: &Name| (ids[name.0], name.1.as_bytes());
    match action {
        Action::Make { at: name, kind } => {
            let (dir, name) = at(name);
            let Inode { mode, bytes, .. } = Inode::new(*kind);
            let new = NewInode::new(mode);
            let id = match kind {
                Kind::File => filesystem.create(dir, name, &new)?,
                Kind::Directory => filesystem.mkdir(dir, name, &new)?,
                Kind::Symlink => filesystem.symlink(dir, name, &bytes, &new)?,
            };
            ids.push(id);
        }
        Action::Link { inode, at: name } => {
            let (dir, name) = at(name);
            filesystem.link(ids[*inode], dir, name)?;
        }
        Action::Rename { from, to } => {
            filesystem.rename(at(from), at(to), RenameFlags::default())?;
        }
        Action::Exchange { from, to } => {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            filesystem.rename(at(from), at(to), flags)?;
        }
        Action::Unlink { at: name } => filesystem.unlink(at(name).0, at(name).1)?,
        Action::Rmdir { at: name } => filesystem.rmdir(at(name).0, at(name).1)?,
        Action::SetXattr { inode, value } => {
            filesystem.set_xattr(ids[*inode], XATTR.as_bytes(), value, SetXattr::Either)?;
        }
        Action::RemoveXattr { inode } => {
            filesystem.remove_xattr(ids[*inode], XATTR.as_bytes())?;
        }
        Action::Chmod { inode, mode } => {
            let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
            filesystem.set_attributes(ids[*inode], &set)?;
        }
        Action::Sync { inode, verb } => sync(filesystem, ids[*inode], *verb)?,
        Action::Write { inode, .. }
        | Action::Truncate { inode, .. }
        | Action::Punch { inode, .. }
        | Action::Preallocate { inode, .. } => {
            change_data(&filesystem.open_file(ids[*inode])?, action)?;
        }
    }
    Ok(())
}

fn change_data(file: &File, action: &Action) -> Result<()> {
    match action {
        Action::Write { offset, bytes, .. } => file.write_all_at(*offset, bytes)?,
        Action::Truncate { size, .. } => file.truncate(*size)?,
        Action::Punch { range, .. } => file.allocate(range.clone(), Allocate::PunchHole)?,
        Action::Preallocate { range, .. } => file.allocate(range.clone(), Allocate::KeepSize)?,
        _ => bail!("{action:?} does not change data"),
    }
    Ok(())
}

/// A directory is synced as the FUSE mount syncs it for FSYNCDIR.
fn sync(filesystem: &Filesystem, id: FileId, verb: Verb) -> Result<()> {
    match verb {
        Verb::Fsync => filesystem.open_file(id)?.sync_all()?,
        Verb::Fdatasync => filesystem.open_file(id)?.sync_data()?,
        Verb::FsyncDirectory => filesystem.sync_names()?,
        _ => bail!("{verb:?} is no sync"),
    }
    Ok(())
}

/// Returns everything that the library shows.
pub fn observe(filesystem: &Filesystem) -> Result<Observed> {
    let mut observed = Observed::default();
    let root = filesystem.root();
    let mut directories = vec![root];
    observed.inodes.insert(root.ino, shown(filesystem, root)?);
    while let Some(dir) = directories.pop() {
        for entry in filesystem.read_dir(dir, 0)? {
            let entry = entry?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let looked_up = filesystem.lookup(dir, &entry.name)?;
            ensure!(looked_up == entry.id, "{name}: listed {:?}, found {looked_up:?}", entry.id);
            observed.names.insert((dir.ino, name.clone()), entry.id.ino);
            ensure!(observed.names.len() <= NAMES_MAX, "more than {NAMES_MAX} names");
            if observed.inodes.contains_key(&entry.id.ino) {
                continue;
            }
            let shown = shown(filesystem, entry.id).with_context(|| format!("reading {name}"))?;
            if shown.inode.kind == Kind::Directory {
                directories.push(entry.id);
                let parent = filesystem.parent(entry.id)?;
                ensure!(parent == dir, "{name}: in {dir:?}, its parent is {parent:?}");
            }
            ensure!(kind_of(entry.kind)? == shown.inode.kind, "{name}: kind {:?}", entry.kind);
            observed.inodes.insert(entry.id.ino, shown);
        }
    }
    Ok(observed)
}

fn kind_of(kind: FileKind) -> Result<Kind> {
    match kind {
        FileKind::File => Ok(Kind::File),
        FileKind::Directory => Ok(Kind::Directory),
        FileKind::Symlink => Ok(Kind::Symlink),
        _ => bail!("{kind:?} was never created"),
    }
}

fn shown(filesystem: &Filesystem, id: FileId) -> Result<Shown> {
    let stat = filesystem.stat(id)?;
    let kind = kind_of(stat.kind)?;
    let bytes = match kind {
        Kind::File => {
            let mut bytes = vec![0; usize::try_from(stat.size)?];
            filesystem.open_file(id)?.read_exact_at(0, &mut bytes)?;
            bytes
        }
        Kind::Directory => Vec::new(),
        Kind::Symlink => filesystem.read_link(id)?,
    };
    let mut xattrs = BTreeMap::new();
    for key in filesystem.xattr_names(id)? {
        let value = filesystem.xattr(id, &key)?;
        xattrs.insert(String::from_utf8_lossy(&key).into_owned(), value);
    }
    let inode = Inode { kind, bytes: Arc::new(bytes), mode: stat.mode & 0o7777, xattrs };
    Ok(Shown { inode, nlink: stat.nlink.into(), size: stat.size })
}

/// Fails if an inode that the volume does not show still exists: an orphan that is not deleted.
pub fn no_orphans(filesystem: &Filesystem, history: &History, observed: &Observed) -> Result<()> {
    let subvolume = filesystem.root().subvolume;
    for ino in history.absent(observed) {
        let left = filesystem.stat(FileId::new(subvolume, ino));
        ensure!(left.is_err(), "inode {ino} has no name, and was not deleted");
    }
    ensure!(observed.inodes.contains_key(&history.inos[ROOT]), "no root");
    Ok(())
}
