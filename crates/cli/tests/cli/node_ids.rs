//! A volume on which the numbers of files collide. An unprivileged caller that may open one file of
//! a mount must not reach another file through it.
//!
//! ```text
//! file            id (subvolume, inode)     number, as ids were once folded
//! open    0666    (5, 256 << 40 | 257)      256 << 40 | 257
//! secret  0600    (256, 257)                256 << 40 | 257
//! mine    0666    (5, X)                    1 << 63 | hash of (5, X), the same as of (5, Y)
//! theirs  0600    (5, Y)
//! ```
//!
//! The kernel takes files with one node id for one file: it would check the permissions of the
//! first and read the second.

use std::path::{Path, PathBuf};

use butternut::FileId;

use super::command::{butternut, shell};
use super::hostile::rewrite_items;
use super::image::kernel_tests_enabled;
use super::mount::MountPoint;

const INODE_ITEM: u8 = 1;
const INODE_REF: u8 = 12;
const DIR_ITEM: u8 = 84;
const DIR_INDEX: u8 = 96;
const EXTENT_DATA: u8 = 108;

const TOP_LEVEL: u64 = 5;
/// The subvolume and the inode number of the secret.
const SECRET: (u64, u64) = (256, 257);

/// Inverts the mixing function of `FileId::as_u64`.
fn unmixed(word: u64) -> u64 {
    let unshifted = |word: u64, by: u32| word ^ word >> by ^ word.checked_shr(2 * by).unwrap_or(0);
    let undone = |word: u64, factor: u64| {
        // Each step of Newton's method doubles the number of correct bits of the inverse.
        let step =
            |found: u64, _| found.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(found)));
        word.wrapping_mul((0..6).fold(factor, step))
    };
    let word = undone(unshifted(word, 31), 0x94d0_49bb_1331_11eb);
    unshifted(undone(unshifted(word, 27), 0xbf58_476d_1ce4_e5b9), 30)
}

/// Returns two inode numbers of the top level whose files have the same number, the smaller first.
fn twins() -> [u64; 2] {
    let of_hash = |hash: u64| unmixed(unmixed(hash) ^ TOP_LEVEL.rotate_left(32));
    let mut twins = [7, 1 << 63 | 7].map(of_hash);
    twins.sort_unstable();
    let numbers = twins.map(|ino| FileId::new(TOP_LEVEL, ino).as_u64());
    assert!(
        numbers[0] == numbers[1] && twins[0] != twins[1] && twins[0] > SECRET.0 << 40 | SECRET.1
    );
    twins
}

/// Gives an inode of the top level another number, by which it keeps its position among the keys.
fn renumber(image: &Path, name: &[u8], was: u64, number: u64) {
    let mut changes = 0;
    rewrite_items(image, |key, data| {
        let of_inode = [INODE_ITEM, INODE_REF, EXTENT_DATA].contains(&key[8]);
        let of_entry = [DIR_ITEM, DIR_INDEX].contains(&key[8]);
        if of_inode && key[..8] == was.to_le_bytes() {
            key[..8].copy_from_slice(&number.to_le_bytes());
        } else if of_entry && data[30..] == *name && data[..8] == was.to_le_bytes() {
            data[..8].copy_from_slice(&number.to_le_bytes());
        } else {
            return false;
        }
        changes += 1;
        true
    });
    // An inode item, a reference, an extent and two entries, each in two copies, and in older
    // leaves.
    assert!(changes >= 2 * 5, "{changes} items were changed");
}

fn prepared(scratch: &tempfile::TempDir) -> PathBuf {
    let (image, mount_point) = (scratch.path().join("image"), MountPoint::new());
    // No file of the top level has the number of the secret.
    shell(&format!(
        "truncate -s 256M {image}; mkfs.btrfs -q -m dup {image}; mount -o loop {image} {mount_point}
         cd {mount_point}; echo > first; btrfs -q subvolume create sub
         echo secret > sub/secret; chmod 600 sub/secret
         for name in open mine theirs; do echo $name > $name; done
         chmod 666 open mine; chmod 600 theirs
         test $(stat -c %i sub/secret) = 257
         test \"$(echo $(stat -c %i open mine theirs))\" = '258 259 260'
         cd /; umount {mount_point}",
        image = image.display(),
        mount_point = mount_point.name()
    ));
    let [mine, theirs] = twins();
    renumber(&image, b"theirs", 260, theirs);
    renumber(&image, b"mine", 259, mine);
    renumber(&image, b"open", 258, SECRET.0 << 40 | SECRET.1);
    image
}

/// Returns what an unprivileged user's script prints, with its errors.
fn as_user(mount_point: &MountPoint, script: &str) -> String {
    let user = "setpriv --reuid=1000 --regid=1000 --clear-groups";
    shell(&format!("cd {}; {user} sh -c '{script}' 2>&1 || true", mount_point.name()))
}

#[test]
fn files_with_colliding_numbers_have_different_node_ids() {
    if !kernel_tests_enabled("files_with_colliding_numbers_have_different_node_ids") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = prepared(&scratch);
    let pairs = [("open", "sub/secret", "secret\n"), ("mine", "theirs", "theirs\n")];
    for options in ["allow_other", "allow_other,writeback", "allow_other,uncached"] {
        for user_is_first in [true, false] {
            let mount_point = MountPoint::new();
            butternut(&["mount", "-o", options, image.to_str().unwrap(), mount_point.name()]).ok();
            for (own, other, text) in pairs {
                let what = format!("{options}: {own} and {other}");
                let as_root = || shell(&format!("cat {}/{other}", mount_point.name()));
                if !user_is_first {
                    assert_eq!(as_root(), text, "{what}");
                }
                assert_eq!(
                    as_user(&mount_point, &format!("cat {own}")),
                    format!("{own}\n"),
                    "{what}"
                );
                // Also while the user has its own file open.
                let output =
                    as_user(&mount_point, &format!("exec 3<>{own}; cat {other}; echo {own} >&3"));
                assert!(
                    output.contains("Permission denied") && !output.contains(text),
                    "{what}: {output}"
                );
                let output = as_user(&mount_point, &format!("echo gone > {other}"));
                assert!(output.contains("Permission denied"), "{what}: {output}");
                assert_eq!(as_root(), text, "{what}");
                assert_eq!(
                    as_user(&mount_point, &format!("cat {own}")),
                    format!("{own}\n"),
                    "{what}"
                );
                let number =
                    |name: &str| shell(&format!("stat -c %i {}/{name}", mount_point.name()));
                assert_ne!(number(own), number(other), "{what}");
            }
            butternut(&["umount", mount_point.name()]).ok();
        }
    }
}
