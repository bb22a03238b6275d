//! Random operations on names, done by the kernel on one volume and by this crate on another. The
//! items of both subvolumes must be equal, and `btrfs check` and the kernel must find no error.
//!
//! Needs root and loop devices; `BUTTERNUT_NO_KERNEL=1` leaves these tests out and reports that.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::manual_assert,
    reason = "a test panics where it fails, and says what it left out"
)]

#[path = "../../fs/tests/kernel_image/mod.rs"]
mod kernel_image;
mod plain;

use butternut_format::dir::DirEntries;
use butternut_format::file_extent::FileExtent;
use butternut_format::inode::{FileKind, Inode, Time};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Generation, TreeId};
use butternut_names::NamesError;
use kernel_image::{KernelImage, kernel_is_here, run};
use plain::{Plain, writable};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Operations of one run.
const STEPS: usize = 2500;

/// Numbers that look random, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn pick(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % count
    }

    fn path(&mut self, names: &[String]) -> String {
        // Three that are always there, and two that come and go.
        let dirs = ["", "p/", "q/", "p/r/", "a/", "p/b/"];
        format!("{}{}", dirs[self.pick(6)], names[self.pick(names.len())])
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create { path: String, kind: FileKind, permissions: u32 },
    Symlink { path: String, text: String },
    Link { from: String, to: String },
    Remove { path: String },
    Rename { from: String, to: String, how: RenameFlags },
    Chmod { path: String, permissions: u32 },
    SetXattr { path: String, name: String, value: String },
    RemoveXattr { path: String, name: String },
    Temporary { to: Option<String> },
}

const KINDS: [FileKind; 6] = [
    FileKind::File,
    FileKind::File,
    FileKind::Directory,
    FileKind::Directory,
    FileKind::CharDevice,
    FileKind::Fifo,
];

/// Names of which many have one hash; see the tests inside the crate for how they are found.
fn names() -> Vec<String> {
    let tails = [
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "caaaccccaccacccaaaccaccccacaaaaacaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "acaaaccccaccacccaaaccaccccacaaaaacaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "ccaacaaaccaccaacaacaccaaacccaaaaccaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    let plain = ["a", "b", "c", "x", "y", "z"];
    tails.iter().chain(&plain).map(ToString::to_string).collect()
}

/// Attributes, of which three have one hash.
fn attribute(dice: &mut Dice) -> String {
    let names = [
        "user.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "user.caaaccccaccacccaaaccaccccacaaaaacaaaaaaaaaaaa",
        "user.acaaaccccaccacccaaaccaccccacaaaaacaaaaaaaaaaa",
        "user.a",
    ];
    names[dice.pick(4)].to_owned()
}

fn roll(dice: &mut Dice) -> Step {
    let names = names();
    let permissions = u32::try_from(dice.pick(0o1000)).unwrap();
    let path = dice.path(&names);
    match dice.pick(24) {
        0..5 => Step::Create { path, kind: KINDS[dice.pick(6)], permissions },
        5 => Step::Symlink { path, text: "t".repeat(1 + dice.pick(200)) },
        6..9 => Step::Link { from: path, to: dice.path(&names) },
        9..12 => Step::Remove { path },
        12..16 => {
            let hows = [
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
                RenameFlags::WHITEOUT,
            ];
            Step::Rename { from: path, to: dice.path(&names), how: hows[dice.pick(4)] }
        }
        16 => Step::Chmod { path, permissions },
        17..20 => {
            let name = attribute(dice);
            let lengths = [0, 5, 200, 16_300];
            Step::SetXattr { path, name, value: "v".repeat(lengths[dice.pick(4)]) }
        }
        20..22 => Step::RemoveXattr { path, name: attribute(dice) },
        _ => Step::Temporary { to: (dice.pick(3) > 0).then_some(path) },
    }
}

/// Performs the step with the kernel.
fn by_kernel(root: &Path, step: &Step) -> Result<(), Errno> {
    let at = |path: &str| root.join(path);
    match step {
        Step::Create { path, kind, permissions } => {
            let (path, mode) = (at(path), Mode::from_raw_mode(*permissions));
            let node = |file_type, device| fs::mknodat(CWD, &path, file_type, mode, device);
            match kind {
                FileKind::Directory => fs::mkdir(&path, mode),
                FileKind::CharDevice => node(FileType::CharacterDevice, fs::makedev(5, 300)),
                FileKind::Fifo => node(FileType::Fifo, 0),
                FileKind::File => node(FileType::RegularFile, 0),
                FileKind::BlockDevice | FileKind::Socket | FileKind::Symlink => unreachable!(),
            }
        }
        Step::Symlink { path, text } => fs::symlink(text.as_str(), at(path)),
        Step::Link { from, to } => fs::link(at(from), at(to)),
        Step::Remove { path } => {
            let removed = fs::unlinkat(CWD, at(path), AtFlags::empty());
            if removed == Err(Errno::ISDIR) {
                return fs::unlinkat(CWD, at(path), AtFlags::REMOVEDIR);
            }
            removed
        }
        Step::Rename { from, to, how } => fs::renameat_with(CWD, at(from), CWD, at(to), *how),
        Step::Chmod { path, permissions } => {
            if at(path).is_symlink() {
                return Err(Errno::OPNOTSUPP);
            }
            fs::chmod(at(path), Mode::from_raw_mode(*permissions))
        }
        Step::SetXattr { path, name, value } => {
            fs::lsetxattr(at(path), name.as_str(), value.as_bytes(), XattrFlags::empty())
        }
        Step::RemoveXattr { path, name } => fs::lremovexattr(at(path), name.as_str()),
        Step::Temporary { to } => temporary(root, to.as_ref().map(|to| at(to))),
    }
}

fn temporary(root: &Path, to: Option<PathBuf>) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = fs::open(root, flags, Mode::from_raw_mode(0o600))?;
    to.map_or(Ok(()), |to| fs::linkat(&file, "", CWD, to, AtFlags::EMPTY_PATH))
}

/// Performs the step with this crate.
fn by_us(plain: &mut Plain, step: &Step) -> Result<(), NamesError> {
    match step {
        Step::Create { path, kind, permissions } => plain.create(path, *kind, *permissions),
        Step::Symlink { path, text } => plain.symlink(path, text),
        Step::Link { from, to } => plain.link(from, to),
        Step::Remove { path } => plain.remove(path),
        Step::Rename { from, to, how } if how.contains(RenameFlags::EXCHANGE) => {
            plain.exchange(from, to)
        }
        Step::Rename { from, to, how } => {
            plain.rename(from, to, how.contains(RenameFlags::WHITEOUT))
        }
        Step::Chmod { path, permissions } => plain.chmod(path, *permissions),
        Step::SetXattr { path, name, value } => plain.set_xattr(path, name, value),
        Step::RemoveXattr { path, name } => plain.remove_xattr(path, name),
        Step::Temporary { to } => plain.temporary(to.as_deref()),
    }
}

/// An item without what differs between two volumes that had the same operations: when and in which
/// transaction.
fn timeless(key: Key, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match key.item_type {
        ItemType::INODE_ITEM => {
            let inode = Inode::check(data).unwrap();
            let (generation, time) = (Generation(0), Time::default());
            let inode = Inode { generation, transid: generation, sequence: 0, ..inode };
            let inode = Inode { atime: time, ctime: time, mtime: time, otime: time, ..inode };
            bytes.extend(inode.to_bytes());
        }
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            for entry in DirEntries::new(data) {
                let mut entry = entry.unwrap();
                entry.transid = Generation(0);
                entry.append_to(&mut bytes);
            }
        }
        ItemType::EXTENT_DATA => {
            let mut extent = FileExtent::check(data, key.offset).unwrap();
            extent.generation = Generation(0);
            extent.append_to(&mut bytes);
        }
        _ => bytes.extend_from_slice(data),
    }
    bytes
}

fn items(image: &Path) -> Vec<(Key, Vec<u8>)> {
    let tree = plain::readable(image).tree(TreeId::FS).unwrap().unwrap();
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN).unwrap();
    let mut items = Vec::new();
    while let Some((key, data)) = cursor.item_parts() {
        items.push((key, timeless(key, data)));
        cursor.advance().unwrap();
    }
    items
}

/// Returns what a mount shows: path, mode, links, size, device, attributes.
fn listing(root: &Path) -> BTreeSet<String> {
    let script = "find . -printf '%p %m %n %s %y %l %i\\n'; getfattr -R -h -d -m - . 2>/dev/null";
    let script = format!("cd '{}'; {script}", root.display());
    run("bash", &["-c", &script]).lines().map(ToOwned::to_owned).collect()
}

fn check(image: &Path) {
    run("btrfs", &["check", "--check-data-csum", &image.to_string_lossy()]);
}

/// Returns whether the error of this crate matches that of the kernel.
fn agrees(ours: &NamesError, kernel: Errno) -> bool {
    match kernel {
        Errno::NOSPC => matches!(ours, NamesError::AttributeTooLarge { .. }),
        Errno::MLINK => matches!(ours, NamesError::TooManyLinks),
        Errno::OVERFLOW => matches!(ours, NamesError::Crowded),
        _ => false,
    }
}

/// Random steps below three directories.
fn rolled(seed: u64) -> Vec<Step> {
    let mut dice = Dice(seed);
    let (kind, permissions) = (FileKind::Directory, 0o755);
    let first = ["p", "q", "p/r"];
    let first = first.map(|path| Step::Create { path: path.into(), kind, permissions });
    first.into_iter().chain((0..STEPS).map(|_| roll(&mut dice))).collect()
}

/// The initial content of both volumes, which the kernel writes.
#[derive(Clone, Copy, Default)]
struct Start<'a> {
    mkfs: &'a [&'a str],
    script: &'a str,
}

/// Performs the steps on both volumes. Returns how many changed something.
fn play(steps: &[Step], start: Start<'_>, seed: u64) -> usize {
    let [theirs, mine] = [(); 2].map(|()| KernelImage::make(1, start.mkfs, "", start.script));
    let forest = writable(&mine.devices[0]);
    let mut plain = Plain::new(&forest);
    let mut done = 0;
    let mount = theirs.mount("noatime");
    for (number, step) in steps.iter().enumerate() {
        match by_kernel(mount.path(), step) {
            Ok(()) => {
                done += 1;
                let ours = by_us(&mut plain, step);
                ours.unwrap_or_else(|error| panic!("seed {seed}, {number}: {step:?}: {error:?}"));
            }
            // Where it is names that are in the way, both say so.
            Err(refused @ (Errno::NOSPC | Errno::MLINK | Errno::OVERFLOW)) => {
                let ours = by_us(&mut plain, step).unwrap_err();
                assert!(agrees(&ours, refused), "seed {seed}, {number}: {step:?}: {ours:?}");
            }
            // The file was made all the same, and has gone.
            Err(_) if matches!(step, Step::Temporary { .. }) => plain.temporary(None).unwrap(),
            Err(_) => {}
        }
        if number % 97 == 0 {
            forest.commit().unwrap();
        }
    }
    forest.commit().unwrap();
    drop((plain, forest));
    drop(mount);
    check(&mine.devices[0]);
    let (ours, theirs_items) = (items(&mine.devices[0]), items(&theirs.devices[0]));
    for (ours, theirs) in ours.iter().zip(&theirs_items) {
        assert_eq!(ours, theirs, "seed {seed}");
    }
    assert_eq!(ours.len(), theirs_items.len(), "seed {seed}");
    let shown = listing(theirs.mount("ro").path());
    let mount = mine.mount("rw");
    assert_eq!(listing(mount.path()), shown);
    // And the kernel goes on from there.
    let script = format!("cd '{}'; rm -rf p q a b c x y z", mount.path().display());
    run("bash", &["-c", &script]);
    drop(mount);
    check(&mine.devices[0]);
    done
}

fn play_rolled(seed: u64, start: Start<'_>) {
    let done = play(&rolled(seed), start, seed);
    assert!(done > STEPS / 5, "only {done} of {STEPS} steps did something");
}

fn seeds() -> Range<u64> {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some();
    1..if is_long { 100 } else { 5 }
}

#[test]
fn the_same_operations_leave_the_items_that_the_kernel_leaves() {
    if !kernel_is_here() {
        return;
    }
    rustix::process::umask(Mode::empty());
    for seed in seeds() {
        play_rolled(seed, Start::default());
    }
}

#[test]
fn the_same_holds_with_small_nodes_and_old_features() {
    if !kernel_is_here() {
        return;
    }
    rustix::process::umask(Mode::empty());
    let of = |mkfs| Start { mkfs, script: "" };
    play_rolled(11, of(&["-n", "4096"]));
    play_rolled(12, of(&["-O", "^extref,^no-holes,^free-space-tree,^block-group-tree"]));
}

#[test]
fn references_run_over_and_come_back_as_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    rustix::process::umask(Mode::empty());
    let name = |number: usize| format!("{number:0>100}");
    let (kind, permissions) = (FileKind::File, 0o644);
    let mut steps = vec![Step::Create { path: name(0), kind, permissions }];
    steps.extend((1..120).map(|number| Step::Link { from: name(0), to: name(number) }));
    steps.extend((1..120).step_by(3).map(|number| Step::Remove { path: name(number) }));
    let how = RenameFlags::empty();
    steps.extend((2..120).step_by(5).map(|number| {
        let to = name(number).replace("00", "x");
        Step::Rename { from: name(number), to, how }
    }));
    let of = |mkfs| Start { mkfs, script: "" };
    let done = play(&steps, of(&["-n", "4096"]), 0);
    assert!(done > 170, "{done}");
    // Without the second form, some of the links are too many.
    let done = play(&steps, of(&["-n", "4096", "-O", "^extref"]), 0);
    assert!((40..80).contains(&done), "{done}");
}

/// A volume with snapshots: names whose blocks two snapshots share, one of them changed since.
const PAST: &str = r#"
mkdir p q p/r old; touch p/x q/y
for i in $(seq 1500); do touch "old/file number $i"; done
for i in $(seq 300); do ln old/"file number $i" p/"link number $i"; done
for i in $(seq 100); do ln -s target$i q/symlink$i; setfattr -n user.n -v $i q/y; done
btrfs -q subvolume create sub; touch sub/inside
sync; btrfs -q subvolume snapshot -r . first
for i in $(seq 200); do mv old/"file number $i" q/moved$i; done
sync; btrfs -q subvolume snapshot . second; rm second/q/moved1*
"#;

#[test]
fn names_that_snapshots_share_are_changed_in_one_of_them_only() {
    if !kernel_is_here() {
        return;
    }
    rustix::process::umask(Mode::empty());
    for (seed, node_bytes) in [(21, "4096"), (22, "16384")] {
        let start = Start { mkfs: &["-n", node_bytes], script: PAST };
        let mut steps = rolled(seed);
        for number in 1..=300 {
            let (from, to) = (format!("p/link number {number}"), format!("q/r{number}"));
            let how = RenameFlags::empty();
            steps.insert(number * 5, Step::Rename { from, to, how });
            let path = format!("old/file number {}", number * 5);
            steps.insert(number * 7, Step::Remove { path });
        }
        assert!(play(&steps, start, seed) > 1000);
    }
}

#[test]
fn a_subvolume_that_we_move_hangs_at_its_new_place() {
    if !kernel_is_here() {
        return;
    }
    let script = "mkdir to; btrfs -q subvolume create sub; echo text > sub/file; mkdir full";
    let image = KernelImage::make(1, &[], "", script);
    let forest = writable(&image.devices[0]);
    let mut plain = Plain::new(&forest);
    plain.rename_subvolume("sub", "to/moved").unwrap();
    forest.commit().unwrap();
    plain.rename_subvolume("to/moved", "to/again").unwrap();
    forest.commit().unwrap();
    drop((plain, forest));
    check(&image.devices[0]);
    let mount = image.mount("rw");
    let root = mount.path();
    assert_eq!(std::fs::read(root.join("to/again/file")).unwrap(), b"text\n");
    let listed = run("btrfs", &["subvolume", "list", &root.to_string_lossy()]);
    assert!(listed.ends_with("path to/again"), "{listed}");
    let again = root.join("to/again").to_string_lossy().into_owned();
    run("btrfs", &["subvolume", "delete", &again]);
    assert!(!root.join("to/again").exists());
}
