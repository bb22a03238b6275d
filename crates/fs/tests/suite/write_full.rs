//! Volumes that are filled completely, with data and with names, emptied, and filled again.
//!
//! `BUTTERNUT_LONG=1` repeats this twenty times. Afterwards the kernel mounts the volume, and
//! btrfs-progs checks it; with `BUTTERNUT_NO_KERNEL=1` this part is left out, with a message.

use crate::kernel_image::{kernel_is_here, run};
use crate::volume::{TestVolume, names, new};
use butternut::format::checksum::ChecksumKind;
use butternut::format::chunk::Profile;
use butternut::queue::{IoFlags, Queue, QueueOptions};
use butternut::{
    Allocate, AttributeFlags, File, FileId, Filesystem, Privileges, SetAttributes, SetXattr,
    SnapshotAccess,
};
use butternut_mkfs::MkfsOptions;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

fn round_count() -> u32 {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    if is_long { 20 } else { 4 }
}

fn small(mixed: bool) -> TestVolume {
    let mut options = MkfsOptions::default();
    if mixed {
        options.features.choose("mixed-bg").unwrap();
    }
    TestVolume::of(if mixed { 64 << 20 } else { 112 << 20 }, &options)
}

/// Repeats a step until there is no space. Returns the number of steps done.
fn fill(mut step: impl FnMut(u32) -> butternut::Result<()>) -> u32 {
    for number in 0.. {
        if let Err(error) = step(number) {
            assert_eq!(error.errno(), 28, "step {number}: {error:?}");
            return number;
        }
    }
    unreachable!("no volume is unlimited")
}

fn empty(fs: &Filesystem, dir: FileId) {
    for name in names(fs, dir) {
        fs.unlink(dir, name.as_bytes()).unwrap();
    }
}

fn rounds(volume: &TestVolume, mut round: impl FnMut(&Filesystem, FileId) -> u32) {
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    let mut counts = Vec::new();
    for number in 0..round_count() {
        counts.push(round(&fs, dir));
        if number % 2 == 1 {
            fs.sync().unwrap();
        }
        empty(&fs, dir);
        if number % 3 == 1 {
            fs.sync().unwrap();
            volume.copy().check();
        }
    }
    assert!(counts.iter().all(|count| *count > counts[0] / 2), "{counts:?}");
    fs.rmdir(fs.root(), b"dir").unwrap();
    volume.reopen(fs);
    if kernel_is_here() {
        judge(volume);
    }
}

/// Checks the volume with btrfs-progs and the kernel, which fills it once more.
fn judge(volume: &TestVolume) {
    let shared_memory = Path::new("/dev/shm");
    let place = if shared_memory.is_dir() { shared_memory } else { Path::new("/var/tmp") };
    let dir = tempfile::Builder::new().prefix("butternut-test-").tempdir_in(place).unwrap();
    let image = dir.path().join("image");
    let device = volume.devices().remove(0);
    let mut file = std::fs::File::create(&image).unwrap();
    file.set_len(device.bytes()).unwrap();
    let mut block = vec![0; 1 << 16];
    for at in (0..device.bytes()).step_by(block.len()) {
        device.read_at(at, &mut block).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&block).unwrap();
        }
    }
    drop(file);
    let (image, mount) = (image.to_str().unwrap(), dir.path().join("mount"));
    std::fs::create_dir(&mount).unwrap();
    run("btrfs", &["check", "--check-data-csum", image]);
    let guard = butternut_undo::MountGuard::before_mount(&mount).unwrap();
    let script = "mount -o loop \"$0\" \"$1\" && test -z \"$(ls \"$1\")\" \
        && ! dd if=/dev/zero of=\"$1/file\" bs=64K status=none && rm \"$1/file\"";
    run("bash", &["-c", script, image, mount.to_str().unwrap()]);
    guard.unmount().unwrap();
    run("btrfs", &["check", "--check-data-csum", image]);
}

#[test]
fn a_volume_is_filled_with_names() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            fill(|number| {
                let name = format!("{number:0200}");
                fs.create(dir, name.as_bytes(), &new(0o644)).map(drop)
            })
        });
    }
}

#[test]
fn a_volume_is_filled_with_small_files() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            fill(|number| {
                let id = fs.create(dir, format!("{number}").as_bytes(), &new(0o644))?;
                let bytes = 1 + usize::try_from(number).unwrap() % 9000;
                let written = fs.open_file(id)?.write_at(0, &vec![7; bytes])?;
                assert!(written > 0);
                Ok(())
            })
        });
    }
}

#[test]
fn a_volume_is_filled_with_one_file_that_is_truncated() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            let id = fs.create(dir, b"file", &new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            let count =
                fill(|number| file.write_at(u64::from(number) << 16, &[7; 1 << 14]).map(drop));
            let more = count + 1;
            fill(|number| file.write_at(u64::from(more + number) << 16, &[7; 1 << 12]).map(drop));
            fill(|number| fs.create(dir, format!("{number}").as_bytes(), &new(0o644)).map(drop));
            fs.set_attributes(id, &SetAttributes::size(5000)).unwrap();
            fs.sync().unwrap();
            let again = fill(|number| {
                let at = u64::from(number) << 18;
                file.allocate(at..at + (1 << 18), Allocate::KeepSize)
            });
            assert!(again > 10, "{again}");
            count
        });
    }
}

#[test]
fn a_volume_is_filled_with_attributes() {
    for mixed in [false, true] {
        rounds(&small(mixed), |fs, dir| {
            let id = fs.create(dir, b"file", &new(0o644)).unwrap();
            let size = if mixed { 3000 } else { 15_000 };
            fill(|number| {
                let name = format!("user.{number}");
                fs.set_xattr(id, name.as_bytes(), &vec![7; size], SetXattr::Either)
            })
        });
    }
}

/// Returns the bytes that can be written, 64 KiB at a time, while `queues` queues that have each
/// written once are open.
fn filled_beside(queues: usize) -> u64 {
    let volume = small(false);
    let fs = volume.open();
    let block = |n: u64| n * 4096;
    let base = fs.open_file(fs.create(fs.root(), b"base", &new(0o644)).unwrap()).unwrap();
    base.write_at(0, &vec![1; 4096 * 32]).unwrap();
    fs.sync().unwrap();
    let mut idle = Vec::new();
    for n in 0..queues as u64 {
        let mut queue = fs.queue(&QueueOptions::default()).unwrap();
        let buffer = queue.buffer(4096).unwrap();
        queue.write(&base, block(n), buffer, IoFlags::DIRECT, n).unwrap();
        let mut done = Vec::new();
        queue.reap(1, None, &mut done);
        assert_eq!(done.pop().unwrap().result.unwrap(), 4096);
        base.write_direct(block(n), &[2; 4096], Privileges::Keep).unwrap();
        idle.push(queue);
    }
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    let part = vec![3; 1 << 16];
    fill(|n| file.write_at(u64::from(n) << 16, &part).map(drop));
    let bytes = file.len();
    drop((idle, base, file));
    volume.reopen(fs);
    bytes
}

#[test]
fn space_of_idle_queues_is_reclaimed() {
    let (beside_many, alone) = (filled_beside(16), filled_beside(0));
    assert!(beside_many + (2 << 20) >= alone, "{beside_many} with many queues, {alone} alone");
}

const NO_COW: u32 = 0x0080_0000;
/// Bytes of one direct write.
const DIRECT_BYTES: usize = 192 << 10;

/// A direct write, blocking or through a queue.
type WriteDirect = fn(&mut Queue, &File, u64, u8) -> butternut::Result<usize>;

fn write_waiting(_: &mut Queue, file: &File, at: u64, byte: u8) -> butternut::Result<usize> {
    file.write_direct(at, &vec![byte; DIRECT_BYTES], Privileges::Keep)
}

fn write_queued(queue: &mut Queue, file: &File, at: u64, byte: u8) -> butternut::Result<usize> {
    let mut buffer = queue.buffer(DIRECT_BYTES).unwrap();
    buffer.fill(byte);
    queue.write(file, at, buffer, IoFlags::DIRECT, 1).map_err(|refused| refused.error)?;
    let mut done = Vec::new();
    queue.reap(1, None, &mut done);
    done.pop().unwrap().result
}

/// Appends until nothing more is written, then overwrites from where a hole was punched. Each write
/// is complete, short because space ended, or fails with ENOSPC.
fn fill_direct(write: WriteDirect, flags: u32) {
    let volume = small(false);
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    fs.set_attribute_flags(id, AttributeFlags(flags)).unwrap();
    let file = fs.open_file(id).unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut want: Vec<u8> = Vec::new();
    let mut refused = 0;
    while refused < 3 {
        let byte = u8::try_from(want.len() / DIRECT_BYTES % 250 + 1).unwrap();
        match write(&mut queue, &file, want.len() as u64, byte) {
            Ok(0) => panic!("nothing was written at {}, and no error was returned", want.len()),
            Ok(written) => want.resize(want.len() + written / 4096 * 4096, byte),
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error:?}");
                refused += 1;
            }
        }
    }
    let (mut over, mut written) = (0, 0);
    for number in 0..60_usize {
        let at = number * 7 % (want.len() / DIRECT_BYTES) * DIRECT_BYTES;
        if number % 3 == 0 {
            let hole = at..at + DIRECT_BYTES / 2;
            file.allocate(hole.start as u64..hole.end as u64, Allocate::PunchHole).unwrap();
            want[hole].fill(0);
        }
        match write(&mut queue, &file, at as u64, 251) {
            Ok(0) => panic!("nothing was written at {at}, and no error was returned"),
            Ok(bytes) => {
                want[at..at + bytes].fill(251);
                written += 1;
            }
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error:?}");
                over += 1;
            }
        }
    }
    let mut have = vec![0; want.len()];
    assert_eq!(file.read_at(0, &mut have).unwrap(), want.len());
    let wrong = have.iter().zip(&want).position(|(have, want)| have != want);
    assert_eq!(wrong, None, "{over} refused, {written} written");
    drop((queue, file));
    volume.reopen(fs);
}

#[test]
fn a_direct_write_without_space_returns_enospc() {
    for flags in [0, NO_COW] {
        fill_direct(write_waiting, flags);
        fill_direct(write_queued, flags);
    }
}

/// Small pseudorandom numbers with a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Checks a step that may find no space, and must not fail for another reason.
fn tried(done: &butternut::Result<()>) {
    if let Err(error) = done {
        assert_eq!(error.errno(), 28, "{error:?}");
    }
}

/// Fills a volume of small nodes, deletes some files and overwrites the others at random, so that
/// each commit frees extents whose items are in many leaves.
fn age(seed: u64) {
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    let volume = TestVolume::of(112 << 20, &options);
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    let mut dice = Dice(seed);
    for round in 0..3 {
        fill(|number| {
            let id = fs.create(dir, format!("{round} {number}").as_bytes(), &new(0o644))?;
            let bytes = usize::try_from(4096 * (1 + dice.below(12))).unwrap();
            fs.open_file(id)?.write_at(0, &vec![7; bytes]).map(drop)
        });
        assert!(fs.write_error().is_none(), "seed {seed}, full in round {round}");
        for name in names(&fs, dir) {
            match dice.below(4) {
                // Files can always be deleted from a full volume.
                0 | 1 => fs.unlink(dir, name.as_bytes()).unwrap(),
                2 => {
                    let file = fs.open_file(fs.lookup(dir, name.as_bytes()).unwrap()).unwrap();
                    let block = dice.below(12) * 4096;
                    tried(&file.write_at(block, &[9; 4096]).map(drop));
                    if dice.below(40) == 0 {
                        tried(&file.sync_all());
                    }
                }
                _ => {}
            }
        }
        fs.sync().unwrap();
        assert!(fs.write_error().is_none(), "seed {seed}, round {round}");
        volume.copy().check();
    }
    empty(&fs, dir);
    fs.sync().unwrap();
    volume.reopen(fs);
}

#[test]
fn a_full_and_fragmented_volume_commits() {
    for seed in 0..u64::from(round_count() / 2) {
        age(seed);
    }
}

/// A change of attributes frees nothing, and copies a leaf that a snapshot keeps: it leaves the
/// space alone that deletions need.
#[test]
fn files_are_deleted_from_a_full_volume_after_modes_were_changed_beside_a_snapshot() {
    let volume = small(false);
    let fs = volume.open();
    let root = fs.root();
    let sub = fs.create_subvolume(root, b"sub", &new(0o755)).unwrap();
    let dir = FileId::root_of(sub);
    // About 400 leaves of inodes; half of the global reserve is about 80 here.
    for number in 0..30_000 {
        fs.create(dir, format!("{number}").as_bytes(), &new(0o644)).unwrap();
    }
    fs.sync().unwrap();
    fs.snapshot(sub, root, b"snap", SnapshotAccess::ReadOnly).unwrap();
    let filler = fs.open_file(fs.create(root, b"filler", &new(0o644)).unwrap()).unwrap();
    fill(|number| {
        filler.write_at(u64::from(number) << 20, &vec![7; 1 << 20]).and_then(|written| {
            if written == 1 << 20 { Ok(()) } else { filler.write_at(1 << 40, &[7; 4096]).map(drop) }
        })
    });
    fill(|number| fs.create(root, format!("{number:0200}").as_bytes(), &new(0o644)).map(drop));
    fs.sync().unwrap();
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    for name in names(&fs, dir) {
        if let Err(error) = fs.set_attributes(fs.lookup(dir, name.as_bytes()).unwrap(), &set) {
            assert_eq!(error.errno(), 28, "{error:?}");
            break;
        }
    }
    fs.unlink(root, format!("{:0200}", 0).as_bytes()).expect("a deletion on a full volume");
    filler.truncate(0).expect("a truncation on a full volume");
    fs.delete_subvolume(root, b"snap").expect("a deletion of a snapshot on a full volume");
}

/// Any user can ask for that.
#[test]
fn a_preallocation_that_cannot_fit_takes_no_space() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = fs.open_file(fs.create(fs.root(), b"file", &new(0o644)).unwrap()).unwrap();
    let groups = || fs.usage().unwrap().groups.iter().map(|group| group.total_bytes).sum::<u64>();
    let before = groups();
    let refused = file.allocate(0..1 << 50, Allocate::KeepSize).unwrap_err();
    assert_eq!(refused.errno(), 28);
    assert_eq!(groups(), before, "chunks were added");
}

/// Neither the chunks that a commit removes nor the reserves that it sets take the space that the
/// trees need for writes which were accepted before.
#[test]
fn what_a_full_volume_has_accepted_can_be_synced() {
    for checksum in [ChecksumKind::Crc32c, ChecksumKind::Sha256] {
        for (mebibytes, file_bytes) in
            [(64, 1 << 20), (128, 60_000), (192, 1 << 18), (256, 1 << 20)]
        {
            let options = MkfsOptions {
                csum: checksum,
                metadata: Some(Profile::Single),
                ..MkfsOptions::default()
            };
            let volume = TestVolume::of(mebibytes << 20, &options);
            let fs = volume.open();
            let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
            let count = fill(|number| {
                let id = fs.create(dir, format!("{number}").as_bytes(), &new(0o644))?;
                fs.open_file(id)?.write_at(0, &vec![7; file_bytes]).map(drop)
            });
            assert!(count > 8, "{count} files");
            fs.sync().unwrap_or_else(|error| panic!("{mebibytes} MiB, {checksum:?}: {error}"));
            volume.reopen(fs);
        }
    }
}
