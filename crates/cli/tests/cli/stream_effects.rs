//! What a stream does, as `receive --dump` prints it: its commands are applied to a list of the
//! entries that the receiver has. Two streams that bring one snapshot to another have the same
//! effect, however their senders order and split what they send.
//!
//! These differences between two streams are no differences of their effects:
//!
//! 1. The order of commands, names that exist meanwhile, and where a range is split.
//! 2. Whether data is written, written compressed, or cloned.
//! 3. Data and attributes that are sent again as they are: a block is the same whether it is
//!    written or kept from the parent, and so is an attribute.
//! 4. The times of directories: the kernel does not send all of them.
//! 5. Inode flags, which no receiver sets.

use super::command::run;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;

/// `FALLOC_FL_KEEP_SIZE` and `FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE_KEEP_SIZE: &str = "3";

/// What the data of a block is, after the commands so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    /// That of the parent's file.
    Kept,
    Zero,
    Sent,
}

/// An inode.
#[derive(Clone)]
struct Node {
    /// The inode number in the parent, or what the command that makes it says.
    is: String,
    is_directory: bool,
    /// What the commands have set.
    set: BTreeMap<String, String>,
    /// The path of the parent's file.
    from: Option<PathBuf>,
    size: u64,
    blocks: Vec<Block>,
    /// The bytes of the parent's file that no command has truncated.
    kept: u64,
}

/// An entry of the result.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    is: String,
    set: BTreeMap<String, String>,
    size: u64,
    /// Blocks with other data than in the snapshot that was sent.
    wrong: Vec<usize>,
    /// The first name of the inode.
    first: PathBuf,
}

/// The receiving subvolume.
struct Receiver {
    nodes: Vec<Node>,
    names: BTreeMap<PathBuf, usize>,
}

/// Asserts that two dumps have the same effect on the parent: they make the snapshot `sent`.
pub(crate) fn assert_equal_effects(dumps: [&str; 2], parent: Option<&Path>, sent: &Path) {
    let [one, other] = dumps.map(|dump| {
        let mut receiver = Receiver::new(parent);
        for line in dump.lines() {
            receiver.apply(line);
        }
        receiver.result(parent, sent)
    });
    for (path, entry) in &one {
        assert_eq!(other.get(path), Some(entry), "{}: {}", sent.display(), path.display());
        let shown = sent.join(path).display().to_string();
        assert!(entry.wrong.is_empty(), "{shown}: blocks {:?} are not sent", entry.wrong);
    }
    assert_eq!(one.len(), other.len(), "{}: entries are left over", sent.display());
}

impl Node {
    fn new(is: String, is_directory: bool) -> Self {
        let set = BTreeMap::new();
        Self { is, is_directory, set, from: None, size: 0, blocks: Vec::new(), kept: 0 }
    }

    fn resize(&mut self, size: u64) {
        self.size = size;
        self.kept = self.kept.min(size);
        self.blocks.resize(usize::try_from(size).unwrap().div_ceil(BLOCK), Block::Zero);
    }

    fn send(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        if end > self.size {
            self.resize(end);
        }
        let (first, last) = (usize::try_from(offset).unwrap(), usize::try_from(end).unwrap());
        self.blocks[first / BLOCK..last.div_ceil(BLOCK)].fill(Block::Sent);
    }

    /// Makes a hole of whole blocks. In the last one, it may end where the file will end.
    fn punch(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        assert!(offset.is_multiple_of(BLOCK as u64), "a hole at {offset}");
        let block = |at: u64| usize::try_from(at).unwrap().div_ceil(BLOCK).min(self.blocks.len());
        let (first, last) = (block(offset), block(end));
        self.blocks[first..last].fill(Block::Zero);
    }

    /// Returns the blocks whose data is not that of the file `sent`.
    fn wrong(&self, parent: Option<&Path>, sent: &Path) -> Vec<usize> {
        if !sent.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            return Vec::new();
        }
        let want = fs::read(sent).unwrap();
        let from = parent.zip(self.from.as_ref()).map(|(root, path)| root.join(path));
        let mut have = from.map(|path| fs::read(path).unwrap()).unwrap_or_default();
        have.truncate(usize::try_from(self.kept).unwrap());
        have.resize(want.len(), 0);
        let all = want.chunks(BLOCK).zip(have.chunks(BLOCK)).zip(&self.blocks).enumerate();
        let wrong = all.filter(|(_, ((want, have), block))| match block {
            Block::Kept => want != have,
            Block::Zero => want.iter().any(|byte| *byte != 0),
            Block::Sent => false,
        });
        wrong.map(|(number, _)| number).collect()
    }
}

impl Receiver {
    /// Lists what the parent has. A full stream begins with an empty directory.
    fn new(parent: Option<&Path>) -> Self {
        let mut receiver = Self { nodes: Vec::new(), names: BTreeMap::new() };
        let Some(root) = parent else {
            receiver.insert(PathBuf::new(), Node::new("new mkdir".into(), true));
            return receiver;
        };
        let (mut pending, mut inodes) = (vec![PathBuf::new()], BTreeMap::new());
        let mtimes = mtimes(root);
        while let Some(path) = pending.pop() {
            let meta = root.join(&path).symlink_metadata().unwrap();
            // The empty directory in the place of a subvolume is not sent.
            if meta.is_dir() && meta.ino() == 2 {
                continue;
            }
            if meta.is_dir() {
                let names = fs::read_dir(root.join(&path)).unwrap();
                pending.extend(names.map(|entry| path.join(entry.unwrap().file_name())));
            }
            let number = *inodes.entry(meta.ino()).or_insert_with(|| {
                let mut node = Node::new(format!("inode {}", meta.ino()), meta.is_dir());
                if meta.is_file() {
                    node.resize(meta.len());
                    node.blocks.fill(Block::Kept);
                    (node.from, node.kept) = (Some(path.clone()), meta.len());
                }
                node.set = attributes(&root.join(&path));
                if !meta.is_dir() {
                    node.set.insert("mtime".into(), mtimes[&path].clone());
                }
                receiver.nodes.push(node);
                receiver.nodes.len() - 1
            });
            receiver.names.insert(path, number);
        }
        receiver
    }

    fn insert(&mut self, path: PathBuf, node: Node) {
        self.nodes.push(node);
        self.names.insert(path, self.nodes.len() - 1);
    }

    /// Applies a line of a dump.
    fn apply(&mut self, line: &str) {
        let words = words(line);
        let (verb, path) = (words[0].as_str(), inside(&words[1]));
        let value = |key: &str| {
            let value = words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {key}: {line}"))
        };
        let number = |key: &str| value(key).parse::<u64>().unwrap();
        match verb {
            "subvol" | "snapshot" => return,
            "mkfile" | "mkdir" | "mknod" | "mkfifo" | "mksock" | "symlink" => {
                let is = ["new", verb].into_iter().chain(words[2..].iter().map(String::as_str));
                let is = is.collect::<Vec<_>>().join(" ");
                return self.insert(path, Node::new(is, verb == "mkdir"));
            }
            "rename" => return self.rename(&path, &inside(value("dest"))),
            "link" => {
                let node = self.names[Path::new(value("dest"))];
                self.names.insert(path, node);
                return;
            }
            "unlink" | "rmdir" => {
                assert!(self.names.remove(&path).is_some(), "no such entry: {line}");
                return;
            }
            _ => {}
        }
        let node = self.names.get(&path).unwrap_or_else(|| panic!("no such entry: {line}"));
        let node = &mut self.nodes[*node];
        match verb {
            "write" | "clone" | "update_extent" => node.send(number("offset"), number("len")),
            "encoded_write" => node.send(number("offset"), number("unencoded_file_len")),
            "fallocate" => {
                assert_eq!(value("mode"), PUNCH_HOLE_KEEP_SIZE, "{line}");
                node.punch(number("offset"), number("len"));
            }
            "truncate" => node.resize(number("size")),
            "chmod" => drop(node.set.insert("mode".into(), value("mode").into())),
            "chown" => {
                let owner = format!("{}:{}", value("uid"), value("gid"));
                node.set.insert("owner".into(), owner);
                // As chown(2) does.
                node.set.remove("xattr security.capability");
            }
            "utimes" => {
                if !node.is_directory {
                    node.set.insert("mtime".into(), value("mtime").into());
                }
            }
            "set_xattr" => {
                let text = words[3..].join(" ");
                node.set.insert(format!("xattr {}", value("name")), text);
            }
            "fileattr" => {}
            "remove_xattr" => drop(node.set.remove(&format!("xattr {}", value("name")))),
            _ => panic!("{line}"),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let moved: Vec<PathBuf> =
            self.names.keys().filter(|path| path.starts_with(from)).cloned().collect();
        assert!(!moved.is_empty(), "{} is not there", from.display());
        for path in moved {
            let rest = path.strip_prefix(from).unwrap();
            let new = if rest == Path::new("") { to.to_owned() } else { to.join(rest) };
            let node = self.names.remove(&path).unwrap();
            self.names.insert(new, node);
        }
    }

    fn result(&self, parent: Option<&Path>, sent: &Path) -> BTreeMap<PathBuf, Entry> {
        let mut first = BTreeMap::new();
        for (path, node) in &self.names {
            first.entry(*node).or_insert(path);
        }
        let entry = |(path, number): (&PathBuf, &usize)| {
            let node = &self.nodes[*number];
            let Node { is, set, size, .. } = node.clone();
            let wrong = node.wrong(parent, &sent.join(path));
            (path.clone(), Entry { is, set, size, wrong, first: first[number].clone() })
        };
        self.names.iter().map(entry).collect()
    }
}

/// Returns the attributes of an entry of the parent, as a dump prints them.
fn attributes(path: &Path) -> BTreeMap<String, String> {
    let meta = path.symlink_metadata().unwrap();
    let mut set = BTreeMap::new();
    set.insert("mode".into(), format!("{:o}", meta.mode() & 0o7777));
    set.insert("owner".into(), format!("{}:{}", meta.uid(), meta.gid()));
    let mut list = vec![0; 65536];
    let bytes = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    for name in list[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let name = std::ffi::OsStr::from_bytes(name);
        let bytes = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        let text = format!("{} len={bytes}", printed(&value[..bytes]));
        set.insert(format!("xattr {}", name.display()), text.trim_start().to_owned());
    }
    set
}

/// Returns the mtimes of all entries that are no directories, as a dump prints them.
fn mtimes(root: &Path) -> BTreeMap<PathBuf, String> {
    let format = "%P\\n%TY-%Tm-%TdT%TH:%TM:%TS\\n";
    let words = [root.as_os_str(), "-printf".as_ref(), format.as_ref()];
    let printed = run("find", &words);
    let lines: Vec<&str> = printed.lines().collect();
    let pairs = lines.chunks(2).map(|pair| {
        let second = pair[1].split('.').next().unwrap();
        (PathBuf::from(pair[0]), format!("{second}+0000"))
    });
    pairs.collect()
}

/// Returns a value as a dump prints it, without the backslashes before spaces and backslashes.
fn printed(bytes: &[u8]) -> String {
    let letter = |byte: &u8| match byte {
        7..=13 => format!("\\{}", char::from(b"abtnvfr"[usize::from(byte - 7)])),
        27 => "\\e".to_owned(),
        b' ' => " ".to_owned(),
        _ if byte.is_ascii_graphic() => char::from(*byte).to_string(),
        _ => format!("\\{byte:03o}"),
    };
    bytes.iter().map(letter).collect()
}

/// Returns the path below the root of the subvolume, of a path as a dump prints it.
fn inside(text: &str) -> PathBuf {
    Path::new(text).components().skip(2).collect()
}

/// Splits a line at spaces that are not escaped, and removes the backslashes before spaces and
/// backslashes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut letters) = (Vec::new(), String::new(), line.chars());
    while let Some(letter) = letters.next() {
        match letter {
            ' ' => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            '\\' => {
                let next = letters.next().expect("a backslash is escaped");
                if next != ' ' && next != '\\' {
                    word.push('\\');
                }
                word.push(next);
            }
            _ => word.push(letter),
        }
    }
    words.push(word);
    words
}
