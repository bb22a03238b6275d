//! The history: a directory of records, and an index of it.
//!
//! ```text
//! <history>/<run id>.jsonl     the truth
//! <history>/index.sqlite       what can be read from it faster; removed and rebuilt at any time
//! ```
//!
//! Laws:
//!
//! 1. The index is never the only place of anything. A missing, damaged or older index is rebuilt.
//! 2. A record is read again when its size or its modification time differs from what the index
//!    has.
//! 3. A record that cannot be read is left out with a note, and hides no other one.
//!
//! What runs mean is left to the judge.

use crate::record::{self, Better, Record, RecordError, Switches};
use rusqlite::{Connection, Transaction, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Name of the index in the history directory.
pub const INDEX: &str = "index.sqlite";

/// Version of the index's tables. An index of another version is rebuilt.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, bytes INTEGER NOT NULL, changed INTEGER NOT NULL,
        started TEXT NOT NULL, suite TEXT NOT NULL, complete INTEGER NOT NULL,
        failures INTEGER NOT NULL, samples INTEGER NOT NULL, revision TEXT NOT NULL,
        kernel TEXT NOT NULL, device TEXT NOT NULL, machine TEXT NOT NULL, note TEXT NOT NULL
    ) STRICT;
    CREATE TABLE cells (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        row TEXT NOT NULL, target TEXT NOT NULL, switches TEXT NOT NULL, metric TEXT NOT NULL,
        unit TEXT NOT NULL, better TEXT NOT NULL, samples TEXT NOT NULL,
        PRIMARY KEY (row, target, switches, metric, run)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX cells_of_run ON cells (run);
";

/// Why the history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("{}: cannot read the history", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}: cannot use the index", path.display())]
    Index {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("{}: no run {name:?} (see `butternut-lab history`)", path.display())]
    NoRun { path: PathBuf, name: String },
}

/// A run as the index has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub id: String,
    /// RFC 3339 in UTC.
    pub started: String,
    pub suite: String,
    pub is_complete: bool,
    pub failures: u64,
    pub samples: u64,
    /// Commit of the measured program, with `+` when the tree had changes.
    pub revision: String,
    pub kernel: String,
    pub device: String,
    /// What runs must have in common to be comparable: processor, memory, device, kernel.
    pub machine: String,
    /// Why the record cannot be read, or what was dropped from it.
    pub note: String,
}

/// A measured cell in one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub run: String,
    pub started: String,
    pub revision: String,
    pub machine: String,
    pub row: String,
    pub target: String,
    pub switches: Switches,
    pub metric: String,
    pub unit: String,
    pub better: Better,
    /// Values in the order of the repeats.
    pub values: Vec<f64>,
}

/// An open history.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    index: Connection,
}

impl History {
    /// Opens the history in the directory `path`, and brings its index up to date. A directory that
    /// does not exist is an empty history; where the index cannot be written, it is kept in memory.
    ///
    /// # Errors
    ///
    /// The directory or its index cannot be read, or the index cannot be written.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        let memory = |_| Connection::open_in_memory().and_then(with_tables);
        let index =
            if path.is_dir() { open_index(path) } else { Err(rusqlite::Error::InvalidQuery) };
        let index = index.or_else(memory).map_err(|source| index_error(path, source))?;
        let mut history = Self { path: path.to_owned(), index };
        match history.refresh() {
            Err(HistoryError::Index { .. }) if path.is_dir() => history.rebuild()?,
            other => other?,
        }
        Ok(history)
    }

    /// Removes the index and makes it again from the records.
    ///
    /// # Errors
    ///
    /// The records cannot be read, or the index cannot be written.
    pub fn rebuild(&mut self) -> Result<(), HistoryError> {
        let memory = Connection::open_in_memory().map_err(|e| index_error(&self.path, e))?;
        drop(std::mem::replace(&mut self.index, memory));
        remove_index(&self.path);
        self.index = open_index(&self.path).map_err(|e| index_error(&self.path, e))?;
        self.refresh()
    }

    /// All runs, the oldest first.
    ///
    /// # Errors
    ///
    /// The index cannot be read.
    pub fn runs(&self) -> Result<Vec<Run>, HistoryError> {
        self.listed().map_err(|source| index_error(&self.path, source))
    }

    /// The points of all cells whose row is `row`, is below it (`suite/scenario`), or contains it
    /// where no row begins with it: the oldest run first. Only complete runs are used.
    ///
    /// # Errors
    ///
    /// The index cannot be read.
    pub fn points(&self, row: &str) -> Result<Vec<Point>, HistoryError> {
        let read = |condition: &str| self.selected(condition, row);
        let below = read("(c.row = ?1 OR substr(c.row, 1, length(?1) + 1) = ?1 || '/')");
        let found =
            below.and_then(
                |found| {
                    if found.is_empty() { read("instr(c.row, ?1) > 0") } else { Ok(found) }
                },
            );
        found.map_err(|source| index_error(&self.path, source))
    }

    /// Finds the record that `name` names: a path of a file, a run id, `latest`, or `latest~N` for
    /// the N-th before it. `latest` counts complete runs.
    ///
    /// # Errors
    ///
    /// There is no such run.
    pub fn find(&self, name: &str) -> Result<PathBuf, HistoryError> {
        let is_record = Path::new(name).extension().is_some_and(|e| e == record::EXTENSION);
        if name.contains('/') || is_record {
            return Ok(PathBuf::from(name));
        }
        let none = || HistoryError::NoRun { path: self.path.clone(), name: name.to_owned() };
        let back = match name.strip_prefix("latest") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix('~').and_then(|number| number.parse::<usize>().ok()),
            None => None,
        };
        let id = match back {
            Some(back) => {
                let runs = self.runs()?;
                let mut complete = runs.into_iter().rev().filter(|run| run.is_complete);
                complete.nth(back).ok_or_else(none)?.id
            }
            None => name.to_owned(),
        };
        let path = record::path_of(&self.path, &id)?;
        if path.is_file() { Ok(path) } else { Err(none()) }
    }

    /// Reads the record that `name` names.
    ///
    /// # Errors
    ///
    /// There is no such run, or its record cannot be read.
    pub fn read(&self, name: &str) -> Result<Record, HistoryError> {
        Ok(Record::read(&self.find(name)?)?)
    }

    fn refresh(&mut self) -> Result<(), HistoryError> {
        let files = files(&self.path)?;
        let path = self.path.clone();
        self.take(&files).map_err(|source| index_error(&path, source))
    }

    fn take(&mut self, files: &BTreeMap<String, Stamp>) -> rusqlite::Result<()> {
        let known = self.known()?;
        let stale: Vec<&String> = known.keys().filter(|id| !files.contains_key(*id)).collect();
        let changed: Vec<(&String, &Stamp)> =
            files.iter().filter(|(id, stamp)| known.get(*id) != Some(&stamp.size())).collect();
        if stale.is_empty() && changed.is_empty() {
            return Ok(());
        }
        let transaction = self.index.transaction()?;
        for id in stale.into_iter().chain(changed.iter().map(|(id, _)| *id)) {
            transaction.execute("DELETE FROM runs WHERE id = ?1", [id])?;
        }
        for (id, stamp) in changed {
            insert(&transaction, id, stamp)?;
        }
        transaction.commit()
    }

    fn known(&self) -> rusqlite::Result<BTreeMap<String, (i64, i64)>> {
        let mut statement = self.index.prepare("SELECT id, bytes, changed FROM runs")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
        rows.collect()
    }

    fn listed(&self) -> rusqlite::Result<Vec<Run>> {
        let mut statement = self.index.prepare(
            "SELECT id, started, suite, complete, failures, samples, revision, kernel, device,
                    machine, note
             FROM runs ORDER BY started, id",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(Run {
                id: row.get(0)?,
                started: row.get(1)?,
                suite: row.get(2)?,
                is_complete: row.get(3)?,
                failures: row.get::<_, i64>(4)?.unsigned_abs(),
                samples: row.get::<_, i64>(5)?.unsigned_abs(),
                revision: row.get(6)?,
                kernel: row.get(7)?,
                device: row.get(8)?,
                machine: row.get(9)?,
                note: row.get(10)?,
            })
        })?;
        rows.collect()
    }

    fn selected(&self, condition: &str, row: &str) -> rusqlite::Result<Vec<Point>> {
        let mut statement = self.index.prepare(&format!(
            "SELECT c.run, r.started, r.revision, r.machine, c.row, c.target, c.switches, c.metric,
                    c.unit, c.better, c.samples
             FROM cells c JOIN runs r ON r.id = c.run
             WHERE r.complete AND {condition} ORDER BY r.started, r.id, c.row, c.target"
        ))?;
        let rows = statement.query_map([row], |row| {
            Ok(Point {
                run: row.get(0)?,
                started: row.get(1)?,
                revision: row.get(2)?,
                machine: row.get(3)?,
                row: row.get(4)?,
                target: row.get(5)?,
                switches: decoded(6, &row.get::<_, String>(6)?)?,
                metric: row.get(7)?,
                unit: row.get(8)?,
                better: decoded(9, &row.get::<_, String>(9)?)?,
                values: decoded(10, &row.get::<_, String>(10)?)?,
            })
        })?;
        rows.collect()
    }
}

/// Returns what a run must have in common with another one to be comparable.
pub fn machine(environment: &record::Environment) -> String {
    let device = &environment.device;
    let release = environment.kernel.split('-').next().unwrap_or_default();
    format!(
        "{}, {} cores, {} MiB, {} {} {} MiB, Linux {release}",
        environment.cpu,
        environment.cores,
        environment.memory_bytes >> 20,
        device.kind,
        device.model,
        device.size_bytes >> 20
    )
}

/// A record file and what tells whether it has changed.
struct Stamp {
    path: PathBuf,
    bytes: i64,
    /// Modification time, in nanoseconds since 1970.
    changed: i64,
}

impl Stamp {
    fn size(&self) -> (i64, i64) {
        (self.bytes, self.changed)
    }
}

fn files(path: &Path) -> Result<BTreeMap<String, Stamp>, HistoryError> {
    let mut found = BTreeMap::new();
    let error = |source| HistoryError::Io { path: path.to_owned(), source };
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(source) => return Err(error(source)),
    };
    for entry in entries {
        let path = entry.map_err(error)?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
        let (Some(id), true) = (stem, path.extension().is_some_and(|e| e == record::EXTENSION))
        else {
            continue;
        };
        // A file that is removed meanwhile is not in the history.
        let Ok(metadata) = path.metadata() else { continue };
        let age = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = age.map_or(0, |age| i64::try_from(age.as_nanos()).unwrap_or(i64::MAX));
        let bytes = i64::try_from(metadata.len()).unwrap_or(i64::MAX);
        if metadata.is_file() {
            found.insert(id, Stamp { path, bytes, changed });
        }
    }
    Ok(found)
}

fn open_index(path: &Path) -> rusqlite::Result<Connection> {
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(path.join(INDEX))?;
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        with_tables(connection)
    };
    open().or_else(|_| {
        // Law 1: whatever is wrong with the index, the records are the truth.
        remove_index(path);
        open()
    })
}

/// Makes the tables where there are none, and refuses those of another version.
fn with_tables(mut connection: Connection) -> rusqlite::Result<Connection> {
    connection.pragma_update(None, "foreign_keys", true)?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match version {
        VERSION => drop(transaction),
        0_i64 => {
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        }
        _ => return Err(rusqlite::Error::InvalidQuery),
    }
    Ok(connection)
}

fn remove_index(path: &Path) {
    for name in [INDEX.to_owned(), format!("{INDEX}-journal"), format!("{INDEX}-wal")] {
        // What cannot be removed is found when the index is made.
        drop(std::fs::remove_file(path.join(name)));
    }
}

fn insert(transaction: &Transaction<'_>, id: &str, stamp: &Stamp) -> rusqlite::Result<()> {
    let read = Record::read(&stamp.path).map_err(|error| error.to_string());
    let read = read.and_then(|record| {
        if record.run.id == id { Ok(record) } else { Err(format!("id: have {:?}", record.run.id)) }
    });
    let record = match read {
        Ok(record) => record,
        Err(note) => {
            transaction.execute(
                "INSERT INTO runs VALUES (?1, ?2, ?3, '', '', 0, 0, 0, '', '', '', '', ?4)",
                params![id, stamp.bytes, stamp.changed, note],
            )?;
            return Ok(());
        }
    };
    let environment = &record.run.environment;
    let mut revision: String = environment.commit.chars().take(12).collect();
    if environment.dirty && !revision.is_empty() {
        revision.push('+');
    }
    let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
    transaction.execute(
        "INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            id,
            stamp.bytes,
            stamp.changed,
            record.run.started,
            record.run.suite,
            record.is_complete(),
            count(record.failures.len()),
            count(record.samples.len()),
            revision,
            environment.kernel,
            environment.device.path,
            machine(environment),
            record.notes.join("; "),
        ],
    )?;
    insert_cells(transaction, id, &record)
}

fn insert_cells(transaction: &Transaction<'_>, id: &str, record: &Record) -> rusqlite::Result<()> {
    let mut cells: BTreeMap<record::Cell, Vec<&record::Sample>> = BTreeMap::new();
    for sample in &record.samples {
        cells.entry(sample.cell()).or_default().push(sample);
    }
    let mut statement =
        transaction.prepare("INSERT INTO cells VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    for (cell, mut samples) in cells {
        samples.sort_by_key(|sample| sample.repeat);
        let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        statement.execute(params![
            id,
            cell.row,
            cell.target,
            encoded(&cell.switches)?,
            cell.metric,
            samples[0].unit,
            encoded(&samples[0].better)?,
            encoded(&values)?,
        ])?;
    }
    Ok(())
}

fn encoded(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn decoded<T: serde::de::DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    let kind = rusqlite::types::Type::Text;
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(error)))
}

fn index_error(path: &Path, source: rusqlite::Error) -> HistoryError {
    HistoryError::Index { path: path.join(INDEX), source }
}

#[cfg(test)]
mod tests;
