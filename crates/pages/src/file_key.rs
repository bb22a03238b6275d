//! [`FileKey`]: the identity of a file in the page cache.

/// The tree that holds a file, and the file's inode number in that tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    pub tree: u64,
    pub ino: u64,
}
