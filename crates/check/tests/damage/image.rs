//! Makes four small volumes with the kernel, which have every structure that the cases damage.
//!
//! They are kept in Cargo's temporary directory for tests, under the hash of their script. Needs
//! root, loop devices and btrfs-progs.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns whether tests that need the kernel are skipped.
pub(crate) fn is_without_kernel() -> bool {
    std::env::var_os("BUTTERNUT_NO_KERNEL").is_some_and(|value| !value.is_empty())
}

/// Returns a volume with the current features of mkfs.btrfs.
pub(crate) fn current() -> Vec<u8> {
    made("damage-today", "-O block-group-tree,free-space-tree,no-holes")
}

/// Returns a volume with hole extents, block groups in the extent tree and non-skinny metadata.
pub(crate) fn old() -> Vec<u8> {
    made(
        "damage-old",
        "-O ^no-holes,^block-group-tree,free-space-tree,^skinny-metadata -m single -n 4096",
    )
}

/// Returns a volume with quotas.
pub(crate) fn quotas() -> Vec<u8> {
    made("damage-quotas", "-O quota,block-group-tree,free-space-tree,no-holes")
}

/// Returns a volume with simple quotas.
pub(crate) fn simple_quotas() -> Vec<u8> {
    made("damage-simple-quotas", "-O squota,block-group-tree,free-space-tree,no-holes")
}

/// Returns a volume of Linux 6.12 with sealed files: `a` has a tree of two levels.
pub(crate) fn sealed() -> Vec<u8> {
    let packed = include_bytes!("../../../fs/tests/images/verity-damaged.img.zst");
    zstd::decode_all(packed.as_slice()).unwrap()
}

const FILL: &str = r"
    truncate -s 128M IMG; mkfs.btrfs -q MKFS IMG
    mkdir -p DIR; mount -o loop,nobarrier IMG DIR
    trap 'cd /; umount DIR' EXIT
    cd DIR
    mkdir d d/e; mkfifo d/fifo; ln -s d/plain link
    head -c 65536 /dev/urandom > d/plain; head -c 20000 /dev/urandom > d/other
    echo small > d/small; echo tiny > d/e/tiny; ln d/small d/e/hard; ln d/small d/again
    touch d/bare; chattr +C d/bare; head -c 16384 /dev/urandom > d/bare
    fallocate -l 1M d/reserved
    head -c 65536 /dev/urandom > d/gone; head -c 65536 /dev/urandom > d/behind
    truncate -s 1M d/sparse; printf x | dd of=d/sparse bs=1 seek=500000 conv=notrunc status=none
    setfattr -n user.one -v 1 d/plain; setfattr -n user.two -v 22 d/plain
    cp --reflink=always d/plain d/clone
    long=$(printf 'n%.0s' $(seq 220))
    for n in $(seq 100 180); do ln d/small d/e/$long$n; done
    mkdir many; for n in $(seq 100 400); do echo $n > many/$n; done
    btrfs -q subvolume create sub
    for n in $(seq 100 700); do head -c 300 /dev/urandom > sub/inline$n; done
    for n in $(seq 100 130); do head -c 8192 /dev/urandom > sub/file$n; done
    sync -f .
    btrfs -q subvolume snapshot sub snap
    rm d/gone
    for n in $(seq 100 10 130); do echo changed > sub/file$n; done
    for n in $(seq 100 40 200); do echo changed > snap/inline$n; done
    exec 3> d/unlinked; head -c 9000 /dev/urandom >&3; rm d/unlinked
    sync -f .; btrfs filesystem sync .
    cp --sparse=always IMG IMG.kept
    exec 3>&-
    cd /; umount DIR; trap - EXIT; mv IMG.kept IMG";

fn made(name: &str, mkfs: &str) -> Vec<u8> {
    let place = |name: String| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let lock = File::create(place(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let mut hasher = DefaultHasher::new();
    (FILL, mkfs).hash(&mut hasher);
    let stem = format!("{name}-{:016x}", hasher.finish());
    let image = place(format!("{stem}.img"));
    if !image.exists() {
        make(&image, &place(format!("{stem}.dir")), mkfs);
    }
    fs::read(&image).unwrap()
}

fn make(image: &Path, folder: &Path, mkfs: &str) {
    let half: PathBuf = image.with_extension("half");
    let words = [("IMG", half.to_str().unwrap()), ("DIR", folder.to_str().unwrap())];
    let script = words
        .iter()
        .fold(FILL.replace("MKFS", mkfs), |text, (word, path)| text.replace(word, path));
    let _guard = butternut_undo::MountGuard::before_mount(folder).unwrap();
    let script = format!("{}{script}", butternut_undo::UMOUNT_FUNCTION);
    let output = Command::new("bash").args(["-ec", &script]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "an image needs root, loop devices, btrfs-progs: {stderr}");
    fs::rename(half, image).unwrap();
}
