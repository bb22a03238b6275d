//! Crashes while subvolumes and snapshots are made, changed, renamed, exchanged, deleted and freed:
//! each leaves what was durable, and the next open goes on with what was being freed. Every second
//! workload has quotas, whose numbers are exact after each crash.
//!
//! `BUTTERNUT_LONG=1` checks more workloads; `BUTTERNUT_SEED=N` checks one.

use anyhow::{Context, Result, ensure};
use butternut::format::quota::STATUS_INCONSISTENT;
use butternut::{
    FileId, FileKind, Filesystem, Follow, MountOptions, NewInode, RecursiveSnapshot, RenameFlags,
    SnapshotAccess,
};
use butternut_device::{Crash, CrashImage, CrashOptions, Device, RecordingDevice};
use butternut_mkfs::MkfsOptions;
use butternut_sim::crash::{JudgeOptions, StoryBuilder, Verdict, judge};
use butternut_sim::random::Random;
use butternut_sim::volume::{check_crashed, fresh, is_super_block};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 256 << 20;
const STEPS: usize = 24;
const SUBVOLUMES_MAX: usize = 7;
const FILES: usize = 40;

/// The name of a subvolume inside another one.
const INNER: &[u8] = b"inner";

/// The contents of a volume: of each subvolume, by its path, its files.
type Contents = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

struct Run {
    random: Random,
    filesystem: Filesystem,
    contents: Contents,
    made: usize,
}

fn options() -> MountOptions {
    MountOptions::default().read_only(false).commit_seconds(0)
}

fn new(permissions: u32) -> NewInode {
    NewInode { permissions, umask: 0, uid: 1000, gid: 100 }
}

impl Run {
    /// Makes one change of the volume and syncs it.
    fn step(&mut self) -> Result<()> {
        let count = self.contents.len();
        match self.random.index(12) {
            0..4 if count > 0 => self.write()?,
            4 | 5 if count < SUBVOLUMES_MAX => self.create()?,
            6 | 7 if count > 0 && count < SUBVOLUMES_MAX => self.snapshot()?,
            8 if count > 1 => self.delete()?,
            10 if count > 0 => self.rename()?,
            11 if count > 1 => self.exchange()?,
            _ => self.clean()?,
        }
        Ok(self.filesystem.sync()?)
    }

    fn name(&mut self) -> Vec<u8> {
        self.made += 1;
        format!("sub{}", self.made).into_bytes()
    }

    fn any(&mut self) -> Vec<u8> {
        let at = self.random.index(self.contents.len());
        self.contents.keys().nth(at).cloned().unwrap_or_default()
    }

    fn create(&mut self) -> Result<()> {
        let mut path = self.name();
        let (mut dir, mut name) = (self.filesystem.root(), path.clone());
        if !self.contents.is_empty() && self.random.index(2) == 0 {
            let parent = self.any();
            let within = self.filesystem.resolve(&parent, Follow::Last)?;
            // A snapshot has an empty directory in the place of a subvolume in its source.
            if self.filesystem.lookup(within, INNER).is_err() {
                (dir, path, name) = (within, inner_path(&parent), INNER.to_vec());
            }
        }
        self.filesystem.create_subvolume(dir, &name, &new(0o755))?;
        self.contents.insert(path, BTreeMap::new());
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let name = self.any();
        let dir = self.filesystem.resolve(&name, Follow::Last)?;
        let file = format!("file{}", self.random.index(FILES)).into_bytes();
        let bytes = vec![u8::try_from(self.random.index(256))?; self.random.index(20_000)];
        if self.filesystem.lookup(dir, &file).is_ok() {
            self.filesystem.unlink(dir, &file)?;
        }
        let id = self.filesystem.create(dir, &file, &new(0o644))?;
        self.filesystem.open_file(id)?.write_at(0, &bytes)?;
        self.contents.entry(name).or_default().insert(file, bytes);
        Ok(())
    }

    fn snapshot(&mut self) -> Result<()> {
        let (source, name) = (self.any(), self.name());
        let id = self.filesystem.resolve(&source, Follow::Last)?.subvolume;
        let (access, root) = (SnapshotAccess::ReadWrite, self.filesystem.root());
        let is_recursive = self.random.index(3) > 0;
        if is_recursive {
            let options = RecursiveSnapshot::new(access);
            self.filesystem.snapshot_recursive(id, root, &name, options)?;
        } else {
            self.filesystem.snapshot(id, root, &name, access)?;
        }
        let is_copied = |path: &[u8]| {
            let rest = path.strip_prefix(&source[..]);
            rest.is_some_and(|rest| rest.is_empty() || (is_recursive && rest[0] == b'/'))
        };
        let sources = self.contents.iter().filter(|(path, _)| is_copied(path));
        let copies: Vec<_> = sources
            .map(|(path, files)| ([&name, &path[source.len()..]].concat(), files.clone()))
            .collect();
        self.contents.extend(copies);
        Ok(())
    }

    /// Deletes a subvolume that contains no other one.
    fn delete(&mut self) -> Result<()> {
        let mut path = self.any();
        while self.contents.contains_key(&inner_path(&path)) {
            path = inner_path(&path);
        }
        let (dir, name) = self.place(&path)?;
        self.filesystem.delete_subvolume(dir, name)?;
        self.contents.remove(&path);
        Ok(())
    }

    /// Returns the directory of a path, and the name there.
    fn place<'p>(&self, path: &'p [u8]) -> Result<(FileId, &'p [u8])> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        Ok(match slash {
            Some(at) => (self.filesystem.resolve(&path[..at], Follow::Last)?, &path[at + 1..]),
            None => (self.filesystem.root(), path),
        })
    }

    /// Moves a subvolume to the top, over an empty directory.
    fn rename(&mut self) -> Result<()> {
        let (from, to) = (self.any(), self.name());
        self.filesystem.mkdir(self.filesystem.root(), &to, &new(0o755))?;
        let flags = RenameFlags::default();
        self.filesystem.rename(self.place(&from)?, self.place(&to)?, flags)?;
        self.swap(&from, &to);
        Ok(())
    }

    /// Exchanges two subvolumes, of which none is inside the other.
    fn exchange(&mut self) -> Result<()> {
        let (one, other) = (self.any(), self.any());
        let is_inside = |one: &[u8], other: &[u8]| {
            one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if is_inside(&one, &other) || is_inside(&other, &one) {
            return Ok(());
        }
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        self.filesystem.rename(self.place(&one)?, self.place(&other)?, flags)?;
        self.swap(&one, &other);
        Ok(())
    }

    /// Exchanges what is at two paths, and below them.
    fn swap(&mut self, one: &[u8], other: &[u8]) {
        let moved = |path: Vec<u8>| {
            let to = |from: &[u8], to: &[u8]| {
                let rest = path.strip_prefix(from)?;
                (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
            };
            to(one, other).or_else(|| to(other, one)).unwrap_or(path)
        };
        let contents = std::mem::take(&mut self.contents);
        self.contents = contents.into_iter().map(|(path, files)| (moved(path), files)).collect();
    }

    /// Frees a part of what was deleted.
    fn clean(&mut self) -> Result<()> {
        let left = Cell::new(self.random.index(4));
        let goes_on = || left.replace(left.get().saturating_sub(1)) > 0;
        self.filesystem.clean_subvolumes_while(&goes_on)?;
        Ok(())
    }
}

fn inner_path(path: &[u8]) -> Vec<u8> {
    [path, b"/", INNER].concat()
}

/// Reads the contents of a volume.
fn contents(filesystem: &Filesystem) -> Result<Contents> {
    let mut contents = Contents::new();
    let mut subvolumes = entries(filesystem, filesystem.root(), FileKind::Directory)?;
    while let Some((dir, name)) = subvolumes.pop() {
        for (inner, _) in entries(filesystem, dir, FileKind::Directory)? {
            // What a snapshot does not contain is no subvolume of it.
            subvolumes.extend((!inner.is_placeholder()).then(|| (inner, inner_path(&name))));
        }
        let mut files = BTreeMap::new();
        for (file, name) in entries(filesystem, dir, FileKind::File)? {
            let file = filesystem.open_file(file)?;
            let mut bytes = vec![0; usize::try_from(file.len())?];
            file.read_exact_at(0, &mut bytes)?;
            files.insert(name, bytes);
        }
        contents.insert(name, files);
    }
    Ok(contents)
}

fn entries(filesystem: &Filesystem, dir: FileId, kind: FileKind) -> Result<Vec<(FileId, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in filesystem.read_dir(dir, butternut::FIRST_ENTRY)? {
        let entry = entry?;
        if entry.kind == kind && entry.name != b"." && entry.name != b".." {
            found.push((entry.id, entry.name));
        }
    }
    Ok(found)
}

fn check(seed: u64) -> Result<Verdict> {
    let base = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let device = Arc::new(RecordingDevice::new(base));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as Arc<dyn Device>];
    let filesystem = Filesystem::open_devices(devices, &options())?;
    match seed % 4 {
        1 => ensure!(filesystem.enable_quotas()?, "quotas are enabled already"),
        3 => ensure!(filesystem.enable_simple_quotas()?, "quotas are enabled already"),
        _ => {}
    }
    let (random, contents) = (Random::new(seed), Contents::new());
    let mut run = Run { random, filesystem, contents, made: 0 };
    let mut builder = StoryBuilder::default();
    let mut states = vec![Contents::new()];
    for number in 0..STEPS {
        builder.begin_step(&device);
        run.step().with_context(|| format!("step {number}"))?;
        builder.mark_all_durable(&device);
        states.push(run.contents.clone());
    }
    run.filesystem.abandon();
    drop(run);
    let story = builder.end(&device);
    let crashes = CrashOptions { seed, seeded_per_gap: 3, pivotal: is_super_block };
    let options = JudgeOptions { crashes, threads: 2, one_in: 1 };
    let verify = |crash: &Crash, image: CrashImage, allowed: RangeInclusive<usize>| {
        verify(&states, crash, image, allowed).map_err(|error| format!("{error:#}"))
    };
    Ok(judge(&story, &options, &verify))
}

/// Checks that the usage of all quota groups is that of a rescan.
fn check_quotas(filesystem: &Filesystem) -> Result<()> {
    let usage = || -> Result<_> {
        let quotas = filesystem.quotas()?.context("quotas are disabled")?;
        ensure!(quotas.status.flags & STATUS_INCONSISTENT == 0, "the usage is inconsistent");
        Ok(quotas.groups)
    };
    // The last step of a deletion may be in no commit yet.
    filesystem.sync()?;
    let have = usage()?;
    filesystem.rescan_quotas()?;
    let want = usage()?;
    ensure!(have == want, "the usage is {have:?}, and that of a rescan {want:?}");
    Ok(())
}

fn verify(
    states: &[Contents],
    crash: &Crash,
    image: CrashImage,
    allowed: RangeInclusive<usize>,
) -> Result<()> {
    let image: Arc<dyn Device> = Arc::new(image);
    check_crashed(&image)?;
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&image)], &options())?;
    let have = contents(&filesystem)?;
    let is_allowed = states.get(allowed.clone()).is_some_and(|states| states.contains(&have));
    ensure!(is_allowed, "states {allowed:?}: none has {:?}", have.keys());
    if filesystem.quotas()?.is_some() {
        check_quotas(&filesystem).context("after the crash")?;
    }
    if crash.number.is_multiple_of(2) {
        ensure!(filesystem.clean_subvolumes()?.is_empty(), "nothing is open");
        ensure!(contents(&filesystem)? == have, "changed by the freeing");
        let deleted = filesystem.subvolumes()?.iter().filter(|info| info.deleted).count();
        ensure!(deleted == 0, "{deleted} deleted subvolumes are left");
        if filesystem.quotas()?.is_some() {
            check_quotas(&filesystem).context("after the freeing")?;
        }
    }
    filesystem.close()?;
    check_crashed(&image).context("after the next open")
}

#[test]
fn every_crash_leaves_whole_subvolumes() {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seeds: std::ops::Range<u64> = match only {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 150 } else { 4 },
    };
    let mut sum = Verdict::default();
    for seed in seeds {
        let verdict = check(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        assert_eq!(verdict.failed, 0, "seed {seed}: {verdict}");
        sum.merge(verdict);
    }
    assert!(sum.states >= 100, "{sum}");
}
