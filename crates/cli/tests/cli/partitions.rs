//! `partitions` and `?partition=N`: the partitions of disks that sfdisk(8) made are those that
//! partx(8) adds to a loop device (not every kernel reads tables itself), volumes in them are
//! opened, and tables that lie are refused or listed with what is wrong.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use butternut_undo::LoopGuard;
use serde_json::Value;
use tempfile::TempDir;

use super::command::{butternut, run, shell};
use super::image::{kernel_tests_enabled, plain};

/// A GPT with gaps between the numbers and the partitions, and not in the order of the disk.
const GPT: &str = "label: gpt
1: start=2048, size=20480, type=U, name=\"EFI & co\"
5: start=1024000, size=614400, type=L, name=data
3: start=40960, size=409600, type=S";

/// Three primary partitions and an extended one with three logical ones, of which one is removed.
const MBR: &str = "label: dos
start=2048, size=20480, type=c, bootable
start=22528, size=2048, type=82
start=24576, size=1638400, type=5
start=26624, size=409600, type=83
start=438272, size=2048, type=83
start=442368, size=614400, type=83
start=1662976, size=4096, type=83";

fn disk(dir: &TempDir, table: &str) -> PathBuf {
    let disk = dir.path().join("disk.img");
    File::create(&disk).unwrap().set_len(1 << 30).unwrap();
    let table_file = dir.path().join("table");
    fs::write(&table_file, format!("{table}\n")).unwrap();
    shell(&format!("sfdisk --quiet {} < {}", disk.display(), table_file.display()));
    disk
}

fn listed(disk: &Path) -> Value {
    let said = butternut(&["partitions", "--json", disk.to_str().unwrap()]).ok();
    serde_json::from_str(&said).unwrap()
}

/// Number, start and size of each partition, without extended ones.
fn ranges(table: &Value) -> Vec<(u64, u64, u64)> {
    let partitions = table["partitions"].as_array().unwrap().iter();
    let used = partitions.filter(|it| !it["type_name"].as_str().unwrap().contains("xt"));
    let number = |it: &Value, key: &str| it[key].as_u64().unwrap();
    used.map(|it| (number(it, "number"), number(it, "start"), number(it, "bytes"))).collect()
}

/// The same, of the kernel, from the partitions of a loop device.
fn kernels(device: &Path, extended: Option<u64>) -> Vec<(u64, u64, u64)> {
    let name = device.file_name().unwrap().to_str().unwrap();
    let script = format!(
        "partx --delete {0} 2> /dev/null || true; partx --add {0}; cd /sys/block/{name}
         for p in {name}p*; do echo $(cat $p/partition $p/start $p/size); done | sort -n",
        device.display()
    );
    let text = shell(&script);
    let line = |line: &str| -> Vec<u64> {
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    let listed = text.lines().map(line).map(|it| (it[0], it[1] * 512, it[2] * 512));
    listed.filter(|it| Some(it.0) != extended).collect()
}

fn attach(disk: &Path, options: &[&str]) -> LoopGuard {
    let options: Vec<&OsStr> = options.iter().map(AsRef::as_ref).collect();
    LoopGuard::attach(disk, &options).unwrap()
}

#[test]
fn partitions_are_those_of_the_kernel() {
    if !kernel_tests_enabled("partitions_are_those_of_the_kernel") {
        return;
    }
    for (table, numbers, extended) in
        [(GPT, &[1, 3, 5][..], None), (MBR, &[1, 2, 4, 5, 6, 7], Some(3))]
    {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = disk(&dir, table);
        let ours = ranges(&listed(&disk));
        assert_eq!(ours.iter().map(|it| it.0).collect::<Vec<_>>(), numbers);
        let device = attach(&disk, &["-P"]);
        let sorted = |mut list: Vec<(u64, u64, u64)>| {
            list.sort_unstable();
            list
        };
        assert_eq!(sorted(ours), kernels(device.path(), extended), "{table}");
        // A block device, and a chain with a removed partition.
        assert_eq!(listed(device.path())["partitions"], listed(&disk)["partitions"]);
        drop(device);
        if table == MBR {
            run("sfdisk", &["--quiet".as_ref(), "--delete".as_ref(), disk.as_ref(), "6".as_ref()]);
            let device = attach(&disk, &["-P"]);
            assert_eq!(sorted(ranges(&listed(&disk))), kernels(device.path(), extended));
        }
    }
}

#[test]
fn a_table_for_large_sectors_is_that_of_the_kernel() {
    if !kernel_tests_enabled("a_table_for_large_sectors_is_that_of_the_kernel") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = dir.path().join("disk.img");
    File::create(&disk).unwrap().set_len(1 << 30).unwrap();
    let device = attach(&disk, &["-P", "--sector-size", "4096"]);
    let name = device.path().display();
    shell(&format!("printf 'label: gpt\\nstart=256, size=51200\\n' | sfdisk --quiet {name}"));
    let expected = vec![(1, 1 << 20, 200 << 20)];
    assert_eq!(ranges(&listed(device.path())), expected);
    assert_eq!(kernels(device.path(), None), expected);
    let table = listed(&disk);
    assert_eq!((ranges(&table), table["sector_bytes"].as_u64()), (expected, Some(4096)));
}

/// Puts the plain volume of the tests into a partition that has its size.
fn with_volume(disk: &Path, start: u64) {
    let volume = File::open(&plain().0).unwrap();
    let (disk, bytes) = (File::options().write(true).open(disk).unwrap(), 1 << 16);
    let mut part = vec![0; bytes];
    for at in (0..volume.metadata().unwrap().len()).step_by(bytes) {
        let read = volume.read_at(&mut part, at).unwrap();
        if part[..read].iter().any(|byte| *byte != 0) {
            disk.write_all_at(&part[..read], start + at).unwrap();
        }
    }
}

#[test]
fn a_volume_in_a_partition_is_opened_by_its_number_and_listed_where_none_is_found() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = disk(&dir, GPT);
    with_volume(&disk, 40960 * 512);
    let name = disk.to_str().unwrap();
    let at = |place: &str| format!("{name}?{place}");
    for place in ["partition=3", "offset=40960s", "offset=20M"] {
        assert_eq!(butternut(&["cat", &at(place), "hello.txt"]).ok(), "hello\n");
    }
    let table = butternut(&["partitions", name]).ok();
    let expected = "\
NUMBER     START      SIZE TYPE             NAME     CONTENTS
     1   1048576  10.00MiB EFI System       EFI & co -
     3  20971520 200.00MiB Linux swap       -        a btrfs volume
     5 524288000 300.00MiB Linux filesystem data     -
";
    assert_eq!(table, expected);
    let listed = "it has partitions: ?partition=3 is a btrfs volume; partition 1 of 10.00MiB has \
                  no known contents; partition 5 of 300.00MiB has no known contents";
    for command in [&["ls"][..], &["rm", "-r", "x"], &["mount", "/mnt"]] {
        let (word, rest) = command.split_first().unwrap();
        let mut words = vec![*word, name];
        words.extend(rest.iter().filter(|it| !it.starts_with('-')));
        let failure = butternut(&words).failure();
        assert!(failure.contains(listed), "{failure}");
    }
    let failure = butternut(&["ls", &at("partition=1")]).failure();
    assert!(failure.contains(listed), "{failure}");
    let check = butternut(&["check", name]);
    assert!(check.err.contains(listed), "{}", check.err);
    for (place, why) in [
        (
            "partition=2",
            "partition: have 2, want one of 1, 3, 5 (`butternut partitions` lists them)",
        ),
        ("partition=x", "partition \"x\" is not a number (`butternut partitions` lists them)"),
    ] {
        let failure = butternut(&["ls", &at(place)]).failure();
        assert_eq!(failure, format!("butternut: {}: {why}", at(place)));
    }
    let missing = butternut(&["ls", "/nonexistent/disk.img?partition=1"]).failure();
    assert!(missing.contains("/nonexistent/disk.img: no such file"), "{missing}");
    let none = butternut(&["partitions", plain().0.to_str().unwrap()]).failure();
    assert!(
        none.ends_with("there is no partition table (the whole of it is a btrfs volume)"),
        "{none}"
    );
}

/// Returns the bytes of a file in a range, as a hash of the shell.
fn hash(disk: &Path, start: u64, bytes: u64) -> String {
    let (disk, skip, count) = (disk.display(), start >> 20, bytes >> 20);
    shell(&format!("dd if={disk} bs=1M skip={skip} count={count} status=none | sha256sum"))
}

#[test]
fn nothing_behind_the_end_of_a_partition_is_written() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    // The volumes end where the next partition begins.
    let disk = disk(&dir, "label: gpt\nstart=2048, size=409600\nstart=411648, size=409600\nsize=+");
    let name = disk.to_str().unwrap();
    let file = File::options().write(true).open(&disk).unwrap();
    let (second, third): (u64, u64) = (411_648 * 512, third_start());
    for at in (second..third + (100 << 20)).step_by(65536) {
        file.write_all_at(&at.to_le_bytes(), at).unwrap();
    }
    let behind = |start: u64| hash(&disk, start, 200 << 20);
    let (before, len) = (behind(second), file.metadata().unwrap().len());
    let first = format!("{name}?partition=1");
    let made = butternut(&["mkfs", "--json", &first]).ok();
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["bytes"], 200 << 20);
    for refused in
        [&["mkfs", "-f", "--size", "300M", &first][..], &["filesystem", "resize", &first, "300M"]]
    {
        butternut(refused).failure();
    }
    butternut(&["filesystem", "resize", &first, "150M"]).ok();
    butternut(&["filesystem", "resize", &first, "max"]).ok();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), vec![7; 60 << 20]).unwrap();
    butternut(&["import", &first, tree.to_str().unwrap(), "/"]).ok();
    // Full: the last bytes of the partition are used.
    fs::write(dir.path().join("more"), vec![8; 150 << 20]).unwrap();
    let more = butternut(&["import", &first, dir.path().join("more").to_str().unwrap(), "/"]);
    assert!(more.err.contains("the volume is full"), "{}", more.err);
    butternut(&["trim", &first]).ok();
    assert_eq!((behind(second), file.metadata().unwrap().len()), (before, len));
    butternut(&["check", "-q", &first]).ok();
    // With a directory, the size of a volume is that of the partition, too.
    let third = format!("{name}?partition=2");
    let (before, tree) = (hash(&disk, third_start(), 100 << 20), tree.to_str().unwrap());
    let made = butternut(&["mkfs", "-f", "--json", "--shrink", "--rootdir", tree, &third]).ok();
    let made: Value = serde_json::from_str(&made).unwrap();
    assert!(made["bytes"].as_u64().unwrap() <= 200 << 20);
    assert_eq!(hash(&disk, third_start(), 100 << 20), before);
    assert_eq!(file.metadata().unwrap().len(), len);
    butternut(&["check", "-q", &third]).ok();
}

fn third_start() -> u64 {
    821_248 * 512
}

#[test]
fn the_kernel_mounts_what_was_written_to_a_partition() {
    if !kernel_tests_enabled("the_kernel_mounts_what_was_written_to_a_partition") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = disk(&dir, MBR);
    let name = format!("{}?partition=7", disk.display());
    butternut(&["mkfs", "-q", &name]).ok();
    butternut(&["mkdir", &name, "made"]).ok();
    let mount_point = dir.path().join("m");
    fs::create_dir(&mount_point).unwrap();
    let device = attach(&disk, &["-P"]);
    let (device, m) = (device.path().display(), mount_point.display());
    let partition = format!("{device}p7");
    let shown = shell(&format!(
        "partx --update {device}; mount {partition} {m}; ls {m}; umount {m}
         btrfs check {partition} > /dev/null 2>&1"
    ));
    assert_eq!(shown, "made\n");
    // A partition that is the kernel's own device is a volume, too.
    assert_eq!(butternut(&["ls", &partition]).ok(), "made\n");
}

#[test]
fn partitions_that_lie_are_listed_and_refused() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = disk(&dir, MBR);
    let name = disk.to_str().unwrap();
    let file = File::options().write(true).open(&disk).unwrap();
    let record = |sector: u64, index: u64, kind: u8, start: u32, sectors: u32| {
        let mut bytes = [0; 16];
        bytes[4] = kind;
        bytes[8..12].copy_from_slice(&start.to_le_bytes());
        bytes[12..16].copy_from_slice(&sectors.to_le_bytes());
        file.write_all_at(&bytes, sector * 512 + 446 + index * 16).unwrap();
    };
    // Past the end, and over another one.
    record(0, 0, 0x83, 2048, u32::MAX);
    record(0, 1, 0x83, 1_662_976, 8);
    let table = butternut(&["partitions", name]).ok();
    assert!(table.contains(" ends 2197950561792 bytes past the end of the disk"), "{table}");
    assert!(table.contains(" overlaps partition 1"), "{table}");
    let failure = butternut(&["ls", &format!("{name}?partition=1")]).failure();
    let expected = "partition 1 ends 2197950561792 bytes past the end of the disk (?offset=1048576 \
                    names its start, without its end)";
    assert!(failure.ends_with(expected), "{failure}");
    let failure = butternut(&["ls", &format!("{name}?partition=3")]).failure();
    assert!(failure.contains("partition 3 is an extended partition"), "{failure}");
    // A chain that leads back to its first sector, and one that leads nowhere.
    let (first, second) = (24_576, 436_224);
    record(second, 1, 0x05, 0, 1);
    let looping = butternut(&["partitions", name]);
    assert_eq!(looping.code, Some(0), "{}", looping.err);
    let note = "the chain of logical partitions leads back to its sector at byte 12582912";
    assert!(looping.err.contains(note), "{}", looping.err);
    record(first, 1, 0x05, 900_000, 1);
    let lost = butternut(&["partitions", name]);
    assert!(lost.err.contains("leads to byte 473382912, which has no records"), "{}", lost.err);
    // A logical partition outside of the extended one.
    record(first, 0, 0x83, 1_700_000, 8);
    let outside = butternut(&["partitions", name]).out;
    assert!(outside.contains("is outside of the extended partition 3"), "{outside}");
}

#[test]
fn a_gpt_whose_header_is_damaged_is_read_from_its_copy() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = disk(&dir, GPT);
    let (name, good) = (disk.to_str().unwrap(), ranges(&listed(&disk)));
    let file = File::options().write(true).open(&disk).unwrap();
    file.write_all_at(b"X", 512 + 60).unwrap();
    let table = listed(&disk);
    assert_eq!(ranges(&table), good);
    let note = table["notes"][0].as_str().unwrap();
    assert!(note.contains("header in sector 1: CRC32 Checksum Mismatch"), "{note}");
    file.write_all_at(b"X", (1 << 30) - 512 + 60).unwrap();
    let failure = butternut(&["partitions", name]).failure();
    assert!(failure.contains("the partition table is damaged: header in sector 1"), "{failure}");
    assert!(failure.ends_with("(if you know where a volume starts, add ?offset=N)"), "{failure}");
}

/// Each volume locks its own partition only. The whole disk is busy meanwhile, and so is each
/// partition where it is mounted.
#[test]
fn volumes_in_two_partitions_of_one_image_are_mounted_together() {
    let test = "volumes_in_two_partitions_of_one_image_are_mounted_together";
    if !kernel_tests_enabled(test) {
        return;
    }
    let output = super::mount_end::run_in_namespace(
        r"truncate -s 400M disk.img
        printf '%s\n' 'label: gpt' 'start=2048, size=307200' 'start=409600, size=307200' |
            sfdisk -q disk.img
        $B mkfs -q 'disk.img?partition=1'; $B mkfs -q 'disk.img?partition=2'
        $B mount 'disk.img?partition=1' m1; $B mount 'disk.img?partition=2' m2
        echo one > m1/file; echo two > m2/file
        $B mkdir 'disk.img?partition=2' /d 2> said || echo busy
        grep -q /m2 said && ! grep -q /m1 said || cat said
        $B mkfs -q --force disk.img 2> /dev/null || echo busy
        $B umount -q m1; $B mkdir 'disk.img?partition=1' /d; $B umount -q m2
        $B cat 'disk.img?partition=1' /file; $B cat 'disk.img?partition=2' /file
        $B check -q 'disk.img?partition=1'; $B check -q 'disk.img?partition=2'",
    );
    assert_eq!(output, "busy\nbusy\none\ntwo\n");
}

/// A volume on two partitions of one image is written, and is not resized: its devices have one
/// path.
#[test]
fn a_volume_on_two_partitions_of_one_image_is_written() {
    let output = super::mount_end::run_in_namespace(
        r"truncate -s 600M disk.img
        printf '%s\n' 'label: gpt' 'start=2048, size=409600' 'start=614400, size=409600' |
            sfdisk -q disk.img
        dd if=disk.img of=head bs=1M count=1 status=none
        truncate -s 200M a b; mkfs.btrfs -q -d raid1 -m raid1 a b
        dd if=a of=disk.img bs=1M seek=1 conv=notrunc status=none
        dd if=b of=disk.img bs=1M seek=300 conv=notrunc status=none
        echo one > file; $B write 'disk.img?partition=1,disk.img?partition=2' /file < file
        $B cat 'disk.img?partition=1,disk.img?partition=2' /file
        $B check -q 'disk.img?partition=1,disk.img?partition=2'
        $B filesystem resize 'disk.img?partition=1,disk.img?partition=2' 2:max 2>&1 | cut -d: -f3",
    );
    assert!(output.starts_with("one\n"), "{output}");
    assert!(output.contains("several devices of the volume are in this file"), "{output}");
}
