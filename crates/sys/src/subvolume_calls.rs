//! The ioctls of btrfs for subvolumes, on an open file of a mounted volume. The kernel's btrfs and
//! the mounts of this project serve the same calls.
//!
//! Numbers and layouts are those of `linux/btrfs.h`. All structures have a fixed size, because the
//! kernel transfers no other ones to a FUSE server.

#![expect(clippy::host_endian_bytes, reason = "numbers in arguments of calls are in host order")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const SUBVOL_CREATE: libc::c_ulong = 0x5000_940e;
const SUBVOL_CREATE_V2: libc::c_ulong = 0x5000_9418;
const SNAP_CREATE_V2: libc::c_ulong = 0x5000_9417;
const SNAP_DESTROY: libc::c_ulong = 0x5000_940f;
const SNAP_DESTROY_V2: libc::c_ulong = 0x5000_943f;
const DEFAULT_SUBVOL: libc::c_ulong = 0x4008_9413;
const SUBVOL_GETFLAGS: libc::c_ulong = 0x8008_9419;
const SUBVOL_SETFLAGS: libc::c_ulong = 0x4008_941a;
const GET_SUBVOL_INFO: libc::c_ulong = 0x81f8_943c;
const SUBVOL_SYNC_WAIT: libc::c_ulong = 0x4010_9441;

/// The flag of a read-only subvolume, in arguments and results.
pub const READ_ONLY: u64 = 1 << 1;
/// Of `SNAP_CREATE_V2`: the subvolumes inside the source are in the snapshot. Only the mounts of
/// this project have this flag.
pub const RECURSIVE: u64 = 1 << 63;
/// Of `SUBVOL_CREATE_V2` and `SNAP_CREATE_V2`: quota groups include the new subvolume. The number
/// of groups and their ids are at [`QGROUPS_AT`] in the arguments. Only the mounts of this project
/// have this flag: the kernel's btrfs has a pointer to the ids, which FUSE does not pass on.
pub const IN_QGROUPS: u64 = 1 << 62;
/// Where the arguments have the quota groups, behind every name, in bytes.
pub const QGROUPS_AT: usize = 512;
/// Maximum number of quota groups of one call.
pub const QGROUPS_MAX: usize = 64;
/// The same, with a pointer.
const QGROUP_INHERIT: u64 = 1 << 2;
/// The flag of a read-only subvolume in its root item, which `GET_SUBVOL_INFO` returns.
const ROOT_READ_ONLY: u64 = 1;
/// Of `SNAP_DESTROY_V2`: the subvolume is named by its id.
const BY_ID: u64 = 1 << 4;

/// Size of the arguments of most calls, in bytes.
const ARGUMENT_BYTES: usize = 4096;
/// Where the name begins in the arguments of the first and of the second version.
const NAME_AT: usize = 8;
const NAME_V2_AT: usize = 56;
/// Where the second version has its flags, and the id of a subvolume.
const FLAGS_AT: usize = 16;
const ID_AT: usize = 56;
/// Where the second version has the size in bytes of the structure with quota groups, and its
/// address.
const INHERIT_BYTES_AT: usize = 24;
const INHERIT_AT: usize = 32;
/// The words of that structure: flags, number of groups, 7 that stay 0, and the ids.
const INHERIT_WORDS: usize = 9;
/// Size of the result of `GET_SUBVOL_INFO`, in bytes.
const INFO_BYTES: usize = 504;
/// Size of the arguments of `SUBVOL_SYNC_WAIT`, in bytes.
const WAIT_BYTES: usize = 16;
/// Modes of `SUBVOL_SYNC_WAIT`: wait for one subvolume, or for all that are deleted.
const FOR_ONE: u32 = 0;
const FOR_ALL: u32 = 1;

/// Arguments as the kernel reads them.
#[repr(C, align(8))]
pub(crate) struct Arguments<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Arguments<N> {
    pub(crate) fn new() -> Self {
        Self([0; N])
    }

    /// Sets the bytes at an offset.
    ///
    /// # Errors
    /// `ENAMETOOLONG`: they do not fit, with a zero byte behind them.
    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> io::Result<Self> {
        let room = self.0.get_mut(at..).unwrap_or_default();
        if room.len() <= bytes.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        room[..bytes.len()].copy_from_slice(bytes);
        Ok(self)
    }

    /// Makes a call that reads or writes exactly these bytes.
    pub(crate) fn call(&mut self, fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<()> {
        let bytes = usize::try_from(request >> 16 & 0x3fff).unwrap_or(0);
        assert!(bytes == N, "the number of a call states the size of its argument");
        // SAFETY: the number of the call states that it transfers N bytes.
        unsafe { self.call_as(fd, request) }
    }

    /// Makes a call whose number does not state how many bytes it transfers.
    ///
    /// # Safety
    /// The call reads and writes at most these bytes.
    pub(crate) unsafe fn call_as(
        &mut self,
        fd: BorrowedFd<'_>,
        request: libc::c_ulong,
    ) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the caller says that the call transfers at most N
        // bytes, which live through the call.
        let answer =
            unsafe { libc::ioctl(fd.as_raw_fd(), request, (&raw mut self.0).cast::<u8>()) };
        // The kernel returns 1 for some calls that have succeeded.
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Creates an empty subvolume in a directory.
///
/// # Errors
/// Those of mkdir(2); `ENOTTY` where the filesystem has no such call.
pub fn create(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    Arguments::<ARGUMENT_BYTES>::new().put(NAME_AT, name)?.call(dir, SUBVOL_CREATE)
}

/// Creates a snapshot of a subvolume in a directory. `source` is its root directory.
///
/// # Errors
/// As [`create`]; `EPERM` if the source belongs to another user, `EXDEV` for another volume.
pub fn snapshot(
    dir: BorrowedFd<'_>,
    name: &[u8],
    source: impl AsFd,
    read_only: bool,
) -> io::Result<()> {
    snapshot_with(dir, name, source, if read_only { READ_ONLY } else { 0 })
}

/// As [`snapshot`], with the flags [`READ_ONLY`] and [`RECURSIVE`].
///
/// # Errors
/// As [`snapshot`]; `EOPNOTSUPP` for a flag that the filesystem does not have.
pub fn snapshot_with(
    dir: BorrowedFd<'_>,
    name: &[u8],
    source: impl AsFd,
    flags: u64,
) -> io::Result<()> {
    let fd = i64::from(source.as_fd().as_raw_fd());
    Arguments::<ARGUMENT_BYTES>::new()
        .put(0, &fd.to_ne_bytes())?
        .put(FLAGS_AT, &flags.to_ne_bytes())?
        .put(NAME_V2_AT, name)?
        .call(dir, SNAP_CREATE_V2)
}

/// As [`create`], of a subvolume that quota groups include.
///
/// # Errors
/// As [`create`]; `ENOENT` if there is no such group, `EINVAL` for one of level 0, `E2BIG` for more
/// than [`QGROUPS_MAX`].
pub fn create_in_qgroups(dir: BorrowedFd<'_>, name: &[u8], qgroups: &[u64]) -> io::Result<()> {
    if qgroups.is_empty() {
        return create(dir, name);
    }
    let arguments = || Arguments::<ARGUMENT_BYTES>::new().put(NAME_V2_AT, name);
    in_qgroups(&arguments, 0, qgroups, dir, SUBVOL_CREATE_V2)
}

/// As [`snapshot_with`], of a snapshot that quota groups include.
///
/// # Errors
/// As [`snapshot_with`] and [`create_in_qgroups`].
pub fn snapshot_in_qgroups(
    dir: BorrowedFd<'_>,
    name: &[u8],
    source: impl AsFd,
    flags: u64,
    qgroups: &[u64],
) -> io::Result<()> {
    if qgroups.is_empty() {
        return snapshot_with(dir, name, source, flags);
    }
    let fd = i64::from(source.as_fd().as_raw_fd());
    let arguments = || {
        let arguments = Arguments::<ARGUMENT_BYTES>::new().put(0, &fd.to_ne_bytes())?;
        arguments.put(NAME_V2_AT, name)
    };
    in_qgroups(&arguments, flags, qgroups, dir, SNAP_CREATE_V2)
}

/// Makes a call with quota groups: in the form of the mounts of this project, or in that of the
/// kernel's btrfs, which refuses the other one.
fn in_qgroups(
    arguments: &dyn Fn() -> io::Result<Arguments<ARGUMENT_BYTES>>,
    flags: u64,
    qgroups: &[u64],
    dir: BorrowedFd<'_>,
    request: libc::c_ulong,
) -> io::Result<()> {
    if qgroups.len() > QGROUPS_MAX {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let count = u64::try_from(qgroups.len()).unwrap_or(u64::MAX);
    let words = |head: &[u64]| -> Vec<u64> { head.iter().chain(qgroups).copied().collect() };
    let bytes: Vec<u8> = words(&[count]).iter().flat_map(|word| word.to_ne_bytes()).collect();
    let called = arguments()?
        .put(FLAGS_AT, &(flags | IN_QGROUPS).to_ne_bytes())?
        .put(QGROUPS_AT, &bytes)?
        .call(dir, request);
    match called {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        called => return called,
    }
    let mut head = [0; INHERIT_WORDS];
    head[1] = count;
    let inherit = words(&head);
    let address = u64::try_from(inherit.as_ptr().expose_provenance()).unwrap_or(0);
    let bytes = u64::try_from(size_of_val(inherit.as_slice())).unwrap_or(0);
    arguments()?
        .put(FLAGS_AT, &(flags | QGROUP_INHERIT).to_ne_bytes())?
        .put(INHERIT_BYTES_AT, &bytes.to_ne_bytes())?
        .put(INHERIT_AT, &address.to_ne_bytes())?
        .call(dir, request)
}

/// Deletes the subvolume of a name in a directory, with everything in it.
///
/// # Errors
/// `EPERM` without the permission, or for the default subvolume; `ENOTEMPTY` if it contains
/// subvolumes; `EINVAL` if it is none.
pub fn delete(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    Arguments::<ARGUMENT_BYTES>::new().put(NAME_AT, name)?.call(dir, SNAP_DESTROY)
}

/// Deletes the subvolume with an id, in the volume of an open file.
///
/// # Errors
/// As [`delete`]; `ENOENT` if there is none.
pub fn delete_by_id(fd: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    Arguments::<ARGUMENT_BYTES>::new()
        .put(FLAGS_AT, &BY_ID.to_ne_bytes())?
        .put(ID_AT, &id.to_ne_bytes())?
        .call(fd, SNAP_DESTROY_V2)
}

/// Makes a subvolume the one that a mount without options shows.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOENT` if there is none with this id.
pub fn set_default(fd: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    let mut arguments = Arguments(id.to_ne_bytes());
    arguments.call(fd, DEFAULT_SUBVOL)
}

/// Returns whether a subvolume is read-only. `root` is its root directory.
///
/// # Errors
/// `EINVAL` for any other file.
pub fn is_read_only(root: BorrowedFd<'_>) -> io::Result<bool> {
    let mut flags = Arguments([0; 8]);
    flags.call(root, SUBVOL_GETFLAGS)?;
    Ok(u64::from_ne_bytes(flags.0) & READ_ONLY != 0)
}

/// Makes a subvolume read-only, or writable again.
///
/// # Errors
/// As [`is_read_only`]; `EPERM` if it belongs to another user.
pub fn set_read_only(root: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
    let flags = if read_only { READ_ONLY } else { 0 };
    Arguments(flags.to_ne_bytes()).call(root, SUBVOL_SETFLAGS)
}

/// Waits until the space of a deleted subvolume is freed; without an id, of all that are deleted
/// when the call begins. A signal interrupts it.
///
/// # Errors
/// `ENOENT` if there is none with this id, or none is deleted; `EEXIST` if it is not deleted;
/// `ENOTTY` where the filesystem has no such call: the kernel's btrfs has it since Linux 6.13.
pub fn wait_until_cleaned(fd: BorrowedFd<'_>, id: Option<u64>) -> io::Result<()> {
    let mode = if id.is_some() { FOR_ONE } else { FOR_ALL };
    Arguments::<WAIT_BYTES>::new()
        .put(0, &id.unwrap_or(0).to_ne_bytes())?
        .put(size_of::<u64>(), &mode.to_ne_bytes())?
        .call(fd, SUBVOL_SYNC_WAIT)
}

/// What a mounted volume tells of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    pub id: u64,
    /// The subvolume that contains its name; 0 for the top level.
    pub parent: u64,
    pub is_received: bool,
    pub is_read_only: bool,
    pub uuid: [u8; 16],
}

/// Returns the subvolume that contains an open file.
///
/// # Errors
/// `ENOTTY` where the filesystem has no such call.
pub fn info(fd: BorrowedFd<'_>) -> io::Result<SubvolumeInfo> {
    const PARENT_AT: usize = 264;
    const ROOT_FLAGS_AT: usize = 288;
    const UUID_AT: usize = 296;
    const RECEIVED_UUID_AT: usize = 328;
    let mut result = Arguments([0; INFO_BYTES]);
    result.call(fd, GET_SUBVOL_INFO)?;
    let word = |at: usize| {
        let bytes: [u8; 8] = result.0[at..at + 8].try_into().unwrap_or_default();
        u64::from_ne_bytes(bytes)
    };
    let received = &result.0[RECEIVED_UUID_AT..RECEIVED_UUID_AT + 16];
    Ok(SubvolumeInfo {
        id: word(0),
        parent: word(PARENT_AT),
        is_received: received.iter().any(|byte| *byte != 0),
        is_read_only: word(ROOT_FLAGS_AT) & ROOT_READ_ONLY != 0,
        uuid: result.0[UUID_AT..UUID_AT + 16].try_into().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_fit_and_other_filesystems_are_refused() {
        let dir = std::fs::File::open("/proc").expect("/proc is mounted");
        let long = vec![b'a'; ARGUMENT_BYTES - NAME_V2_AT];
        let refused = snapshot(dir.as_fd(), &long, &dir, false).map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENAMETOOLONG)));
        let refused = create(dir.as_fd(), b"name").map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENOTTY)));
        assert!(info(dir.as_fd()).is_err());
    }
}
