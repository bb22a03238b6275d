//! Simple quotas: after changes by Butternut, `btrfs check --qgroup-report` counts from the owners
//! of the extents what the commits have written, to the byte, and the kernel goes on from there.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_image::{KernelImage, kernel_is_here, run};
use crate::kernel_quota::{
    check_here, fill, group, new, open, qgroup_report, referenced, run_histories, subvolume, write,
};
use butternut::{FileId, Filesystem, Follow, SnapshotAccess};
use std::cell::Cell;
use std::fmt::Write;

/// Compares the numbers on disk with those that `btrfs check` counts. The kernel does not write
/// those of compressed bytes, which nothing reads.
fn count(path: &str, when: &str) {
    let Some(report) = qgroup_report(path) else { return };
    let numbers = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1..3).map(|words| words.join(" "))
    };
    let (mut different, mut counted, mut compared) = (String::new(), None, 0);
    for line in report.lines() {
        if line.starts_with("our:") {
            counted = numbers(line);
        } else if line.starts_with("disk:") {
            compared += 1;
            if counted != numbers(line) {
                writeln!(different, "{counted:?}, on disk {line}").unwrap();
            }
        }
    }
    assert!(different.is_empty() && compared > 0, "{when}: {different}\n{report}");
}

/// Counts here, by `btrfs check`, and once more when the kernel has gone on with `script`.
fn judge(image: &KernelImage, when: &str, script: &str) {
    let path = image.devices[0].to_string_lossy().into_owned();
    check_here(&path, when);
    count(&path, when);
    let status = run("btrfs", &["inspect-internal", "dump-tree", "-t", "quota", &path]);
    assert!(status.contains("flags ON|SIMPLE_MODE scan"), "{when}: {status}");
    let mount = image.mount("rw");
    let root = mount.path().to_string_lossy().into_owned();
    run("bash", &["-c", &format!("cd '{root}' && {{\n{script}\n}}")]);
    run("btrfs", &["subvolume", "sync", &root]);
    drop(mount);
    let when = format!("{when}, after the kernel");
    check_here(&path, &when);
    count(&path, &when);
}

/// The usage of the group of a subvolume.
fn usage(filesystem: &Filesystem, id: u64) -> u64 {
    let (referenced, exclusive) = referenced(filesystem, id);
    assert_eq!(referenced, exclusive);
    referenced
}

/// Simple quotas that begin on a volume with data, and data that was written since.
const ENABLED: &str = "
btrfs -q subvolume create one; btrfs -q subvolume create two
head -c 3000000 /dev/urandom > one/old; for i in $(seq 1500); do echo $i > one/small$i; done
sync; btrfs quota enable --simple .; btrfs qgroup create 1/100 .; btrfs qgroup create 2/200 .
btrfs qgroup assign 1/100 2/200 .; btrfs qgroup assign 0/256 1/100 .
head -c 3000000 /dev/urandom > one/noise; cp --reflink=always one/noise two/clone
for i in $(seq 200); do head -c $((i * 300)) /dev/urandom > one/file$i; done
sync; btrfs -q subvolume snapshot one snap; btrfs -q subvolume snapshot -r one one/inside
dd if=/dev/urandom of=snap/noise bs=4096 count=5 seek=100 conv=notrunc status=none
";

#[test]
fn every_write_path_is_accounted_for() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", ENABLED);
    judge(&image, "made by the kernel", "true");
    let filesystem = open(&image);
    let root = filesystem.root();
    write(&filesystem, "one/new", 0, &vec![7; 500_000]);
    write(&filesystem, "one/old", 8192, &vec![8; 10_000]);
    write(&filesystem, "one/noise", 8192, &vec![8; 10_000]);
    write(&filesystem, "snap/small7", 0, &vec![9; 9000]);
    filesystem.close().unwrap();
    judge(&image, "writes", "rm one/file1* one/new; echo 1 > snap/small8");

    let filesystem = open(&image);
    let dir = |path: &str| filesystem.resolve(path.as_bytes(), Follow::Last).unwrap();
    for number in 1..1000 {
        filesystem.unlink(dir("one"), format!("small{number}").as_bytes()).unwrap();
    }
    filesystem.unlink(dir("one"), b"noise").unwrap();
    filesystem.open_path(b"snap/noise").unwrap().truncate(1_000_000).unwrap();
    filesystem.sync().unwrap();
    let clone = filesystem.create_path(b"two/again", &new()).unwrap();
    let source = filesystem.open_path(b"snap/file80").unwrap();
    clone.clone_range(0, &source, 0, 20480).unwrap();
    drop((clone, source));
    filesystem.close().unwrap();
    judge(
        &image,
        "deletions and clones",
        "rm two/clone; cp --reflink=always snap/file90 two/third",
    );

    let filesystem = open(&image);
    let one = subvolume(&filesystem, "one");
    filesystem.snapshot(one, root, b"ours", SnapshotAccess::ReadWrite).unwrap();
    let inside = FileId::root_of(one);
    let nested = filesystem.snapshot(one, inside, b"nested", SnapshotAccess::ReadWrite).unwrap();
    let empty = filesystem.create_subvolume(inside, b"empty", &new()).unwrap();
    write(&filesystem, "ours/file9", 0, &vec![3; 30_000]);
    write(&filesystem, "one/file80", 0, &vec![3; 30_000]);
    write(&filesystem, "one/nested/file81", 0, &vec![3; 30_000]);
    filesystem.sync().unwrap();
    // In the groups of the subvolume that they are made in, as in the kernel.
    let quotas = filesystem.quotas().unwrap().unwrap();
    for id in [nested, empty] {
        let found = quotas.groups.iter().find(|found| found.id.0 == id).unwrap();
        assert_eq!(found.parents, [group(1, 100)]);
    }
    filesystem.close().unwrap();
    judge(&image, "snapshots", "rm ours/file8* one/nested/file9*; btrfs -q subvolume delete snap");

    let filesystem = open(&image);
    for (dir, name) in [(root, "ours"), (inside, "nested"), (inside, "empty"), (root, "two")] {
        filesystem.delete_subvolume(dir, name.as_bytes()).unwrap();
    }
    let left = Cell::new(3_u32);
    filesystem.clean_subvolumes_while(&|| left.replace(left.get().saturating_sub(1)) > 0).unwrap();
    filesystem.close().unwrap();
    judge(&image, "half deleted subvolumes", "true");
}

/// A snapshot keeps what its deleted source has written: the source's group exists until that is
/// freed, and then goes.
#[test]
fn the_group_of_a_deleted_subvolume_exists_as_long_as_an_extent_counts_for_it() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs quota enable --simple .; btrfs -q subvolume create one
        btrfs qgroup create 1/1 .; btrfs qgroup assign 0/256 1/1 .
        head -c 3000000 /dev/urandom > one/noise; (cd one; seq 3000 | xargs touch)";
    let image = KernelImage::make(1, &["-n", "4096"], "", script);
    let filesystem = open(&image);
    let (root, one) = (filesystem.root(), subvolume(&filesystem, "one"));
    let before = usage(&filesystem, one);
    let snap = filesystem.snapshot(one, root, b"snap", SnapshotAccess::ReadWrite).unwrap();
    assert_eq!((usage(&filesystem, one), usage(&filesystem, snap)), (before, 4096));
    filesystem.delete_subvolume(root, b"one").unwrap();
    filesystem.clean_subvolumes().unwrap();
    filesystem.sync().unwrap();
    // Its root, and what leads to it, was its own.
    let kept = usage(&filesystem, one);
    assert!(kept > before - 20_000 && kept < before, "{kept} of {before}");
    assert_eq!(usage(&filesystem, 1 << 48 | 1), kept);
    assert!(filesystem.remove_qgroup(group(0, one)).is_err(), "an extent counts for it");
    filesystem.close().unwrap();
    judge(&image, "a deleted source", "rm snap/1* snap/noise");

    let filesystem = open(&image);
    filesystem.delete_subvolume(root, b"snap").unwrap();
    filesystem.clean_subvolumes().unwrap();
    filesystem.sync().unwrap();
    let groups = filesystem.quotas().unwrap().unwrap().groups;
    let ids: Vec<_> = groups.iter().map(|found| found.id).collect();
    assert_eq!(ids, [group(0, 5), group(1, 1)]);
    assert_eq!(usage(&filesystem, 1 << 48 | 1), 0);
    filesystem.close().unwrap();
    judge(&image, "nothing left", "true");
}

#[test]
fn random_histories_are_accounted_for() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs -q subvolume create sub0; echo 1 > sub0/file1
        head -c 400000 /dev/urandom > sub0/file2; sync
        btrfs quota enable --simple .
        btrfs qgroup create 1/1 .; btrfs -q qgroup assign 0/256 1/1 .";
    run_histories(script, |image, when, round| {
        let (removed, copied) = (round % 7, (round + 3) % 11);
        let script = format!(
            "rm -f */file{removed} sub0/many{removed}*; shopt -s nullglob
            for file in */file{copied}; do cp --reflink=always $file file7; done
            for file in */file4; do echo 1 >> $file; done"
        );
        judge(image, when, &script);
    });
}

/// Simple quotas with limits: of a subvolume, and of a group that includes two.
const LIMITED: &str = "
btrfs -q subvolume create one; btrfs -q subvolume create two; btrfs -q subvolume create three
btrfs quota enable --simple .; btrfs qgroup limit 2M one; btrfs qgroup create 1/1 .
for sub in two three; do btrfs qgroup assign 0/$(btrfs inspect-internal rootid $sub) 1/1 .; done
btrfs qgroup limit -e 3M 1/1 .
";

#[test]
fn a_write_over_a_limit_is_refused_before_it_changes_anything() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", LIMITED);
    let filesystem = open(&image);
    let (root, one) = (filesystem.root(), subvolume(&filesystem, "one"));
    let generation = filesystem.subvolume(one).unwrap().generation;
    let written = fill(&filesystem, "one", "large", 100_000);
    assert!((15..=20).contains(&written), "{written} files of 100,000 bytes");
    assert_eq!(filesystem.subvolume(one).unwrap().generation, generation);
    filesystem.sync().unwrap();
    let used = usage(&filesystem, one);
    assert!((1 << 20..=2 << 20).contains(&used), "{used}");
    // A snapshot has no limit, and does not make room in its source.
    filesystem.snapshot(one, root, b"snap", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "snap/more", 0, &vec![1; 4 << 20]);
    assert_eq!(fill(&filesystem, "one", "again", 200_000), 0);
    for number in 0..8 {
        let name = format!("large{number}");
        filesystem.unlink(FileId::root_of(one), name.as_bytes()).unwrap();
    }
    filesystem.sync().unwrap();
    assert_eq!(fill(&filesystem, "one", "again", 200_000), 0, "the snapshot has it");
    for number in 0..8 {
        let dir = filesystem.resolve(b"snap", Follow::Last).unwrap();
        filesystem.unlink(dir, format!("large{number}").as_bytes()).unwrap();
    }
    // The refusal commits what another subvolume has dropped.
    let again = fill(&filesystem, "one", "then", 200_000);
    assert!((2..=4).contains(&again), "{again} files of 200,000 bytes");
    filesystem.close().unwrap();
    judge(&image, "at the limit of a subvolume", "! head -c 3000000 /dev/zero > one/kernel");

    let filesystem = open(&image);
    let two = fill(&filesystem, "two", "a", 200_000);
    fill(&filesystem, "three", "a", 4096);
    assert!((10..=15).contains(&two), "{two} files of 200,000 bytes");
    filesystem.sync().unwrap();
    let used = usage(&filesystem, 1 << 48 | 1);
    assert!((2_500_000..=3 << 20).contains(&used), "{used}");
    filesystem.close().unwrap();
    judge(&image, "at the limit of a group", "! head -c 3000000 /dev/zero > two/kernel");
}

/// What a replay adds counts for the subvolume of the file: after a crash of the kernel here, and
/// the other way round.
#[test]
fn what_a_log_adds_counts_for_the_subvolume_of_the_file() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs quota enable --simple .; btrfs -q subvolume create one; echo 1 > one/file
        head -c 100000 /dev/urandom > one/old; sync; btrfs -q subvolume snapshot one snap";
    let image = KernelImage::make(1, &[], "", script);
    let path = image.devices[0].to_string_lossy().into_owned();
    let copy = format!("{path}.copy");
    let mount = image.mount("rw,commit=300");
    let script = "for sub in one snap; do
            head -c 50000 /dev/urandom > $sub/file; cp --reflink=always $sub/old $sub/clone
            dd if=/dev/urandom of=$sub/old bs=4096 count=3 seek=2 conv=notrunc status=none
            sync $sub/file $sub/clone $sub/old
        done";
    let root = mount.path().to_string_lossy().into_owned();
    run("bash", &["-ec", &format!("cd '{root}'; {script}; cp --sparse=always {path} {copy}")]);
    drop(mount);
    run("cp", &["--sparse=always", &copy, &path]);
    let filesystem = open(&image);
    let one = subvolume(&filesystem, "one");
    assert!(usage(&filesystem, one) > 150_000, "the log is replayed");
    filesystem.close().unwrap();
    judge(&image, "a log of the kernel", "true");

    let filesystem = open(&image);
    for sub in ["one", "snap"] {
        let file = filesystem.open_path(format!("{sub}/old").as_bytes()).unwrap();
        file.write_all_at(8192, &vec![7; 70_000]).unwrap();
        file.sync_all().unwrap();
    }
    filesystem.abandon();
    drop(filesystem);
    let logged = run("btrfs", &["inspect-internal", "dump-super", &path]);
    assert!(!logged.lines().any(|line| line.split_whitespace().eq(["log_root", "0"])), "{logged}");
    drop(image.mount("rw"));
    count(&path, "replayed by the kernel");
}

#[test]
fn simple_quotas_are_enabled_and_disabled_here() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs -q subvolume create one; head -c 300000 /dev/urandom > one/file
        btrfs -q subvolume snapshot one two; echo 1 > two/other";
    let image = KernelImage::make(1, &[], "", script);
    let filesystem = open(&image);
    write(&filesystem, "one/before", 0, &vec![1; 50_000]);
    assert!(filesystem.enable_simple_quotas().unwrap());
    assert!(!filesystem.enable_simple_quotas().unwrap());
    assert_eq!(filesystem.enable_quotas().unwrap_err().errno(), 22);
    let (one, parent) = (subvolume(&filesystem, "one"), group(1, 1));
    assert_eq!(usage(&filesystem, one), 0);
    filesystem.create_qgroup(parent).unwrap();
    filesystem.assign_qgroup(group(0, one), parent).unwrap();
    write(&filesystem, "one/file", 4096, &[3; 9000]);
    write(&filesystem, "one/before", 0, &[3; 9000]);
    filesystem.close().unwrap();
    judge(&image, "enabled", "btrfs -q subvolume snapshot one three; rm one/before");

    let filesystem = open(&image);
    // Two paths lead from the subvolume to 2/1, which counts it once.
    for (child, above) in [(parent, group(2, 1)), (group(0, one), group(1, 2))] {
        filesystem.create_qgroup(above).unwrap();
        filesystem.assign_qgroup(child, above).unwrap();
    }
    filesystem.assign_qgroup(group(1, 2), group(2, 1)).unwrap();
    let used = usage(&filesystem, one);
    assert!(used > 0 && usage(&filesystem, 2 << 48 | 1) == used);
    filesystem.rescan_quotas().unwrap();
    assert_eq!(usage(&filesystem, 2 << 48 | 1), used);
    filesystem.unassign_qgroup(group(0, one), parent).unwrap();
    assert_eq!(usage(&filesystem, 1 << 48 | 1), 0);
    write(&filesystem, "one/more", 0, &vec![3; 90_000]);
    filesystem.close().unwrap();
    judge(&image, "relations", "rm one/more");

    let filesystem = open(&image);
    assert!(filesystem.disable_quotas().unwrap());
    assert!(filesystem.quotas().unwrap().is_none());
    // Owner references stay, and new extents have none.
    write(&filesystem, "one/file", 100_000, &vec![4; 20_000]);
    filesystem.snapshot(one, filesystem.root(), b"four", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "one/file", 0, &vec![5; 20_000]);
    filesystem.close().unwrap();
    let path = image.devices[0].to_string_lossy().into_owned();
    run("btrfs", &["check", "--check-data-csum", &path]);
    let filesystem = open(&image);
    assert!(filesystem.enable_simple_quotas().unwrap());
    write(&filesystem, "one/file", 0, &vec![6; 200_000]);
    filesystem.close().unwrap();
    judge(&image, "enabled again", "echo 1 > one/file");
}
