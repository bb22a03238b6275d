//! Subvolumes, snapshots and deletions by Butternut and by the kernel, in turns: after each turn of
//! Butternut, `btrfs check` finds no error, and the kernel's mount shows the same contents.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::manual_assert,
    reason = "tests panic on failure, and print what is left out"
)]

mod kernel_compare;
mod kernel_image;

use butternut::{
    DevicePath, FileId, Filesystem, Follow, MountOptions, NewInode, SnapshotAccess, TOP_LEVEL,
};
use kernel_compare::compare;
use kernel_image::{KernelImage, kernel_is_here, run};
use std::cell::Cell;

fn open(image: &KernelImage, read_only: bool) -> Filesystem {
    let options = MountOptions::default().read_only(read_only).commit_seconds(0);
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, &options).unwrap()
}

/// Runs `btrfs check` and the kernel on the volume, and the kernel's scrub.
fn judge(image: &KernelImage) {
    let path = image.devices[0].to_string_lossy().into_owned();
    run("btrfs", &["check", "--check-data-csum", &path]);
    let mount = image.mount("ro");
    run("btrfs", &["scrub", "start", "-Br", &mount.path().to_string_lossy()]);
    let filesystem = open(image, true);
    compare(&filesystem, filesystem.root(), mount.path());
}

fn subvolume(filesystem: &Filesystem, path: &str) -> u64 {
    let id = filesystem.resolve(path.as_bytes(), Follow::Last).unwrap();
    assert!(id.is_subvolume_root(), "{path}");
    id.subvolume
}

fn write(filesystem: &Filesystem, path: &str, bytes: &[u8]) {
    let new = NewInode { permissions: 0o644, umask: 0, uid: 1000, gid: 100 };
    let file = filesystem.open_path(path.as_bytes());
    let file = file.unwrap_or_else(|_| filesystem.create_path(path.as_bytes(), &new).unwrap());
    file.truncate(0).unwrap();
    file.write_at(0, bytes).unwrap();
}

/// A tree of several levels, with data extents of all kinds.
const MANY_FILES: &str = "
btrfs -q subvolume create big
for i in $(seq 3000); do echo $i > big/small$i; done
for i in $(seq 300); do head -c $((i * 500)) /dev/urandom > big/file$i; done
long=$(head -c 1500 /dev/zero | tr '\\0' x)
for i in $(seq 700); do setfattr -n user.long -v $long big/small$i; done
cp --reflink=always big/file300 big/clone
mkdir out
sync
";

#[test]
fn a_rich_volume_gets_subvolumes_and_snapshots() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", include_str!("kernel_image/rich.sh"));
    let filesystem = open(&image, false);
    let root = filesystem.root();
    let new = NewInode { permissions: 0o750, umask: 0, uid: 1000, gid: 100 };
    filesystem.create_subvolume(root, b"ours", &new).unwrap();
    write(&filesystem, "ours/file", &vec![7; 100_000]);
    let ours = FileId::root_of(subvolume(&filesystem, "ours"));
    for (number, source) in ["sub", "snap", "snapro", "topsnap", "own", "ours"].iter().enumerate() {
        let access =
            if number % 2 == 0 { SnapshotAccess::ReadOnly } else { SnapshotAccess::ReadWrite };
        let source = subvolume(&filesystem, source);
        filesystem.snapshot(source, ours, format!("of {number}").as_bytes(), access).unwrap();
    }
    filesystem.snapshot(TOP_LEVEL, root, b"all", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "all/noise", &vec![1; 500_000]);
    write(&filesystem, "dir/f1", b"changed");
    write(&filesystem, "ours/of 1/a/b/c/new", b"new");
    filesystem.close().unwrap();
    judge(&image);
    {
        let mount = image.mount("rw");
        let script = format!(
            "set -e; cd '{}'\n\
             btrfs subvolume show 'ours/of 0' | grep -q readonly\n\
             uuid() {{ btrfs subvolume show \"$1\" | grep -P \"^\\t$2\" | awk '{{print $NF}}'; }}\n\
             test \"$(uuid 'ours/of 0' 'Parent UUID')\" = \"$(uuid sub UUID)\"\n\
             echo kernel > 'ours/of 1/kernel'; rm -r all/dir\n\
             btrfs -q subvolume snapshot all ours/by_kernel\n\
             btrfs -q subvolume delete all\n\
             btrfs subvolume sync .",
            mount.path().display()
        );
        run("bash", &["-c", &script]);
    }
    let filesystem = open(&image, false);
    filesystem.delete_subvolume(ours, b"by_kernel").unwrap();
    filesystem.delete_subvolume(ours, b"of 3").unwrap();
    filesystem.clean_subvolumes().unwrap();
    filesystem.close().unwrap();
    judge(&image);
}

#[test]
fn a_deletion_that_stops_goes_on_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    for steps in [2_u32, 30] {
        let image = KernelImage::make(1, &[], "", MANY_FILES);
        let filesystem = open(&image, false);
        let root = filesystem.root();
        let big = subvolume(&filesystem, "big");
        filesystem.snapshot(big, root, b"kept", SnapshotAccess::ReadOnly).unwrap();
        for number in 0..200 {
            write(&filesystem, &format!("big/small{}", number * 7 + 1), &[2; 6000]);
        }
        filesystem.delete_subvolume(root, b"big").unwrap();
        let left = Cell::new(steps);
        let goes_on = || left.replace(left.get().saturating_sub(1)) > 0;
        filesystem.clean_subvolumes_while(&goes_on).unwrap();
        filesystem.close().unwrap();
        judge(&image);
        {
            let mount = image.mount("rw");
            run("btrfs", &["subvolume", "sync", &mount.path().to_string_lossy()]);
        }
        judge(&image);
        let filesystem = open(&image, false);
        assert!(filesystem.clean_subvolumes().unwrap().is_empty());
        filesystem.delete_subvolume(root, b"kept").unwrap();
        filesystem.clean_subvolumes().unwrap();
        filesystem.close().unwrap();
        judge(&image);
    }
}

#[test]
fn a_deletion_of_the_kernel_goes_on_here() {
    if !kernel_is_here() {
        return;
    }
    let script = format!(
        "{MANY_FILES}
         btrfs -q subvolume snapshot big kept; rm kept/small1*; echo x > big/small5; sync
         btrfs -q subvolume snapshot -r big gone; btrfs -q subvolume delete big gone"
    );
    let image = KernelImage::make(1, &[], "", &script);
    let filesystem = open(&image, false);
    assert!(filesystem.clean_subvolumes().unwrap().is_empty());
    filesystem.close().unwrap();
    judge(&image);
    let filesystem = open(&image, true);
    assert_eq!(filesystem.subvolumes().unwrap().len(), 1);
}
