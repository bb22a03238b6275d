//! One volume on several mount points: one process, one cache, and each mount has its own flags.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::mount::{MountPoint, holders, own_copy};
use super::mount_end::run_in_namespace;

/// Makes an image with the subvolumes `a` and `b` and the tree of the plain image.
fn image(scratch: &tempfile::TempDir) -> PathBuf {
    let (image, mount_point) = (own_copy(scratch), MountPoint::new());
    shell(&format!(
        "mount -o loop {image} {mount_point}; cd {mount_point}
         btrfs -q subvolume create a; btrfs -q subvolume create b; mkdir b/deep
         cd /; umount {mount_point}",
        image = image.display(),
        mount_point = mount_point.name()
    ));
    image
}

fn is_released(mount_point: &MountPoint) -> bool {
    let output = butternut(&["umount", "--json", mount_point.name()]).ok();
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    report["released"].as_bool().unwrap()
}

#[test]
fn a_served_volume_is_mounted_on_further_mount_points() {
    if !kernel_tests_enabled("a_served_volume_is_mounted_on_further_mount_points") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let link = scratch.path().join("link.img");
    fs::hard_link(&image, &link).unwrap();
    let (a, b, top, again) =
        (MountPoint::new(), MountPoint::new(), MountPoint::new(), MountPoint::new());
    butternut(&["mount", "-o", "subvol=a,commit=3600", path, a.name()]).ok();
    // A second subvolume, the top level by another name of the image, and the first subvolume
    // again.
    butternut(&["mount", "-o", "subvol=/b", path, b.name()]).ok();
    butternut(&["mount", "-o", "subvolid=5", link.to_str().unwrap(), top.name()]).ok();
    butternut(&["mount", "-o", "ro,dev,subvol=a", path, again.name()]).ok();
    assert_eq!(holders(&image).len(), 1, "one process serves all");

    // A change through one mount is visible through all others at once, also in cached data.
    let read = |mount_point: &MountPoint, name: &str| {
        fs::read_to_string(mount_point.path().join(name)).unwrap()
    };
    fs::write(a.path().join("file"), "one").unwrap();
    assert_eq!((read(&top, "a/file"), read(&again, "file")), ("one".into(), "one".into()));
    fs::write(top.path().join("a/file"), "two!").unwrap();
    assert_eq!((read(&a, "file"), read(&again, "file")), ("two!".into(), "two!".into()));
    fs::rename(top.path().join("a/file"), top.path().join("a/other")).unwrap();
    assert!(!a.path().join("file").exists() && again.path().join("other").exists());
    assert!(b.path().join("deep").is_dir());

    // Each mount has its own flags, and its control socket is that of the volume.
    let error = fs::write(again.path().join("new"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30));
    let options = |mount_point: &MountPoint| {
        shell(&format!("findmnt -no VFS-OPTIONS {}", mount_point.name()))
    };
    assert_eq!(options(&again).trim(), "ro,nosuid,noatime");
    assert_eq!(options(&b).trim(), "rw,nosuid,nodev,noatime");
    butternut(&["ctl", b.name(), "nosec=off"]).ok();
    assert_eq!(butternut(&["ctl", again.name(), "nosec"]).ok(), "off\n");
    assert!(butternut(&["stats", top.name()]).ok().contains("commits"));

    // The first mount is like the others, and the last one releases the volume.
    assert!(!is_released(&a));
    fs::write(b.path().join("late"), "late").unwrap();
    butternut(&["mount", "-o", "subvol=a", path, a.name()]).ok();
    for mount_point in [&again, &top, &a] {
        assert!(!is_released(mount_point));
    }
    assert!(is_released(&b));
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    assert_eq!(butternut(&["cat", path, "/b/late"]).ok(), "late");
    assert_eq!(butternut(&["cat", path, "/a/other"]).ok(), "two!");
    shell(&format!("btrfs check --check-data-csum {path} >/dev/null 2>&1"));
}

#[test]
fn a_refused_further_mount_leaves_the_others() {
    if !kernel_tests_enabled("a_refused_further_mount_leaves_the_others") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (MountPoint::new(), MountPoint::new());
    butternut(&["mount", path, first.name()]).ok();
    symlink("/", first.path().join("rootlink")).unwrap();
    symlink("a", first.path().join("alink")).unwrap();
    for (options, why) in [
        ("subvol=none", "no subvolume none (`butternut subvolume list` shows what there is)"),
        ("subvolid=9999", "no subvolume 9999 ("),
        ("subvol=../../etc", "no subvolume ../../etc ("),
        ("subvol=dirlink", "dirlink is a symbolic link, not a subvolume ("),
        ("subvol=dirlink/deep", "dirlink is a symbolic link, not a subvolume ("),
        ("subvol=rootlink", "rootlink is a symbolic link, not a subvolume ("),
        ("subvol=alink", "alink is a symbolic link, not a subvolume ("),
        ("subvol=b/deep", "b/deep is a directory, not a subvolume ("),
        ("subvol=hello.txt", "hello.txt is a file, not a subvolume ("),
    ] {
        let message = butternut(&["mount", "-o", options, path, other.name()]).failure();
        let why = format!("butternut: {path}: {why}");
        assert!(message.starts_with(&why) && !other.is_mounted(), "{options}: {message}");
        assert!(!message.contains('\n'), "{options}: {message}");
    }
    // An option of the whole volume cannot be changed by a further mount.
    for (options, why) in [
        ("uncached", "option uncached: the volume is mounted with parallel_direct (leave it out,"),
        ("compress=zstd", "option compress=zstd: the volume is mounted with compress=no ("),
        ("commit=5", "option commit=5: the volume is mounted with commit=30 ("),
        (
            "sync",
            "option sync: the volume is mounted without it (change all its mount points with ",
        ),
        ("nosec=off", "option nosec=off: the volume is mounted with nosec=on (leave it out, or "),
    ] {
        let message = butternut(&["mount", "-o", options, path, other.name()]).failure();
        assert!(message.contains(why) && !other.is_mounted(), "{options}: {message}");
    }
    // Options that are in effect already are accepted, and so is a subvolume that is named twice.
    let named = format!("{path}@a");
    butternut(&["ctl", first.name(), "nosec=off"]).ok();
    let words = "subvol=/a,nouncached,compress=no,commit=30,degraded,nosec=on,nosec=off";
    butternut(&["mount", "-o", words, &named, other.name()]).ok();
    assert_eq!(butternut(&["ctl", first.name(), "nosec"]).ok(), "off\n");
    // Without --json, a note says that the volume is not released.
    let output = butternut(&["umount", other.name()]);
    let (shown, first_mount_point) = (other.name(), first.name());
    let note =
        format!("butternut: {shown}: note: the volume is still mounted on {first_mount_point}\n");
    // Another test may have a mount namespace of its own, with a copy of the mount.
    let said = output.err.replace(", and in another mount namespace", "");
    assert_eq!((output.code, said, output.out), (Some(0), note, String::new()));
    fs::write(first.path().join("new"), "text").unwrap();
    assert!(is_released(&first));
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
}

#[test]
fn first_and_further_mounts_resolve_subvolumes_alike() {
    if !kernel_tests_enabled("first_and_further_mounts_resolve_subvolumes_alike") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let mount_point = MountPoint::new();
    for (subvolume, why) in [
        ("none", "no subvolume none ("),
        ("dirlink", "dirlink is a symbolic link, not a subvolume ("),
        ("dirlink/deep", "dirlink is a symbolic link, not a subvolume ("),
        ("b/deep", "b/deep is a directory, not a subvolume ("),
    ] {
        let option = format!("subvol={subvolume}");
        let named = format!("{path}@{subvolume}");
        for words in [&["-o", &option, path][..], &["-o", "ro", &named], &["-o", "rw", &named]] {
            let message = butternut(&[&["mount"], words, &[mount_point.name()]].concat()).failure();
            assert!(message.contains(why) && !mount_point.is_mounted(), "{words:?}: {message}");
        }
    }
}

#[test]
fn a_remount_keeps_other_mounts_as_writable_as_they_were() {
    if !kernel_tests_enabled("a_remount_keeps_other_mounts_as_writable_as_they_were") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (MountPoint::new(), MountPoint::new());
    butternut(&["mount", path, first.name()]).ok();
    butternut(&["mount", "-o", "ro,subvol=a", path, other.name()]).ok();
    let remount = |words: &str, mount_point: &MountPoint| {
        butternut(&["mount", "-o", &format!("remount,{words}"), mount_point.name()]).ok();
    };
    let is_writable =
        |mount_point: &MountPoint| fs::write(mount_point.path().join("new"), "").is_ok();
    // mount(8) also passes the options in the mount table: `ro` of a mount is not that of the
    // volume.
    for words in ["exec", "dev,noexec", "nosec=off", "ro,exec", "sync", "async"] {
        remount(words, &other);
        assert!(!is_writable(&other) && is_writable(&first), "{words}");
    }
    let flags = || shell(&format!("findmnt -no VFS-OPTIONS {}", other.name()));
    assert_eq!(flags().trim(), "ro,nosuid,noatime");
    remount("rw", &other);
    assert!(is_writable(&other) && is_writable(&first));
    // A remount of the volume to `ro` applies to every mount. Back to `rw`, a mount that was made
    // `ro` itself stays `ro`.
    remount("ro", &first);
    assert!(!is_writable(&other) && !is_writable(&first));
    remount("ro,noexec", &other);
    remount("rw", &first);
    assert!(is_writable(&other) && is_writable(&first));
    remount("ro", &first);
    remount("rw", &other);
    assert!(is_writable(&other) && !is_writable(&first));
    assert!(!is_released(&other) && is_released(&first));
}

/// The race had a window of a few microseconds, so the test mounts many times.
#[test]
fn a_read_only_further_mount_is_never_writable() {
    if !kernel_tests_enabled("a_read_only_further_mount_is_never_writable") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (MountPoint::new(), MountPoint::new());
    butternut(&["mount", path, first.name()]).ok();
    let (is_over, writable, seen) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let inside = other.path().join("deep");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match rustix::fs::access(&inside, rustix::fs::Access::WRITE_OK) {
                    Ok(()) => drop(writable.fetch_add(1, Ordering::Relaxed)),
                    Err(rustix::io::Errno::ROFS) => drop(seen.fetch_add(1, Ordering::Relaxed)),
                    Err(_) => {}
                }
            }
        });
        for _ in 0..25 {
            butternut(&["mount", "-o", "ro,subvol=b", path, other.name()]).ok();
            shell(&format!("umount {}", other.name()));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(writable.into_inner(), 0);
    assert!(seen.into_inner() > 0, "the read-only mount was seen");
    assert!(is_released(&first));
}

#[test]
fn a_read_only_volume_is_opened_by_each_mount() {
    if !kernel_tests_enabled("a_read_only_volume_is_opened_by_each_mount") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (MountPoint::new(), MountPoint::new());
    butternut(&["mount", "-o", "ro", path, first.name()]).ok();
    butternut(&["mount", "-o", "ro", path, other.name()]).ok();
    assert_eq!(holders(&image).len(), 2);
    let third = MountPoint::new();
    let message = butternut(&["mount", path, third.name()]).failure();
    assert!(message.contains(" is busy: process "), "{message}");
    assert!(is_released(&first) && is_released(&other));
}

#[test]
fn a_remount_keeps_flags_that_other_programs_set() {
    if !kernel_tests_enabled("a_remount_keeps_flags_that_other_programs_set") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let mount_point = MountPoint::new();
    butternut(&["mount", "-o", "nodev", image.to_str().unwrap(), mount_point.name()]).ok();
    shell(&format!("mount -o remount,bind,nodev,nosymfollow {}", mount_point.name()));
    butternut(&["mount", "-o", "remount,nosuid,dev", mount_point.name()]).ok();
    let options = shell(&format!("findmnt -n -o VFS-OPTIONS --mountpoint {}", mount_point.name()));
    let has = |word: &str| options.trim().split(',').any(|option| option == word);
    assert!(has("nosymfollow") && has("nosuid") && has("rw") && !has("nodev"), "{options}");
}

#[test]
fn a_remount_sets_and_clears_synchronous_writing() {
    if !kernel_tests_enabled("a_remount_sets_and_clears_synchronous_writing") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let mount_point = MountPoint::new();
    butternut(&["mount", image.to_str().unwrap(), mount_point.name()]).ok();
    for (word, is_sync) in [("sync", true), ("async", false)] {
        butternut(&["mount", "-o", &format!("remount,{word}"), mount_point.name()]).ok();
        let options =
            shell(&format!("findmnt -n -o FS-OPTIONS --mountpoint {}", mount_point.name()));
        let has_sync = options.trim().split(',').any(|option| option == "sync");
        assert_eq!(has_sync, is_sync, "{word}: {options}");
    }
}

#[test]
fn dotdot_of_a_subvolume_is_listed_with_its_parents_inode_number() {
    if !kernel_tests_enabled("dotdot_of_a_subvolume_is_listed_with_its_parents_inode_number") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let (first, top) = (MountPoint::new(), MountPoint::new());
    butternut(&["mount", "-o", "subvol=a", image.to_str().unwrap(), first.name()]).ok();
    butternut(&["mount", "-o", "subvolid=5", image.to_str().unwrap(), top.name()]).ok();
    // The number comes from the listing, without a lookup.
    let listing = fs::File::open(top.path().join("a")).unwrap();
    let mut entries = rustix::fs::Dir::read_from(&listing).unwrap().map(Result::unwrap);
    let above = entries.find(|entry| entry.file_name() == c"..").unwrap().ino();
    assert_eq!(above, fs::metadata(top.path()).unwrap().ino());
}

#[test]
fn volumes_that_grew_from_one_seed_are_mounted_apart() {
    if !kernel_tests_enabled("volumes_that_grew_from_one_seed_are_mounted_apart") {
        return;
    }
    let output = run_in_namespace(
        "truncate -s 128M seed.img; mkfs.btrfs -q seed.img; btrfstune -f -S 1 seed.img
         truncate -s 300M one.img; S=; L=
         undo() { umount m1; $B umount -q m1; $B umount -q m2; losetup -d $S; losetup -d $L; }
         trap \"undo 2>ignored || true\" EXIT
         S=$(losetup -f --show seed.img); L=$(losetup -f --show one.img)
         mount $S m1; btrfs -q device add -f -K $L m1; mount -o remount,rw m1; umount m1
         losetup -d $S; losetup -d $L; cp one.img two.img
         $B mount one.img seed.img m1; $B mount two.img seed.img m2
         echo one >m1/name; echo two >m2/name; cat m1/name m2/name",
    );
    assert_eq!(output, "one\ntwo\n");
}
