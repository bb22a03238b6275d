//! Compares the model with the kernel's btrfs, which is the reference.
//!
//! `BUTTERNUT_LONG=1` runs a million operations; `BUTTERNUT_SEED=N` runs one seed. Kept scripts are
//! run as well.

use anyhow::{Result, bail};
use butternut_judges::kernel_volume::KernelVolume;
use butternut_judges::subjects::subject;
use butternut_judges::{kept, trial};
use butternut_sim::generator::Generator;
use butternut_sim::run;
use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Operations of each seed: 20,000 in the sample, a million in the long run.
const OPERATIONS_PER_SEED: usize = 4000;
const SHRINKING: Duration = Duration::from_mins(2);

/// Seeds that end with a difference which is the kernel's: in operation 3,759 of this one a file no
/// longer has the property `btrfs.compression` that it inherited, although nothing removed it.
const KERNEL_DIFFERS: [u64; 1] = [242];

/// Seeds whose directories one volume holds.
const SEEDS_PER_VOLUME: usize = 25;

fn main() -> ExitCode {
    let (seeds, volumes) = if is_long() { (0..250, 10) } else { (0..5, 1) };
    let mut trials: Vec<_> = (0..volumes)
        .map(|volume| {
            let seeds: Vec<u64> = seeds.clone().skip(volume * SEEDS_PER_VOLUME).collect();
            let seeds = seeds.into_iter().take(SEEDS_PER_VOLUME);
            let seeds = seeds.filter(|seed| !KERNEL_DIFFERS.contains(seed)).collect();
            trial::trial(&format!("kernel::volume-{volume}"), move || seeded(seeds))
        })
        .collect();
    trials.push(trial::trial("kernel::kept", replayed));
    trial::run(trials)
}

fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

fn seeded(mut seeds: Vec<u64>) -> Result<()> {
    if let Ok(seed) = std::env::var("BUTTERNUT_SEED") {
        seeds = vec![seed.parse()?];
    }
    let volume = Rc::new(RefCell::new(KernelVolume::new(kept::scratch(), "")?));
    for seed in seeds {
        let found = run::check_seed(
            Generator::new(seed),
            seed,
            OPERATIONS_PER_SEED,
            SHRINKING,
            &mut || Ok(Box::new(subject(&volume)?)),
        )?;
        if let Some(found) = found {
            bail!("{}", kept::save("kernel", &found)?);
        }
    }
    Ok(())
}

fn replayed() -> Result<()> {
    let volume = Rc::new(RefCell::new(KernelVolume::new(kept::scratch(), "")?));
    kept::replay(&[], &mut || Ok(Box::new(subject(&volume)?)))
}
