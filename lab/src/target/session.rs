//! A session: one target, made and mounted for one measurement, and removed after it.
//!
//! ```text
//! Session::begin: fill the image, mkfs, mount -> place() -> end: is it alive? unmount
//! ```
//!
//! 1. A session leaves nothing mounted, also if it is dropped, and if this process is killed.
//! 2. Each measurement begins with an empty filesystem and with no file in a cache of the kernel.
//! 3. A target that has died meanwhile is an error that says so, also if the job succeeded.

use super::device::{Device, REMOVE_SCRIPT};
use super::{Kind, Target};
use crate::child;
use anyhow::{Context, Result, bail, ensure};
use butternut_undo::{MountGuard, Undo, unmount};
use std::fs;
use std::path::{Path, PathBuf};

/// What a session is made with.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) target: &'a Target,
    pub(crate) device: Option<&'a Device>,
    /// An empty directory of this run, for mount points.
    pub(crate) work: &'a Path,
    pub(crate) butternut: Option<&'a Path>,
    /// Mount options of Butternut: switches and the size of its page cache.
    pub(crate) mount_options: Vec<String>,
    /// New files are written in place.
    pub(crate) in_place: bool,
}

/// Where the files of a measurement are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A block device, without a filesystem.
    Block(PathBuf),
    /// A directory of a mounted filesystem.
    Directory(PathBuf),
    /// An image or device that the fio engine opens.
    Volume(PathBuf),
}

/// A target that is ready for a measurement.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    setup: Setup<'a>,
    place: Place,
    mounted: Option<Mounted>,
    directory: Option<Directory>,
}

/// A directory that is removed at the end.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    _undo: Undo,
}

/// What has to be unmounted.
#[derive(Debug)]
enum Mounted {
    Kernel(MountGuard),
    Butternut(MountGuard),
    Custom(Undo),
}

impl<'a> Session<'a> {
    /// Makes the filesystem of the target and mounts it.
    ///
    /// # Errors
    /// A tool fails; what it printed is in the error. Nothing stays mounted.
    pub(crate) fn begin(setup: Setup<'a>) -> Result<Self> {
        let label = setup.target.label.clone();
        Self::made(setup).with_context(|| label)
    }

    fn made(setup: Setup<'a>) -> Result<Self> {
        let (mut mounted, mut directory) = (None, None);
        let place = if let Kind::Dir(path) = &setup.target.kind {
            let made = own_directory(path)?;
            let path = made.path.clone();
            directory = Some(made);
            Place::Directory(path)
        } else {
            let device =
                setup.device.context("no device (--device DEV, FILE:SIZE or memory:SIZE)")?;
            device.fill()?;
            format(&setup.target.kind, device.path())?;
            let point = setup.work.join("mount");
            match &setup.target.kind {
                Kind::Raw => Place::Block(device.path().to_owned()),
                Kind::Butternut => Place::Volume(device.path().to_owned()),
                Kind::Kernel { .. } | Kind::Mount | Kind::Dir(_) | Kind::Custom(_) => {
                    let (guard, root) = mount(&setup, device.path(), &point)?;
                    mounted = Some(guard);
                    Place::Directory(root)
                }
            }
        };
        let mut session = Self { setup, place, mounted, directory };
        if let Place::Directory(root) = &session.place
            && session.directory.is_none()
        {
            // Files are not made in the root, where ext4 has lost+found.
            let files = root.join("lab");
            fs::create_dir(&files).with_context(|| format!("{}", files.display()))?;
            session.place = Place::Directory(files);
        }
        if let Place::Directory(files) = &session.place
            && session.setup.in_place
        {
            // Only btrfs has the flag; other filesystems always write in place.
            drop(child::run("chattr", &["+C".as_ref(), files.as_os_str()]));
        }
        Ok(session)
    }

    /// Returns where the files are.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the block device below, where there is one.
    pub(crate) fn device(&self) -> Option<&Path> {
        self.setup.device.map(Device::path)
    }

    /// Unmounts the target.
    ///
    /// # Errors
    /// It has died (law 3), or cannot be unmounted.
    pub(crate) fn end(mut self) -> Result<()> {
        let alive = self.check();
        let label = &self.setup.target.label;
        let ended = match self.mounted.take() {
            Some(mounted) => self.unmount(mounted).with_context(|| format!("{label}: unmount")),
            None => Ok(()),
        };
        alive.and(ended)
    }

    /// Checks that the target still serves.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check(&self) -> Result<()> {
        let Place::Directory(files) = &self.place else { return Ok(()) };
        let label = &self.setup.target.label;
        match fs::metadata(files) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(107) => {
                bail!("{label}: the process of the mount has ended during the measurement")
            }
            Err(error) => bail!("{label}: {}: {error}", files.display()),
        }
    }

    fn unmount(&self, mounted: Mounted) -> Result<()> {
        match mounted {
            Mounted::Kernel(guard) => guard.unmount().map_err(Into::into),
            Mounted::Butternut(mut guard) => {
                let root = self.setup.work.join("mount");
                let butternut = self.setup.butternut.context("butternut")?;
                let umount = ["--quiet".as_ref(), "umount".as_ref(), root.as_os_str()];
                let unmounted = child::run(&butternut.display().to_string(), &umount);
                if unmounted.is_err() {
                    // A dead mount is unmounted without its process.
                    unmount(&root)?;
                }
                guard.undone();
                unmounted.map(drop)
            }
            Mounted::Custom(undo) => {
                let Kind::Custom(custom) = &self.setup.target.kind else { return Ok(()) };
                let device = self.setup.device.context("device")?;
                custom.unmount(device.path(), &self.setup.work.join("mount"))?;
                drop(undo);
                Ok(())
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take()
            && let Err(error) = self.unmount(mounted)
        {
            crate::progress::line(&format!("{}: {error:#}", self.setup.target.label));
        }
        if let Some(directory) = &self.directory {
            drop(fs::remove_dir_all(&directory.path));
        }
    }
}

/// Makes a directory below that of a `dir:` target.
fn own_directory(parent: &Path) -> Result<Directory> {
    ensure!(parent.is_dir(), "{}: not a directory", parent.display());
    let path = parent.canonicalize()?.join(format!("butternut-lab-{}", std::process::id()));
    drop(fs::remove_dir_all(&path));
    fs::create_dir(&path).with_context(|| format!("{}: cannot be made", path.display()))?;
    Ok(Directory { _undo: Undo::at_death(REMOVE_SCRIPT, &[&path])?, path })
}

fn format(kind: &Kind, device: &Path) -> Result<()> {
    let shown = device.display().to_string();
    let mkfs = |tool: &str, usual: &[&str], more: &[String]| {
        let more = more.iter().map(String::as_str);
        let args: Vec<_> = usual.iter().copied().chain(more).chain([&*shown]).collect();
        child::run(tool, &args).map(drop)
    };
    match kind {
        Kind::Butternut | Kind::Mount => mkfs("mkfs.btrfs", &["-q", "-f", "-K"], &[]),
        Kind::Kernel { filesystem, mkfs: more, .. } => match filesystem.as_str() {
            "btrfs" => mkfs("mkfs.btrfs", &["-q", "-f", "-K"], more),
            "xfs" => mkfs("mkfs.xfs", &["-q", "-f", "-K"], more),
            // Without lazy initialization, which a kernel thread would do during a measurement.
            _ => {
                let now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                mkfs("mkfs.ext4", &["-q", "-F", "-E", now], more)
            }
        },
        Kind::Raw | Kind::Dir(_) | Kind::Custom(_) => Ok(()),
    }
}

/// Mounts the target, and returns the directory of its files.
fn mount(setup: &Setup<'_>, device: &Path, point: &Path) -> Result<(Mounted, PathBuf)> {
    fs::create_dir_all(point)?;
    let paths = [device.as_os_str(), point.as_os_str()];
    match &setup.target.kind {
        Kind::Custom(custom) => {
            let undo = Undo::at_death::<&str>(&custom.unmount_script(device, point), &[])?;
            let root = custom.mount(device, point)?;
            Ok((Mounted::Custom(undo), root))
        }
        Kind::Kernel { filesystem, mount, .. } => {
            let guard = MountGuard::before_mount(point)?;
            let options = if mount.is_empty() { "noatime" } else { mount };
            let words = ["-t", filesystem, "-o", options].map(AsRef::as_ref);
            let mounted = child::run("mount", &[&words[..], &paths].concat());
            Ok((Mounted::Kernel(mounted_or_undone(guard, mounted)?), point.to_owned()))
        }
        Kind::Mount => {
            let guard = MountGuard::before_mount(point)?;
            let program = setup.butternut.context("butternut")?.display().to_string();
            let mut options = vec!["allow_other".to_owned()];
            options.extend(setup.mount_options.iter().cloned());
            let options = options.join(",");
            let words = ["--quiet", "mount", "-o", &options].map(AsRef::as_ref);
            let mounted = child::run(&program, &[&words[..], &paths].concat());
            Ok((Mounted::Butternut(mounted_or_undone(guard, mounted)?), point.to_owned()))
        }
        Kind::Raw | Kind::Butternut | Kind::Dir(_) => bail!("this target is not mounted"),
    }
}

/// Passes the guard of a mount on, if the mount was made.
fn mounted_or_undone(mut guard: MountGuard, mounted: Result<String>) -> Result<MountGuard> {
    match mounted {
        Ok(_) => Ok(guard),
        Err(error) => {
            guard.undone();
            Err(error)
        }
    }
}

/// Writes dirty data back and drops the kernel's caches, where it is permitted.
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    match fs::write("/proc/sys/vm/drop_caches", "3") {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        done => done.context("cannot drop the caches of the kernel"),
    }
}
