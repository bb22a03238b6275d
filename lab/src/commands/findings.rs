//! `findings`: lists, waives and reopens findings.

use super::flags::HistoryFlags;
use crate::findings::{Findings, State};
use crate::reports::tables::{Form, Table};
use crate::reports::words;
use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;

/// Flags of `findings`.
#[derive(Debug, clap::Args)]
pub struct Flags {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    file: FileFlags,
}

/// Where the findings are.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct FileFlags {
    /// File of the findings [default: findings.toml in the history].
    #[arg(long = "findings", value_name = "FILE", global = true)]
    path: Option<PathBuf>,
    #[command(flatten)]
    pub(super) history: HistoryFlags,
}

impl FileFlags {
    pub(super) fn path(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| self.history.path().join("findings.toml"))
    }
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the findings: the open ones, and with `--all` the fixed and waived ones, too.
    List {
        #[arg(long)]
        all: bool,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Form,
    },
    /// Accept the level of a finding. A cell that falls further is found again.
    Waive {
        name: String,
        /// Person or team that answers for it.
        #[arg(long)]
        owner: String,
        #[arg(long)]
        reason: String,
    },
    /// Open a finding again.
    Reopen { name: String },
}

/// Carries out the action.
pub(super) fn run(flags: &Flags, out: &mut dyn Write) -> Result<bool> {
    let path = flags.file.path();
    let mut findings = Findings::read(&path)?;
    match &flags.action {
        None => list(&findings, false, Form::Text, out)?,
        Some(Action::List { all, format }) => list(&findings, *all, *format, out)?,
        Some(Action::Waive { name, owner, reason }) => {
            findings.waive(name, owner, reason)?;
            findings.write(&path)?;
        }
        Some(Action::Reopen { name }) => {
            findings.reopen(name)?;
            findings.write(&path)?;
        }
    }
    Ok(true)
}

/// Prints the open findings, or all.
pub(super) fn list(findings: &Findings, all: bool, form: Form, out: &mut dyn Write) -> Result<()> {
    let mut table =
        Table::new(&["finding", "state", "before", "found", "unit", "run", "owner", "reason"]);
    for finding in findings.all.iter().filter(|finding| all || finding.state == State::Open) {
        let state = match finding.state {
            State::Open => "open".to_owned(),
            State::Fixed => format!("fixed by {}", finding.fixed_by.as_deref().unwrap_or("a run")),
            State::Waived => "waived".to_owned(),
        };
        table.push(vec![
            finding.name.clone(),
            state,
            words::number(finding.before),
            words::number(finding.found),
            finding.unit.clone(),
            finding.run.clone(),
            finding.owner.clone().unwrap_or_default(),
            finding.reason.clone().unwrap_or_default(),
        ]);
    }
    if table.lines.is_empty() && form == Form::Text {
        writeln!(out, "No open findings.")?;
        return Ok(());
    }
    write!(out, "{}", table.show(form))?;
    Ok(())
}
