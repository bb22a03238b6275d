//! `bench lanes`: the I/O lanes beside the raw device and the kernel's btrfs, xfs and ext4, all on
//! one loop device, all driven by fio.
//!
//! ```text
//! suite  rows that share a file system and its files
//! repeat each contestant has the device in turn, and the next time in the other order
//! turn   fill holes, mkfs, mount; lay the files out; run the contestant's part of each row
//! ```
//!
//! Rows that change what the next one would find get the device anew. The job files are those of
//! `crates/fio/jobs`.

mod cost;
mod endurance;
mod footprint;
mod rows;
mod stage;
mod table;
mod turn;

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::rig::{run as run_program, text};
use rows::{Suite, Who};
use stage::Stage;
use table::Cells;

/// How long and how often.
pub(crate) struct Plan {
    pub(crate) repeats: usize,
    pub(crate) seconds: u32,
    /// Of each file that is laid out.
    pub(crate) file_mib: u32,
    pub(crate) fio: PathBuf,
    /// It asks for uncached reads and writes by the number that kernels know.
    pub(crate) fio_has_uncached: bool,
    pub(crate) engine: PathBuf,
}

/// Measures the I/O lanes beside the raw device and the kernel's btrfs, xfs and ext4, through fio,
/// on one loop device: medians of three repeats, contestants in turn.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// One repeat, of smaller files: for a look, not for a claim.
    #[arg(long)]
    quick: bool,
    /// Two rows against the raw device and the kernel's btrfs, in about twenty seconds.
    #[arg(long, conflicts_with_all = ["quick", "long"])]
    brief: bool,
    /// Random overwrites for ten minutes, with commits: throughput and latency by the minute.
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Only the rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Where the device's image goes: in memory by default, so that the device is not the limit.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Seconds that each timed row runs; of `--long`, all of it [default: 2; with --long 600]
    #[arg(long)]
    seconds: Option<u32>,
    /// The fio to run.
    #[arg(long, default_value = "fio")]
    fio: PathBuf,
    /// The engine that was built for it (`make fio`); by default the one beside this program.
    #[arg(long)]
    engine: Option<PathBuf>,
    /// Internal: part of the name of the directory that the image is in.
    #[arg(long, hide = true, default_value = "lanes")]
    tag: String,
    /// Internal: what queues and pending writes of this volume take of memory.
    #[arg(long, hide = true)]
    footprint: Option<PathBuf>,
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
        let stage = Stage::make(&flags.dir, &flags.tag, plan.file_mib, [Who::Ours].into_iter())?;
        return endurance::run(&stage, &plan);
    }
    let mut suites = if flags.brief { rows::brief() } else { rows::all() };
    for suite in &mut suites {
        suite.rows.retain(|row| row.name.contains(&flags.only));
    }
    let entries = suites.iter().flat_map(|suite| &suite.rows).flat_map(|row| &row.entries);
    let all = entries.map(|entry| entry.who).chain([Who::Ours]);
    let stage = Stage::make(&flags.dir, &flags.tag, plan.file_mib, all)?;
    let mut shown = 0;
    for suite in suites {
        shown += play(&stage, &plan, &suite)?;
    }
    if !flags.brief {
        shown += footprint::facts(&stage, &flags.only)?;
    }
    ensure!(shown > 0, "no row's name contains '{}'", flags.only);
    Ok(())
}

/// As `fio-3.33` says it.
fn version(fio: &Path) -> Result<(u32, u32)> {
    let said = run_program(text(fio), &["--version"])?;
    let number = said.trim_start_matches("fio-");
    let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (major, minor) = (parts.next(), parts.next());
    let (major, minor) = major.zip(minor).with_context(|| format!("no version: {said}"))?;
    Ok((major?, minor?))
}

/// Runs a suite and prints its rows; how many they were.
fn play(stage: &Stage, plan: &Plan, suite: &Suite) -> Result<usize> {
    let mut cells: Vec<Cells> = suite.rows.iter().map(Cells::of).collect();
    for repeat in 0..plan.repeats {
        let mut order = Who::ALL;
        if repeat % 2 == 1 {
            order.reverse();
        }
        let takes_part = |who: &Who| {
            suite.rows.iter().flat_map(|row| &row.entries).any(|entry| entry.who == *who)
        };
        for who in order.into_iter().filter(takes_part) {
            let part = format!("{} of {}, {}", repeat + 1, plan.repeats, who.label());
            say(&format!("{}: {part}", suite.name))?;
            visit(stage, plan, suite, who, &mut cells)
                .with_context(|| format!("{}: {part}", suite.name))?;
        }
    }
    for (row, cells) in suite.rows.iter().zip(&cells) {
        table::print(row, cells)?;
    }
    Ok(suite.rows.len())
}

/// One contestant's part of every row of the suite.
fn visit(stage: &Stage, plan: &Plan, suite: &Suite, who: Who, cells: &mut [Cells]) -> Result<()> {
    let mut turn = None;
    for (row, cells) in suite.rows.iter().zip(cells) {
        for (place, entry) in row.entries.iter().enumerate().filter(|(_, e)| e.who == who) {
            if entry.may_refuse && !plan.fio_has_uncached {
                cells.refuse(place, "fio can ask for it from 3.40 on (FIO_VERSION=3.41)");
                continue;
            }
            let mut held = match turn.take() {
                Some(held) if !row.is_fresh => held,
                old => {
                    drop(old);
                    stage.turn(who)?
                }
            };
            let sample = held.run(plan, row, entry);
            cells.add(place, entry, sample)?;
            turn = Some(held);
        }
    }
    Ok(())
}

/// What is going on, for who waits; the tables are on standard output.
fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stderr(), "  {text}")?)
}
