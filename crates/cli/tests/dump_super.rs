//! `inspect dump-super` prints what btrfs-progs prints, byte for byte, for good and bad
//! superblocks.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SUPER_BLOCK: u64 = 65536;
const BUTTERNUT: &str = env!("CARGO_BIN_EXE_butternut");

/// A directory that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("butternut-dump-super-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Makes a sparse file, long enough for mkfs and for two superblocks.
    fn image(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(512 << 20).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn run(program: &str, words: &[&str], paths: &[&Path]) -> Output {
    Command::new(program).args(words).args(paths).output().unwrap_or_else(|error| {
        panic!("{program}: {error} (install the package btrfs-progs)");
    })
}

fn mkfs(options: &[&str], paths: &[&Path]) {
    let output = run("mkfs.btrfs", &[&["-q", "-f"], options].concat(), paths);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compares the output of both programs, with all options.
fn same(path: &Path) {
    for options in [&[][..], &["-f"], &["-a"], &["-f", "-a"], &["-s", "1"], &["-f", "-F"]] {
        let actual = run(BUTTERNUT, &[&["inspect", "dump-super"], options].concat(), &[path]);
        let judge = [&["inspect-internal", "dump-super"], options].concat();
        let expected = run("btrfs", &judge, &[path]);
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text(&actual), text(&expected), "{options:?} of {}", path.display());
        assert_eq!(actual.status.success(), expected.status.success(), "{options:?}");
    }
}

#[test]
fn superblocks_of_all_mkfs_options_match() {
    let folder = Folder::new("mkfs");
    let path = folder.image("image");
    let cases: [&[&str]; 9] = [
        &[],
        &["-L", "a label, with spaces and \u{e9}"],
        &["--csum", "xxhash", "-n", "4096"],
        &["--csum", "sha256", "-n", "32768"],
        &["--csum", "blake2", "-n", "65536", "-m", "single"],
        &["-O", "mixed-bg", "-n", "4096"],
        &["-O", "block-group-tree,squota"],
        &["-O", "^no-holes,^free-space-tree,^skinny-metadata,^extref,^block-group-tree"],
        &["-U", "01234567-89ab-cdef-0123-456789abcdef"],
    ];
    for options in cases {
        mkfs(options, &[&path]);
        same(&path);
    }
}

#[test]
fn superblocks_of_multiple_devices_match() {
    let folder = Folder::new("several");
    let paths = ["a", "b", "c", "d"].map(|name| folder.image(name));
    let all = paths.each_ref().map(PathBuf::as_path);
    for profile in ["raid1c4", "raid10", "raid0", "raid6"] {
        mkfs(&["-m", profile, "-d", profile], &all);
        for path in all {
            same(path);
        }
    }
}

#[test]
fn corrupt_superblocks_match() {
    let folder = Folder::new("odd");
    let path = folder.image("image");
    mkfs(&["-L", "good"], &[&path]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut good = vec![0; 4096];
    file.read_exact_at(&mut good, SUPER_BLOCK).unwrap();
    let words = [u8::MAX; 8];
    let chunk = 811 + 17;
    // Offset and bytes of each change. The checksum becomes wrong.
    let cases: [(u64, &[u8]); 18] = [
        (0, &[0]),
        (56, &words),
        (64, b"_BHRfS_N"),
        (160, &[184, 11, 0, 0]),
        (160, &[100, 0, 0, 0]),
        (160, &[30, 0, 0, 0]),
        (160, &[140, 0, 0, 0]),
        (160, &[0, 8, 0, 0]),
        (172, &words),
        (180, &words),
        (188, &words),
        (196, &[1]),
        (196, &[9]),
        (299, b"l\x01ab\xc3\xa9\x7f\tz"),
        (571, &[7; 16]),
        (811 + 8, &[1]),
        (chunk + 44, &[0, 0]),
        (2859, &[0; 16]),
    ];
    for (offset, bytes) in cases {
        file.write_all_at(&good, SUPER_BLOCK).unwrap();
        file.write_all_at(bytes, SUPER_BLOCK + offset).unwrap();
        same(&path);
    }
    file.write_all_at(&[0; 4096], SUPER_BLOCK).unwrap();
    same(&path);
    file.set_len(SUPER_BLOCK + 100).unwrap();
    same(&path);
    file.set_len(100).unwrap();
    same(&path);
}

#[test]
fn a_superblock_at_an_offset_is_found() {
    let folder = Folder::new("offset");
    let (inner, outer) = (folder.image("inner"), folder.image("outer"));
    mkfs(&[], &[&inner]);
    let mut bytes = vec![0; 4096];
    File::open(&inner).unwrap().read_exact_at(&mut bytes, SUPER_BLOCK).unwrap();
    let file = File::options().write(true).open(&outer).unwrap();
    file.write_all_at(&bytes, SUPER_BLOCK + (1 << 20)).unwrap();
    let typed = format!("{}?offset=1M", outer.display());
    let found = run(BUTTERNUT, &["inspect", "dump-super", &typed], &[]);
    let plain = run(BUTTERNUT, &["inspect", "dump-super"], &[&inner]);
    let body = |output: &Output| {
        String::from_utf8_lossy(&output.stdout).lines().skip(1).collect::<Vec<_>>().join("\n")
    };
    assert!(found.status.success());
    assert_eq!(body(&found), body(&plain));
}

#[test]
fn json_has_the_fields_of_the_text() {
    let folder = Folder::new("json");
    let path = folder.image("image");
    mkfs(&["-L", "named", "--csum", "xxhash"], &[&path]);
    let output = run(BUTTERNUT, &["inspect", "dump-super", "--json", "-a"], &[&path]);
    let copies: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(copies.as_array().unwrap().len(), 2);
    let second = &copies[1];
    assert_eq!(second["offset"], 64 << 20);
    assert_eq!(second["bytenr"], 64 << 20);
    assert_eq!((&second["label"], &second["csum_matches"]), (&"named".into(), &true.into()));
    assert!(second["incompat_names"].as_array().unwrap().contains(&"NO_HOLES".into()));
    assert_eq!(second["dev_item"]["devid"], 1);
}
