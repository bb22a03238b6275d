//! The record of a run: one file of JSON Lines, which `run` writes and the judge reads.
//!
//! ```text
//! <history>/<run id>.jsonl
//! {"kind":"run", ...}        the first line: identity, command and environment
//! {"kind":"sample", ...}     one measured value of one metric, in the order of measurement
//! {"kind":"failure", ...}    a repeat of a cell that failed
//! {"kind":"end", ...}        the last line; only a complete run has it
//! ```
//!
//! Laws:
//!
//! 1. A record grows by whole lines: each is one write followed by `fdatasync`. After a failed
//!    write the file is cut back to the last whole line.
//! 2. A last line without a line feed was torn by a crash. A reader drops it with a note, and a
//!    writer that resumes the run cuts it off first. Any other malformed line is an error.
//! 3. A format number that this code does not know is refused. Unknown fields are ignored, and
//!    lines of an unknown kind are skipped with a note.
//! 4. One process writes a record at a time: the writer holds a lock on the file.
//!
//! What the values mean is left to the suites, and what they prove to the judge.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The format number of the records that this code writes.
pub const FORMAT: u32 = 1;

/// The extension of record files, without the dot.
pub const EXTENSION: &str = "jsonl";

/// Longest line that is read or written, in bytes. A per-second series of a day has 3 MiB.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// Longest run id, in bytes.
pub const ID_BYTES_MAX: usize = 128;

/// Values of switches (tunables) by name, sorted by name.
pub type Switches = BTreeMap<String, String>;

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file or its directory could not be read, written or locked.
    #[error("{}: {what}", path.display())]
    Io {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// A line is not what the format says.
    #[error("{}: line {line}: {what}", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    /// The format number is not known here.
    #[error(
        "{}: format: have {have}, want {FORMAT} (read it with the version that wrote it)",
        path.display()
    )]
    Format { path: PathBuf, have: u32 },
    /// The file has no complete first line.
    #[error("{}: no run: the first line is missing (remove the file)", path.display())]
    Empty { path: PathBuf },
    /// A run id that cannot be a file name.
    #[error(
        "run id {id:?}: want 1 to {ID_BYTES_MAX} letters, digits, '.', '_' or '-', not '.' first"
    )]
    Id { id: String },
    /// A value that JSON cannot hold, or an empty name.
    #[error("{row}: {field}: {what}")]
    Value { row: String, field: &'static str, what: String },
    /// Another process writes the record.
    #[error("{}: another process writes this run (wait for it, or stop it)", path.display())]
    Busy { path: PathBuf },
    /// The run is complete, so nothing can be added.
    #[error("{}: the run is complete (start a new one)", path.display())]
    Complete { path: PathBuf },
}

/// The device that a run measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFacts {
    pub path: String,
    /// What it is, such as `nvme`, `scsi`, `loop` or `memory`.
    pub kind: String,
    pub model: String,
    pub size_bytes: u64,
    /// The I/O scheduler of the block layer, such as `none` or `mq-deadline`.
    pub scheduler: String,
    pub rotational: bool,
}

/// Where a run was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    pub kernel: String,
    pub cpu: String,
    pub cores: u32,
    /// The frequency governor of the processors, or empty where there is none.
    pub governor: String,
    pub mitigations: String,
    pub memory_bytes: u64,
    pub device: DeviceFacts,
    /// Versions of the tools, by name (`fio`, `btrfs_progs`).
    pub versions: BTreeMap<String, String>,
    /// The commit of the measured program, or empty where it is not known.
    pub commit: String,
    /// Whether the working tree of the commit had changes.
    pub dirty: bool,
    pub build_profile: String,
    pub rustflags: String,
    /// Load averages over 1, 5 and 15 minutes before the run.
    pub load_before: [f64; 3],
}

/// The first line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunHeader {
    pub format: u32,
    /// The run's name; the record is the file `<id>.jsonl`.
    pub id: String,
    /// Start of the run, RFC 3339 in UTC.
    pub started: String,
    pub suite: String,
    /// Seed of the order of measurement.
    pub seed: u64,
    /// The command line, by arguments.
    pub command: Vec<String>,
    #[serde(default)]
    pub environment: Environment,
}

/// Which direction of a metric is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// One measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// `suite/scenario/variant`, such as `nosec/overwrite-4k/jobs=4`.
    pub row: String,
    pub target: String,
    #[serde(default)]
    pub switches: Switches,
    pub metric: String,
    pub unit: String,
    pub better: Better,
    pub value: f64,
    /// Repeat of the cell, from 0.
    pub repeat: u32,
    /// Position in the run, from 0.
    pub order: u32,
    /// Start of the measurement, RFC 3339 in UTC.
    pub started: String,
    /// Duration of the measurement, in seconds.
    pub seconds: f64,
    /// Latencies in nanoseconds by percentile (`50`, `99.9`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub percentiles: BTreeMap<String, f64>,
    /// The metric over time: pairs of seconds since the start and the value of that second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<(f64, f64)>,
    /// Processor time of an operation, system and user together, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_dirty_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_cached_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_read_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_write_bytes: Option<u64>,
}

impl Sample {
    /// Returns the key of the cell that this sample belongs to.
    pub fn cell(&self) -> Cell {
        Cell {
            row: self.row.clone(),
            target: self.target.clone(),
            switches: self.switches.clone(),
            metric: self.metric.clone(),
        }
    }
}

/// A repeat of a cell that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub row: String,
    pub target: String,
    #[serde(default)]
    pub switches: Switches,
    pub repeat: u32,
    pub message: String,
}

/// The last line of a complete record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// End of the run, RFC 3339 in UTC.
    pub finished: String,
    /// Number of measurements that the run had planned.
    pub planned: u32,
    /// Number of measurements that it did.
    pub done: u32,
}

/// One line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[allow(clippy::large_enum_variant, reason = "a record has one line of the large kind")]
pub enum Line {
    Run(RunHeader),
    Sample(Box<Sample>),
    Failure(Failure),
    End(End),
    /// A kind of line that a later version has added.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// What is measured: the samples of one cell are repeats of each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    pub row: String,
    pub target: String,
    pub switches: Switches,
    pub metric: String,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.row, self.target)?;
        for (name, value) in &self.switches {
            write!(f, " {name}={value}")?;
        }
        write!(f, " {}", self.metric)
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub run: RunHeader,
    /// In the order of the file.
    pub samples: Vec<Sample>,
    pub failures: Vec<Failure>,
    /// Present when the run is complete.
    pub end: Option<End>,
    /// What the reader dropped, in sentences for the user.
    pub notes: Vec<String>,
}

impl Record {
    /// Reads the record at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, has no first line, has an unknown format number, or has a malformed
    /// line before its last one.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let file = File::open(path).map_err(io_error(path, "cannot open the record"))?;
        Self::read_from(path, BufReader::new(file))
    }

    /// Reads a record from `input`; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn read_from(path: &Path, mut input: impl BufRead) -> Result<Self, RecordError> {
        let mut lines = Lines { path, number: 0, torn: None };
        let Some(first) = lines.next(&mut input)? else {
            return Err(RecordError::Empty { path: path.to_owned() });
        };
        let run = header(path, &first)?;
        let mut record =
            Self { run, samples: Vec::new(), failures: Vec::new(), end: None, notes: Vec::new() };
        while let Some(text) = lines.next(&mut input)? {
            let line = parse(path, lines.number, &text)?;
            record.take(line, &lines)?;
        }
        record.notes.extend(lines.torn);
        Ok(record)
    }

    fn take(&mut self, line: Line, lines: &Lines<'_>) -> Result<(), RecordError> {
        if self.end.is_some() {
            return Err(lines.refused("a line after the end of the run".to_owned()));
        }
        match line {
            Line::Run(_) => return Err(lines.refused("kind: have a second \"run\"".to_owned())),
            Line::Sample(sample) => {
                check_sample(&sample).map_err(|error| lines.refused(error.to_string()))?;
                self.samples.push(*sample);
            }
            Line::Failure(failure) => self.failures.push(failure),
            Line::End(end) => self.end = Some(end),
            Line::Unknown => {
                let (path, number) = (lines.path.display(), lines.number);
                self.notes.push(format!("{path}: line {number}: unknown kind, skipped"));
            }
        }
        Ok(())
    }

    /// Tells whether the run was complete.
    pub fn is_complete(&self) -> bool {
        self.end.is_some()
    }
}

/// Appends lines to one record.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    /// Length of the whole lines, in bytes.
    length: u64,
}

impl Writer {
    /// Creates the record of `run` in the directory `history`, which is created where it is
    /// missing.
    ///
    /// # Errors
    ///
    /// The id is no file name, the record exists, or it cannot be written.
    pub fn create(history: &Path, run: &RunHeader) -> Result<Self, RecordError> {
        let path = path_of(history, &run.id)?;
        std::fs::create_dir_all(history)
            .map_err(io_error(history, "cannot create the history directory"))?;
        let file = OpenOptions::new().append(true).read(true).create_new(true).open(&path);
        let file = file.map_err(io_error(&path, "cannot create the record"))?;
        let mut writer = Self { path, file, length: 0 };
        let begun = writer.lock().and_then(|()| writer.append(&Line::Run(run.clone())));
        if let Err(error) = begun.and_then(|()| sync_directory(history)) {
            // The record is empty or not known to last, so nothing is lost with it.
            drop(std::fs::remove_file(&writer.path));
            return Err(error);
        }
        Ok(writer)
    }

    /// Opens the record of the run `id` to continue it, and returns what it has so far. A torn last
    /// line is cut off.
    ///
    /// # Errors
    ///
    /// The run is complete, another process writes it, or it cannot be read or written.
    pub fn resume(history: &Path, id: &str) -> Result<(Self, Record), RecordError> {
        let path = path_of(history, id)?;
        let file = OpenOptions::new().append(true).read(true).open(&path);
        let file = file.map_err(io_error(&path, "cannot open the record"))?;
        let mut writer = Self { path, file, length: 0 };
        writer.lock()?;
        let record = Record::read(&writer.path)?;
        if record.is_complete() {
            return Err(RecordError::Complete { path: writer.path });
        }
        writer.length = whole_bytes(&mut writer.file)
            .map_err(io_error(&writer.path, "cannot read the record"))?;
        writer.cut().map_err(io_error(&writer.path, "cannot cut off a torn line"))?;
        Ok((writer, record))
    }

    /// Appends one line and waits until it is on the disk.
    ///
    /// # Errors
    ///
    /// A value is not finite, or the write failed; the record is then as it was before.
    pub fn append(&mut self, line: &Line) -> Result<(), RecordError> {
        if let Line::Sample(sample) = line {
            check_sample(sample)?;
        }
        let mut bytes = serde_json::to_vec(line).map_err(|error| RecordError::Line {
            path: self.path.clone(),
            line: 0,
            what: format!("cannot be encoded: {error}"),
        })?;
        bytes.push(b'\n');
        if bytes.len() > LINE_BYTES_MAX {
            let what = format!("length: have {}, want at most {LINE_BYTES_MAX}", bytes.len());
            return Err(RecordError::Line { path: self.path.clone(), line: 0, what });
        }
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A reader drops what this leaves if the cut fails, too (law 2).
            drop(self.cut());
            return Err(io_error(&self.path, "cannot write the record")(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// The file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> Result<(), RecordError> {
        match self.file.try_lock() {
            Ok(()) => Ok(()),
            Err(std::fs::TryLockError::WouldBlock) => {
                Err(RecordError::Busy { path: self.path.clone() })
            }
            Err(std::fs::TryLockError::Error(error)) => {
                Err(io_error(&self.path, "cannot lock the record")(error))
            }
        }
    }

    fn cut(&self) -> io::Result<()> {
        if self.file.metadata()?.len() == self.length {
            return Ok(());
        }
        self.file.set_len(self.length)?;
        self.file.sync_data()
    }
}

/// Returns the path of the record of the run `id` in the directory `history`.
///
/// # Errors
///
/// The id is no plain file name.
pub fn path_of(history: &Path, id: &str) -> Result<PathBuf, RecordError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let fits = (1..=ID_BYTES_MAX).contains(&id.len());
    if !fits || id.starts_with('.') || !id.bytes().all(is_plain) {
        return Err(RecordError::Id { id: id.to_owned() });
    }
    Ok(history.join(format!("{id}.{EXTENSION}")))
}

/// Returns the default history directory: `$XDG_DATA_HOME/butternut-lab/history`, or the same below
/// `~/.local/share`, or below the current directory where there is no home.
pub fn default_history() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data = absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_default();
    data.join("butternut-lab/history")
}

/// Reads lines and remembers where the reader is.
struct Lines<'a> {
    path: &'a Path,
    number: usize,
    torn: Option<String>,
}

impl Lines<'_> {
    /// Returns the next whole line without its line feed, or `None` at the end or at a torn line.
    fn next(&mut self, input: &mut impl BufRead) -> Result<Option<Vec<u8>>, RecordError> {
        let mut text = Vec::new();
        let mut limited = input.take(LINE_BYTES_MAX as u64 + 1);
        let read = limited.read_until(b'\n', &mut text);
        let read = read.map_err(io_error(self.path, "cannot read the record"))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if read > LINE_BYTES_MAX {
            return Err(self.refused(format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        if text.pop() == Some(b'\n') {
            return Ok(Some(text));
        }
        let (path, number) = (self.path.display(), self.number);
        self.torn = Some(format!("{path}: line {number}: torn by a crash, dropped"));
        Ok(None)
    }

    fn refused(&self, what: String) -> RecordError {
        RecordError::Line { path: self.path.to_owned(), line: self.number, what }
    }
}

fn parse(path: &Path, line: usize, text: &[u8]) -> Result<Line, RecordError> {
    serde_json::from_slice(text).map_err(|error| RecordError::Line {
        path: path.to_owned(),
        line,
        what: error.to_string(),
    })
}

/// Decodes the first line. The format number is looked at before anything else.
fn header(path: &Path, text: &[u8]) -> Result<RunHeader, RecordError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    if let Ok(Format { format }) = serde_json::from_slice(text)
        && format != FORMAT
    {
        return Err(RecordError::Format { path: path.to_owned(), have: format });
    }
    let what = match parse(path, 1, text)? {
        Line::Run(run) => {
            path_of(Path::new(""), &run.id)?;
            return Ok(run);
        }
        Line::Sample(_) => "sample",
        Line::Failure(_) => "failure",
        Line::End(_) => "end",
        Line::Unknown => "unknown",
    };
    let what = format!("kind: have {what:?}, want \"run\"");
    Err(RecordError::Line { path: path.to_owned(), line: 1, what })
}

fn check_sample(sample: &Sample) -> Result<(), RecordError> {
    let refuse =
        |field, what: String| Err(RecordError::Value { row: sample.row.clone(), field, what });
    let names = [("row", &sample.row), ("target", &sample.target), ("metric", &sample.metric)];
    if let Some((field, _)) = names.iter().find(|(_, name)| name.is_empty()) {
        return refuse(field, "have nothing, want a name".to_owned());
    }
    if !sample.value.is_finite() {
        return refuse("value", format!("have {}, want a finite number", sample.value));
    }
    if !sample.seconds.is_finite() || sample.seconds < 0.0 {
        return refuse("seconds", format!("have {}, want 0 or more", sample.seconds));
    }
    let points = sample.series.iter().flat_map(|(x, y)| [x, y]);
    if points.chain(sample.percentiles.values()).any(|value| !value.is_finite()) {
        return refuse("series, percentiles", "want finite numbers".to_owned());
    }
    Ok(())
}

/// Returns the number of bytes up to and including the last line feed.
fn whole_bytes(file: &mut File) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let (mut whole, mut at) = (0, 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(whole);
        }
        if let Some(last) = buffer[..read].iter().rposition(|byte| *byte == b'\n') {
            whole = at + last as u64 + 1;
        }
        at += read as u64;
    }
}

fn sync_directory(path: &Path) -> Result<(), RecordError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(io_error(path, "cannot sync the history directory"))
}

fn io_error(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> RecordError {
    move |source| RecordError::Io { path: path.to_owned(), what, source }
}

#[cfg(test)]
mod tests;
