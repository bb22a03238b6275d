//! `bench snapshots`: snapshots, deletions, overwrites of data with many snapshots, and streams,
//! beside the kernel's btrfs and btrfs-progs.
//!
//! The kernel writes a volume once, and the contestants open it one after the other. Each leaves
//! the contents as it found them:
//!
//! ```text
//! tree       a subvolume of many small files in 100 directories
//! tree.ro    a read-only snapshot of it
//! stream     a subvolume with one large file
//! stream.ro  a read-only snapshot of it
//! scattered  a file of many extents
//! ```
//!
//! Streams are received into a second volume, which is formatted for each. Figures are times, so a
//! ratio below 1 means that Butternut takes less; the rows of streams are rates.

use crate::clones;
use crate::names::sync;
use crate::report::Report;
use crate::rig::{self, run, text};
use crate::scratch::Scratch;
use anyhow::{Result, ensure};
use butternut::receive::{StreamEnd, StreamReader};
use butternut::{FileId, Filesystem, SnapshotAccess};
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const SHARED_SNAPSHOTS: u32 = 100;
const BLOCK: usize = 4096;

#[derive(clap::Args)]
pub(crate) struct Flags {
    /// Use smaller files and fewer repeats. The figures are not reliable.
    #[arg(long)]
    quick: bool,
    /// Directory of the volumes' images; in memory by default, so that the device is not the limit.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Run only the rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

struct Size {
    files: u32,
    stream_bytes: u64,
    /// Of the file that is cloned.
    scattered_bytes: u64,
    /// Overwrites of random blocks of the large file.
    overwrites: u32,
    repeats: usize,
}

const FULL: Size = Size {
    files: 100_000,
    stream_bytes: 4 << 30,
    scattered_bytes: 1 << 30,
    overwrites: 20_000,
    repeats: 5,
};
const QUICK: Size = Size {
    files: 10_000,
    stream_bytes: 256 << 20,
    scattered_bytes: 64 << 20,
    overwrites: 2_000,
    repeats: 3,
};

struct Bench {
    size: &'static Size,
    butternut: PathBuf,
    volume: Scratch,
    target: Scratch,
    dir: tempfile::TempDir,
}

pub(crate) fn run_suite(flags: &Flags) -> Result<()> {
    let butternut = std::env::current_exe()?.with_file_name("butternut");
    ensure!(butternut.exists(), "{} is missing", butternut.display());
    let bench = Bench {
        size: if flags.quick { &QUICK } else { &FULL },
        volume: Scratch::make(&flags.dir, &butternut)?,
        target: Scratch::make(&flags.dir, &butternut)?,
        dir: tempfile::Builder::new().prefix("butternut-bench-").tempdir_in(&flags.dir)?,
        butternut,
    };
    bench.populate()?;
    let mut report = Report::new(&flags.only);
    bench.snapshots(&mut report)?;
    bench.clones(&mut report)?;
    bench.overwrites(&mut report)?;
    for (name, subvolume) in [("files", "tree.ro"), ("one file", "stream.ro")] {
        bench.streams(&mut report, name, subvolume)?;
    }
    report.finish()
}

impl Bench {
    fn populate(&self) -> Result<()> {
        let mount = self.volume.kernel()?;
        let root = mount.root();
        for name in ["tree", "stream"] {
            btrfs(&["subvolume", "create", text(&root.join(name))])?;
        }
        for dir in 0..100 {
            fs::create_dir(root.join(format!("tree/{dir:02}")))?;
        }
        for number in 0..self.size.files {
            let path = root.join(format!("tree/{:02}/file-{number:06}", number % 100));
            fs::write(path, format!("contents of {number}\n"))?;
        }
        rig::write_noise(&root.join("stream/large"), self.size.stream_bytes)?;
        clones::populate(root, self.size.scattered_bytes)?;
        for name in ["tree", "stream"] {
            let read_only = root.join(format!("{name}.ro"));
            btrfs(&["subvolume", "snapshot", "-r", text(&root.join(name)), text(&read_only)])?;
        }
        Ok(())
    }

    fn snapshots(&self, report: &mut Report) -> Result<()> {
        report.phases(
            &format!("subvolume of {} files", self.size.files),
            "ms",
            &["snapshot", "first write", "deletion"],
            self.size.repeats,
            &mut [
                ("library", &mut || self.snapshot_by_library()),
                ("mount", &mut || self.snapshot_by_mount(true)),
                ("kernel", &mut || self.snapshot_by_mount(false)),
            ],
        )
    }

    fn clones(&self, report: &mut Report) -> Result<()> {
        report.phases(
            &format!("file of {} MiB in extents of 104 KiB", self.size.scattered_bytes >> 20),
            "ms",
            &["clone", "removal of it"],
            self.size.repeats,
            &mut [
                ("library", &mut || clones::by_library(&self.volume)),
                ("mount", &mut || clones::by_mount(&self.volume, true)),
                ("kernel", &mut || clones::by_mount(&self.volume, false)),
            ],
        )
    }

    fn snapshot_by_library(&self) -> Result<Vec<f64>> {
        let filesystem = self.volume.open()?;
        let root = filesystem.root();
        let source = filesystem.lookup(root, b"tree")?.subvolume;
        let snapshot = timed(|| {
            let access = SnapshotAccess::ReadWrite;
            Ok(filesystem.snapshot(source, root, b"snapshot", access).map(drop)?)
        })?;
        let write = timed(|| {
            filesystem.open_path(b"snapshot/00/file-000000")?.write_at(0, b"changed")?;
            Ok(filesystem.sync()?)
        })?;
        let deletion = timed(|| {
            filesystem.delete_subvolume(root, b"snapshot")?;
            ensure!(filesystem.clean_subvolumes()?.is_empty(), "a file is still open");
            Ok(filesystem.sync()?)
        })?;
        filesystem.close()?;
        Ok(vec![snapshot, write, deletion])
    }

    /// Runs `subvolume` of btrfs-progs on the kernel's mount, or our command on ours, which
    /// btrfs-progs does not take for a btrfs.
    fn subvolume(&self, is_ours: bool, args: &[&str]) -> Result<()> {
        let program = if is_ours { text(&self.butternut) } else { "btrfs" };
        run(program, &[&["subvolume"], args].concat()).map(drop)
    }

    /// The commands on a mount of ours, or of the kernel's.
    fn snapshot_by_mount(&self, is_ours: bool) -> Result<Vec<f64>> {
        let mount = self.volume.mount(is_ours)?;
        let (source, snapshot) = (mount.root().join("tree"), mount.root().join("snapshot"));
        let paths = [text(&source), text(&snapshot)];
        let created = timed(|| self.subvolume(is_ours, &["snapshot", paths[0], paths[1]]))?;
        let written = timed(|| {
            let path = snapshot.join("00/file-000000");
            let file = fs::OpenOptions::new().write(true).open(path)?;
            file.write_all_at(b"changed", 0)?;
            sync(mount.root())
        })?;
        let deleted = timed(|| {
            self.subvolume(is_ours, &["delete", text(&snapshot)])?;
            if is_ours {
                // The mount frees the space in the background, and has no call to wait for it:
                // the end of the mount waits.
                return Ok(());
            }
            wait_for_cleaner(mount.root())
        })?;
        let unmounted = timed(|| {
            drop(mount);
            Ok(())
        })?;
        Ok(vec![created, written, if is_ours { deleted + unmounted } else { deleted }])
    }

    /// Overwrites of random blocks of the large file with a sync at the end, of a subvolume with
    /// [`SHARED_SNAPSHOTS`] snapshots and without.
    fn overwrites(&self, report: &mut Report) -> Result<()> {
        for snapshots in [0, SHARED_SNAPSHOTS] {
            report.row(
                &format!("overwrites of 4K, {snapshots} snapshots"),
                "k/s",
                self.size.repeats,
                &mut [
                    ("library", &mut || self.overwrite_by_library(snapshots)),
                    ("kernel", &mut || self.overwrite_by_kernel(snapshots)),
                ],
            )?;
        }
        Ok(())
    }

    fn offsets(&self) -> impl Iterator<Item = u64> {
        let (mut state, blocks) = (0x9E37_79B9_7F4A_7C15, self.size.stream_bytes / BLOCK as u64);
        (0..self.size.overwrites).map(move |_| rig::next(&mut state) % blocks * BLOCK as u64)
    }

    fn overwrite_by_library(&self, snapshots: u32) -> Result<f64> {
        let filesystem = self.volume.open()?;
        let root = filesystem.root();
        let source = filesystem.lookup(root, b"stream")?.subvolume;
        // The overwrites are made in a snapshot, which is deleted again.
        let names: Vec<String> = (0..snapshots.max(1)).map(|n| format!("s{n}")).collect();
        for name in &names {
            filesystem.snapshot(source, root, name.as_bytes(), SnapshotAccess::ReadWrite)?;
        }
        let file = filesystem.open_path(format!("{}/large", names[0]).as_bytes())?;
        let block = [0x5A; BLOCK];
        let took = timed(|| {
            for offset in self.offsets() {
                file.write_all_at(offset, &block)?;
            }
            Ok(filesystem.sync()?)
        })?;
        drop(file);
        remove_by_library(filesystem, root, &names)?;
        Ok(f64::from(self.size.overwrites) / took)
    }

    fn overwrite_by_kernel(&self, snapshots: u32) -> Result<f64> {
        let mount = self.volume.mount(false)?;
        let root = mount.root();
        let names: Vec<PathBuf> =
            (0..snapshots.max(1)).map(|n| root.join(format!("s{n}"))).collect();
        for name in &names {
            btrfs(&["subvolume", "snapshot", text(&root.join("stream")), text(name)])?;
        }
        let file = fs::OpenOptions::new().write(true).open(names[0].join("large"))?;
        let block = [0x5A; BLOCK];
        let took = timed(|| {
            for offset in self.offsets() {
                file.write_all_at(&block, offset)?;
            }
            sync(root)
        })?;
        drop(file);
        for name in &names {
            btrfs(&["subvolume", "delete", text(name)])?;
        }
        wait_for_cleaner(root)?;
        Ok(f64::from(self.size.overwrites) / took)
    }

    fn streams(&self, report: &mut Report, name: &str, subvolume: &str) -> Result<()> {
        let stream = self.dir.path().join("stream");
        let is_wanted =
            ["send", "receive"].map(|verb| report.is_selected(&format!("{verb}, {name}")));
        if !is_wanted.contains(&true) {
            return Ok(());
        }
        self.send_by_kernel(subvolume, &stream)?;
        let megabytes = stream.metadata()?.len() as f64 / 1e6;
        let rate = |took: f64| megabytes / took * 1e3;
        let null = Path::new("/dev/null");
        report.row(
            &format!("send, {name}"),
            "MB/s",
            self.size.repeats,
            &mut [
                ("butternut send", &mut || self.send_by_butternut(subvolume, null).map(rate)),
                ("btrfs send", &mut || self.send_by_kernel(subvolume, null).map(rate)),
            ],
        )?;
        report.row(
            &format!("receive, {name}"),
            "MB/s",
            self.size.repeats,
            &mut [
                ("library", &mut || self.receive_by_library(&stream).map(rate)),
                ("btrfs receive", &mut || self.receive_by_kernel(&stream).map(rate)),
            ],
        )?;
        Ok(fs::remove_file(stream)?)
    }

    fn send_by_butternut(&self, subvolume: &str, to: &Path) -> Result<f64> {
        let device = text(&self.volume.device);
        let args = ["send", "--quiet", "-f", text(to), device, subvolume];
        timed(|| run(text(&self.butternut), &args).map(drop))
    }

    fn send_by_kernel(&self, subvolume: &str, to: &Path) -> Result<f64> {
        let mount = self.volume.mount(false)?;
        let source = mount.root().join(subvolume);
        timed(|| btrfs(&["send", "-q", "-f", text(to), text(&source)]))
    }

    fn receive_by_library(&self, stream: &Path) -> Result<f64> {
        let filesystem = self.target.library()?;
        let input = BufReader::with_capacity(1 << 20, File::open(stream)?);
        let took = timed(|| {
            let mut reader = StreamReader::new(input);
            filesystem.receive(filesystem.root(), &mut reader, StreamEnd::Input)?;
            Ok(())
        })?;
        filesystem.close()?;
        Ok(took)
    }

    fn receive_by_kernel(&self, stream: &Path) -> Result<f64> {
        let mount = self.target.kernel()?;
        timed(|| {
            btrfs(&["receive", "-q", "-f", text(stream), text(mount.root())])?;
            sync(mount.root())
        })
    }
}

fn remove_by_library(filesystem: Filesystem, root: FileId, names: &[String]) -> Result<()> {
    for name in names {
        filesystem.delete_subvolume(root, name.as_bytes())?;
    }
    filesystem.clean_subvolumes()?;
    Ok(filesystem.close()?)
}

fn btrfs(args: &[&str]) -> Result<()> {
    run("btrfs", args).map(drop)
}

/// Waits until the kernel has freed the space of all deleted subvolumes. It begins with that at a
/// sync, or after half a minute, and `btrfs subvolume sync` looks once a second.
fn wait_for_cleaner(root: &Path) -> Result<()> {
    btrfs(&["filesystem", "sync", text(root)])?;
    while !run("btrfs", &["subvolume", "list", "-d", text(root)])?.is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns how long `work` took, in milliseconds.
pub(crate) fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
