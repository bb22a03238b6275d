//! Clones the descriptor of a /dev/fuse connection, so that each thread that serves it has its own.

use crate::errno::Errno;
use rustix::ioctl::{self, Setter, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `FUSE_DEV_IOC_CLONE`: attaches a new descriptor to the connection of another one.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Attaches `fresh`, a newly opened descriptor of /dev/fuse, to the connection of `connection`.
///
/// # Errors
/// The error of the ioctl; `connection` is not a connected descriptor of /dev/fuse.
pub fn join(fresh: BorrowedFd<'_>, connection: BorrowedFd<'_>) -> Result<(), Errno> {
    let number = u32::try_from(connection.as_raw_fd()).map_err(|_| Errno::INVALID)?;
    // SAFETY: the call reads one u32 through the pointer that `Setter` makes from `number`.
    let call = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the call changes only the state of the descriptor `fresh`.
    unsafe { ioctl::ioctl(fresh, call) }.map_err(Errno::from)
}

#[test]
fn join_fails_for_a_descriptor_without_a_connection() {
    use std::os::fd::AsFd;
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(join(null.as_fd(), null.as_fd()).is_err());
}
