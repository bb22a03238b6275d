//! The metadata driver: creates, stats, lists, renames and removes many small files, and extracts a
//! tree, with some threads. It runs as a process of its own, so that it can be limited and killed.
//!
//! ```text
//! create   files in one directory for each thread, with contents
//! stat     each file by its path, after the caches were dropped
//! list     each directory once
//! rename   each file, to another name in its directory
//! unlink   each file
//! untar   directories of 20 files, as tar(1) extracts a source tree: contents, mode, times
//! ```
//!
//! Each metric is files per second, over all threads; create, rename, unlink and untar include a
//! sync of the filesystem.

use super::{Figures, Measured};
use crate::child::Job;
use crate::scenario::rows::Row;
use crate::size;
use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const LIMIT: Duration = Duration::from_hours(1);
/// Files of each directory of an extracted tree.
const FILES_IN_DIRECTORY: u64 = 20;

/// Arguments of the process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    directory: PathBuf,
    #[arg(long)]
    files: u64,
    #[arg(long)]
    threads: u64,
    #[arg(long)]
    bytes: u64,
    /// Where the rates are written, as JSON.
    #[arg(long)]
    output: PathBuf,
}

/// Runs the row in a directory and returns its figures.
///
/// # Errors
/// The process fails, for example because the device is full.
pub(crate) fn measure(
    row: &Row,
    directory: &Path,
    work: &Path,
    wrap: impl FnOnce(Vec<String>) -> Vec<String>,
    watch: impl FnMut(),
) -> Result<Measured> {
    let metadata = row.scenario.metadata.as_ref().context("metadata: missing")?;
    let output = work.join("metadata.json");
    drop(fs::remove_file(&output));
    let command = vec![
        std::env::current_exe()?.display().to_string(),
        "drive-metadata".into(),
        directory.display().to_string(),
        format!("--files={}", row.number(&metadata.files.0)?),
        format!("--threads={}", row.number(&metadata.threads.0)?),
        format!("--bytes={}", size::parse(&row.fill(&metadata.bytes.0)?)?),
        format!("--output={}", output.display()),
    ];
    let began = Instant::now();
    Job::start(&wrap(command), work, &work.join("metadata.out"))?.wait(LIMIT, watch)?;
    let text = fs::read_to_string(&output).context("the metadata driver wrote no result")?;
    let values: BTreeMap<String, f64> = serde_json::from_str(&text)?;
    let operations = row.number(&metadata.files.0)? as f64 * values.len() as f64;
    let all = Figures { operations, values, ..Figures::default() };
    Ok(Measured { seconds: began.elapsed().as_secs_f64(), all, jobs: BTreeMap::new() })
}

/// Runs as the process of the driver.
///
/// # Errors
/// A system call fails; the error names the file.
pub(crate) fn drive(args: &Args) -> Result<()> {
    ensure!(args.threads > 0 && args.files >= args.threads, "want a file for each thread");
    let each = args.files / args.threads;
    let dirs: Vec<PathBuf> =
        (0..args.threads).map(|thread| args.directory.join(format!("thread-{thread}"))).collect();
    for dir in &dirs {
        fs::create_dir(dir).with_context(|| format!("{}", dir.display()))?;
    }
    let contents = vec![b'b'; usize::try_from(args.bytes)?];
    let old = |dir: &Path, n| dir.join(format!("file-{n:08}"));
    let new = |dir: &Path, n| dir.join(format!("renamed-{n:08}"));
    let mut rates = BTreeMap::new();
    let mut step = |name: &str, is_synced: bool, work: &(dyn Fn(&Path) -> Result<()> + Sync)| {
        let seconds = timed(&dirs, &args.directory, is_synced, work).context(name.to_owned())?;
        rates.insert(name.to_owned(), (each * args.threads) as f64 / seconds);
        anyhow::Ok(())
    };
    let each_file = |call: &(dyn Fn(u64) -> std::io::Result<()> + Sync), dir: &Path| {
        (0..each).try_for_each(|n| call(n).with_context(|| format!("{}", old(dir, n).display())))
    };
    step("create", true, &|dir| each_file(&|n| fs::write(old(dir, n), &contents), dir))?;
    crate::target::session::drop_caches()?;
    step("stat", false, &|dir| each_file(&|n| fs::symlink_metadata(old(dir, n)).map(drop), dir))?;
    step("list", false, &|dir| {
        let count = fs::read_dir(dir)?.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
        ensure!(count == each, "{}: have {count} names, want {each}", dir.display());
        Ok(())
    })?;
    step("rename", true, &|dir| each_file(&|n| fs::rename(old(dir, n), new(dir, n)), dir))?;
    step("unlink", true, &|dir| each_file(&|n| fs::remove_file(new(dir, n)), dir))?;
    step("untar", true, &|dir| untar(&dir.join("tree"), each, &contents))?;
    fs::write(&args.output, serde_json::to_vec(&rates)?)
        .with_context(|| format!("{}", args.output.display()))
}

/// Runs the work of each directory in a thread, and returns the seconds until all have ended.
fn timed(
    dirs: &[PathBuf],
    root: &Path,
    is_synced: bool,
    work: &(dyn Fn(&Path) -> Result<()> + Sync),
) -> Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = dirs.iter().map(|dir| scope.spawn(move || work(dir))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| anyhow::bail!("a thread of the driver panicked"))
        })
    })?;
    if is_synced {
        let root = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        rustix::fs::syncfs(root).context("sync")?;
    }
    Ok(began.elapsed().as_secs_f64())
}

fn untar(root: &Path, files: u64, contents: &[u8]) -> Result<()> {
    let made = SystemTime::UNIX_EPOCH + Duration::from_hours(400_000);
    fs::create_dir(root).with_context(|| format!("{}", root.display()))?;
    let mut dir = root.to_owned();
    for n in 0..files {
        if n % FILES_IN_DIRECTORY == 0 {
            // Three levels, as a source tree has.
            let number = n / FILES_IN_DIRECTORY;
            dir = root.join(format!("{}/{}", number / 100, number % 100));
            fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        }
        let path = dir.join(format!("source-{n}.c"));
        let written = fs::write(&path, contents)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
            .and_then(|()| fs::File::options().write(true).open(&path)?.set_modified(made));
        written.with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_measured_and_files_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let output = dir.path().join("rates.json");
        let args = Args {
            directory: root.clone(),
            files: 50,
            threads: 2,
            bytes: 10,
            output: output.clone(),
        };
        drive(&args).unwrap();
        let rates: BTreeMap<String, f64> =
            serde_json::from_str(&fs::read_to_string(output).unwrap()).unwrap();
        let mut known = crate::scenario::METADATA_METRICS.to_vec();
        known.sort_unstable();
        assert_eq!(rates.keys().collect::<Vec<_>>(), known);
        assert!(rates.values().all(|rate| *rate > 0.0));
        let kept = root.join("thread-1/tree/0/1/source-24.c");
        assert_eq!(fs::metadata(kept).unwrap().len(), 10);
        assert!(drive(&args).is_err(), "the directories exist");
    }
}
