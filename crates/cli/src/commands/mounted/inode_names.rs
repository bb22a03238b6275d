//! The paths of an inode in a mounted volume, by the calls that a mount of this project and the
//! kernel's btrfs serve. They need root, or the user that mounted where the mount checks no
//! permissions.
//!
//! Each call sees the volume at another moment: a name whose directory does not exist any more is
//! left out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;

use butternut::format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut::format::key::ItemType;
use butternut::format::refused::Refused;
use butternut_sys::subvolume_calls;
use butternut_sys::tree_search_calls::{path_of_inode, search};
use rustix::io::Errno;

use super::directory::MountedDirectory;
use crate::failure::Failure;
use crate::output::text;

/// The root directory of each subvolume. It refers to itself.
const ROOT_DIRECTORY: u64 = 256;

/// The names of an inode, each with its directory.
type Names = Vec<(u64, Vec<u8>)>;

/// Returns the paths of an inode in the subvolume that contains the directory, from its root,
/// without a slash at the beginning; and the subvolume.
///
/// # Errors
/// There is no such inode; the caller may not read the trees.
pub(crate) fn paths(
    mounted: &MountedDirectory<'_>,
    ino: u64,
) -> Result<(Vec<Vec<u8>>, u64), Failure> {
    let dir = mounted.reopen()?;
    let failed = |error: io::Error| {
        let failure = mounted.failed(&error);
        match Errno::from_io_error(&error) {
            Some(Errno::PERM) => failure.hint("only root may read the trees of a mounted volume"),
            _ => failure,
        }
    };
    let subvolume = subvolume_calls::info(dir.as_fd()).map_err(failed)?.id;
    let what = || format!("inode {ino} of subvolume {subvolume}");
    let (mut names, mut exists, mut refused) = (Names::new(), false, None);
    let keys = (ino, ItemType::INODE_ITEM.0, 0)..=(ino, ItemType::INODE_EXTREF.0, u64::MAX);
    search(dir.as_fd(), subvolume, keys, &mut |(_, item_type, offset), data| {
        exists = true;
        match add_names(&mut names, ItemType(item_type), offset, data) {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => {
                refused = Some(why);
                ControlFlow::Break(())
            }
        }
    })
    .map_err(failed)?;
    if let Some(why) = refused {
        return Err(Failure::new(what(), format!("reference item: {why}")));
    }
    if !exists {
        return Err(Failure::new(what(), "there is no such inode"));
    }
    if ino == ROOT_DIRECTORY {
        return Ok((vec![Vec::new()], subvolume));
    }
    let mut directories = HashMap::new();
    let mut paths = Vec::new();
    for (parent, name) in names {
        let path = match directories.entry(parent) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                place.insert(match path_of_inode(dir.as_fd(), subvolume, parent) {
                    Ok(path) => Some(path),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Err(failed(error)),
                })
            }
        };
        paths.extend(path.as_ref().map(|path| text::joined(path, &name)));
    }
    Ok((paths, subvolume))
}

/// Adds the names of a reference item.
fn add_names(
    names: &mut Names,
    item_type: ItemType,
    offset: u64,
    data: &[u8],
) -> Result<(), Refused> {
    match item_type {
        ItemType::INODE_REF => {
            for entry in InodeRefs::new(data) {
                names.push((offset, entry?.name.to_vec()));
            }
        }
        ItemType::INODE_EXTREF => {
            for entry in InodeExtrefs::new(data) {
                let entry = entry?;
                names.push((entry.parent.0, entry.name.to_vec()));
            }
        }
        _ => {}
    }
    Ok(())
}
