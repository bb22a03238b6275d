//! `dedupe` of a volume that is not mounted, its index, and its messages. The saving is compared
//! with what is counted from the contents of the files, and with `filesystem du`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

use serde_json::Value;

use super::change::Volume;
use super::command::{command, run, shell};
use super::image::kernel_tests_enabled;
use butternut_undo::MountGuard;

const SECTOR: usize = 4096;
const BLOCK: usize = 16 << 10;

/// A generator of numbers (splitmix64).
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}

/// The bytes of a block of a kind; kind 0 is zeros.
fn block(kind: u64) -> Vec<u8> {
    if kind == 0 {
        return vec![0; BLOCK];
    }
    let mut seed = Seed(kind << 32);
    (0..BLOCK / 8).flat_map(|_| seed.next().to_le_bytes()).collect()
}

fn contents(kinds: &[u64]) -> Vec<u8> {
    kinds.iter().flat_map(|kind| block(*kind)).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"))
}

/// Bytes of data on disk, each counted once for all files.
fn used(volume: &Volume) -> u64 {
    let list = json(&volume.ok("--json filesystem du VOL /"));
    let top = list.as_array().unwrap().last().unwrap().clone();
    number(&top, "exclusive_bytes") + number(&top, "set_shared_bytes")
}

fn check(volume: &Volume) {
    let image = volume.image.to_str().unwrap();
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
    volume.ok("check --check-data-csum VOL");
}

/// Returns a volume of random files of few kinds of blocks, and what they hold.
fn random_volume(seed: u64) -> (Volume, BTreeMap<String, Vec<u8>>) {
    let mut random = Seed(seed);
    let volume = Volume::new();
    let tree = volume.dir.path().join("tree");
    let mut files = BTreeMap::new();
    for at in 0..30 {
        let kinds: Vec<u64> = (0..=random.below(12)).map(|_| random.next() % 7).collect();
        let mut bytes = contents(&kinds);
        // Files end anywhere, and none is small enough to be stored inline.
        bytes.truncate(bytes.len() - random.below(2) * random.below(BLOCK - SECTOR));
        let name = format!("d{}/f{at}", random.below(4));
        fs::create_dir_all(tree.join(&name).parent().unwrap()).unwrap();
        fs::write(tree.join(&name), &bytes).unwrap();
        files.insert(name, bytes);
    }
    volume.ok("import VOL tree/. /");
    (volume, files)
}

/// Counts the data that is left when every copy of a block is saved but one. The import stores no
/// block of a file that is all zeros at its place: those are holes.
fn best(files: &BTreeMap<String, Vec<u8>>, stored: u64) -> u64 {
    let mut distinct = BTreeSet::new();
    let mut saved = 0;
    for bytes in files.values() {
        for block in bytes.chunks(BLOCK) {
            let is_zero = block.iter().all(|byte| *byte == 0);
            if !is_zero && !distinct.insert(block) {
                saved += block.len().next_multiple_of(SECTOR) as u64;
            }
        }
    }
    stored - saved
}

#[test]
fn every_copy_is_saved_to_the_byte_and_a_second_run_reads_nothing() {
    let (volume, files) = random_volume(7);
    let before = used(&volume);
    let want = best(&files, before);
    assert!(want < before / 2, "the files have copies");
    let size = BLOCK.to_string();
    let dry = json(&volume.ok(&format!("--json dedupe -n --block {size} VOL")));
    assert_eq!(used(&volume), before, "a dry run changes nothing");
    let line = format!("--json dedupe --index index --block {size} VOL");
    let report = json(&volume.ok(&line));
    assert_eq!(number(&report, "deduplicated_bytes"), before - want);
    assert_eq!(number(&dry, "deduplicated_bytes"), before - want);
    assert_eq!(used(&volume), want);
    assert_eq!(number(&report, "files_read"), 30);
    check(&volume);
    for (name, bytes) in &files {
        assert!(volume.cat(name) == *bytes, "{name}");
    }

    let second = json(&volume.ok(&line));
    assert_eq!(number(&second, "hashed_bytes"), 0);
    assert_eq!(number(&second, "deduplicated_bytes"), 0);
    assert_eq!(number(&second, "shared_before_bytes"), before - want);

    // Only what changed is read, and finds its copies in the rest.
    volume.write("/new", &contents(&[1, 2, 3]));
    let third = json(&volume.ok(&line));
    assert_eq!(number(&third, "hashed_bytes"), 3 * BLOCK as u64);
    assert_eq!(number(&third, "deduplicated_bytes"), 3 * BLOCK as u64);
    assert_eq!(used(&volume), want);
    check(&volume);
}

/// The kernel reads what the files held before, and its own count of the space is ours.
#[test]
fn the_kernel_sees_every_byte_and_the_saving() {
    if !kernel_tests_enabled("the_kernel_sees_every_byte_and_the_saving") {
        return;
    }
    let (volume, files) = random_volume(11);
    let want = best(&files, used(&volume));
    volume.ok(&format!("-q dedupe --block {BLOCK} VOL"));
    let at = volume.dir.path().join("at");
    fs::create_dir(&at).unwrap();
    let guard = MountGuard::before_mount(&at).unwrap();
    let (image, tree) = (volume.image.display(), volume.dir.path().join("tree"));
    shell(&format!("mount -o loop,ro {image} {}", at.display()));
    shell(&format!("diff -r --no-dereference {} {}", tree.display(), at.display()));
    let counted = shell(&format!("btrfs filesystem du -s --raw {} | tail -1", at.display()));
    let columns: Vec<u64> =
        counted.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[_, exclusive, shared] = columns.as_slice() else { panic!("{counted}") };
    assert_eq!(exclusive + shared, want, "{counted}");
    guard.unmount().unwrap();
}

#[test]
fn read_only_snapshots_give_their_data_and_do_not_change() {
    let volume = Volume::new();
    volume.ok("subvolume create VOL /a");
    volume.write("/a/file", &contents(&[1, 2, 3]));
    volume.ok("subvolume snapshot -r VOL /a /snap");
    volume.ok("rm VOL /a/file");
    volume.write("/copy", &contents(&[1, 2, 3]));
    volume.write("/a/other", &contents(&[3, 4]));
    let report = json(&volume.ok("--json dedupe --block 16K VOL"));
    assert_eq!(number(&report, "deduplicated_bytes"), 4 * BLOCK as u64);
    assert_eq!(used(&volume), 4 * BLOCK as u64);
    check(&volume);

    // Two copies that are both in read-only subvolumes stay.
    volume.write("/a/again", &contents(&[8]));
    volume.write("/a/twice", &contents(&[8]));
    volume.ok("property set VOL /a ro true");
    let report = json(&volume.ok("--json dedupe --block 16K VOL /a /snap"));
    assert_eq!(number(&report, "deduplicated_bytes"), 0);
}

#[test]
fn holes_zeros_and_other_kinds_of_files_are_left_alone() {
    let volume = Volume::new();
    let tree = volume.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let at = |name: &str| tree.join(name);
    let data = contents(&[1, 2]);
    fs::write(at("a"), &data).unwrap();
    fs::hard_link(at("a"), at("b")).unwrap();
    symlink("a", at("link")).unwrap();
    for name in ["zeros", "zeros2"] {
        fs::write(at(name), vec![0; 2 * BLOCK]).unwrap();
    }
    // The data behind a hole of a terabyte.
    let sparse = fs::File::create(at("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &data, 1 << 40).unwrap();
    fs::write(at("tiny"), b"inline").unwrap();
    fs::write(at("tiny2"), b"inline").unwrap();
    run("mkfifo", &[at("fifo").as_os_str()]);
    volume.ok("import VOL tree/. /");
    let before = used(&volume);
    let report = json(&volume.ok("--json dedupe --min-size 1 --block 16K VOL"));
    assert_eq!(number(&report, "deduplicated_bytes"), 2 * BLOCK as u64);
    assert_eq!(used(&volume), before - 2 * BLOCK as u64);
    // a, zeros, zeros2, sparse, tiny, tiny2; the second name of a, the link and the FIFO are none.
    assert_eq!(number(&report, "files"), 6);
    check(&volume);
}

#[test]
fn what_is_no_index_is_refused_and_stays() {
    let volume = Volume::new();
    volume.write("/a", &contents(&[1]));
    volume.ok("dedupe --index good VOL");
    let path = |name: &str| volume.dir.path().join(name);
    let good = fs::read(path("good")).unwrap();
    assert_eq!(fs::metadata(path("good")).unwrap().permissions().mode() & 0o777, 0o600);
    let mut flipped = good.clone();
    flipped[40] ^= 1;
    let mut newer = good.clone();
    newer[16] = 9;
    for (bytes, why) in [
        (&b"a letter"[..], "not an index of butternut dedupe"),
        (b"", "not an index of butternut dedupe"),
        (&[0; 4096], "not an index of butternut dedupe"),
        (&good[..good.len() - 1], "the index is damaged: it is cut off"),
        (&[&good[..], b"x"].concat(), "the index is damaged: it goes on behind its end"),
        (&flipped, "the index is damaged"),
        (&newer, "version: have 9, want 1"),
    ] {
        fs::write(path("index"), bytes).unwrap();
        let message = volume.failure("dedupe --index index VOL");
        assert!(message.starts_with(&format!("index: {why}")), "{message}");
        assert!(fs::read(path("index")).unwrap() == bytes, "{why}");
    }
    let message = volume.failure("dedupe --index good --block 64K VOL");
    assert_eq!(
        message,
        "good: block size: have 131072 bytes, want 65536 (use --block 131072, or another --index)"
    );
    run("mkfifo", &[path("fifo").as_os_str()]);
    for name in ["fifo", "."] {
        let message = volume.failure(&format!("dedupe --index {name} VOL"));
        assert!(message.contains("is not a regular file"), "{message}");
    }
    let message = volume.failure("dedupe --index VOL VOL");
    assert!(message.starts_with("VOL: not an index"), "{message}");
    volume.failure("dedupe --index missing/index VOL");
    // Nothing temporary is left, and the index is still good.
    let left = fs::read_dir(volume.dir.path()).unwrap();
    let left = left.filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".butternut")
    });
    assert_eq!(left.count(), 0);
    volume.ok("dedupe --index good VOL");
}

/// The command is held in its search: it cannot print more than a pipe holds.
#[test]
fn what_took_the_name_of_the_index_meanwhile_is_not_replaced() {
    for is_link in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let deep = (0..499).fold(at("tree"), |path, _| path.join("d"));
        fs::create_dir_all(&deep).unwrap();
        for child in 0..300 {
            fs::create_dir(deep.join(child.to_string())).unwrap();
        }
        fs::write(at("precious"), "no index").unwrap();
        let mut child = command()
            .arg("dedupe")
            .arg("--index")
            .arg(at("index"))
            .arg(at("tree"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = child.stderr.take().unwrap();
        messages.read_exact(&mut [0]).unwrap();
        // The index was read (there was none), and the search goes on.
        if is_link {
            symlink(at("precious"), at("index")).unwrap();
        } else {
            fs::rename(at("precious"), at("index")).unwrap();
        }
        messages.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let kept = if is_link { at("precious") } else { at("index") };
        assert_eq!(fs::read(kept).unwrap(), b"no index", "link: {is_link}");
    }
}

#[test]
fn an_index_that_was_replaced_by_another_file_or_is_a_dangling_link_stays() {
    let volume = Volume::new();
    volume.write("/a", &contents(&[1]));
    let path = |name: &str| volume.dir.path().join(name);
    symlink("missing", path("link")).unwrap();
    let message = volume.failure("dedupe --index link VOL");
    assert!(message.starts_with("link: is a symbolic link to a file that"), "{message}");
    assert!(!path("missing").exists());
    // A link to an index stays, and the index that it names is replaced.
    volume.ok("dedupe --index good VOL");
    fs::create_dir(path("dir")).unwrap();
    symlink("../good", path("dir/link")).unwrap();
    volume.write("/b", &contents(&[2]));
    let before = fs::read(path("good")).unwrap();
    volume.ok("dedupe --index dir/link VOL");
    assert!(path("dir/link").is_symlink());
    assert!(fs::read(path("good")).unwrap() != before);
    assert_eq!(fs::read_dir(path("dir")).unwrap().count(), 1);
}

#[test]
fn the_summary_and_the_messages() {
    let volume = Volume::new();
    volume.write("/a", &contents(&[1, 2]));
    volume.write("/b", &contents(&[1, 2]));
    let summary = "\
        files: 2, of which 2 were read\n\
        hashed: 64.00KiB (65536 bytes)\n\
        shared before: 0.00B (0 bytes)\n";
    let dry = volume.ok("dedupe -n VOL");
    assert_eq!(dry, format!("{summary}would be deduplicated: 32.00KiB (32768 bytes)\n"));
    let ran = volume.run("-v dedupe VOL");
    assert_eq!(ran.out, format!("{summary}deduplicated: 32.00KiB (32768 bytes)\n"));
    assert!(ran.err.contains("butternut: /b: 32768 bytes deduplicated\n"), "{}", ran.err);
    assert_eq!(volume.ok("-q dedupe VOL"), "");
    for (line, want) in [
        ("dedupe --block 3K VOL", "--block: 3K is not a power of two from 4K to 16M"),
        ("dedupe --block 32M VOL", "--block: 32M is not a power of two from 4K to 16M"),
        (
            "dedupe --min-size x VOL",
            "--min-size: \"x\" is not a number of bytes (examples: 4096, 64K, 1M, 2G)",
        ),
        (
            "dedupe VOL /missing",
            "/missing: no such file or directory (`butternut ls` shows what is there)",
        ),
    ] {
        let ran = volume.run(line);
        let said = if want.starts_with("--") { ran.usage() } else { ran.failure() };
        assert_eq!(said.strip_prefix("butternut: "), Some(want));
    }
}

#[test]
fn a_file_that_cannot_be_read_does_not_end_the_run() {
    let volume = Volume::new();
    let marker = b"this sector will be damaged".repeat(200);
    volume.write("/bad", &[contents(&[5]), marker].concat());
    volume.write("/a", &contents(&[1, 2]));
    volume.write("/b", &contents(&[1, 2]));
    let mut bytes = fs::read(&volume.image).unwrap();
    let at: Vec<usize> = bytes
        .windows(27)
        .enumerate()
        .filter(|(at, part)| at % SECTOR == 0 && *part == b"this sector will be damaged")
        .map(|(at, _)| at)
        .collect();
    assert!(!at.is_empty());
    for at in at {
        bytes[at] ^= 1;
    }
    // The volume itself is checked at the end.
    fs::write(volume.dir.path().join("bad.img"), bytes).unwrap();
    let ran = volume.run("dedupe bad.img");
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.err.starts_with("butternut: /bad: "), "{}", ran.err);
    assert!(ran.out.contains("\ndeduplicated: 32.00KiB (32768 bytes)\n"), "{}", ran.out);
}

#[test]
fn a_source_that_cannot_be_read_is_named_and_is_no_source_any_more() {
    let volume = Volume::new();
    let data = [contents(&[5]), b"this sector will be damaged".repeat(607)].concat();
    volume.write("/a", &data);
    fs::copy(&volume.image, volume.dir.path().join("bad.img")).unwrap();
    let bad = volume.dir.path().join("bad.img");
    let line = "dedupe --block 16K --index index bad.img";
    volume.ok(line);
    let mut bytes = fs::read(&bad).unwrap();
    let at = bytes.windows(27).position(|part| part == b"this sector will be damaged").unwrap();
    bytes[at] ^= 1;
    fs::write(&bad, bytes).unwrap();
    for name in ["/b", "/c"] {
        volume.feed(&format!("write {} {name}", bad.display()), &data).ok();
    }
    let ran = volume.run(line);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.err.lines().all(|line| line.starts_with("butternut: /a: ")), "{}", ran.err);
    // Of /c: the blocks that /b and /c have. (Of /b: those of /a before the damage.)
    assert!(!ran.out.contains("\ndeduplicated: 0.00B"), "{}", ran.out);
}

#[test]
fn more_files_can_be_named_than_descriptors_may_be_open() {
    let dir = tempfile::tempdir().unwrap();
    for at in 0..300 {
        fs::write(dir.path().join(format!("f{at}")), "x").unwrap();
    }
    let program = command().get_program().to_owned();
    let (program, dir) = (program.display().to_string(), dir.path().display().to_string());
    // The files are smaller than --min-size, so that any filesystem will do.
    shell(&format!("cd {dir}; ulimit -n 256; exec {program} dedupe f*"));
}

#[test]
fn an_argument_that_is_no_file_is_refused_by_name() {
    let volume = Volume::new();
    let tree = volume.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    symlink("a", tree.join("link")).unwrap();
    volume.ok("import VOL tree/. /");
    for name in ["a", "b"] {
        volume.write(&format!("/{name}"), &contents(&[1]));
    }
    let ran = volume.run("dedupe VOL /link /a /b");
    let why = "is neither a regular file nor a directory; symbolic links are not followed";
    assert_eq!((ran.code, ran.err), (Some(1), format!("butternut: /link: {why}\n")));
    assert!(ran.out.contains("\ndeduplicated: 16.00KiB (16384 bytes)\n"), "{}", ran.out);
}
