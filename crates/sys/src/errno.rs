//! [`Errno`]: an operating system error as a plain value. Completions need a `Clone` and comparable
//! error, which `std::io::Error` is not.

use std::fmt;

/// An error number of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    pub const BUSY: Errno = Errno(libc::EBUSY);
    pub const INTERRUPTED: Errno = Errno(libc::EINTR);
    pub const INVALID: Errno = Errno(libc::EINVAL);
    pub const IO: Errno = Errno(libc::EIO);
    pub const NO_DATA: Errno = Errno(libc::ENODATA);
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
    pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

    /// Returns the current value of `errno`. Must be called directly after the failed call.
    pub fn last() -> Errno {
        Errno::from(std::io::Error::last_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}
