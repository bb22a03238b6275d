//! Devices that fail on a volume with copies on other devices: the volume stays in use, no
//! acknowledged data is lost, the failures are recorded, and the kernel agrees.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::device::{Device, Fault, FaultyDevice, FileDevice, OpenDevice, Rule, When};
use butternut::server::FileExt;
use butternut::{
    Allocate, AttributeFlags, DevicePath, Filesystem, Follow, MountOptions, NewInode, Privileges,
    Tunables,
};
use butternut_volume::chain;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

fn writable() -> MountOptions {
    MountOptions::default().read_only(false)
}

fn degraded() -> MountOptions {
    writable().degraded(true)
}

struct Faulty {
    devices: Vec<Arc<FaultyDevice>>,
    filesystem: Filesystem,
}

fn logging(options: &MountOptions) -> MountOptions {
    options.clone().tunables(Tunables::default().log_tree(true))
}

fn open(image: &KernelImage) -> Faulty {
    open_with(image, &writable())
}

fn open_with(image: &KernelImage, options: &MountOptions) -> Faulty {
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let open = |path| Arc::new(FileDevice::open(path, &how).unwrap()) as Arc<dyn Device>;
    let devices: Vec<Arc<FaultyDevice>> =
        image.devices.iter().map(|path| Arc::new(FaultyDevice::new(open(path), 1))).collect();
    let given = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let filesystem = Filesystem::open_devices(given, options).unwrap();
    Faulty { devices, filesystem }
}

fn plain(image: &KernelImage, options: &MountOptions) -> butternut::Result<Filesystem> {
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, options)
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed ^ u8::try_from(at / 4096 % 251).unwrap()).collect()
}

fn put(fs: &Filesystem, name: &str, no_cow: bool, content: &[u8]) {
    let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
    let id = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
    if no_cow {
        fs.set_attribute_flags(id, AttributeFlags::NOCOW).unwrap();
    }
    let file = fs.open_file(id).unwrap();
    file.write_at(0, content).unwrap();
    file.sync_all().unwrap();
}

fn rewrite(fs: &Filesystem, name: &str, content: &[u8]) {
    let id = fs.resolve(name.as_bytes(), Follow::Last).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, content).unwrap();
    file.sync_all().unwrap();
}

fn holds(fs: &Filesystem, name: &str, content: &[u8]) {
    let id = fs.resolve(name.as_bytes(), Follow::Last).unwrap();
    let mut found = vec![0; content.len() + 1];
    let count = fs.open_file(id).unwrap().read_at(0, &mut found).unwrap();
    assert!(found[..count] == *content, "{name}");
}

/// Returns the write error counts of each device from the kernel's mount.
fn kernel_stats(path: &str) -> Vec<u64> {
    let shown = run("btrfs", &["device", "stats", path]);
    let lines = shown.lines().filter(|line| line.contains("write_io_errs"));
    lines.map(|line| line.split_whitespace().last().unwrap().parse().unwrap()).collect()
}

/// One device of the profile fails every write; with `spares_super`, all but those of superblocks.
fn tolerate_a_failing_device(profile: &str, devices: usize, spares_super: bool) {
    let image = KernelImage::make(devices, &["-d", profile, "-m", profile], "", "echo 1 > before");
    let size = 300_000;
    {
        let Faulty { devices, filesystem: fs } = open(&image);
        put(&fs, "rewritten", false, &bytes(1, size));
        put(&fs, "in place", true, &bytes(2, size));
        fs.sync().unwrap();
        let range = if spares_super { 1 << 20..64 << 20 } else { 0..u64::MAX };
        devices[1].add(Rule::at(range, Fault::WriteError));
        devices[1].add(Rule::at(65 << 20..u64::MAX, Fault::WriteError));
        rewrite(&fs, "rewritten", &bytes(3, size));
        rewrite(&fs, "in place", &bytes(4, size));
        put(&fs, "new", false, &bytes(5, size));
        fs.sync().unwrap();
        assert!(fs.is_writable());
        assert!(fs.stats().devices[1].write_errors > 0);
        let notices = fs.watch_failures().take().unwrap();
        let reported = notices.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(
            reported.contains("device 2") && reported.contains("redundancy is lost"),
            "{reported}"
        );
        holds(&fs, "in place", &bytes(4, size));
        fs.close().unwrap();
    }
    let contents: [(&str, Vec<u8>); 3] =
        [("rewritten", bytes(3, size)), ("in place", bytes(4, size)), ("new", bytes(5, size))];
    let fs = plain(&image, &MountOptions::default()).unwrap();
    for (name, content) in &contents {
        holds(&fs, name, content);
    }
    assert!(fs.stats().devices[1].write_errors > 0, "on record");
    let reported = fs.notices().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(reported.contains("device 2 has") && reported.contains("on record"), "{reported}");
    drop(fs);
    if !spares_super {
        let error = plain(&image, &writable()).unwrap_err();
        assert!(chain(&error).contains("stale"), "{}", chain(&error));
    }
    let fs = plain(&image, &degraded()).unwrap();
    put(&fs, "later", false, &bytes(6, size));
    for (name, content) in &contents {
        holds(&fs, name, content);
    }
    fs.close().unwrap();
    let mount = image.mount("rw");
    let path = mount.path().to_string_lossy().into_owned();
    let counts = kernel_stats(&path);
    assert!(counts[1] > 0 && counts.iter().sum::<u64>() == counts[1], "{counts:?}");
    for (name, content) in &contents {
        // Without checksums the kernel cannot detect which of its copies is old.
        if *name != "in place" {
            assert!(std::fs::read(mount.path().join(name)).unwrap() == *content, "{name}");
        }
    }
    run("btrfs", &["scrub", "start", "-B", &path]);
    drop(mount);
    run("btrfs", &["check", "--check-data-csum", &image.devices[0].to_string_lossy()]);
}

#[test]
fn raid1_tolerates_a_device_that_fails_every_write() {
    if kernel_is_here() {
        tolerate_a_failing_device("raid1", 2, false);
    }
}

#[test]
fn raid1_tolerates_a_device_that_fails_some_writes() {
    if kernel_is_here() {
        tolerate_a_failing_device("raid1", 2, true);
    }
}

#[test]
fn raid10_and_raid1c3_tolerate_a_device_that_fails_some_writes() {
    if kernel_is_here() {
        tolerate_a_failing_device("raid10", 4, true);
        tolerate_a_failing_device("raid1c3", 3, true);
    }
}

/// Writes both copies of the superblock of `from` over those of `to`.
fn put_back_supers(from: &Path, to: &Path) {
    let (from, to) = (File::open(from).unwrap(), File::options().write(true).open(to).unwrap());
    for at in [64 << 10, 64 << 20] {
        let mut copy = [0; 4096];
        from.read_exact_at(&mut copy, at).unwrap();
        to.write_all_at(&copy, at).unwrap();
    }
}

#[test]
fn a_power_failure_between_the_superblocks_of_a_commit_leaves_a_writable_volume() {
    if !kernel_is_here() {
        return;
    }
    for (profile, behind) in
        [("single", 0), ("single", 1), ("raid0", 1), ("raid1", 0), ("raid1", 1)]
    {
        let image = KernelImage::make(2, &["-d", profile, "-m", "raid1"], "", "true");
        let options = writable().commit_seconds(0);
        let fs = plain(&image, &options).unwrap();
        put(&fs, "before", true, &bytes(1, 3 << 20));
        fs.sync().unwrap();
        let old = image.devices[behind].with_extension("old");
        std::fs::File::create(&old).unwrap().set_len(65 << 20).unwrap();
        put_back_supers(&image.devices[behind], &old);
        fs.create(fs.root(), b"empty", &NewInode::new(0o644)).unwrap();
        fs.sync().unwrap();
        fs.abandon();
        drop(fs);
        put_back_supers(&old, &image.devices[behind]);
        let fs = plain(&image, &options).unwrap();
        holds(&fs, "before", &bytes(1, 3 << 20));
        assert!(fs.lookup(fs.root(), b"empty").is_ok(), "the newest superblock counts");
        put(&fs, "after", false, &bytes(2, 3 << 20));
        fs.close().unwrap();
        let mount = image.mount("rw");
        for (name, content) in [("before", bytes(1, 3 << 20)), ("after", bytes(2, 3 << 20))] {
            assert!(std::fs::read(mount.path().join(name)).unwrap() == content, "{name}");
        }
        drop(mount);
        run("btrfs", &["check", "--check-data-csum", &image.devices[0].to_string_lossy()]);
    }
}

/// Each write and flush of one device fails once: no acknowledged data is lost.
#[test]
fn raid1_tolerates_a_failure_of_any_single_write_or_flush() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(2, &["-d", "raid1", "-m", "raid1"], "", "true");
    for (fault, steps) in [(Fault::WriteError, 24), (Fault::FlushError, 6)] {
        for nth in 0..steps {
            let Faulty { devices, filesystem: fs } = open(&image);
            let name = format!("{fault:?} {nth}");
            devices[0].add(Rule { range: 0..u64::MAX, when: When::Nth(nth), fault });
            put(&fs, &name, nth % 2 == 0, &bytes(7, 40_000));
            fs.sync().unwrap();
            rewrite(&fs, &name, &bytes(8, 40_000));
            assert!(fs.is_writable());
            holds(&fs, &name, &bytes(8, 40_000));
            fs.close().unwrap();
            drop(devices);
            holds(&plain(&image, &MountOptions::default()).unwrap(), &name, &bytes(8, 40_000));
        }
    }
}

/// Each write and flush of one device fails once while a sync writes to the log: after a crash, the
/// data is there, whichever device the volume is opened by.
#[test]
fn a_log_tolerates_a_failure_of_any_single_write_or_flush() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(2, &["-d", "raid1", "-m", "raid1"], "", "true");
    for (fault, steps) in [(Fault::WriteError, 8), (Fault::FlushError, 3)] {
        for (nth, failing) in (0..steps).flat_map(|nth| [(nth, 0), (nth, 1)]) {
            let Faulty { devices, filesystem: fs } = open_with(&image, &logging(&writable()));
            let name = format!("{fault:?} {nth} {failing}");
            put(&fs, &name, false, &bytes(7, 40_000));
            fs.sync().unwrap();
            devices[failing].add(Rule { range: 0..u64::MAX, when: When::Nth(nth), fault });
            rewrite(&fs, &name, &bytes(8, 40_000));
            fs.abandon();
            drop((fs, devices));
            holds(&plain(&image, &MountOptions::default()).unwrap(), &name, &bytes(8, 40_000));
            plain(&image, &writable()).unwrap().close().unwrap();
        }
    }
}

/// The superblock of a log makes a stale device look current, so the device is on record before.
#[test]
fn a_stale_device_is_on_record_before_a_log_is_written() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(2, &["-d", "raid1", "-m", "raid1"], "", "true");
    let old = image.devices[1].with_extension("old");
    run("cp", &["--sparse=always", &image.devices[1].to_string_lossy(), &old.to_string_lossy()]);
    let fs = plain(&image, &writable()).unwrap();
    put(&fs, "in place", true, &bytes(1, 8192));
    fs.close().unwrap();
    let stale = File::options().write(true).open(&image.devices[1]).unwrap();
    std::io::copy(&mut File::open(&old).unwrap(), &mut &stale).unwrap();
    let fs = plain(&image, &logging(&degraded())).unwrap();
    put(&fs, "later", false, &bytes(2, 8192));
    rewrite(&fs, "later", &bytes(3, 8192));
    fs.abandon();
    drop(fs);
    let fs = plain(&image, &MountOptions::default()).unwrap();
    assert!(fs.stats().devices[1].write_errors > 0, "it is on record, or would look current");
    for (name, content) in [("in place", bytes(1, 8192)), ("later", bytes(3, 8192))] {
        holds(&fs, name, &content);
    }
}

/// Nothing is logged for a write in place that keeps the times, so no batch finds the failure.
#[test]
fn a_device_that_missed_a_write_in_place_is_on_record_before_its_sync_returns() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(2, &["-d", "raid1", "-m", "raid1"], "", "true");
    let Faulty { devices, filesystem: fs } = open_with(&image, &logging(&writable()));
    put(&fs, "in place", true, &bytes(1, 8192));
    fs.sync().unwrap();
    let file = fs.open_file(fs.resolve(b"in place", Follow::Last).unwrap()).unwrap();
    let file = file.without_time_updates();
    devices[1].add(Rule::at(1 << 20..64 << 20, Fault::WriteError));
    devices[1].add(Rule::at(65 << 20..u64::MAX, Fault::WriteError));
    file.write_direct(0, &bytes(4, 8192), Privileges::Keep).unwrap();
    file.sync_all().unwrap();
    fs.abandon();
    drop((file, fs, devices));
    let fs = plain(&image, &MountOptions::default()).unwrap();
    assert!(fs.stats().devices[1].write_errors > 0, "on record");
    holds(&fs, "in place", &bytes(4, 8192));
}

#[test]
fn a_dup_volume_tolerates_a_bad_sector_under_one_copy_of_a_tree_block() {
    if !kernel_is_here() {
        return;
    }
    // The writes before the superblock: one of log blocks for each copy, or two of tree blocks.
    for (log_tree, nth) in [(true, 2), (false, 3)] {
        let image = KernelImage::make(1, &["-d", "single", "-m", "dup"], "", "echo 1 > before");
        let options = writable().tunables(Tunables::default().log_tree(log_tree));
        let Faulty { devices, filesystem: fs } = open_with(&image, &options);
        devices[0].add(Rule { range: 0..u64::MAX, when: When::Nth(nth), fault: Fault::WriteError });
        put(&fs, "file", false, &bytes(1, 4000));
        fs.sync().unwrap();
        fs.close().unwrap();
        drop(devices);
        let mount = image.mount("rw");
        assert_eq!(kernel_stats(&mount.path().to_string_lossy()), [1]);
    }
}

#[test]
fn a_truncated_image_is_refused_and_commits_to_it_fail() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &["-d", "single", "-m", "dup"], "", "echo 1 > before");
    let whole = std::fs::metadata(&image.devices[0]).unwrap().len();
    let file = File::options().write(true).open(&image.devices[0]).unwrap();
    for short in [whole - 4096, whole / 2] {
        let fs = plain(&image, &writable()).unwrap();
        file.set_len(short).unwrap();
        let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
        fs.create(fs.root(), format!("cut {short}").as_bytes(), &new).unwrap();
        let error = fs.sync().unwrap_err();
        assert!(chain(&error).contains("its device item says"), "{}", chain(&error));
        assert!(!fs.is_writable());
        // Restoring the length does not help.
        file.set_len(whole).unwrap();
        assert!(fs.sync().is_err());
        drop(fs);
        file.set_len(short).unwrap();
        for options in [MountOptions::default(), writable(), degraded()] {
            let error = plain(&image, &options).unwrap_err();
            assert!(chain(&error).contains("its device item says"), "{}", chain(&error));
            assert_eq!(error.errno(), 22, "as the kernel has it");
        }
        file.set_len(whole).unwrap();
    }
}

#[test]
fn a_commit_fails_if_another_writer_changed_the_superblock() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "echo 1 > before");
    let fs = plain(&image, &writable()).unwrap();
    std::fs::write(image.mount("rw").path().join("theirs"), "x").unwrap();
    let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
    fs.create(fs.root(), b"ours", &new).unwrap();
    let error = fs.sync().unwrap_err();
    assert!(chain(&error).contains("another writer"), "{}", chain(&error));
    drop(fs);
    run("btrfs", &["check", &image.devices[0].to_string_lossy()]);
    let fs = plain(&image, &MountOptions::default()).unwrap();
    fs.resolve(b"theirs", Follow::Last).unwrap();
}

/// Damage that is repaired from another copy is reported with the path of the file, once a minute.
#[test]
fn a_rescued_read_is_reported_with_its_path() {
    if !kernel_is_here() {
        return;
    }
    let script = "mkdir dir; for n in {1..32}; do head -c 20480 /dev/urandom > dir/rotten$n; done";
    let image = KernelImage::make(2, &["-d", "raid1", "-m", "raid1"], "", script);
    let Faulty { devices, filesystem: fs } = open(&image);
    devices[0].add(Rule::at(1 << 20..u64::MAX, Fault::Rot { bits: 3 }));
    let watch = fs.watch_failures();
    for number in 1..=32 {
        let path = format!("dir/rotten{number}");
        let id = fs.resolve(path.as_bytes(), Follow::Last).unwrap();
        let mut content = vec![0; 20480];
        assert_eq!(fs.open_file(id).unwrap().read_at(0, &mut content).unwrap(), 20480);
    }
    let notices = watch.take().unwrap();
    let reported = notices.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(
        reported.contains("in \"dir/rotten") && reported.contains("of subvolume 5"),
        "{reported}"
    );
    assert!(reported.contains("device 1") && reported.contains("wrong checksum"), "{reported}");
    assert!(watch.take().unwrap().is_empty());
    fs.close().unwrap();
    assert!(watch.take().is_none());
}

/// For reading, a log is replayed in memory. That needs no space on the devices, so a volume
/// without space for a chunk shows what was synced also when a device is missing.
#[test]
fn a_full_volume_shows_its_log_without_one_of_its_devices() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(2, &["-d", "raid1", "-m", "raid1"], "", "true");
    let fs = plain(&image, &logging(&writable()).commit_seconds(0)).unwrap();
    let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
    // Until no device has space for another chunk.
    for nth in 0.. {
        let name = format!("fill{nth}");
        let id = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
        let file = fs.open_file(id).unwrap();
        if file.allocate(0..16 << 20, Allocate::Extend).is_err() {
            break;
        }
    }
    for nth in 0..2 {
        fs.unlink(fs.root(), format!("fill{nth}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let fast = fs.stats().syncs.fast;
    put(&fs, "synced", false, &bytes(5, 40_000));
    assert_eq!(fs.stats().syncs.fast, fast + 1, "the log has it");
    fs.abandon();
    drop(fs);
    holds(&plain(&image, &MountOptions::default()).unwrap(), "synced", &bytes(5, 40_000));
    let one = [DevicePath::from(&image.devices[0])];
    let fs = Filesystem::open(&one, &MountOptions::default().degraded(true)).unwrap();
    let notices: Vec<String> = fs.notices().iter().map(ToString::to_string).collect();
    assert!(fs.lookup(fs.root(), b"synced").is_ok(), "{notices:?}");
    holds(&fs, "synced", &bytes(5, 40_000));
}
