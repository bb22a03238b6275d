//! Deletes subvolumes of a mounted volume, by path and by id.
//!
//! 1. All paths are looked up before the first deletion.
//! 2. A path names a subvolume in the volume of its directory. A mount point has a name there, but
//!    its ids are those of another volume.
//! 3. A recursive deletion opens a path again, and compares the subvolume with the one that was
//!    looked up: a user may have put another directory in its place. This one descriptor has the
//!    id, the list of the subvolumes inside, and the volume that they are deleted in.
//! 4. If the default subvolume is among those that a recursive deletion of a path deletes, none of
//!    them is.
//! 5. A path that does not exist any more, because a recursive deletion has deleted its subvolume,
//!    is no failure.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use butternut::{SubvolumeInfo, TOP_LEVEL};
use butternut_sys::subvolume_calls;
use rustix::fs::{Mode, OFlags, openat2};
use rustix::io::Errno;

use super::root_tree::MountedVolume;
use super::{Changes, entry_name, failed, open, parent};
use crate::args::GlobalArgs;
use crate::commands::walk::live::BELOW;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// What to do about a subvolume with others inside it.
pub(crate) const INSIDE_FIRST: &str = "delete the subvolumes inside it first, or add -R";
/// What to do about it if the caller may not list them.
const INSIDE_FIRST_ALONE: &str = "delete the subvolumes inside it first: -R finds them for root";

/// The id and the UUID of a subvolume. Subvolumes of two volumes may have the same id.
type Identity = (u64, [u8; 16]);

/// A path to delete.
struct Target<'a> {
    path: &'a Path,
    name: &'a OsStr,
    /// The subvolume that was looked up, if the caller may read it. Otherwise the call that deletes
    /// it decides.
    identity: Option<Identity>,
}

/// A running deletion, and what it has deleted.
struct Deletion<'a> {
    changes: Changes<'a>,
    deleted: BTreeSet<Identity>,
}

/// Deletes subvolumes by path; `recursive`: with the subvolumes inside them.
pub(crate) fn by_path(
    global: &GlobalArgs,
    paths: &[&OsString],
    recursive: bool,
    out: &mut Output,
) -> Outcome {
    let targets = paths.iter().map(|path| Target::look_up(Path::new(path)));
    let targets: Vec<Target<'_>> = targets.collect::<Result<_, _>>()?;
    let mut deletion = Deletion { changes: Changes::new(global), deleted: BTreeSet::new() };
    let done = targets.iter().try_for_each(|target| deletion.delete(target, recursive));
    deletion.changes.finish_after(done, out)
}

/// Deletes subvolumes of the volume that contains `path` by id.
pub(crate) fn by_id(global: &GlobalArgs, path: &OsStr, ids: &[u64], out: &mut Output) -> Outcome {
    let path = Path::new(path);
    let dir = open(path).map_err(|error| failed(path, &error))?;
    let mut changes = Changes::new(global);
    let done = ids.iter().try_for_each(|id| {
        let name = PathBuf::from(id.to_string());
        let deleted = subvolume_calls::delete_by_id(dir.as_fd(), *id);
        deleted.map_err(|error| {
            let volume = MountedVolume::open(path);
            volume.map_or_else(
                |_| not_deleted(&name, &error),
                |volume| refused(&volume, &name, Some(*id), &error),
            )
        })?;
        changes.record("deleted", &name);
        Ok(())
    });
    changes.finish_after(done, out)
}

/// Returns the subvolumes inside `top` at any depth, each before the one that it is in.
pub(crate) fn inside(all: &[SubvolumeInfo], top: u64) -> Vec<&SubvolumeInfo> {
    let mut children: BTreeMap<u64, Vec<&SubvolumeInfo>> = BTreeMap::new();
    for subvolume in all.iter().filter(|subvolume| !subvolume.deleted) {
        if let Some(parent) = subvolume.parent {
            children.entry(parent).or_default().push(subvolume);
        }
    }
    let mut found = children.remove(&top).unwrap_or_default();
    let mut at = 0;
    while let Some(subvolume) = found.get(at) {
        // Each list is taken once, so a damaged volume ends this, too.
        found.extend(children.remove(&subvolume.id).unwrap_or_default());
        at += 1;
    }
    found.reverse();
    found
}

impl<'a> Target<'a> {
    /// Fails if no subvolume is at a path (law 2).
    fn look_up(path: &'a Path) -> Result<Self, Failure> {
        let mut target = Self { path, name: entry_name(path)?, identity: None };
        let found = target.open().and_then(|(_, root)| {
            let Some(root) = root else { return Ok(None) };
            subvolume_calls::is_read_only(root.as_fd())?;
            // Only a recursive deletion needs it.
            Ok(identity(&root).ok())
        });
        target.identity = found.map_err(|error| not_deleted(path, &error))?;
        Ok(target)
    }

    /// Opens the directory of the path, and the directory that has its name, if the caller may read
    /// that.
    fn open(&self) -> io::Result<(File, Option<File>)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let dir = open(&parent(self.path))?;
        let root = match openat2(&dir, self.name, flags, Mode::empty(), BELOW) {
            Ok(opened) => Some(File::from(opened)),
            Err(Errno::ACCESS) => None,
            // A file or a symlink.
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::INVAL.into()),
            Err(errno) => return Err(errno.into()),
        };
        Ok((dir, root))
    }

    /// Returns the id of the open subvolume, which is the one that was looked up (law 3).
    fn checked_id(&self, root: &File) -> Result<u64, Failure> {
        let found = subvolume_calls::is_read_only(root.as_fd()).and_then(|_| identity(root));
        let found = found.map_err(|error| not_deleted(self.path, &error))?;
        if self.identity.is_some_and(|wanted| wanted != found) {
            let shown = text::escaped(self.path.as_os_str().as_bytes());
            return Err(Failure::new(shown, "the path names another subvolume now")
                .hint("it was replaced while the command ran; neither of them was deleted"));
        }
        Ok(found.0)
    }
}

/// Returns the subvolume that an open directory is the root of. The top level has no name that
/// could be deleted.
fn identity(root: &File) -> io::Result<Identity> {
    let info = subvolume_calls::info(root.as_fd())?;
    if info.id == TOP_LEVEL { Err(Errno::INVAL.into()) } else { Ok((info.id, info.uuid)) }
}

impl Deletion<'_> {
    fn delete(&mut self, target: &Target<'_>, recursive: bool) -> Result<(), Failure> {
        let opened = target.open();
        let (dir, root) = match opened {
            Err(error) if self.has_deleted(target, &error) => return Ok(()),
            opened => opened.map_err(|error| not_deleted(target.path, &error))?,
        };
        let id = match root.filter(|_| recursive) {
            Some(root) => self.delete_inside(target, root)?,
            None => None,
        };
        let deleted = match id {
            Some(id) => subvolume_calls::delete_by_id(dir.as_fd(), id),
            None => subvolume_calls::delete(dir.as_fd(), target.name.as_bytes()),
        };
        deleted.map_err(|error| {
            let volume = MountedVolume::of(dir, target.path);
            let id = target.identity.map(|(id, _)| id);
            let failure = refused(&volume, target.path, id, &error);
            let is_not_empty = Errno::from_io_error(&error) == Some(Errno::NOTEMPTY);
            if recursive && is_not_empty { failure.hint(INSIDE_FIRST_ALONE) } else { failure }
        })?;
        self.deleted.extend(target.identity);
        self.changes.record("deleted", target.path);
        Ok(())
    }

    /// Returns whether a path has no subvolume because this deletion was recursive (law 5).
    fn has_deleted(&self, target: &Target<'_>, error: &io::Error) -> bool {
        matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::STALE))
            && target.identity.is_some_and(|identity| self.deleted.contains(&identity))
    }

    /// Deletes the subvolumes inside one, by their ids, and returns its own (law 3). Returns `None`
    /// if the caller may not list them: it may be permitted to delete one without any.
    fn delete_inside(&mut self, target: &Target<'_>, root: File) -> Result<Option<u64>, Failure> {
        let id = target.checked_id(&root)?;
        let volume = MountedVolume::of(root, target.path);
        if !volume.is_readable()? {
            return Ok(None);
        }
        let all = volume.subvolumes()?;
        let default = volume.default_subvolume()?;
        if id == default {
            return Err(default_stays(target.path.as_os_str().as_bytes()));
        }
        if let Some(inside) = inside(&all, id).into_iter().find(|inside| inside.id == default) {
            return Err(default_stays(inside.path.as_ref().unwrap_or(&inside.name)));
        }
        let path_of = |id| {
            let found = all.iter().find(|found| found.id == id);
            found.and_then(|found| found.path.as_deref())
        };
        for inside in inside(&all, id) {
            let path = inside.path.clone().unwrap_or_else(|| inside.name.clone());
            let path = Path::new(OsStr::from_bytes(&path));
            volume.delete(inside.id).map_err(|error| {
                let failure = refused(&volume, path, Some(inside.id), &error);
                if Errno::from_io_error(&error) != Some(Errno::ROFS) {
                    return failure;
                }
                let top = path_of(id).unwrap_or_default();
                let around = inside.parent.and_then(path_of).unwrap_or_default();
                let below = around.strip_prefix(top).unwrap_or_default();
                let below = below.strip_prefix(b"/").unwrap_or(below);
                let around = text::joined(target.path.as_os_str().as_bytes(), below);
                let around = around.strip_suffix(b"/").unwrap_or(&around);
                failure.hint(writable_first(&text::escaped(around)))
            })?;
            self.deleted.insert((inside.id, inside.uuid));
            self.changes.record("deleted", path);
        }
        Ok(Some(id))
    }
}

/// Describes the refusal to delete the default subvolume.
pub(crate) fn default_stays(path: &[u8]) -> Failure {
    Failure::new(text::escaped(path), "is the default subvolume, which cannot be deleted")
        .hint("`butternut subvolume set-default` makes another one the default")
}

/// What to do about a subvolume inside a read-only one.
pub(crate) fn writable_first(around: &str) -> String {
    format!(
        "the subvolume around it is read-only: `butternut property set {around} ro false`, and \
         delete again"
    )
}

/// Describes a deletion that failed, with what the volume says of the subvolume.
fn refused(volume: &MountedVolume<'_>, path: &Path, id: Option<u64>, error: &io::Error) -> Failure {
    let failure = not_deleted(path, error);
    // Without permission, the caller could not read the trees either.
    let is_permitted = volume.is_readable().unwrap_or(false);
    if Errno::from_io_error(error) != Some(Errno::PERM) || !is_permitted {
        return failure;
    }
    let shown = text::escaped(path.as_os_str().as_bytes());
    if id.is_some_and(|id| volume.default_subvolume().is_ok_and(|default| default == id)) {
        return default_stays(path.as_os_str().as_bytes());
    }
    let why = "is in use: a send or a receive reads it, or it has a swap file that is in use";
    Failure::new(shown, why).hint(
        "wait until `send` or `receive` ends, or end it; `swapoff` ends the use of a swap file",
    )
}

fn not_deleted(path: &Path, error: &io::Error) -> Failure {
    let failure = failed(path, error);
    match Errno::from_io_error(error) {
        Some(Errno::NOTEMPTY) => failure.hint(INSIDE_FIRST),
        Some(Errno::INVAL) => failure.hint("is it a subvolume? rm(1) removes directories"),
        Some(Errno::XDEV) => {
            Failure::new(text::escaped(path.as_os_str().as_bytes()), "is a mount point")
                .hint("unmount it first, or name a subvolume in it")
        }
        Some(Errno::PERM) => failure.hint(
            "only root deletes subvolumes, unless the mount has the option user_subvol_rm_allowed; \
            the default subvolume, and one that a send or a receive reads, are not deleted",
        ),
        Some(Errno::ROFS) => failure.hint(
            "the volume is mounted read-only, or the subvolume around it is: `butternut property \
             set PATH ro false` makes that writable",
        ),
        _ => failure,
    }
}
