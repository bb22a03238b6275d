//! The node id of a file that another process has open on a FUSE filesystem.
//!
//! A file handle (`name_to_handle_at(2)`) of a FUSE filesystem contains the node id that the server
//! has chosen. The kernel answers both calls here from memory, so the server itself may make them
//! while it serves a request. The open before them may wait for the server of a network filesystem,
//! so the caller checks first on which mount the file is
//! ([`id_of_descriptor`](crate::mounts::id_of_descriptor)).

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};

/// `FILEID_INO64_GEN` of `linux/exportfs.h`: two halves of the node id, the upper one first, and
/// the generation.
const INO64_GEN: i32 = 0x81;
/// Length of such a handle in bytes.
const HANDLE_BYTES: u32 = 12;

/// `struct file_handle` with room for a handle of that type.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    words: [u32; 3],
}

/// Returns the device number (major, minor) and the node id of the file that `path` leads to, such
/// as a descriptor in `/proc/PID/fd`.
///
/// # Errors
/// The file does not exist, or is not on a FUSE filesystem (`InvalidData`).
pub fn fuse_node(path: &Path) -> io::Result<((u32, u32), u64)> {
    // One open, and both calls on it: the descriptor may be replaced meanwhile.
    let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(&file, "", flags, StatxFlags::empty())?;
    let mut handle = Handle { bytes: HANDLE_BYTES, kind: 0, words: [0; 3] };
    let mut mount_id = 0;
    // SAFETY: the descriptor is open, the path ends with a zero byte; `handle` has the layout of
    // `struct file_handle` and room for `bytes` bytes after its header; all live through the call.
    let answer = unsafe {
        libc::name_to_handle_at(
            file.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if (handle.kind, handle.bytes) != (INO64_GEN, HANDLE_BYTES) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let [upper, lower, _] = handle.words;
    let node = u64::from(upper) << 32 | u64::from(lower);
    Ok(((status.stx_dev_major, status.stx_dev_minor), node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_on_fuse_is_refused() {
        assert!(fuse_node(Path::new("/proc/self/exe")).is_err());
        assert!(fuse_node(Path::new("/nonexistent")).is_err());
    }
}
