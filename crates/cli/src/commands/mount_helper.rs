//! What mount(8) and umount(8) call for the type `fuse.butternut`, under the names
//! `mount.fuse.butternut` and `umount.fuse.butternut`: their words become those of the commands.
//!
//! ```text
//! mount.fuse.butternut VOLUME MOUNTPOINT [-sfnvrw] [-t TYPE] [-N NAMESPACE] [-o OPTIONS]
//! umount.fuse.butternut MOUNTPOINT [-nlfvr] [-t TYPE] [-N NAMESPACE]
//! ```
//!
//! 1. Options that are for mount(8) itself are left out.
//! 2. mount(8) passes on what restricts a mount (`nodev`, `nosuid`, `noexec`) and leaves out its
//!    defaults (`dev`, `suid`, `exec`, `rw`). So without a word they are on, as for every other
//!    filesystem that root mounts. For other users fusermount3 decides.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::mount;

/// Words of fstab that mean nothing to a filesystem.
const FOR_MOUNT_ALONE: [&str; 15] = [
    "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup",
    "_netdev", "nofail", "defaults", "loop", "quiet",
];

/// The words of `butternut mount`, for root or another user.
pub(crate) fn mount_words(words: &[OsString], is_root: bool) -> Vec<OsString> {
    let (places, lists, _) = sorted(words);
    let has = |wanted: &[u8]| {
        lists.iter().any(|list| list.as_bytes().split(|byte| *byte == b',').any(|w| w == wanted))
    };
    let mut options: Vec<&[u8]> = Vec::new();
    // A remount keeps what it has no word for.
    if is_root && !has(b"remount") {
        options.extend([&b"dev"[..], b"suid"]);
    }
    for word in lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b',')) {
        let text = String::from_utf8_lossy(word);
        let is_comment = ["x-", "X-", "comment="].iter().any(|start| text.starts_with(start));
        if !word.is_empty() && !is_comment && !FOR_MOUNT_ALONE.contains(&&*text) {
            options.push(word);
        }
    }
    mount::words(&places, &OsString::from_vec(options.join(&b',')))
}

/// The words of `butternut umount`.
pub(crate) fn umount_words(words: &[OsString]) -> Vec<OsString> {
    let (places, _, letters) = sorted(words);
    let mut umount: Vec<OsString> = vec!["butternut".into(), "umount".into()];
    if letters.contains(&b'l') {
        umount.push("--lazy".into());
    }
    umount.push("--".into());
    umount.extend(places);
    umount
}

/// Places, lists of options, and single letters.
fn sorted(words: &[OsString]) -> (Vec<OsString>, Vec<OsString>, Vec<u8>) {
    let (mut places, mut lists, mut letters) = (Vec::new(), Vec::new(), Vec::new());
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => lists.extend(words.next().cloned()),
            b"-t" | b"-N" => drop(words.next()),
            [b'-', b'o', list @ ..] => lists.push(OsStr::from_bytes(list).to_owned()),
            [b'-', letter, more @ ..] if letter.is_ascii_alphabetic() => {
                letters.push(*letter);
                letters.extend_from_slice(more);
            }
            _ => places.push(word.clone()),
        }
    }
    (places, lists, letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(helper: impl Fn(&[OsString]) -> Vec<OsString>, line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let words = helper(&words);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_words_of_fstab_become_those_of_the_command() {
        let user = |words: &[OsString]| mount_words(words, false);
        let root = |words: &[OsString]| mount_words(words, true);
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
            check(umount_words, "umount.fuse.butternut /m -l"),
            "butternut umount --lazy -- /m"
        );
    }
}
