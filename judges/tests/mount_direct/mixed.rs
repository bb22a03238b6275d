//! One file that is written and read through the kernel's cache, directly, and through mappings.

use super::{MIB, NAME, PAGE, aligned, open, ours, pattern};
use anyhow::{Result, bail, ensure};
use butternut_judges::subjects::Mounted;
use butternut_sim::random::Random;
use butternut_sys::mapped::Mapped;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

const SEEDS: u64 = 4;
const STEPS: usize = 1500;
/// The maximum size of the file, and its minimum size, which is mapped.
const BYTES_MAX: usize = 2 * MIB;
const BYTES_MIN: usize = MIB;
const TRANSFER_MAX: usize = 96 << 10;

#[derive(Clone, Copy, Debug)]
enum Way {
    Cached,
    /// Whole blocks.
    Direct,
    /// Any bytes.
    DirectOdd,
    Mapped,
    /// Through a mapping of a file that was opened with `O_DIRECT`.
    DirectMapped,
}

const WAYS: [Way; 5] = [Way::Cached, Way::Direct, Way::DirectOdd, Way::Mapped, Way::DirectMapped];

struct Subject {
    cached: File,
    direct: File,
    mapped: Mapped,
    direct_mapped: Mapped,
    memory: Mapped,
}

impl Subject {
    fn open(path: &Path) -> Result<Self> {
        let (cached, direct) = (open(path, OFlags::empty())?, open(path, OFlags::DIRECT)?);
        let mapped = Mapped::shared(&cached, BYTES_MIN)?;
        let direct_mapped = Mapped::shared(&direct, BYTES_MIN)?;
        let memory = aligned(TRANSFER_MAX + PAGE, 0)?;
        Ok(Self { cached, direct, mapped, direct_mapped, memory })
    }

    fn write(&self, way: Way, at: usize, bytes: &[u8]) -> Result<()> {
        match way {
            Way::Cached => self.cached.write_all_at(bytes, at as u64)?,
            Way::Direct | Way::DirectOdd => {
                self.memory.put(0, bytes);
                let written = self.memory.write_to(&self.direct, at as u64, 0..bytes.len())?;
                ensure!(written == bytes.len(), "{written} of {} written", bytes.len());
            }
            Way::Mapped => self.mapped.put(at, bytes),
            Way::DirectMapped => self.direct_mapped.put(at, bytes),
        }
        Ok(())
    }

    fn read(&self, way: Way, at: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut read = vec![0; bytes];
        match way {
            Way::Cached => self.cached.read_exact_at(&mut read, at as u64)?,
            Way::Direct | Way::DirectOdd => {
                let done = self.memory.read_from(&self.direct, at as u64, 0..bytes)?;
                ensure!(done == bytes, "{done} of {bytes} read");
                self.memory.get(0, &mut read);
            }
            Way::Mapped => self.mapped.get(at, &mut read),
            Way::DirectMapped => self.direct_mapped.get(at, &mut read),
        }
        Ok(read)
    }
}

impl Way {
    /// Returns a range of the file for this access path; a write may extend the file.
    fn range(self, random: &mut Random, size: usize) -> (usize, usize) {
        let (unit, end) = match self {
            Self::Cached | Self::DirectOdd => (1, size),
            Self::Direct => (PAGE, size / PAGE * PAGE),
            Self::Mapped | Self::DirectMapped => (1, BYTES_MIN),
        };
        let bytes = (random.index(TRANSFER_MAX / unit) + 1) * unit;
        let at = random.index(end / unit) * unit;
        (at, bytes.min(end - at))
    }
}

pub(super) fn all_access_paths_agree(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    for seed in 0..SEEDS {
        let name = format!("{NAME}-{seed}");
        let path = volume.root()?.join(&name);
        let mut model = pattern(BYTES_MIN + 1234);
        std::fs::write(&path, &model)?;
        let subject = Subject::open(&path)?;
        let mut random = Random::new(seed);
        for step in 0..STEPS {
            if let Err(error) = one_step(&subject, &mut random, &mut model) {
                bail!("seed {seed}, step {step}: {error:#}");
            }
        }
        drop(subject);
        ensure!(std::fs::read(&path)? == model, "seed {seed}, at its end");
        volume.remount()?;
        ensure!(std::fs::read(volume.root()?.join(&name))? == model, "seed {seed}, mounted again");
    }
    volume.unmount()
}

fn one_step(subject: &Subject, random: &mut Random, model: &mut Vec<u8>) -> Result<()> {
    let way = *random.pick(&WAYS);
    if random.one_in(40) {
        let size = BYTES_MIN + random.index(BYTES_MAX - BYTES_MIN);
        subject.cached.set_len(size as u64)?;
        model.resize(size, 0);
    } else if random.one_in(30) {
        // The file grows, also by writes that leave a hole.
        let (way, unit) = if random.one_in(2) { (Way::Cached, 1) } else { (Way::Direct, PAGE) };
        let at = (model.len() + random.index(8 * PAGE)).next_multiple_of(unit);
        if at + PAGE <= BYTES_MAX {
            let bytes = [u8::try_from(random.below(256)).unwrap_or(0); PAGE];
            subject.write(way, at, &bytes)?;
            model.resize(at + PAGE, 0);
            model[at..].copy_from_slice(&bytes);
        }
    } else if random.one_in(50) {
        subject.direct.sync_data()?;
    } else if random.one_in(2) {
        let (at, bytes) = way.range(random, model.len());
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.number().to_le_bytes())
            .flatten()
            .take(bytes)
            .collect();
        subject.write(way, at, &bytes)?;
        model[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let way = *random.pick(&WAYS);
    let (at, bytes) = way.range(random, model.len());
    let read = subject.read(way, at, bytes)?;
    let differs = read.iter().zip(&model[at..]).position(|(have, want)| have != want);
    match differs {
        Some(byte) => bail!("{way:?} of {bytes} at {at}, of {}: byte {byte}", model.len()),
        None => Ok(()),
    }
}

/// Threads use all access paths, each on blocks of its own.
pub(super) fn concurrent_access_agrees(options: &str) -> Result<()> {
    const THREADS: usize = 4;
    const ROUNDS: usize = 400;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![0; BYTES_MIN])?;
    let mut blocks = vec![0_u8; BYTES_MIN / PAGE];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let path = &path;
                scope.spawn(move || alone_on_every_fourth(path, thread, THREADS, ROUNDS))
            })
            .collect();
        for thread in threads {
            for (block, byte) in thread.join().expect("no thread panics")? {
                blocks[block] = byte;
            }
        }
        anyhow::Ok(())
    })?;
    let want: Vec<u8> = blocks.iter().flat_map(|byte| [*byte; PAGE]).collect();
    ensure!(std::fs::read(&path)? == want);
    volume.remount()?;
    ensure!(std::fs::read(volume.root()?.join(NAME))? == want);
    volume.unmount()
}

/// Returns the final content of a thread's blocks.
fn alone_on_every_fourth(
    path: &Path,
    thread: usize,
    threads: usize,
    rounds: usize,
) -> Result<Vec<(usize, u8)>> {
    let subject = Subject::open(path)?;
    let mut random = Random::new(thread as u64);
    let mut mine: Vec<(usize, u8)> =
        (thread..BYTES_MIN / PAGE).step_by(threads).map(|block| (block, 0)).collect();
    for round in 0..rounds {
        let number = random.index(mine.len());
        let (block, byte) = &mut mine[number];
        let (writes, reads) = (*random.pick(&WAYS), *random.pick(&WAYS));
        *byte = u8::try_from(round % 256).unwrap_or(0);
        subject.write(writes, *block * PAGE, &[*byte; PAGE])?;
        let read = subject.read(reads, *block * PAGE, PAGE)?;
        ensure!(read == [*byte; PAGE], "{round}: {writes:?}, {reads:?}, block {block}");
    }
    Ok(mine)
}
