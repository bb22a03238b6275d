//! Writes to our mount: by the model, by a tour of all operations beside the kernel's btrfs, by fsx
//! and pjdfstest, and by a process that is killed. Afterwards btrfs-progs finds no damage.

use anyhow::{Context, Result, anyhow, bail, ensure};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::{Mounted, subject};
use butternut_judges::{kept, library, tool, trial, walk};
use butternut_sim::generator::{Generator, Without};
use butternut_sim::run;
use butternut_sim::together::mounted;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

const SHRINKING: Duration = Duration::from_mins(1);

/// Seeds of the model on one volume, and operations of each seed: 5,000 operations for each volume.
/// `BUTTERNUT_LONG` uses forty volumes.
const SEEDS_PER_VOLUME: u64 = 5;
const OPERATIONS_PER_SEED: usize = 1000;
const SUBVOLUME_SEEDS: u64 = 3;
const SUBVOLUME_OPERATIONS: usize = 600;

/// One operation in so many is one of subvolumes or shared extents, in seeds that have these.
const SUBVOLUME_ONE_IN: u64 = 5;

/// Seeds and operations of fsx.
const FSX_SEEDS: u32 = 4;
const FSX_OPERATIONS: u32 = 3000;

/// A shell script with one of each operation, whose results are compared.
const TOUR: &str = include_str!("mount_rw/tour.sh");

fn main() -> ExitCode {
    let mut trials = vec![
        trial::trial("model::kept", the_mount_agrees_with_kept_scripts),
        trial::trial("threads", threads_see_what_they_wrote_cached_and_direct),
        trial::trial("tour", a_tour_leaves_what_the_kernel_leaves),
        trial::trial("killed", what_was_synced_survives_a_killed_process),
        trial::trial("fsx", || fsx_finds_nothing("")),
        trial::trial("fsx::zlib", || fsx_finds_nothing("compress-force=zlib:1")),
        trial::trial("fsx::lzo", || fsx_finds_nothing("compress-force=lzo")),
        trial::trial("fsx::zstd", || fsx_finds_nothing("compress-force=zstd:1")),
        // The model knows the algorithm of `chattr +c`.
        trial::trial("model::compression", || {
            let seeds = 5000..5000 + SEEDS_PER_VOLUME;
            the_mount_agrees_with_the_model("dev,suid,compress-force=zlib:1", seeds)
        }),
        trial::trial("pjdfstest", pjdfstest_finds_what_it_finds_on_btrfs),
    ];
    trials.extend((0..volumes()).map(|volume| {
        let seeds = volume * SEEDS_PER_VOLUME..(volume + 1) * SEEDS_PER_VOLUME;
        let name = format!("model::volume-{volume}");
        trial::trial(&name, move || the_mount_agrees_with_the_model("dev,suid", seeds))
    }));
    trials.extend((0..volumes()).map(|volume| {
        let seeds = volume * SUBVOLUME_SEEDS..(volume + 1) * SUBVOLUME_SEEDS;
        let name = format!("subvolumes::volume-{volume}");
        trial::trial(&name, move || the_mount_agrees_in_subvolumes(seeds))
    }));
    trial::run(trials)
}

/// Returns the number of volumes: `BUTTERNUT_MODEL_VOLUMES=N` sets it; 200 make a million
/// operations.
fn volumes() -> u64 {
    let wanted = std::env::var("BUTTERNUT_MODEL_VOLUMES").ok().and_then(|text| text.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    wanted.unwrap_or(if is_long { 40 } else { 1 })
}

fn the_mount_agrees_with_the_model(options: &str, seeds: Range<u64>) -> Result<()> {
    let volume = Rc::new(RefCell::new(OurVolume::new(kept::scratch(), options)?));
    // The kernel does not see flags that forbid changes, so it may return another error first.
    let without = Without { guard_flags: true, ..Without::default() };
    for seed in seeds {
        let generator = Generator::new(seed).without(without);
        let found = run::check_seed(generator, seed, OPERATIONS_PER_SEED, SHRINKING, &mut || {
            Ok(Box::new(subject(&volume)?))
        })?;
        if let Some(found) = found {
            bail!("{}", kept::save("mount", &found)?);
        }
    }
    volume.borrow_mut().unmount()
}

/// Runs with subvolumes, snapshots, deduplications and defragmentation.
fn the_mount_agrees_in_subvolumes(seeds: Range<u64>) -> Result<()> {
    let volume = Rc::new(RefCell::new(OurVolume::new(kept::scratch(), "dev,suid")?));
    let without =
        Without { guard_flags: true, clones: true, files_of_deleted: true, ..Without::default() };
    for seed in seeds {
        let generator = Generator::new(seed).without(without).with_subvolumes(SUBVOLUME_ONE_IN);
        let found = run::check_seed(generator, seed, SUBVOLUME_OPERATIONS, SHRINKING, &mut || {
            Ok(Box::new(subject(&volume)?))
        })?;
        if let Some(found) = found {
            bail!("{}", kept::save("mount-subvolumes", &found)?);
        }
    }
    volume.borrow_mut().unmount()?;
    library::check(volume.borrow().path())
}

fn the_mount_agrees_with_kept_scripts() -> Result<()> {
    let volume = Rc::new(RefCell::new(OurVolume::new(kept::scratch(), "dev,suid")?));
    // The kernel does not see flags that forbid changes, so it returns another error first.
    kept::replay(&["order-of-errors"], &mut || Ok(Box::new(subject(&volume)?)))?;
    volume.borrow_mut().unmount()
}

/// Threads use the kernel's cache and `O_DIRECT` on the same files.
fn threads_see_what_they_wrote_cached_and_direct() -> Result<()> {
    let (seeds, operations) = if volumes() > 1 { (0..40, 3000) } else { (0..2, 500) };
    let mut volume = OurVolume::new(kept::scratch(), "dev,suid")?;
    for seed in seeds {
        let name = format!("threads-{seed}");
        let root = volume.root()?.join(&name);
        std::fs::create_dir(&root)?;
        let own =
            mounted::run(&root, seed, 4, operations).with_context(|| format!("seed {seed}"))?;
        mounted::compare(&root, &own).with_context(|| format!("seed {seed}"))?;
        volume.unmount()?;
        volume.mount()?;
        let root = volume.root()?.join(&name);
        mounted::compare(&root, &own).with_context(|| format!("seed {seed}, mounted again"))?;
    }
    volume.unmount()
}

/// The two tours do not run at the same time.
const EXCUSED: [Field; 6] =
    [Field::Ino, Field::Btime, Field::Atime, Field::Mtime, Field::Ctime, Field::Blocks];

fn a_tour_leaves_what_the_kernel_leaves() -> Result<()> {
    let dir = tempfile::tempdir_in(kept::scratch())?;
    let image = dir.path().join("kernel.img");
    std::fs::File::create(&image)?.set_len(4 << 30)?;
    tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
    let theirs = KernelMount::new(&[image], &MountHow::default())?;
    let mut volume = OurVolume::new(kept::scratch(), "dev,suid,allow_other")?;
    let printed = [theirs.root(), volume.root()?].map(|root| {
        let words: [&OsStr; 4] = ["-c".as_ref(), TOUR.as_ref(), "tour".as_ref(), root.as_os_str()];
        tool::text("bash", &words)
    });
    let [wanted, printed] = printed;
    ensure!(wanted.as_ref().ok() == printed.as_ref().ok(), "{wanted:?} {printed:?}");
    let want = walk::walk(theirs.root())?;
    let have = walk::walk(volume.root()?)?;
    same("kernel", &want, "our mount", &have, &EXCUSED)?;
    volume.unmount()?;
    let kernel = volume.kernel()?;
    let after = walk::walk(kernel.root())?;
    kernel.unmount()?;
    volume.mount()?;
    let again = walk::walk(volume.root()?)?;
    same("the kernel, afterwards", &after, "our mount, again", &again, &[Field::Ino])?;
    // The kernel caches a file's attributes, and does not see when its flags were changed.
    same("our mount", &have, "our mount, again", &again, &[Field::Ctime])?;
    volume.unmount()
}

fn same(
    name: &str,
    want: &butternut_judges::manifest::Manifest,
    other: &str,
    have: &butternut_judges::manifest::Manifest,
    excused: &[Field],
) -> Result<()> {
    let want = Side { name, manifest: want };
    let have = Side { name: other, manifest: have };
    compare(want, have, excused).map(drop).map_err(|text| anyhow!("{text}"))
}

fn what_was_synced_survives_a_killed_process() -> Result<()> {
    let mut volume = OurVolume::new(kept::scratch(), "")?;
    let root = volume.root()?.to_path_buf();
    let synced = vec![0x5a; 3 << 20];
    for number in 0..50 {
        std::fs::write(root.join(format!("synced-{number}")), &synced[..number << 14])?;
    }
    let mut file = std::fs::File::create(root.join("large"))?;
    file.write_all(&synced)?;
    file.sync_all()?;
    for number in 0..50 {
        std::fs::remove_file(root.join(format!("synced-{number}")))?;
        std::fs::write(root.join(format!("later-{number}")), &synced)?;
    }
    let mut value = [0; 16];
    let bytes = rustix::fs::getxattr(&root, "butternut.daemon", &mut value[..])?;
    let daemon: i32 = std::str::from_utf8(&value[..bytes])?.parse()?;
    let daemon = rustix::process::Pid::from_raw(daemon).context("a process")?;
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL)?;
    // No process serves the mount any more; as in a crash, the data that the kernel cached is lost.
    drop(file.write_all_at(b"x", 0));
    drop(file);
    volume.drop_mount();
    volume.check()?;
    volume.mount()?;
    ensure!(std::fs::read(volume.root()?.join("large"))? == synced, "synced bytes are lost");
    volume.unmount()
}

/// Returns the path of a tool that `scripts/setup` builds.
fn tool_path(name: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin").join(name);
    if tools.exists() { tools } else { name.into() }
}

fn fsx_finds_nothing(options: &str) -> Result<()> {
    let mut volume = OurVolume::new(kept::scratch(), options)?;
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/fsx.toml");
    for seed in 1..=FSX_SEEDS {
        let file = volume.root()?.join(format!("fsx-{seed}"));
        let words = format!("-q -S {seed} -N {FSX_OPERATIONS} -P /tmp -f");
        let mut args: Vec<_> = words.split(' ').map(std::ffi::OsString::from).collect();
        args.extend([config.clone().into(), file.into()]);
        tool::run(&tool_path("fsx").to_string_lossy(), &args)?;
    }
    volume.unmount()
}

fn pjdfstest_finds_what_it_finds_on_btrfs() -> Result<()> {
    let mut volume = OurVolume::new(kept::scratch(), "dev,suid,allow_other")?;
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/pjdfstest.toml");
    std::fs::set_permissions(volume.root()?, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let args = ["-c".as_ref(), config.as_os_str(), "-p".as_ref(), volume.root()?.as_os_str()];
    let ran = tool::output(&tool_path("pjdfstest").to_string_lossy(), &args)?;
    let printed = String::from_utf8_lossy(&ran.stdout);
    ensure!(printed.contains(" passed"), "pjdfstest ran nothing: {printed}");
    ensure!(ran.status.success(), "{printed}");
    volume.unmount()
}
