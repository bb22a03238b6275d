//! Prepares a run: rows, targets, tools, devices and memory, all checked before anything is
//! written.

use super::plan::{Plan, Repeats};
use super::{Args, parse_time};
use crate::cost::{available_memory_bytes, total_memory_bytes};
use crate::memory_limit::MemoryLimit;
use crate::scenario::rows::{Changes, MemoryChange, Row, rows};
use crate::scenario::{Driver, Scalar, Suite};
use crate::size::{self, human};
use crate::target::device::{Device, Policy, REMOVE_SCRIPT, free_bytes_of};
use crate::target::{Kind, Target, parse_all};
use crate::tools::{Given, Tools};
use anyhow::{Context, Result, ensure};
use butternut_undo::Undo;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Repeats of `--quick`: the fewest that the judge compares.
const QUICK_REPEATS: u32 = 3;
/// Budget of `--quick`.
const QUICK_TIME: Duration = Duration::from_mins(9);
/// Space that a filesystem needs beside the files, as a part of them, and at least.
const EXTRA_PART: u64 = 4;
const EXTRA_BYTES_MIN: u64 = 256 << 20;

/// Everything that a run needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) tools: Tools,
    pub(crate) repeats: Repeats,
    pub(crate) time: Option<Duration>,
    /// By the text that names them; the one of `--device` has an empty text.
    devices: BTreeMap<String, Device>,
    work: tempfile::TempDir,
    _undo: Undo,
}

impl Prepared {
    /// Returns the directory for the files of cells.
    pub(crate) fn work(&self) -> &Path {
        self.work.path()
    }

    /// Returns the device that a target is measured on.
    pub(crate) fn device_of(&self, target: &Target) -> Option<&Device> {
        self.devices.get(&key(target))
    }

    /// Returns the device of `--device`, or else that of the first target.
    pub(crate) fn shared_device(&self) -> Option<&Device> {
        self.devices.get("").or_else(|| self.devices.values().next())
    }
}

/// Prepares a run of a suite.
///
/// # Errors
/// Something is wrong with an option, or missing; nothing has been written then.
pub(crate) fn prepare(args: &Args, suite: &Suite) -> Result<Prepared> {
    let time = match &args.time {
        Some(text) => Some(parse_time(text)?),
        None => args.quick.then_some(QUICK_TIME),
    };
    let repeats = repeats(args)?;
    let rows = rows(suite, &changes(args)?)?;
    let is_given = !args.targets.is_empty();
    let targets = parse_all(&target_names(args, &rows))?;
    ensure!(!targets.is_empty(), "the suite names no targets (--target T)");
    for target in &targets {
        if let Kind::Dir(path) = &target.kind {
            ensure!(path.is_dir(), "target {}: not a directory", target.label);
        }
    }
    check_remote(args, &rows, &targets)?;
    let given = Given {
        fio: args.fio.clone(),
        engine: args.engine.clone(),
        butternut: args.butternut.clone(),
        may_debug: args.allow_debug,
    };
    let needs_fio = rows.iter().any(|row| row.scenario.driver == Driver::Fio);
    let tools = Tools::find(&given, &targets, needs_fio)?;
    let mut plan = Plan::new(rows, targets, is_given, &tools);
    plan.drop_unused_targets();
    ensure!(
        !plan.cells.is_empty(),
        "no row of the suite can run on these targets {}",
        plan.left_out.join("; ")
    );
    let policy = Policy { destroy: args.destroy.clone(), sparse: args.sparse };
    check_memory(&plan)?;
    let devices = open_devices(args, &plan, &policy)?;
    check_space(&plan, &devices)?;
    let work = tempfile::Builder::new().prefix("butternut-lab-").tempdir()?;
    let undo = Undo::at_death(REMOVE_SCRIPT, &[work.path()])?;
    Ok(Prepared { plan, tools, repeats, time, devices, work, _undo: undo })
}

/// Checks that servers of fio can run the rows: they know nothing of devices and memory limits
/// here.
fn check_remote(args: &Args, rows: &[Row], targets: &[Target]) -> Result<()> {
    let Some(host) = args.remote.first() else { return Ok(()) };
    for target in targets {
        let is_dir = matches!(target.kind, Kind::Dir(_));
        ensure!(is_dir, "--remote {host}: target {}: want dir:PATH", target.label);
    }
    for row in rows {
        let is_fio = row.scenario.driver == Driver::Fio;
        ensure!(is_fio, "--remote {host}: {}: fio does not drive it", row.name);
        let is_free = row.memory_bytes.is_none();
        ensure!(is_free, "--remote {host}: {}: has a memory limit (--memory none)", row.name);
    }
    Ok(())
}

fn repeats(args: &Args) -> Result<Repeats> {
    ensure!(args.repeats != Some(0), "--repeats: have 0, want 1 or more");
    Ok(match (args.repeats, args.quick) {
        (Some(count), _) => Repeats { least: count, most: count },
        (None, true) => Repeats { least: QUICK_REPEATS, most: QUICK_REPEATS },
        (None, false) => Repeats { least: 3, most: 10 },
    })
}

fn changes(args: &Args) -> Result<Changes> {
    let pair = |text: &String, option: &str| {
        let (name, value) =
            text.split_once('=').with_context(|| format!("{option} {text:?}: want NAME=VALUE"))?;
        anyhow::Ok((name.to_owned(), value.to_owned()))
    };
    let mut switches = BTreeMap::new();
    for text in &args.switches {
        let (name, values) = pair(text, "--switch")?;
        let values = values.split(',').map(|value| Scalar(value.to_owned())).collect();
        switches.insert(name, values);
    }
    let variables = args.variables.iter().map(|text| pair(text, "--set"));
    let memory = match args.memory.as_deref() {
        None => MemoryChange::Keep,
        Some("none") => MemoryChange::Off,
        Some(text) => MemoryChange::Limit(size::parse(text).context("--memory")?),
    };
    Ok(Changes {
        quick: args.quick,
        seconds: args.seconds,
        memory,
        variables: variables.collect::<Result<_>>()?,
        switches,
        only: args.only.clone(),
    })
}

/// Returns the targets of the command line, or those of the rows in the order of their first use.
fn target_names(args: &Args, rows: &[Row]) -> Vec<String> {
    if !args.targets.is_empty() {
        return args.targets.clone();
    }
    let mut names: Vec<String> = Vec::new();
    for name in rows.iter().flat_map(|row| row.targets.iter()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Checks that limits can be set: a group is made with the largest one, and removed.
fn check_memory(plan: &Plan) -> Result<()> {
    let limited = plan.cells.iter().filter(|cell| {
        plan.rows[cell.row].memory_bytes.is_some()
            && !matches!(plan.targets[cell.target].kind, Kind::Butternut)
    });
    let most = limited.filter_map(|cell| plan.rows[cell.row].memory_bytes).max();
    let most_of_all = plan.cells.iter().filter_map(|cell| plan.rows[cell.row].memory_bytes).max();
    if let Some(bytes) = most_of_all {
        let total = total_memory_bytes();
        ensure!(
            bytes < total,
            "memory limit of {}: the machine has {} (give --memory less, or none)",
            human(bytes),
            human(total)
        );
    }
    most.map_or(Ok(()), |bytes| MemoryLimit::make(bytes).map(drop))
}

/// Returns the bytes that a device needs for a cell.
fn needed_bytes(plan: &Plan, cell: &super::plan::Cell) -> Result<u64> {
    let files = plan.rows[cell.row].file_bytes()?;
    if matches!(plan.targets[cell.target].kind, Kind::Raw | Kind::Dir(_)) {
        return Ok(files);
    }
    Ok(files.saturating_add((files / EXTRA_PART).max(EXTRA_BYTES_MIN)))
}

fn open_devices(args: &Args, plan: &Plan, policy: &Policy) -> Result<BTreeMap<String, Device>> {
    let mut devices = BTreeMap::new();
    for target in plan.targets.iter().filter(|target| target.needs_device()) {
        let key = key(target);
        if devices.contains_key(&key) {
            continue;
        }
        let device = match (&target.device, &args.device) {
            (Some(text), _) if matches!(target.kind, Kind::Butternut | Kind::Mount) => {
                Device::open_file(text, policy)?
            }
            (Some(text), _) | (None, Some(text)) => Device::open(text, policy)?,
            (None, None) => Device::open(&default_device(plan)?, policy)?,
        };
        devices.insert(key, device);
    }
    Ok(devices)
}

fn key(target: &Target) -> String {
    target.device.clone().unwrap_or_default()
}

/// Returns a device in memory that all rows fit into. Copy-on-write needs room for old blocks.
fn default_device(plan: &Plan) -> Result<String> {
    let mut most = 0;
    for cell in &plan.cells {
        most = most.max(needed_bytes(plan, cell)?);
    }
    let bytes = (most * 3 / 2).max(1 << 30).div_ceil(1 << 20) << 20;
    let limit = plan.rows.iter().filter_map(|row| row.memory_bytes).max().unwrap_or(0);
    let (want, have) = (bytes.saturating_add(limit), available_memory_bytes());
    ensure!(
        want < have,
        "not enough memory for a device in memory: {} needed, {} available (use --device DEV, \
         --device FILE:SIZE, --quick or --set size=...)",
        human(want),
        human(have)
    );
    Ok(format!("memory:{bytes}"))
}

/// Checks that the files of every cell fit.
fn check_space(plan: &Plan, devices: &BTreeMap<String, Device>) -> Result<()> {
    for cell in &plan.cells {
        let (row, target) = (&plan.rows[cell.row], &plan.targets[cell.target]);
        let need = needed_bytes(plan, cell)?;
        let have = if let Kind::Dir(path) = &target.kind {
            free_bytes_of(path)?
        } else {
            devices.get(&key(target)).map_or(0, |device| device.size_bytes)
        };
        ensure!(
            need <= have,
            "{} on {}: not enough space: {} needed, {} on the device (use a larger one, --quick, \
             or --set size=...)",
            row.name,
            target.label,
            human(need),
            human(have)
        );
    }
    Ok(())
}
