//! Every kind of damage is found, and called what it is.
//!
//! Each row of the tables plants one thing that is wrong in a volume that the kernel made, with
//! all checksums right, and says which kinds of findings must come of it: these, and no others.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "helpers of tests panic as tests do; images are small"
)]

mod files;
mod image;
mod names;
mod patient;
mod random;
mod references;
mod space;

use butternut_check::{CheckOptions, Kind, Report, check};
use libtest_mimic::{Arguments, Failed, Trial};
use patient::Patient;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::LazyLock;

/// The volume that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    Today,
    Old,
}

/// One row: what is done, to which volume, and what must be found.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) volume: Volume,
    pub(crate) damage: fn(&Patient),
    pub(crate) want: &'static [Kind],
}

/// A row about the volume of today.
pub(crate) const fn case(name: &'static str, damage: fn(&Patient), want: &'static [Kind]) -> Case {
    Case { name, volume: Volume::Today, damage, want }
}

/// A row about the old volume.
pub(crate) const fn old(name: &'static str, damage: fn(&Patient), want: &'static [Kind]) -> Case {
    Case { name, volume: Volume::Old, damage, want }
}

static TODAY: LazyLock<Vec<u8>> = LazyLock::new(image::today);
static OLD: LazyLock<Vec<u8>> = LazyLock::new(image::old);

fn main() -> ExitCode {
    let mut trials = vec![
        trial("undamaged".into(), || clean(&TODAY)),
        trial("undamaged-old".into(), || clean(&OLD)),
        trial("every-kind".into(), every_kind_has_a_row),
        trial("btrfs-check".into(), btrfs_check_finds_the_same_rows),
        trial("random-bytes".into(), random::bytes_at_random),
    ];
    for case in cases() {
        trials.push(trial(case.name.replace(' ', "-"), move || found(&case)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn cases() -> Vec<Case> {
    let tables = [space::cases(), references::cases(), names::cases(), files::cases()];
    tables.into_iter().flatten().collect()
}

fn trial(name: String, run: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, run).with_ignored_flag(image::is_without_kernel())
}

fn look(patient: &Patient, threads: usize) -> Report {
    let options = CheckOptions { check_data_csum: true, threads, ..CheckOptions::default() };
    check(vec![patient.device()], &options).expect("the volume can be opened")
}

fn clean(image: &[u8]) -> Result<(), Failed> {
    let report = look(&Patient::new(image), 1);
    let kinds = kinds(&report);
    if kinds.iter().all(|kind| *kind == Kind::FreeSpaceStray) {
        return Ok(());
    }
    Err(listed(&report).into())
}

/// Whatever the threads, the same is found.
fn found(case: &Case) -> Result<(), Failed> {
    let patient = Patient::new(image_of(case));
    (case.damage)(&patient);
    let report = look(&patient, 1);
    let have = kinds(&report);
    let want: BTreeSet<Kind> = case.want.iter().copied().collect();
    // mkfs.btrfs leaves free space of groups that are gone; that is there in any case.
    let stray = BTreeSet::from([Kind::FreeSpaceStray]);
    if &have - &stray != &want - &stray {
        return Err(format!("want {want:?}, have {have:?}\n{}", listed(&report)).into());
    }
    let again = look(&patient, 2);
    if again.findings != report.findings {
        return Err(format!("with two threads:\n{}", listed(&again)).into());
    }
    Ok(())
}

fn image_of(case: &Case) -> &'static [u8] {
    match case.volume {
        Volume::Today => &TODAY,
        Volume::Old => &OLD,
    }
}

fn kinds(report: &Report) -> BTreeSet<Kind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

fn listed(report: &Report) -> String {
    let lines = report.findings.iter().map(|finding| format!("{:?}: {finding}\n", finding.kind));
    lines.collect()
}

/// Kinds that no row plants: one needs more devices, the others damage that the check of a leaf
/// finds first, or that reading finds, unless it is spread over leaves.
const WITHOUT_ROW: [Kind; 6] = [
    Kind::DeviceMissing,
    Kind::DataUnreadable,
    Kind::FreeSpaceStray,
    Kind::SumsOverlap,
    Kind::FileExtentOverlap,
    Kind::BlockPlace,
];

fn every_kind_has_a_row() -> Result<(), Failed> {
    let rows: BTreeSet<Kind> = cases().iter().flat_map(|case| case.want).copied().collect();
    let without = Kind::ALL.iter().filter(|kind| !rows.contains(kind));
    let without: Vec<_> = without.filter(|kind| !WITHOUT_ROW.contains(kind)).collect();
    if without.is_empty() { Ok(()) } else { Err(format!("no row finds {without:?}").into()) }
}

/// Rows that btrfs check 6.14 calls clean: warnings, copies that it does not read, and fields that
/// it does not compare. All others it refuses as well.
const BLIND: [&str; 25] = [
    "super mirror torn",
    "super mirror older",
    "super device item",
    "super backup of other roots",
    "super system chunk elsewhere",
    "device extent of another chunk",
    "device errors counted",
    "group without a chunk",
    "block rotten on one copy",
    "block stale on one copy",
    "block valid and different on one copy",
    "block item of another generation",
    "block of another chunk tree",
    "root references to nothing",
    "root item with two references",
    "default subvolume that is none",
    "uuid entry missing",
    "uuid entry of another subvolume",
    "directories inside each other",
    "orphan item of what has links",
    "orphan item of nothing",
    "attribute twice",
    "symlink shorter than its target",
    "file shorter than its extents",
    "file shorter than what is inline",
];

fn btrfs_check_finds_the_same_rows() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("damaged.img");
    let mut blind = Vec::new();
    for case in cases() {
        let patient = Patient::new(image_of(&case));
        (case.damage)(&patient);
        patient.save(&path);
        let mut command = std::process::Command::new("btrfs");
        let output = command.args(["check", "--check-data-csum"]).arg(&path).output()?;
        match (output.status.success(), case.want.is_empty()) {
            (true, false) => blind.push(case.name),
            (false, true) => return Err(format!("{} is no damage", case.name).into()),
            (true, true) | (false, false) => {}
        }
    }
    if blind == BLIND { Ok(()) } else { Err(format!("blind for {blind:#?}").into()) }
}
