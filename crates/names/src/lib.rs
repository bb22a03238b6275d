//! Floor 5: directories, links and extended attributes. Never touches file data.
//!
//! Everything here is a function of a [`Tree`](butternut_tree::Tree) as it was looked up: one
//! subvolume for names and attributes, the root tree for how subvolumes hang together. Nothing is
//! cached but what the tree's own node cache keeps.
//!
//! Laws:
//!
//! 1. A lookup of a cached name allocates nothing.
//! 2. What a loop gathers is bounded by a limit that the caller gives, or by the size of one item.
//! 3. A walk up from an inode ends: a path that is longer than [`DEPTH_MAX`] is refused, and all
//!    the paths of one call together take no more steps than its [`Climb`] allows.
//!
//! Left to others: crossing from one subvolume into another, and what `.` and `..` mean (`fs`).

mod error;
mod link;
mod list;
mod lookup;
mod path;
mod subvolume;
mod xattr;

pub use error::NamesError;
pub use link::{Link, first_link, links};
pub use list::{Entry, List, list};
pub use lookup::{Found, Target, lookup};
pub use path::{Climb, DEPTH_MAX, directory_path, paths};
pub use subvolume::{SubvolumeLink, children, default_subvolume, hangs_at, parent_link};
pub use xattr::{xattr, xattr_names};
