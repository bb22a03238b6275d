//! Databases, and the clients that commit transactions to them.

use crate::transactions::{Acknowledged, Rows, acknowledged};
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for transactions and processes. Only a hang reaches it.
const WAIT_MAX: Duration = Duration::from_mins(5);
const PAUSE: Duration = Duration::from_millis(2);

/// A database in the top-level directory of a mounted volume. `outside` is a directory that is not
/// on the volume.
pub(crate) trait Database {
    /// Returns the number of transactions that a client may have acknowledged and lose in a crash.
    fn lost_max(&self) -> u64 {
        0
    }

    /// Creates the database with empty tables.
    fn create(&self, root: &Path, outside: &Path) -> Result<()>;

    /// Starts the server, if there is one, and clients that commit `count` transactions each.
    fn start(&self, root: &Path, outside: &Path, count: u64) -> Result<Workload>;

    /// Opens the database after a crash, checks it with its own tools, returns its rows, and closes
    /// it.
    fn recover(&self, root: &Path, outside: &Path) -> Result<Rows>;
}

/// Clients at work, and their server. All of them are killed when this is dropped.
pub(crate) struct Workload {
    pub(crate) clients: Vec<Client>,
    /// Dropped after the clients.
    pub(crate) server: Option<Box<dyn Send>>,
}

/// A process that prints the number of each transaction after it was acknowledged.
pub(crate) struct Client {
    process: Child,
    printed: PathBuf,
    errors: PathBuf,
}

impl Client {
    /// Starts the command, with a script as its input.
    pub(crate) fn start(
        command: &mut Command,
        outside: &Path,
        name: &str,
        script: &str,
    ) -> Result<Self> {
        let [input, printed, errors] =
            ["input", "printed", "errors"].map(|kind| outside.join(format!("{name}.{kind}")));
        std::fs::write(&input, script)?;
        let process = command
            .stdin(File::open(&input)?)
            .stdout(File::create(&printed)?)
            .stderr(File::create(&errors)?)
            .spawn()
            .with_context(|| {
                format!("{command:?}: is it installed? `scripts/setup` installs it")
            })?;
        Ok(Self { process, printed, errors })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Workload {
    /// Returns the last acknowledged transaction of each client.
    pub(crate) fn acknowledged(&self) -> Result<Acknowledged> {
        self.clients.iter().map(|client| acknowledged(&client.printed)).collect()
    }

    /// Waits until so many transactions of all clients together are acknowledged.
    pub(crate) fn wait_for(&mut self, wanted: u64) -> Result<()> {
        let mut ended = false;
        wait_until("transactions", || {
            if self.acknowledged()?.iter().sum::<u64>() >= wanted {
                return Ok(true);
            }
            ensure!(!ended, "a client has ended: {}", self.errors());
            for client in &mut self.clients {
                ended |= client.process.try_wait()?.is_some();
            }
            Ok(false)
        })
    }

    fn errors(&self) -> String {
        let read = |client: &Client| std::fs::read_to_string(&client.errors).unwrap_or_default();
        let errors: String = self.clients.iter().map(read).collect();
        errors.chars().take(1000).collect()
    }
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        ensure!(began.elapsed() < WAIT_MAX, "waited for {what} for {WAIT_MAX:?}");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Runs a command with this input, which must succeed, and returns what it printed.
pub(crate) fn run(command: &mut Command, outside: &Path, input: &str) -> Result<String> {
    let script = outside.join("input");
    std::fs::write(&script, input)?;
    let output = command
        .stdin(File::open(&script)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("{command:?}: is it installed? `scripts/setup` installs it"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {errors}{printed:.1000}", output.status);
    }
    Ok(printed)
}
