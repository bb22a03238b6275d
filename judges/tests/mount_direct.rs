//! Our mount with `O_DIRECT` and through the kernel's cache at the same time: every access path
//! sees the data of every other one, and a write clears a file's privileges as on the kernel's
//! btrfs.

#[path = "mount_direct/coherent.rs"]
mod coherent;
#[path = "mount_direct/mixed.rs"]
mod mixed;
#[path = "mount_direct/privileges.rs"]
mod privileges;
#[path = "mount_direct/shared.rs"]
mod shared;

use anyhow::{Context, Result, ensure};
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::Mounted;
use butternut_judges::{kept, tool, trial};
use butternut_sys::mapped::Mapped;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Mount options that let programs bypass the kernel's cache in different ways.
const MOUNTS: [(&str, &str); 3] = [
    ("writeback", "dev,suid,allow_other,writeback"),
    ("default", "dev,suid,allow_other"),
    ("uncached", "dev,suid,allow_other,uncached"),
];

/// The file under test.
const NAME: &str = "file";
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// The size of the file whose cached bytes are counted.
const CACHED: usize = 64 * MIB;
/// The share that the kernel keeps: it may reclaim pages at any time (as DAMON does).
const MOST: usize = CACHED / 8 * 7;

fn main() -> ExitCode {
    let mut trials = vec![
        trial::trial("cache::default", || the_cache_holds("", MOST..=CACHED)),
        trial::trial("cache::writeback", || the_cache_holds("writeback", MOST..=CACHED)),
        trial::trial("cache::uncached", || the_cache_holds("uncached", 0..=0)),
        trial::trial("memory::default", || a_mount_holds_little("")),
        trial::trial("memory::writeback", || a_mount_holds_little("writeback")),
        trial::trial("memory::uncached", || a_mount_holds_little("uncached")),
        trial::trial("times::default", || the_times_follow_a_direct_write("")),
        trial::trial("times::writeback", || the_times_follow_a_direct_write("writeback")),
        trial::trial("times::uncached", || the_times_follow_a_direct_write("uncached")),
        trial::trial("reading::uncached", a_read_only_uncached_mount_shows_everything),
    ];
    for (name, options) in MOUNTS {
        let named = |what: &str| format!("{what}::{name}");
        let mut add = |what: &str, judge: fn(&str) -> Result<()>| {
            trials.push(trial::trial(&named(what), move || judge(options)));
        };
        add("privileges", privileges::go_as_on_the_kernel);
        add("mixed", mixed::all_access_paths_agree);
        add("mixed::at-once", mixed::concurrent_access_agrees);
        add("shared", shared::reads_and_crashes_show_what_their_history_allows);
        add("words", coherent::words_of_a_page_have_their_own_writers);
        add("direct-mappings", coherent::words_survive_mappings_of_direct_handles);
        add("asynchronous", coherent::readers_of_the_cache_see_asynchronous_writes);
        add("asynchronous-beside", coherent::words_survive_asynchronous_writes_beside_them);
        add("changed-beside-stores", coherent::zeroes_and_copies_stay_beside_stores);
        add("changed-beside-direct", coherent::zeroes_stay_beside_stores_and_a_direct_handle);
        add("large", coherent::large_writes_end_beside_stores);
        add("becomes-direct", coherent::a_handle_may_become_direct);
        add("durable", what_was_written_durably_survives);
        add("own-mapping", a_buffer_may_map_the_file);
        add("bad-buffer", a_bad_buffer_leaves_whole_blocks);
        add("append", direct_writes_append);
    }
    trial::run(trials)
}

fn ours(options: &str) -> Result<OurVolume> {
    OurVolume::new(kept::scratch(), options)
}

/// Makes an empty volume of the kernel's, with its directory.
fn theirs() -> Result<(KernelMount, tempfile::TempDir)> {
    let dir = tempfile::tempdir_in(kept::scratch())?;
    let image = dir.path().join("kernel.img");
    File::create(&image)?.set_len(4 << 30)?;
    tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
    Ok((KernelMount::new(&[image], &MountHow::default())?, dir))
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let flags = flags.bits().cast_signed();
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false).custom_flags(flags);
    how.open(path).with_context(|| path.display().to_string())
}

/// Returns memory that is aligned for direct I/O.
fn aligned(bytes: usize, fill: u8) -> Result<Mapped> {
    let memory = Mapped::anonymous(bytes)?;
    memory.put(0, &vec![fill; bytes]);
    Ok(memory)
}

/// Returns bytes that differ between blocks.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at / PAGE * 7 + at) % 251).unwrap_or(0)).collect()
}

fn resident(path: &Path) -> Result<usize> {
    let words = tool::words_and_path("--bytes --raw --noheadings --output RES", path);
    Ok(tool::text("fincore", &words)?.parse()?)
}

fn the_cache_holds(options: &str, bytes: RangeInclusive<usize>) -> Result<()> {
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, pattern(CACHED))?;
    ensure!(std::fs::read(&path)? == pattern(CACHED));
    let found = resident(&path)?;
    ensure!(bytes.contains(&found), "the kernel holds {found} bytes of the file");
    volume.unmount()
}

/// Whether or not the kernel caches a large file, the process of the mount does not.
fn a_mount_holds_little(options: &str) -> Result<()> {
    const ROOM: u64 = 128 << 20;
    let mut volume = ours(options)?;
    let before = resident_set(volume.root()?)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, pattern(512 * MIB))?;
    File::open(&path)?.sync_all()?;
    ensure!(std::fs::read(&path)? == pattern(512 * MIB));
    let grown = resident_set(volume.root()?)?.saturating_sub(before);
    ensure!(grown < ROOM, "the mount's process has grown by {grown} bytes");
    volume.unmount()
}

/// Returns the resident memory of the process that serves a mount.
fn resident_set(root: &Path) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon(root)?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("VmRSS")?;
    Ok(kib.trim().parse::<u64>()? << 10)
}

fn daemon(root: &Path) -> Result<i32> {
    let mut value = [0; 16];
    let bytes = rustix::fs::getxattr(root, "butternut.daemon", &mut value[..])?;
    Ok(std::str::from_utf8(&value[..bytes])?.parse()?)
}

fn the_times_follow_a_direct_write(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let file = open(&volume.root()?.join(NAME), OFlags::DIRECT)?;
    let block = aligned(PAGE, 1)?;
    block.write_to(&file, 0, 0..PAGE)?;
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    file.set_modified(long_ago)?;
    ensure!(file.metadata()?.mtime() == 1000);
    block.write_to(&file, 0, 0..PAGE)?;
    let (mtime, ctime) = (file.metadata()?.mtime(), file.metadata()?.ctime());
    ensure!(mtime > 1000 && ctime >= mtime, "{mtime} {ctime}");
    drop(file);
    volume.remount()?;
    let again = std::fs::metadata(volume.root()?.join(NAME))?;
    ensure!((again.mtime(), again.ctime()) == (mtime, ctime), "the times differ after remounting");
    volume.unmount()
}

fn a_read_only_uncached_mount_shows_everything() -> Result<()> {
    let mut volume = ours("")?;
    let want = pattern(3 * MIB + 100);
    std::fs::write(volume.root()?.join(NAME), &want)?;
    volume.unmount()?;
    volume.set_options("ro,uncached");
    volume.mount()?;
    let path = volume.root()?.join(NAME);
    ensure!(std::fs::read(&path)? == want);
    let mut how = OpenOptions::new();
    let direct = how.read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&path)?;
    let memory = Mapped::anonymous(4 * MIB)?;
    ensure!(memory.read_from(&direct, 0, 0..4 * MIB)? == want.len());
    let mut have = vec![0; want.len()];
    memory.get(0, &mut have);
    ensure!(have == want && resident(&path)? == 0);
    drop(direct);
    volume.unmount()
}

fn what_was_written_durably_survives(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let root = volume.root()?.to_path_buf();
    std::fs::write(root.join(NAME), pattern(8 * PAGE))?;
    File::open(root.join(NAME))?.sync_all()?;
    for (at, flags) in [(1, OFlags::DSYNC), (2, OFlags::SYNC)] {
        let file = open(&root.join(NAME), OFlags::DIRECT | flags)?;
        aligned(PAGE, 0xd0)?.write_to(&file, at * PAGE as u64, 0..PAGE)?;
        // Also past the end of the file.
        aligned(PAGE, 0xd1)?.write_to(&file, (at + 9) * PAGE as u64, 0..PAGE)?;
    }
    let daemon = rustix::process::Pid::from_raw(daemon(&root)?).context("a process")?;
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL)?;
    volume.drop_mount();
    volume.mount()?;
    let mut want = pattern(8 * PAGE);
    want.resize(12 * PAGE, 0);
    for (at, fill) in [(1, 0xd0), (2, 0xd0), (10, 0xd1), (11, 0xd1)] {
        want[at * PAGE..(at + 1) * PAGE].fill(fill);
    }
    ensure!(std::fs::read(volume.root()?.join(NAME))? == want, "durable bytes are lost");
    volume.unmount()
}

fn a_buffer_may_map_the_file(options: &str) -> Result<()> {
    const PAGES: usize = 64;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, pattern(PAGES * PAGE))?;
    let mut want = pattern(PAGES * PAGE);
    let direct = open(&path, OFlags::DIRECT)?;
    let cached = open(&path, OFlags::empty())?;
    for mapped in [Mapped::shared(&cached, PAGES * PAGE)?, Mapped::shared(&direct, PAGES * PAGE)?] {
        // To other blocks, to the same blocks, and to blocks that overlap the source.
        for (from, to, pages) in [(0, 32, 16), (20, 20, 8), (40, 42, 8)] {
            let (at, range) = ((from * PAGE) as u64, to * PAGE..(to + pages) * PAGE);
            ensure!(mapped.read_from(&direct, at, range.clone())? == pages * PAGE);
            // A read that overlaps its buffer sees old or new bytes, as on a disk.
            if from + pages <= to || from == to {
                want.copy_within(from * PAGE..(from + pages) * PAGE, to * PAGE);
            } else {
                mapped.get(range.start, &mut want[range]);
            }
        }
        for (from, to, pages) in [(0, 50, 8), (4, 4, 4)] {
            let range = from * PAGE..(from + pages) * PAGE;
            ensure!(mapped.write_to(&direct, (to * PAGE) as u64, range.clone())? == pages * PAGE);
            want.copy_within(range, to * PAGE);
        }
        ensure!(std::fs::read(&path)? == want, "the file holds other bytes");
        let mut seen = vec![0; want.len()];
        mapped.get(0, &mut seen);
        ensure!(seen == want, "the mapping shows other bytes");
    }
    drop((direct, cached));
    volume.remount()?;
    ensure!(std::fs::read(volume.root()?.join(NAME))? == want);
    volume.unmount()
}

fn a_bad_buffer_leaves_whole_blocks(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, pattern(16 * PAGE))?;
    let file = open(&path, OFlags::DIRECT)?;
    for good in [0, 1, 5] {
        let memory = aligned(8 * PAGE, 0xee)?;
        memory.protect_none(good * PAGE..8 * PAGE)?;
        let printed = memory.write_to(&file, 0, 0..8 * PAGE);
        let written = printed.as_ref().map_or(0, |written| *written);
        ensure!(written <= good * PAGE && written.is_multiple_of(PAGE), "{good}: {printed:?}");
        ensure!(good > 0 || printed.is_err(), "{printed:?}");
        let mut want = pattern(16 * PAGE);
        want[..written].fill(0xee);
        ensure!(std::fs::read(&path)? == want, "{good}: the file does not match {printed:?}");
        let into = memory.read_from(&file, 0, 0..8 * PAGE);
        ensure!(into.as_ref().map_or(0, |read| *read) <= good * PAGE, "{into:?}");
        file.write_all_at(&pattern(16 * PAGE), 0)?;
    }
    drop(file);
    volume.unmount()
}

fn direct_writes_append(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    let direct = open(&path, OFlags::DIRECT | OFlags::APPEND)?;
    let cached = open(&path, OFlags::APPEND)?;
    let mut want = Vec::new();
    for round in 0..40_u8 {
        // Cached appends have any size; a direct one starts where the last cached one ended.
        let some = vec![round; 100 + usize::from(round) * 37];
        (&cached).write_all(&some)?;
        aligned(PAGE, 0x80 | round)?.write_to(&direct, 0, 0..PAGE)?;
        want.extend_from_slice(&some);
        want.extend_from_slice(&[0x80 | round; PAGE]);
        ensure!(std::fs::metadata(&path)?.len() == want.len() as u64);
    }
    ensure!(std::fs::read(&path)? == want);
    drop((direct, cached));
    volume.remount()?;
    ensure!(std::fs::read(volume.root()?.join(NAME))? == want);
    volume.unmount()
}
