//! Databases on our mount keep every acknowledged transaction in a crash.
//!
//! ```text
//! clients -> database -> our mount -> crash images -> the kernel's replay -> database: all rows?
//!    |                                            \-> our replay -> database: all rows?
//!    \-> acknowledged transactions, outside the volume
//! ```
//!
//! A crash image is taken when a seeded number of transactions is acknowledged, in one of two ways
//! ([`crashes`]): a copy of the image of a mount whose process is stopped or killed, or a power cut
//! of a device that records its writes. In each image, `btrfs check` finds nothing before and after
//! the replay, the database finds no damage, all acknowledged transactions are there, and none is
//! there in part ([`transactions`]).
//!
//! `BUTTERNUT_LONG=1` takes more images, in more runs; `BUTTERNUT_SEED=N` makes one long run for
//! each database and kind of crash. A long run prints how syncs became durable.

#![allow(clippy::print_stdout, reason = "a long run prints what it measured")]

mod crashes;
mod judged;
mod postgres;
mod rocksdb;
mod sqlite;
mod transactions;
mod workload;

use anyhow::{Context, Result, ensure};
use butternut_fuse::Caching;
use butternut_judges::{kept, trial};
use butternut_sim::random::Random;
use crashes::{CrashingVolume, Daemon, MountKind, Recorded, Syncs};
use postgres::Postgres;
use rocksdb::RocksDb;
use sqlite::Sqlite;
use std::path::Path;
use std::process::ExitCode;
use workload::Database;

const VOLUME_BYTES: u64 = 1 << 30;

/// The effort of a run.
#[derive(Clone, Copy)]
struct Effort {
    crashes: u64,
    /// The maximum number of transactions between two crashes.
    transactions_max: u64,
    is_reported: bool,
}

type Make = fn() -> Result<Box<dyn Database>>;

const DATABASES: [(&str, Make); 5] = [
    ("sqlite-delete", || Ok(Box::new(sqlite("delete", "extra", 0)))),
    ("sqlite-delete-full", || Ok(Box::new(sqlite("delete", "full", 1)))),
    ("sqlite-wal", || Ok(Box::new(sqlite("wal", "full", 0)))),
    ("postgres", || Ok(Box::new(Postgres::new()?))),
    ("rocksdb", || Ok(Box::new(RocksDb::new()?))),
];

/// What runs without `BUTTERNUT_LONG`.
const SHORT: [(&str, &str); 7] = [
    ("killed", "sqlite-delete"),
    ("killed", "sqlite-wal"),
    ("killed", "postgres"),
    ("killed", "rocksdb"),
    ("power-cut", "sqlite-delete"),
    ("power-cut", "sqlite-wal"),
    ("power-cut", "rocksdb"),
];

fn sqlite(journal: &'static str, synchronous: &'static str, lost_max: u64) -> Sqlite {
    Sqlite { journal, synchronous, lost_max }
}

fn main() -> ExitCode {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None if is_long => 0..12,
        None => 0..1,
    };
    let effort = if is_long || only.is_some() {
        Effort { crashes: 6, transactions_max: 400, is_reported: true }
    } else {
        Effort { crashes: 2, transactions_max: 60, is_reported: false }
    };
    let mut trials = Vec::new();
    for (number, (name, make)) in DATABASES.into_iter().enumerate() {
        for (kind, is_recorded) in [("killed", false), ("power-cut", true)] {
            if !is_long && only.is_none() && !SHORT.contains(&(kind, name)) {
                continue;
            }
            let seeds = seeds.clone();
            trials.push(trial::trial(&format!("{kind}/{name}"), move || {
                let database = make()?;
                seeds.clone().try_for_each(|seed| {
                    let own = seed * 100 + number as u64 * 10 + u64::from(is_recorded);
                    run(&*database, own, is_recorded, effort)
                        .with_context(|| format!("BUTTERNUT_SEED={seed}"))
                })
            }));
        }
    }
    trial::run(trials)
}

fn run(database: &dyn Database, seed: u64, is_recorded: bool, effort: Effort) -> Result<()> {
    let mut random = Random::new(seed);
    let caching = [Caching::WriteThrough, Caching::WriteBack, Caching::Nothing];
    let kind = MountKind { caching: *random.pick(&caching), is_compressed: random.one_in(2) };
    let prefix = "butternut-judge-databases-";
    let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(kept::scratch())?;
    // Other users pass through it to their sockets.
    let outside = tempfile::Builder::new().prefix(prefix).tempdir()?;
    std::fs::set_permissions(outside.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut volume: Box<dyn CrashingVolume> = if is_recorded {
        Box::new(Recorded::new(dir.path(), VOLUME_BYTES, kind, seed)?)
    } else {
        Box::new(Daemon::new(dir.path(), VOLUME_BYTES, kind)?)
    };
    let crashed = crash(database, &mut random, &mut volume, outside.path(), effort);
    let (syncs, workload) = crashed.with_context(|| format!("{kind:?}"))?;
    let acknowledged: u64 = workload.acknowledged()?.iter().sum();
    if effort.is_reported {
        println!("{kind:?}: {acknowledged} transactions, syncs: {syncs:?}");
    }
    for crashed in &volume.end(workload)? {
        let found = judged::judge(database, crashed, outside.path())
            .with_context(|| format!("{kind:?}, {}", crashed.how))?;
        if effort.is_reported {
            println!("{}: {found:?} are there", crashed.how);
        }
    }
    most_are_fast(&syncs)
}

/// Runs the workload with all crashes but the last. Returns the syncs of the workload.
fn crash(
    database: &dyn Database,
    random: &mut Random,
    volume: &mut Box<dyn CrashingVolume>,
    outside: &Path,
    effort: Effort,
) -> Result<(Syncs, workload::Workload)> {
    let root = volume.root().to_path_buf();
    database.create(&root, outside).context("creating the database")?;
    commit(&root)?;
    let before = volume.syncs()?;
    // More transactions than there are before the last crash.
    let count = 1000 + 10 * effort.crashes * effort.transactions_max;
    let mut workload = database.start(&root, outside, count)?;
    let mut wanted = 0;
    for number in 0..effort.crashes {
        wanted = workload.acknowledged()?.iter().sum::<u64>().max(wanted);
        wanted += 1 + random.below(effort.transactions_max);
        workload.wait_for(wanted)?;
        if number + 1 < effort.crashes {
            volume.crash(&workload)?;
            // Some crashes are after a commit, some have only a log.
            if random.one_in(3) {
                commit(&root)?;
            }
        }
    }
    let mut syncs = volume.syncs()?;
    for (how, count) in &mut syncs {
        *count -= before.get(how).unwrap_or(&0);
    }
    Ok((syncs, workload))
}

/// Commits everything. The kernel does not pass syncfs(2) on to a mount of this kind.
fn commit(root: &Path) -> Result<()> {
    let mut value = [0; 64];
    rustix::fs::getxattr(root, butternut_fuse::SYNC_XATTR, &mut value[..])?;
    Ok(())
}

/// Commits of syncs by design: new chunks, and features, which a volume gets once.
fn most_are_fast(syncs: &Syncs) -> Result<()> {
    let commits = syncs.iter().filter(|(how, _)| how.starts_with("commit:"));
    let commits: u64 = commits.map(|(_, count)| count).sum();
    let fast = syncs.get("fast").copied().unwrap_or(0);
    ensure!(commits <= 8 + fast / 20, "{commits} syncs committed, {fast} did not: {syncs:?}");
    Ok(())
}
