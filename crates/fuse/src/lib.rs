//! Floor 7, a door: FUSE requests in, replies out. Never decides an errno or keeps a cache.
//!
//! One mount serves one [`Filesystem`], read-only. The kernel does the caching: the volume cannot
//! change while it is mounted, so names, attributes, pages and symlinks are given to it for good.
//!
//! 1. A node id is the file's own id, so nothing has to be remembered per file ([`ids`]).
//! 2. Files and directories need no handles: the kernel is told so at the first open.
//! 3. Everyone but the owner of the mount is refused, unless `allow_other` is given; then the
//!    kernel checks modes and ACLs ([`Options::permissions`]).
//!
//! The transport is the `fuser` crate; only `requests` and `replies` know it.

mod ids;
mod options;
mod readahead;
mod recent;
mod replies;
mod requests;
mod session;

pub use options::Options;
pub use session::{DAEMON_XATTR, FuseError, Mounted, Unmounter, mount};
