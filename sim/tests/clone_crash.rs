//! Crashes while files share extents, change and delete what they share, and are defragmented:
//! each leaves what was durable. Steps end with a sync of the volume, or of the one file that they
//! changed, which writes the log.
//!
//! `BUTTERNUT_LONG=1` checks more workloads; `BUTTERNUT_SEED=N` checks one.

use anyhow::{Context, Result, ensure};
use butternut::{
    Compression, Compressor, DefragmentOptions, File, FileId, Filesystem, MountOptions, NewInode,
    SharedExtents,
};
use butternut_device::{Crash, CrashImage, CrashOptions, Device, RecordingDevice};
use butternut_mkfs::MkfsOptions;
use butternut_sim::crash::{JudgeOptions, StoryBuilder, Verdict, judge};
use butternut_sim::random::Random;
use butternut_sim::volume::{check_crashed, fresh, is_super_block};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 256 << 20;
const STEPS: usize = 30;
const FILES: usize = 4;
const BLOCK: u64 = 4096;
const BLOCKS_MAX: usize = 40;

/// The files of a volume.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// The volume after a step.
#[derive(Clone, Debug, Default)]
struct State {
    contents: Contents,
    /// The file that the step synced alone; `None` if it synced the volume.
    synced: Option<Vec<u8>>,
}

struct Run {
    random: Random,
    filesystem: Filesystem,
    contents: Contents,
    /// Whether steps sync the one file that they change.
    logs: bool,
}

fn options() -> MountOptions {
    MountOptions::default().read_only(false).commit_seconds(0)
}

fn in_memory(bytes: u64) -> Result<usize> {
    Ok(usize::try_from(bytes)?)
}

impl Run {
    /// Makes one change of a file and syncs it.
    fn step(&mut self) -> Result<State> {
        let name = format!("file{}", self.random.index(FILES)).into_bytes();
        let file = self.open(&name)?;
        match self.random.index(12) {
            0..3 => self.write(&name, &file)?,
            3..7 => self.clone_range(&name, &file)?,
            7 => self.truncate(&name, &file)?,
            8..11 => self.defragment(&file)?,
            _ => {
                drop(file);
                self.filesystem.unlink(self.filesystem.root(), &name)?;
                self.contents.remove(&name);
                self.filesystem.sync()?;
                return Ok(State { contents: self.contents.clone(), synced: None });
            }
        }
        let synced = (self.logs && !self.random.one_in(5)).then_some(name);
        if synced.is_some() {
            file.sync_all()?;
        } else {
            self.filesystem.sync()?;
        }
        for (name, want) in &self.contents {
            let have =
                bytes_of(&self.filesystem, self.filesystem.lookup(self.filesystem.root(), name)?)?;
            ensure!(have == *want, "{}", difference(name, &have, Some(want)));
        }
        Ok(State { contents: self.contents.clone(), synced })
    }

    fn open(&mut self, name: &[u8]) -> Result<File> {
        let root = self.filesystem.root();
        let id = match self.filesystem.lookup(root, name) {
            Ok(id) => id,
            Err(butternut::Error::NotFound) => {
                let new = NewInode { permissions: 0o644, umask: 0, uid: 1000, gid: 100 };
                self.contents.insert(name.to_vec(), Vec::new());
                self.filesystem.create(root, name, &new)?
            }
            Err(error) => return Err(error.into()),
        };
        Ok(self.filesystem.open_file(id)?)
    }

    fn bytes_of(&mut self, name: &[u8]) -> &mut Vec<u8> {
        self.contents.entry(name.to_vec()).or_default()
    }

    fn write(&mut self, name: &[u8], file: &File) -> Result<()> {
        let bytes = vec![u8::try_from(self.random.index(256))?; self.random.index(60_000)];
        let at = self.random.index(BLOCKS_MAX * 4096);
        file.write_at(u64::try_from(at)?, &bytes)?;
        put(self.bytes_of(name), at, &bytes);
        Ok(())
    }

    /// Clones some blocks of any file, or all of it.
    fn clone_range(&mut self, name: &[u8], file: &File) -> Result<()> {
        let names: Vec<Vec<u8>> = self.contents.keys().cloned().collect();
        let from_name = self.random.pick(&names).clone();
        let from = self.open(&from_name)?;
        let blocks = from.len() / BLOCK;
        if blocks == 0 || from_name == name {
            return self.write(name, file);
        }
        let (mut start, mut bytes) = (self.random.below(blocks), 1 + self.random.below(blocks));
        (start, bytes) = (start * BLOCK, bytes.min(blocks - start) * BLOCK);
        let mut to = self.random.below(u64::try_from(BLOCKS_MAX)?) * BLOCK;
        if self.random.one_in(4) {
            (start, bytes, to) = (0, from.len(), file.len().next_multiple_of(BLOCK));
        }
        file.clone_range(to, &from, start, bytes)?;
        let (start, end) = (in_memory(start)?, in_memory(start + bytes)?);
        let shared = self.bytes_of(&from_name)[start..end].to_vec();
        put(self.bytes_of(name), in_memory(to)?, &shared);
        Ok(())
    }

    /// Writes extents of a file again: no byte changes.
    fn defragment(&mut self, file: &File) -> Result<()> {
        let is_broken = self.random.one_in(2);
        let shared = if is_broken { SharedExtents::Break } else { SharedExtents::Keep };
        let compressor = Compressor::new(Compression::Zstd).filter(|_| self.random.one_in(3));
        let options = DefragmentOptions::default().shared(shared).compressor(compressor);
        file.defragment(&options)?;
        Ok(())
    }

    fn truncate(&mut self, name: &[u8], file: &File) -> Result<()> {
        let size = self.random.index(BLOCKS_MAX * 4096);
        file.truncate(u64::try_from(size)?)?;
        self.bytes_of(name).resize(size, 0);
        Ok(())
    }
}

/// Writes bytes into a vector, which grows as a file does.
fn put(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = at + bytes.len();
    into.resize(into.len().max(end), 0);
    into[at..end].copy_from_slice(bytes);
}

/// Describes how a file differs from what it is to hold.
fn difference(name: &[u8], have: &[u8], want: Option<&Vec<u8>>) -> String {
    let want = want.map_or(&[][..], Vec::as_slice);
    let at = have.iter().zip(want).position(|(have, want)| have != want);
    let name = name.escape_ascii();
    format!("{name}: {} bytes, want {}; the first wrong one is {at:?}", have.len(), want.len())
}

/// Reads the files of a volume.
fn contents(filesystem: &Filesystem) -> Result<Contents> {
    let mut contents = Contents::new();
    for entry in filesystem.read_dir(filesystem.root(), butternut::FIRST_ENTRY)? {
        let entry = entry?;
        if entry.name != b"." && entry.name != b".." {
            contents.insert(entry.name, bytes_of(filesystem, entry.id)?);
        }
    }
    Ok(contents)
}

fn bytes_of(filesystem: &Filesystem, id: FileId) -> Result<Vec<u8>> {
    let file = filesystem.open_file(id)?;
    let mut bytes = vec![0; in_memory(file.len())?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

fn check(seed: u64) -> Result<Verdict> {
    let base = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let device = Arc::new(RecordingDevice::new(base));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as Arc<dyn Device>];
    let filesystem = Filesystem::open_devices(devices, &options())?;
    let (random, logs) = (Random::new(seed), seed.is_multiple_of(2));
    let mut run = Run { random, filesystem, contents: Contents::new(), logs };
    let mut builder = StoryBuilder::default();
    let mut states = vec![State::default()];
    for number in 0..STEPS {
        builder.begin_step(&device);
        states.push(run.step().with_context(|| format!("step {number}"))?);
        builder.mark_all_durable(&device);
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

fn verify(
    states: &[State],
    crash: &Crash,
    image: CrashImage,
    allowed: RangeInclusive<usize>,
) -> Result<()> {
    let image: Arc<dyn Device> = Arc::new(image);
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&image)], &options())?;
    let have = contents(&filesystem)?;
    let durable = states.get(*allowed.start()).context("a state")?;
    let possible = states.get(allowed.clone()).context("states")?;
    if let Some(name) = &durable.synced {
        let is_one = |state: &State| state.contents.get(name) == have.get(name);
        let have = have.get(name).map_or(&[][..], Vec::as_slice);
        ensure!(
            possible.iter().any(is_one),
            "states {allowed:?}: {}",
            difference(name, have, durable.contents.get(name))
        );
    } else if possible.iter().all(|state| state.synced.is_none()) {
        let is_one = |state: &State| state.contents == have;
        ensure!(possible.iter().any(is_one), "states {allowed:?}: none is this");
    }
    if crash.number.is_multiple_of(3) {
        // What is shared is changed on one side and deleted on the other.
        for (number, name) in have.keys().enumerate() {
            let root = filesystem.root();
            if number.is_multiple_of(2) {
                filesystem.unlink(root, name)?;
            } else {
                filesystem.open_file(filesystem.lookup(root, name)?)?.write_at(0, &[1; 5000])?;
            }
        }
    }
    filesystem.close()?;
    check_crashed(&image).context("after the next open")
}

#[test]
fn every_crash_leaves_whole_clones_and_defragmented_files() {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seeds: std::ops::Range<u64> = match only {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 100 } else { 4 },
    };
    let mut sum = Verdict::default();
    for seed in seeds {
        let verdict = check(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        assert_eq!(verdict.failed, 0, "seed {seed}: {verdict}");
        sum.merge(verdict);
    }
    assert!(sum.states >= 100, "{sum}");
}
