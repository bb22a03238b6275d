//! Names in the log: an fsync of a file or directory after its names changed needs no commit, and a
//! crash right after it leaves every inode with exactly the names of one of its earlier states.

use crate::volume::TestVolume;
use butternut::format::checksum::{extref_hash, name_hash};
use butternut::{
    FileId, FileKind, Filesystem, Follow, MountOptions, NewInode, RenameFlags, Tunables,
};
use butternut_mkfs::MkfsOptions;
use std::collections::BTreeMap;

fn options() -> MountOptions {
    let tunables = Tunables::default().log_tree(true);
    MountOptions::default().read_only(false).commit_seconds(0).tunables(tunables)
}

fn at(fs: &Filesystem, path: &str) -> FileId {
    if path.is_empty() {
        return fs.root();
    }
    fs.resolve(path.as_bytes(), Follow::NotLast).unwrap()
}

/// Splits a path into the directory's id and the last name.
fn split<'a>(fs: &Filesystem, path: &'a str) -> (FileId, &'a [u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (if dir.is_empty() { fs.root() } else { at(fs, dir) }, name.as_bytes())
}

/// Runs one operation: `mkdir P`, `create P`, `write P`, `mv P Q`, `swap P Q`, `ln P Q`, `rm P`,
/// `rmdir P`, `symlink P`, `fsync P`, `fsyncdir P`, `sync`.
fn run(fs: &Filesystem, operation: &str) {
    let words: Vec<&str> = operation.split(' ').collect();
    match words[..] {
        ["mkdir", path] => {
            let (dir, name) = split(fs, path);
            fs.mkdir(dir, name, &NewInode::new(0o755)).unwrap();
        }
        ["create", path] => {
            let (dir, name) = split(fs, path);
            fs.create(dir, name, &NewInode::new(0o644)).unwrap();
        }
        ["write", path] => {
            // The content says which file it is.
            let (dir, name) = split(fs, path);
            let id = fs.create(dir, name, &NewInode::new(0o644)).unwrap();
            fs.open_file(id).unwrap().write_all_at(0, path.as_bytes()).unwrap();
        }
        ["mv", from, to] => {
            fs.rename(split(fs, from), split(fs, to), RenameFlags::default()).unwrap();
        }
        ["swap", from, to] => {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            fs.rename(split(fs, from), split(fs, to), flags).unwrap();
        }
        ["ln", from, to] => {
            let (dir, name) = split(fs, to);
            fs.link(at(fs, from), dir, name).unwrap();
        }
        ["rm", path] => {
            let (dir, name) = split(fs, path);
            fs.unlink(dir, name).unwrap();
        }
        ["rmdir", path] => {
            let (dir, name) = split(fs, path);
            fs.rmdir(dir, name).unwrap();
        }
        ["symlink", path] => {
            let (dir, name) = split(fs, path);
            fs.symlink(dir, name, b"target", &NewInode::new(0o777)).unwrap();
        }
        ["fsync", path] => fs.open_file(at(fs, path)).unwrap().sync_all().unwrap(),
        ["fsyncdir", path] => fs.sync_directory(at(fs, path)).unwrap(),
        ["sync"] => {
            fs.sync().unwrap();
        }
        _ => panic!("no operation {operation}"),
    }
}

/// Everything in a directory, by path: `dir`, `link to` its target, or a file's content.
fn list(fs: &Filesystem) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![(fs.root(), String::new())];
    while let Some((dir, path)) = dirs.pop() {
        for entry in fs.read_dir(dir, 0).unwrap() {
            let entry = entry.unwrap();
            let name = String::from_utf8(entry.name.clone()).unwrap();
            if name == "." || name == ".." {
                continue;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let id = at(fs, &path);
            let what = match fs.stat(id).unwrap().kind {
                FileKind::Directory => {
                    dirs.push((id, path.clone()));
                    "dir".to_owned()
                }
                FileKind::Symlink => {
                    format!("link to {}", String::from_utf8_lossy(&fs.read_link(id).unwrap()))
                }
                FileKind::File => {
                    let file = fs.open_file(id).unwrap();
                    let mut bytes = vec![0; usize::try_from(file.len()).unwrap()];
                    file.read_exact_at(0, &mut bytes).unwrap();
                    String::from_utf8(bytes).unwrap()
                }
                FileKind::CharDevice
                | FileKind::BlockDevice
                | FileKind::Fifo
                | FileKind::Socket => "special".to_owned(),
            };
            found.insert(path, what);
        }
    }
    found
}

/// Commits `before`, runs `after`, whose last operation is an fsync that writes to the log, and
/// crashes.
fn check(before: &[&str], after: &[&str], want: &[(&str, &str)]) {
    check_as(true, before, after, want);
}

/// As [`check`]; `is_logged`: the last fsync writes to the log, and does not commit.
fn check_as(is_logged: bool, before: &[&str], after: &[&str], want: &[(&str, &str)]) {
    let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
    let fs = Filesystem::open_devices(volume.devices(), &options()).unwrap();
    for operation in before {
        run(&fs, operation);
    }
    run(&fs, "sync");
    let (commits, fast) = (fs.stats().commits, fs.sync_counts().fast);
    for operation in after {
        run(&fs, operation);
    }
    let is_committed = fs.stats().commits > commits;
    assert_eq!(is_committed, !is_logged, "{after:?}: {:?}", fs.sync_counts());
    assert!(!is_logged || fs.sync_counts().fast > fast, "{after:?}");
    let crashed = volume.copy();
    fs.abandon();
    let want: BTreeMap<String, String> =
        want.iter().map(|(path, what)| ((*path).to_owned(), (*what).to_owned())).collect();
    for read_only in [true, false] {
        let fs =
            Filesystem::open_devices(crashed.devices(), &options().read_only(read_only)).unwrap();
        assert!(fs.notices().is_empty(), "{after:?}: {:?}", fs.notices());
        assert_eq!(list(&fs), want, "{after:?}, read_only: {read_only}");
        fs.close().unwrap();
    }
    crashed.check();
}

#[test]
fn a_renamed_file_has_its_new_name_only() {
    check(&["write a"], &["mv a b", "fsync b"], &[("b", "a")]);
    check(&["mkdir d", "write a"], &["mv a d/b", "fsync d/b"], &[("d", "dir"), ("d/b", "a")]);
    // The file that is replaced is deleted.
    check(&["write a", "write b"], &["mv a b", "fsync b"], &[("b", "a")]);
    check(&["write a"], &["mv a b", "fsync b", "mv b a", "fsync a"], &[("a", "a")]);
}

#[test]
fn what_had_the_new_name_is_not_lost() {
    let both = &["write a", "write b"];
    check(both, &["swap a b", "fsync a"], &[("a", "b"), ("b", "a")]);
    check(both, &["mv a t", "mv b a", "mv t b", "fsync a"], &[("a", "b"), ("b", "a")]);
    check(both, &["mv b c", "mv a b", "fsync b"], &[("b", "a"), ("c", "b")]);
    // A name that was replaced is never missing.
    check(both, &["ln b c", "mv a b", "fsync c"], &[("b", "a"), ("c", "b")]);
    check(both, &["mv a c", "mv b a", "fsync c"], &[("a", "b"), ("c", "a")]);
}

#[test]
fn hard_links_come_and_go_with_an_fsync() {
    check(&["write a"], &["ln a b", "fsync a"], &[("a", "a"), ("b", "a")]);
    check(&["write a", "ln a b"], &["rm a", "fsync b"], &[("b", "a")]);
    check(
        &["write a", "ln a b"],
        &["fsync a", "rm a", "rm b", "write a", "fsync a"],
        &[("a", "a")],
    );
}

#[test]
fn a_new_file_brings_its_new_directories() {
    let want = &[("d", "dir"), ("d/e", "dir"), ("d/e/f", "d/e/f")];
    check(&[], &["mkdir d", "mkdir d/e", "write d/e/f", "fsync d/e/f"], want);
    let want = &[("a", "dir"), ("a/x", "a/x"), ("b", "dir"), ("b/f", "a/f")];
    check(&["mkdir a", "write a/f"], &["mv a b", "mkdir a", "write a/x", "fsync a/x"], want);
}

#[test]
fn directories_that_moved_make_no_circle() {
    check(
        &["mkdir a", "mkdir a/sub", "write a/f"],
        &["mv a/sub sub", "mv a sub/a", "fsyncdir sub/a"],
        &[("sub", "dir"), ("sub/a", "dir"), ("sub/a/f", "a/f")],
    );
}

#[test]
fn a_directory_has_the_entries_of_its_fsync() {
    check(
        &["mkdir d", "mkdir e", "write d/f", "write d/g", "write d/h"],
        &["mv d/f e/f", "rm d/g", "create d/i", "symlink d/s", "mkdir d/k", "fsyncdir d"],
        &[
            ("d", "dir"),
            ("d/h", "d/h"),
            ("d/i", ""),
            ("d/k", "dir"),
            ("d/s", "link to target"),
            ("e", "dir"),
            ("e/f", "d/f"),
        ],
    );
    // A file that was synced before its name was removed.
    check(&["mkdir d"], &["write d/f", "fsync d/f", "rm d/f", "fsyncdir d"], &[("d", "dir")]);
}

#[test]
fn files_outlive_a_directory_that_they_left() {
    check(&["mkdir d", "write d/f"], &["mv d/f g", "rmdir d", "fsync g"], &[("g", "d/f")]);
    check(
        &["mkdir d", "mkdir e", "write d/f"],
        &["mv d/f e/f", "rmdir d", "fsyncdir "],
        &[("e", "dir"), ("e/f", "d/f")],
    );
    check(
        &[],
        &["mkdir n", "write n/f", "fsync n/f", "mv n/f g", "rmdir n", "mkdir n", "fsyncdir n"],
        &[("g", "n/f"), ("n", "dir")],
    );
}

#[test]
fn a_file_that_replaced_another_is_not_empty() {
    let linked = &["write a", "ln a b"];
    let want = &[("a", "t"), ("b", "a")];
    check_as(false, &["write a"], &["write t", "mv t a", "fsyncdir "], &[("a", "t")]);
    check_as(false, linked, &["write t", "mv t a", "fsync b"], want);
    // It replaces no file, so its data was not written first.
    let moved = &["write b", "mv a c", "mv b a", "fsync c"];
    check(&["write a"], moved, &[("a", ""), ("c", "a")]);
    // A sync of the new file before it replaces the other one makes the commit needless.
    check(&["write a"], &["write t", "fsync t", "mv t a", "fsyncdir "], &[("a", "t")]);
    check(linked, &["write t", "fsync t", "mv t a", "fsync b"], want);
}

/// Returns names of 255 bytes with one hash. A CRC is linear: with more letters changed than the
/// hash has bits, some sums of the single changes are zero.
fn colliding(count: usize) -> Vec<Vec<u8>> {
    let base = vec![b'a'; 255];
    let with = |letters: u64| {
        let mut name = base.clone();
        (0..45).filter(|at| letters >> at & 1 == 1).for_each(|at| name[at] = b'c');
        name
    };
    let (mut pivots, mut sums) = (BTreeMap::<u32, (u64, u64)>::new(), Vec::new());
    for at in 0..45 {
        let (mut change, mut letters) = (name_hash(&with(1 << at)) ^ name_hash(&base), 1_u64 << at);
        while change != 0 {
            let Some((other, others)) = pivots.get(&change.leading_zeros()) else { break };
            change ^= other;
            letters ^= others;
        }
        if change == 0 {
            sums.push(letters);
        } else {
            pivots.insert(change.leading_zeros(), (change, letters));
        }
    }
    let names: Vec<_> = (0..count)
        .map(|number| {
            let chosen = sums.iter().enumerate().filter(|(at, _)| number >> at & 1 == 1);
            with(chosen.fold(0, |letters, (_, sum)| letters ^ sum))
        })
        .collect();
    assert!(names.iter().all(|name| name_hash(name) == name_hash(&base)));
    names
}

#[test]
fn a_synced_name_fits_beside_the_names_that_a_crash_brings_back() {
    for is_committed in [true, false] {
        let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
        let fs = Filesystem::open_devices(volume.devices(), &options()).unwrap();
        let (root, new) = (fs.root(), NewInode::new(0o644));
        let names = colliding(70);
        let put = |name: &[u8]| {
            let file = fs.open_file(fs.create(root, name, &new).unwrap()).unwrap();
            file.write_all_at(0, b"synced").unwrap();
            file.sync_all().unwrap();
        };
        let synced = if is_committed {
            // The last commit has as many names of this hash as an item holds.
            let full = names.iter().position(|name| match fs.create(root, name, &new) {
                Ok(_) => false,
                Err(error) => {
                    assert_eq!(error.errno(), 75, "{error}");
                    true
                }
            });
            let full = full.expect("fewer names fit");
            fs.sync().unwrap();
            fs.unlink(root, &names[0]).unwrap();
            put(&names[full]);
            &names[full]
        } else {
            // The directory never has two of them; the log has all.
            let (last, others) = names.split_last().unwrap();
            for name in others {
                put(name);
                fs.unlink(root, name).unwrap();
            }
            put(last);
            last
        };
        let crashed = volume.copy();
        fs.abandon();
        for read_only in [true, false] {
            let options = options().read_only(read_only);
            let fs = Filesystem::open_devices(crashed.devices(), &options);
            let fs = fs.expect("a volume with a log");
            assert!(fs.notices().is_empty(), "{:?}", fs.notices());
            let file = fs.open_file(fs.lookup(fs.root(), synced).unwrap()).unwrap();
            let mut bytes = [0; 6];
            file.read_exact_at(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"synced");
            fs.close().unwrap();
        }
        crashed.check();
    }
}

#[test]
fn a_file_that_was_exchanged_with_another_is_not_empty() {
    let want = &[("a", "t"), ("t", "a")];
    check_as(false, &["write a"], &["write t", "swap t a", "fsyncdir "], want);
    check_as(false, &["write a"], &["write t", "swap a t", "fsyncdir "], want);
}

/// Returns a name of `len` bytes whose extended reference from `dir` has the hash `want`. A CRC is
/// linear in the letters.
fn with_extref_hash(dir: u64, len: usize, want: u64) -> Vec<u8> {
    let with = |letters: u64| {
        let mut name = vec![b'a'; len];
        (0..60).filter(|at| letters >> at & 1 == 1).for_each(|at| name[at] = b'c');
        name
    };
    let base = extref_hash(dir, &with(0));
    let reduce = |pivots: &BTreeMap<u32, (u64, u64)>, mut change: u64, mut letters: u64| {
        while change != 0 {
            let Some((other, others)) = pivots.get(&change.leading_zeros()) else { break };
            change ^= other;
            letters ^= others;
        }
        (change, letters)
    };
    let mut pivots = BTreeMap::new();
    for at in 0..60 {
        let one = extref_hash(dir, &with(1 << at)) ^ base;
        let (change, letters) = reduce(&pivots, one, 1 << at);
        if change != 0 {
            pivots.insert(change.leading_zeros(), (change, letters));
        }
    }
    let (left, letters) = reduce(&pivots, want ^ base, 0);
    assert_eq!(left, 0, "32 independent letters");
    let name = with(letters);
    assert_eq!(extref_hash(dir, &name), want);
    name
}

/// The names that a file had in a directory that is deleted stay in its items while a replay adds
/// its new names: the directory loses its entries last. Extended references share an item by their
/// hash, whatever their directories.
#[test]
fn synced_names_fit_beside_the_references_to_a_deleted_directory() {
    const HASH: u64 = 0x1234_5678;
    let volume = TestVolume::of(128 << 20, &MkfsOptions::default());
    let fs = Filesystem::open_devices(volume.devices(), &options()).unwrap();
    let root = fs.root();
    let id = fs.create(root, b"file", &NewInode::new(0o644)).unwrap();
    // 61 names of 255 bytes fill the item of ordinary references from one directory.
    let link_all = |dir: FileId, lens: std::ops::RangeInclusive<usize>| {
        let ordinary = (0..62).map(|number| format!("{number:0255}").into_bytes());
        // Other lengths: other hashes of the entries, which would make an fsync commit.
        let extended = lens.map(|len| with_extref_hash(dir.ino, len, HASH));
        let names: Vec<Vec<u8>> = ordinary.chain(extended).collect();
        for name in &names {
            fs.link(id, dir, name).unwrap();
        }
        names
    };
    let old = fs.mkdir(root, b"old", &NewInode::new(0o755)).unwrap();
    let names = link_all(old, 216..=255); // 40 names, 10 KB
    fs.sync().unwrap();
    for name in &names {
        fs.unlink(old, name).unwrap();
    }
    fs.rmdir(root, b"old").unwrap();
    let new = fs.mkdir(root, b"new", &NewInode::new(0o755)).unwrap();
    let names = link_all(new, 226..=255); // 30 names, 8 KB: 18 KB do not fit into one item
    let file = fs.open_file(id).unwrap();
    file.write_all_at(0, b"synced").unwrap();
    file.sync_all().unwrap();
    let crashed = volume.copy();
    drop(file);
    fs.abandon();
    for read_only in [true, false] {
        let options = options().read_only(read_only);
        let fs =
            Filesystem::open_devices(crashed.devices(), &options).expect("a volume with a log");
        assert!(fs.notices().is_empty(), "{:?}", fs.notices());
        let dir = fs.lookup(fs.root(), b"new").unwrap();
        for name in &names {
            assert_eq!(fs.lookup(dir, name).unwrap().ino, id.ino);
        }
        fs.close().unwrap();
    }
    crashed.check();
}
