//! Floor 5: directories, links and extended attributes. This crate never accesses file data.
//!
//! Functions that read take a [`Tree`](butternut_tree::Tree): a subvolume for names and attributes,
//! the root tree for the references between subvolumes. Functions that change take an
//! [`EditItems`], a tree inside a transaction. Only the node cache of the trees caches anything.
//!
//! Laws:
//!
//! 1. A lookup of a cached name allocates nothing.
//! 2. The result of a loop is bounded by a limit of the caller, or by the size of one item.
//! 3. A walk from an inode up to the root ends: a path with more than [`DEPTH_MAX`] directories is
//!    refused, and all paths of one call together stay within its [`PathBudget`].
//! 4. A change leaves the same items as the kernel, except where the kernel would damage another
//!    name or inode of a damaged volume. A change that is refused changes no item.
//!
//! Left to others: paths through several subvolumes, `.` and `..`, permissions, and inodes in use
//! (`fs`).

mod acl;
mod change;
mod entry;
mod error;
mod inode;
mod items;
mod link;
mod list;
mod lookup;
#[cfg(test)]
mod memory;
mod number;
mod old_name;
mod orphan;
mod path;
mod property;
mod reference;
mod root_ref;
mod set_xattr;
mod subvolume;
mod symlink;
mod uuid_tree;
mod xattr;

pub use acl::{
    ACCESS_ACL, Acl, AclAndMode, AclEntry, AclTag, DEFAULT_ACL, Inherited, inherit as inherit_acl,
};
pub use change::{Exchanged, Move, create, exchange, link, rename, replace, unlink, unlink_last};
pub use entry::{NewName, check_addable, find_index, retarget};
pub use error::NamesError;
pub use inode::{
    LINKS_MAX, Moment, NewInode, changed, entry_added, entry_removed, inherited_flags, inode,
    insert_inode, link_added, link_removed, put_inode, remove_inode,
};
pub use items::{EditItems, Limits, OwnedItem, ReadItems};
pub use link::{Link, first_link, links};
pub use list::{Entry, List, list};
pub use lookup::{Found, Target, lookup};
pub use number::{INDEX_FIRST, INO_LAST, check_index, next_index, next_ino};
pub use old_name::{Backref, OldName, OldTarget, backref};
pub use orphan::{add_orphan, orphans, remove_orphan};
pub use path::{DEPTH_MAX, PATHS_BYTES_MAX, PathBudget, directory_path, first_path, paths};
pub use property::{
    AttributeFlags, COMPRESSION, CompressionProperty, FlagChange, PROPERTIES, flags_with_property,
    inherited_compression,
};
pub use reference::{check_referable, index as reference_index};
pub use root_ref::{SubvolumePair, put_root_ref, remove_root_ref};
pub use set_xattr::{SetXattr, Xattr, remove_xattr, set_xattr, xattr_value_bytes_max};
pub use subvolume::{
    SUBVOLUME_LAST, SubvolumeLink, children, default_subvolume, index_of_subvolume,
    insert_root_directory, is_referenced_at, next_subvolume, parent_link, set_default_subvolume,
};
pub use symlink::{put_symlink_target, symlink_bytes_max};
pub use uuid_tree::{add_subvolume_uuid, remove_subvolume_uuid};
pub use xattr::{xattr, xattr_names};
