//! The log of fsyncs: the kernel replays it, and finds exactly what was durable.
//!
//! A seeded workload with a model of what is durable ([`butternut_sim::synced`]) is abandoned, as
//! by a crash. Copies of the image are checked, opened by the library, for reading, which replays
//! the log in memory, and for writing, which commits the replay, and mounted by the kernel, which
//! replays it, too. Each is compared with the model: every name, byte, mode and extended attribute.
//!
//! `BUTTERNUT_LONG=1` runs more seeds; `BUTTERNUT_SEED=N` runs one.

use anyhow::{Context, Result, ensure};
use butternut::{Compress, DevicePath, Filesystem, MountOptions};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{kept, tool, trial};
use butternut_sim::synced::{self, Content, DIRECTORIES, Durable, SyncedFiles};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

const VOLUME_BYTES: u64 = 1 << 30;
const SIZE_MAX: u64 = 300_000;
const STEPS: usize = 240;

/// Options of mkfs.btrfs, and of the mount.
const KINDS: [(&str, &str, Option<&str>); 5] = [
    ("default", "", None),
    ("small-nodes", "-n 4096 --csum xxhash", None),
    ("mixed", "-M -n 4096", None),
    ("holes", "-O ^no-holes", None),
    ("zstd", "", Some("zstd")),
];

fn main() -> ExitCode {
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None if std::env::var_os("BUTTERNUT_LONG").is_some() => 0..60,
        None => 0..3,
    };
    let mut trials = Vec::new();
    for (name, mkfs, compress) in KINDS {
        let seeds = seeds.clone();
        trials.push(trial::trial(&format!("log/{name}"), move || {
            seeds.clone().try_for_each(|seed| {
                let seed = seed + 1000 * name.len() as u64;
                judge(seed, mkfs, compress).with_context(|| format!("seed {seed}"))
            })
        }));
    }
    trial::run(trials)
}

fn judge(seed: u64, mkfs: &str, compress: Option<&str>) -> Result<()> {
    let dir =
        tempfile::Builder::new().prefix("butternut-judge-fsync-").tempdir_in(kept::scratch())?;
    let image = dir.path().join("fsync.img");
    std::fs::File::create(&image)?.set_len(VOLUME_BYTES)?;
    tool::run("mkfs.btrfs", &tool::words_and_path(&format!("-q -K {mkfs}"), &image))?;
    synced::prepare_image(&image)?;
    let compressor = compress.map(str::parse).transpose()?;
    let compress = compressor.map(|compressor| Compress { compressor, is_forced: false });
    let options = synced::options().compress(compress);
    let filesystem = Filesystem::open(&[DevicePath::from(&image)], &options)?;
    let mut run = SyncedFiles::new(seed, SIZE_MAX, filesystem)?;
    for step in 0..STEPS {
        run.step().with_context(|| format!("step {step}"))?;
    }
    let copy = dir.path().join("crashed.img");
    tool::copy_sparse(&image, &copy)?;
    ensure!(run.fast > 10, "the log made {} syncs durable", run.fast);
    let durable = run.durable();
    run.abandon();
    check(&copy).context("before the replay")?;
    ours(&dir.path().join("ours.img"), &copy, &durable).context("our replay")?;
    let mark = Mark::now()?;
    let mount = KernelMount::new(std::slice::from_ref(&copy), &MountHow::default())?;
    compare(mount.root(), &durable)?;
    let device = mount.loops()[0].path().display().to_string();
    let complaints = mark.complaints(&[device.trim_start_matches("/dev/")])?;
    ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
    mount.unmount()?;
    check(&copy).context("after the replay")
}

/// Replays the log of a copy by the library: in memory, and with a commit.
fn ours(image: &Path, crashed: &Path, durable: &Durable) -> Result<()> {
    tool::copy_sparse(crashed, image)?;
    for read_only in [true, false] {
        let options = MountOptions::default().read_only(read_only);
        let filesystem = Filesystem::open(&[DevicePath::from(image)], &options)?;
        let notices = filesystem.notices();
        ensure!(notices.is_empty(), "{notices:?}");
        durable.compare(&filesystem).with_context(|| format!("read_only: {read_only}"))?;
        filesystem.close()?;
    }
    check(image)?;
    let mount = KernelMount::new(&[image.to_owned()], &MountHow::default())?;
    compare(mount.root(), durable).context("read by the kernel")?;
    mount.unmount()
}

fn check(image: &Path) -> Result<()> {
    tool::run("btrfs", &tool::words_and_path("check --check-data-csum", image)).map(drop)
}

/// Compares what the kernel shows with what was durable.
fn compare(root: &Path, durable: &Durable) -> Result<()> {
    for (number, dir) in DIRECTORIES.into_iter().enumerate() {
        let mut have = std::collections::BTreeSet::new();
        for entry in std::fs::read_dir(root.join(dir))? {
            have.insert(entry?.file_name().into_string().unwrap_or_default());
        }
        durable.compare_names(number, &have)?;
    }
    for (name, file) in &durable.names {
        let path = root.join(DIRECTORIES[name.0]).join(name.1);
        let meta = std::fs::metadata(&path)?;
        ensure!(meta.ino() == file.id.ino, "{name:?}: inode {}", meta.ino());
        let mode = meta.permissions().mode() & 0o7777;
        let mut have = Content { bytes: std::fs::read(&path)?, mode, ..Content::default() };
        let mut list = vec![0; 4096];
        let length = rustix::fs::listxattr(&path, &mut list[..])?;
        for key in list[..length].split(|byte| *byte == 0).filter(|key| !key.is_empty()) {
            let key = String::from_utf8_lossy(key).into_owned();
            let mut value = vec![0; 4096];
            let length = rustix::fs::getxattr(&path, &*key, &mut value[..])?;
            value.truncate(length);
            have.xattrs.insert(key, value);
        }
        durable.compare_file(*name, &have, meta.nlink())?;
    }
    Ok(())
}
