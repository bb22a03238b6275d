//! Rows about a commit: its device time and its CPU time.
//!
//! ```text
//! wall   time of the sync: tree blocks are written and flushed, then the superblock
//! CPU    time of the whole process during the sync; a faster device does not shorten it
//! raw    wall time of the same bytes in as many writes to the bare device, and two flushes
//! ```

use crate::report::{Report, median};
use crate::rig::Rig;
use crate::scratch::Scratch;
use anyhow::Result;
use butternut::NewInode;
use butternut_sys::buffer::Buffer;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Items that creating one file adds: `INODE_ITEM`, `INODE_REF`, `DIR_ITEM` and `DIR_INDEX`.
const ITEMS_OF_A_FILE: u32 = 4;

/// Cost of one commit.
struct Commit {
    wall: Duration,
    cpu: Duration,
    writes: u64,
    bytes: u64,
    flushes: u64,
}

pub(crate) fn rows(rig: &Rig, scratch: &Scratch, report: &mut Report) -> Result<()> {
    let items = rig.size.names;
    let name = format!("commit of {items} dirty items");
    if !report.is_selected(&name) {
        return Ok(());
    }
    let files = items / ITEMS_OF_A_FILE;
    let commits = RefCell::new(vec![library(scratch, files)?]);
    report.row(
        &format!("{name}: library, raw, kernel"),
        "ms",
        rig.size.repeats,
        &mut [
            ("library", &mut || {
                let commit = library(scratch, files)?;
                let wall = milliseconds(commit.wall);
                commits.borrow_mut().push(commit);
                Ok(wall)
            }),
            ("raw", &mut || {
                let commits = commits.borrow();
                let of = |value: fn(&Commit) -> u64| commits.last().map_or(0, value);
                raw(scratch, of(|commit| commit.bytes), of(|commit| commit.writes))
            }),
            ("kernel", &mut || kernel(scratch, files)),
        ],
    )?;
    let commits = commits.into_inner();
    let middle = |value: fn(&Commit) -> f64| median(&commits.iter().map(value).collect::<Vec<_>>());
    let text = format!(
        "{:.1} ms wall, {:.1} ms CPU; {:.0} writes, {:.2} MB in all; {:.0} flushes",
        middle(|commit| milliseconds(commit.wall)),
        middle(|commit| milliseconds(commit.cpu)),
        middle(|commit| commit.writes as f64),
        middle(|commit| commit.bytes as f64) / 1e6,
        middle(|commit| commit.flushes as f64),
    );
    report.value(&name, &text)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(now.tv_sec.unsigned_abs(), nanos)
}

fn library(scratch: &Scratch, files: u32) -> Result<Commit> {
    let filesystem = scratch.library()?;
    let dir = filesystem.mkdir(filesystem.root(), b"dir", &NewInode::new(0o755))?;
    filesystem.sync()?;
    for number in 0..files {
        filesystem.create(dir, format!("file-{number:06}").as_bytes(), &NewInode::new(0o644))?;
    }
    let before = filesystem.counters();
    let (start, cpu) = (Instant::now(), cpu_time());
    filesystem.sync()?;
    let (wall, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu));
    let after = filesystem.counters();
    Ok(Commit {
        wall,
        cpu,
        writes: after.device_writes - before.device_writes,
        bytes: after.device_bytes_written - before.device_bytes_written,
        flushes: after.device_flushes - before.device_flushes,
    })
}

fn raw(scratch: &Scratch, bytes: u64, writes: u64) -> Result<f64> {
    scratch.reformat()?;
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    let device = OpenOptions::new().write(true).custom_flags(direct).open(&scratch.device)?;
    let each = (bytes / writes.max(1)).next_multiple_of(4096);
    let block = Buffer::zeroed(usize::try_from(each)?);
    let start = Instant::now();
    for at in (0..bytes).step_by(block.len()) {
        device.write_all_at(&block, (64 << 20) + at)?;
    }
    device.sync_data()?;
    device.sync_data()?;
    Ok(milliseconds(start.elapsed()))
}

fn kernel(scratch: &Scratch, files: u32) -> Result<f64> {
    let mount = scratch.kernel()?;
    let dir = mount.root().join("dir");
    std::fs::create_dir(&dir)?;
    sync(mount.root())?;
    for number in 0..files {
        File::create(dir.join(format!("file-{number:06}")))?;
    }
    let start = Instant::now();
    sync(mount.root())?;
    Ok(milliseconds(start.elapsed()))
}

fn sync(root: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(&File::open(root)?)?)
}
