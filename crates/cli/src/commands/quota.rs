//! `quota enable`, `disable`, `rescan` and `status`; and how all commands for quotas reach a
//! volume: an argument that is a directory names the mount that contains it, whose process makes
//! the change.

use std::io::Write;
use std::path::Path;

use super::mounted;
use super::mounted::directory::MountedDirectory;
use super::transaction::Transaction;
use crate::args::{GlobalArgs, QuotaCommand, VolumeArgs, VolumesArgs};
use crate::control::quotas::{GroupReport, QuotaChange, QuotaReport};
use crate::control::{Request, client};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json};
use crate::volume::OpenVolume;

/// Begins messages on what the process of a mount has responded.
const COMMAND: &str = "quota";

pub(crate) fn run(global: &GlobalArgs, command: &QuotaCommand, out: &mut Output) -> Outcome {
    match command {
        QuotaCommand::Enable(args) => {
            let enable = if args.simple { QuotaChange::Simple } else { QuotaChange::Enable };
            change(global, &args.volume, out, enable)
        }
        QuotaCommand::Disable(args) => change(global, args, out, QuotaChange::Disable),
        QuotaCommand::Rescan(args) => change(global, &args.volume, out, QuotaChange::Rescan),
        QuotaCommand::Status(args) => status(global, args, out),
    }
}

/// Changes the quotas, in a transaction of its own.
pub(super) fn change(
    global: &GlobalArgs,
    volume: &VolumeArgs,
    out: &mut Output,
    change: QuotaChange,
) -> Outcome {
    if let Some(mounted) = MountedDirectory::open(&volume.volume)? {
        if mounted.is_kernels() {
            return Err(mounted.of_kernel(change.kernel_command()));
        }
        mounted.require_writable()?;
        let _: serde_json::Value = mounted.request(COMMAND, &Request::Quota { change })?;
        return mounted.finish(global, out, |object| object);
    }
    let transaction = Transaction::open(global, volume)?;
    change.apply(transaction.filesystem()).map_err(|error| transaction.failure(&error))?;
    transaction.finish(global, out, |object| object)
}

/// Reads the quotas of a volume, with all groups. `instead` is the command of btrfs-progs that does
/// so on a mount of the kernel's btrfs.
pub(super) fn report(
    global: &GlobalArgs,
    volume: &VolumesArgs,
    instead: &str,
) -> Result<QuotaReport, Failure> {
    let mount = match volume.volume.as_slice() {
        [path] if mounted::is_directory(path) => path,
        _ => {
            let opened = OpenVolume::from_args(global, volume)?;
            let report = QuotaReport::read(&opened.filesystem, 0, usize::MAX);
            return report.map_err(|error| opened.failure(&error));
        }
    };
    if let Some(mounted) = MountedDirectory::open(mount)?.filter(MountedDirectory::is_kernels) {
        return Err(mounted.of_kernel(instead));
    }
    let mount = Path::new(mount);
    let mut report = page(mount, 0)?;
    while let Some(from) = report.next {
        report.append(page(mount, from)?).map_err(|why| Failure::new(COMMAND, why))?;
    }
    Ok(report)
}

/// Reads the quota group of one subvolume of a volume that is not mounted; `None` if quotas are
/// disabled, or it has no group.
pub(super) fn group_of_volume(
    opened: &OpenVolume,
    subvolume: u64,
) -> Result<Option<GroupReport>, Failure> {
    let page = QuotaReport::read(&opened.filesystem, subvolume, 1);
    Ok(page.map_err(|error| opened.failure(&error))?.into_first(subvolume))
}

/// As [`group_of_volume`], of a mounted volume.
///
/// # Errors
/// No mount of this program contains the path, or it belongs to another user.
pub(super) fn group_of_mount(path: &Path, subvolume: u64) -> Result<Option<GroupReport>, Failure> {
    Ok(page(path, subvolume)?.into_first(subvolume))
}

/// Requests a page of the report from the process of a mount, from a group on.
fn page(mount: &Path, from: u64) -> Result<QuotaReport, Failure> {
    let response = client::request(COMMAND, mount, &Request::Quotas { from })?;
    serde_json::from_value::<QuotaReport>(response)
        .map_err(|error| Failure::new(COMMAND, format!("the response of the mount: {error}")))
}

fn status(global: &GlobalArgs, volume: &VolumesArgs, out: &mut Output) -> Outcome {
    let report = report(global, volume, "btrfs quota status")?;
    let enabled = report.is_enabled;
    if global.json {
        let object = Object::new()
            .put("enabled", enabled)
            .put("mode", enabled.then(|| mode(&report)))
            .put("consistent", enabled.then_some(report.is_consistent))
            .put("groups", enabled.then_some(report.count));
        json::document(out, object)?;
        return Ok(Completion::Success);
    }
    writeln!(out, "Enabled:      {}", yes_no(enabled))?;
    if enabled {
        writeln!(out, "Mode:         {}", mode(&report))?;
        writeln!(out, "Inconsistent: {}", yes_no(!report.is_consistent))?;
        writeln!(out, "Groups:       {}", report.count)?;
    }
    Ok(Completion::Success)
}

fn mode(report: &QuotaReport) -> &'static str {
    if report.is_simple { "simple" } else { "full" }
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}
