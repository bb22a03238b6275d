//! Our mount on a device that stops or delays writes: programs that do not write to the device
//! continue.
//!
//! This process serves the mount on a device whose writes it can stop and delay. With
//! `BUTTERNUT_LATENCIES=1` it prints the latencies of lookups beside a bulk writer.

use anyhow::{Context, Result, ensure};
use butternut::{Filesystem, MountOptions};
use butternut_device::{Counters, Device, DeviceError, FileDevice, OpenDevice};
use butternut_fuse::{Caching, Options, Unmounter};
use butternut_judges::kernel_mount::mount_point;
use butternut_judges::{kept, tool, trial};
use butternut_sys::mapped::Mapped;
use butternut_undo::MountGuard;
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const FILES: usize = 300;
const WRITERS: usize = 12;

/// The time limit of a lookup that needs no device. It only separates success from a hang.
const AT_MOST: Duration = Duration::from_secs(100);

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for (name, caching) in [
        ("write-back", Caching::WriteBack),
        ("write-through", Caching::WriteThrough),
        ("uncached", Caching::Nothing),
    ] {
        trials.push(trial::trial(&format!("looks::{name}"), move || {
            lookups_continue_while_writes_stall(caching)
        }));
        if std::env::var_os("BUTTERNUT_LATENCIES").is_some() {
            trials.push(trial::trial(&format!("latencies::{name}"), move || latencies(caching)));
        }
    }
    trial::run(trials)
}

/// How the device treats writes.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    waiting: usize,
    /// The number of writes and flushes that arrived at the device.
    arrived: usize,
    /// The duration of a write for each MiB.
    per_mib: Duration,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn pass(&self, bytes: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting += 1;
        state.arrived += 1;
        self.changed.notify_all();
        while state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        let per_mib = state.per_mib;
        if per_mib.is_zero() {
            return;
        }
        // One write at a time, like a disk.
        thread::sleep(per_mib * u32::try_from(bytes / 4096).unwrap_or(0) / 256);
    }

    fn wait_until(&self, is_so: impl Fn(&GateState) -> bool) -> Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, AT_MOST, |state| !is_so(state));
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        ensure!(!timeout.timed_out(), "too few writes arrived at the device");
        Ok(())
    }
}

/// A device whose writes pass a gate.
#[derive(Debug)]
struct Gated {
    inner: FileDevice,
    gate: Arc<Gate>,
}

impl Device for Gated {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.gate.pass(memory.len());
        self.inner.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.gate.pass(0);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

/// A mount that this process serves.
struct Served {
    root: PathBuf,
    gate: Arc<Gate>,
    unmounter: Unmounter,
    server: Option<JoinHandle<Result<(), butternut_fuse::FuseError>>>,
    /// Unmounts if the test is killed.
    _guard: MountGuard,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new(caching: Caching, threads: usize) -> Result<Self> {
        let dir = tempfile::tempdir_in(kept::scratch())?;
        let image = dir.path().join("busy.img");
        File::create(&image)?.set_len(2 << 30)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
        let gate = Arc::<Gate>::default();
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let inner = FileDevice::open(&image, &how)?;
        let device = Arc::new(Gated { inner, gate: Arc::clone(&gate) });
        let page_cache_bytes = 32 << 20;
        let options = MountOptions::default().read_only(false).page_cache_bytes(page_cache_bytes);
        let filesystem = Filesystem::open_devices(vec![device], &options)?;
        let root = mount_point("busy")?;
        let options = Options { is_writable: true, caching, threads, ..Options::default() };
        let guard = MountGuard::before_mount(&root)?;
        let mounted = butternut_fuse::mount(filesystem, &root, &options, Box::new(|_| ()))?;
        let unmounter = mounted.unmounter();
        let server = Some(thread::spawn(move || mounted.start()?.wait()));
        Ok(Self { root, gate, unmounter, server, _guard: guard, _dir: dir })
    }

    fn end(mut self) -> Result<()> {
        self.unmounter.unmount()?;
        let server = self.server.take().context("the mount has a server")?;
        server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.gate.set(|state| (state.is_closed, state.per_mib) = (false, Duration::ZERO));
        tool::run("umount", &["--lazy".as_ref(), self.root.as_os_str()]).ok();
        std::fs::remove_dir(&self.root).ok();
    }
}

/// Requests an attribute from the mount itself, whatever the kernel has cached.
fn look_up(path: &Path) -> Result<()> {
    statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)
        .with_context(|| path.display().to_string())?;
    Ok(())
}

/// Writes `bytes` to a file of its own until it is stopped.
fn write(path: &Path, is_direct: bool, stops: &AtomicBool) -> Result<()> {
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(true);
    if is_direct {
        how.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    let mut file = how.open(path)?;
    let (memory, bytes) = (Mapped::anonymous(MIB)?, vec![7; MIB]);
    for at in 0..96_u64 {
        if stops.load(Ordering::Acquire) {
            break;
        }
        if is_direct {
            memory.write_to(&file, at << 20, 0..MIB)?;
        } else {
            file.write_all(&bytes)?;
        }
    }
    file.sync_all()?;
    Ok(())
}

fn writers(root: &Path, count: usize, stops: &Arc<AtomicBool>) -> Vec<JoinHandle<Result<()>>> {
    let one = |number: usize| {
        let (path, stops) = (root.join(format!("bulk-{number}")), Arc::clone(stops));
        thread::spawn(move || write(&path, number.is_multiple_of(2), &stops))
    };
    (0..count).map(one).collect()
}

/// Does something in a thread, and sends a message when it is done.
fn in_thread<R: Send + 'static>(
    root: &Path,
    run: impl FnOnce(&Path) -> Result<R> + Send + 'static,
) -> Receiver<Result<R>> {
    let (sender, done) = channel();
    let root = root.to_path_buf();
    thread::spawn(move || {
        sender.send(run(&root)).ok();
    });
    done
}

fn look_all_up(root: &Path) -> Result<()> {
    for number in 0..FILES {
        look_up(&root.join(format!("f-{number}")))?;
        ensure!(!root.join(format!("no-{number}")).exists());
    }
    ensure!(std::fs::read_dir(root)?.count() >= FILES);
    rustix::fs::statvfs(root)?;
    Ok(())
}

fn lookups_continue_while_writes_stall(caching: Caching) -> Result<()> {
    let threads = 2;
    let served = Served::new(caching, threads)?;
    for number in 0..FILES {
        File::create(served.root.join(format!("f-{number}")))?;
    }
    for number in 0..WRITERS {
        File::create(served.root.join(format!("bulk-{number}")))?;
    }
    File::open(&served.root)?.sync_all()?;
    served.gate.set(|state| state.is_closed = true);
    let stops = Arc::new(AtomicBool::new(false));
    let writing = writers(&served.root, WRITERS, &stops);
    served.gate.wait_until(|state| state.waiting >= threads)?;
    // More than the mount has threads, of the files whose writes stall. They are closed later: with
    // write-back caching, the kernel writes a file back before it closes any handle.
    let opens = (0..WRITERS).map(|number| {
        in_thread(&served.root, move |root| Ok(File::open(root.join(format!("bulk-{number}")))?))
    });
    let opens: Vec<_> = opens.collect();
    let looked_up = in_thread(&served.root, look_all_up).recv_timeout(AT_MOST);
    let opened: Vec<_> = opens.iter().map(|open| open.recv_timeout(AT_MOST)).collect();
    stops.store(true, Ordering::Release);
    served.gate.set(|state| state.is_closed = false);
    looked_up.context("lookups wait for writers")??;
    for one in opened {
        drop(one.context("an open waits for a writer of the file")??);
    }
    for one in writing {
        one.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
    }
    served.end()
}

/// Prints the latencies of lookups and small changes beside one and beside many writers.
fn latencies(caching: Caching) -> Result<()> {
    for count in [0, 1, WRITERS] {
        let served = Served::new(caching, 4)?;
        for number in 0..FILES {
            File::create(served.root.join(format!("f-{number}")))?;
        }
        File::open(&served.root)?.sync_all()?;
        served.gate.set(|state| (state.per_mib, state.arrived) = (Duration::from_millis(50), 0));
        let stops = Arc::new(AtomicBool::new(false));
        let writing = writers(&served.root, count, &stops);
        if count > 0 {
            served.gate.wait_until(|state| state.arrived > 0)?;
            // Wait until the caches are full.
            thread::sleep(Duration::from_secs(3));
        }
        let mut took = [Vec::new(), Vec::new()];
        let begun = Instant::now();
        let mut number = 0;
        while begun.elapsed() < Duration::from_secs(12) {
            let now = Instant::now();
            look_up(&served.root.join(format!("f-{}", number % FILES)))?;
            took[0].push(now.elapsed());
            let now = Instant::now();
            File::create(served.root.join(format!("new-{number}")))?;
            took[1].push(now.elapsed());
            number += 1;
            thread::sleep(Duration::from_millis(2));
        }
        stops.store(true, Ordering::Release);
        served.gate.set(|state| state.per_mib = Duration::ZERO);
        for one in writing {
            one.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        for (what, took) in ["stat", "create"].into_iter().zip(&mut took) {
            took.sort_unstable();
            let at = |part: usize| took.get(took.len() * part / 1000).copied().unwrap_or_default();
            let (half, most, last) = (at(500), at(990), took.last().copied().unwrap_or_default());
            let n = took.len();
            writeln!(
                io::stdout(),
                "{caching:?}, {count} writers: {what} x{n}: p50 {half:?} p99 {most:?} max {last:?}"
            )?;
        }
        served.end()?;
    }
    Ok(())
}
