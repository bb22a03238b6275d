//! Random changes of a directory tree through system calls, and a description of a tree to compare.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags,
};

/// The inode number of the empty directory that a snapshot shows in place of a subvolume.
const PLACEHOLDER_INO: u64 = 2;

/// Pseudorandom numbers with a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    /// Returns a number below `count`.
    pub(crate) fn pick(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % count
    }

    fn of<'a>(&mut self, paths: &'a [PathBuf]) -> &'a Path {
        let number = self.pick(paths.len() as u64);
        &paths[usize::try_from(number).unwrap()]
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = match self.pick(4) {
            0 => self.pick(100),
            1 => self.pick(5000),
            2 => 4096 * self.pick(20),
            _ => self.pick(200_000),
        };
        let first = self.pick(250);
        (0..count).map(|at| u8::try_from((at / 7 + first) % 251).unwrap()).collect()
    }

    /// A place in a file, often at a block.
    fn offset(&mut self) -> u64 {
        if self.pick(2) == 0 { self.pick(60) * 4096 } else { self.pick(250_000) }
    }
}

/// What the changes choose from: everything below the root, by kind.
struct Tree {
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    all: Vec<PathBuf>,
}

impl Tree {
    fn of(root: &Path) -> Self {
        let mut tree = Self { dirs: vec![root.to_owned()], files: Vec::new(), all: Vec::new() };
        let mut next = 0;
        while let Some(dir) = tree.dirs.get(next).cloned() {
            next += 1;
            let mut entries: Vec<PathBuf> =
                fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
            entries.sort();
            for path in entries {
                let kind = fs::symlink_metadata(&path).unwrap().file_type();
                if kind.is_dir() {
                    tree.dirs.push(path.clone());
                } else if kind.is_file() {
                    tree.files.push(path.clone());
                }
                tree.all.push(path);
            }
        }
        if tree.files.is_empty() {
            tree.files.push(root.join("none"));
        }
        if tree.all.is_empty() {
            tree.all.push(root.join("none"));
        }
        tree
    }

    /// A name in a random directory, which may exist. There are few names, so that they collide.
    fn name(&self, dice: &mut Dice) -> PathBuf {
        let name = ["a", "b", "c", "d", "e", "f", "g", "a long name of a file"];
        let number = usize::try_from(dice.pick(8)).unwrap();
        dice.of(&self.dirs).join(name[number])
    }
}

/// Makes `count` random changes below `root`. A change that the system refuses is left out.
pub(crate) fn change(root: &Path, dice: &mut Dice, count: u32) {
    for _ in 0..count {
        let tree = Tree::of(root);
        let number = dice.pick(34);
        let done = match number {
            0..=15 => change_names(&tree, dice, number),
            16..=25 => change_data(&tree, dice, number),
            _ => change_attributes(&tree, dice, number),
        };
        drop(done);
    }
}

fn change_names(tree: &Tree, dice: &mut Dice, number: u64) -> std::io::Result<()> {
    let new = tree.name(dice);
    let any = dice.of(&tree.all).to_owned();
    match number {
        // An open of a fifo would wait.
        0 | 1 => File::create_new(&new)?.write_all_at(&dice.bytes(), 0),
        2 | 3 => fs::create_dir(&new),
        4 | 5 => fs::rename(&any, &new),
        6 => fs::rename(dice.of(&tree.dirs), &new),
        7 | 8 => {
            let other = dice.of(&tree.all);
            Ok(rustix::fs::renameat_with(CWD, &any, CWD, other, RenameFlags::EXCHANGE)?)
        }
        9 => fs::hard_link(dice.of(&tree.files), &new),
        10 => fs::remove_file(&any),
        11 => fs::remove_dir(&any),
        12 => {
            // The name again, for another inode.
            fs::remove_file(&any)?;
            fs::create_dir(&any)
        }
        13 => symlink(format!("target {}", dice.pick(9)), &new),
        14 => {
            let kinds = [
                FileType::Fifo,
                FileType::Socket,
                FileType::CharacterDevice,
                FileType::BlockDevice,
            ];
            let kind = kinds[usize::try_from(dice.pick(4)).unwrap()];
            let device = rustix::fs::makedev(
                u32::try_from(dice.pick(300)).unwrap(),
                u32::try_from(dice.pick(5000)).unwrap(),
            );
            Ok(rustix::fs::mknodat(CWD, &new, kind, Mode::from_raw_mode(0o640), device)?)
        }
        _ if dice.pick(4) == 0 => fs::remove_dir_all(&any),
        _ => fs::hard_link(&any, &new),
    }
}

fn change_data(tree: &Tree, dice: &mut Dice, number: u64) -> std::io::Result<()> {
    let path = dice.of(&tree.files).to_owned();
    if !path.exists() {
        return Ok(());
    }
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let (size, offset) = (file.metadata()?.len(), dice.offset());
    match number {
        16 | 17 => file.write_all_at(&dice.bytes(), offset),
        18 => file.write_all_at(&dice.bytes(), size),
        19 => file.set_len(dice.offset()),
        20 => file.set_len(size.saturating_sub(dice.pick(5000))),
        21 | 22 => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(&file, flags, offset, 1 + dice.offset())?)
        }
        23 => {
            let keep = dice.pick(2) == 0;
            let flags = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
            Ok(rustix::fs::fallocate(&file, flags, offset, 1 + dice.offset())?)
        }
        _ => {
            // The kernel shares extents where the ranges are whole blocks.
            let other = File::open(dice.of(&tree.files))?;
            let (mut from, mut to) = (4096 * dice.pick(20), 4096 * dice.pick(40));
            let bytes = 4096 * (1 + usize::try_from(dice.pick(20)).unwrap());
            rustix::fs::copy_file_range(&other, Some(&mut from), &file, Some(&mut to), bytes)?;
            Ok(())
        }
    }
}

fn change_attributes(tree: &Tree, dice: &mut Dice, number: u64) -> std::io::Result<()> {
    let any = dice.of(&tree.all).to_owned();
    let id = |dice: &mut Dice| Some(u32::try_from(dice.pick(3) * 1000).unwrap());
    match number {
        26 => fs::set_permissions(&any, fs::Permissions::from_mode(mode(dice))),
        27 => chown(&any, id(dice), id(dice)),
        28 => {
            let value = vec![b'v'; usize::try_from(dice.pick(900)).unwrap()];
            Ok(rustix::fs::lsetxattr(&any, "user.one", &value, XattrFlags::empty())?)
        }
        29 => {
            let names = ["user.one", "user.two", "system.posix_acl_default", "btrfs.compression"];
            let name = names[usize::try_from(dice.pick(4)).unwrap()];
            Ok(rustix::fs::lremovexattr(dice.of(&tree.all), name)?)
        }
        30 => {
            let dir = dice.of(&tree.dirs);
            let name = ["system.posix_acl_default", "system.posix_acl_access"];
            let name = name[usize::try_from(dice.pick(2)).unwrap()];
            Ok(rustix::fs::lsetxattr(dir, name, &acl(dice), XattrFlags::empty())?)
        }
        31 => {
            let dir = dice.of(&tree.dirs);
            Ok(rustix::fs::lsetxattr(dir, "btrfs.compression", b"zstd", XattrFlags::empty())?)
        }
        32 => {
            // Revision 2 with the effective bit, and cap_net_raw.
            let mut value = [0; 20];
            (value[0], value[3], value[5]) = (1, 2, 32);
            let file = dice.of(&tree.files);
            Ok(rustix::fs::lsetxattr(file, "security.capability", &value, XattrFlags::empty())?)
        }
        _ => {
            let time = |dice: &mut Dice| Timespec {
                tv_sec: i64::try_from(dice.pick(2_000_000_000)).unwrap(),
                tv_nsec: i64::try_from(dice.pick(1_000_000_000)).unwrap(),
            };
            let times = Timestamps { last_access: time(dice), last_modification: time(dice) };
            Ok(rustix::fs::utimensat(CWD, &any, &times, AtFlags::SYMLINK_NOFOLLOW)?)
        }
    }
}

fn mode(dice: &mut Dice) -> u32 {
    let special = [0, 0, 0o4000, 0o2000, 0o1000];
    special[usize::try_from(dice.pick(5)).unwrap()] | u32::try_from(dice.pick(0o1000)).unwrap()
}

/// An ACL with an entry for one user.
fn acl(dice: &mut Dice) -> Vec<u8> {
    let permissions = u16::try_from(dice.pick(8)).unwrap();
    let no_id = u32::MAX;
    let entries = [
        (0x01_u16, 7, no_id),
        (0x02, permissions, 1000),
        (0x04, 5, no_id),
        (0x10, 7, no_id),
        (0x20, permissions, no_id),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Describes every file below `root` in one line: all that a stream transfers.
pub(crate) fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut groups = HashMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let at = root.join(&path);
        let meta = fs::symlink_metadata(&at).unwrap();
        if meta.ino() == PLACEHOLDER_INO {
            continue;
        }
        let kind = meta.file_type();
        let mut line = format!(
            "{:o} {}:{} atime {}.{} mtime {}.{}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.atime(),
            meta.atime_nsec(),
            meta.mtime(),
            meta.mtime_nsec(),
        );
        if kind.is_char_device() || kind.is_block_device() {
            write!(line, " device {:#x}", meta.rdev()).unwrap();
        }
        line += &xattrs(&at);
        if kind.is_dir() {
            let mut below: Vec<OsString> =
                fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            // The first name in this order stands for the inode.
            below.sort_by(|a, b| b.cmp(a));
            pending.extend(below.iter().map(|name| path.join(name)));
        } else {
            let first = groups.entry(meta.ino()).or_insert_with(|| path.clone());
            write!(line, " size {} as {}", meta.len(), first.display()).unwrap();
        }
        if kind.is_file() {
            write!(line, " data {:016x}", hash(&at)).unwrap();
        }
        if kind.is_symlink() {
            write!(line, " -> {}", fs::read_link(&at).unwrap().display()).unwrap();
        }
        found.insert(path, line);
    }
    found
}

fn xattrs(path: &Path) -> String {
    let mut list = vec![0; 65536];
    let bytes = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut all = BTreeMap::new();
    for name in names {
        let name = OsString::from_vec(name.to_vec());
        let mut value = vec![0; 65536];
        let bytes = rustix::fs::lgetxattr(path, name.as_os_str(), &mut value[..]).unwrap();
        let value = value[..bytes].escape_ascii().to_string();
        // Spaces separate the words of a description.
        all.insert(name, value.replace(' ', "\\x20"));
    }
    let mut text = String::new();
    for (name, value) in all {
        write!(text, " {}={value}", name.display()).unwrap();
    }
    text
}

fn hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    Hasher::write(&mut hasher, &bytes);
    hasher.finish()
}
