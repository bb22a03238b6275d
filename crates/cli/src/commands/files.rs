//! [`Files`]: the files that `ls`, `stat`, `find` and walks read. Those of a volume that is not
//! mounted are read by the library, and those of a mounted one as any program reads them
//! ([`MountedFiles`]). What is printed is the same, so the commands are written once.
//!
//! [`MountedFiles`]: super::mounted::files::MountedFiles

use std::ffi::OsString;
use std::hash::Hash;

use butternut::{DirEntry, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, Stat, Time};

use super::walk::directory_cycle;
use crate::failure::Failure;

/// The attributes of a file. A mount does not tell all of them.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub(crate) subvolume: Option<u64>,
    /// The inode number in the subvolume.
    pub(crate) ino: u64,
    pub(crate) file_id: Option<u64>,
    pub(crate) kind: FileKind,
    /// Permission bits and the type bits, as in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// In bytes.
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u32,
    /// Major and minor number of a device node.
    pub(crate) rdev: (u32, u32),
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    /// Only of [`Files::all_attributes`].
    pub(crate) generation: Option<u64>,
    /// `BTRFS_INODE_*` bits; only of [`Files::all_attributes`].
    pub(crate) flags: Option<u64>,
}

impl Attributes {
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice)
    }
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        Self {
            subvolume: Some(stat.id.subvolume_id()),
            ino: stat.ino,
            file_id: Some(stat.id.as_u64()),
            kind: stat.kind,
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            size: stat.size,
            blocks: stat.blocks,
            block_bytes: stat.block_bytes,
            rdev: stat.rdev,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            btime: stat.btime,
            generation: Some(stat.generation),
            flags: Some(stat.flags),
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(crate) struct FileEntry<I> {
    pub(crate) name: Vec<u8>,
    pub(crate) id: I,
    pub(crate) kind: FileKind,
}

/// The entries of a directory, in its order. The iterator ends after its first error.
pub(crate) type FileEntries<I, E> = Box<dyn Iterator<Item = Result<FileEntry<I>, E>>>;

/// Returns the paths of a volume that is not mounted: its root, if none is named.
pub(crate) fn or_root(paths: &[OsString]) -> Vec<OsString> {
    if paths.is_empty() { vec!["/".into()] } else { paths.to_vec() }
}

/// Where files are read from.
pub(crate) trait Files {
    /// Names a file.
    type Id: Clone;
    /// Tells directories apart.
    type Identity: Eq + Hash;
    type Error;

    /// Returns the attributes that take no calls besides that of stat(2).
    fn attributes(&self, id: &Self::Id) -> Result<Attributes, Self::Error>;
    /// Returns all attributes that can be found out.
    fn all_attributes(&self, id: &Self::Id) -> Result<Attributes, Self::Error>;
    /// Returns the target of a symlink.
    fn target(&self, id: &Self::Id) -> Result<Vec<u8>, Self::Error>;
    /// Returns the entries of a directory, `with_dots` with `.` and `..`.
    fn entries(
        &self,
        id: &Self::Id,
        with_dots: bool,
    ) -> Result<FileEntries<Self::Id, Self::Error>, Self::Error>;
    /// Returns the inode number in the subvolume.
    fn ino(&self, id: &Self::Id) -> Result<u64, Self::Error>;
    fn identity(&self, id: &Self::Id) -> Result<Self::Identity, Self::Error>;
    fn is_subvolume_root(&self, id: &Self::Id) -> bool;
    /// Returns whether two files are in the same subvolume.
    fn share_subvolume(&self, one: &Self::Id, other: &Self::Id) -> Result<bool, Self::Error>;

    /// Directories are nested too deeply.
    fn too_deep() -> Self::Error;
    /// A directory is inside itself.
    fn cycle() -> Self::Error;
    /// Returns the text of an error, without its causes.
    fn text(error: &Self::Error) -> String;
    fn failure(what: String, error: &Self::Error) -> Failure;
}

impl Files for Filesystem {
    type Id = FileId;
    type Identity = FileId;
    type Error = Error;

    fn attributes(&self, id: &FileId) -> Result<Attributes, Error> {
        self.stat(*id).map(|stat| Attributes::from(&stat))
    }

    fn all_attributes(&self, id: &FileId) -> Result<Attributes, Error> {
        self.attributes(id)
    }

    fn target(&self, id: &FileId) -> Result<Vec<u8>, Error> {
        self.read_link(*id)
    }

    fn entries(&self, id: &FileId, with_dots: bool) -> Result<FileEntries<FileId, Error>, Error> {
        let entries = self.read_dir(*id, if with_dots { 0 } else { FIRST_ENTRY })?;
        let entry = |DirEntry { name, id, kind, .. }| FileEntry { name, id, kind };
        Ok(Box::new(entries.map(move |found| found.map(entry))))
    }

    fn ino(&self, id: &FileId) -> Result<u64, Error> {
        Ok(id.ino)
    }

    fn identity(&self, id: &FileId) -> Result<FileId, Error> {
        Ok(*id)
    }

    fn is_subvolume_root(&self, id: &FileId) -> bool {
        FileId::is_subvolume_root(*id)
    }

    fn share_subvolume(&self, one: &FileId, other: &FileId) -> Result<bool, Error> {
        Ok(one.subvolume == other.subvolume)
    }

    fn too_deep() -> Error {
        Error::NameTooLong
    }

    fn cycle() -> Error {
        directory_cycle()
    }

    fn text(error: &Error) -> String {
        error.to_string()
    }

    fn failure(what: String, error: &Error) -> Failure {
        Failure::of(what, error)
    }
}
