//! [`DeletedNames`]: names in a subvolume that is about to be deleted.
//!
//! 1. A deleted subvolume is freed when the kernel has forgotten every directory in it, and every
//!    file is closed: a program may use them until then. With the name of the subvolume, the
//!    kernel forgets what no program uses. A name that is in use then would stay in its cache when
//!    the program has ended, with the directories above it, until the kernel needs the memory. So
//!    the kernel is made to forget these names, too: then it drops each with its last user. It
//!    waits for the lock of their directories, so that is done after the deletion was answered
//!    ([`name_invalidations`]).
//! 2. They are looked up before the deletion, because no name of a deleted subvolume can be. At
//!    most [`FILES_MAX`] of the files and directories are, with their names in [`LINKS_MAX`]
//!    places. What is left is freed later: when the kernel needs the memory, or at the next mount.
//!
//! [`name_invalidations`]: crate::door::name_invalidations

use std::collections::HashSet;

use butternut::{FileId, Filesystem};

use crate::door::Door;
use crate::nodes::Nodes;

/// Maximum number of open files, and of known directories, whose names are looked up.
const FILES_MAX: usize = 4096;
/// Maximum number of names of one file.
const LINKS_MAX: usize = 64;

/// The files and directories of a subvolume that programs may use.
pub(super) struct DeletedNames(Vec<FileId>);

impl Door {
    pub(super) fn names_to_delete(&self, subvolume: u64) -> DeletedNames {
        let mut used = self.handles.open_in(subvolume, FILES_MAX);
        used.extend(self.nodes.directories_in(subvolume, FILES_MAX));
        DeletedNames(used)
    }
}

impl DeletedNames {
    /// Returns the names, and those of the directories above, each with the node id of its
    /// directory. Names that cannot be read are left out.
    pub(super) fn look_up(self, filesystem: &Filesystem, nodes: &Nodes) -> Vec<(u64, Vec<u8>)> {
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        let mut left = self.0;
        while let Some(id) = left.pop() {
            if id.is_subvolume_root() || !seen.insert(id) {
                continue;
            }
            for (parent, name) in filesystem.names_of(id, LINKS_MAX).unwrap_or_default() {
                names.push((nodes.node_id(parent), name));
                left.push(parent);
            }
        }
        names
    }
}
