//! The helpers that mount(8) and umount(8) run for the type `fuse.butternut`, under the names
//! `mount.fuse.butternut` and `umount.fuse.butternut`, and for the type `fuseblk.butternut`. Their
//! arguments are translated to those of `butternut mount` and `butternut umount`.
//!
//! ```text
//! mount.fuse.butternut VOLUME MOUNTPOINT [-sfnvrw] [-t TYPE] [-N NAMESPACE] [-o OPTIONS]
//! umount.fuse.butternut MOUNTPOINT [-nlfvr] [-t TYPE] [-N NAMESPACE]
//! ```
//!
//! 1. Options for mount(8) itself are dropped, except two: `-f` mounts nothing, and `-r` is `ro`.
//! 2. mount(8) passes restrictions on (`nodev`, `nosuid`, `noexec`), but not its defaults (`dev`,
//!    `suid`, `exec`, `rw`). So for root `dev` and `suid` are on unless restricted, as for every
//!    other filesystem. For other users fusermount3 decides.
//! 3. The type `fuseblk.butternut` is the option `blkdev`.
//! 4. An unmount says nothing when it succeeds, as of every other filesystem, unless `-v` is given.
//! 5. With `nofail`, a volume with a device that does not exist is not mounted, and that is no
//!    failure: mount(8) keeps this promise only for the filesystems that it mounts itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::volume::arg;

/// The helper for mounts of block devices.
const BLOCK_HELPER: &str = "mount.fuseblk.butternut";

/// Options of fstab(5) that concern only mount(8).
const MOUNT_ONLY: [&str; 15] = [
    "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup",
    "_netdev", "nofail", "defaults", "loop", "quiet",
];

/// Returns the command line of `butternut mount`, for root or another user. Returns `None` if there
/// is nothing to do: a mount is only simulated, as by `mount -f`, or law 5 applies.
pub(crate) fn mount_arguments(arguments: &[OsString], is_root: bool) -> Option<Vec<OsString>> {
    let (paths, lists, letters) = split_arguments(arguments);
    if letters.contains(&b'f') {
        return None;
    }
    let has = |wanted: &[u8]| {
        lists.iter().any(|list| list.as_bytes().split(|byte| *byte == b',').any(|w| w == wanted))
    };
    if has(b"nofail") && !has(b"remount") && is_absent(&paths) {
        return None;
    }
    let mut options: Vec<&[u8]> = Vec::new();
    if is_named(arguments, BLOCK_HELPER) && !has(b"remount") && !has(b"blkdev") {
        options.push(b"blkdev");
    }
    // A remount keeps the options that it does not name.
    if is_root && !has(b"remount") {
        options.extend([&b"dev"[..], b"suid"]);
    }
    if letters.contains(&b'r') {
        options.push(b"ro");
    }
    for argument in lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b',')) {
        let text = String::from_utf8_lossy(argument);
        let is_comment = ["x-", "X-", "comment="].iter().any(|start| text.starts_with(start));
        if !argument.is_empty() && !is_comment && !MOUNT_ONLY.contains(&&*text) {
            options.push(argument);
        }
    }
    Some(super::command_line(&paths, &OsString::from_vec(options.join(&b','))))
}

/// Returns whether a device of the volume, which is named before the mount point, does not exist.
fn is_absent(paths: &[OsString]) -> bool {
    let Some((_, volume)) = paths.split_last() else { return false };
    let parsed = arg::parse(volume);
    parsed.is_ok_and(|volume| volume.devices.iter().any(|device| !device.path.exists()))
}

/// Returns the command line of `butternut umount`.
pub(crate) fn umount_arguments(arguments: &[OsString]) -> Vec<OsString> {
    let (paths, _, letters) = split_arguments(arguments);
    let mut umount: Vec<OsString> = vec!["butternut".into(), "umount".into()];
    if !letters.contains(&b'v') {
        umount.push("--quiet".into());
    }
    if letters.contains(&b'l') {
        umount.push("--lazy".into());
    }
    umount.push("--".into());
    umount.extend(paths);
    umount
}

/// Returns whether the program was called by a name.
fn is_named(arguments: &[OsString], name: &str) -> bool {
    let called = arguments.first().and_then(|argument| Path::new(argument).file_name());
    called.is_some_and(|called| called == name)
}

/// Splits the arguments into paths, option lists, and single-letter options.
fn split_arguments(arguments: &[OsString]) -> (Vec<OsString>, Vec<OsString>, Vec<u8>) {
    let (mut paths, mut lists, mut letters) = (Vec::new(), Vec::new(), Vec::new());
    let mut arguments = arguments.iter().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_bytes() {
            b"-o" => lists.extend(arguments.next().cloned()),
            b"-t" | b"-N" => drop(arguments.next()),
            [b'-', b'o', list @ ..] => lists.push(OsStr::from_bytes(list).to_owned()),
            [b'-', letter, more @ ..] if letter.is_ascii_alphabetic() => {
                letters.push(*letter);
                letters.extend_from_slice(more);
            }
            _ => paths.push(argument.clone()),
        }
    }
    (paths, lists, letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(helper: impl Fn(&[OsString]) -> Vec<OsString>, line: &str) -> String {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let arguments = helper(&arguments);
        arguments.iter().map(|argument| argument.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn arguments_of_mount_8_become_those_of_the_command() {
        let user = |arguments: &[OsString]| mount_arguments(arguments, false).unwrap();
        let root = |arguments: &[OsString]| mount_arguments(arguments, true).unwrap();
        assert_eq!(
            check(user, "mount.fuse.butternut a.img /m -s -o rw,noauto,subvol=x,x-a.b"),
            "butternut mount -o rw,subvol=x -- a.img /m"
        );
        assert_eq!(
            check(user, "mount.fuse.butternut a.img /m -t fuse.butternut"),
            "butternut mount -- a.img /m"
        );
        assert_eq!(
            check(root, "mount.fuse.butternut a.img /m -o rw,nosuid"),
            "butternut mount -o dev,suid,rw,nosuid -- a.img /m"
        );
        assert_eq!(
            check(root, "mount.fuse.butternut a.img /m -o remount,ro"),
            "butternut mount -o remount,ro -- a.img /m"
        );
        assert_eq!(
            check(user, "mount.fuse.butternut a.img /m -r -o noexec"),
            "butternut mount -o ro,noexec -- a.img /m"
        );
        for (line, translated) in [
            ("/d /m -o rw", "-o blkdev,dev,suid,rw -- /d /m"),
            ("/d /m -o blkdev", "-o dev,suid,blkdev -- /d /m"),
            ("/d /m -o remount,ro", "-o remount,ro -- /d /m"),
        ] {
            let line = format!("/sbin/mount.fuseblk.butternut {line}");
            assert_eq!(check(root, &line), format!("butternut mount {translated}"));
        }
        let simulated = ["mount.fuse.butternut", "a.img", "/m", "-sfnv"].map(OsString::from);
        assert_eq!(mount_arguments(&simulated, true), None);
        assert_eq!(
            check(umount_arguments, "umount.fuse.butternut /m -l"),
            "butternut umount --quiet --lazy -- /m"
        );
        assert_eq!(
            check(umount_arguments, "umount.fuse.butternut /m -v"),
            "butternut umount -- /m"
        );
    }
}
