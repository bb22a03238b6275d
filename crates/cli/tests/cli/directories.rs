//! Directories of a mount: placeholders of snapshots, and listings of directories that change
//! meanwhile.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use butternut_undo::MountGuard;
use tempfile::TempDir;

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::mount::{MountPoint, own_copy};

/// Makes an image with a snapshot that has one placeholder in `d1` and two in `d2`.
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
fn a_mount_on_one_placeholder_does_not_cover_another() {
    if !kernel_tests_enabled("a_mount_on_one_placeholder_does_not_cover_another") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir_in("/var/tmp").unwrap(), MountPoint::new());
    let image = snapshot(&scratch);
    butternut(&["mount", image.to_str().unwrap(), mount_point.name()]).ok();
    let at = |name: &str| mount_point.path().join("snap1").join(name);
    // Kernel btrfs shows inode number 2 for each of them.
    for name in ["d1/n1", "d2/n2", "d2/n3"] {
        assert_eq!(fs::metadata(at(name)).unwrap().ino(), 2, "{name}");
    }
    let working_directory_after = |script: &str| {
        let dir = at("d2/n2");
        shell(&format!("cd {}; {script}; basename $(/bin/pwd)", dir.display()))
    };
    assert_eq!(working_directory_after("stat ../n3 > /dev/null; ls .. > /dev/null"), "n2\n");
    let guard = MountGuard::before_mount(&at("d2/n2")).unwrap();
    shell(&format!("mount -t tmpfs none {0}; touch {0}/secret", at("d2/n2").display()));
    assert!(at("d2/n2/secret").exists());
    for name in ["d2/n3", "d1/n1"] {
        assert_eq!(fs::read_dir(at(name)).unwrap().count(), 0, "{name}");
    }
    assert_eq!(fs::read_dir(at("d2")).unwrap().count(), 2);
    guard.unmount().unwrap();
    // Removing one placeholder keeps the other one under its name.
    fs::remove_dir(at("d2/n2")).unwrap();
    assert!(!at("d2/n2").exists() && at("d2/n3").is_dir());
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn a_placeholder_is_removed_like_an_empty_directory() {
    if !kernel_tests_enabled("a_placeholder_is_removed_like_an_empty_directory") {
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

/// Renames every entry that a listing returns to a new name, and returns their number. Gives up on
/// a listing that does not end.
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

/// Number of files, so many that a listing takes several requests.
const FILES: usize = 3000;

#[test]
fn a_listing_ends_while_its_reader_renames_and_others_list() {
    if !kernel_tests_enabled("a_listing_ends_while_its_reader_renames_and_others_list") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    butternut(&["mount", own_copy(&scratch).to_str().unwrap(), mount_point.name()]).ok();
    let dir = mount_point.path().join("many");
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

/// Maximum number of reads of `/dev/fuse` per listing of an empty directory: open, entries, end and
/// close, and as many reads that return nothing.
const REQUESTS_MAX: u64 = 8;
const LISTINGS: u64 = 500;

#[test]
fn a_listing_of_an_empty_directory_takes_few_requests() {
    if !kernel_tests_enabled("a_listing_of_an_empty_directory_takes_few_requests") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let output = butternut(&["mount", "--json", image.to_str().unwrap(), mount_point.name()]).ok();
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    let reads = || -> u64 {
        let io = fs::read_to_string(format!("/proc/{}/io", report["process"])).unwrap();
        io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
    };
    let dir = mount_point.path().join("empty directory");
    fs::create_dir(&dir).unwrap();
    let before = reads();
    for _ in 0..LISTINGS {
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
    let taken = reads() - before;
    assert!((1..=REQUESTS_MAX * LISTINGS).contains(&taken), "{taken} reads of /dev/fuse");
}

#[test]
fn a_rewound_listing_shows_new_entries() {
    if !kernel_tests_enabled("a_rewound_listing_shows_new_entries") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    butternut(&["mount", own_copy(&scratch).to_str().unwrap(), mount_point.name()]).ok();
    let dir = mount_point.path().join("some");
    fs::create_dir(&dir).unwrap();
    let count = |listing: &mut rustix::fs::Dir| listing.by_ref().map(Result::unwrap).count();
    let mut listing = rustix::fs::Dir::new(fs::File::open(&dir).unwrap()).unwrap();
    fs::File::create(dir.join("before it is read")).unwrap();
    assert_eq!(count(&mut listing), 3);
    fs::File::create(dir.join("after it was read")).unwrap();
    listing.rewind();
    assert_eq!(count(&mut listing), 4);
}

/// Truncates a file to the size that it has: by truncate(2), by ftruncate(2), and by opening an
/// empty file with `O_TRUNC`. Returns for each whether mtime and ctime changed.
fn times_of_a_cut(file: &Path) -> [(bool, bool); 3] {
    let times = || {
        let meta = fs::metadata(file).unwrap();
        let at = |secs: i64, nanos: i64| (secs, nanos);
        (at(meta.mtime(), meta.mtime_nsec()), at(meta.ctime(), meta.ctime_nsec()))
    };
    let changed = |cut: &dyn Fn()| {
        let before = times();
        // Longer than a tick of the kernel's clock.
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
fn truncation_to_the_same_size_changes_times_as_on_kernel_btrfs() {
    if !kernel_tests_enabled("truncation_to_the_same_size_changes_times_as_on_kernel_btrfs") {
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
    let mount_point = scratch.path().join("m");
    fs::create_dir(&mount_point).unwrap();
    let guard = MountGuard::before_mount(&mount_point).unwrap();
    shell(&format!("mount -o loop {} {}", image.display(), mount_point.display()));
    let of_kernel = write(&mount_point.join("cut"));
    guard.unmount().unwrap();
    assert_eq!(of_kernel, [(false, false), (true, true), (true, true)]);
    for options in ["rw", "uncached", "writeback"] {
        let mount_point = MountPoint::new();
        butternut(&["mount", "-o", options, image.to_str().unwrap(), mount_point.name()]).ok();
        assert_eq!(
            write(&mount_point.path().join(format!("cut {options}"))),
            of_kernel,
            "{options}"
        );
        butternut(&["umount", mount_point.name()]).ok();
    }
}

#[test]
fn all_names_before_a_damaged_block_are_listed() {
    if !kernel_tests_enabled("all_names_before_a_damaged_block_are_listed") {
        return;
    }
    // Prints the second or the last of the leaves that begin with a directory index, and that
    // index. The first index of a directory is 2.
    let leaf = r"btrfs inspect-internal dump-tree -t 5 own.img | awk '
        /^leaf /{ leaf = $2 }
        /item 0 key \(.* DIR_INDEX /{
            match($0, /DIR_INDEX [0-9]+/); print leaf, substr($0, RSTART + 10, RLENGTH - 10) }'";
    let scratch = tempfile::tempdir().unwrap();
    let mount_point = MountPoint::new();
    for (options, which) in [("ro", "2p"), ("rw", "2p"), ("ro", "$p"), ("rw", "$p")] {
        let output = shell(&format!(
            "cd {scratch}; rm -rf names own.img; mkdir names names/dir; mount=\"mount -o {options}\"
             (cd names/dir; seq -f name%05g 3000 | xargs mkdir)
             truncate -s 256M own.img
             mkfs.btrfs -q -m single -d single --rootdir names own.img
             {leaf} | sed -n '{which}' > leaf; read leaf index < leaf
             at=$(btrfs-map-logical -l $leaf own.img | grep -o 'physical [0-9]*')
             printf broken | dd of=own.img bs=1 seek=$((${{at#* }} + 8000)) conv=notrunc status=none
             echo $((index - 2)); {program} ls own.img dir 2>err0 | wc -l
             {program} $mount own.img {at}
             ls -U {at}/dir 2>err1 | wc -l; umount {at}
             $mount,loop own.img {at}; ls -U {at}/dir 2>err2 | wc -l; umount {at}
             cat err1 err2",
            scratch = scratch.path().display(),
            program = env!("CARGO_BIN_EXE_butternut"),
            at = mount_point.name(),
        ));
        let lines: Vec<&str> = output.lines().map(str::trim).collect();
        let [want, by_command, by_mount, by_kernel] =
            [0, 1, 2, 3].map(|line| lines[line].parse::<u64>().unwrap());
        // The kernel loses the entries that it had collected and not yet returned, perhaps all.
        assert!(by_kernel <= want && 0 < want && want < 3000, "{options}: {output}");
        assert_eq!((by_mount, by_command), (want, want), "{options}: {output}");
        let is_same_error = lines.len() == 6 && lines[4] == lines[5];
        assert!(by_kernel == 0 || is_same_error, "{options}: {output}");
    }
}
