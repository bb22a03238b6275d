//! `umount`: brings everything down, unmounts, and returns when the process that served the mount
//! has ended, which is when the volume's devices are released.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use butternut_fuse::{DAEMON_XATTR, SYNC_XATTR};

use crate::failure::{Done, Failure, Outcome, plain};
use crate::flags::{GlobalArgs, UmountArgs};
use crate::output::{Output, json, say};

pub(crate) fn run(global: &GlobalArgs, args: &UmountArgs, out: &mut Output) -> Outcome {
    let released = end(global, args)?;
    if global.json {
        let mountpoint = args.mountpoint.as_os_str().as_encoded_bytes();
        let object = json::Object::new().name("mountpoint", mountpoint);
        json::document(out, object.put("released", released))?;
    }
    Ok(Done::Well)
}

/// Unmounts; whether the volume is known to be released.
fn end(global: &GlobalArgs, args: &UmountArgs) -> Result<bool, Failure> {
    let mountpoint = absolute(&args.mountpoint)?;
    let shown = mountpoint.display().to_string();
    check_ours(&mountpoint)?;
    let daemon = daemon(&mountpoint);
    let committed = if daemon.is_some() { commit(&mountpoint) } else { Ok(()) };
    unmount(&mountpoint, args.lazy)?;
    committed.map_err(|error| {
        Failure::new(&*shown, format!("the last changes could not be written: {}", plain(&error)))
            .cure("it is unmounted; `butternut check` tells what state the volume is in")
    })?;
    let Some((pid, pidfd)) = daemon else {
        if !global.quiet {
            say(&format!(
                "{shown}: note: its process is gone or out of sight, nothing to wait for"
            ));
        }
        return Ok(false);
    };
    if args.lazy {
        return Ok(false);
    }
    let timeout = Timespec { tv_sec: i64::try_from(args.timeout).unwrap_or(i64::MAX), tv_nsec: 0 };
    let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
    match poll(&mut ended, Some(&timeout)) {
        Ok(0) => {
            let why = format!("process {pid} still holds the volume after {} s", args.timeout);
            Err(Failure::new(shown, why).cure("it ends when the last open file is closed"))
        }
        Ok(_) => Ok(true),
        Err(errno) => Err(Failure::io(shown, &errno.into())),
    }
}

/// The path as the mount table has it. The mount point itself may not answer, so only what is
/// above it is looked at, unless it is a symlink to it.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: &io::Error| Failure::io(path.display().to_string(), error);
    if path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
        return path.canonicalize().map_err(|error| failed(&error));
    }
    let whole = std::path::absolute(path).map_err(|error| failed(&error))?;
    match (whole.parent(), whole.file_name()) {
        (Some(above), Some(name)) => {
            Ok(above.canonicalize().map_err(|error| failed(&error))?.join(name))
        }
        _ => whole.canonicalize().map_err(|error| failed(&error)),
    }
}

/// Refuses what is no mount of ours: its own tools know better how to end it.
fn check_ours(mountpoint: &Path) -> Result<(), Failure> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let wanted = mountpoint.display().to_string();
    let mut last = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        if fields.next().map(unescaped).as_deref() == Some(&*wanted) {
            last = fields.next();
        }
    }
    match last {
        Some("fuse.butternut") => Ok(()),
        Some(kind) => {
            Err(Failure::new(wanted, format!("is a mount of {kind}")).cure("umount(8) ends it"))
        }
        None => Err(Failure::new(wanted, "is not mounted")
            .cure("`findmnt -t fuse.butternut` lists what is")),
    }
}

/// Octal escapes of the mount table, undone.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// Has the kernel send what it holds back, and the process bring it down on the devices. Nobody
/// could be told of errors after the unmount.
fn commit(mountpoint: &Path) -> io::Result<()> {
    rustix::fs::syncfs(std::fs::File::open(mountpoint)?)?;
    let mut value = [0; 1];
    rustix::fs::getxattr(mountpoint, SYNC_XATTR, &mut value[..])?;
    Ok(())
}

/// The process that serves the mount, held so that its number cannot pass to another.
fn daemon(mountpoint: &Path) -> Option<(i32, OwnedFd)> {
    let mut value = [0; 16];
    let bytes = rustix::fs::getxattr(mountpoint, DAEMON_XATTR, &mut value[..]).ok()?;
    let pid: i32 = std::str::from_utf8(value.get(..bytes)?).ok()?.parse().ok()?;
    let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    Some((pid, pidfd))
}

/// Takes the mount away: as root by the system call, else through fusermount3.
pub(super) fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), Failure> {
    let shown = mountpoint.display().to_string();
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy(shown)),
        Err(Errno::PERM) => through_fusermount(mountpoint, lazy, shown),
        Err(errno) => Err(Failure::io(shown, &errno.into())),
    }
}

fn through_fusermount(mountpoint: &Path, lazy: bool, shown: String) -> Result<(), Failure> {
    let mut command = Command::new("fusermount3");
    command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(mountpoint);
    let output = command.output().map_err(|error| {
        Failure::io("fusermount3", &error).cure("install fuse3, or unmount as root")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(busy(shown));
    }
    Err(Failure::new(shown, said))
}

fn busy(shown: String) -> Failure {
    let cure = format!("close what is open in it, `fuser -vm {shown}` lists that; or add --lazy");
    Failure::new(shown, "is busy").cure(cure)
}
