//! Floor 7, a door: reads FUSE requests from the kernel and writes replies. It never decides an
//! errno of the library and never keeps a cache of file data.
//!
//! One mount serves one [`Filesystem`](butternut::Filesystem). The kernel caches names,
//! attributes, pages and symlink targets without a timeout, because nothing else changes the
//! volume while it is mounted. With write-back caching it also keeps written data and the times
//! of files until it sends them (decision 0008).
//!
//! 1. A node id is the file's own id where 64 bits can hold that id, and is assigned otherwise.
//!    Two files never share a node id ([`nodes`]).
//! 2. A file has a handle only on a writable or an uncached mount ([`handles`]), a directory only
//!    on a writable one.
//! 3. Only the user that mounted may use the mount, unless `allow_other` is given. In that case
//!    the kernel checks modes and ACLs ([`Options::checks_permissions`]). The door checks what
//!    the kernel does not know: inode flags and read-only subvolumes (`door::open`), and the
//!    callers of ioctls (`door::ioctl_flags`).
//! 4. One thread, the leader, reads requests, and runs on the CPU of the caller while requests
//!    are short ([`worker`]; decision 0013).
//! 5. A bounded number of threads waits for devices ([`worker::thread_limits`]; decision 0027).
//! 6. `fsync` returns when the changes of its file or directory are on stable storage. The process
//!    of an unmounted mount ends after the last commit. Access times are not updated.
//!
//! ```text
//! session     the life of a mount: attach, serve, unmount, commit
//! worker      the threads: which one reads, which ones serve
//! connection  /dev/fuse: requests, replies, notifications, and the protocol's structures
//! door        the calls of the library that serve each request
//! nodes       node id <-> file          handles   open files
//! ```

mod attr;
mod connection;
mod door;
mod errno;
mod handles;
mod nodes;
mod options;
mod session;
mod worker;

pub use connection::mount_xattrs::{
    DAEMON_XATTR, LOST_IN_SUBVOLUME_XATTR, LOST_XATTR, PROCESS_NAMESPACE_XATTR, SYNC_DONE,
    SYNC_SHUT_DOWN, SYNC_XATTR,
};
pub use door::Report;
pub use door::hidden_names::{HiddenName, HiddenNames};
pub use options::{Caching, Options, Synchronous};
pub use session::{
    BLOCK_BYTES, ClonedMount, DetachOutcome, DetachedMount, DeviceMount, FuseError, MountAttempt,
    MountPermissions, Mounted, PendingClone, RemainingMount, Serving, Unmounter,
    is_block_device_type, is_own_type, mount, mount_attempt,
};
