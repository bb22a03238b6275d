//! What tests set up on the machine, undone when the test ends, however it ends.
//!
//! ```text
//! Undo::at_death(script) ---- drop, or undone() ----> the watcher exits, nothing is run
//!         |
//!         +---- the test's process is killed ----> the watcher runs the script
//! ```
//!
//! 1. A mount, a loop device or a process of a test is gone when the test's process is, also after
//!    SIGKILL: a watcher process in a process group of its own sees the end of a pipe.
//! 2. A mount is busy for a moment whenever a process looks at it, so [`unmount`] tries again until
//!    [`BUSY_WAIT`] has passed. No test calls umount(8) without that.
//! 3. Nothing counts as undone before the command that undoes it has succeeded.

#![allow(clippy::print_stderr, reason = "a destructor has no other way to report a failure")]

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a busy mount is tried again.
pub const BUSY_WAIT: Duration = Duration::from_mins(1);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A shell function in the place of umount(8) that keeps law 2: put it before a script.
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
            // A watcher that has ended already has nothing left to do.
            drop(io::Write::write_all(&mut pipe, b"undone\n"));
        }
        drop(self.watcher.wait());
    }
}

/// Unmounts with umount(8), which is tried again while the mount is busy.
///
/// # Errors
/// It failed for another reason, or the mount was busy all the time; then the text lists the
/// processes that use it.
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

/// A mount of the kernel's or of ours. Dropping it unmounts, and detaches what stays busy.
#[derive(Debug)]
pub struct MountGuard {
    root: PathBuf,
    is_mounted: bool,
    undo: Option<Undo>,
}

impl MountGuard {
    /// Watches over what the caller is about to mount on `root`.
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

    /// Notes that the caller has unmounted by itself.
    pub fn undone(&mut self) {
        self.is_mounted = false;
        self.undo = None;
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if self.is_mounted && is_mount(&self.root) {
            // A test that fails may hold files of it open: they end with the test's process.
            if run("umount", &[self.root.as_os_str()]).is_ok_and(|out| out.status.success()) {
                return;
            }
            quietly("umount", &["--lazy".as_ref(), self.root.as_os_str()]);
        }
    }
}

/// Whether something is mounted there. The filesystem is not asked: it may not answer.
fn is_mount(root: &Path) -> bool {
    run("mountpoint", &["-q".as_ref(), root.as_os_str()]).is_ok_and(|out| out.status.success())
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
    /// losetup(8) refuses; the text is what it said.
    pub fn attach(file: &Path, options: &[&OsStr]) -> io::Result<Self> {
        let words = ["--find".as_ref(), "--show".as_ref(), file.as_os_str()];
        let output = run("losetup", &[options, &words].concat())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(format!("losetup: {said}")));
        }
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        // The mounts on it go first; their watchers run at the same time.
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

impl Drop for LoopGuard {
    fn drop(&mut self) {
        // A device that was never part of a volume is not known to btrfs: that is no failure.
        let words = ["device", "scan", "--forget"].map(OsStr::new);
        drop(run("btrfs", &[&words[..], &[self.path.as_os_str()]].concat()));
        quietly("losetup", &["--detach".as_ref(), self.path.as_os_str()]);
    }
}
