//! Undoes what tests set up on the machine (mounts, loop devices), also if a test is killed.
//!
//! ```text
//! Undo::at_death(script) ---- drop, or undone() ----> the watcher exits, nothing is run
//!         |
//!         +---- the test's process is killed ----> the watcher runs the script
//! ```
//!
//! 1. When the process of a test ends, also by SIGKILL, its mounts, loop devices and processes are
//!    removed: a watcher in a process group of its own reads a pipe, and the end of the pipe starts
//!    the script.
//! 2. A mount is busy for a moment whenever another process accesses it, so [`unmount`] retries
//!    until [`BUSY_WAIT`] has passed. No test calls umount(8) directly.
//!    A mount namespace that another process has just made may have a copy of a mount for a moment
//!    longer, so a loop device waits as long until no filesystem uses it.
//! 3. A guard counts as undone only after its command has succeeded.

#![allow(clippy::print_stderr, reason = "a destructor has no other way to report a failure")]

use butternut_sys::mounts;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long [`unmount`] retries while a mount is busy.
pub const BUSY_WAIT: Duration = Duration::from_mins(1);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// For a block device: fails if a filesystem uses it.
const O_EXCL: i32 = 0o200;

/// A shell function that replaces umount(8) and retries (law 2), to be put before a script.
pub const UMOUNT_FUNCTION: &str = r#"umount() {
    for try in $(seq 600); do
        said=$(LC_ALL=C command umount "$@" 2>&1) && return
        case $said in *busy*) sleep 0.1 ;; *) break ;; esac
    done
    printf '%s\n' "$said" >&2; return 1
}
"#;

/// A script that is run if this process is killed before the value is dropped.
#[derive(Debug)]
pub struct Undo {
    watcher: Child,
}

impl Undo {
    /// Starts the watcher. The script finds the arguments as `$1` and so on.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn at_death<A: AsRef<OsStr>>(script: &str, args: &[A]) -> io::Result<Self> {
        let script = format!("read -r word && exit\n{script}");
        let watcher = Command::new("sh")
            .args(["-c", &script, "undo"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A test that takes too long is killed with its process group.
            .process_group(0)
            .spawn()?;
        Ok(Self { watcher })
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.watcher.stdin.take() {
            // An error means that the watcher has ended already.
            drop(io::Write::write_all(&mut pipe, b"undone\n"));
        }
        drop(self.watcher.wait());
    }
}

/// Unmounts with umount(8), which is tried again while the mount is busy.
///
/// # Errors
/// umount(8) failed for another reason, or the mount stayed busy; then the text lists the processes
/// that use it.
pub fn unmount(root: &Path) -> io::Result<()> {
    let began = Instant::now();
    loop {
        let output = run("umount", &[root.as_os_str()])?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if !said.contains("busy") || began.elapsed() >= BUSY_WAIT {
            let users = run("fuser", &["-vm".as_ref(), root.as_os_str()]);
            let users = users.map(|output| output.stderr).unwrap_or_default();
            let users = String::from_utf8_lossy(&users).into_owned();
            return Err(io::Error::other(format!("{said}\n{users}")));
        }
        thread::sleep(BUSY_PAUSE);
    }
}

fn run(program: &str, args: &[&OsStr]) -> io::Result<Output> {
    Command::new(program).args(args).env("LC_ALL", "C").output()
}

fn quietly(program: &str, args: &[&OsStr]) {
    match run(program, args) {
        Ok(output) if output.status.success() => {}
        other => eprintln!("{program} {args:?}: {other:?}"),
    }
}

/// A mount of the kernel or of Butternut. Dropping it unmounts it, lazily if it stays busy.
#[derive(Debug)]
pub struct MountGuard {
    root: PathBuf,
    is_mounted: bool,
    undo: Option<Undo>,
}

impl MountGuard {
    /// Guards the mount that the caller is about to make on `root`.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn before_mount(root: &Path) -> io::Result<Self> {
        let script = "umount \"$1\" || umount --lazy \"$1\"; rmdir \"$1\"";
        let undo = Some(Undo::at_death(script, &[root])?);
        Ok(Self { root: root.to_path_buf(), is_mounted: true, undo })
    }

    /// Unmounts with umount(8).
    ///
    /// # Errors
    /// As of [`unmount`]. The mount is then detached when the value is dropped.
    pub fn unmount(mut self) -> io::Result<()> {
        unmount(&self.root)?;
        self.undone();
        Ok(())
    }

    /// Records that the caller has unmounted it.
    pub fn undone(&mut self) {
        self.is_mounted = false;
        self.undo = None;
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if self.is_mounted && is_mount(&self.root) {
            // A failed test may have files open on it until its process ends.
            if run("umount", &[self.root.as_os_str()]).is_ok_and(|out| out.status.success()) {
                return;
            }
            quietly("umount", &["--lazy".as_ref(), self.root.as_os_str()]);
        }
    }
}

/// Returns whether `root` is a mount point, according to the mount table. It does not access the
/// filesystem, which may hang, or fail if its FUSE process is dead.
fn is_mount(root: &Path) -> bool {
    let parent = root.parent().and_then(|parent| parent.canonicalize().ok());
    let (Some(parent), Some(name)) = (parent, root.file_name()) else { return false };
    let place = parent.join(name);
    mounts::read().is_ok_and(|table| table.iter().any(|mount| mount.mountpoint == place))
}

/// A loop device. Dropping it makes btrfs forget the device, and detaches it.
#[derive(Debug)]
pub struct LoopGuard {
    path: PathBuf,
    _undo: Undo,
}

impl LoopGuard {
    /// Attaches a file with `losetup OPTIONS --find --show FILE`.
    ///
    /// # Errors
    /// losetup(8) failed; the text is its output.
    pub fn attach(file: &Path, options: &[&OsStr]) -> io::Result<Self> {
        let words = ["--find".as_ref(), "--show".as_ref(), file.as_os_str()];
        let output = run("losetup", &[options, &words].concat())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(format!("losetup: {said}")));
        }
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        // Mounts on it are removed first; their watchers run at the same time.
        let script = "n=0; while [ $n -lt 100 ] && grep -q \"^$1 \" /proc/self/mounts
            do sleep 0.1; n=$((n+1)); done
            btrfs device scan --forget \"$1\"; losetup --detach \"$1\"";
        let undo = match Undo::at_death(script, &[&path]) {
            Ok(undo) => undo,
            Err(error) => {
                quietly("losetup", &["--detach".as_ref(), path.as_os_str()]);
                return Err(error);
            }
        };
        Ok(Self { path, _undo: undo })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Waits until no filesystem uses a block device, after its mount was removed (law 2).
pub fn wait_until_released(device: &Path) {
    let mut options = File::options();
    let exclusive = options.read(true).custom_flags(O_EXCL);
    let is_used =
        || exclusive.open(device).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
    let began = Instant::now();
    while is_used() && began.elapsed() < BUSY_WAIT {
        thread::sleep(BUSY_PAUSE);
    }
}

impl Drop for LoopGuard {
    fn drop(&mut self) {
        // btrfs does not know a device that was never part of a volume; that is no failure.
        wait_until_released(&self.path);
        let words = ["device", "scan", "--forget"].map(OsStr::new);
        drop(run("btrfs", &[&words[..], &[self.path.as_os_str()]].concat()));
        quietly("losetup", &["--detach".as_ref(), self.path.as_os_str()]);
    }
}
