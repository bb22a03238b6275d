//! Damaged items of fs-verity: what the open and the reads of their file say, and that a session
//! that changes the volume leaves `btrfs check` no worse than it was before.
//!
//! `verity-damaged.txt` lists the damages, which were made in an image that Linux 6.12 has written,
//! with what that kernel refuses.

use crate::verity::{hex, pattern, whole};
use crate::volume::{TestVolume, new};
use butternut::{
    Error, FileId, Filesystem, Follow, MountOptions, SetAttributes, VerityMetadata, VerityOptions,
};
use butternut_check::{CheckOptions, Severity};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::process::Command;

const IMAGE: &[u8] = include_bytes!("../images/verity-damaged.img.zst");
const TABLE: &str = include_str!("../images/verity-damaged.txt");
const BLOCK: u64 = 4096;
/// What `fsverity measure` said of the undamaged file.
const DIGEST: &str = "ab553eb814607974c63e1c5a2c3df81520e01bf8fe933c21c80a9e7d6049a162";

/// One line of the table.
struct Damage {
    name: &'static str,
    changes: Vec<(usize, Vec<u8>)>,
    said: &'static str,
    blocks: &'static str,
    found: &'static str,
}

impl Damage {
    fn all() -> Vec<Self> {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        lines.map(Self::parse).collect()
    }

    fn parse(line: &'static str) -> Self {
        let [name, changes, said, blocks, found, _] = *line.split(" | ").collect::<Vec<_>>() else {
            panic!("{line}")
        };
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let change = |change: &str| {
            let (at, bytes) = change.split_once('=').unwrap();
            let bytes = bytes.as_bytes().chunks(2).map(byte).collect();
            (usize::from_str_radix(at, 16).unwrap(), bytes)
        };
        Self { name, changes: changes.split(' ').map(change).collect(), said, blocks, found }
    }

    fn volume(&self, image: &[u8]) -> TestVolume {
        let mut image = image.to_vec();
        for (at, bytes) in &self.changes {
            image[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        TestVolume::of_image(&image)
    }

    /// The file that is damaged.
    fn file(&self) -> &'static str {
        if self.name == "flag-set-on-plain" { "plain" } else { "a" }
    }

    fn is_refused(&self, block: u64) -> bool {
        match self.blocks.split_once('-') {
            Some((first, last)) => {
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&block)
            }
            None => self.blocks == "all",
        }
    }
}

fn undamaged() -> Vec<u8> {
    zstd::decode_all(IMAGE).unwrap()
}

fn open(volume: &TestVolume) -> Filesystem {
    Filesystem::open_devices(volume.devices(), &MountOptions::default()).unwrap()
}

/// An error with its causes.
fn said(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn find(fs: &Filesystem, name: &str) -> FileId {
    fs.resolve(name.as_bytes(), Follow::Last).unwrap()
}

#[test]
fn damaged_files_are_refused_as_by_the_kernel() {
    let image = undamaged();
    let fs = open(&TestVolume::of_image(&image));
    let file = fs.open_file(find(&fs, "a")).unwrap();
    assert_eq!(hex(&file.measure_verity().unwrap().digest), DIGEST);
    let content = whole(&file);
    drop((file, fs));
    for damage in Damage::all() {
        let name = damage.name;
        let volume = damage.volume(&image);
        let fs = open(&volume);
        let file = match fs.open_file(find(&fs, damage.file())) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.errno(), 5, "{name}");
                let said = said(&error);
                assert!(said.contains("inode 25") && said.ends_with(damage.said), "{name}: {said}");
                continue;
            }
        };
        assert_eq!(damage.said, "opens", "{name}");
        let mut block = vec![0; 4096];
        for number in 0..content.len() as u64 / BLOCK {
            let at = usize::try_from(number * BLOCK).unwrap();
            match file.read_at(number * BLOCK, &mut block) {
                Ok(read) => {
                    assert!(!damage.is_refused(number), "{name}: {number}");
                    assert!(block[..read] == content[at..at + 4096], "{name}: {number}");
                }
                Err(error) => {
                    assert!(damage.is_refused(number), "{name}: {number}: {error}");
                    assert_eq!(error.errno(), 5, "{name}: {number}");
                    assert!(said(&error).contains(": have "), "{name}: {}", said(&error));
                }
            }
        }
        // Whatever it has to say of the rest, it ends.
        let all = [VerityMetadata::MerkleTree, VerityMetadata::Descriptor];
        for what in all {
            let (mut at, mut part) = (0, [0; 5000]);
            while let Ok(read @ 1..) = file.read_verity_metadata(what, at, &mut part) {
                at += read as u64;
            }
            assert!(at <= 20480, "{name}: {at}");
        }
    }
}

#[test]
fn a_check_names_each_damage() {
    let image = undamaged();
    for damage in Damage::all() {
        let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
        let volume = damage.volume(&image);
        let report = butternut_check::check(volume.devices(), &options).unwrap();
        let errors = report.findings.iter().filter(|found| found.severity == Severity::Error);
        let kinds: BTreeSet<&str> = errors.map(|found| found.kind.name()).collect();
        let wanted = BTreeSet::from([damage.found].map(|kind| if kind == "-" { "" } else { kind }));
        let wanted: BTreeSet<&str> = wanted.into_iter().filter(|kind| !kind.is_empty()).collect();
        assert_eq!(kinds, wanted, "{}: {:#?}", damage.name, report.findings);
    }
}

/// What `btrfs check` says of a volume: its status and the lines on standard error.
fn judged(volume: &TestVolume) -> (bool, BTreeSet<String>) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("image");
    let file = std::fs::File::create(&path).unwrap();
    let image = volume.image();
    file.set_len(image.len() as u64).unwrap();
    for (number, part) in image.chunks(1 << 16).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, (number << 16) as u64).unwrap();
        }
    }
    let mut command = Command::new("btrfs");
    let done = command.args(["check", "--check-data-csum"]).arg(&path).output();
    let done = done.expect("the program btrfs (apt-get install btrfs-progs)");
    let is_error = |line: &&str| !line.starts_with('[') && !line.starts_with("Opening");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    (done.status.success(), said.lines().filter(is_error).map(str::to_owned).collect())
}

/// A session changes what it may beside the damaged file, and tries to change that, and to seal and
/// delete it.
fn change(fs: &Filesystem, name: &str) {
    let root = fs.root();
    if let Ok(id) = fs.create(root, b"new", &new(0o644))
        && let Ok(file) = fs.open_file(id)
        && file.write_at(0, &pattern(30_000)).is_ok()
    {
        attempt(file.enable_verity(&VerityOptions::default()));
    }
    let Ok(id) = fs.resolve(name.as_bytes(), Follow::Last) else { return };
    if let Ok(file) = fs.open_file(id) {
        // EPERM, or the leaf cannot be changed.
        let errno = attempt(file.write_at(0, b"x"));
        assert!(matches!(errno, Some(1 | 5 | 30 | 117)), "{name}: {errno:?}");
        attempt(file.truncate(0));
        attempt(file.enable_verity(&VerityOptions::default()));
    }
    let mode = SetAttributes { mode: Some(0o400), ..SetAttributes::default() };
    attempt(fs.set_attributes(id, &mode));
    attempt(fs.link(id, root, b"link"));
    attempt(fs.sync());
    attempt(fs.unlink(root, b"link"));
    attempt(fs.unlink(root, name.as_bytes()));
    attempt(fs.sync());
}

/// Returns why a change has failed, if it has.
fn attempt<T>(done: butternut::Result<T>) -> Option<i32> {
    done.err().map(|error| error.errno())
}

#[test]
fn a_session_that_changes_a_damaged_volume_leaves_it_no_worse() {
    let image = undamaged();
    for damage in Damage::all() {
        let volume = damage.volume(&image);
        let before = judged(&volume);
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let closed = match Filesystem::open_devices(volume.devices(), &options) {
            Ok(fs) => {
                change(&fs, damage.file());
                fs.close()
            }
            // As the kernel, which mounts it for reading only.
            Err(error) => {
                assert_eq!(damage.name, "flag-unknown", "{}", said(&error));
                continue;
            }
        };
        let after = judged(&volume);
        assert!(after.0 || !before.0, "{}: {closed:?}: {:#?}", damage.name, after.1);
        if !before.0 {
            assert_eq!(after, before, "{}", damage.name);
        }
    }
}
