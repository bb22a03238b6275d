//! Child processes: tools that run briefly, and jobs that are measured.
//!
//! 1. A job runs in a process group of its own. It is killed when the run is interrupted, when it
//!    takes too long, and when this process dies (`setpriv --pdeathsig`).
//! 2. Nothing is killed but the process group of a child that has not been waited for, so its
//!    number cannot belong to another process.
//! 3. An error of a child contains its command and what it printed.

use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running job is looked at.
const POLL: Duration = Duration::from_millis(10);
/// Longest part of the output of a child in an error, in bytes.
const SHOWN_BYTES_MAX: usize = 2000;

/// Runs a tool, which must succeed, and returns its standard output without the last line feed.
///
/// # Errors
/// The tool is missing, or fails; the error contains what it printed.
pub(crate) fn run<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        // A Ctrl-C does not reach it: it is short, and may be part of the clean-up.
        .process_group(0)
        .output()
        .with_context(|| format!("{program}: cannot be run (is it installed?)"))?;
    let line: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    ensure!(
        output.status.success(),
        "{program} {}: {}: {}",
        line.join(" "),
        how(output.status),
        shown(&[output.stderr, output.stdout].concat())
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Returns the path of a program of the PATH, or of `/usr/sbin` and `/sbin`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.exists().then(|| path.to_owned());
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&dirs).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// A job that is measured.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    what: String,
    output: PathBuf,
}

impl Job {
    /// Starts a command whose output and errors go to the file `output`.
    ///
    /// # Errors
    /// The file cannot be made, or the command cannot be started.
    pub(crate) fn start(command: &[String], dir: &Path, output: &Path) -> Result<Self> {
        let what = command.first().context("an empty command")?.clone();
        let file = File::create(output)
            .with_context(|| format!("{}: cannot be written", output.display()))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(command)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .context("setpriv: cannot be run (is it installed? it is part of util-linux)")?;
        Ok(Self { child, what, output: output.to_owned() })
    }

    /// Waits for the end of the job, which must succeed. `watch` is called now and then.
    ///
    /// # Errors
    /// The job fails, takes longer than `limit`, or the run is interrupted; the job has ended then.
    pub(crate) fn wait(mut self, limit: Duration, mut watch: impl FnMut()) -> Result<()> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return self.ended(status);
            }
            if interrupt::pending() {
                self.kill();
                bail!(interrupt::Interrupted);
            }
            if began.elapsed() > limit {
                self.kill();
                bail!("{}: still running after {} s, killed", self.what, limit.as_secs());
            }
            watch();
            thread::sleep(POLL);
        }
    }

    fn ended(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        let printed = std::fs::read(&self.output).unwrap_or_default();
        bail!("{}: {}: {}", self.what, how(status), shown(&printed))
    }

    fn kill(&mut self) {
        // An error means that the group has ended.
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        group.map(|group| kill_process_group(group, Signal::KILL).ok());
        drop(self.child.wait());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// Says how a process ended.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Returns the end of what a child printed.
fn shown(printed: &[u8]) -> String {
    let from = printed.len().saturating_sub(SHOWN_BYTES_MAX);
    String::from_utf8_lossy(&printed[from..]).trim().to_owned()
}
