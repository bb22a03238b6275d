//! Short sequences of operations that end with a sync: the kernel's replay and ours agree.
//!
//! Sequences of [`butternut_sim::sequences`] run through the library on an image file, and are
//! abandoned after the last sync. Copies of the image are checked and opened: by the library, for
//! reading, which replays the log in memory, and for writing, which commits the replay; and by the
//! kernel. Each is compared with the rules, and with each other.
//!
//! `BUTTERNUT_LONG=1` runs 1,000 sequences; `BUTTERNUT_SEQUENCE="..."` runs one.

use anyhow::{Context, Result, ensure};
use butternut::{DevicePath, Filesystem};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{kept, tool, trial};
use butternut_sim::random::Random;
use butternut_sim::sequences::library::{self, no_orphans, observe, options, prepare};
use butternut_sim::sequences::model::{Inode, Kind};
use butternut_sim::sequences::rules::Shown;
use butternut_sim::sequences::{
    ALL, History, INITIALS, Initial, Observed, Prepared, SAMPLED, Sequence, enumerate,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 256 << 20;
/// The position of a crash after everything.
const END: usize = usize::MAX;
const FAILURES_SHOWN: usize = 8;

/// A committed initial state in an image file.
struct Base {
    dir: tempfile::TempDir,
    prepared: Prepared,
}

fn main() -> ExitCode {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let count = if is_long { 334 } else { 10 };
    let only = std::env::var("BUTTERNUT_SEQUENCE").ok();
    let mut trials = Vec::new();
    for initial in INITIALS {
        let only = only.clone();
        trials.push(trial::trial(&format!("sequences/{}", initial.name), move || {
            let sequences = match only {
                Some(text) => vec![text.parse::<Sequence>()?],
                None => sample(initial, count)?,
            };
            judge_all(initial, &sequences)
        }));
    }
    trial::run(trials)
}

/// Returns a seeded sample: half of it has three operations or several syncs.
fn sample(initial: Initial, count: usize) -> Result<Vec<Sequence>> {
    let mut random = Random::new(initial.name.len() as u64);
    let mut sequences = Vec::new();
    while sequences.len() < count {
        let shapes = if random.one_in(2) { &ALL[..] } else { &SAMPLED[..] };
        let shape = *random.pick(shapes);
        sequences.extend(enumerate::sample(initial, shape, random.number())?);
    }
    Ok(sequences)
}

fn judge_all(initial: Initial, sequences: &[Sequence]) -> Result<()> {
    let base = Base::new(initial)?;
    let mut failures = Vec::new();
    for sequence in sequences.iter().filter(|sequence| sequence.initial == initial) {
        if let Err(error) = base.judge(sequence) {
            failures.push(format!("BUTTERNUT_SEQUENCE=\"{sequence}\"\n    {error:#}"));
        }
    }
    let (failed, all) = (failures.len(), sequences.len());
    failures.truncate(FAILURES_SHOWN);
    ensure!(failed == 0, "{failed} of {all} sequences failed:\n{}", failures.join("\n"));
    Ok(())
}

impl Base {
    fn new(initial: Initial) -> Result<Self> {
        let prefix = "butternut-judge-sequences-";
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(kept::scratch())?;
        let image = dir.path().join("base.img");
        std::fs::File::create(&image)?.set_len(VOLUME_BYTES)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
        let filesystem = Filesystem::open(&[DevicePath::from(&image)], &options())?;
        let prepared = prepare(initial, &filesystem)?;
        filesystem.close()?;
        Ok(Self { dir, prepared })
    }

    fn copy(&self, from: &str, to: &str) -> Result<PathBuf> {
        let to = self.dir.path().join(to);
        tool::copy_sparse(&self.dir.path().join(from), &to)?;
        Ok(to)
    }

    fn judge(&self, sequence: &Sequence) -> Result<()> {
        let image = self.copy("base.img", "crashed.img")?;
        let filesystem = Filesystem::open(&[DevicePath::from(&image)], &options())?;
        let history = library::run(&self.prepared, sequence, &filesystem, &|| 0)?;
        filesystem.abandon();
        filesystem.close()?;
        check(&image).context("before the replay")?;
        let ours = self.ours(&history).context("our replay")?;
        let image = self.copy("crashed.img", "kernel.img")?;
        let kernel = kernel(&image, &history).context("the kernel's replay")?;
        same(&ours, &kernel)?;
        let filesystem = Filesystem::open(&[DevicePath::from(&image)], &read_only())?;
        no_orphans(&filesystem, &history, &kernel).context("after the kernel's replay")?;
        Ok(filesystem.close()?)
    }

    /// Replays the log by the library: in memory, and with a commit.
    fn ours(&self, history: &History) -> Result<Observed> {
        let image = self.copy("crashed.img", "ours.img")?;
        let mut shown = Vec::new();
        for options in [read_only(), options()] {
            let filesystem = Filesystem::open(&[DevicePath::from(&image)], &options)?;
            let notices = filesystem.notices();
            ensure!(notices.is_empty(), "{notices:?}");
            let observed = observe(&filesystem)?;
            history.verify(END, &observed)?;
            if !options.read_only {
                no_orphans(&filesystem, history, &observed)?;
            }
            filesystem.close()?;
            shown.push(observed);
        }
        check(&image).context("after our replay")?;
        let (in_memory, committed) = (shown.swap_remove(0), shown.pop().context("two of them")?);
        same(&in_memory, &committed).context("in memory, and with a commit")?;
        Ok(committed)
    }
}

fn read_only() -> butternut::MountOptions {
    options().read_only(true)
}

fn check(image: &Path) -> Result<()> {
    tool::run("btrfs", &tool::words_and_path("check --check-data-csum", image)).map(drop)
}

fn kernel(image: &PathBuf, history: &History) -> Result<Observed> {
    let mark = Mark::now()?;
    let mount = KernelMount::new(std::slice::from_ref(image), &MountHow::default())?;
    let observed = walk(mount.root())?;
    let device = mount.loops().first().context("a mount has a device")?.path().to_owned();
    history.verify(END, &observed)?;
    mount.unmount()?;
    let device = device.file_name().map(|name| name.to_string_lossy().into_owned());
    let complaints = mark.complaints(&[&device.unwrap_or_default()])?;
    ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
    check(image).context("after the replay")?;
    Ok(observed)
}

/// Compares two volumes entry by entry.
fn same(one: &Observed, other: &Observed) -> Result<()> {
    ensure!(one.names == other.names, "names {:?} and {:?}", one.names, other.names);
    for (ino, one) in &one.inodes {
        let other = other.inodes.get(ino).with_context(|| format!("inode {ino}"))?;
        ensure!(one == other, "inode {ino}: {} and {}", describe(one), describe(other));
    }
    Ok(())
}

fn describe(shown: &Shown) -> String {
    let Shown { inode, nlink, size } = shown;
    let Inode { kind, bytes, mode, xattrs } = inode;
    let hash = twox_hash::XxHash64::oneshot(0, bytes);
    format!("{kind:?} mode {mode:o} nlink {nlink} size {size} data {hash:x} xattrs {xattrs:?}")
}

/// Returns everything that a mounted directory shows.
fn walk(root: &Path) -> Result<Observed> {
    let mut observed = Observed::default();
    let mut directories = vec![root.to_owned()];
    observed.inodes.insert(std::fs::metadata(root)?.ino(), shown(root)?);
    while let Some(dir) = directories.pop() {
        let ino = std::fs::metadata(&dir)?.ino();
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let path = entry.path();
            let target =
                std::fs::symlink_metadata(&path).with_context(|| path.display().to_string())?.ino();
            ensure!(entry.ino() == target, "{}: listed {}", path.display(), entry.ino());
            observed.names.insert((ino, entry.file_name().to_string_lossy().into()), target);
            let shown = shown(&path).with_context(|| path.display().to_string())?;
            if shown.inode.kind == Kind::Directory {
                directories.push(path);
            }
            observed.inodes.insert(target, shown);
        }
    }
    Ok(observed)
}

fn shown(path: &Path) -> Result<Shown> {
    let meta = std::fs::symlink_metadata(path)?;
    let (kind, bytes) = if meta.is_dir() {
        (Kind::Directory, Vec::new())
    } else if meta.is_symlink() {
        (Kind::Symlink, std::fs::read_link(path)?.as_os_str().as_bytes().to_vec())
    } else {
        (Kind::File, std::fs::read(path)?)
    };
    let mut xattrs = BTreeMap::new();
    let mut list = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut list[..])?;
    for key in list[..length].split(|byte| *byte == 0).filter(|key| !key.is_empty()) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(key), &mut value[..])?;
        value.truncate(length);
        xattrs.insert(String::from_utf8_lossy(key).into_owned(), value);
    }
    let mode = meta.permissions().mode() & 0o7777;
    let inode = Inode { kind, bytes: Arc::new(bytes), mode, xattrs };
    Ok(Shown { inode, nlink: meta.nlink(), size: meta.size() })
}
