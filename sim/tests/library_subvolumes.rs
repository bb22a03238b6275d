//! Compares the library with the model in subvolumes and snapshots, with clones, deduplications and
//! defragmentation between all other operations. The checker then finds nothing, also when
//! everything that was deleted is freed.
//!
//! `BUTTERNUT_LONG=1` runs more seeds; `BUTTERNUT_SEEDS=N` runs N seeds of each kind,
//! `BUTTERNUT_SEED=N` runs one.

use anyhow::{Context, Result, ensure};
use butternut::{Compress, Filesystem, MountOptions};
use butternut_device::Device;
use butternut_mkfs::MkfsOptions;
use butternut_sim::generator::{Generator, Without};
use butternut_sim::library::LibrarySubject;
use butternut_sim::run;
use butternut_sim::script;
use butternut_sim::subject::Subject;
use butternut_sim::volume::{check, fresh};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const VOLUME_BYTES: u64 = 512 << 20;
const OPERATIONS: usize = 600;
/// One operation in so many is one of subvolumes or shared extents.
const SUBVOLUME_ONE_IN: u64 = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(first: u64, few: u64, many: u64) -> std::ops::Range<u64> {
    if let Some(only) = number("BUTTERNUT_SEED") {
        return only..only + 1;
    }
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let count = number("BUTTERNUT_SEEDS").unwrap_or(if is_long { many } else { few });
    first..first + count
}

fn check_seed(seed: u64, compress: Option<Compress>, has_quotas: bool) -> Result<()> {
    let last: Rc<RefCell<Option<Arc<dyn Device>>>> = Rc::default();
    let mut make = || -> Result<Box<dyn Subject>> {
        let device = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
        if has_quotas {
            let filesystem = open(&device)?;
            ensure!(filesystem.enable_quotas()?, "quotas are enabled already");
            filesystem.close()?;
        }
        *last.borrow_mut() = Some(Arc::clone(&device));
        Ok(Box::new(LibrarySubject::open_compressing(device, compress)?))
    };
    // Open files of a deleted subvolume can be read, but not changed or cloned.
    let without = Without { files_of_deleted: true, ..Without::default() };
    let generator = Generator::new(seed).without(without).with_subvolumes(SUBVOLUME_ONE_IN);
    let found = run::check_seed(generator, seed, OPERATIONS, Duration::from_mins(2), &mut make)?;
    if let Some(found) = found {
        anyhow::bail!("{found}");
    }
    let device = last.borrow().clone().context("a volume was made")?;
    check(&device)?;
    let filesystem = open(&device)?;
    ensure!(filesystem.clean_subvolumes()?.is_empty(), "nothing is open");
    if has_quotas {
        filesystem.sync()?;
        let usage = || filesystem.quotas().map(|quotas| quotas.map(|quotas| quotas.groups));
        let have = usage()?;
        filesystem.rescan_quotas()?;
        ensure!(have == usage()?, "the usage {have:?} is not that of a rescan");
    }
    filesystem.close()?;
    check(&device).context("after deleted subvolumes are freed")
}

fn open(device: &Arc<dyn Device>) -> Result<Filesystem> {
    let options = MountOptions::default().read_only(false);
    Ok(Filesystem::open_devices(vec![Arc::clone(device)], &options)?)
}

fn check_seeds(seeds: std::ops::Range<u64>, compress: Option<Compress>, has_quotas: bool) {
    for seed in seeds {
        let checked = check_seed(seed, compress, has_quotas);
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}

/// Checks that the library and the model agree on every outcome of a script.
fn replay(text: &str) {
    let device = fresh(VOLUME_BYTES, &MkfsOptions::default()).expect("a volume");
    let mut subject = LibrarySubject::open(device).expect("a subject");
    let script = script::parse(text).expect("a script");
    let found = run::replay(&mut subject, &script).expect("the subject runs");
    assert!(found.is_none(), "{found:?}");
}

/// To unlink a subvolume fails as for any directory.
#[test]
fn a_subvolume_is_not_unlinked() {
    replay(
        r#"{"subvolume":{"at":"s"}}
{"unlink":{"at":"s"}}"#,
    );
}

/// A deduplication of nothing succeeds, also of a file with and one without checksums.
#[test]
fn a_deduplication_of_no_bytes_succeeds() {
    replay(
        r#"{"create":{"at":"plain","mode":420}}
{"create":{"at":"nocow","mode":420}}
{"set_flags":{"at":"nocow","flags":8388608}}
{"dedupe":{"from":{"at":"plain"},"from_offset":0,"to":{"at":"nocow"},"to_offset":0,"bytes":0}}"#,
    );
}

#[test]
fn subvolumes_agree_with_the_model() {
    check_seeds(seeds(0, 4, 300), None, false);
}

#[test]
fn compressed_subvolumes_agree_with_the_model() {
    let compress = Compress { compressor: "zstd:1".parse().unwrap(), is_forced: true };
    check_seeds(seeds(10_000, 2, 100), Some(compress), false);
}

/// The usage of quota groups is exact at the end.
#[test]
fn subvolumes_with_quotas_agree_with_the_model() {
    check_seeds(seeds(20_000, 2, 100), None, true);
}
