//! Directories of a mount: those that a snapshot shows in place of subvolumes, and listings of what
//! changes meanwhile.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use butternut_undo::MountGuard;
use tempfile::TempDir;

use super::command::{butternut, shell};
use super::image::kernel_is_here;
use super::mount::{Place, own_copy};

/// An image with a snapshot that shows placeholders: one in `d1`, two in `d2`.
fn snapshot(scratch: &TempDir) -> PathBuf {
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; truncate -s 256M own.img; mkfs.btrfs -q own.img; mkdir m; mount own.img m
         trap 'cd /; umount {dir}/m' EXIT
         btrfs -q subvolume create m/s1; mkdir m/s1/d1 m/s1/d2
         btrfs -q subvolume create m/s1/d1/n1
         btrfs -q subvolume create m/s1/d2/n2; btrfs -q subvolume create m/s1/d2/n3
         btrfs -q subvolume snapshot m/s1 m/snap1"
    ));
    scratch.path().join("own.img")
}

#[test]
fn a_mount_on_a_placeholder_is_at_no_other_one() {
    if !kernel_is_here("a_mount_on_a_placeholder_is_at_no_other_one") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir_in("/var/tmp").unwrap(), Place::new());
    let image = snapshot(&scratch);
    butternut(&["mount", image.to_str().unwrap(), place.name()]).ok();
    let at = |name: &str| place.path().join("snap1").join(name);
    // As kernel btrfs shows them.
    for name in ["d1/n1", "d2/n2", "d2/n3"] {
        assert_eq!(fs::metadata(at(name)).unwrap().ino(), 2, "{name}");
    }
    let place_of = |script: &str| {
        let dir = at("d2/n2");
        shell(&format!("cd {}; {script}; basename $(/bin/pwd)", dir.display()))
    };
    assert_eq!(place_of("stat ../n3 > /dev/null; ls .. > /dev/null"), "n2\n");
    let guard = MountGuard::before_mount(&at("d2/n2")).unwrap();
    shell(&format!("mount -t tmpfs none {0}; touch {0}/secret", at("d2/n2").display()));
    assert!(at("d2/n2/secret").exists());
    for name in ["d2/n3", "d1/n1"] {
        assert_eq!(fs::read_dir(at(name)).unwrap().count(), 0, "{name}");
    }
    assert_eq!(fs::read_dir(at("d2")).unwrap().count(), 2);
    guard.unmount().unwrap();
    // One goes, the other stays, under its old name and none else.
    fs::remove_dir(at("d2/n2")).unwrap();
    assert!(!at("d2/n2").exists() && at("d2/n3").is_dir());
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn a_placeholder_is_removed_as_an_empty_directory_is() {
    if !kernel_is_here("a_placeholder_is_removed_as_an_empty_directory_is") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = snapshot(&scratch);
    let image = image.to_str().unwrap();
    let refused = butternut(&["mv", image, "/snap1/d1/n1", "/snap1/moved"]).failure();
    assert!(refused.contains("(`butternut rm -r` removes it)"), "{refused}");
    let refused = butternut(&["rm", image, "/snap1/d1/n1"]).failure();
    assert!(refused.contains("`rm -r` removes it"), "{refused}");
    butternut(&["rm", "-d", image, "/snap1/d1/n1"]).ok();
    butternut(&["rm", "-r", image, "/snap1/d2"]).ok();
    assert_eq!(butternut(&["find", image, "/snap1"]).ok(), "/snap1\n/snap1/d1\n");
    let refused = butternut(&["rm", "-r", image, "/s1/d2"]).failure();
    assert!(refused.contains("is a subvolume"), "{refused}");
    shell(&format!("btrfs check {image} 2>&1"));
}

/// Renames every entry that a listing shows, each to a name that is new; how many there were. A
/// listing that has no end is left.
fn rename_all(dir: &Path, files: usize) -> usize {
    let mut renamed = 0;
    for entry in fs::read_dir(dir).unwrap() {
        fs::rename(entry.unwrap().path(), dir.join(format!("a-longer-name-{renamed:06}"))).unwrap();
        renamed += 1;
        if renamed > 2 * files {
            break;
        }
    }
    renamed
}

/// Files of a directory that is listed in many requests.
const FILES: usize = 3000;

#[test]
fn a_listing_ends_where_others_list_what_its_reader_renames() {
    if !kernel_is_here("a_listing_ends_where_others_list_what_its_reader_renames") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    butternut(&["mount", own_copy(&scratch).to_str().unwrap(), place.name()]).ok();
    let dir = place.path().join("many");
    fs::create_dir(&dir).unwrap();
    for number in 0..FILES {
        fs::File::create(dir.join(format!("file-{number:06}"))).unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert!(fs::read_dir(&dir).unwrap().count() >= FILES / 2);
                }
            });
        }
        let renamed = rename_all(&dir, FILES);
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(renamed, FILES);
    });
    assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES);
}

/// Reads of `/dev/fuse` that the listing of an empty directory may take: opening, the entries, the
/// end, closing, and as many that find nothing.
const REQUESTS_MAX: u64 = 8;
const LISTINGS: u64 = 500;

#[test]
fn a_listing_of_an_empty_directory_takes_few_requests() {
    if !kernel_is_here("a_listing_of_an_empty_directory_takes_few_requests") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    let image = own_copy(&scratch);
    let said = butternut(&["mount", "--json", image.to_str().unwrap(), place.name()]).ok();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let reads = || -> u64 {
        let io = fs::read_to_string(format!("/proc/{}/io", said["process"])).unwrap();
        io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
    };
    let dir = place.path().join("empty directory");
    fs::create_dir(&dir).unwrap();
    let before = reads();
    for _ in 0..LISTINGS {
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
    let taken = reads() - before;
    assert!((1..=REQUESTS_MAX * LISTINGS).contains(&taken), "{taken} reads of /dev/fuse");
}

#[test]
fn a_rewound_listing_shows_what_was_made_since() {
    if !kernel_is_here("a_rewound_listing_shows_what_was_made_since") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    butternut(&["mount", own_copy(&scratch).to_str().unwrap(), place.name()]).ok();
    let dir = place.path().join("some");
    fs::create_dir(&dir).unwrap();
    let count = |listing: &mut rustix::fs::Dir| listing.by_ref().map(Result::unwrap).count();
    let mut listing = rustix::fs::Dir::new(fs::File::open(&dir).unwrap()).unwrap();
    fs::File::create(dir.join("before it is read")).unwrap();
    assert_eq!(count(&mut listing), 3);
    fs::File::create(dir.join("after it was read")).unwrap();
    listing.rewind();
    assert_eq!(count(&mut listing), 4);
}

/// Cuts a file to the size that it has, by its path, as an open file, and by opening it when it is
/// empty; which of its times change by each.
fn times_of_a_cut(file: &Path) -> [(bool, bool); 3] {
    let times = || {
        let meta = fs::metadata(file).unwrap();
        let at = |secs: i64, nanos: i64| (secs, nanos);
        (at(meta.mtime(), meta.mtime_nsec()), at(meta.ctime(), meta.ctime_nsec()))
    };
    let changed = |cut: &dyn Fn()| {
        let before = times();
        // More than a tick of the kernel's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        cut();
        let after = times();
        (before.0 != after.0, before.1 != after.1)
    };
    [
        changed(&|| {
            let script = "truncate($ARGV[0], 5000) or exit 1";
            assert!(
                std::process::Command::new("perl")
                    .args(["-e", script])
                    .arg(file)
                    .status()
                    .unwrap()
                    .success()
            );
        }),
        changed(&|| {
            fs::OpenOptions::new().write(true).open(file).unwrap().set_len(5000).unwrap();
        }),
        {
            drop(fs::File::create(file).unwrap());
            changed(&|| drop(fs::File::create(file).unwrap()))
        },
    ]
}

#[test]
fn a_cut_to_the_same_size_changes_times_as_on_kernel_btrfs() {
    if !kernel_is_here("a_cut_to_the_same_size_changes_times_as_on_kernel_btrfs") {
        return;
    }
    let write = |file: &Path| {
        let made = fs::File::create(file).unwrap();
        made.write_all_at(&[7; 5000], 0).unwrap();
        made.sync_all().unwrap();
        times_of_a_cut(file)
    };
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = own_copy(&scratch);
    let place = scratch.path().join("m");
    fs::create_dir(&place).unwrap();
    let guard = MountGuard::before_mount(&place).unwrap();
    shell(&format!("mount -o loop {} {}", image.display(), place.display()));
    let of_kernel = write(&place.join("cut"));
    guard.unmount().unwrap();
    assert_eq!(of_kernel, [(false, false), (true, true), (true, true)]);
    for options in ["rw", "uncached", "writeback"] {
        let place = Place::new();
        butternut(&["mount", "-o", options, image.to_str().unwrap(), place.name()]).ok();
        assert_eq!(write(&place.path().join(format!("cut {options}"))), of_kernel, "{options}");
        butternut(&["umount", place.name()]).ok();
    }
}
