//! `check`: checks a volume for damage. Exit statuses are those of fsck(8). The report on quota
//! groups has the form of `btrfs check --qgroup-report`, without its compressed sizes, which the
//! kernel does not count.

mod sealed;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use butternut::device::Device;
use butternut::{DevicePath, Subvolume};
use butternut_check::{
    CheckError, CheckOptions, Counts, Finding, QgroupCount, Report, Severity, check, open_device,
};
use serde_json::Value;

use crate::args::{CheckArgs, GlobalArgs};
use crate::commands::mounted::directory::MountedDirectory;
use crate::control::hold::HeldDevice;
use crate::failure::{Completion, Failure, chain, hints};
use crate::output::size::{Units, pretty};
use crate::output::text::counted;
use crate::output::{Output, json, stderr_line, text};
use crate::volume;
use crate::volume::arg::VolumeArg;

/// Damage was found (and is not repaired); the check could not be completed.
const DAMAGE: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// Interval between progress messages.
const PROGRESS: Duration = Duration::from_secs(1);

pub(crate) fn run(global: &GlobalArgs, args: &CheckArgs, out: &mut Output) -> Completion {
    let report = check_volume(global, args).and_then(|(volume_arg, report)| {
        let printed = print(global, args, &volume_arg, &report, out);
        match printed.and_then(|()| Ok(out.flush()?)) {
            // The status tells the result, also where nothing reads the findings.
            Ok(()) | Err(Failure::StdoutClosed) => Ok(report),
            Err(failure) => Err(failure),
        }
    });
    match report {
        Ok(report) if report.is_clean() => Completion::Success,
        Ok(_) => Completion::Status(DAMAGE),
        Err(failure) => {
            stderr_line(&failure.to_string());
            Completion::Status(NOT_CHECKED)
        }
    }
}

const COMMAND: &str = "check";

/// The longest time for which the process of a mount may not say whether it has kept the commit.
const HELD_WAIT_MAX: Duration = Duration::from_secs(10);

fn check_volume(global: &GlobalArgs, args: &CheckArgs) -> Result<(VolumeArg, Report), Failure> {
    let mounted = MountedDirectory::open_only(&args.volume.volume)?;
    match mounted {
        Some(mounted) if args.online => return check_mounted(global, args, &mounted),
        Some(mounted) => {
            return Err(Failure::new(mounted.shown(), "is a directory")
                .hint("name the image file or device; for a mounted volume add --online"));
        }
        None => {}
    }
    let volume_arg = volume::parse_arg(&args.volume.volume)?;
    if args.online {
        return Err(Failure::new(volume_arg.typed, "is no directory of a mounted volume"));
    }
    if volume::stream::is_named(&volume_arg)? {
        return Err(volume::stream::not_checked(&volume_arg.typed));
    }
    if volume_arg.subvolume != Subvolume::Default {
        return Err(Failure::new(volume_arg.typed, "a single subvolume cannot be checked")
            .hint("name the volume without @SUBVOL"));
    }
    let mut devices = Vec::with_capacity(volume_arg.devices.len());
    for device in &volume_arg.devices {
        volume::check_device(&device.path)?;
        let opened = open_device(&device.path, device.offset, device.bytes, args.force);
        devices.push(opened.map_err(|error| failure(&volume_arg, &error))?);
    }
    let report = check_devices(global, args, (&volume_arg, devices), None)?;
    Ok((volume_arg, report))
}

/// Checks the last commit of a mounted volume. Its process keeps that on the devices meanwhile.
fn check_mounted(
    global: &GlobalArgs,
    args: &CheckArgs,
    mounted: &MountedDirectory<'_>,
) -> Result<(VolumeArg, Report), Failure> {
    let (hold, kept) = mounted.hold(COMMAND)?;
    if let Some(other) = kept.devices.iter().find(|device| !device.is_there()) {
        let path = other.path.display().to_string();
        return Err(Failure::new(path, "is another file or device than the mounted one"));
    }
    let path = |device: HeldDevice| DevicePath {
        path: device.path,
        offset: device.offset,
        bytes: device.bytes,
    };
    let devices = kept.devices.into_iter().map(path).collect();
    let (subvolume, typed) = (Subvolume::Default, mounted.shown());
    let volume_arg = VolumeArg { devices, subvolume, typed };
    if volume::stream::is_named(&volume_arg)? {
        let streams = volume_arg.devices.iter().map(|device| device.path.display().to_string());
        let streams = streams.collect::<Vec<_>>().join(",");
        return Err(volume::stream::not_checked(&format!("{}: {streams}", volume_arg.typed)));
    }
    let mut devices = Vec::with_capacity(volume_arg.devices.len());
    for device in &volume_arg.devices {
        volume::check_device(&device.path)?;
        let opened = open_device(&device.path, device.offset, device.bytes, true);
        devices.push(opened.map_err(|error| failure(&volume_arg, &error))?);
    }
    let report = check_devices(global, args, (&volume_arg, devices), Some(kept.generation));
    // What was read after the end of the mount may belong to a later commit.
    if !hold.end(Instant::now() + HELD_WAIT_MAX) {
        return Err(Failure::new(volume_arg.typed, "the mount has ended while it was checked"));
    }
    Ok((volume_arg, report?))
}

fn check_devices(
    global: &GlobalArgs,
    args: &CheckArgs,
    (volume_arg, devices): (&VolumeArg, Vec<Arc<dyn Device>>),
    held_since: Option<u64>,
) -> Result<Report, Failure> {
    let reported = Mutex::new(Instant::now());
    let progress = |counts: &Counts| {
        let Ok(mut last) = reported.try_lock() else { return };
        if last.elapsed() >= PROGRESS {
            *last = Instant::now();
            stderr_line(&format!("{}: {}", volume_arg.typed, describe(counts)));
        }
    };
    let options = CheckOptions {
        check_data_csum: args.check_data_csum,
        threads: args.threads.map_or(0, usize::from),
        degraded: global.degraded,
        qgroup_report: args.qgroup_report,
        held_since,
        progress: global.verbose.then_some(&progress),
        ..CheckOptions::default()
    };
    let again = args.check_data_csum.then(|| devices.clone());
    let mut report = check(devices, &options).map_err(|error| failure(volume_arg, &error))?;
    if let Some(devices) = again {
        sealed::check(global, devices, &mut report);
    }
    if global.verbose {
        stderr_line(&format!("{}: {}", volume_arg.typed, describe(&report.counts)));
    }
    Ok(report)
}

fn failure(volume_arg: &VolumeArg, error: &CheckError) -> Failure {
    let failure = Failure::new(volume_arg.typed.clone(), chain(error));
    let in_use = "unmount it, mount it read-only, or add --force";
    let failure = failure.hint_if(match error {
        CheckError::Mounted { .. } => Some(in_use),
        CheckError::Device { source } if hints::is_busy(source) => Some(in_use),
        CheckError::Device { source } => hints::of_device(source),
        CheckError::Volume(error) => hints::of_volume(error),
        CheckError::Threads(_) | CheckError::Changing { .. } => None,
    });
    match error {
        CheckError::Volume(error) => volume::contents::explain(volume_arg, failure, error),
        CheckError::Mounted { .. }
        | CheckError::Device { .. }
        | CheckError::Threads(_)
        | CheckError::Changing { .. } => failure,
    }
}

fn describe(counts: &Counts) -> String {
    let parts = [
        counted(counts.trees, "tree", "trees"),
        counted(counts.tree_blocks, "tree block", "tree blocks"),
        counted(counts.items, "item", "items"),
        counted(counts.extents, "extent", "extents"),
        counted(counts.subvolumes, "subvolume", "subvolumes"),
        counted(counts.inodes, "inode", "inodes"),
    ];
    let text = parts.join(", ");
    if counts.data_bytes_read == 0 {
        return text;
    }
    let bytes = pretty(counts.data_bytes_read, Units::Binary);
    format!("{text}, {bytes} of data verified")
}

fn print(
    global: &GlobalArgs,
    args: &CheckArgs,
    volume_arg: &VolumeArg,
    report: &Report,
    out: &mut Output,
) -> Result<(), Failure> {
    if global.json {
        let mut object = as_json(volume_arg, report);
        if args.qgroup_report {
            let counts: Vec<Value> = report.qgroups.iter().map(qgroup_json).collect();
            object = object.put("qgroups", counts);
        }
        return Ok(json::document(out, object)?);
    }
    for finding in &report.findings {
        let word = severity(finding);
        writeln!(out, "{word}: {}: {finding}", finding.kind.name())?;
    }
    if report.findings_left_out > 0 {
        writeln!(out, "and {} more", report.findings_left_out)?;
    }
    if args.qgroup_report {
        for count in &report.qgroups {
            print_qgroup(count, out)?;
        }
    }
    if !global.quiet {
        for note in &report.notes {
            writeln!(out, "note: {note}")?;
        }
        let errors = report.errors().count();
        let verdict = if errors == 0 { "clean" } else { "damaged" };
        let warnings = report.warnings().count();
        writeln!(
            out,
            "{}: {verdict} at generation {}: {}, {}",
            volume_arg.typed,
            report.generation,
            counted(errors, "error", "errors"),
            counted(warnings, "warning", "warnings"),
        )?;
    }
    Ok(())
}

fn print_qgroup(count: &QgroupCount, out: &mut Output) -> Result<(), Failure> {
    let QgroupCount { id, stored, counted } = count;
    let verdict = if stored == counted { "" } else { "are different" };
    writeln!(out, "Counts for qgroup id: {id} {verdict}")?;
    let fields = [
        ("referenced", counted.referenced, stored.referenced),
        ("exclusive", counted.exclusive, stored.exclusive),
    ];
    for (field, counted, stored) in fields {
        writeln!(out, "our:\t\t{field} {counted}\ndisk:\t\t{field} {stored}")?;
        if counted != stored {
            let difference = i128::from(counted) - i128::from(stored);
            writeln!(out, "diff:\t\t{field} {difference}")?;
        }
    }
    Ok(())
}

fn qgroup_json(count: &QgroupCount) -> Value {
    let QgroupCount { id, stored, counted } = count;
    json::Object::new()
        .put("id", id.to_string())
        .put("referenced_bytes", stored.referenced)
        .put("exclusive_bytes", stored.exclusive)
        .put("counted_referenced_bytes", counted.referenced)
        .put("counted_exclusive_bytes", counted.exclusive)
        .into()
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn as_json(volume_arg: &VolumeArg, report: &Report) -> json::Object {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json::Object::new()
                .put("severity", severity(finding))
                .put("kind", finding.kind.name())
                .put("place", finding.place.clone())
                .put("field", finding.field.clone())
                .put("have", finding.have.clone())
                .put("want", finding.want.clone())
                .into()
        })
        .collect();
    let counts = &report.counts;
    let counts = json::Object::new()
        .put("trees", counts.trees)
        .put("tree_blocks", counts.tree_blocks)
        .put("items", counts.items)
        .put("extents", counts.extents)
        .put("subvolumes", counts.subvolumes)
        .put("inodes", counts.inodes)
        .put("data_sectors", counts.data_sectors)
        .put("data_bytes_read", counts.data_bytes_read);
    json::Object::new()
        .put("volume", volume_arg.typed.clone())
        .put("fsid", text::uuid_or_dash(&report.fsid))
        .put("generation", report.generation)
        .put("clean", report.is_clean())
        .put("errors", report.errors().count())
        .put("warnings", report.warnings().count())
        .put("findings", findings)
        .put("findings_left_out", report.findings_left_out)
        .put("notes", report.notes.clone())
        .put("counts", counts)
}
