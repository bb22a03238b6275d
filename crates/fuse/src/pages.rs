//! The kernel's page cache of a mount: by default it reads 128 KiB ahead, and holds back whoever
//! has written a hundredth of the memory. Both are a fraction of what a disk's filesystem gets.
//!
//! The limits stand in sysfs, by the mount's device number, and only root may change them. Where
//! they cannot be changed the mount is slower, and nothing else.

use std::fs;
use std::path::Path;

/// Two reads in flight ahead of the reader, and the limits of a disk.
const LIMITS: [(&str, &str); 3] =
    [("read_ahead_kb", "4096"), ("strict_limit", "0"), ("max_ratio", "100")];

/// Raises the limits of the mount on `mountpoint`, an absolute path without symlinks.
pub(crate) fn raise_limits(mountpoint: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(device) = device_of(&mounts, mountpoint) else { return };
    for (name, value) in LIMITS {
        fs::write(format!("/sys/class/bdi/{device}/{name}"), value).unwrap_or_default();
    }
}
/// The device number of the last mount on `mountpoint`. Asking the mount itself would wait for an
/// answer that nobody gives yet.
fn device_of<'a>(mounts: &'a str, mountpoint: &Path) -> Option<&'a str> {
    let wanted = escaped(mountpoint);
    mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?;
        (fields.nth(1)? == wanted).then_some(device)
    })
}

/// A path as mountinfo writes it.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for c in path.display().to_string().chars() {
        match c {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\\' => text.push_str("\\134"),
            c => text.push(c),
        }
    }
    text
}

#[test]
fn the_last_mount_on_a_path_is_found() {
    let mounts = "22 1 0:5 / /mnt rw - ext4 /dev/a rw\n\
                  23 1 0:44 / /mnt ro - fuse.butternut a.img ro\n\
                  24 1 0:45 / /mnt/a\\040b ro - fuse.butternut a.img ro\n";
    assert_eq!(device_of(mounts, Path::new("/mnt")), Some("0:44"));
    assert_eq!(device_of(mounts, Path::new("/mnt/a b")), Some("0:45"));
    assert_eq!(device_of(mounts, Path::new("/m")), None);
}
