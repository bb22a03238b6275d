//! `RocksDB`, by a small program in C over its library.

use crate::transactions::{Rows, Transaction, parse, transaction};
use crate::workload::{Client, Database, Workload, run};
use anyhow::{Context, Result};
use butternut_judges::tool;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("rocksdb.c");

pub(crate) struct RocksDb {
    program: PathBuf,
    _dir: tempfile::TempDir,
}

impl RocksDb {
    /// Compiles the program.
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-rocksdb-").tempdir()?;
        let (source, program) = (dir.path().join("rocksdb.c"), dir.path().join("rocksdb"));
        std::fs::write(&source, SOURCE)?;
        let words = ["-Wall", "-Werror", "-O1", "-o"].map(Path::new);
        let last = [program.as_path(), &source, Path::new("-lrocksdb")];
        tool::run("cc", &[&words[..], &last].concat())
            .context("librocksdb-dev is needed: `scripts/setup` installs it")?;
        Ok(Self { program, _dir: dir })
    }

    fn command(&self, action: &str, root: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(action).arg(root.join("rocks"));
        command
    }
}

/// Returns the lines of a client's transactions that the program reads.
fn script(numbers: impl Iterator<Item = u64>) -> String {
    let mut text = String::new();
    for number in numbers {
        let Transaction { id, body, counter, count, deleted } = transaction(0, number);
        // Keys have a fixed length; the dump parses them as numbers.
        let deleted = deleted.map_or_else(|| "-".to_owned(), |id| format!("{id:08}"));
        writeln!(text, "{count} {counter:08} {id:08} {body} {deleted}").ok();
    }
    text
}

impl Database for RocksDb {
    fn create(&self, root: &Path, outside: &Path) -> Result<()> {
        run(&mut self.command("create", root), outside, "").map(drop)
    }

    fn start(&self, root: &Path, outside: &Path, count: u64) -> Result<Workload> {
        let script = script(1..=count);
        let mut command = self.command("write", root);
        let client = Client::start(&mut command, outside, "rocksdb", &script)?;
        Ok(Workload { clients: vec![client], server: None })
    }

    fn recover(&self, root: &Path, outside: &Path) -> Result<Rows> {
        parse(&run(&mut self.command("dump", root), outside, "")?)
    }
}
