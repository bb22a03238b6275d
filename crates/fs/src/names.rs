//! Directory entries, paths, links and extended attributes.
//!
//! | module | content |
//! |---|---|
//! | `create`, `link`, `rename`, `unlink` | changes of directory entries |
//! | `directory`, `path` | lookup, listing, and resolving paths |
//! | `xattr`, `set_xattr` | extended attributes and the targets of symbolic links |

pub(crate) mod bounded;
pub(crate) mod create;
pub(crate) mod directory;
pub(crate) mod link;
pub(crate) mod path;
pub(crate) mod rename;
pub(crate) mod set_xattr;
pub(crate) mod unlink;
pub(crate) mod xattr;
