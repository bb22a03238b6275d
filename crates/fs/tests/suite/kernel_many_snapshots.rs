//! Many snapshots of one tree that goes on changing, with random deletions and writes, also in the
//! snapshots. At the end `btrfs check` finds every reference of every extent exact, and each
//! snapshot has the contents that its source had.
//!
//! `BUTTERNUT_LONG=1` makes 1,000 snapshots instead of 50; `BUTTERNUT_SEED=N` takes one sequence of
//! changes. Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they
//! are left out.

use crate::kernel_compare::compare;
use crate::kernel_history::Dice;
use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::{
    DevicePath, FIRST_ENTRY, File, FileId, Filesystem, Follow, MountOptions, NewInode,
    SnapshotAccess,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const FILES: u64 = 120;
/// Changes before each snapshot.
const CHANGES: u32 = 12;
/// Number of snapshots that exist at a time, on average.
const KEPT: u64 = 150;
/// Maximum length of a file, in bytes.
const FILE_BYTES_MAX: u64 = 200_000;

/// The files of a subvolume. Snapshots share the contents, as they do on disk.
type Files = BTreeMap<String, Arc<Vec<u8>>>;

struct Snapshot {
    name: String,
    is_writable: bool,
    files: Files,
}

struct History {
    image: KernelImage,
    /// `None` while the volume is closed.
    filesystem: Option<Filesystem>,
    dice: Dice,
    live: Files,
    snapshots: Vec<Snapshot>,
    made: usize,
}

fn open(image: &KernelImage, read_only: bool) -> Filesystem {
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    let options = MountOptions::default().read_only(read_only).commit_seconds(0);
    Filesystem::open(&devices, &options).unwrap()
}

/// Changes one file of a subvolume, and of the model.
fn change(filesystem: &Filesystem, dice: &mut Dice, subvolume: &str, files: &mut Files) {
    let name = format!("f{}", dice.pick(FILES));
    let path = format!("{subvolume}/{name}");
    let open = |path: &str| -> File {
        let new = NewInode::new(0o644);
        let file = filesystem.open_path(path.as_bytes());
        file.unwrap_or_else(|_| filesystem.create_path(path.as_bytes(), &new).unwrap())
    };
    let mut bytes = files.get(&name).map(|bytes| bytes.to_vec()).unwrap_or_default();
    match dice.pick(10) {
        0 => {
            if files.remove(&name).is_some() {
                let dir = filesystem.resolve(subvolume.as_bytes(), Follow::Last).unwrap();
                filesystem.unlink(dir, name.as_bytes()).unwrap();
            }
            return;
        }
        1 => {
            let length = dice.pick(FILE_BYTES_MAX);
            open(&path).truncate(length).unwrap();
            bytes.resize(usize::try_from(length).unwrap(), 0);
        }
        2 => {
            let other = format!("f{}", dice.pick(FILES));
            let Some(source) = files.get(&other).filter(|_| other != name) else { return };
            let (target, from) = (open(&path), open(&format!("{subvolume}/{other}")));
            target.truncate(0).unwrap();
            if !source.is_empty() {
                target.clone_range(0, &from, 0, 0).unwrap();
            }
            bytes = source.to_vec();
        }
        _ => {
            let (at, length) = (dice.pick(FILE_BYTES_MAX / 2), 1 + dice.pick(30_000));
            let byte = u8::try_from(dice.pick(256)).unwrap();
            let (at, length) = (usize::try_from(at).unwrap(), usize::try_from(length).unwrap());
            bytes.resize(bytes.len().max(at + length), 0);
            bytes[at..at + length].fill(byte);
            let written = vec![byte; length];
            open(&path).write_all_at(u64::try_from(at).unwrap(), &written).unwrap();
        }
    }
    files.insert(name, Arc::new(bytes));
}

impl History {
    fn new(seed: u64) -> Self {
        let image = KernelImage::make(1, &[], "", "btrfs -q subvolume create live");
        let filesystem = Some(open(&image, false));
        let (live, snapshots) = (Files::new(), Vec::new());
        let mut history =
            Self { image, filesystem, dice: Dice::new(seed), live, snapshots, made: 0 };
        for _ in 0..300 {
            let History { filesystem, dice, live, .. } = &mut history;
            change(filesystem.as_ref().unwrap(), dice, "live", live);
        }
        history
    }

    fn filesystem(&self) -> &Filesystem {
        self.filesystem.as_ref().unwrap()
    }

    fn close(&mut self) {
        self.filesystem.take().unwrap().close().unwrap();
    }

    fn step(&mut self) {
        for _ in 0..CHANGES {
            let writable = self.snapshots.iter_mut().filter(|snapshot| snapshot.is_writable);
            let mut writable: Vec<_> = writable.collect();
            let count = u64::try_from(writable.len()).unwrap();
            let (name, files) = if count > 0 && self.dice.pick(4) == 0 {
                let at = usize::try_from(self.dice.pick(count)).unwrap();
                let snapshot = &mut *writable[at];
                (snapshot.name.as_str(), &mut snapshot.files)
            } else {
                ("live", &mut self.live)
            };
            change(self.filesystem.as_ref().unwrap(), &mut self.dice, name, files);
        }
        self.snapshot();
        let count = u64::try_from(self.snapshots.len()).unwrap();
        // Each deletion frees what only that snapshot still had.
        if self.dice.pick(2 * KEPT) < count {
            let at = usize::try_from(self.dice.pick(count)).unwrap();
            let deleted = self.snapshots.remove(at);
            let root = self.filesystem().root();
            self.filesystem().delete_subvolume(root, deleted.name.as_bytes()).unwrap();
        }
    }

    /// Makes a snapshot of the tree, or of one of its snapshots.
    fn snapshot(&mut self) {
        let count = u64::try_from(self.snapshots.len()).unwrap();
        let (source, files) = if count > 0 && self.dice.pick(8) == 0 {
            let at = usize::try_from(self.dice.pick(count)).unwrap();
            (self.snapshots[at].name.clone(), self.snapshots[at].files.clone())
        } else {
            ("live".to_owned(), self.live.clone())
        };
        self.made += 1;
        let (name, is_writable) = (format!("snap{}", self.made), self.dice.pick(3) == 0);
        let access = if is_writable { SnapshotAccess::ReadWrite } else { SnapshotAccess::ReadOnly };
        let id = self.filesystem().resolve(source.as_bytes(), Follow::Last).unwrap().subvolume;
        let root = self.filesystem().root();
        self.filesystem().snapshot(id, root, name.as_bytes(), access).unwrap();
        self.snapshots.push(Snapshot { name, is_writable, files });
    }

    /// Checks the volume, and compares every snapshot with the model.
    fn judge(&self) {
        let device = self.image.devices[0].to_str().unwrap();
        run("btrfs", &["check", "--check-data-csum", device]);
        let filesystem = open(&self.image, true);
        let live = std::iter::once(("live", &self.live));
        let all = self.snapshots.iter().map(|snapshot| (snapshot.name.as_str(), &snapshot.files));
        for (name, files) in live.chain(all) {
            let root = filesystem.resolve(name.as_bytes(), Follow::Last).unwrap();
            assert_eq!(names(&filesystem, root), files.keys().cloned().collect::<Vec<_>>());
            for (file, want) in files {
                let file = filesystem.open_path(format!("{name}/{file}").as_bytes()).unwrap();
                let mut have = vec![0; usize::try_from(file.len()).unwrap()];
                file.read_exact_at(0, &mut have).unwrap();
                assert!(have == **want, "{name}/{file:?}");
            }
        }
    }
}

fn names(filesystem: &Filesystem, dir: FileId) -> Vec<String> {
    let entries = filesystem.read_dir(dir, FIRST_ENTRY).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| String::from_utf8(entry.unwrap().name).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn many_snapshots_leave_exact_references() {
    if !kernel_is_here() {
        return;
    }
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seed = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut history = History::new(seed.unwrap_or(1));
    let count = if is_long { 1000 } else { 50 };
    for number in 1..=count {
        history.step();
        if number % (count / 5) == 0 {
            // Deletions are not finished.
            history.close();
            history.filesystem = Some(open(&history.image, false));
        }
    }
    history.filesystem().clean_subvolumes().unwrap();
    history.close();
    history.judge();
    let mount = history.image.mount("ro");
    let filesystem = open(&history.image, true);
    let newest = &history.snapshots.last().unwrap().name;
    for name in ["live", newest] {
        let root = filesystem.resolve(name.as_bytes(), Follow::Last).unwrap();
        compare(&filesystem, root, &mount.path().join(name));
    }
}
