//! One volume mounted at several places: one process, one cache, each place with its own rights.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::command::{butternut, shell};
use super::image::kernel_is_here;
use super::mount::{Place, holders, own_copy};

/// An image with two subvolumes, `a` and `b`, beside what the plain one has.
fn image(scratch: &tempfile::TempDir) -> PathBuf {
    let (image, place) = (own_copy(scratch), Place::new());
    shell(&format!(
        "mount -o loop {image} {place}; cd {place}
         btrfs -q subvolume create a; btrfs -q subvolume create b; mkdir b/deep
         cd /; umount {place}",
        image = image.display(),
        place = place.name()
    ));
    image
}

fn is_released(place: &Place) -> bool {
    let said = butternut(&["umount", "--json", place.name()]).ok();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["released"].as_bool().unwrap()
}

#[test]
fn a_served_volume_is_mounted_at_further_places() {
    if !kernel_is_here("a_served_volume_is_mounted_at_further_places") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let link = scratch.path().join("link.img");
    fs::hard_link(&image, &link).unwrap();
    let (a, b, top, again) = (Place::new(), Place::new(), Place::new(), Place::new());
    butternut(&["mount", "-o", "subvol=a,commit=3600", path, a.name()]).ok();
    // A subvolume beside the first, the top by another name of the image, and the first again.
    butternut(&["mount", "-o", "subvol=/b", path, b.name()]).ok();
    butternut(&["mount", "-o", "subvolid=5", link.to_str().unwrap(), top.name()]).ok();
    butternut(&["mount", "-o", "ro,dev,subvol=a", path, again.name()]).ok();
    assert_eq!(holders(&image).len(), 1, "one process serves all");

    // What is written at one place is seen at every other at once, cached or not.
    let read = |place: &Place, name: &str| fs::read_to_string(place.path().join(name)).unwrap();
    fs::write(a.path().join("file"), "one").unwrap();
    assert_eq!((read(&top, "a/file"), read(&again, "file")), ("one".into(), "one".into()));
    fs::write(top.path().join("a/file"), "two!").unwrap();
    assert_eq!((read(&a, "file"), read(&again, "file")), ("two!".into(), "two!".into()));
    fs::rename(top.path().join("a/file"), top.path().join("a/other")).unwrap();
    assert!(!a.path().join("file").exists() && again.path().join("other").exists());
    assert!(b.path().join("deep").is_dir());

    // Each place has its own rights, and answers for the volume.
    let error = fs::write(again.path().join("new"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30));
    let options = |place: &Place| shell(&format!("findmnt -no VFS-OPTIONS {}", place.name()));
    assert_eq!(options(&again).trim(), "ro,nosuid,noatime");
    assert_eq!(options(&b).trim(), "rw,nosuid,nodev,noatime");
    butternut(&["ctl", b.name(), "nosec=off"]).ok();
    assert_eq!(butternut(&["ctl", again.name(), "nosec"]).ok(), "off\n");
    assert!(butternut(&["stats", top.name()]).ok().contains("commits"));

    // The first one that was made is no more than the others, and the last one releases.
    assert!(!is_released(&a));
    fs::write(b.path().join("late"), "late").unwrap();
    butternut(&["mount", "-o", "subvol=a", path, a.name()]).ok();
    for place in [&again, &top, &a] {
        assert!(!is_released(place));
    }
    assert!(is_released(&b));
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    assert_eq!(butternut(&["cat", path, "/b/late"]).ok(), "late");
    assert_eq!(butternut(&["cat", path, "/a/other"]).ok(), "two!");
    shell(&format!("btrfs check --check-data-csum {path} >/dev/null 2>&1"));
}

#[test]
fn a_further_place_that_cannot_be_is_refused_and_leaves_the_others() {
    if !kernel_is_here("a_further_place_that_cannot_be_is_refused_and_leaves_the_others") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (Place::new(), Place::new());
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
        let said = butternut(&["mount", "-o", options, path, other.name()]).failure();
        let why = format!("butternut: {path}: {why}");
        assert!(said.starts_with(&why) && !other.is_mounted(), "{options}: {said}");
        assert!(!said.contains('\n'), "{options}: {said}");
    }
    // What the volume keeps for all its places is not taken for changed in silence.
    for (options, why) in [
        ("uncached", "option uncached: the volume is mounted with parallel_direct (leave it out,"),
        ("compress=zstd", "option compress=zstd: the volume is mounted with compress=no ("),
        ("commit=5", "option commit=5: the volume is mounted with commit=30 ("),
        ("sync", "option sync: the volume is mounted without it (change all its places with "),
        ("nosec=off", "option nosec=off: the volume is mounted with nosec=on (leave it out, or "),
    ] {
        let said = butternut(&["mount", "-o", options, path, other.name()]).failure();
        assert!(said.contains(why) && !other.is_mounted(), "{options}: {said}");
    }
    // Words that say what is so are no error, nor is a subvolume that is named twice.
    let named = format!("{path}@a");
    butternut(&["ctl", first.name(), "nosec=off"]).ok();
    let words = "subvol=/a,nouncached,compress=no,commit=30,degraded,nosec=on,nosec=off";
    butternut(&["mount", "-o", words, &named, other.name()]).ok();
    assert_eq!(butternut(&["ctl", first.name(), "nosec"]).ok(), "off\n");
    // Without --json, a note says that the volume is not released.
    let said = butternut(&["umount", other.name()]);
    let (shown, first_place) = (other.name(), first.name());
    let note = format!("butternut: {shown}: note: the volume is still mounted on {first_place}\n");
    assert_eq!((said.code, said.err, said.out), (Some(0), note, String::new()));
    fs::write(first.path().join("new"), "text").unwrap();
    assert!(is_released(&first));
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
}

#[test]
fn the_first_mount_of_a_volume_names_a_subvolume_as_further_ones_do() {
    if !kernel_is_here("the_first_mount_of_a_volume_names_a_subvolume_as_further_ones_do") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let place = Place::new();
    for (subvolume, why) in [
        ("none", "no subvolume none ("),
        ("dirlink", "dirlink is a symbolic link, not a subvolume ("),
        ("dirlink/deep", "dirlink is a symbolic link, not a subvolume ("),
        ("b/deep", "b/deep is a directory, not a subvolume ("),
    ] {
        let option = format!("subvol={subvolume}");
        let named = format!("{path}@{subvolume}");
        for words in [&["-o", &option, path][..], &["-o", "ro", &named], &["-o", "rw", &named]] {
            let said = butternut(&[&["mount"], words, &[place.name()]].concat()).failure();
            assert!(said.contains(why) && !place.is_mounted(), "{words:?}: {said}");
        }
    }
}

#[test]
fn a_remount_leaves_a_place_as_writable_as_it_is() {
    if !kernel_is_here("a_remount_leaves_a_place_as_writable_as_it_is") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (Place::new(), Place::new());
    butternut(&["mount", path, first.name()]).ok();
    butternut(&["mount", "-o", "ro,subvol=a", path, other.name()]).ok();
    let remount = |words: &str, place: &Place| {
        butternut(&["mount", "-o", &format!("remount,{words}"), place.name()]).ok();
    };
    let is_writable = |place: &Place| fs::write(place.path().join("new"), "").is_ok();
    // mount(8) names what the mount table has, too: `ro` of a place is not that of the volume.
    for words in ["exec", "dev,noexec", "nosec=off", "ro,exec", "sync", "async"] {
        remount(words, &other);
        assert!(!is_writable(&other) && is_writable(&first), "{words}");
    }
    let flags = || shell(&format!("findmnt -no VFS-OPTIONS {}", other.name()));
    assert_eq!(flags().trim(), "ro,nosuid,noatime");
    remount("rw", &other);
    assert!(is_writable(&other) && is_writable(&first));
    // The volume, and with it every place; and back, but for a place that was made so.
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

/// The window was a few microseconds wide, so this looks at many mounts.
#[test]
fn a_place_for_reading_is_never_writable() {
    if !kernel_is_here("a_place_for_reading_is_never_writable") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = image(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (Place::new(), Place::new());
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
    assert!(seen.into_inner() > 0, "the place was looked at");
    assert!(is_released(&first));
}

#[test]
fn a_volume_that_is_open_for_reading_is_opened_by_every_mount() {
    if !kernel_is_here("a_volume_that_is_open_for_reading_is_opened_by_every_mount") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    let path = image.to_str().unwrap();
    let (first, other) = (Place::new(), Place::new());
    butternut(&["mount", "-o", "ro", path, first.name()]).ok();
    butternut(&["mount", "-o", "ro", path, other.name()]).ok();
    assert_eq!(holders(&image).len(), 2);
    let third = Place::new();
    let said = butternut(&["mount", path, third.name()]).failure();
    assert!(said.contains(" is busy: process "), "{said}");
    assert!(is_released(&first) && is_released(&other));
}
