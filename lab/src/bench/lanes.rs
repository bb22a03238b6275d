//! `bench lanes`: compares the I/O lanes with the raw device and the kernel's btrfs, xfs and ext4.
//! fio drives all of them on the same loop device.
//!
//! ```text
//! suite    rows that share a file system and its files
//! repeat   the contestants use the device one after the other; odd repeats reverse the order
//! session  fill holes, mkfs, mount; lay the files out; run the contestant's entries of each row
//! ```
//!
//! A row that changes the files starts a new session for each entry. The job files of fio are in
//! `crates/fio/jobs`; `scripts/database-row` drives databases on the mounts.

mod cost;
mod endurance;
mod footprint;
mod plan;
mod rows;
mod session;
mod stage;
mod table;

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::rig::{run as run_program, text};
use plan::Plan;
use rows::{Contestant, Suite};
use stage::Stage;
use table::Cells;

/// Compares the I/O lanes with the raw device and the kernel's btrfs, xfs and ext4, through fio, on
/// one loop device. Prints medians of three repeats.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// Run one repeat with smaller files. The figures are not reliable.
    #[arg(long)]
    quick: bool,
    /// Run two rows against the raw device and the kernel's btrfs, in about twenty seconds.
    #[arg(long, conflicts_with_all = ["quick", "long"])]
    brief: bool,
    /// Run random overwrites for ten minutes, with commits, and print throughput and latency of
    /// each minute.
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Run the rows of another suite instead.
    #[arg(long, value_enum, conflicts_with_all = ["brief", "long"])]
    suite: Option<OtherSuite>,
    /// Run only the rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Directory of the device's image; in memory by default, so that the device is not the limit.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Seconds that each timed row runs, or the whole of `--long` [default: 2; with --long 600]
    #[arg(long)]
    seconds: Option<u32>,
    /// The fio to run.
    #[arg(long, default_value = "fio")]
    fio: PathBuf,
    /// The engine that was built for that fio (`make fio`); by default the one beside this program.
    #[arg(long)]
    engine: Option<PathBuf>,
    /// Internal: part of the name of the image's directory.
    #[arg(long, hide = true, default_value = "lanes")]
    tag: String,
    /// Internal: measure the memory of queues and pending writes on this volume.
    #[arg(long, hide = true)]
    footprint: Option<PathBuf>,
}

/// Suites that run only where they are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OtherSuite {
    /// Writes followed by an fsync, by 1 to 64 jobs, and transactions of databases.
    Fsync,
}

const UNCACHED_SINCE: (u32, u32) = (3, 40);
const LONG_SECONDS: u32 = 600;
const SECONDS: u32 = 2;

pub(crate) fn run(flags: &Flags) -> Result<()> {
    if let Some(device) = &flags.footprint {
        return footprint::measure(device);
    }
    let engine = match &flags.engine {
        Some(engine) => engine.clone(),
        None => std::env::current_exe()?.with_file_name("libbutternut_fio.so"),
    };
    ensure!(engine.exists(), "{} is missing; make fio builds it", engine.display());
    let is_small = flags.quick || flags.brief;
    let usual = if flags.long { LONG_SECONDS } else { SECONDS };
    let plan = Plan {
        repeats: if is_small || flags.long { 1 } else { 3 },
        seconds: flags.seconds.unwrap_or(usual),
        file_mib: if is_small { 512 } else { 1024 },
        fio: flags.fio.clone(),
        fio_has_uncached: version(&flags.fio)? >= UNCACHED_SINCE,
        engine,
    };
    if flags.long {
        let stage = Stage::make(
            &flags.dir,
            &flags.tag,
            plan.file_mib,
            [Contestant::Butternut].into_iter(),
        )?;
        return endurance::run(&stage, &plan);
    }
    let mut suites = match flags {
        Flags { brief: true, .. } => rows::brief(),
        Flags { suite: Some(OtherSuite::Fsync), .. } => vec![rows::fsync(), rows::databases()],
        _ => rows::all(),
    };
    for suite in &mut suites {
        suite.rows.retain(|row| row.name.contains(&flags.only));
    }
    let entries = suites.iter().flat_map(|suite| &suite.rows).flat_map(|row| &row.entries);
    let all = entries.map(|entry| entry.contestant).chain([Contestant::Butternut]);
    let stage = Stage::make(&flags.dir, &flags.tag, plan.file_mib, all)?;
    let mut shown = 0;
    for suite in suites {
        shown += run_suite(&stage, &plan, &suite)?;
    }
    if !flags.brief && flags.suite.is_none() {
        shown += footprint::rows(&stage, &flags.only)?;
    }
    ensure!(shown > 0, "no row's name contains '{}'", flags.only);
    Ok(())
}

/// Returns the major and minor version from output like `fio-3.33`.
fn version(fio: &Path) -> Result<(u32, u32)> {
    let output = run_program(text(fio), &["--version"])?;
    let number = output.trim_start_matches("fio-");
    let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (major, minor) = (parts.next(), parts.next());
    let (major, minor) =
        major.zip(minor).with_context(|| format!("fio prints no version: {output}"))?;
    Ok((major?, minor?))
}

/// Runs a suite, prints its rows and returns their number.
fn run_suite(stage: &Stage, plan: &Plan, suite: &Suite) -> Result<usize> {
    let mut cells: Vec<Cells> = suite.rows.iter().map(Cells::of).collect();
    for repeat in 0..plan.repeats {
        let mut order = Contestant::ALL;
        if repeat % 2 == 1 {
            order.reverse();
        }
        let takes_part = |contestant: &Contestant| {
            suite
                .rows
                .iter()
                .flat_map(|row| &row.entries)
                .any(|entry| entry.contestant == *contestant)
        };
        for contestant in order.into_iter().filter(takes_part) {
            let part = format!("{} of {}, {}", repeat + 1, plan.repeats, contestant.label());
            progress(&format!("{}: {part}", suite.name))?;
            run_contestant(stage, plan, suite, contestant, &mut cells)
                .with_context(|| format!("{}: {part}", suite.name))?;
        }
    }
    for (row, cells) in suite.rows.iter().zip(&cells) {
        table::print(row, cells)?;
    }
    Ok(suite.rows.len())
}

/// Runs the contestant's entries of every row of the suite.
fn run_contestant(
    stage: &Stage,
    plan: &Plan,
    suite: &Suite,
    contestant: Contestant,
    cells: &mut [Cells],
) -> Result<()> {
    let mut last = None;
    for (row, cells) in suite.rows.iter().zip(cells) {
        let entries = row.entries.iter().enumerate();
        for (index, entry) in entries.filter(|(_, entry)| entry.contestant == contestant) {
            if entry.may_refuse && !plan.fio_has_uncached {
                cells.refuse(index, "needs fio 3.40 or newer (FIO_VERSION=3.41)");
                continue;
            }
            let mut session = match last.take() {
                Some(session) if !row.is_fresh => session,
                old => {
                    drop(old);
                    stage.session(contestant, &entry.set)?
                }
            };
            let sample = session.run(plan, row, entry);
            cells.add(index, entry, sample)?;
            last = Some(session);
        }
    }
    Ok(())
}

/// Prints progress to standard error; the tables go to standard output.
fn progress(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stderr(), "  {text}")?)
}
