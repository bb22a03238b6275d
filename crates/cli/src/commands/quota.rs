//! `quota enable`, `disable`, `rescan` and `status`.

use std::io::Write;

use butternut::format::quota::STATUS_INCONSISTENT;
use butternut::{Error, Filesystem};

use super::transaction::Transaction;
use crate::args::{GlobalArgs, QuotaCommand, VolumeArgs, VolumesArgs};
use crate::failure::{Completion, Outcome};
use crate::output::{Output, json};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, command: &QuotaCommand, out: &mut Output) -> Outcome {
    match command {
        QuotaCommand::Enable(args) => {
            change(global, args, out, |filesystem| filesystem.enable_quotas().map(drop))
        }
        QuotaCommand::Disable(args) => {
            change(global, args, out, |filesystem| filesystem.disable_quotas().map(drop))
        }
        QuotaCommand::Rescan(args) => change(global, args, out, Filesystem::rescan_quotas),
        QuotaCommand::Status(args) => status(global, args, out),
    }
}

/// Runs a change of the quotas in a transaction of its own.
pub(super) fn change(
    global: &GlobalArgs,
    volume: &VolumeArgs,
    out: &mut Output,
    change: impl FnOnce(&Filesystem) -> Result<(), Error>,
) -> Outcome {
    let transaction = Transaction::open(global, volume)?;
    change(transaction.filesystem()).map_err(|error| transaction.failure(&error))?;
    transaction.finish(global, out, |object| object)
}

fn status(global: &GlobalArgs, args: &VolumesArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_args(global, args)?;
    let quotas = opened.filesystem.quotas().map_err(|error| opened.failure(&error))?;
    let flags = quotas.as_ref().map(|quotas| quotas.status.flags);
    let is_consistent = flags.map(|flags| flags & STATUS_INCONSISTENT == 0);
    if global.json {
        let object = json::Object::new()
            .put("enabled", flags.is_some())
            .put("consistent", is_consistent)
            .put("groups", quotas.map(|quotas| quotas.groups.len()));
        json::document(out, object)?;
        return Ok(Completion::Success);
    }
    writeln!(out, "Enabled:      {}", yes_no(flags.is_some()))?;
    if let (Some(quotas), Some(is_consistent)) = (quotas, is_consistent) {
        writeln!(out, "Inconsistent: {}", yes_no(!is_consistent))?;
        writeln!(out, "Groups:       {}", quotas.groups.len())?;
    }
    Ok(Completion::Success)
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}
