//! The device under a target: a block device, a file, or memory.
//!
//! ```text
//! memory:SIZE    an image in /dev/shm, of allocated memory     -> loop device
//! FILE:SIZE      an image that is made, and removed at the end -> loop device
//! FILE           an image that exists                          -> loop device
//! DEV            a block device
//! ```
//!
//! Laws:
//!
//! 1. A device or file that holds a filesystem, a partition table or anything else that blkid(8)
//!    knows is refused, unless it is named a second time (`--destroy`). What is mounted, or in use
//!    by another program, is always refused.
//! 2. What this file makes is removed when the value is dropped, and when the process is killed.
//! 3. Every byte of an image in memory or of one that is made is allocated before a measurement.
//!    Otherwise copy-on-write would pay for the allocation, and overwriting in place would not.
//! 4. The loop device uses direct I/O where the image is on a disk, so that it is not cached twice.

use crate::child;
use crate::cost::available_memory_bytes;
use crate::size::{self, human};
use anyhow::{Context, Result, bail, ensure};
use butternut_lab::holes;
use butternut_undo::{LoopGuard, Undo};
use rustix::fs::{OFlags, SeekFrom, seek};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Memory that an image in memory leaves to the machine, in bytes.
const MEMORY_LEFT_BYTES: u64 = 512 << 20;
const SHARED_MEMORY: &str = "/dev/shm";

/// How devices are opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// Devices and files that may be overwritten although they hold something.
    pub(crate) destroy: Vec<PathBuf>,
    /// Leave images sparse (against law 3), for tests.
    pub(crate) sparse: bool,
}

/// A device that can be overwritten.
#[derive(Debug)]
pub(crate) struct Device {
    /// What targets open: a block device, or a file.
    path: PathBuf,
    /// The image under a loop device, or the path itself.
    image: Option<PathBuf>,
    /// The image is filled before a measurement.
    is_filled: bool,
    pub(crate) kind: &'static str,
    pub(crate) size_bytes: u64,
    loop_guard: Option<LoopGuard>,
    // After the loop device, which is detached first.
    _dir: Option<ImageDir>,
}

/// A directory of an image, removed at the end.
#[derive(Debug)]
struct ImageDir {
    dir: tempfile::TempDir,
    _undo: Undo,
}

impl ImageDir {
    fn make(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("butternut-lab-")
            .tempdir_in(parent)
            .with_context(|| format!("{}: cannot make a directory in it", parent.display()))?;
        let undo = Undo::at_death(REMOVE_SCRIPT, &[dir.path()])?;
        Ok(Self { dir, _undo: undo })
    }
}

/// Removes a directory once nothing is mounted below it.
pub(crate) const REMOVE_SCRIPT: &str = "n=0
    while [ $n -lt 100 ] && grep -q \" $1/\" /proc/self/mounts; do sleep 0.1; n=$((n+1)); done
    rm -rf --one-file-system \"$1\"";

impl Device {
    /// Opens the device that a text names, with a loop device over a file.
    ///
    /// # Errors
    /// It does not exist, is in use, holds something (law 1), or there is not enough memory or
    /// space for its image.
    pub(crate) fn open(text: &str, policy: &Policy) -> Result<Self> {
        let mut device = Self::open_file(text, policy)?;
        if let Some(image) = &device.image {
            let direct = if is_in_memory(image) { "--direct-io=off" } else { "--direct-io=on" };
            let guard = LoopGuard::attach(image, &[OsStr::new(direct)])
                .map_err(|error| anyhow::anyhow!("{}: {error}", image.display()))?;
            guard.path().clone_into(&mut device.path);
            device.loop_guard = Some(guard);
        }
        Ok(device)
    }

    /// Opens the device that a text names; a file stays a file.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub(crate) fn open_file(text: &str, policy: &Policy) -> Result<Self> {
        if let Some(size) = text.strip_prefix("memory:") {
            let bytes = size::parse(size).with_context(|| format!("device {text:?}"))?;
            return Self::in_memory(bytes, policy);
        }
        if let Some((path, size)) = text.rsplit_once(':')
            && let Ok(bytes) = size::parse(size)
        {
            return Self::make(Path::new(path), bytes, policy);
        }
        Self::existing(Path::new(text), policy)
    }

    fn in_memory(bytes: u64, policy: &Policy) -> Result<Self> {
        let (want, have) = (bytes + MEMORY_LEFT_BYTES, available_memory_bytes());
        ensure!(
            policy.sparse || have >= want,
            "device memory:{}: not enough memory: {} needed, {} available (use a smaller size, \
             --quick, or --device FILE:SIZE on a disk)",
            human(bytes),
            human(want),
            human(have)
        );
        let dir = ImageDir::make(Path::new(SHARED_MEMORY))?;
        Self::created("device.img".as_ref(), bytes, "memory", dir, policy)
    }

    fn make(path: &Path, bytes: u64, policy: &Policy) -> Result<Self> {
        ensure!(
            !path.exists(),
            "device {}: exists (leave the size out to use it as it is)",
            path.display()
        );
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let free = free_bytes(parent)?;
        ensure!(
            policy.sparse || free > bytes,
            "device {}: not enough space: {} needed, {} free in {}",
            path.display(),
            human(bytes),
            human(free),
            parent.display()
        );
        // In a directory of its own, which is removed with it.
        let dir = ImageDir::make(parent)?;
        let name = path.file_name().context("device: no file name")?;
        Self::created(name.as_ref(), bytes, "file", dir, policy)
    }

    fn created(
        name: &Path,
        bytes: u64,
        kind: &'static str,
        dir: ImageDir,
        policy: &Policy,
    ) -> Result<Self> {
        let image = dir.dir.path().join(name);
        let made = File::create(&image).and_then(|file| file.set_len(bytes));
        made.with_context(|| format!("{}: cannot be made", image.display()))?;
        let image = image.canonicalize()?;
        Ok(Self {
            path: image.clone(),
            image: Some(image),
            is_filled: !policy.sparse,
            kind,
            size_bytes: bytes,
            loop_guard: None,
            _dir: Some(dir),
        })
    }

    fn existing(path: &Path, policy: &Policy) -> Result<Self> {
        let shown = path.display();
        let metadata = fs::metadata(path).with_context(|| {
            format!(
                "device {shown}: cannot be used (FILE:SIZE makes an image, memory:SIZE uses memory)"
            )
        })?;
        let real = path.canonicalize()?;
        let is_block = metadata.file_type().is_block_device();
        ensure!(
            is_block || metadata.is_file(),
            "device {shown}: neither a block device nor a file"
        );
        let file = claim(&real, is_block).with_context(|| format!("device {shown}"))?;
        refuse_contents(path, policy)?;
        let size_bytes = if is_block { block_bytes(&file)? } else { metadata.len() };
        ensure!(size_bytes > 0, "device {shown}: empty");
        Ok(Self {
            path: real.clone(),
            image: (!is_block).then_some(real),
            is_filled: false,
            kind: if is_block { "block" } else { "file" },
            size_bytes,
            loop_guard: None,
            _dir: None,
        })
    }

    /// Returns what targets open.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Allocates every byte of the image (law 3): the last filesystem may have discarded space.
    ///
    /// # Errors
    /// The disk or the memory is full.
    pub(crate) fn fill(&self) -> Result<()> {
        match &self.image {
            Some(image) if self.is_filled => holes::fill(image, || Ok(crate::interrupt::check()?))
                .with_context(|| format!("{}: cannot be filled", image.display())),
            _ => Ok(()),
        }
    }
}

/// Opens a device so that nothing else uses it now.
fn claim(path: &Path, is_block: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if is_block {
        // For a block device: fails while it is mounted, or part of a volume in use.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let opened = options.open(path);
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            bail!("in use: {} (unmount it, or use another device)", users(path))
        }
        other => other.context("cannot be opened for writing")?,
    };
    if !is_block {
        let over = child::run("losetup", &[OsStr::new("-j"), path.as_os_str()])?;
        ensure!(
            over.is_empty(),
            "in use: attached to {} (losetup -d detaches it)",
            over.split(':').next().unwrap_or_default()
        );
    }
    Ok(file)
}

/// Says what uses a block device.
fn users(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let shown = path.display().to_string();
    let place = mounts.lines().find_map(|line| {
        let (source, rest) = line.split_once(' ')?;
        (source == shown).then(|| rest.split(' ').next().unwrap_or_default().to_owned())
    });
    match place {
        Some(place) => format!("mounted on {place}"),
        None => "another program or volume has claimed it".to_owned(),
    }
}

/// Refuses a device that holds something, unless it was named twice (law 1).
fn refuse_contents(path: &Path, policy: &Policy) -> Result<()> {
    let real = path.canonicalize()?;
    let may_destroy =
        |named: &PathBuf| named == path || named.canonicalize().is_ok_and(|named| named == real);
    if policy.destroy.iter().any(may_destroy) {
        return Ok(());
    }
    let blkid =
        child::find("blkid").context("blkid is not installed (it is part of util-linux)")?;
    let output = std::process::Command::new(blkid)
        .args(["--probe", "--output", "export"])
        .arg(&real)
        .output()
        .context("blkid cannot be run")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let value = |key: &str| printed.lines().find_map(|line| line.strip_prefix(key));
    let shown = path.display();
    let held = match (output.status.code(), value("TYPE="), value("PTTYPE=")) {
        // Nothing was found.
        (Some(2), None, None) => return Ok(()),
        (_, Some(kind), _) => format!("a filesystem or volume ({kind})"),
        (_, None, Some(kind)) => format!("a partition table ({kind})"),
        _ => "something that blkid cannot tell".to_owned(),
    };
    bail!(
        "device {shown}: holds {held}; all of it would be lost (to overwrite it, name it a second \
         time: --destroy {shown})"
    )
}

fn block_bytes(file: &File) -> Result<u64> {
    Ok(seek(file, SeekFrom::End(0))?)
}

fn free_bytes(dir: &Path) -> Result<u64> {
    let space = rustix::fs::statvfs(dir)
        .with_context(|| format!("{}: cannot be used for an image", dir.display()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Returns the free bytes of the filesystem of a directory.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn free_bytes_of(dir: &Path) -> Result<u64> {
    free_bytes(dir)
}

fn is_in_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|space| space.f_type == TMPFS_MAGIC)
}
