//! [`Errno`]: an error as a FUSE reply carries it.
//!
//! The library chooses the errno of each of its errors ([`butternut::Error::errno`]). The constants
//! here are for errors that the door finds itself: in the protocol, in ioctls and in handles.

use butternut::Error;

/// The result of every operation of the door.
pub(crate) type ErrnoResult<T> = Result<T, Errno>;

/// A positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const EPERM: Self = Self(1);
    pub(crate) const ENOENT: Self = Self(2);
    /// A signal interrupts the caller.
    pub(crate) const EINTR: Self = Self(4);
    pub(crate) const EIO: Self = Self(5);
    pub(crate) const ENXIO: Self = Self(6);
    pub(crate) const EBADF: Self = Self(9);
    pub(crate) const EAGAIN: Self = Self(11);
    pub(crate) const EACCES: Self = Self(13);
    pub(crate) const EFAULT: Self = Self(14);
    pub(crate) const EBUSY: Self = Self(16);
    pub(crate) const EEXIST: Self = Self(17);
    pub(crate) const EXDEV: Self = Self(18);
    pub(crate) const ENODEV: Self = Self(19);
    pub(crate) const ENOTDIR: Self = Self(20);
    pub(crate) const EISDIR: Self = Self(21);
    pub(crate) const EINVAL: Self = Self(22);
    pub(crate) const ENOTTY: Self = Self(25);
    pub(crate) const ETXTBSY: Self = Self(26);
    pub(crate) const EROFS: Self = Self(30);
    pub(crate) const ERANGE: Self = Self(34);
    pub(crate) const ENAMETOOLONG: Self = Self(36);
    /// The kernel does without the operation, and does not send it again.
    pub(crate) const ENOSYS: Self = Self(38);
    pub(crate) const ENODATA: Self = Self(61);
    pub(crate) const EOVERFLOW: Self = Self(75);
    pub(crate) const EMSGSIZE: Self = Self(90);
    pub(crate) const EOPNOTSUPP: Self = Self(95);
    pub(crate) const E2BIG: Self = Self(7);
    pub(crate) const ESTALE: Self = Self(116);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}
