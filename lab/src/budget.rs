//! `budget`: deterministic counts of what operations of Butternut cost, compared with kept ones.
//!
//! ```text
//! operations   what is called            -> meter   counts of device requests and allocations
//! kept         the file of the counts    <- compare -> what differs, row by row
//! instructions the same calls, in callgrind
//! ```
//!
//! Laws:
//!
//! 1. No count depends on the machine, its load or the time: the volume is in memory, nothing is
//!    committed in the background, and no operation reads a clock of the machine.
//! 2. A count above the kept one is a failure. A lower one is a note, and a failure with `--exact`:
//!    the file is to be written again, so that the lower count is kept.
//! 3. Instructions depend on the build. They are compared with kept ones of the same build only,
//!    and left out, with the reason, where they cannot be counted.

mod instructions;
mod kept;
mod meter;
mod operations;

use anyhow::{Context, Result, bail, ensure};
use kept::{Kept, Row};
use operations::{OPERATIONS, Operation};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file of the counts in the source tree.
const FILE: &str = "lab/budgets/engine.toml";
/// The counts that this program was built with.
const BUILT_IN: &str = include_str!("../budgets/engine.toml");

/// Options of `budget`.
#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the counts to the file
    #[arg(long, conflicts_with_all = ["exact", "only"])]
    update: bool,
    /// Fail for lower counts, too
    #[arg(long)]
    exact: bool,
    /// The file of the kept counts [default: lab/budgets/engine.toml, or those that this program
    /// was built with]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only operations whose name contains this
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    only: String,
    /// Count instructions, too, with callgrind (some minutes)
    #[arg(long)]
    instructions: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
    /// Internal: perform the operations under callgrind
    #[arg(long, hide = true)]
    under_callgrind: bool,
}

/// Counts, and compares or writes. Returns whether all counts are within the kept ones.
///
/// # Errors
/// An operation fails, or the file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let chosen: Vec<&Operation> =
        OPERATIONS.iter().filter(|operation| operation.name.contains(&args.only)).collect();
    ensure!(!chosen.is_empty(), "--only {:?}: no operation (butternut-lab budget)", args.only);
    if args.under_callgrind {
        return count(&chosen).map(|_| true);
    }
    let mut out = std::io::stdout().lock();
    let mut rows = count(&chosen)?;
    if args.instructions {
        match instructions::count(&chosen, &args.only)? {
            Ok(counts) => {
                for (name, count) in counts {
                    if let Some(row) = rows.get_mut(&name) {
                        row.instructions.insert(instructions::BUILD.to_owned(), count);
                    }
                }
            }
            Err(why) => crate::progress::line(&format!("instructions are left out: {why}")),
        }
    }
    if args.update {
        return update(args, rows, &mut out);
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", kept::table(&rows)?)?;
    }
    let (kept, name) = read(args)?;
    let differences = kept.compare(&rows, args.only.is_empty());
    let is_more = differences.iter().any(|difference| difference.is_failure);
    for difference in &differences {
        crate::progress::line(&format!("{name}: {difference}"));
    }
    if !differences.is_empty() {
        crate::progress::line("`butternut-lab budget --update` keeps the counts of now");
    }
    Ok(!(is_more || args.exact && !differences.is_empty()))
}

/// Performs the operations, and returns their counts by name.
fn count(chosen: &[&Operation]) -> Result<BTreeMap<String, Row>> {
    let mut rows = BTreeMap::new();
    for operation in chosen {
        let row = operations::perform(operation).with_context(|| operation.name.to_owned())?;
        instructions::end_of_row();
        rows.insert(operation.name.to_owned(), row);
    }
    Ok(rows)
}

/// Returns the kept counts, and the name of their file.
fn read(args: &Args) -> Result<(Kept, String)> {
    let path = args.file.as_deref().unwrap_or(Path::new(FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if args.file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((Kept::parse(BUILT_IN).context(FILE)?, FILE.to_owned()));
        }
        Err(error) => bail!("{}: cannot be read: {error}", path.display()),
    };
    let name = path.display().to_string();
    Ok((Kept::parse(&text).with_context(|| name.clone())?, name))
}

fn update(args: &Args, rows: BTreeMap<String, Row>, out: &mut dyn Write) -> Result<bool> {
    let path = args.file.as_deref().unwrap_or(Path::new(FILE));
    let mut kept = match std::fs::read_to_string(path) {
        Ok(text) => Kept::parse(&text).with_context(|| path.display().to_string())?,
        Err(_) => Kept::parse(BUILT_IN).context(FILE)?,
    };
    kept.replace(rows);
    std::fs::write(path, kept.text()?)
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    writeln!(out, "{}", path.display())?;
    Ok(true)
}
