//! `mount -o remount`: what of a mount can be changed while it serves.
//!
//! | words | changed by |
//! |---|---|
//! | `ro`, `rw`, `sync`, `async` | the kernel, for every directory that the mount is bound to |
//! | `dev`, `suid`, `exec` and their opposites | the kernel, for this directory |
//! | the switches of `ctl` | the process that serves the mount |
//! | all others | nothing: another value than the volume has is refused ([`settled`]) |
//!
//! mount(8) adds the words of fstab and of the mount table to those of its command line, so a word
//! that says what is already so is no error.
//!
//! A mount that becomes read-only is committed before the command returns, as the kernel's
//! filesystems are: Linux sends the pages that it holds back, and tells a FUSE process no more.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use butternut_sys::mounts::{self, Mount};
use rustix::io::Errno;
use rustix::mount::MountFlags;

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
    let flags = flags(&meaning);
    rustix::mount::mount_remount(&place, flags, "").map_err(|errno| {
        let failure = Failure::io(&*shown, &errno.into());
        match errno {
            Errno::BUSY => failure.cure("close the files that are open for writing"),
            Errno::PERM => failure.cure("only root changes a mount"),
            _ => failure,
        }
    })?;
    if !meaning.fuse.is_writable && !mount.has_option("ro") {
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
    let of_mount = |word: &&str| ["nodev", "nosuid", "noexec"].contains(word);
    let mut words: Vec<&str> = vec!["dev,suid"];
    words.extend(mount.flags.split(',').filter(of_mount));
    words.extend(mount.options.split(',').filter(|word| ["ro", "sync"].contains(word)));
    words.join(",").into()
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

fn flags(meaning: &Meaning) -> MountFlags {
    let options = &meaning.fuse;
    let all = [
        (!options.is_writable, MountFlags::RDONLY),
        (options.is_synchronous, MountFlags::SYNCHRONOUS),
        (!options.devices, MountFlags::NODEV),
        (!options.set_user_id, MountFlags::NOSUID),
        (!options.execute, MountFlags::NOEXEC),
    ];
    let set = all.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(MountFlags::NOATIME, |flags, (_, flag)| flags | flag)
}
