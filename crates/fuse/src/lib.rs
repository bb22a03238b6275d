//! Floor 7, a door: FUSE requests in, replies out. Never decides an errno of the library's, or
//! keeps a cache.
//!
//! One mount serves one [`Filesystem`](butternut::Filesystem). The kernel does the caching, of
//! names, attributes, pages and symlinks, for good: nobody else changes the volume while it is
//! mounted. Of a volume that is open for writing it keeps what is written, too, and the times of
//! its files, until it sends them (decision 0008).
//!
//! 1. A node id is the file's own id, where one number holds it, and otherwise assigned: two files
//!    never have one node id ([`nodes`]).
//! 2. Directories need no handles; files only where they can be written ([`handles`]).
//! 3. Everyone but the owner of the mount is refused, unless `allow_other` is given; then the
//!    kernel checks modes and ACLs ([`Options::permissions`]). What it does not know is checked
//!    here: flags of inodes, read-only subvolumes (`door::open`), the callers of ioctls
//!    (`door::flags`).
//! 4. One thread waits for requests, near who asks ([`turn`], [`near`]; decision 0013).
//! 5. A bounded share of the threads waits for devices ([`share`]; decision 0027).
//! 6. `fsync` returns when everything is on the medium, and so does the end of the process. Access
//!    times stay as they are.
//!
//! ```text
//! session     attach -> the mount        connection -> a thread's requests and replies
//! superblock  where the mount is by now, and its end
//! door        what each request asks of the library
//! wire        the protocol's bytes       request, reply -> taken apart, put together
//! ```

mod attach;
mod caller;
mod connection;
mod door;
mod fills;
mod handles;
mod near;
mod nodes;
mod options;
mod pages;
mod recent;
mod refusal;
mod reply;
mod request;
mod session;
mod share;
mod shown;
mod superblock;
mod turn;
mod whole;
mod wire;

pub use attach::KIND;
pub use door::Report;
pub use options::{Caching, Options};
pub use session::{
    DAEMON_XATTR, Detached, FuseError, LOST_XATTR, Mounted, SYNC_XATTR, Serving, Unmounter, mount,
};
pub use superblock::Left;
pub use whole::{Clone, Rights, Whole};
