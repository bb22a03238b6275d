//! `mount -o remount`: what of a mount can be changed while it serves.
//!
//! | words | changed by |
//! |---|---|
//! | `ro` | the kernel, for the filesystem, which is at every place, and for this place |
//! | `rw` | the kernel, for the filesystem and this place; places that are `ro` stay so |
//! | `sync`, `async` | the kernel, for the filesystem |
//! | `dev`, `suid`, `exec` and their opposites | the kernel, for this place |
//! | the switches of `ctl` | the process that serves the mount |
//! | all others | nothing: another value than the volume has is refused ([`settled`]) |
//!
//! mount(8) adds the words of fstab and of the mount table to those of its command line, so a word
//! that says what is already so is no error, and changes nothing. The mount table says `ro` of a
//! place that is `ro` by itself as of one whose filesystem is: `ro` of such a place does not make
//! the filesystem read-only.
//!
//! A mount that becomes read-only is committed before the command returns, as the kernel's
//! filesystems are: Linux sends the pages that it holds back, and tells a FUSE process no more.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use butternut_sys::mounts::{self, Mount};
use rustix::io::Errno;
use rustix::mount::{
    FsPickFlags, MountFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick, mount_remount,
};

use super::options::Meaning;
use super::settled;
use crate::commands::umount;
use crate::control::{Form, Question, client};
use crate::failure::{Done, Failure, Outcome, plain};

/// Words of the mount table that are the connection's.
const OF_THE_CONNECTION: [&str; 5] =
    ["user_id=", "group_id=", "max_read=", "rootmode=", "subtype="];

/// Whether the words are those of a remount.
pub(super) fn is_meant(lists: &[OsString]) -> bool {
    lists.iter().any(|list| list.as_bytes().split(|byte| *byte == b',').any(|w| w == b"remount"))
}

/// Changes the mount on a mount point.
pub(super) fn run(mountpoint: &Path, lists: &[OsString]) -> Outcome {
    let shown = mountpoint.display().to_string();
    let mounts = mounts::read().map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    let place = mountpoint.canonicalize().unwrap_or_else(|_| PathBuf::from(mountpoint));
    let mount = mounts::topmost(&mounts, &place).filter(|mount| mount.kind == butternut_fuse::KIND);
    let Some(mount) = mount else {
        return Err(Failure::new(shown, "is not mounted by butternut")
            .cure("`findmnt -t fuse.butternut` lists what is"));
    };
    let mut all = vec![as_it_is(mount)];
    all.extend(lists.iter().map(changeable));
    let meaning = Meaning::of(&all)?;
    if meaning.fuse.is_writable && mount.has_option("ro") && !is_open_for_writing(&place)? {
        return Err(Failure::new(shown, "the volume is open for reading only")
            .cure("unmount it, and mount it again without ro"));
    }
    if !meaning.settled.is_empty() {
        let served = client::ask("mount", &place, &Question::Volume)?;
        settled::check(&meaning, &served["settings"])?;
    }
    let root = mounts::open(mount).map_err(|error| Failure::io(&*shown, &error))?;
    change(&root, mount, &meaning).map_err(|errno| {
        let failure = Failure::io(&*shown, &errno.into());
        match errno {
            Errno::BUSY => failure.cure("close the files that are open for writing"),
            Errno::PERM => failure.cure("only root changes a mount"),
            _ => failure,
        }
    })?;
    if !meaning.fuse.is_writable && !mount.is_read_only() {
        umount::commit(&place).map_err(|error| {
            let why = format!("the last changes could not be written: {}", plain(&error));
            Failure::new(&*shown, why).cure("the mount is read-only now")
        })?;
    }
    for (key, value) in meaning.switches {
        client::ask("mount", &place, &Question::Set { key, value })?;
    }
    Ok(Done::Well)
}

/// The words that the mount has now.
fn as_it_is(mount: &Mount) -> OsString {
    let mut words = vec!["dev,suid"];
    words.extend(["nodev", "nosuid", "noexec"].into_iter().filter(|word| mount.has_flag(word)));
    words.extend(Some("ro").filter(|_| mount.is_read_only()));
    words.extend(Some("sync").filter(|_| mount.has_option("sync")));
    words.join(",").into()
}

/// Has the kernel change the filesystem, where it is to be otherwise, and then the one mount.
fn change(root: &OwnedFd, mount: &Mount, meaning: &Meaning) -> Result<(), Errno> {
    let is_same = mount.is_read_only() != meaning.fuse.is_writable;
    let ro = |is_ro: bool| if is_same { is_ro } else { !meaning.fuse.is_writable };
    let mut words = Vec::new();
    if ro(mount.has_option("ro")) != mount.has_option("ro") {
        words.push(if meaning.fuse.is_writable { "rw" } else { "ro" });
    }
    if meaning.fuse.is_synchronous != mount.has_option("sync") {
        words.push(if meaning.fuse.is_synchronous { "sync" } else { "async" });
    }
    if !words.is_empty() {
        let filesystem =
            fspick(root, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
        for word in words {
            fsconfig_set_flag(&filesystem, word)?;
        }
        fsconfig_reconfigure(&filesystem)?;
    }
    let flags = flags(meaning, ro(mount.has_flag("ro"))) | MountFlags::BIND;
    mount_remount(format!("/proc/self/fd/{}", root.as_raw_fd()), flags, "")
}

/// The words of a list without those that the mount table alone has.
fn changeable(list: &OsString) -> OsString {
    let is_ours =
        |word: &&[u8]| !OF_THE_CONNECTION.iter().any(|start| word.starts_with(start.as_bytes()));
    let words: Vec<&[u8]> = list.as_bytes().split(|byte| *byte == b',').filter(is_ours).collect();
    OsString::from_vec(words.join(&b','))
}

fn is_open_for_writing(place: &Path) -> Result<bool, Failure> {
    let stats = client::ask("mount", place, &Question::Stats { form: Form::Json })?;
    Ok(stats["is_writable"].as_bool().unwrap_or(false))
}

fn flags(meaning: &Meaning, is_read_only: bool) -> MountFlags {
    let options = &meaning.fuse;
    let all = [
        (is_read_only, MountFlags::RDONLY),
        (!options.devices, MountFlags::NODEV),
        (!options.set_user_id, MountFlags::NOSUID),
        (!options.execute, MountFlags::NOEXEC),
    ];
    let set = all.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(MountFlags::NOATIME, |flags, (_, flag)| flags | flag)
}
