//! Files sealed by fs-verity: they can be read, renamed and deleted, and never changed.

use crate::verity::{has_items, pattern, whole};
use crate::volume::{TestVolume, names, new, place};
use butternut::format::orphan::orphan_key;
use butternut::format::stream::{Command, StreamVersion};
use butternut::format::units::TreeId;
use butternut::format::uuid::Uuid;
use butternut::inspect::TreeSearch;
use butternut::queue::{IoFlags, QueueOptions};
use butternut::receive::{ReceiveReport, ReceiveServing, StreamEnd, StreamReader};
use butternut::server::{FileExt, FilesystemExt};
use butternut::stats::CommitReason;
use butternut::{
    Allocate, AttributeFlags, Buffer, Error, Filesystem, Follow, Privileges, RenameFlags,
    SetAttributes, VerityOptions,
};
use butternut_mkfs::MkfsOptions;
use std::ops::ControlFlow;

#[test]
fn a_sealed_file_refuses_every_change_of_its_bytes() {
    let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
    let fs = volume.open();
    let content = vec![5; 50_000];
    for name in [&b"sealed"[..], b"copy"] {
        let id = fs.create(fs.root(), name, &new(0o644)).unwrap();
        fs.open_file(id).unwrap().write_at(0, &content).unwrap();
    }
    let id = fs.resolve(b"sealed", Follow::Last).unwrap();
    fs.open_file(id).unwrap().enable_verity(&VerityOptions::default()).unwrap();
    fs.close().unwrap();
    let fs = volume.open();
    assert!(fs.attribute_flags(id).unwrap().contains(AttributeFlags::VERITY));
    let file = fs.open_file(id).unwrap();
    let copy = fs.open_file(fs.resolve(b"copy", Follow::Last).unwrap()).unwrap();
    let page = vec![7; 4096];
    let keep = Privileges::Keep;
    let late = SetAttributes { is_late: true, ..SetAttributes::size(1) };
    let checked = fs.open_file(id).unwrap().checked_at_open();
    let mut attempts = vec![
        file.write_at(0, b"x").map(drop),
        file.write_at(0, b"").map(drop),
        file.append(b"x", keep).map(drop),
        file.write_direct(0, &page, keep).map(drop),
        file.write_uncached(0, &page, keep).map(drop),
        file.write_from_cache(0, &page).map(drop),
        file.write_from_cache(0, &vec![7; 1 << 20]).map(drop),
        file.truncate(0),
        file.truncate(60_000),
        file.copy_range(0, &copy, 0, 4096).map(drop),
        fs.set_attributes(id, &SetAttributes::size(1)).map(drop),
        fs.set_attributes(id, &late).map(drop),
        checked.write_at(0, b"x").map(drop),
        checked.write_direct(0, &page, keep).map(drop),
        checked.truncate(7),
    ];
    for how in [
        Allocate::Extend,
        Allocate::KeepSize,
        Allocate::PunchHole,
        Allocate::Zero,
        Allocate::ZeroKeepSize,
    ] {
        attempts.push(file.allocate(0..4096, how));
        attempts.push(checked.allocate(0..4096, how));
    }
    for (nth, refused) in attempts.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().errno(), 1, "number {nth}");
    }
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    for flags in [IoFlags::default(), IoFlags::DIRECT, IoFlags::UNCACHED] {
        queue.write(&file, 0, Buffer::copy_of(&page), flags, 1).unwrap();
        let mut done = Vec::new();
        queue.reap(1, None, &mut done);
        assert_eq!(done.remove(0).result.unwrap_err().errno(), 1, "{flags:?}");
    }
    drop(queue);
    let new_mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    fs.set_attributes(id, &new_mode).unwrap();
    fs.rename((fs.root(), b"sealed"), (fs.root(), b"renamed"), RenameFlags::default()).unwrap();
    let mut found = vec![0; 60_000];
    assert_eq!(file.read_at(0, &mut found).unwrap(), 50_000);
    assert!(found[..50_000] == content[..]);
    drop((file, checked, copy));
    fs.sync().unwrap();
    fs.unlink(fs.root(), b"renamed").unwrap();
    assert_eq!(names(&fs, fs.root()), ["copy"]);
    volume.reopen(fs);
}

#[test]
fn a_stream_of_version_3_seals_a_file() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let path = b"file".as_slice();
    let enable = Command::EnableVerity {
        path,
        algorithm: 2,
        block_bytes: 1024,
        salt: b"salt",
        signature: b"signed",
    };
    let commands = [
        Command::Subvol { path: b"sub", uuid: Uuid([1; 16]), ctransid: 7 },
        Command::Mkfile { path, ino: 257 },
        Command::Write { path, offset: 0, data: &[9; 5000] },
        Command::Chmod { path, mode: 0o640 },
        enable,
        Command::End,
    ];
    let mut bytes = StreamVersion::Three.encode().to_vec();
    for command in commands {
        command.encode(StreamVersion::Three, &mut bytes).unwrap();
    }
    fs.receive(fs.root(), &mut StreamReader::new(&bytes[..]), StreamEnd::Input).unwrap();
    let fs = volume.reopen(fs);
    let file = fs.open_file(fs.resolve(b"sub/file", Follow::Last).unwrap()).unwrap();
    assert_eq!(file.measure_verity().unwrap().digest.len(), 64);
    let mut found = vec![0; 5000];
    file.read_exact_at(0, &mut found).unwrap();
    assert_eq!(found, [9; 5000]);
}

/// The log has no items of fs-verity: a sync of a file that was sealed commits.
#[test]
fn a_synced_seal_survives_a_crash() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &pattern(70_000)).unwrap();
    file.sync_all().unwrap();
    file.enable_verity(&VerityOptions::default()).unwrap();
    let before = volume.copy();
    file.sync_all().unwrap();
    let after = volume.copy();
    let mode = SetAttributes { mode: Some(0o400), ..SetAttributes::default() };
    fs.set_attributes(id, &mode).unwrap();
    file.sync_all().unwrap();
    let changed = volume.copy();
    for (crashed, is_sealed) in [(before, false), (after, true), (changed, true)] {
        let fs = crashed.open();
        let file = fs.open_file(id).unwrap();
        assert_eq!(file.measure_verity().is_ok(), is_sealed);
        assert!(whole(&file) == pattern(70_000));
        drop(file);
        crashed.reopen(fs);
    }
    drop(file);
    volume.reopen(fs);
}

/// The log of a directory has the inodes of its new files, and no items of fs-verity.
#[test]
fn a_new_sealed_file_survives_a_crash_after_a_sync_of_its_directory() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    fs.sync().unwrap();
    let id = fs.create(dir, b"file", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let content = pattern(9000);
    file.write_at(0, &content).unwrap();
    file.enable_verity(&VerityOptions::default()).unwrap();
    let measured = file.measure_verity().unwrap();
    fs.sync_directory(dir).unwrap();
    let crashed = volume.copy();
    drop(file);
    volume.reopen(fs);
    let fs = crashed.open();
    let file = fs.open_file(id).unwrap();
    assert_eq!(file.measure_verity().unwrap(), measured);
    assert!(whole(&file) == content);
    drop(file);
    crashed.reopen(fs);
}

/// Pages that were read before the seal have the bytes that were sealed, and the medium may have
/// others since. The first read of each block behind the seal verifies what the device has.
#[test]
fn pages_from_before_the_seal_are_not_served() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let id = fs.create(fs.root(), b"file", &new(0o644)).unwrap();
    // Without checksums, the hashes alone find what is changed below.
    fs.set_attribute_flags(id, AttributeFlags::NOCOW).unwrap();
    let file = fs.open_file(id).unwrap();
    let content = pattern(40 * 4096);
    file.write_at(0, &content).unwrap();
    fs.sync().unwrap();
    // From the cache, and by a reader that was open before.
    assert!(whole(&file) == content && whole(&fs.open_file(id).unwrap()) == content);
    let damaged = place(&file, 5 * 4096);
    file.enable_verity(&VerityOptions::default()).unwrap();
    let device = volume.devices().remove(0);
    let mut block = content[5 * 4096..6 * 4096].to_vec();
    block[9] ^= 1;
    device.write_at(damaged, &block).unwrap();
    let mut found = vec![0; content.len()];
    for reader in [&file, &fs.open_file(id).unwrap()] {
        assert_eq!(reader.read_at(5 * 4096, &mut found[..100]).unwrap_err().errno(), 5);
        assert_eq!(reader.read_at(0, &mut found).unwrap(), 5 * 4096);
        assert!(found[..5 * 4096] == content[..5 * 4096]);
        assert_eq!(reader.read_at(6 * 4096, &mut found).unwrap(), 34 * 4096);
        assert!(found[..34 * 4096] == content[6 * 4096..]);
    }
    assert!(fs.stats().verity_errors > 0);
    drop(file);
    fs.close().unwrap();
}

/// The commit of a sealed file without a name has its orphan item. With a name that the log adds,
/// a replay would take it for a seal that was not completed, and remove its items.
#[test]
fn the_first_name_of_a_sealed_file_is_committed() {
    let content = pattern((2 << 20) + 9);
    for syncs_directory in [true, false] {
        let volume = TestVolume::new();
        let fs = volume.open();
        let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
        let file = fs.open_unnamed(dir, &new(0o600)).unwrap();
        file.write_at(0, &content).unwrap();
        file.enable_verity(&VerityOptions::default()).unwrap();
        fs.sync().unwrap();
        let has_orphan = |fs: &Filesystem| {
            let ino = file.id().ino;
            let keys = orphan_key(ino)..=orphan_key(ino);
            let search = TreeSearch { tree: TreeId(5), keys, generations: 0..=u64::MAX };
            let mut found = false;
            fs.inspect()
                .search(&search, &mut |_| {
                    found = true;
                    ControlFlow::Break(())
                })
                .unwrap();
            found
        };
        assert!(has_orphan(&fs));
        fs.link(file.id(), dir, b"named").unwrap();
        let of_seals = || fs.stats().syncs.commits_for(CommitReason::Sealed);
        let before = of_seals();
        if syncs_directory {
            fs.sync_directory(dir).unwrap();
        } else {
            file.sync_all().unwrap();
        }
        assert_eq!(of_seals() - before, 1);
        let crashed = volume.copy();
        crashed.check();
        let fs = crashed.open();
        assert!(!has_orphan(&fs) && has_items(&fs, file.id()));
        let named = fs.open_file(fs.resolve(b"dir/named", Follow::Last).unwrap()).unwrap();
        named.measure_verity().unwrap();
        assert!(whole(&named) == content);
        drop(named);
        crashed.reopen(fs);
    }
}

/// Of a sparse file, whose seal may take any time.
#[test]
fn a_receive_ends_while_it_seals_a_file() {
    let commands = [
        Command::Subvol { path: b"sub", uuid: Uuid([1; 16]), ctransid: 7 },
        Command::Mkfile { path: b"file", ino: 257 },
        Command::Truncate { path: b"file", size: 64 << 20 },
        Command::EnableVerity {
            path: b"file",
            algorithm: 1,
            block_bytes: 4096,
            salt: b"",
            signature: b"",
        },
        Command::End,
    ];
    let mut bytes = StreamVersion::Three.encode().to_vec();
    for command in commands {
        command.encode(StreamVersion::Three, &mut bytes).unwrap();
    }
    let volume = TestVolume::new();
    let fs = volume.open();
    let hide = |_: &[u8]| -> Box<dyn std::any::Any> { Box::new(()) };
    let calls = std::cell::Cell::new(0);
    let goes_on = || {
        calls.set(calls.get() + 1);
        calls.get() < 3
    };
    let serving = ReceiveServing { hide: &hide, goes_on: &goes_on };
    let (root, end, mut report) = (fs.root(), StreamEnd::Input, ReceiveReport::default());
    let mut reader = StreamReader::new(&bytes[..]);
    let served = fs.receive_serving(root, &mut reader, end, None, &mut report, serving);
    let Error::Receive { source, .. } = served.unwrap_err() else { panic!() };
    let Error::StreamInput(error) = &*source else { panic!("{source:?}") };
    assert_eq!(error.raw_os_error(), Some(125), "ECANCELED");
    assert!(report.unfinished.is_none() && names(&fs, root).is_empty());
    volume.reopen(fs);
}
