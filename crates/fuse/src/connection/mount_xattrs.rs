//! Extended attributes that every file of a mount has and no listing shows: requests to the process
//! that serves the mount. The names are in no xattr namespace, so they hide no attribute of a
//! volume.

/// The id of the process that serves the mount. `butternut umount` waits for that process to end.
pub const DAEMON_XATTR: &str = "butternut.daemon";

/// The inode number of the process namespace that [`DAEMON_XATTR`] is an id of, as of
/// `/proc/self/ns/pid`.
pub const PROCESS_NAMESPACE_XATTR: &str = "butternut.process_namespace";

/// An attribute whose read commits the filesystem and returns the error of that commit. FUSE passes
/// sync(2) on to the process only for a mount of a block device. A loss of file data is returned
/// once to root or the user that mounted. Until then, every read by another user returns it, too.
/// The value is [`SYNC_SHUT_DOWN`] after a shutdown (`FS_IOC_SHUTDOWN`).
pub const SYNC_XATTR: &str = "butternut.sync";

/// The values of [`SYNC_XATTR`]: everything is on the devices, or the volume was shut down, and
/// nothing is written to it any more.
pub const SYNC_DONE: &[u8] = b"1";
pub const SYNC_SHUT_DOWN: &[u8] = b"0";

/// The number of failed writes from the kernel's page cache. The program learns of such an error
/// from `close` or `fsync`, and `syncfs` reports it once more.
pub const LOST_XATTR: &str = "butternut.lost";

/// As [`LOST_XATTR`], of the files in the subvolume of the file that has the attribute.
pub const LOST_IN_SUBVOLUME_XATTR: &str = "butternut.lost_in_subvolume";
