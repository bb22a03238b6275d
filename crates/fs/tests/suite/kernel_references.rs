//! Extents with more references than an extent item holds inline, created by the kernel's reflinks
//! and changed by Butternut: `btrfs check` and the kernel's mount verify the references after each
//! change.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_compare::compare;
use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::{Allocate, DevicePath, Filesystem, MountOptions};

/// Bytes of the shared extent, in whole sectors.
const EXTENT_BYTES: u64 = 256 << 10;

/// Makes `clones` files that share one extent, and a snapshot that shares them once more. The
/// kernel then removes half of the oldest clones, whose references are inline, so that the extent
/// item has room for inline references while the rest of the references are keyed items.
fn shared_extent(mkfs: &[&str], clones: u32) -> KernelImage {
    let script = format!(
        "head -c {EXTENT_BYTES} /dev/urandom > base; sync -f .
         for n in $(seq {clones}); do cp --reflink=always base c$n; done; sync -f .
         btrfs -q subvolume snapshot . past; sync -f .
         for n in $(seq 1 2 30); do rm -f c$n; done; rm -f past/base; sync -f ."
    );
    KernelImage::make(1, mkfs, "", &script)
}

fn open(image: &KernelImage, read_only: bool) -> Filesystem {
    let options = MountOptions::default().read_only(read_only);
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, &options).unwrap()
}

fn judge(image: &KernelImage) {
    let path = image.devices[0].to_string_lossy().into_owned();
    run("btrfs", &["check", "--check-data-csum", &path]);
    let mount = image.mount("ro");
    let filesystem = open(image, true);
    compare(&filesystem, filesystem.root(), mount.path());
}

/// The ways to change one of many files that share an extent.
#[derive(Clone, Copy, Debug)]
enum Way {
    OverwriteMiddle,
    OverwriteAll,
    Punch,
    TruncateHalf,
    TruncateAll,
    Delete,
}

const WAYS: [Way; 6] = [
    Way::OverwriteMiddle,
    Way::OverwriteAll,
    Way::Punch,
    Way::TruncateHalf,
    Way::TruncateAll,
    Way::Delete,
];

fn change(fs: &Filesystem, name: &str, way: Way) {
    let middle = EXTENT_BYTES / 2..EXTENT_BYTES / 2 + 4096;
    if matches!(way, Way::Delete) {
        return fs.unlink(fs.root(), name.as_bytes()).unwrap();
    }
    let file = fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap();
    match way {
        Way::OverwriteMiddle => {
            assert_eq!(file.write_at(middle.start, &[7; 4096]).unwrap(), 4096);
        }
        Way::OverwriteAll => {
            let bytes = vec![9; usize::try_from(EXTENT_BYTES).unwrap()];
            assert_eq!(file.write_at(0, &bytes).unwrap(), bytes.len());
        }
        Way::Punch => file.allocate(middle, Allocate::PunchHole).unwrap(),
        Way::TruncateHalf => file.truncate(middle.start).unwrap(),
        Way::TruncateAll => file.truncate(0).unwrap(),
        Way::Delete => unreachable!("handled above"),
    }
}

/// Changes the files group by group, each group in all ways, and finally removes all.
fn change_in_every_way(mkfs: &[&str], clones: u32) {
    if !kernel_is_here() {
        return;
    }
    let image = shared_extent(mkfs, clones);
    judge(&image);
    for round in 0..3_u32 {
        let fs = open(&image, false);
        // Both ends of the list: the oldest references are inline, the youngest are keyed.
        for (at, way) in (0..).zip(WAYS) {
            let from_front = 2 + 2 * (round * 6 + at);
            let from_back = clones - (round * 6 + at);
            change(&fs, &format!("c{from_front}"), way);
            change(&fs, &format!("c{from_back}"), way);
        }
        fs.close().unwrap();
        judge(&image);
    }
    let fs = open(&image, false);
    let entries = fs.read_dir(fs.root(), butternut::FIRST_ENTRY).unwrap();
    let names: Vec<Vec<u8>> = entries.map(|entry| entry.unwrap().name).collect();
    for (at, name) in names.iter().filter(|name| **name != b"past").enumerate() {
        fs.unlink(fs.root(), name).unwrap();
        if at % 64 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.close().unwrap();
    judge(&image);
    let mounted = image.mount("rw");
    let path = mounted.path().to_string_lossy().into_owned();
    let fill = format!(
        "set -e; cd '{path}'; btrfs -q subvolume delete -c past; btrfs -q subvolume sync .
         head -c {EXTENT_BYTES} /dev/urandom > again; sync -f ."
    );
    run("bash", &["-c", &fill]);
    run("btrfs", &["scrub", "start", "-B", &path]);
    drop(mounted);
    judge(&image);
}

#[test]
fn references_beyond_the_extent_item_survive_every_kind_of_change() {
    change_in_every_way(&[], 60);
}

#[test]
fn hundreds_of_references_survive_every_kind_of_change() {
    change_in_every_way(&[], 350);
}

#[test]
fn small_nodes_hold_few_references_inline() {
    change_in_every_way(&["--nodesize", "4096", "-O", "^skinny-metadata"], 120);
}
