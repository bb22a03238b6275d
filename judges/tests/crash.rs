//! Volumes of the library after a crash and after a run, as the kernel and btrfs-progs see them: a
//! sample of the crashes that `sim` checks.
//!
//! `BUTTERNUT_LONG=1` checks more of them.

use anyhow::{Context, Result, bail, ensure};
use butternut_device::{CrashOptions, Device};
use butternut_format::super_block::{SUPER_BLOCK_BYTES, SuperBlock, copy_offset};
use butternut_judges::crash_image::ImageFile;
use butternut_judges::{kept, trial};
use butternut_mkfs::MkfsOptions;
use butternut_sim::crash::workload::{CrashPlace, Workload};
use butternut_sim::crash::{JudgeOptions, Verdict, judge};
use butternut_sim::generator::{Generator, Without};
use butternut_sim::library::{LibraryEngine, LibrarySubject};
use butternut_sim::operation::Operation;
use butternut_sim::run::Run;
use butternut_sim::volume::{fresh, is_super_block};
use std::process::ExitCode;
use std::sync::Arc;

/// More than 64 MiB, so that the superblock has a second copy.
const VOLUME_BYTES: u64 = 256 << 20;

/// One operation in so many is one of subvolumes or shared extents, in seeds that have these.
const SUBVOLUME_ONE_IN: u64 = 5;

fn main() -> ExitCode {
    let seeds = if is_long() { 40 } else { 3 };
    let mut trials = Vec::new();
    for seed in 0..seeds {
        trials.push(trial::trial(&format!("crashes::seed-{seed}"), move || crashes(seed, 0)));
        trials.push(trial::trial(&format!("runs::seed-{seed}"), move || {
            run(Generator::new(1000 + seed), 2000)
        }));
    }
    for seed in 2000..if is_long() { 2100 } else { 2002 } {
        trials.push(trial::trial(&format!("subvolumes::crashes::seed-{seed}"), move || {
            crashes(seed, SUBVOLUME_ONE_IN)
        }));
        // Open files of a deleted subvolume can be read, but not changed or cloned.
        let without = Without { files_of_deleted: true, ..Without::default() };
        let generator = Generator::new(seed).without(without).with_subvolumes(SUBVOLUME_ONE_IN);
        trials.push(trial::trial(&format!("subvolumes::runs::seed-{seed}"), move || {
            run(generator, 600)
        }));
    }
    trial::run(trials)
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

/// `subvolume_one_in` is that of the workload.
fn crashes(seed: u64, subvolume_one_in: u64) -> Result<()> {
    let crashes = CrashOptions { seed, seeded_per_gap: 4, pivotal: is_super_block };
    // A prime number, so that the sample contains every kind of crash.
    let judging = JudgeOptions { crashes, threads: 1, one_in: 11 };
    let (sync_one_in, going_on, going_on_one_in) = (8, 0, 1);
    let workload = Workload {
        seed,
        steps: 80,
        sync_one_in,
        batch_one_in: 4,
        subvolume_one_in,
        going_on,
        going_on_one_in,
        judging,
    };
    let base = fresh(VOLUME_BYTES, &MkfsOptions::default())?;
    let record = workload.record(&LibraryEngine, base, workload.generator(), None)?;
    let record = record.map_err(|found| anyhow::anyhow!("{found}"))?;
    let trees = record.trees();
    let verdict: Verdict = judge(&record.story, &workload.judging, &|crash, image, allowed| {
        // The kernel mounts by the first superblock only; a torn one would have to be restored.
        if !has_first_super_block(&image) {
            return Ok(());
        }
        let look = || -> Result<()> {
            let file = ImageFile::of(&image, kept::scratch())?;
            file.check()?;
            let have = file.kernel_tree()?;
            let place = CrashPlace { position: crash.position, allowed };
            record.state_of(&have, &place, &trees)?;
            file.check().context("after the kernel's mount")
        };
        look().map_err(|error| format!("{error:#}"))
    });
    ensure!(verdict.failed == 0, "{verdict}");
    ensure!(verdict.states > 4, "{verdict}");
    Ok(())
}

fn has_first_super_block(device: &dyn Device) -> bool {
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    let read = device.read_at(copy_offset(0).unwrap_or(0), &mut bytes);
    read.is_ok() && SuperBlock::check(&bytes, 0).is_ok()
}

/// Runs the library, and compares its tree with what the kernel shows.
fn run(mut generator: Generator, operations: usize) -> Result<()> {
    let device = fresh(512 << 20, &MkfsOptions::default())?;
    let mut subject = LibrarySubject::open(Arc::clone(&device))?;
    let mut run = Run::of(&subject);
    for number in 0..operations {
        let operation = generator.next(&run.model);
        if let Some(found) = run.step(&mut subject, &operation)? {
            bail!("operation {number}: {found}");
        }
    }
    if let Some(found) = run.step(&mut subject, &Operation::Reopen)? {
        bail!("{found}");
    }
    drop(subject);
    let file = ImageFile::of(&*device, kept::scratch())?;
    file.check()?;
    if let Some(text) = run.model.tree().difference(&file.kernel_tree()?) {
        bail!("the kernel shows another tree:\n{text}");
    }
    file.check().context("after the kernel's mount")
}
