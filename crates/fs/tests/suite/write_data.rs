//! File data: writes, truncation, preallocation, holes and copies, and the results of `stat`
//! meanwhile.

use crate::volume::{TestVolume, names, new};
use butternut::queue::{IoFlags, QueueOptions};
use butternut::server::FileExt;
use butternut::{
    Allocate, AttributeFlags, Error, File, FileId, Filesystem, MountOptions, Privileges,
    SetAttributes,
};
use butternut_mkfs::MkfsOptions;
use std::time::{Duration, Instant};

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.len()).unwrap()];
    let mut done = 0;
    while done < bytes.len() {
        let read = file.read_at(done as u64, &mut bytes[done..]).unwrap();
        assert!(read > 0, "the file ends at {done}");
        done += read;
    }
    bytes
}

fn made(fs: &Filesystem, name: &str) -> File {
    let id = fs.create(fs.root(), name.as_bytes(), &new(0o644)).unwrap();
    fs.open_file(id).unwrap()
}

fn opened(fs: &Filesystem, name: &str) -> File {
    fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap()
}

#[test]
fn written_bytes_are_read_back_before_and_after_a_reopen() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let small = made(&fs, "small");
    small.write_at(0, b"hello").unwrap();
    let large = made(&fs, "large");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    assert_eq!(large.write_at(0, &bytes).unwrap(), bytes.len());
    let sparse = made(&fs, "sparse");
    sparse.write_at(1 << 20, b"end").unwrap();
    for fs in [fs.clone(), {
        drop((small, large, sparse));
        volume.reopen(fs)
    }] {
        assert_eq!(contents(&opened(&fs, "small")), b"hello");
        assert!(contents(&opened(&fs, "large")) == bytes);
        let sparse = contents(&opened(&fs, "sparse"));
        assert_eq!((sparse.len(), &sparse[1 << 20..]), ((1 << 20) + 3, &b"end"[..]));
        assert!(sparse[..1 << 20].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn stat_includes_dirty_data() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    let before = file.metadata().unwrap();
    file.write_at(0, &[1; 5000]).unwrap();
    let after = file.metadata().unwrap();
    assert_eq!((after.size, after.blocks), (5000, 16));
    assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    fs.sync().unwrap();
    assert_eq!(file.metadata().unwrap(), after);
    drop(file);
    let fs = volume.reopen(fs);
    assert_eq!(opened(&fs, "file").metadata().unwrap(), after);
}

#[test]
fn an_older_handle_reads_new_bytes() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let (reader, writer) = (made(&fs, "file"), opened(&fs, "file"));
    let mut buf = [0; 8];
    assert_eq!(reader.read_at(0, &mut buf).unwrap(), 0);
    writer.write_at(0, b"one").unwrap();
    assert_eq!(reader.read_at(0, &mut buf).unwrap(), 3);
    fs.sync().unwrap();
    writer.write_at(0, b"two").unwrap();
    assert_eq!((reader.read_at(0, &mut buf).unwrap(), &buf[..3]), (3, &b"two"[..]));
    assert_eq!(reader.len(), 3);
}

#[test]
fn a_file_is_truncated_and_extended() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    file.write_at(0, &vec![7; 20_000]).unwrap();
    file.truncate(5001).unwrap();
    fs.sync().unwrap();
    file.truncate(12_000).unwrap();
    let stat = file.metadata().unwrap();
    assert_eq!((stat.size, stat.mtime), (12_000, stat.ctime));
    drop(file);
    let fs = volume.reopen(fs);
    let bytes = contents(&opened(&fs, "file"));
    assert!(bytes[..5001].iter().all(|byte| *byte == 7));
    assert!(bytes[5001..].iter().all(|byte| *byte == 0));
}

#[test]
fn concurrent_appends_are_all_kept() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "log");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..200 {
                    file.append(&[b'a' + thread; 100], Privileges::Keep).unwrap();
                }
            });
        }
    });
    drop(file);
    let fs = volume.reopen(fs);
    let bytes = contents(&opened(&fs, "log"));
    assert_eq!(bytes.len(), 4 * 200 * 100);
    assert!(bytes.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
}

#[test]
fn ranges_are_preallocated_and_punched() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    file.allocate(0..1 << 20, Allocate::KeepSize).unwrap();
    assert_eq!((file.len(), file.metadata().unwrap().blocks), (0, 2048));
    file.allocate(0..100_000, Allocate::Extend).unwrap();
    file.write_at(0, &vec![1; 50_000]).unwrap();
    file.allocate(4096..8192, Allocate::PunchHole).unwrap();
    file.allocate(10_000..20_000, Allocate::Zero).unwrap();
    assert_eq!(file.allocate(5..5, Allocate::Extend).unwrap_err().errno(), 22);
    drop(file);
    let fs = volume.reopen(fs);
    let bytes = contents(&opened(&fs, "file"));
    assert_eq!(bytes.len(), 100_000);
    let is_one =
        |at: usize| at < 50_000 && !(4096..8192).contains(&at) && !(10_000..20_000).contains(&at);
    let wrong = (0..bytes.len()).find(|at| bytes[*at] != u8::from(is_one(*at)));
    assert_eq!(wrong, None);
}

#[test]
fn a_range_is_copied_within_a_file_and_between_files() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let (one, other) = (made(&fs, "one"), made(&fs, "other"));
    one.write_at(0, &[3; 9000]).unwrap();
    assert_eq!(other.copy_range(100, &one, 1000, 1 << 20).unwrap(), 8000);
    assert_eq!(one.copy_range(9000, &one, 0, 9000).unwrap(), 9000);
    assert_eq!(one.copy_range(10, &one, 0, 100).unwrap_err().errno(), 22);
    drop((one, other));
    let fs = volume.reopen(fs);
    assert_eq!(contents(&opened(&fs, "one")), vec![3; 18_000]);
    let other = contents(&opened(&fs, "other"));
    assert_eq!((other.len(), &other[..100]), (8100, &[0; 100][..]));
    assert!(other[100..].iter().all(|byte| *byte == 3));
}

#[test]
fn an_open_file_is_usable_after_its_last_name_is_removed() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    let id = file.id();
    file.write_at(0, &vec![9; 300_000]).unwrap();
    fs.unlink(fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    file.write_at(300_000, &[9; 5000]).unwrap();
    fs.sync().unwrap();
    assert!(contents(&file) == vec![9; 305_000]);
    let clone = file.clone();
    drop(file);
    assert_eq!(clone.len(), 305_000);
    drop(clone);
    let fs = volume.reopen(fs);
    assert!(matches!(fs.stat(id), Err(Error::Stale { .. })));
    let used: u64 =
        fs.usage().unwrap().groups.iter().filter(|g| g.flags & 1 != 0).map(|g| g.used_bytes).sum();
    assert_eq!(used, 0, "data of a deleted file");
}

#[test]
fn a_file_renamed_over_another_replaces_it_after_a_sync() {
    let volume = TestVolume::new();
    let fs = volume.open();
    made(&fs, "config").write_at(0, b"old").unwrap();
    made(&fs, "config.new").write_at(0, b"new contents").unwrap();
    let root = fs.root();
    fs.rename((root, b"config.new"), (root, b"config"), butternut::RenameFlags::default()).unwrap();
    fs.sync().unwrap();
    let cut = volume.copy();
    drop(fs);
    cut.check();
    let fs = cut.open();
    assert_eq!(contents(&opened(&fs, "config")), b"new contents");
    assert_eq!(names(&fs, fs.root()), ["config"]);
}

#[test]
fn a_write_without_the_right_to_keep_privileges_strips_them() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"tool", &new(0o6755)).unwrap();
    let capability = b"security.capability";
    fs.set_xattr(id, capability, &[1; 20], butternut::SetXattr::Either).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, b"#!").unwrap();
    assert_eq!(file.metadata().unwrap().mode, 0o106_755);
    file.write_as(2, b"/bin/sh", Privileges::Strip).unwrap();
    assert_eq!(file.metadata().unwrap().mode, 0o100_755);
    assert_eq!(fs.xattr(id, capability).unwrap_err().errno(), 61);
    drop(file);
    volume.reopen(fs);
}

#[test]
fn each_kind_of_write_strips_the_right_privileges() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let capability = b"security.capability";
    let writes: [fn(&File, Privileges); 4] = [
        |file, privileges| assert_eq!(file.write_as(0, b"x", privileges).unwrap(), 1),
        |file, privileges| assert_eq!(file.write_direct(0, &[1; 4096], privileges).unwrap(), 4096),
        |file, privileges| assert_eq!(file.write_uncached(0, b"x", privileges).unwrap(), 1),
        |file, privileges| file.allocate_as(0..4096, Allocate::Extend, privileges).unwrap(),
    ];
    let file = made(&fs, "tool");
    let id = file.id();
    for write in writes {
        // The first write finds no privileges, and that result is cached.
        write(&file, Privileges::StripForeign);
        for (mode, privileges, want) in [
            (0o6767, Privileges::Keep, 0o6767),
            (0o6767, Privileges::StripCapabilities, 0o6767),
            (0o6767, Privileges::Strip, 0o2767),
            (0o6777, Privileges::Strip, 0o777),
            (0o6767, Privileges::StripForeign, 0o767),
        ] {
            let mode = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            fs.set_attributes(id, &mode).unwrap();
            fs.set_xattr(id, capability, &[1; 20], butternut::SetXattr::Either).unwrap();
            write(&file, privileges);
            assert_eq!(file.metadata().unwrap().mode & 0o7777, want, "{mode:?} {privileges:?}");
            let is_kept = fs.xattr(id, capability).is_ok();
            assert_eq!(is_kept, privileges == Privileges::Keep, "{mode:?} {privileges:?}");
        }
    }
    drop(file);
    volume.reopen(fs);
}

#[test]
fn a_handle_checked_at_open_ignores_later_flags() {
    let volume = TestVolume::new();
    let fs = volume.open();
    for flags in [AttributeFlags::IMMUTABLE, AttributeFlags::APPEND] {
        let file = made(&fs, &format!("file-{}", flags.0)).checked_at_open();
        file.write_at(0, &[1; 8192]).unwrap();
        fs.set_attribute_flags(file.id(), flags).unwrap();
        file.write_at(0, &[2; 10]).unwrap();
        file.write_direct(4096, &[3; 4096], Privileges::Keep).unwrap();
        let again = fs.open_file(file.id()).unwrap();
        assert_eq!(again.write_at(0, b"x").unwrap_err().errno(), 1);
        let direct = again.write_direct(0, &[4; 4096], Privileges::Keep);
        assert_eq!(direct.unwrap_err().errno(), 1);
        fs.set_attribute_flags(file.id(), AttributeFlags::default()).unwrap();
    }
    volume.reopen(fs);
}

#[test]
fn an_append_only_handle_changes_nothing_below_the_end_on_any_lane() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "log").only_appending();
    file.append(&[1; 8192], Privileges::Keep).unwrap();
    fs.set_attribute_flags(file.id(), AttributeFlags::APPEND).unwrap();
    let source = made(&fs, "source");
    source.write_at(0, &[2; 8192]).unwrap();
    let keep = Privileges::Keep;
    let refused = [
        ("cached", file.write_at(0, &[3; 10]).map(drop)),
        ("over the end", file.write_at(8191, &[3; 10]).map(drop)),
        ("direct", file.write_direct(0, &[3; 4096], keep).map(drop)),
        ("direct, of no whole block", file.write_direct(100, &[3; 10], keep).map(drop)),
        ("uncached", file.write_uncached(4096, &[3; 4096], keep).map(drop)),
        ("copied", file.copy_range(0, &source, 0, 4096).map(drop)),
        ("punched", file.allocate(0..4096, Allocate::PunchHole)),
        ("cut", file.truncate(0)),
        ("changed in a cache", file.unchanged_below_end(0, &[3; 100]).map(drop)),
    ];
    for (what, result) in refused {
        assert_eq!(result.unwrap_err().errno(), 1, "{what}");
    }
    assert_eq!(file.unchanged_below_end(8190, &[1; 2]).unwrap(), 2);
    assert_eq!(file.unchanged_below_end(8190, &[1, 1, 9, 9]).unwrap(), 2);
    assert_eq!(file.unchanged_below_end(8192, &[9; 4]).unwrap(), 0);
    file.write_at(8192, &[4; 10]).unwrap();
    file.append(&[4; 10], keep).unwrap();
    file.allocate(0..16384, Allocate::KeepSize).unwrap();
    // The flag may be cleared: the handle was opened for appending.
    fs.set_attribute_flags(file.id(), AttributeFlags::default()).unwrap();
    assert_eq!(file.write_at(0, &[3; 10]).unwrap_err().errno(), 1);
    drop(file);
    let fs = volume.reopen(fs);
    assert_eq!(contents(&opened(&fs, "log")), [vec![1; 8192], vec![4; 20]].concat());
}

#[test]
fn an_immutable_file_refuses_fallocate_and_copies_through_any_handle() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file").checked_at_open();
    file.write_at(0, &[1; 8192]).unwrap();
    let source = made(&fs, "source");
    source.write_at(0, &[2; 8192]).unwrap();
    fs.set_attribute_flags(file.id(), AttributeFlags::IMMUTABLE).unwrap();
    assert_eq!(file.copy_range(0, &source, 0, 4096).unwrap_err().errno(), 1);
    for how in [Allocate::Extend, Allocate::KeepSize, Allocate::PunchHole, Allocate::Zero] {
        assert_eq!(file.allocate(0..16384, how).unwrap_err().errno(), 1, "{how:?}");
    }
    fs.set_attribute_flags(file.id(), AttributeFlags::default()).unwrap();
    assert_eq!(contents(&file), [1; 8192]);
    volume.reopen(fs);
}

#[test]
fn a_nodatacow_file_is_written_in_place() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    fs.set_attribute_flags(file.id(), AttributeFlags::NOCOW).unwrap();
    file.write_at(0, &vec![1; 1 << 20]).unwrap();
    fs.sync().unwrap();
    let place = |file: &File| file.extents(0..1 << 20).map(|e| e.unwrap()).collect::<Vec<_>>();
    let before = place(&file);
    file.write_at(4096, &[2; 8192]).unwrap();
    fs.sync().unwrap();
    assert_eq!(place(&file), before);
    drop(file);
    let fs = volume.reopen(fs);
    let bytes = contents(&opened(&fs, "file"));
    assert!(bytes[4096..4096 + 8192].iter().all(|byte| *byte == 2));
}

#[test]
fn a_full_volume_returns_enospc_and_permits_deletions() {
    let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
    let fs = volume.open();
    for round in 0..3 {
        let mut count = 0;
        let error = 'full: loop {
            let file = made(&fs, &format!("file {count}"));
            count += 1;
            for at in 0..64 {
                let written = file.write_at(at << 16, &vec![5; 1 << 16]);
                match written {
                    Ok(bytes) if bytes == 1 << 16 => {}
                    Ok(_) => {}
                    Err(error) => break 'full error,
                }
            }
        };
        assert_eq!(error.errno(), 28, "round {round}: {error:?}");
        assert!(count > 10, "round {round}: {count} files");
        fs.sync().unwrap();
        for number in 0..count {
            fs.unlink(fs.root(), format!("file {number}").as_bytes()).unwrap();
        }
        fs.sync().unwrap();
    }
    let fs = volume.reopen(fs);
    assert_eq!(names(&fs, fs.root()), Vec::<String>::new());
}

#[test]
fn unsynced_changes_are_committed_in_the_background() {
    let volume = TestVolume::new();
    let options = MountOptions::default().read_only(false).commit_seconds(1);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    made(&fs, "file").write_at(0, b"unasked").unwrap();
    let limit = Instant::now() + Duration::from_mins(5);
    while fs.stats().commits == 0 {
        assert!(Instant::now() < limit, "nothing was committed");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A copy that is read while a commit writes has parts of before and of after.
    let cut = volume.copy();
    cut.check();
    let seen = Filesystem::open_devices(cut.devices(), &MountOptions::default()).unwrap();
    assert_eq!(names(&seen, seen.root()), ["file"]);
    assert_eq!(contents(&opened(&seen, "file")), b"unasked");
    volume.reopen(fs);
}

#[test]
fn each_write_to_a_sync_file_is_durable() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    fs.set_attribute_flags(file.id(), AttributeFlags::SYNC).unwrap();
    file.write_at(0, b"down").unwrap();
    let cut = volume.copy();
    cut.check();
    let seen = cut.open();
    assert_eq!(contents(&opened(&seen, "file")), b"down");

    file.write_at(0, &[1; 8192]).unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    file.write_direct(0, &[2; 4096], Privileges::Keep).unwrap();
    let mut block = queue.buffer(4096).unwrap();
    block.fill(3);
    queue.write(&file, 4096, block, IoFlags::DIRECT, 0).unwrap();
    queue.reap(1, None, &mut Vec::new());
    let cut = volume.copy();
    cut.check();
    let seen = contents(&opened(&cut.open(), "file"));
    assert_eq!(seen, [[2; 4096], [3; 4096]].concat());
}

#[test]
fn direct_writes_inside_a_file_share_its_lock() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let file = made(&fs, "file");
    let bytes = 64 * 4096;
    assert_eq!(file.write_direct(0, &vec![9; bytes], Privileges::Keep).unwrap(), bytes);
    let counts = |fs: &Filesystem| {
        let counts = fs.lane_counts();
        (counts.dio_write_shared, counts.dio_write_exclusive, counts.dio_write_zero_copy)
    };
    assert_eq!(counts(&fs), (0, 1, 0), "the file grew");
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..50_u64 {
                    let block = u64::from(writer) + round % 16 * 4;
                    let bytes = [writer + 1; 4096];
                    let written = file.write_direct(block * 4096, &bytes, Privileges::Keep);
                    assert_eq!(written.unwrap(), 4096);
                    let mut back = [0; 4096];
                    assert_eq!(file.read_at(block * 4096, &mut back).unwrap(), 4096);
                    assert_eq!(back, bytes);
                }
            });
        }
        for _ in 0..20 {
            file.allocate(0..4096, Allocate::KeepSize).unwrap();
            fs.sync().unwrap();
        }
    });
    assert_eq!(counts(&fs), (200, 1, 200));
    assert_eq!(file.write_direct(10, &[8; 4096], Privileges::Keep).unwrap(), 4096);
    assert_eq!(counts(&fs), (200, 2, 200), "no whole blocks");
    drop(file);
    let fs = volume.reopen(fs);
    let found = contents(&opened(&fs, "file"));
    let mut want: Vec<u8> = (0..bytes).map(|at| u8::try_from(at / 4096 % 4 + 1).unwrap()).collect();
    want[10..4106].fill(8);
    assert!(found == want);
}

/// Pseudorandom numbers with a seed.
struct Dice(u64);

impl Dice {
    fn pick(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % count
    }

    fn range(&mut self, most: u64) -> (u64, u64) {
        let at = self.pick(most);
        let at = if self.pick(3) == 0 { at / 4096 * 4096 } else { at };
        let bytes_max = if self.pick(4) == 0 { most / 4 } else { 9000 };
        let bytes = 1 + self.pick(bytes_max);
        (at, if self.pick(3) == 0 { bytes.div_ceil(4096) * 4096 } else { bytes })
    }
}

/// Makes one random change to the file and to a copy of its bytes in memory.
fn change(dice: &mut Dice, fs: &Filesystem, file: &File, plain: &mut Vec<u8>) {
    let (at, bytes) = dice.range(400_000);
    let (from, to) = (usize::try_from(at).unwrap(), usize::try_from(at + bytes).unwrap());
    match dice.pick(12) {
        0..5 => {
            let byte = u8::try_from(1 + dice.pick(250)).unwrap();
            plain.resize(plain.len().max(to), 0);
            plain[from..to].fill(byte);
            file.write_at(at, &vec![byte; to - from]).unwrap();
        }
        5 => {
            plain.resize(from, 0);
            file.truncate(at).unwrap();
        }
        6 => {
            let end = to.min(plain.len());
            plain[from.min(end)..end].fill(0);
            file.allocate(at..at + bytes, Allocate::PunchHole).unwrap();
        }
        7 => {
            plain.resize(plain.len().max(to), 0);
            file.allocate(at..at + bytes, Allocate::Extend).unwrap();
        }
        8 => {
            plain.resize(plain.len().max(to), 0);
            plain[from..to].fill(0);
            file.allocate(at..at + bytes, Allocate::Zero).unwrap();
        }
        9 => file.allocate(at..at + bytes, Allocate::KeepSize).unwrap(),
        10 => fs.sync().unwrap(),
        _ => {
            let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            fs.set_attributes(file.id(), &set).unwrap();
        }
    }
}

#[test]
fn random_changes_match_a_copy_in_memory() {
    for seed in 0..8 {
        let volume = TestVolume::new();
        let mut dice = Dice(seed);
        let fs = volume.open();
        let mut plains = vec![Vec::new(); 3];
        for number in 0..3 {
            made(&fs, &number.to_string());
        }
        drop(fs);
        for _ in 0..4 {
            let fs = volume.open();
            let files: Vec<File> = (0..3).map(|n| opened(&fs, &n.to_string())).collect();
            for _ in 0..60 {
                let number = usize::try_from(dice.pick(3)).unwrap();
                change(&mut dice, &fs, &files[number], &mut plains[number]);
                assert!(contents(&files[number]) == plains[number], "seed {seed}");
            }
            drop(files);
            let fs = volume.reopen(fs);
            for (number, plain) in plains.iter().enumerate() {
                assert!(contents(&opened(&fs, &number.to_string())) == *plain, "seed {seed}");
            }
        }
    }
}

#[test]
fn threads_write_delete_and_commit_concurrently() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dirs: Vec<FileId> = (0..3)
        .map(|n| fs.mkdir(fs.root(), format!("dir {n}").as_bytes(), &new(0o755)).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, dirs) = (&fs, &dirs);
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for round in 0..300 {
                    let dir = dirs[usize::try_from(dice.pick(3)).unwrap()];
                    let other = dirs[usize::try_from(dice.pick(3)).unwrap()];
                    let name = format!("{thread} {round}");
                    let id = fs.create(dir, name.as_bytes(), &new(0o644)).unwrap();
                    let bytes = usize::try_from(dice.pick(20_000)).unwrap();
                    fs.open_file(id).unwrap().write_at(0, &vec![1; bytes]).unwrap();
                    let (from, to) = ((dir, name.as_bytes()), (other, &b"shared"[..]));
                    match dice.pick(4) {
                        0 => fs.unlink(dir, name.as_bytes()).unwrap(),
                        1 => fs.rename(from, to, butternut::RenameFlags::default()).unwrap(),
                        2 if dice.pick(10) == 0 => fs.sync().unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    volume.reopen(fs);
}
