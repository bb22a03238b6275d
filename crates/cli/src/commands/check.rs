//! `check`: everything on a volume against everything else. Exit codes are those of fsck(8).

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use butternut::Subvolume;
use butternut_check::{
    CheckError, CheckOptions, Counts, Finding, Report, Severity, check, open_device,
};
use serde_json::Value;

use crate::failure::{Done, Failure, Outcome, chain};
use crate::flags::{CheckArgs, GlobalArgs};
use crate::options;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, say, text};
use crate::volume_arg::VolumeArg;

/// Damage was found, and is left as it is; and: there is no saying whether there is any.
const DAMAGE: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// Between two words of progress.
const PROGRESS: Duration = Duration::from_secs(1);

pub(crate) fn run(global: &GlobalArgs, args: &CheckArgs, out: &mut Output) -> Outcome {
    match look(global, args) {
        Ok((named, report)) => {
            print(global, &named, &report, out)?;
            Ok(if report.is_clean() { Done::Well } else { Done::Status(DAMAGE) })
        }
        Err(Failure::Closed) => Err(Failure::Closed),
        Err(failure) => {
            say(&failure.to_string());
            Ok(Done::Status(NOT_CHECKED))
        }
    }
}

fn look(global: &GlobalArgs, args: &CheckArgs) -> Result<(VolumeArg, Report), Failure> {
    let named = options::volume(&args.volume.volume)?;
    if named.subvolume != Subvolume::Default {
        return Err(Failure::new(named.typed, "a subvolume cannot be checked by itself")
            .cure("name the volume alone"));
    }
    let mut devices = Vec::with_capacity(named.devices.len());
    for device in &named.devices {
        options::check_device(&device.path)?;
        let opened = open_device(&device.path, device.offset, args.force);
        devices.push(opened.map_err(|error| failure(&named, &error))?);
    }
    let said = Mutex::new(Instant::now());
    let tell = |counts: &Counts| {
        let Ok(mut said) = said.try_lock() else { return };
        if said.elapsed() >= PROGRESS {
            *said = Instant::now();
            say(&format!("{}: {}", named.typed, counted(counts)));
        }
    };
    let options = CheckOptions {
        check_data_csum: args.check_data_csum,
        threads: args.threads.map_or(0, usize::from),
        degraded: global.degraded,
        progress: global.verbose.then_some(&tell),
        ..CheckOptions::default()
    };
    let report = check(devices, &options).map_err(|error| failure(&named, &error))?;
    if global.verbose {
        say(&format!("{}: {}", named.typed, counted(&report.counts)));
    }
    Ok((named, report))
}

fn failure(named: &VolumeArg, error: &CheckError) -> Failure {
    let failure = Failure::new(named.typed.clone(), chain(error));
    let text = failure.to_string();
    if matches!(error, CheckError::Mounted { .. }) || text.contains(" is busy: ") {
        return failure.cure("unmount it, mount it read-only, or add --force");
    }
    if text.contains("missing device") {
        return failure.cure("name all its devices, joined with commas, or add --degraded");
    }
    if text.contains("magic") {
        return failure.cure("is it btrfs? In a bigger image, say where it starts: ?offset=N");
    }
    failure
}

fn counted(counts: &Counts) -> String {
    let text = format!(
        "{} trees, {} tree blocks, {} items, {} extents, {} subvolumes, {} inodes",
        counts.trees,
        counts.tree_blocks,
        counts.items,
        counts.extents,
        counts.subvolumes,
        counts.inodes,
    );
    if counts.data_bytes_read == 0 {
        return text;
    }
    let bytes = pretty(counts.data_bytes_read, Units::Binary);
    format!("{text}, {bytes} of data verified")
}

fn print(
    global: &GlobalArgs,
    named: &VolumeArg,
    report: &Report,
    out: &mut Output,
) -> Result<(), Failure> {
    if global.json {
        return Ok(json::document(out, as_json(named, report))?);
    }
    for finding in &report.findings {
        let word = severity(finding);
        writeln!(out, "{word}: {}: {finding}", finding.kind.name())?;
    }
    if report.findings_left_out > 0 {
        writeln!(out, "and {} more", report.findings_left_out)?;
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
            "{}: {verdict} at generation {}: {errors} errors, {warnings} warnings",
            named.typed, report.generation
        )?;
    }
    Ok(())
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn as_json(named: &VolumeArg, report: &Report) -> json::Object {
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
        .put("volume", named.typed.clone())
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
