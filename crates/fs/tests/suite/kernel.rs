//! Images written by the kernel, read through the library and through the kernel's own mount.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_compare::compare;
use crate::kernel_image::{KernelImage, kernel_is_here};
use butternut::{DevicePath, FileId, Filesystem, MountOptions, Subvolume};
use rustix::fs;
use std::fmt::Write;
use std::fs::File;
use std::path::Path;

fn open(image: &KernelImage, subvolume: Subvolume) -> Filesystem {
    let options = MountOptions::default().subvolume(subvolume);
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, &options).unwrap()
}

fn compare_statfs(filesystem: &Filesystem, path: &Path) {
    let (have, want) = (filesystem.statfs().unwrap(), fs::statvfs(path).unwrap());
    assert_eq!(u64::from(have.block_bytes), want.f_bsize);
    assert_eq!(have.blocks, want.f_blocks, "blocks");
    assert_eq!(have.blocks_free, want.f_bfree, "free blocks");
    assert_eq!(have.blocks_available, want.f_bavail, "available blocks");
    assert_eq!(have.fsid, want.f_fsid, "fsid");
    assert_eq!((have.files, have.files_free), (want.f_files, want.f_ffree));
}

/// Compares a whole image, from each of the given subvolumes.
fn compare_image(image: &KernelImage, subvolumes: &[&str], inodes_min: u64) {
    for subvolume in subvolumes {
        let mount = image.mount(&format!("ro,subvol={subvolume}"));
        let filesystem = open(image, Subvolume::Path(subvolume.as_bytes().to_vec()));
        compare_statfs(&filesystem, mount.path());
        let seen = compare(&filesystem, filesystem.root(), mount.path());
        assert!(seen >= inodes_min, "{subvolume}: only {seen} inodes");
    }
}

#[test]
fn a_volume_with_every_feature_reads_as_through_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "compress=zstd", include_str!("../kernel_image/rich.sh"));
    compare_image(&image, &["/snap", "/own", "/ownsnap"], 3);
    compare_image(&image, &["/"], 1000);
}

#[test]
fn the_root_is_the_default_subvolume_unless_another_is_named() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs -q subvolume create a; echo in a > a/file; \
                  btrfs subvolume set-default a";
    let image = KernelImage::make(1, &["--nodesize", "4096"], "", script);
    let filesystem = open(&image, Subvolume::Default);
    assert_eq!(filesystem.root(), FileId::new(256, 256));
    assert!(filesystem.lookup(filesystem.root(), b"file").is_ok());
    assert_eq!(open(&image, Subvolume::Id(5)).root(), FileId::new(5, 256));
    let mount = image.mount("ro");
    compare(&filesystem, filesystem.root(), mount.path());
}

#[test]
fn statfs_agrees_with_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let profiles = [
        (1, "single", "dup"),
        (2, "raid1", "raid1"),
        (2, "raid0", "raid1"),
        (3, "raid5", "raid1c3"),
        (4, "raid10", "raid1c4"),
        (4, "raid6", "raid1c3"),
        (3, "single", "raid1"),
    ];
    for (devices, data, metadata) in profiles {
        let options = ["-d", data, "-m", metadata];
        let script = "head -c 30000000 /dev/urandom > noise; truncate -s 1G hole";
        let image = KernelImage::make(devices, &options, "", script);
        let mount = image.mount("ro");
        let filesystem = open(&image, Subvolume::Default);
        compare_statfs(&filesystem, mount.path());
        compare(&filesystem, filesystem.root(), mount.path());
    }
    for options in [&["--mixed"][..], &["-O", "^free-space-tree"], &["-O", "block-group-tree"]] {
        let image = KernelImage::make(1, options, "", "head -c 3000000 /dev/urandom > noise");
        let mount = image.mount("ro");
        compare_statfs(&open(&image, Subvolume::Default), mount.path());
    }
}

/// Finds pairs of names that share a hash.
fn colliding_names(prefix: &str) -> Vec<[String; 2]> {
    let mut seen = std::collections::HashMap::new();
    let mut pairs = Vec::new();
    for number in 0..300_000_u64 {
        // Names that differ in a few adjacent digits only never share a CRC.
        let name = format!("{prefix}{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let hash = butternut::format::checksum::name_hash(name.as_bytes());
        if let Some(other) = seen.insert(hash, name.clone()) {
            pairs.push([other, name]);
        }
    }
    assert!(!pairs.is_empty(), "no two of the names starting with {prefix:?} share a hash");
    pairs
}

#[test]
fn names_that_share_a_hash_are_distinguished() {
    if !kernel_is_here() {
        return;
    }
    let (files, attributes) = (colliding_names("name-"), colliding_names("user.attribute-"));
    let mut script = "touch all\n".to_owned();
    for name in files.iter().flatten() {
        writeln!(script, "echo {name} > {name}").unwrap();
    }
    for name in attributes.iter().flatten() {
        writeln!(script, "setfattr -n {name} -v {name} all").unwrap();
    }
    let image = KernelImage::make(1, &[], "", &script);
    let mount = image.mount("ro");
    let filesystem = open(&image, Subvolume::Default);
    compare(&filesystem, filesystem.root(), mount.path());
    let all = filesystem.lookup(filesystem.root(), b"all").unwrap();
    let [one, other] = &attributes[0];
    assert_eq!(filesystem.xattr(all, one.as_bytes()).unwrap(), one.as_bytes());
    assert_eq!(filesystem.xattr(all, other.as_bytes()).unwrap(), other.as_bytes());
}

#[test]
fn a_missing_name_with_a_colliding_hash_is_not_found() {
    if !kernel_is_here() {
        return;
    }
    let pairs = colliding_names("name-");
    let [here, absent] = &pairs[0];
    let image = KernelImage::make(1, &[], "", &format!("touch {here}"));
    let filesystem = open(&image, Subvolume::Default);
    assert!(filesystem.lookup(filesystem.root(), here.as_bytes()).is_ok());
    let found = filesystem.lookup(filesystem.root(), absent.as_bytes());
    assert!(matches!(found, Err(butternut::Error::NotFound)), "{found:?}");
}

#[test]
fn a_log_tree_is_replayed_unless_it_is_to_be_ignored() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "echo committed > before");
    let copy = image.devices[0].with_extension("copy");
    {
        let mount = image.mount("rw,commit=300");
        std::fs::write(mount.path().join("after"), "synced").unwrap();
        File::open(mount.path().join("after")).unwrap().sync_all().unwrap();
        std::fs::copy(&image.devices[0], &copy).unwrap();
    }
    let filesystem =
        Filesystem::open(&[DevicePath::from(&copy)], &MountOptions::default()).unwrap();
    let has = |filesystem: &Filesystem, name: &str| {
        filesystem.lookup(filesystem.root(), name.as_bytes()).is_ok()
    };
    assert!(has(&filesystem, "before") && has(&filesystem, "after"));
    assert!(filesystem.notices().is_empty(), "{:?}", filesystem.notices());
    drop(filesystem);
    let ignored = MountOptions::default().ignore_log(true);
    let filesystem = Filesystem::open(&[DevicePath::from(&copy)], &ignored).unwrap();
    assert!(has(&filesystem, "before") && !has(&filesystem, "after"));
    assert!(filesystem.notices().is_empty());
    drop(filesystem);
    // Its first commit would end the log, so a log that is to be ignored is not opened for writing.
    let writable = ignored.read_only(false);
    let error = Filesystem::open(&[DevicePath::from(&copy)], &writable).unwrap_err();
    assert_eq!(error.errno(), 30, "{error:?}");
    let filesystem =
        Filesystem::open(&[DevicePath::from(&copy)], &MountOptions::default().read_only(false));
    filesystem.unwrap().close().unwrap();
    let filesystem =
        Filesystem::open(&[DevicePath::from(&copy)], &MountOptions::default()).unwrap();
    assert!(filesystem.super_block().log_root().is_none() && has(&filesystem, "after"));
    assert!(open(&image, Subvolume::Default).notices().is_empty(), "unmounted cleanly");
}

#[test]
fn a_missing_device_is_named_and_tolerated_with_degraded() {
    if !kernel_is_here() {
        return;
    }
    let options = ["-d", "raid1", "-m", "raid1"];
    let image = KernelImage::make(2, &options, "", "head -c 3000000 /dev/urandom > noise");
    let devices = [DevicePath::from(&image.devices[0])];
    let error = Filesystem::open(&devices, &MountOptions::default()).unwrap_err();
    let mut message = error.to_string();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
        write!(message, ": {cause}").unwrap();
    }
    assert!(message.contains("device 2"), "{message}");
    let degraded = MountOptions::default().degraded(true);
    let filesystem = Filesystem::open(&devices, &degraded).unwrap();
    assert_eq!(filesystem.notices()[0].to_string(), "device 2 is missing");
    assert!(filesystem.devices()[1].missing);
    let mount = image.mount("ro");
    compare(&filesystem, filesystem.root(), mount.path());
}
