//! One request: its header, and the parts behind it.
//!
//! The kernel is trusted to send what the protocol says, but not to send all of it: a request that
//! ends too early fails with `EIO`.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::connection::mount_xattrs::SYNC_XATTR;
use crate::connection::protocol::{GetxattrIn, InHeader, TransferIn, op};
use crate::errno::{Errno, ErrnoResult};

/// Transfers from this size on take longer than waking a thread.
const LONG_BYTES_MIN: u32 = 64 << 10;

/// How long a request may take, which decides whether the leader serves it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Latency {
    /// No caller waits for the request, and it takes no time.
    NoWaiter,
    /// Usually no longer than waking another thread takes.
    Short,
    Long,
}

/// What a request may wait for, which decides how many threads serve requests like it
/// ([`thread_limits`](crate::worker::thread_limits)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Writes file data, and may be throttled.
    Write,
    /// Waits for devices or a commit: reads of file data, changes of names, syncs. Also the end of
    /// a file, whose last pin deletes it.
    Io,
    /// Waits for tree blocks at most.
    MetadataRead,
}

/// A request, of which the parts before `rest` were taken.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    /// The descriptor that it was read from, to which its reply goes.
    pub(crate) device: &'a Arc<OwnedFd>,
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses the header. Returns `None` where the length in it is not that of `bytes`.
    pub(crate) fn parse(bytes: &'a [u8], device: &'a Arc<OwnedFd>) -> Option<Self> {
        let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
        (usize::try_from(header.len) == Ok(bytes.len())).then_some(Self { header, device, rest })
    }

    /// Returns how long the request may take, by its opcode and size.
    pub(crate) fn latency(&self) -> Latency {
        match self.header.opcode {
            op::FORGET
            | op::BATCH_FORGET
            | op::RELEASE
            | op::RELEASEDIR
            | op::INTERRUPT
            | op::NOTIFY_REPLY => Latency::NoWaiter,
            op::FSYNC
            | op::FSYNCDIR
            | op::SYNCFS
            | op::DESTROY
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::COPY_FILE_RANGE_64 => Latency::Long,
            op::READ | op::WRITE => match TransferIn::read_from_prefix(self.rest) {
                Ok((transfer, _)) if transfer.size >= LONG_BYTES_MIN => Latency::Long,
                _ => Latency::Short,
            },
            _ => Latency::Short,
        }
    }

    /// Returns what the request may wait for, by its opcode.
    pub(crate) fn class(&self) -> Class {
        match self.header.opcode {
            op::WRITE | op::FALLOCATE | op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                Class::Write
            }
            op::GETXATTR => {
                let name = self.rest.get(size_of::<GetxattrIn>()..).unwrap_or_default();
                let is_sync = name.strip_suffix(&[0]) == Some(SYNC_XATTR.as_bytes());
                if is_sync { Class::Io } else { Class::MetadataRead }
            }
            op::LOOKUP
            | op::OPEN
            | op::OPENDIR
            | op::RELEASEDIR
            | op::FORGET
            | op::BATCH_FORGET
            | op::GETATTR
            | op::STATX
            | op::STATFS
            | op::READLINK
            | op::LISTXATTR
            | op::READDIR
            | op::READDIRPLUS
            | op::LSEEK
            | op::INTERRUPT
            | op::NOTIFY_REPLY => Class::MetadataRead,
            _ => Class::Io,
        }
    }

    /// Takes the next fixed part.
    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> ErrnoResult<T> {
        let (part, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno::EIO)?;
        self.rest = rest;
        Ok(part)
    }

    /// Takes the next name, without its final zero byte.
    pub(crate) fn name(&mut self) -> ErrnoResult<&'a [u8]> {
        let name = CStr::from_bytes_until_nul(self.rest).map_err(|_| Errno::EIO)?;
        self.rest = self.rest.get(name.count_bytes() + 1..).unwrap_or_default();
        Ok(name.to_bytes())
    }

    /// Takes the next `bytes` bytes.
    pub(crate) fn data(&mut self, bytes: u32) -> ErrnoResult<&'a [u8]> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EIO)?;
        let (data, rest) = self.rest.split_at_checked(bytes).ok_or(Errno::EIO)?;
        self.rest = rest;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::protocol::{ForgetIn, OpenIn};
    use zerocopy::IntoBytes;

    fn bytes(rest: &[u8]) -> Vec<u8> {
        let len = u32::try_from(40 + rest.len()).unwrap();
        let header = InHeader { len, opcode: op::LOOKUP, ..InHeader::default() };
        [header.as_bytes(), rest].concat()
    }

    fn nowhere() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn names_and_parts_come_in_order() {
        let bytes = bytes(&[7_u64.as_bytes(), b"old\0new\0tail"].concat());
        let device = nowhere();
        let mut request = Request::parse(&bytes, &device).unwrap();
        assert_eq!(request.take::<ForgetIn>().unwrap().nlookup, 7);
        assert_eq!(request.name().unwrap(), b"old");
        assert_eq!(request.name().unwrap(), b"new");
        assert_eq!(request.data(4).unwrap(), b"tail");
        assert_eq!(request.data(1).unwrap_err(), Errno::EIO);
    }

    #[test]
    fn large_transfers_are_long_and_small_ones_short() {
        let device = nowhere();
        let latency = |opcode, size| {
            let transfer = TransferIn { size, ..TransferIn::default() };
            let len = u32::try_from(size_of::<InHeader>() + size_of::<TransferIn>()).unwrap();
            let header = InHeader { len, opcode, ..InHeader::default() };
            let bytes = [header.as_bytes(), transfer.as_bytes()].concat();
            Request::parse(&bytes, &device).unwrap().latency()
        };
        for opcode in [op::READ, op::WRITE] {
            assert_eq!(latency(opcode, LONG_BYTES_MIN - 1), Latency::Short);
            assert_eq!(latency(opcode, LONG_BYTES_MIN), Latency::Long);
        }
        assert_eq!(latency(op::FSYNC, 0), Latency::Long);
        assert_eq!(latency(op::UNLINK, 1 << 20), Latency::Short);
        assert_eq!(latency(op::RELEASE, 0), Latency::NoWaiter);
    }

    #[test]
    fn the_class_of_a_request_is_what_it_may_wait_for() {
        let device = nowhere();
        let class = |opcode, rest: &[u8]| {
            let len = u32::try_from(40 + rest.len()).unwrap();
            let header = InHeader { len, opcode, ..InHeader::default() };
            let bytes = [header.as_bytes(), rest].concat();
            Request::parse(&bytes, &device).unwrap().class()
        };
        for opcode in [op::WRITE, op::FALLOCATE, op::COPY_FILE_RANGE] {
            assert_eq!(class(opcode, &[]), Class::Write);
        }
        for opcode in [
            op::READ,
            op::CREATE,
            op::FSYNC,
            op::UNLINK,
            op::SETATTR,
            op::RELEASE,
            op::DESTROY,
            999,
        ] {
            assert_eq!(class(opcode, &[]), Class::Io);
        }
        let reads = [op::LOOKUP, op::GETATTR, op::READDIRPLUS, op::STATFS];
        for opcode in reads.into_iter().chain([op::FORGET, op::BATCH_FORGET]) {
            assert_eq!(class(opcode, &[]), Class::MetadataRead);
        }
        assert_eq!(
            class(op::OPEN, OpenIn { flags: 2, open_flags: 0 }.as_bytes()),
            Class::MetadataRead
        );
        let getxattr = GetxattrIn { size: 9, padding: 0 };
        let named = |name: &[u8]| [getxattr.as_bytes(), name, &[0]].concat();
        assert_eq!(class(op::GETXATTR, &named(b"user.a")), Class::MetadataRead);
        assert_eq!(class(op::GETXATTR, &named(SYNC_XATTR.as_bytes())), Class::Io);
    }

    #[test]
    fn truncated_requests_fail() {
        let complete = bytes(b"name without an end");
        let device = nowhere();
        assert!(Request::parse(&complete[..20], &device).is_none());
        assert!(Request::parse(&complete[..50], &device).is_none());
        let mut request = Request::parse(&complete, &device).unwrap();
        assert_eq!(request.name().unwrap_err(), Errno::EIO);
        let bare = bytes(b"");
        let mut request = Request::parse(&bare, &device).unwrap();
        assert_eq!(request.take::<ForgetIn>().unwrap_err(), Errno::EIO);
    }
}
