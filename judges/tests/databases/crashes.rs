//! Volumes that databases run on, and images of them after a crash.
//!
//! [`Daemon`] is a mount by the `butternut` command. For a crash image its process is stopped, and
//! the image is copied; at the end it is killed. The image has all writes that the process has
//! submitted.
//!
//! [`Recorded`] is a mount that threads of this process serve, from a device that records its
//! writes. Its crashes are those of a power cut: writes after the last flush are lost, torn and
//! reordered.

use crate::transactions::Acknowledged;
use crate::workload::{Workload, wait_until};
use anyhow::{Context, Result, ensure};
use butternut::{Compress, Filesystem, MountOptions};
use butternut_device::{CrashOptions, Crashes, Device, Fate, Recording, RecordingDevice};
use butternut_fuse::{Caching, Options, Serving};
use butternut_judges::crash_image::ImageFile;
use butternut_judges::fuse_mount::FuseMount;
use butternut_judges::kernel_mount::mount_point;
use butternut_judges::{command, stopped, tool};
use butternut_mkfs::MkfsOptions;
use butternut_sim::random::Random;
use butternut_sim::volume::{fresh, is_super_block};
use butternut_undo::MountGuard;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Crashes of a recording for each gap between two flushes, beside those of the superblock.
const SEEDED_PER_GAP: u32 = 4;

/// How a volume is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountKind {
    pub(crate) caching: Caching,
    pub(crate) is_compressed: bool,
}

impl MountKind {
    /// Returns the options for the command line.
    fn options(self) -> String {
        let caching = match self.caching {
            Caching::WriteThrough => "",
            Caching::WriteBack => ",writeback",
            Caching::Nothing => ",uncached",
        };
        let compress = if self.is_compressed { ",compress=zstd" } else { "" };
        format!("allow_other{caching}{compress}")
    }
}

/// An image after a crash.
pub(crate) struct Crashed {
    /// How it was made, for reports.
    pub(crate) how: String,
    pub(crate) image: PathBuf,
    pub(crate) acknowledged: Acknowledged,
}

/// Syncs of files, by how they became durable: "fast", and the reasons of commits.
pub(crate) type Syncs = BTreeMap<String, u64>;

/// A mounted volume that crashes.
pub(crate) trait CrashingVolume {
    fn root(&self) -> &Path;

    fn syncs(&self) -> Result<Syncs>;

    /// Takes an image of a crash at this instant.
    fn crash(&mut self, workload: &Workload) -> Result<()>;

    /// Crashes for the last time, while the workload runs, and returns all images.
    fn end(self: Box<Self>, workload: Workload) -> Result<Vec<Crashed>>;
}

/// Reads the syncs from statistics in JSON.
fn syncs_of(stats: &serde_json::Value) -> Result<Syncs> {
    let groups = stats.as_object().context("statistics")?.values();
    let mut groups = groups.filter(|group| group["fsync_fast"].is_u64());
    let group = groups.next().context("statistics without syncs")?;
    let commits = group["fsync_commit"].as_object().context("syncs that commit")?;
    let commits = commits.iter().map(|(reason, count)| (format!("commit:{reason}"), count));
    let full = group["fsync_full"].as_object().context("syncs of whole files")?;
    let full = full.iter().map(|(reason, count)| (format!("full:{reason}"), count));
    let fast = std::iter::once(("fast".to_owned(), &group["fsync_fast"]));
    let counts = fast.chain(full).chain(commits);
    Ok(counts.map(|(how, count)| (how, count.as_u64().unwrap_or(0))).collect())
}

/// A mount by the command.
pub(crate) struct Daemon {
    mount: FuseMount,
    dir: PathBuf,
    image: PathBuf,
    crashed: Vec<Crashed>,
}

impl Daemon {
    pub(crate) fn new(dir: &Path, bytes: u64, kind: MountKind) -> Result<Self> {
        let image = dir.join("volume.img");
        std::fs::File::create(&image)?.set_len(bytes)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
        let mount = FuseMount::with(&[image.clone().into()], &kind.options())?;
        Ok(Self { mount, dir: dir.to_path_buf(), image, crashed: Vec::new() })
    }

    fn process(&self) -> Result<Pid> {
        Pid::from_raw(i32::try_from(self.mount.process())?).context("a process")
    }
}

impl CrashingVolume for Daemon {
    fn root(&self) -> &Path {
        self.mount.root()
    }

    fn syncs(&self) -> Result<Syncs> {
        let args = ["--json".into(), "stats".into(), self.root().into()];
        syncs_of(&serde_json::from_slice(&command::run(&args)?)?)
    }

    fn crash(&mut self, workload: &Workload) -> Result<()> {
        let acknowledged = workload.acknowledged()?;
        let image = self.dir.join(format!("stopped-{}.img", self.crashed.len()));
        stopped::copy_image(self.mount.process(), &self.image, &image)?;
        let how = format!("stopped at {acknowledged:?}");
        self.crashed.push(Crashed { how, image, acknowledged });
        Ok(())
    }

    fn end(self: Box<Self>, workload: Workload) -> Result<Vec<Crashed>> {
        let acknowledged = workload.acknowledged()?;
        let process = self.process()?;
        kill_process(process, Signal::KILL)?;
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        wait_until("the end of a killed process", || {
            let stat = std::fs::read_to_string(&stat);
            Ok(stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z ")))
        })?;
        let Self { mount, image, mut crashed, .. } = *self;
        drop(workload);
        drop(mount);
        let how = format!("killed at {acknowledged:?}");
        crashed.push(Crashed { how, image, acknowledged });
        Ok(crashed)
    }
}

/// A mount that this process serves.
pub(crate) struct Recorded {
    root: PathBuf,
    device: Arc<RecordingDevice>,
    filesystem: Filesystem,
    guard: MountGuard,
    serving: Serving,
    dir: PathBuf,
    seed: u64,
    /// Positions in the recording, and what was acknowledged before.
    marks: Vec<(usize, Acknowledged)>,
    /// Dropped after the mount.
    _mount_point: MountPoint,
}

/// A directory to mount on, which is removed when this is dropped.
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

impl Recorded {
    pub(crate) fn new(dir: &Path, bytes: u64, kind: MountKind, seed: u64) -> Result<Self> {
        let device = Arc::new(RecordingDevice::new(fresh(bytes, &MkfsOptions::default())?));
        let compressor = kind.is_compressed.then(|| "zstd".parse()).transpose()?;
        let compress = compressor.map(|compressor| Compress { compressor, is_forced: false });
        let options = MountOptions::default().read_only(false).compress(compress);
        let devices: Vec<Arc<dyn Device>> = vec![Arc::<RecordingDevice>::clone(&device)];
        let filesystem = Filesystem::open_devices(devices, &options)?;
        let root = mount_point("recorded")?;
        let own = MountPoint(root.clone());
        let guard = MountGuard::before_mount(&root)?;
        let options = Options {
            is_writable: true,
            allow_other: true,
            caching: kind.caching,
            ..Options::default()
        };
        // An error makes the volume read-only, and the clients fail.
        let report = Box::new(|_: &(dyn std::error::Error + 'static)| {});
        let mounted = butternut_fuse::mount(filesystem.clone(), &root, &options, report)?;
        let serving = mounted.start()?;
        let (dir, marks) = (dir.to_path_buf(), Vec::new());
        Ok(Self { root, device, filesystem, guard, serving, dir, seed, marks, _mount_point: own })
    }
}

impl CrashingVolume for Recorded {
    fn root(&self) -> &Path {
        &self.root
    }

    fn syncs(&self) -> Result<Syncs> {
        let stats = self.filesystem.stats();
        syncs_of(&serde_json::from_str(&stats.to_json())?)
    }

    fn crash(&mut self, workload: &Workload) -> Result<()> {
        let acknowledged = workload.acknowledged()?;
        self.marks.push((self.device.position(), acknowledged));
        Ok(())
    }

    fn end(mut self: Box<Self>, workload: Workload) -> Result<Vec<Crashed>> {
        self.crash(&workload)?;
        let recording = self.device.recording();
        drop(workload);
        let Self { filesystem, guard, serving, dir, seed, marks, .. } = *self;
        drop(filesystem);
        guard.unmount()?;
        serving.wait()?;
        cut(&recording, seed, marks, &dir)
    }
}

/// Makes the image of a power cut after each mark: one of those in the gap between two flushes that
/// contains the mark, but not before it.
fn cut(
    recording: &Recording,
    seed: u64,
    marks: Vec<(usize, Acknowledged)>,
    dir: &Path,
) -> Result<Vec<Crashed>> {
    let options = CrashOptions { seed, seeded_per_gap: SEEDED_PER_GAP, pivotal: is_super_block };
    let mut crashes = Crashes::new(recording.clone(), options).peekable();
    let mut random = Random::new(seed);
    let mut images = Vec::new();
    for (mark, acknowledged) in marks {
        let mut candidates = Vec::new();
        while let Some(crash) = crashes.next() {
            let crash = crash?;
            if crash.position >= mark {
                candidates.push(crash);
            }
            // The crashes of a gap begin with the one that loses nothing.
            let is_last = match crashes.peek() {
                Some(Ok(next)) => next.fate == Fate::All,
                _ => true,
            };
            if is_last && !candidates.is_empty() {
                break;
            }
        }
        ensure!(!candidates.is_empty(), "no crash after a mark");
        let crash = random.pick(&candidates);
        let position = crash.position;
        let how = format!("power cut at {acknowledged:?}, {position}, {:?}", crash.fate);
        let file = ImageFile::of(&crash.image(recording)?, dir)?;
        let image = dir.join(format!("cut-{}.img", images.len()));
        std::fs::rename(file.path(), &image)?;
        images.push(Crashed { how, image, acknowledged });
    }
    Ok(images)
}
