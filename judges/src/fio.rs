//! fio with the engine that `make fio` builds, on a new volume in images; the kernel then reads
//! what fio wrote.

use crate::kernel_mount::{KernelMount, LoopDevice, MountHow};
use crate::tool;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const BYTES: u64 = 2 << 30;

/// Returns the path of the engine: `BUTTERNUT_FIO_ENGINE`, or the engine of the same profile as
/// this test (`BUTTERNUT_FIO_PROFILE=dev scripts/fio`).
pub fn engine() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("BUTTERNUT_FIO_ENGINE") {
        return Some(path.into());
    }
    let test = std::env::current_exe().ok()?;
    let engine = test.ancestors().nth(2)?.join("libbutternut_fio.so");
    engine.exists().then_some(engine)
}

/// Returns the fio that the engine is built for: `BUTTERNUT_FIO`, or the installed one.
fn program() -> String {
    std::env::var("BUTTERNUT_FIO").unwrap_or_else(|_| "fio".to_owned())
}

/// A volume in images, which only the jobs open while they run.
#[derive(Debug)]
pub struct FioVolume {
    images: Vec<PathBuf>,
    dir: tempfile::TempDir,
}

impl FioVolume {
    /// Makes a volume in one image with `mkfs.btrfs` and these options.
    pub fn new(mkfs: &str) -> Result<Self> {
        Self::of(mkfs, 1)
    }

    /// Makes a volume on the given number of devices.
    pub fn of(mkfs: &str, devices: usize) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-fio-").tempdir()?;
        let mut images = Vec::new();
        for number in 0..devices {
            let image = dir.path().join(format!("fio-{number}.img"));
            std::fs::File::create(&image)?.set_len(BYTES)?;
            images.push(image);
        }
        let words = format!("-q -K {mkfs}");
        let words = words.split_whitespace().map(OsString::from);
        let args: Vec<OsString> = words.chain(images.iter().map(Into::into)).collect();
        tool::run("mkfs.btrfs", &args)?;
        Ok(Self { images, dir })
    }

    /// Returns the path of the first image.
    pub fn image(&self) -> &Path {
        &self.images[0]
    }

    /// Returns the directory in which fio runs and writes other files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Mounts the volume with the kernel for writing.
    pub fn mount(&self) -> Result<KernelMount> {
        KernelMount::new(&self.images, &MountHow::default())
    }

    /// Returns the options that every job needs for the engine: first the engine, then the engine's
    /// own options.
    pub fn engine_words(&self) -> Result<String> {
        let engine = engine().context("the engine is not built (make fio)")?;
        let images: Vec<String> =
            self.images.iter().map(|image| image.display().to_string()).collect();
        let (engine, images) = (engine.display(), images.join(","));
        Ok(format!("--ioengine=external:{engine} --volume={images} --verify_state_save=0"))
    }

    /// Returns the fio command for a job of `--name=value` words.
    fn command(&self, words: &str) -> Result<Command> {
        let mut command = Command::new(program());
        command.current_dir(self.dir.path()).arg("--output-format=json").arg("--name=job");
        command.args(self.engine_words()?.split_whitespace()).args(words.split_whitespace());
        Ok(command)
    }

    pub fn output(&self, words: &str) -> Result<Output> {
        self.command(words)?.output().context("fio")
    }

    /// Runs a job with threads, which must succeed, and returns fio's report on the first job.
    pub fn run(&self, words: &str) -> Result<Value> {
        let output = self.output(&format!("--thread=1 {words}"))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "fio {words}: {}\n{printed}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let json = printed.find('{').context("fio printed no JSON")?;
        let value: Value = serde_json::from_str(&printed[json..])?;
        Ok(value["jobs"][0].clone())
    }

    /// Starts a job with threads. The caller waits for it or kills it.
    pub fn start(&self, words: &str) -> Result<Child> {
        self.start_with_output(words, Stdio::null())
    }

    /// Starts a job with threads whose output goes to `printed`.
    pub fn start_with_output(&self, words: &str, printed: Stdio) -> Result<Child> {
        let mut command = self.command(&format!("--thread=1 {words}"))?;
        command.stdout(printed).stderr(Stdio::null());
        command.spawn().context("fio")
    }

    /// Checks the volume with btrfs-progs, and mounts it with the kernel.
    pub fn check_and_mount(&self) -> Result<KernelMount> {
        // After a crash the mount replays the log, which it does not do on a read-only device.
        let attach = |image: &PathBuf| LoopDevice::attach(image, false, 0);
        let loops = self.images.iter().map(attach).collect::<Result<Vec<_>>>()?;
        let first = loops.first().context("a volume without devices")?;
        tool::run("btrfs", &tool::words_and_path("check --check-data-csum", first.path()))?;
        KernelMount::over(loops, &MountHow { read_only: true, ..MountHow::default() })
    }
}

/// Lets fio verify a file on the kernel's mount: each block must have the checksum that the writing
/// job stored in it. The same fio must be used, because the stored header differs between versions.
pub fn verify_with_kernel(file: &Path, block_bytes: u64) -> Result<()> {
    let mut args: Vec<OsString> = vec!["--name=job".into(), "--ioengine=psync".into()];
    args.push(prefixed("--filename=", file));
    let words = "--rw=read --verify=crc32c --verify_state_save=0 --thread=1 --readonly";
    args.extend(words.split_whitespace().map(Into::into));
    args.push(format!("--bs={block_bytes}").into());
    tool::run(&program(), &args).map(drop)
}

fn prefixed(option: &str, path: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(path);
    word
}
