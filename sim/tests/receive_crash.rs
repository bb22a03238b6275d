//! Crashes while streams are received, each of which is interrupted once and then goes on: after
//! each crash, what a call had acknowledged is there, and the same streams end with the same trees.
//!
//! ```text
//! sender     random changes -> snapshot -> stream; whole, then as the difference to the one before
//! receiver   a file of its own; each stream to a random byte; each stream to its end
//! ```
//!
//! 1. A subvolume is there with its complete contents when the call that receives it has returned.
//! 2. The commands that an interrupted receive says are kept are kept.
//! 3. An incomplete subvolume is not read-only and has no received UUID, so that it is not taken
//!    for a complete one.
//! 4. What is not received stays as it is.
//!
//! `BUTTERNUT_LONG=1` checks more histories; `BUTTERNUT_SEED=N` checks one.

use anyhow::{Context, Result, ensure};
use butternut::receive::{ReceiveReport, StreamEnd, StreamReader};
use butternut::{
    FileId, FileKind, Filesystem, Follow, MountOptions, NewInode, RenameFlags, SendOptions,
    SendProtocol, SetAttributes, SetXattr, SnapshotAccess,
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
const STREAMS: usize = 3;
/// Changes before each snapshot.
const CHANGES: usize = 14;
/// The receiver keeps a checkpoint after so many bytes of a stream.
const CHECKPOINT_BYTES: u64 = 24 << 10;
/// Steps that receive: a cut stream, and the whole one. The first step of all makes the own file.
const STEPS_PER_STREAM: usize = 2;

/// One crash in so many is checked, unless the run is long.
const ONE_IN: u64 = 5;

const CHECKPOINT: &str = ".butternut-receive.";
const OWN: (&[u8], &[u8]) = (b"own", &[7; 5000]);

/// What a subvolume contains: a description and the data of each entry, by its path.
type Contents = BTreeMap<Vec<u8>, (String, Vec<u8>)>;

/// A snapshot of the sender.
struct Sent {
    name: String,
    contents: Contents,
    stream: Vec<u8>,
}

/// What an interrupted receive has acknowledged.
struct Kept {
    /// `None` if the interruption was after the end of the subvolume.
    commands: Option<u64>,
}

fn options() -> MountOptions {
    MountOptions::default().read_only(false).commit_seconds(0)
}

fn new(permissions: u32) -> NewInode {
    NewInode { permissions, umask: 0, uid: 1000, gid: 100 }
}

/// A volume whose subvolume `w` changes at random.
struct Sender {
    random: Random,
    filesystem: Filesystem,
    root: FileId,
}

impl Sender {
    fn new(seed: u64) -> Result<Self> {
        let device = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
        let filesystem = Filesystem::open_devices(vec![device], &options())?;
        let id = filesystem.create_subvolume(filesystem.root(), b"w", &new(0o755))?;
        Ok(Self { random: Random::new(seed), filesystem, root: FileId::root_of(id) })
    }

    /// Changes the subvolume, and sends a snapshot of it as the difference to the one before.
    fn send(&mut self, number: usize, parent: Option<u64>) -> Result<(u64, Sent)> {
        for _ in 0..CHANGES {
            self.change()?;
        }
        let (fs, name) = (&self.filesystem, format!("s{number}"));
        let access = SnapshotAccess::ReadOnly;
        let id = fs.snapshot(self.root.subvolume, fs.root(), name.as_bytes(), access)?;
        let protocol = if number.is_multiple_of(2) { SendProtocol::One } else { SendProtocol::Two };
        let mut stream = Vec::new();
        fs.send(id, &SendOptions::default().parent(parent).protocol(protocol), &mut stream)?;
        Ok((id, Sent { contents: contents(fs, FileId::root_of(id))?, name, stream }))
    }

    /// A directory: the root, or one of two below it.
    fn dir(&mut self) -> Result<FileId> {
        let Some(name) = [None, Some(b"a"), Some(b"b")][self.random.index(3)] else {
            return Ok(self.root);
        };
        match self.filesystem.lookup(self.root, name) {
            Ok(id) => Ok(id),
            Err(_) => Ok(self.filesystem.mkdir(self.root, name, &new(0o755))?),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        format!("file{}", self.random.index(6)).into_bytes()
    }

    /// A file of a random name, with contents if it is new.
    fn file(&mut self) -> Result<(FileId, Vec<u8>, FileId)> {
        let (dir, name) = (self.dir()?, self.name());
        if let Ok(id) = self.filesystem.lookup(dir, &name) {
            return Ok((dir, name, id));
        }
        let id = self.filesystem.create(dir, &name, &new(0o644))?;
        let bytes = vec![u8::try_from(self.random.index(256))?; self.random.index(40_000)];
        self.filesystem.open_file(id)?.write_at(0, &bytes)?;
        Ok((dir, name, id))
    }

    fn change(&mut self) -> Result<()> {
        let (dir, name, id) = self.file()?;
        match self.random.index(8) {
            0 | 1 => {
                let at = self.random.below(60_000);
                let bytes = vec![u8::try_from(self.random.index(256))?; self.random.index(20_000)];
                self.filesystem.open_file(id)?.write_at(at, &bytes)?;
            }
            2 => self.filesystem.unlink(dir, &name)?,
            3 => {
                let (to, new_name) = (self.dir()?, self.name());
                let (from, to) = ((dir, &name[..]), (to, &new_name[..]));
                self.filesystem.rename(from, to, RenameFlags::default())?;
            }
            4 => self.filesystem.open_file(id)?.truncate(self.random.below(50_000))?,
            5 => {
                let value = vec![b'v'; self.random.index(300)];
                self.filesystem.set_xattr(id, b"user.x", &value, SetXattr::Either)?;
            }
            6 => {
                let mode = Some(0o600 + u32::try_from(self.random.index(0o200))?);
                let set = SetAttributes { mode, ..SetAttributes::default() };
                self.filesystem.set_attributes(id, &set)?;
            }
            _ => {
                let (to, new_name) = (self.dir()?, self.name());
                if self.filesystem.lookup(to, &new_name).is_err() {
                    self.filesystem.link(id, to, &new_name)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads everything below a directory that a stream transfers.
fn contents(filesystem: &Filesystem, root: FileId) -> Result<Contents> {
    let mut found = Contents::new();
    let mut pending = vec![(Vec::new(), root)];
    while let Some((path, id)) = pending.pop() {
        let stat = filesystem.stat(id)?;
        let mut data = Vec::new();
        if stat.kind == FileKind::File {
            data = vec![0; usize::try_from(stat.size)?];
            filesystem.open_file(id)?.read_exact_at(0, &mut data)?;
        } else {
            for entry in filesystem.read_dir(id, butternut::FIRST_ENTRY)? {
                let entry = entry?;
                if entry.name != b"." && entry.name != b".." {
                    pending.push(([&path, &b"/"[..], &entry.name].concat(), entry.id));
                }
            }
        }
        let value = filesystem.xattr(id, b"user.x").ok();
        let text = format!(
            "{:o} {}:{} {:?} links {} user.x {value:?}",
            stat.mode, stat.uid, stat.gid, stat.mtime, stat.nlink
        );
        found.insert(path, (text, data));
    }
    Ok(found)
}

fn receive(filesystem: &Filesystem, bytes: &[u8]) -> (butternut::Result<()>, ReceiveReport) {
    let (mut reader, mut report) = (StreamReader::new(bytes), ReceiveReport::default());
    let (root, end) = (filesystem.root(), StreamEnd::Input);
    let ended = filesystem.receive_resumable(root, &mut reader, end, CHECKPOINT_BYTES, &mut report);
    (ended, report)
}

fn check(seed: u64, one_in: u64) -> Result<Verdict> {
    let mut sender = Sender::new(seed)?;
    let (mut sent, mut parent) = (Vec::new(), None);
    for number in 0..STREAMS {
        let (id, snapshot) = sender.send(number, parent)?;
        parent = Some(id);
        sent.push(snapshot);
    }
    let device = Arc::new(RecordingDevice::new(fresh(VOLUME_BYTES, &MkfsOptions::default())?));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as Arc<dyn Device>];
    let filesystem = Filesystem::open_devices(devices, &options())?;
    let mut builder = StoryBuilder::default();
    builder.begin_step(&device);
    let own = filesystem.create(filesystem.root(), OWN.0, &new(0o644))?;
    filesystem.open_file(own)?.write_at(0, OWN.1)?;
    filesystem.sync()?;
    builder.mark_all_durable(&device);
    let (mut random, mut kept) = (Random::new(!seed), Vec::new());
    for Sent { stream, name, .. } in &sent {
        builder.begin_step(&device);
        let (ended, report) = receive(&filesystem, &stream[..=random.index(stream.len() - 1)]);
        ensure!(ended.is_err(), "{name}: a cut stream is received");
        builder.mark_all_durable(&device);
        kept.push(Kept { commands: report.resumable });
        builder.begin_step(&device);
        receive(&filesystem, stream).0.with_context(|| name.clone())?;
        builder.mark_all_durable(&device);
    }
    filesystem.abandon();
    let story = builder.end(&device);
    let crashes = CrashOptions { seed, seeded_per_gap: 3, pivotal: is_super_block };
    let options = JudgeOptions { crashes, threads: 2, one_in };
    let expected = Expected { sent, kept };
    let verify = |_: &Crash, image: CrashImage, allowed: RangeInclusive<usize>| {
        expected.verify(image, &allowed).map_err(|error| format!("{error:#}"))
    };
    Ok(judge(&story, &options, &verify))
}

struct Expected {
    sent: Vec<Sent>,
    kept: Vec<Kept>,
}

impl Expected {
    fn verify(&self, image: CrashImage, allowed: &RangeInclusive<usize>) -> Result<()> {
        let image: Arc<dyn Device> = Arc::new(image);
        check_crashed(&image)?;
        let filesystem = Filesystem::open_devices(vec![Arc::clone(&image)], &options())?;
        verify_own(&filesystem, *allowed.start() > 0)?;
        for number in 0..self.sent.len() {
            self.verify_subvolume(&filesystem, number, allowed)?;
        }
        for Sent { stream, name, .. } in &self.sent {
            let (ended, report) = receive(&filesystem, stream);
            ended.with_context(|| format!("{name} after the crash"))?;
            ensure!(report.changed.is_empty(), "{name}: a checkpoint is changed");
        }
        self.verify_end(&filesystem)?;
        verify_own(&filesystem, *allowed.start() > 0)?;
        filesystem.close()?;
        check_crashed(&image).context("after the receive")
    }

    /// Laws 1 to 3.
    fn verify_subvolume(
        &self,
        filesystem: &Filesystem,
        number: usize,
        allowed: &RangeInclusive<usize>,
    ) -> Result<()> {
        let Sent { name, contents: want, .. } = &self.sent[number];
        let whole = 1 + STEPS_PER_STREAM * (number + 1);
        let found = filesystem.resolve(name.as_bytes(), Follow::Last).ok();
        let info = found.map(|id| filesystem.subvolume(id.subvolume)).transpose()?;
        let is_received = info.as_ref().is_some_and(|info| info.received_uuid != [0; 16]);
        if let (Some(id), true) = (found, is_received) {
            ensure!(info.is_some_and(|info| info.read_only), "{name} is writable");
            ensure!(contents(filesystem, id)? == *want, "{name} is not what was sent");
            return Ok(());
        }
        ensure!(!info.is_some_and(|info| info.read_only), "{name} is incomplete and read-only");
        ensure!(*allowed.start() < whole, "{name} is lost");
        let cut = whole - 1;
        if *allowed.end() < cut {
            ensure!(found.is_none(), "{name} is there before it is received");
        }
        if let Some(want) = self.kept[number].commands.filter(|_| *allowed.start() == cut) {
            let have = checkpoints(filesystem)?.into_iter().max();
            ensure!(have >= Some(want), "{name}: {want} commands are kept, and {have:?} are there");
        }
        Ok(())
    }

    /// All streams are received, and nothing else is left.
    fn verify_end(&self, filesystem: &Filesystem) -> Result<()> {
        for Sent { name, contents: want, .. } in &self.sent {
            let id = filesystem.resolve(name.as_bytes(), Follow::Last)?;
            let info = filesystem.subvolume(id.subvolume)?;
            ensure!(info.read_only && info.received_uuid != [0; 16], "{name} is incomplete");
            ensure!(contents(filesystem, id)? == *want, "{name} differs after it went on");
        }
        let left = checkpoints(filesystem)?;
        ensure!(left.is_empty(), "checkpoints are left: {left:?}");
        filesystem.clean_subvolumes()?;
        let subvolumes = filesystem.subvolumes()?.len();
        ensure!(subvolumes == self.sent.len(), "{subvolumes} subvolumes");
        Ok(())
    }
}

/// Law 4.
fn verify_own(filesystem: &Filesystem, is_durable: bool) -> Result<()> {
    let Ok(id) = filesystem.lookup(filesystem.root(), OWN.0) else {
        ensure!(!is_durable, "the own file is lost");
        return Ok(());
    };
    let file = filesystem.open_file(id)?;
    let mut bytes = vec![0; usize::try_from(file.len())?];
    file.read_exact_at(0, &mut bytes)?;
    ensure!(bytes == OWN.1 || !is_durable, "the own file has {} bytes", bytes.len());
    Ok(())
}

/// Returns the number of commands of each checkpoint.
fn checkpoints(filesystem: &Filesystem) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in filesystem.read_dir(filesystem.root(), butternut::FIRST_ENTRY)? {
        let name = String::from_utf8(entry?.name)?;
        let Some(rest) = name.strip_prefix(CHECKPOINT) else { continue };
        let commands = rest.split('.').nth(1).context("a checkpoint's name has fields")?;
        found.push(commands.parse()?);
    }
    Ok(found)
}

#[test]
fn every_crash_of_a_receive_leaves_what_was_acknowledged() {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seeds: std::ops::Range<u64> = match only {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 60 } else { 3 },
    };
    let mut sum = Verdict::default();
    for seed in seeds {
        let one_in = if is_long { 1 } else { ONE_IN };
        let verdict = check(seed, one_in).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        assert_eq!(verdict.failed, 0, "seed {seed}: {verdict}");
        sum.merge(verdict);
    }
    println!("{sum}");
    assert!(sum.states >= 30, "{sum}");
}
