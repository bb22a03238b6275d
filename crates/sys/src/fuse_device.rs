//! More than one descriptor on a connection of /dev/fuse, one for each thread that serves it.

use crate::errno::Errno;
use rustix::ioctl::{self, Setter, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `FUSE_DEV_IOC_CLONE`: makes a fresh descriptor one of the connection of another.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Makes `fresh`, a descriptor of /dev/fuse that was just opened, one of `connection`.
pub fn join(fresh: BorrowedFd<'_>, connection: BorrowedFd<'_>) -> Result<(), Errno> {
    let number = u32::try_from(connection.as_raw_fd()).map_err(|_| Errno::INVALID)?;
    // SAFETY: the call reads one u32 through the pointer it gets, which `Setter` makes of `number`.
    let call = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the call changes nothing but the state of the descriptor `fresh`.
    unsafe { ioctl::ioctl(fresh, call) }.map_err(Errno::from)
}

#[test]
fn what_is_no_connection_is_refused() {
    use std::os::fd::AsFd;
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(join(null.as_fd(), null.as_fd()).is_err());
}
