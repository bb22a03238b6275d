//! Floor 5: directories, links and extended attributes. Never touches file data.
//!
//! Reading is a function of a [`Tree`](butternut_tree::Tree) as it was looked up: one subvolume for
//! names and attributes, the root tree for how subvolumes hang together. Changing is a function of
//! an [`Edit`], a tree inside a transaction. Nothing is cached but what the tree's own node cache
//! keeps.
//!
//! Laws:
//!
//! 1. A lookup of a cached name allocates nothing.
//! 2. What a loop gathers is bounded by a limit that the caller gives, or by the size of one item.
//! 3. A walk up from an inode ends: a path that is longer than [`DEPTH_MAX`] is refused, and all
//!    the paths of one call together take no more steps than its [`Climb`] allows.
//! 4. A change leaves the items that the kernel would leave. One that is refused leaves those that
//!    were there.
//!
//! Left to others: crossing from one subvolume into another, what `.` and `..` mean, permissions,
//! and inodes in use (`fs`).

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
mod orphan;
mod path;
mod property;
mod reference;
mod root_ref;
mod set_xattr;
mod subvolume;
mod symlink;
mod xattr;

pub use acl::{
    ACCESS_ACL, Acl, AclEntry, AclTag, DEFAULT_ACL, Guarded, Inherited, inherit as inherit_acl,
};
pub use change::{
    Exchanged, Leads, Move, OldName, create, exchange, link, rename, unlink, unlink_last,
};
pub use entry::{NewName, find_index};
pub use error::NamesError;
pub use inode::{
    LINKS_MAX, Moment, NewInode, changed, entry_added, entry_removed, inherited_flags, inode,
    insert_inode, link_added, link_removed, put_inode, remove_inode,
};
pub use items::{Edit, Limits, Look, OwnedItem};
pub use link::{Link, first_link, links};
pub use list::{Entry, List, list};
pub use lookup::{Found, Target, lookup};
pub use number::{INDEX_FIRST, INO_LAST, next_index, next_ino};
pub use orphan::{add_orphan, orphans, remove_orphan};
pub use path::{Climb, DEPTH_MAX, PATHS_BYTES_MAX, directory_path, first_path, paths};
pub use property::{
    AttributeFlags, COMPRESSION, CompressionProperty, FlagChange, PROPERTIES, flags_with_property,
    inherited_compression,
};
pub use root_ref::{Hanging, put_root_ref, remove_root_ref};
pub use set_xattr::{SetXattr, Xattr, remove_xattr, set_xattr, xattr_value_bytes_max};
pub use subvolume::{SubvolumeLink, children, default_subvolume, hangs_at, parent_link};
pub use symlink::{put_symlink_text, symlink_bytes_max};
pub use xattr::{xattr, xattr_names};
