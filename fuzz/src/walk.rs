//! Walks a whole volume and records the result of every call, as a hash or as an error.
//!
//! The numbers of entries and bytes are bounded, so that an image with a crafted number of files,
//! or a crafted file size, takes no longer than another.

use butternut::{FIRST_ENTRY, FileId, FileKind, Filesystem};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

const ENTRIES_MAX: usize = 4000;
const DIRECTORIES_MAX: usize = 500;
/// Number of bytes that are read from the start of each file.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// The hash of each result, by a name for it; `None` if the call failed.
pub(crate) type Results = BTreeMap<Vec<u8>, Option<u64>>;

struct Walk<'a> {
    fs: &'a Filesystem,
    results: Results,
    entries: usize,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Calls all reading functions of the volume.
pub(crate) fn walk(fs: &Filesystem) -> Results {
    let mut walk = Walk { fs, results: Results::new(), entries: 0 };
    walk.whole();
    let mut seen = HashSet::new();
    let mut dirs = vec![(fs.root(), b"/".to_vec())];
    while let Some((dir, path)) = dirs.pop() {
        if seen.len() < DIRECTORIES_MAX && seen.insert(dir) {
            walk.directory(dir, &path, &mut dirs);
        }
    }
    walk.results
}

impl Walk<'_> {
    fn note<T: Hash, E>(&mut self, path: &[u8], call: &str, answer: Result<T, E>) -> Option<T> {
        let name = [path, b"\0", call.as_bytes()].concat();
        let answer = answer.ok();
        self.results.insert(name, answer.as_ref().map(hash));
        answer
    }

    /// Records the results about the volume itself.
    fn whole(&mut self) {
        let fs = self.fs;
        self.note(b"", "statfs", fs.statfs().map(|s| format!("{s:?}")));
        self.note(b"", "usage", fs.usage().map(|u| format!("{u:?}")));
        self.note(b"", "subvolumes", fs.subvolumes().map(|s| format!("{s:?}")));
        for tree in [1, 2, 3, 4, 5, 7, 9, 10, 11, 256, 257] {
            self.note(b"", &format!("tree {tree}"), fs.tree_stats(tree).map(|s| format!("{s:?}")));
        }
    }

    fn directory(&mut self, dir: FileId, path: &[u8], dirs: &mut Vec<(FileId, Vec<u8>)>) {
        self.inode(dir, path);
        let fs = self.fs;
        self.note(path, "parent", fs.parent(dir));
        let Ok(entries) = fs.read_dir(dir, FIRST_ENTRY) else { return };
        for entry in entries {
            self.entries += 1;
            let Ok(entry) = entry else { return };
            if self.entries > ENTRIES_MAX {
                return;
            }
            let child = [path, entry.name.as_slice(), b"/"].concat();
            self.note(&child, "entry", Ok::<_, ()>((entry.id, entry.cookie)));
            self.note(&child, "lookup", fs.lookup(dir, &entry.name));
            if entry.kind == FileKind::Directory {
                dirs.push((entry.id, child));
            } else {
                self.inode(entry.id, &child);
                self.note(&child, "paths", fs.paths_of(entry.id));
            }
        }
    }

    fn inode(&mut self, id: FileId, path: &[u8]) {
        let fs = self.fs;
        let stat = fs.stat(id);
        let kind = stat.as_ref().ok().map(|stat| stat.kind);
        self.note(path, "stat", stat.map(|stat| format!("{stat:?}")));
        if let Some(names) = self.note(path, "xattrs", fs.xattr_names(id)) {
            for name in names {
                let call = format!("xattr {name:?}");
                self.note(path, &call, fs.xattr(id, &name));
            }
        }
        if kind == Some(FileKind::Symlink) {
            self.note(path, "target", fs.read_link(id));
        }
        if kind == Some(FileKind::File) {
            self.contents(id, path);
        }
    }

    fn contents(&mut self, id: FileId, path: &[u8]) {
        let Ok(file) = self.fs.open_file(id) else { return };
        self.note(path, "data", file.seek_data(0));
        self.note(path, "hole", file.seek_hole(0));
        let extents: Result<Vec<_>, _> = file.extents(0..file.len()).take(ENTRIES_MAX).collect();
        self.note(path, "extents", extents.map(|extents| format!("{extents:?}")));
        let mut buffer = vec![0; 4096];
        let end = file.len().min(FILE_BYTES_MAX);
        for offset in (0..end).step_by(4096) {
            let read = file.read_at(offset, &mut buffer);
            let read = read.map(|got| buffer[..got].to_vec());
            self.note(path, &format!("bytes at {offset}"), read);
        }
    }
}
