//! What the root tree of a mounted volume says of its subvolumes, read by the calls that a mount of
//! this project and the kernel's btrfs serve. They need root, or the user that mounted where the
//! mount checks no permissions.
//!
//! 1. Each call sees the volume at another moment. A subvolume that is deleted in between has no
//!    path, and is left out.
//! 2. Items come from another process, so they are checked as those of a disk are. Parents that
//!    lead in a circle lead nowhere.
//! 3. Any user can make directories whose path is too long for the call. A subvolume there has no
//!    path, and is listed all the same.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, RangeInclusive};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::format::dir::DirEntries;
use butternut::format::key::{ItemType, Key};
use butternut::format::root::RootItem;
use butternut::format::root_ref::RootRef;
use butternut::format::units::{Ino, TreeId};
use butternut::{SubvolumeInfo, TOP_LEVEL};
use butternut_sys::subvolume_calls;
use butternut_sys::tree_search_calls::{ItemKey, path_of_inode, search};
use rustix::io::Errno;

use super::{failed, open};
use crate::failure::Failure;
use crate::output::text;

/// Ids of subvolumes other than the top level.
const FIRST_ID: u64 = 256;
const LAST_ID: u64 = u64::MAX - 255;
/// Subvolumes that a process may say that a volume has, at most.
const SUBVOLUMES_MAX: usize = 1 << 22;
/// Maximum nesting depth of subvolumes on a path.
const NESTING_MAX: usize = 2048;
/// Bytes of the directories on a path, at most.
const PATH_BYTES_MAX: usize = 1 << 16;

/// A mounted volume, through a directory of it.
pub(crate) struct MountedVolume<'a> {
    dir: File,
    path: &'a Path,
}

/// The entry of a subvolume in its parent.
struct Entry {
    parent: u64,
    dir: Ino,
    index: u64,
    name: Vec<u8>,
}

/// The items of the subvolumes, by id.
#[derive(Default)]
struct Items {
    roots: Vec<(u64, RootItem)>,
    entries: HashMap<u64, Entry>,
    /// Paths of directories, from the roots of their subvolumes.
    directories: HashMap<(u64, Ino), Place>,
}

/// Where a directory or subvolume is.
#[derive(Clone)]
enum Place {
    At(Vec<u8>),
    /// It has been deleted.
    Gone,
    /// Its path is longer than the call returns.
    TooLong,
}

impl<'a> MountedVolume<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self, Failure> {
        Ok(Self { dir: open(path).map_err(|error| failed(path, &error))?, path })
    }

    /// Returns the volume of an open directory; messages name its path.
    pub(crate) fn of(dir: File, path: &'a Path) -> Self {
        Self { dir, path }
    }

    /// Returns whether the caller may read the trees of the volume.
    pub(crate) fn is_readable(&self) -> Result<bool, Failure> {
        let none = (0, 0, 0)..=(0, 0, 0);
        let fd = self.dir.as_fd();
        match search(fd, TreeId::ROOT.0, none, &mut |_, _| ControlFlow::Break(())) {
            Ok(()) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Returns the id of the subvolume that contains the directory.
    pub(crate) fn id(&self) -> Result<u64, Failure> {
        let info = subvolume_calls::info(self.dir.as_fd());
        info.map(|info| info.id).map_err(|error| failed(self.path, &error))
    }

    /// Returns whether the directory is the root of a subvolume.
    pub(crate) fn is_subvolume(&self) -> Result<bool, Failure> {
        match subvolume_calls::is_read_only(self.dir.as_fd()) {
            Ok(_) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(false),
            Err(error) => Err(failed(self.path, &error)),
        }
    }

    /// Returns all subvolumes except the top level, by id, including deleted ones that are still on
    /// disk.
    pub(crate) fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>, Failure> {
        let mut items = self.items(FIRST_ID..=LAST_ID)?;
        let roots = std::mem::take(&mut items.roots);
        let mut found = Vec::with_capacity(roots.len());
        for (id, root) in roots {
            let (path, is_gone) = match self.place_of(&mut items, id)? {
                Place::At(path) => (Some(path), false),
                Place::Gone => (None, true),
                Place::TooLong => (None, false),
            };
            let info = info(&items, id, &root, path);
            found.extend((info.deleted || !is_gone).then_some(info));
        }
        Ok(found)
    }

    /// Returns one subvolume; 5 is the top level.
    pub(crate) fn subvolume(&self, id: u64) -> Result<SubvolumeInfo, Failure> {
        if id != TOP_LEVEL {
            let found = self.subvolumes()?.into_iter().find(|found| found.id == id);
            return found.ok_or_else(|| failed(self.path, &Errno::NOENT.into()));
        }
        let items = self.items(id..=id)?;
        let root = items.roots.first().ok_or_else(|| failed(self.path, &Errno::NOENT.into()))?;
        Ok(info(&items, id, &root.1, Some(Vec::new())))
    }

    /// Returns the default subvolume, which a mount without options shows.
    pub(crate) fn default_subvolume(&self) -> Result<u64, Failure> {
        let mut default = None;
        let objectid = TreeId::ROOT_DIR.0;
        let keys = (objectid, ItemType::DIR_ITEM.0, 0)..=(objectid, ItemType::DIR_ITEM.0, u64::MAX);
        self.search(keys, |_, data| {
            for entry in DirEntries::new(data) {
                let entry = entry.map_err(|refused| refused.to_string())?;
                if entry.name == b"default" {
                    default = Some(entry.location.objectid);
                }
            }
            Ok(())
        })?;
        Ok(default.unwrap_or(TOP_LEVEL))
    }

    /// Reads the root items, and the references to parents, of ids.
    fn items(&self, ids: RangeInclusive<u64>) -> Result<Items, Failure> {
        let mut items = Items::default();
        let keys = (*ids.start(), 0, 0)..=(*ids.end(), u8::MAX, u64::MAX);
        self.search(keys, |(objectid, item_type, offset), data| {
            let key = Key::new(objectid, ItemType(item_type), offset);
            if items.roots.len().max(items.entries.len()) >= SUBVOLUMES_MAX {
                return Err(format!("more than {SUBVOLUMES_MAX} subvolumes"));
            }
            match key.item_type {
                ItemType::ROOT_ITEM if TreeId(objectid).is_subvolume() => {
                    let root = RootItem::check(key, data).map_err(|error| error.to_string())?;
                    items.roots.push((objectid, root));
                }
                ItemType::ROOT_BACKREF => {
                    let entry = RootRef::check(data).map_err(|error| error.to_string())?;
                    let (dir, index, name) = (entry.dir, entry.index, entry.name.to_vec());
                    items.entries.insert(objectid, Entry { parent: offset, dir, index, name });
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(items)
    }

    /// Searches the root tree. `visit` returns why an item is not valid.
    fn search(
        &self,
        keys: RangeInclusive<ItemKey>,
        mut visit: impl FnMut(ItemKey, &[u8]) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let mut invalid = None;
        search(self.dir.as_fd(), TreeId::ROOT.0, keys, &mut |key, data| {
            let Err(why) = visit(key, data) else { return ControlFlow::Continue(()) };
            let (objectid, item_type, offset) = key;
            invalid = Some(format!("item ({objectid} {item_type} {offset}): {why}"));
            ControlFlow::Break(())
        })
        .map_err(|error| self.failed(&error))?;
        let shown = || text::escaped(self.path.as_os_str().as_bytes());
        invalid.map_or(Ok(()), |why| Err(Failure::new(shown(), format!("root tree: {why}"))))
    }

    /// Returns the path of a subvolume from the top level, if it has one (laws 1 to 3).
    fn place_of(&self, items: &mut Items, id: u64) -> Result<Place, Failure> {
        let (mut parts, mut at, mut bytes) = (Vec::new(), id, 0_usize);
        for _ in 0..NESTING_MAX {
            if at == TOP_LEVEL {
                parts.reverse();
                return Ok(Place::At(parts.join(&b'/')));
            }
            let Some(entry) = items.entries.get(&at) else { return Ok(Place::Gone) };
            let place = (entry.parent, entry.dir);
            parts.push(entry.name.clone());
            at = entry.parent;
            let dir = match items.directories.get(&place) {
                Some(known) => known.clone(),
                None => self.directory(place)?,
            };
            items.directories.insert(place, dir.clone());
            let Place::At(dir) = dir else { return Ok(dir) };
            bytes = bytes.saturating_add(dir.len());
            if bytes > PATH_BYTES_MAX {
                return Ok(Place::TooLong);
            }
            parts.extend((!dir.is_empty()).then_some(dir));
        }
        Ok(Place::TooLong)
    }

    /// Returns the path of a directory in its subvolume.
    fn directory(&self, (subvolume, dir): (u64, Ino)) -> Result<Place, Failure> {
        match path_of_inode(self.dir.as_fd(), subvolume, dir.0) {
            Ok(path) => Ok(Place::At(path)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Ok(Place::Gone),
                Some(Errno::NAMETOOLONG | Errno::TOOBIG) => Ok(Place::TooLong),
                _ => Err(self.failed(&error)),
            },
        }
    }

    /// Deletes the subvolume with an id.
    pub(crate) fn delete(&self, id: u64) -> io::Result<()> {
        subvolume_calls::delete_by_id(self.dir.as_fd(), id)
    }

    fn failed(&self, error: &io::Error) -> Failure {
        let failure = failed(self.path, error);
        match Errno::from_io_error(error) {
            Some(Errno::PERM) => failure.hint("only root may read the trees of a mounted volume"),
            _ => failure,
        }
    }
}

fn info(items: &Items, id: u64, root: &RootItem, path: Option<Vec<u8>>) -> SubvolumeInfo {
    let parent = items.entries.get(&id).map(|entry| {
        let Entry { parent, dir, index, name } = entry;
        (*parent, RootRef { dir: *dir, index: *index, name })
    });
    SubvolumeInfo::of_items(id, root, parent, path)
}
