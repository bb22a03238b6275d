//! `mount -o remount`: changes the options of a mounted volume.
//!
//! | options | changed by |
//! |---|---|
//! | `ro` | the kernel, for the superblock (shared by all mount points) and this mount point |
//! | `rw` | the kernel, for the superblock and this mount point; others that are `ro` stay `ro` |
//! | `sync`, `async` | the kernel, for the superblock, and the process of the mount, for copies |
//! | `dev`, `suid`, `exec` and their opposites | the kernel, for this mount point |
//! | the tunables of `ctl` | the process of the mount |
//! | all others | nothing: a value other than the current one is refused ([`fixed_options`]) |
//!
//! mount(8) adds the options of fstab and of the mount table to those of its command line, so an
//! option with its current value is accepted and changes nothing. The mount table shows `ro` for a
//! mount point that is itself `ro` as well as for one whose superblock is: `ro` for such a mount
//! point does not make the superblock read-only.
//!
//! A mount that becomes read-only is committed before the command returns, as in the kernel's
//! filesystems. Linux writes the dirty pages of a FUSE filesystem back on a remount, but notifies
//! its process only with `-o blkdev`, so the command requests the commit: through the mount, or
//! where root has no access to the mount of another user, through its control socket. With
//! `-o blkdev`, the kernel drops the error of the process, and later commits do not repeat the
//! cause, so the command commits before the remount, too.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use butternut_fuse::{MountPermissions, is_block_device_type};
use butternut_sys::mounts::{self, Mount};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use super::fixed_options;
use super::options::ParsedOptions;
use crate::commands::umount;
use crate::control::{Format, Request, client};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::notes::Notes;
use crate::output::stderr_line;

/// Options of the mount table that belong to the FUSE connection.
const OF_THE_CONNECTION: [&str; 6] =
    ["user_id=", "group_id=", "max_read=", "blksize=", "rootmode=", "subtype="];

/// Maximum time that root waits for the process of another user, which may not want to commit.
const COMMIT_LIMIT: Duration = Duration::from_mins(1);

/// Returns whether the options contain `remount`.
pub(super) fn is_requested(lists: &[OsString]) -> bool {
    lists.iter().any(|list| list.as_bytes().split(|byte| *byte == b',').any(|w| w == b"remount"))
}

/// Changes the options of the mount at `mountpoint`.
pub(super) fn run(mountpoint: &Path, lists: &[OsString], notes: Notes) -> Outcome {
    let shown = mountpoint.display().to_string();
    let mounts = mounts::read().map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    let path = mountpoint.canonicalize().unwrap_or_else(|_| PathBuf::from(mountpoint));
    let mount =
        mounts::topmost(&mounts, &path).filter(|mount| butternut_fuse::is_own_type(&mount.kind));
    let Some(mount) = mount else {
        return Err(Failure::new(shown, "is not mounted by butternut")
            .hint("`findmnt -t fuse.butternut,fuseblk.butternut` lists the mounts"));
    };
    let mut all = vec![current_options(mount)];
    all.extend(lists.iter().map(changeable));
    let parsed = ParsedOptions::of(&all)?;
    if parsed.fuse.is_writable && mount.has_option("ro") && !is_open_for_writing(mount)? {
        return Err(Failure::new(shown, "the volume is open read-only")
            .hint("unmount it, and mount it again without ro"));
    }
    if !parsed.fixed.is_empty() {
        let served = client::request_mount("mount", mount, &Request::Volume)?;
        fixed_options::check(&parsed, &served["settings"])?;
    }
    let root = mounts::open(mount).map_err(|error| Failure::io(&*shown, &error))?;
    let becomes_read_only = !parsed.fuse.is_writable && !mount.is_read_only();
    let before = if becomes_read_only && is_block_device_type(&mount.kind) {
        notes.if_slow(&shown, || umount::commit(&mount.mountpoint).map(drop))
    } else {
        Ok(())
    };
    // The process is told first that it must sync, and last that it need not.
    let becomes_synchronous = Some(parsed.fuse.is_synchronous)
        .filter(|is_synchronous| *is_synchronous != mount.has_option("sync"));
    if becomes_synchronous == Some(true) {
        tell_synchronous(mount, true)?;
    }
    reconfigure(&root, mount, &parsed).map_err(|error| {
        // A loss of file data is reported once.
        if let Err(lost) = &before {
            stderr_line(&umount::not_written(shown.clone(), lost).to_string());
        }
        let failure = Failure::io(&*shown, &error);
        match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => failure.hint("close the files that are open for writing"),
            Some(Errno::PERM) => failure.hint("only root can remount"),
            _ => failure,
        }
    })?;
    let told = match becomes_synchronous {
        Some(false) => tell_synchronous(mount, false),
        _ => Ok(()),
    };
    if becomes_read_only {
        commit(mount, before, notes)?;
    }
    told?;
    for (key, value) in parsed.tunables {
        client::request_mount("mount", mount, &Request::Set { key, value })?;
    }
    Ok(Completion::Success)
}

/// Tells the process of a mount whether it is synchronous. The kernel syncs after writes, and not
/// after copies (`copy_file_range`).
fn tell_synchronous(mount: &Mount, is_on: bool) -> Result<(), Failure> {
    client::request_mount("mount", mount, &Request::Synchronous { is_on }).map(drop)
}

/// Commits the changes of a mount that has become read-only. `before` is the result of a commit
/// before that.
fn commit(mount: &Mount, before: io::Result<()>, notes: Notes) -> Result<(), Failure> {
    let shown = mount.mountpoint.display().to_string();
    let after = notes.if_slow(&shown, || umount::commit(&mount.mountpoint).map(drop));
    let Err(error) = before.and(after) else { return Ok(()) };
    if !matches!(Errno::from_io_error(&error), Some(Errno::ACCESS | Errno::PERM)) {
        return Err(umount::not_written(shown, &error).hint("the mount is read-only now"));
    }
    // FUSE denies root the access to a mount of another user without `allow_other`.
    client::request_commit("mount", mount, notes, Some(COMMIT_LIMIT)).map_err(|failure| {
        let why =
            format!("is read-only now, and its last changes are not committed yet: {failure}");
        let hint = "`butternut umount` commits them and reports errors";
        Failure::new(shown, why).hint(hint)
    })
}

/// Returns the current options of the mount.
fn current_options(mount: &Mount) -> OsString {
    let mut options = vec!["dev,suid"];
    options
        .extend(["nodev", "nosuid", "noexec"].into_iter().filter(|option| mount.has_flag(option)));
    options.extend(Some("ro").filter(|_| mount.is_read_only()));
    options.extend(Some("sync").filter(|_| mount.has_option("sync")));
    options.join(",").into()
}

/// Changes the options of the superblock that differ, and then those of the mount point. Other
/// attributes of the mount point (`nosymfollow`, access times) stay unchanged.
fn reconfigure(root: &OwnedFd, mount: &Mount, parsed: &ParsedOptions) -> io::Result<()> {
    let is_same = mount.is_read_only() != parsed.fuse.is_writable;
    let ro = |is_ro: bool| if is_same { is_ro } else { !parsed.fuse.is_writable };
    let mut options = Vec::new();
    if ro(mount.has_option("ro")) != mount.has_option("ro") {
        options.push(if parsed.fuse.is_writable { "rw" } else { "ro" });
    }
    if parsed.fuse.is_synchronous != mount.has_option("sync") {
        options.push(if parsed.fuse.is_synchronous { "sync" } else { "async" });
    }
    if !options.is_empty() {
        let filesystem =
            fspick(root, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
        for option in options {
            fsconfig_set_flag(&filesystem, option)?;
        }
        fsconfig_reconfigure(&filesystem)?;
    }
    let rights = MountPermissions {
        write: !ro(mount.has_flag("ro")),
        ..MountPermissions::from(&parsed.fuse)
    };
    let (set, clear) = rights.attributes();
    mounts::set_attributes(root, set, clear)
}

/// Returns an option list without the options of the FUSE connection.
fn changeable(list: &OsString) -> OsString {
    let is_mount_option = |option: &&[u8]| {
        !OF_THE_CONNECTION.iter().any(|start| option.starts_with(start.as_bytes()))
    };
    let options: Vec<&[u8]> =
        list.as_bytes().split(|byte| *byte == b',').filter(is_mount_option).collect();
    OsString::from_vec(options.join(&b','))
}

fn is_open_for_writing(mount: &Mount) -> Result<bool, Failure> {
    let stats = client::request_mount("mount", mount, &Request::Stats { form: Format::Json })?;
    Ok(stats["is_writable"].as_bool().unwrap_or(false))
}
