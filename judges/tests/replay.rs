//! Logs of the kernel: our replay gives what the kernel's replay gives.
//!
//! The kernel's btrfs runs a seeded workload of changes and fsyncs, of files and of directories, in
//! two subvolumes, and the image is copied while it is mounted, as by a crash. One copy is mounted
//! by the kernel, which replays the log. Two more are opened by the library: for reading, which
//! replays in memory, and for writing. All entries are compared: names, bytes, attributes, links.
//! The kernel and `btrfs check` then read what our replay has written.

use anyhow::{Context, Result, ensure};
use butternut::{DevicePath, Filesystem, MountOptions};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::manifest::Manifest;
use butternut_judges::{kept, library, tool, trial, walk};
use butternut_sim::random::Random;
use rustix::fs::{FallocateFlags, XattrFlags};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const VOLUME_BYTES: u64 = 512 << 20;
const SIZE_MAX: u64 = 200_000;
const STEPS: usize = 160;

/// Names are few and short, and no inode gets more than [`LINKS_MAX`]: Linux 6.18 hits a bug in its
/// own replay when the names of an inode in one directory exceed a leaf.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const LINKS_MAX: u64 = 4;
const DIRECTORIES: [&str; 5] = ["", "one", "one/two", "sub", "sub/three"];

/// Options of mkfs.btrfs, and of the kernel's mount.
const KINDS: [(&str, &str, &str); 5] = [
    ("default", "", ""),
    ("small-nodes", "-n 4096 --csum xxhash", ""),
    ("mixed", "-M -n 4096", ""),
    ("holes", "-O ^no-holes", ""),
    ("zstd", "", "compress=zstd"),
];

fn main() -> ExitCode {
    let seeds = if std::env::var_os("BUTTERNUT_LONG").is_some() { 40 } else { 3 };
    let mut trials = Vec::new();
    for (kind, mkfs, options) in KINDS {
        trials.push(trial::trial(&format!("kernel-log/{kind}"), move || {
            let mut logs = 0;
            for seed in 0..seeds {
                let seed = seed + 1000 * kind.len() as u64;
                logs += u64::from(judge(seed, mkfs, options).context(format!("seed {seed}"))?);
            }
            // Some of the last syncs commit.
            ensure!(logs * 3 >= seeds, "only {logs} of {seeds} runs left a log");
            Ok(())
        }));
    }
    trial::run(trials)
}

/// Returns whether the workload left a log.
fn judge(seed: u64, mkfs: &str, options: &str) -> Result<bool> {
    let dir =
        tempfile::Builder::new().prefix("butternut-judge-replay-").tempdir_in(kept::scratch())?;
    let image = dir.path().join("kernel.img");
    File::create(&image)?.set_len(VOLUME_BYTES)?;
    tool::run("mkfs.btrfs", &tool::words_and_path(&format!("-q -K {mkfs}"), &image))?;
    let options = format!("commit=300,{options}");
    let how = MountHow { options: options.trim_end_matches(','), ..MountHow::default() };
    let mount = KernelMount::new(std::slice::from_ref(&image), &how)?;
    let mut workload = Workload { random: Random::new(seed), root: mount.root().to_owned() };
    workload.prepare()?;
    for step in 0..STEPS {
        workload.step().with_context(|| format!("step {step}"))?;
    }
    workload.sync_something()?;
    let [theirs, ours] = ["theirs.img", "ours.img"].map(|name| dir.path().join(name));
    for copy in [&theirs, &ours] {
        tool::copy_sparse(&image, copy)?;
    }
    mount.unmount()?;
    let want = by_kernel(&theirs).context("the kernel's replay")?;
    let has_log = replayed(&ours, true, &want).context("our replay in memory")?;
    replayed(&ours, false, &want).context("our replay")?;
    ensure!(!replayed(&ours, true, &want)?, "the replay is committed");
    tool::run("btrfs", &tool::words_and_path("check --check-data-csum", &ours))?;
    let have = by_kernel(&ours).context("ours, read by the kernel")?;
    same("the kernel's replay", &want, "ours, read by the kernel", &have)?;
    Ok(has_log)
}

fn by_kernel(image: &Path) -> Result<Manifest> {
    let mount = KernelMount::new(&[image.to_owned()], &MountHow::default())?;
    let manifest = walk::walk(mount.root())?;
    mount.unmount()?;
    Ok(manifest)
}

/// Compares what the library shows. Returns whether the volume had a log.
fn replayed(image: &Path, read_only: bool, want: &Manifest) -> Result<bool> {
    let options = MountOptions::default().read_only(read_only);
    let filesystem = Filesystem::open(&[DevicePath::from(image)], &options)?;
    let has_log = filesystem.super_block().log_root().is_some();
    ensure!(filesystem.notices().is_empty(), "{:?}", filesystem.notices());
    let have = library::walk(&filesystem)?;
    filesystem.close()?;
    same("the kernel's replay", want, "ours", &have)?;
    Ok(has_log)
}

fn same(name: &str, want: &Manifest, other: &str, have: &Manifest) -> Result<()> {
    let (want, have) = (Side { name, manifest: want }, Side { name: other, manifest: have });
    // The kernel's replay sets it where an inode loses a name.
    let excused = [Field::Ctime];
    compare(want, have, &excused).map(drop).map_err(anyhow::Error::msg)
}

struct Workload {
    random: Random,
    root: PathBuf,
}

impl Workload {
    /// Makes the directories and some files, and commits them.
    fn prepare(&mut self) -> Result<()> {
        std::fs::create_dir_all(self.root.join("one/two"))?;
        let subvolume = self.root.join("sub");
        tool::run("btrfs", &tool::words_and_path("-q subvolume create", &subvolume))?;
        std::fs::create_dir(self.root.join("sub/three"))?;
        for _ in 0..20 {
            self.change()?;
        }
        self.commit()
    }

    fn commit(&self) -> Result<()> {
        tool::run("btrfs", &tool::words_and_path("-q filesystem sync", &self.root)).map(drop)
    }

    fn directory(&mut self) -> PathBuf {
        self.root.join(*self.random.pick(&DIRECTORIES))
    }

    fn path(&mut self) -> PathBuf {
        let dir = self.directory();
        dir.join(*self.random.pick(&NAMES))
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(30) {
            0..=13 => self.change(),
            14..=16 => self.rename(),
            17 | 18 => self.link(),
            19..=21 => self.remove(),
            22 => {
                let path = self.path();
                if !path.exists() {
                    std::fs::create_dir(&path)?;
                }
                Ok(())
            }
            23 if self.random.one_in(8) => self.commit(),
            _ => self.sync_something(),
        }
    }

    fn sync_something(&mut self) -> Result<()> {
        let path = if self.random.one_in(4) { self.directory() } else { self.path() };
        if path.exists() {
            let file = File::open(&path)?;
            if self.random.one_in(3) { file.sync_data()? } else { file.sync_all()? }
        }
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let (from, to) = (self.path(), self.path());
        let is_same_subvolume = self.is_in_sub(&from) == self.is_in_sub(&to);
        let fits = if from.is_dir() { !to.exists() } else { from.is_file() && !to.is_dir() };
        if fits && is_same_subvolume && !to.starts_with(&from) {
            std::fs::rename(from, to)?;
        }
        Ok(())
    }

    fn is_in_sub(&self, path: &Path) -> bool {
        path.starts_with(self.root.join("sub"))
    }

    fn link(&mut self) -> Result<()> {
        let (from, to) = (self.path(), self.path());
        let may_link = from.is_file() && std::fs::metadata(&from)?.nlink() < LINKS_MAX;
        if may_link && !to.exists() && self.is_in_sub(&from) == self.is_in_sub(&to) {
            std::fs::hard_link(from, to)?;
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let path = self.path();
        if path.is_dir() {
            std::fs::remove_dir(path)?;
        } else if path.exists() {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    fn change(&mut self) -> Result<()> {
        let path = self.path();
        if path.is_dir() {
            return Ok(());
        }
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create(true).truncate(false).open(&path)?;
        let (mut start, mut bytes) = (self.random.below(SIZE_MAX), 1 + self.random.below(60_000));
        if self.random.one_in(2) {
            (start, bytes) = (start / 4096 * 4096, bytes.next_multiple_of(4096));
        }
        let byte = u8::try_from(self.random.below(256))?;
        let data: Vec<u8> =
            (0..bytes).map(|at| byte.wrapping_add((at / 97 % 256).to_le_bytes()[0])).collect();
        match self.random.below(12) {
            0..=3 => file.write_all_at(&data, start)?,
            4 => file.write_all_at(&data[..data.len().min(1500)], 0)?,
            5 => file.write_all_at(&data, file.metadata()?.len())?,
            6 => file.set_len(start)?,
            7 => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, how, start, bytes)?;
            }
            8 => rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, start, bytes)?,
            9 => rustix::fs::fallocate(&file, FallocateFlags::empty(), start, bytes)?,
            10 => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600 | u32::from(byte & 0o77));
                rustix::fs::fchmod(&file, mode)?;
            }
            _ => {
                let name = format!("user.{}", ["one", "two", "three"][usize::from(byte) % 3]);
                let name = OsStr::new(&name);
                if byte.is_multiple_of(4) {
                    rustix::fs::fremovexattr(&file, name).ok();
                } else {
                    let value = &data[..data.len().min(usize::from(byte))];
                    rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty())?;
                }
            }
        }
        Ok(())
    }
}
