//! The script that errors are injected into: each lane, and each kind of file.

use butternut_sim::acl::Acl;
use butternut_sim::bytes::Bytes;
use butternut_sim::operation::{
    Allocating, File, Lane, Moment, Operation, Renaming, Request, RequestKind, Setting, Special,
    flags,
};

/// The number of files that fill the trees, so that a small node cache cannot hold them.
pub(crate) const FILLERS: u64 = 150;

fn at(name: &str) -> File {
    File::At(name.into())
}

pub(crate) fn fillers(numbers: &[u64]) -> Vec<Operation> {
    let mut all = vec![Operation::Mkdir { at: "fill".into(), mode: 0o755 }];
    for number in numbers {
        let path = Bytes::from(format!("fill/{number:03}").as_str());
        all.push(Operation::Create { at: path.clone(), mode: 0o644 });
        all.push(Operation::SetXattr {
            at: path,
            name: "user.filler".into(),
            bytes: 3000,
            seed: 1 + 2 * number,
            how: Setting::Any,
        });
    }
    all.push(Operation::Sync);
    all
}

fn create(name: &str) -> Operation {
    Operation::Create { at: name.into(), mode: 0o644 }
}

fn write(name: &str, offset: u64, bytes: u64, lane: Lane) -> Operation {
    // An odd seed, so that no block is like another.
    let seed = 1 + 2 * (offset * 31 + bytes);
    Operation::Write { file: at(name), offset, bytes, seed, lane }
}

fn fallocate(name: &str, how: Allocating, offset: u64, bytes: u64) -> Operation {
    Operation::Fallocate { file: at(name), how, offset, bytes }
}

fn truncate(name: &str, size: u64) -> Operation {
    Operation::Truncate { file: at(name), size }
}

fn fsync(name: &str) -> Operation {
    Operation::Fsync { file: at(name) }
}

fn read(name: &str, lane: Lane) -> Operation {
    Operation::Read { file: at(name), offset: 1000, bytes: 50_000, lane }
}

fn set_flags(name: &str, flags: u32) -> Operation {
    Operation::SetFlags { at: name.into(), flags }
}

fn queued(name: &str, offset: u64, bytes: u64, lane: Lane) -> Request {
    let what = RequestKind::Write { offset, bytes, seed: 7 + 2 * offset, is_durable: false };
    Request { file: at(name), what, lane, is_lent: offset.is_multiple_of(3) }
}

/// Returns each step with its name in the report.
pub(crate) fn script() -> Vec<(&'static str, Operation)> {
    let mut all = Vec::new();
    all.extend(files());
    all.extend(changes());
    all.extend(names());
    all.extend(attributes());
    all
}

fn files() -> Vec<(&'static str, Operation)> {
    vec![
        ("create", create("plain")),
        ("write cached", write("plain", 0, 70_000, Lane::Cached)),
        ("create", create("place")),
        ("set flags", set_flags("place", flags::NO_COW)),
        ("write cached", write("place", 0, 70_000, Lane::Cached)),
        ("create", create("packed")),
        ("set flags", set_flags("packed", flags::COMPRESS)),
        ("write compressed", write("packed", 0, 70_000, Lane::Cached)),
        ("create", create("small")),
        ("write inline", write("small", 0, 100, Lane::Cached)),
        ("create", create("prealloc")),
        ("preallocate", fallocate("prealloc", Allocating::Allocate, 0, 60_000)),
        ("sync", Operation::Sync),
        ("write cached part", write("plain", 5000, 9000, Lane::Cached)),
        ("write uncached part", write("plain", 30_001, 9000, Lane::Uncached)),
        ("write direct", write("plain", 40_960, 8192, Lane::Direct)),
        ("write direct part", write("plain", 50_001, 9000, Lane::Direct)),
        ("write direct past the end", write("plain", 69_632, 8192, Lane::Direct)),
        ("write in place", write("place", 5000, 9000, Lane::Cached)),
        ("write direct in place", write("place", 16_384, 8192, Lane::Direct)),
        ("write compressed", write("packed", 20_001, 40_000, Lane::Cached)),
        ("write direct over compressed", write("packed", 8192, 8192, Lane::Direct)),
        ("write preallocated", write("prealloc", 5000, 9000, Lane::Cached)),
        ("write direct preallocated", write("prealloc", 20_480, 8192, Lane::Direct)),
        ("fsync", fsync("plain")),
        ("fsync", fsync("prealloc")),
    ]
}

fn changes() -> Vec<(&'static str, Operation)> {
    let batch = vec![
        queued("plain", 0, 4096, Lane::Direct),
        queued("plain", 8192, 8192, Lane::Direct),
        queued("place", 4096, 4096, Lane::Direct),
        queued("packed", 4096, 4096, Lane::Direct),
        queued("prealloc", 8192, 4096, Lane::Direct),
        queued("plain", 30_000, 500, Lane::Cached),
        queued("plain", 40_000, 500, Lane::Uncached),
    ];
    vec![
        ("write inline", write("small", 20, 50, Lane::Cached)),
        ("append", Operation::Append { at: "small".into(), bytes: 30, seed: 9 }),
        ("truncate inline", truncate("small", 60)),
        ("outgrow inline", truncate("small", 9000)),
        ("punch", fallocate("plain", Allocating::PunchHole, 10_000, 15_000)),
        ("sync", Operation::Sync),
        ("punch", fallocate("plain", Allocating::PunchHole, 41_000, 9000)),
        ("punch dirty", write("plain", 26_000, 9000, Lane::Cached)),
        ("punch dirty", fallocate("plain", Allocating::PunchHole, 27_000, 9000)),
        ("zero", fallocate("place", Allocating::ZeroRange, 10_000, 15_000)),
        ("zero past the end", fallocate("place", Allocating::ZeroRange, 60_000, 30_000)),
        ("zero", fallocate("packed", Allocating::ZeroRangeKeepSize, 1000, 15_000)),
        ("preallocate", fallocate("plain", Allocating::Allocate, 0, 100_000)),
        ("preallocate", fallocate("plain", Allocating::KeepSize, 100_000, 50_000)),
        ("truncate", truncate("packed", 33_333)),
        ("truncate", truncate("plain", 55_555)),
        ("grow", truncate("plain", 80_001)),
        ("truncate", truncate("place", 44_444)),
        ("sync", Operation::Sync),
        ("batch", Operation::Batch { requests: batch }),
        ("fsync", fsync("plain")),
        ("copy", copy("plain", 100, "small", 5000, 20_000)),
        ("copy", copy("packed", 0, "place", 8192, 16_384)),
        ("read cached", read("plain", Lane::Cached)),
        ("read direct", read("place", Lane::Direct)),
        ("read uncached", read("packed", Lane::Uncached)),
        ("fsync", fsync("small")),
        ("truncate", truncate("plain", 0)),
    ]
}

fn copy(from: &str, from_offset: u64, to: &str, to_offset: u64, bytes: u64) -> Operation {
    Operation::Copy { from: at(from), from_offset, to: at(to), to_offset, bytes }
}

fn rename(from: &str, to: &str, how: Renaming) -> Operation {
    Operation::Rename { from: from.into(), to: to.into(), how }
}

fn symlink(at: &str, target_bytes: usize) -> Operation {
    let target = vec![b't'; target_bytes];
    Operation::Symlink { at: at.into(), target: Bytes(target) }
}

fn mknod(at: &str, kind: Special, numbers: (u32, u32)) -> Operation {
    let (major, minor) = numbers;
    Operation::Mknod { at: at.into(), kind, mode: 0o640, major, minor }
}

fn names() -> Vec<(&'static str, Operation)> {
    vec![
        ("rename", rename("small", "fill/renamed", Renaming::Plain)),
        ("link", Operation::Link { from: "place".into(), to: "fill/linked".into() }),
        ("mkdir", Operation::Mkdir { at: "dir".into(), mode: 0o755 }),
        ("rmdir", Operation::Rmdir { at: "dir".into() }),
        ("unlink", Operation::Unlink { at: "packed".into() }),
        ("unlink", Operation::Unlink { at: "fill/100".into() }),
        ("symlink", symlink("fill/short", 10)),
        ("symlink", symlink("long", 2000)),
        ("mknod", mknod("fill/device", Special::Character, (5, 300))),
        ("mknod", mknod("pipe", Special::Fifo, (0, 0))),
        ("rename over", rename("fill/110", "fill/005", Renaming::Plain)),
        ("rename exchange", rename("fill/120", "plain", Renaming::Exchange)),
        ("rename exchange", rename("fill", "long", Renaming::Exchange)),
        ("rename exchange", rename("fill", "long", Renaming::Exchange)),
        ("rename whiteout", rename("fill/090", "fill/moved", Renaming::Whiteout)),
        ("rename whiteout", rename("fill/080", "fill/010", Renaming::Whiteout)),
        ("tmpfile", Operation::Tmpfile { dir: "fill".into(), mode: 0o600, slot: 0 }),
        ("link tmpfile", Operation::LinkOpen { slot: 0, to: "fill/unnamed".into() }),
        ("sync", Operation::Sync),
    ]
}

fn attributes() -> Vec<(&'static str, Operation)> {
    let acl = Acl {
        owner: 7,
        users: vec![(1000, 6)],
        group: 5,
        groups: Vec::new(),
        mask: Some(7),
        other: 4,
    };
    let moment = |secs| Some(Moment { secs, nanos: 7 });
    let (atime, mtime) = (moment(1_000_000), moment(2_000_000));
    let filler = || Bytes::from("user.filler");
    let replaced = Operation::SetXattr {
        at: "fill/050".into(),
        name: filler(),
        bytes: 2000,
        seed: 3,
        how: Setting::Replace,
    };
    vec![
        ("chmod", Operation::Chmod { at: "fill/140".into(), mode: 0o600 }),
        ("chown", Operation::Chown { at: "fill/130".into(), uid: Some(7), gid: Some(8) }),
        ("set times", Operation::Times { at: "fill/045".into(), atime, mtime }),
        ("set xattr", replaced),
        ("remove xattr", Operation::RemoveXattr { at: "fill/060".into(), name: filler() }),
        ("set acl", Operation::SetAcl { at: "fill/030".into(), is_default: false, acl: Some(acl) }),
        ("sync", Operation::Sync),
    ]
}
