//! Tests that the checker finds every kind of damage, with the right kind of finding.
//!
//! Each case damages one structure of a volume that the kernel made, with all checksums recomputed,
//! and lists the kinds that must be found, and no others.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "helpers of tests panic as tests do; images are small"
)]

mod files;
mod image;
mod names;
mod quotas;
mod random;
mod references;
mod space;
mod test_image;

use butternut_check::{CheckOptions, Kind, Report, check};
use butternut_format::units::TreeId;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::LazyLock;
use test_image::TestImage;

/// The volume that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    Current,
    Old,
    Quotas,
    SimpleQuotas,
    Sealed,
}

/// One case: the damage, the volume, and the kinds that must be found.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) volume: Volume,
    pub(crate) damage: fn(&TestImage),
    pub(crate) want: &'static [Kind],
}

/// Returns a case on the current volume.
pub(crate) const fn case(
    name: &'static str,
    damage: fn(&TestImage),
    want: &'static [Kind],
) -> Case {
    Case { name, volume: Volume::Current, damage, want }
}

/// Returns a case on the old volume.
pub(crate) const fn old(name: &'static str, damage: fn(&TestImage), want: &'static [Kind]) -> Case {
    Case { name, volume: Volume::Old, damage, want }
}

/// Returns a case on the volume with sealed files.
pub(crate) const fn sealed(
    name: &'static str,
    damage: fn(&TestImage),
    want: &'static [Kind],
) -> Case {
    Case { name, volume: Volume::Sealed, damage, want }
}

static CURRENT: LazyLock<Vec<u8>> = LazyLock::new(image::current);
static OLD: LazyLock<Vec<u8>> = LazyLock::new(image::old);
static QUOTAS: LazyLock<Vec<u8>> = LazyLock::new(image::quotas);
static SIMPLE_QUOTAS: LazyLock<Vec<u8>> = LazyLock::new(image::simple_quotas);
static SEALED: LazyLock<Vec<u8>> = LazyLock::new(image::sealed);

fn main() -> ExitCode {
    let mut trials = vec![
        trial("undamaged".into(), || clean(&CURRENT)),
        trial("undamaged-old".into(), || clean(&OLD)),
        trial("undamaged-quotas".into(), || clean(&QUOTAS)),
        trial("undamaged-simple-quotas".into(), || clean(&SIMPLE_QUOTAS)),
        trial("undamaged-sealed".into(), || clean(&SEALED)),
        trial("inexact-quotas".into(), quotas::inexact_usage_is_counted_on_request),
        trial("lost-checksums".into(), lost_checksums_are_named),
        trial("every-kind".into(), every_kind_has_a_case),
        trial("btrfs-check".into(), btrfs_check_finds_the_same_cases),
        trial("random-bytes".into(), random::random_bytes),
    ];
    for case in cases() {
        trials.push(trial(case.name.replace(' ', "-"), move || found(&case)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn cases() -> Vec<Case> {
    let tables =
        [space::cases(), references::cases(), names::cases(), files::cases(), quotas::cases()];
    tables.into_iter().flatten().collect()
}

fn trial(name: String, run: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, run).with_ignored_flag(image::is_without_kernel())
}

fn run_check(image: &TestImage, threads: usize) -> Report {
    let options = CheckOptions { check_data_csum: true, threads, ..CheckOptions::default() };
    check(vec![image.device()], &options).expect("the volume can be opened")
}

fn clean(image: &[u8]) -> Result<(), Failed> {
    let report = run_check(&TestImage::new(image), 1);
    let kinds = kinds(&report);
    if kinds.iter().all(|kind| *kind == Kind::FreeSpaceNoGroup) {
        return Ok(());
    }
    Err(listed(&report).into())
}

/// A report says which checksums could not be read.
fn lost_checksums_are_named() -> Result<(), Failed> {
    let image = TestImage::new(&CURRENT);
    image.write(image.root(TreeId::CHECKSUM).logical, &[0x55; 16384], 2);
    let report = run_check(&image, 1);
    let is_named = |note: &String| note.starts_with("checksums of addresses 0 to ");
    if report.notes.iter().any(is_named) { Ok(()) } else { Err(report.notes.join("\n").into()) }
}

/// Runs a case, with one thread and with two.
fn found(case: &Case) -> Result<(), Failed> {
    let image = TestImage::new(image_of(case));
    (case.damage)(&image);
    let report = run_check(&image, 1);
    let have = kinds(&report);
    let want: BTreeSet<Kind> = case.want.iter().copied().collect();
    // mkfs.btrfs leaves free space items of its temporary block groups.
    let stray = BTreeSet::from([Kind::FreeSpaceNoGroup]);
    if &have - &stray != &want - &stray {
        return Err(format!("want {want:?}, have {have:?}\n{}", listed(&report)).into());
    }
    sealed_files_are_whole(case, &image, &report)?;
    let again = run_check(&image, 2);
    if again.findings != report.findings {
        return Err(format!("with two threads:\n{}", listed(&again)).into());
    }
    Ok(())
}

/// A report has the sealed files whose data can be verified, and no others.
fn sealed_files_are_whole(case: &Case, image: &TestImage, report: &Report) -> Result<(), Failed> {
    if !matches!(case.volume, Volume::Sealed) {
        return Ok(());
    }
    let damages = [Kind::VerityItems, Kind::VerityDescriptor];
    let is_whole = !case.want.iter().any(|kind| damages.contains(kind));
    let (files, ino) = (&report.sealed_files, image.ino(TreeId::FS, "a"));
    let is_there = files.iter().any(|file| (file.tree, file.ino) == (TreeId::FS.0, ino));
    if is_there == is_whole { Ok(()) } else { Err(format!("{files:?}").into()) }
}

fn image_of(case: &Case) -> &'static [u8] {
    match case.volume {
        Volume::Current => &CURRENT,
        Volume::Old => &OLD,
        Volume::Quotas => &QUOTAS,
        Volume::SimpleQuotas => &SIMPLE_QUOTAS,
        Volume::Sealed => &SEALED,
    }
}

fn kinds(report: &Report) -> BTreeSet<Kind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

fn listed(report: &Report) -> String {
    let lines = report.findings.iter().map(|finding| format!("{:?}: {finding}\n", finding.kind));
    lines.collect()
}

/// Kinds without a case. One needs several devices, and one is of the command line's check. For the
/// others, the check of a leaf, or the read, reports the damage first, unless it is spread over
/// leaves.
const WITHOUT_CASE: [Kind; 7] = [
    Kind::VerityData,
    Kind::DeviceMissing,
    Kind::DataUnreadable,
    Kind::FreeSpaceNoGroup,
    Kind::ChecksumsOverlap,
    Kind::FileExtentOverlap,
    Kind::BlockPlace,
];

fn every_kind_has_a_case() -> Result<(), Failed> {
    let rows: BTreeSet<Kind> = cases().iter().flat_map(|case| case.want).copied().collect();
    let without = Kind::ALL.iter().filter(|kind| !rows.contains(kind));
    let without: Vec<_> = without.filter(|kind| !WITHOUT_CASE.contains(kind)).collect();
    if without.is_empty() { Ok(()) } else { Err(format!("no case finds {without:?}").into()) }
}

/// Cases that `btrfs check` 6.14 does not find: warnings, mirrors that it does not read, and fields
/// that it does not compare.
const NOT_FOUND_BY_BTRFS_CHECK: [&str; 33] = [
    "super mirror torn",
    "super mirror older",
    "super device item",
    "super backup of other roots",
    "super system chunk elsewhere",
    "device extent of another chunk",
    "device errors counted",
    "group without a chunk",
    "block corrupt on one copy",
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
    "seal without hashes",
    "sealed file with another version",
    "sealed file with another reserved byte",
    "sealed file of another size",
    "sealed file without its last hashes",
    "sealed file with another root hash",
    "sealed file with another root block",
    "sealed file with another block of hashes",
];

fn btrfs_check_finds_the_same_cases() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("damaged.img");
    let mut not_found = Vec::new();
    for case in cases() {
        let image = TestImage::new(image_of(&case));
        (case.damage)(&image);
        image.save(&path);
        let mut command = std::process::Command::new("btrfs");
        let output = command.args(["check", "--check-data-csum"]).arg(&path).output()?;
        match (output.status.success(), case.want.is_empty()) {
            (true, false) => not_found.push(case.name),
            (false, true) => return Err(format!("{} is no damage", case.name).into()),
            (true, true) | (false, false) => {}
        }
    }
    if not_found == NOT_FOUND_BY_BTRFS_CHECK {
        Ok(())
    } else {
        Err(format!("btrfs check does not find {not_found:#?}").into())
    }
}
