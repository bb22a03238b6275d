//! `run`: measures the rows of a suite on targets, and keeps a record of every sample.
//!
//! ```text
//! check everything -> header of the record -> warm-up -> rounds of cells -> end of the record
//! ```
//!
//! Laws:
//!
//! 1. Everything that can be refused is refused before the record is made and a device is written.
//! 2. A cell that fails is recorded as a failure, and the run continues. A record that cannot be
//!    written ends the run.
//! 3. An interrupted run cleans up, has no end in its record, and is continued by `--resume`, with
//!    the same command, seed and environment.

mod measure;
mod order;
mod plan;
mod prepare;
mod summary;

use crate::scenario::Suite;
use crate::{environment, interrupt, progress};
use anyhow::{Context, Result, bail, ensure};
use butternut_lab::record::{End, Failure, Line, Record, RunHeader, Writer};
use clap::Parser;
use measure::{Task, When};
use order::Pace;
use plan::Cell;
use prepare::Prepared;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `run`.
#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[expect(clippy::doc_markdown, reason = "help texts")]
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The suite to run: a name of `list`, or a file FILE.toml
    #[arg(long, required_unless_present_any = ["resume", "file"])]
    suite: Option<String>,
    /// Run a suite of a file, as --suite
    #[arg(value_name = "FILE.toml", conflicts_with = "suite")]
    file: Option<String>,
    /// Use small files, short times and few repeats: the figures are rough
    #[arg(long)]
    quick: bool,
    /// What to measure (see below); may be repeated [default: the targets of the suite]
    #[arg(long = "target", short, value_name = "T")]
    targets: Vec<String>,
    /// Values of a switch of Butternut; each is measured
    #[arg(long = "switch", value_name = "NAME=A,B")]
    switches: Vec<String>,
    /// A variable of the suite
    #[arg(long = "set", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Run only the rows whose name contains this
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    only: String,
    /// Block device, image file, FILE:SIZE for a new image, or memory:SIZE [default: memory]
    #[arg(long, value_name = "DEV")]
    device: Option<String>,
    /// Overwrite this device or file although it holds a filesystem: name it a second time
    #[arg(long, value_name = "DEV")]
    destroy: Vec<PathBuf>,
    /// Memory limit of suites that have one, or none [default: that of the suite]
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// Seconds of each timed measurement [default: those of the suite]
    #[arg(long, value_name = "N")]
    seconds: Option<u32>,
    /// Stop after this long, such as 10m or 2h, with the repeats that fit [default: no limit;
    /// quick: 9m]
    #[arg(long, value_name = "BUDGET")]
    time: Option<String>,
    /// Repeat each cell this many times [default: 3 to 10, as its variance needs; quick: 3]
    #[arg(long, value_name = "N")]
    repeats: Option<u32>,
    /// Seed of the order [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Directory of the records [default: $XDG_DATA_HOME/butternut-lab/history]
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Continue an interrupted run, with its own options
    #[arg(long, value_name = "ID", conflicts_with_all = ["suite", "file"])]
    resume: Option<String>,
    /// Let `fio --server` on this machine run the jobs, each all of them; may be repeated. Only for
    /// dir: targets, on a directory that all machines share under the same path
    #[arg(long, value_name = "HOST")]
    remote: Vec<String>,
    /// Measure from the first job on, without one that does not count
    #[arg(long)]
    no_warm_up: bool,
    /// The fio to run [default: $BUTTERNUT_FIO, or fio]
    #[arg(long, value_name = "FILE")]
    fio: Option<PathBuf>,
    /// The fio engine of Butternut, built for that fio [default: $BUTTERNUT_FIO_ENGINE, or the
    /// library beside this program]
    #[arg(long, value_name = "FILE")]
    engine: Option<PathBuf>,
    /// The butternut program [default: $BUTTERNUT_BIN, or the program beside this one]
    #[arg(long, value_name = "FILE")]
    butternut: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print no progress
    #[arg(long, short)]
    quiet: bool,
    /// Internal: measure debug builds
    #[arg(long, hide = true)]
    allow_debug: bool,
    /// Internal: leave images sparse
    #[arg(long, hide = true)]
    sparse: bool,
}

const HELP: &str = "\
Targets:
  raw[:DEV]                 the device itself, without a filesystem
  kernel:FS[:MKFS;MOUNT][@DEV]
                            btrfs, xfs or ext4 of the kernel, with options of mkfs and mount:
                            kernel:btrfs:-n 4096;nodatacow,noatime@/dev/sdx
  butternut[:IMG]           the library, through the fio engine
  mount[:IMG]               the FUSE mount
  dir:PATH                  a directory; the files are made below it and removed
  custom:FILE.toml[@DEV]    another filesystem, with commands that mount and unmount it
Without DEV or IMG, the device of --device is used. It is overwritten, formatted and mounted again
for each measurement.

A device or file that holds a filesystem is refused, unless it is named a second time (--destroy).
One that is mounted or in use is always refused.

    butternut-lab run --suite nosec --quick
    butternut-lab run --suite published --device /dev/nvme1n1 --time 2h
    butternut-lab run --suite fsync --target kernel:xfs --target butternut --switch log_tree=on,off
    butternut-lab run mine.toml --target dir:/srv/data

Exit status: 0 if every cell was measured, 1 if one failed or nothing could be measured, 2 for a
usage error.";

/// The command line of a record, to be parsed again.
#[derive(Parser)]
#[command(name = "run")]
struct Recorded {
    #[command(flatten)]
    args: Args,
}

/// Runs a suite. Returns whether every cell was measured.
///
/// # Errors
/// The options are wrong, a tool or a device is missing or in use, the record cannot be written, or
/// the run was interrupted.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.quiet || args.json {
        progress::be_quiet();
    }
    let history = args.history.clone().unwrap_or_else(butternut_lab::record::default_history);
    match &args.resume {
        Some(id) => resume(args, &history, id),
        None => start(args, &history),
    }
}

fn start(args: &Args, history: &std::path::Path) -> Result<bool> {
    let name = args.suite.as_ref().or(args.file.as_ref()).context("no suite (--suite NAME)")?;
    let suite = Suite::load(name)?;
    let prepared = prepare::prepare(args, &suite)?;
    let environment =
        environment::capture(&prepared.tools, &prepared.plan.targets, prepared.shared_device());
    let started = order::now();
    let header = RunHeader {
        format: butternut_lab::record::FORMAT,
        id: order::run_id(&suite.name),
        started: started.clone(),
        suite: suite.name.clone(),
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1 << 53)),
        command: std::env::args().collect(),
        environment,
    };
    let writer = Writer::create(history, &header)?;
    let run = Run::new(args, prepared, header, writer);
    if !args.no_warm_up {
        run.warm_up()?;
    }
    run.finish()
}

fn resume(args: &Args, history: &std::path::Path, id: &str) -> Result<bool> {
    let (writer, record) = Writer::resume(history, id)?;
    let words = record.run.command.iter().skip(1);
    let own = Recorded::try_parse_from(words)
        .map_err(|error| anyhow::anyhow!("run {id}: its command: {error}"))?;
    let mut own = own.args;
    (own.json, own.quiet, own.history) = (args.json, args.quiet, args.history.clone());
    // Where the programs are may have changed; what they are is compared below.
    own.fio = args.fio.clone().or(own.fio);
    own.engine = args.engine.clone().or(own.engine);
    own.butternut = args.butternut.clone().or(own.butternut);
    let name = own.suite.as_ref().or(own.file.as_ref()).context("its command has no suite")?;
    let prepared = prepare::prepare(&own, &Suite::load(name)?)?;
    let now =
        environment::capture(&prepared.tools, &prepared.plan.targets, prepared.shared_device());
    if let Some(difference) = environment::difference(&record.run.environment, &now) {
        bail!("run {id}: cannot be continued here: {difference} (start a new run)");
    }
    for note in &record.notes {
        progress::line(note);
    }
    let mut run = Run::new(&own, prepared, record.run.clone(), writer);
    run.continue_from(&record)?;
    run.finish()
}

/// A run that measures.
struct Run<'a> {
    args: &'a Args,
    prepared: Prepared,
    header: RunHeader,
    writer: Writer,
    pace: Pace,
    /// Measurements of the record, failed ones included.
    done: u32,
    failed: u32,
}

impl<'a> Run<'a> {
    fn new(args: &'a Args, prepared: Prepared, header: RunHeader, writer: Writer) -> Self {
        let pace = Pace::new(prepared.time);
        Self { args, prepared, header, writer, pace, done: 0, failed: 0 }
    }

    /// Takes over what a record has (law 3).
    fn continue_from(&mut self, record: &Record) -> Result<()> {
        let plan = &mut self.prepared.plan;
        for sample in &record.samples {
            let found = plan.find(&sample.row, &sample.target, &sample.switches);
            let cell = found.with_context(|| {
                format!("{}: not in the suite any more (start a new run)", sample.row)
            })?;
            let first = plan.rows[plan.cells[cell].row].scenario.metrics[0].clone();
            // The first metric is recorded first. A crash may have cost the repeat later ones.
            if sample.metric == first {
                plan.cells[cell].history.values.insert(sample.repeat, sample.value);
                self.done += 1;
            }
        }
        for failure in &record.failures {
            if let Some(cell) = plan.find(&failure.row, &failure.target, &failure.switches) {
                plan.cells[cell].history.failures.push(failure.repeat);
                self.done += 1;
                self.failed += 1;
            }
        }
        progress::step(&format!(
            "resuming {}: {} measurements are done",
            self.header.id, self.done
        ));
        Ok(())
    }

    /// Runs the first cell once, without a sample.
    fn warm_up(&self) -> Result<()> {
        let order = self.prepared.plan.round(0, self.prepared.repeats, self.header.seed);
        let Some(cell) = order.first() else { return Ok(()) };
        progress::step(&format!("warm-up: {}", self.prepared.plan.name(*cell)));
        match self.task(*cell, |task| task.run().map(drop)) {
            Err(error) if error.is::<interrupt::Interrupted>() => Err(self.interrupted()),
            // An error comes again, and is recorded, when the cell is measured.
            _ => Ok(()),
        }
    }

    /// Measures every round and ends the record.
    fn finish(mut self) -> Result<bool> {
        for reason in &self.prepared.plan.left_out {
            progress::line(&format!("left out: {reason}"));
        }
        let mut is_out_of_time = false;
        'rounds: for round in 0..self.prepared.repeats.most {
            let order = self.prepared.plan.round(round, self.prepared.repeats, self.header.seed);
            for (at, cell) in order.iter().enumerate() {
                if self.prepared.plan.cells[*cell].history.is_done(round) {
                    continue;
                }
                if self.pace.is_over() {
                    is_out_of_time = true;
                    break 'rounds;
                }
                self.measure(*cell, round, order.len() - at)?;
            }
        }
        if is_out_of_time {
            progress::line("the time is over; some cells have fewer repeats");
        }
        let planned = self.prepared.plan.planned(self.prepared.repeats);
        let end = End { finished: order::now(), planned, done: self.done - self.failed };
        self.writer.append(&Line::End(end))?;
        self.summarize()
    }

    fn measure(&mut self, cell: usize, repeat: u32, left_in_round: usize) -> Result<()> {
        let name = self.prepared.plan.name(cell);
        let when = When { repeat, order: self.done, started: order::now() };
        let began = Instant::now();
        let outcome = self.task(cell, |task| {
            let outcome = task.run()?;
            outcome.samples(task.row, task.target, task.switches, &when)
        });
        self.pace.took(began.elapsed());
        match outcome {
            Err(error) if error.is::<interrupt::Interrupted>() => return Err(self.interrupted()),
            Ok(samples) => {
                let value = self.keep(cell, repeat, samples)?;
                self.step(&name, repeat, &value, left_in_round);
            }
            Err(error) => {
                self.fail(cell, repeat, format!("{error:#}"))?;
                progress::line(&format!("{name}: {error:#}"));
            }
        }
        self.done += 1;
        Ok(())
    }

    /// Calls `run` with the task of a cell.
    fn task<T>(&self, cell: usize, run: impl FnOnce(&Task<'_>) -> Result<T>) -> Result<T> {
        let plan = &self.prepared.plan;
        let Cell { row, target, switches, .. } = &plan.cells[cell];
        let work = tempfile::Builder::new().prefix("cell-").tempdir_in(self.prepared.work())?;
        let target = &plan.targets[*target];
        run(&Task {
            row: &plan.rows[*row],
            target,
            switches,
            device: self.prepared.device_of(target),
            tools: &self.prepared.tools,
            servers: &self.args.remote,
            work: work.path(),
        })
    }

    /// Appends the samples, and returns the first value as text.
    fn keep(
        &mut self,
        cell: usize,
        repeat: u32,
        samples: Vec<butternut_lab::record::Sample>,
    ) -> Result<String> {
        let history = &mut self.prepared.plan.cells[cell].history;
        let mut shown = String::new();
        for (at, sample) in samples.into_iter().enumerate() {
            if at == 0 {
                history.values.insert(repeat, sample.value);
                shown = format!("{} {}", progress::figure(sample.value), sample.unit);
            }
            self.writer.append(&Line::Sample(Box::new(sample)))?;
        }
        Ok(shown)
    }

    fn fail(&mut self, cell: usize, repeat: u32, message: String) -> Result<()> {
        let plan = &mut self.prepared.plan;
        let Cell { row, target, switches, .. } = &plan.cells[cell];
        let failure = Failure {
            row: plan.rows[*row].name.clone(),
            target: plan.targets[*target].label.clone(),
            switches: switches.clone(),
            repeat,
            message,
        };
        self.writer.append(&Line::Failure(failure))?;
        plan.cells[cell].history.failures.push(repeat);
        self.failed += 1;
        Ok(())
    }

    fn step(&self, name: &str, repeat: u32, value: &str, left_in_round: usize) {
        let plan = &self.prepared.plan;
        let later = plan.left_after(repeat, self.prepared.repeats);
        let left = self.pace.left(left_in_round.saturating_sub(1) + later);
        let done = self.done + 1;
        let total = usize::try_from(done).unwrap_or(usize::MAX) + left_in_round - 1 + later;
        let left = progress::duration(left);
        progress::step(&format!("[{done}/{total}] {name} #{repeat}: {value}; about {left} left"));
    }

    fn interrupted(&self) -> anyhow::Error {
        let id = &self.header.id;
        let history = match &self.args.history {
            Some(dir) => format!(" --history {}", dir.display()),
            None => String::new(),
        };
        anyhow::Error::new(interrupt::Interrupted).context(format!(
            "{} measurements are kept (continue with: butternut-lab run --resume {id}{history})",
            self.done
        ))
    }

    fn summarize(self) -> Result<bool> {
        let path = self.writer.path().to_owned();
        drop(self.writer);
        let record = Record::read(&path)?;
        summary::print(&record, &self.prepared.plan.rows, &path, self.args.json)?;
        ensure!(!record.samples.is_empty(), "nothing could be measured");
        Ok(self.failed == 0)
    }
}

/// Parses a time such as `90s`, `10m` or `2h`.
///
/// # Errors
/// The text has another form.
fn parse_time(text: &str) -> Result<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit {
        "s" => 1,
        "m" | "min" | "" => 60,
        "h" => 3600,
        _ => bail!("time {text:?}: want 90s, 10m or 2h"),
    };
    let number: u64 = number.parse().with_context(|| format!("time {text:?}: want a number"))?;
    Ok(Duration::from_secs(number.saturating_mul(scale)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("10m").unwrap(), Duration::from_mins(10));
        assert_eq!(parse_time("2h").unwrap(), Duration::from_hours(2));
        for bad in ["", "h", "1d", "1.5h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_recorded_command_is_parsed_again() {
        let words = ["run", "--suite", "nosec", "--switch", "nosec=on,off", "--seed", "7"];
        let own = Recorded::try_parse_from(words).unwrap();
        assert_eq!((own.args.suite.as_deref(), own.args.seed), (Some("nosec"), Some(7)));
    }
}
