//! SQLite, with each kind of journal.

use crate::transactions::{self, DUMP_SQL, Rows, parse};
use crate::workload::{Client, Database, Workload, run};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

const FILE: &str = "database.sqlite";

pub(crate) struct Sqlite {
    pub(crate) journal: &'static str,
    pub(crate) synchronous: &'static str,
    /// With `synchronous=FULL`, SQLite does not sync the directory after it has deleted a rollback
    /// journal. A crash may bring the journal back, and the last transaction is then rolled back.
    pub(crate) lost_max: u64,
}

fn command(root: &Path) -> Command {
    let mut command = Command::new("stdbuf");
    command.args(["-oL", "sqlite3", "-batch", "-bail", "-noheader"]).arg(root.join(FILE));
    command
}

impl Database for Sqlite {
    fn lost_max(&self) -> u64 {
        self.lost_max
    }

    fn create(&self, root: &Path, outside: &Path) -> Result<()> {
        let tables = transactions::create_sql(1);
        let journal = self.journal;
        let script = format!("PRAGMA journal_mode={journal};\nPRAGMA synchronous=EXTRA;\n{tables}");
        run(&mut command(root), outside, &script).map(drop)
    }

    fn start(&self, root: &Path, outside: &Path, count: u64) -> Result<Workload> {
        let Self { journal, synchronous, .. } = self;
        // A short WAL, so that there are many checkpoints.
        let script = format!(
            "PRAGMA journal_mode={journal};\nPRAGMA synchronous={synchronous};\n\
             PRAGMA wal_autocheckpoint=100;\n{}",
            transactions::sql(0, count, |number| format!(".print committed {number}"))
        );
        let client = Client::start(&mut command(root), outside, "sqlite", &script)?;
        Ok(Workload { clients: vec![client], server: None })
    }

    fn recover(&self, root: &Path, outside: &Path) -> Result<Rows> {
        let script = format!("PRAGMA integrity_check;\n{DUMP_SQL}\n");
        let printed = run(&mut command(root), outside, &script)?;
        ensure!(printed.starts_with("ok\n"), "integrity_check: {printed:.1000}");
        parse(&printed)
    }
}
