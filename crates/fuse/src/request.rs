//! One request of the kernel: its header, and what follows taken apart piece by piece.
//!
//! The kernel is trusted to mean what it says, not to say enough: a request that ends too early is
//! `EIO`, never a panic.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::refusal::{Answer, Refusal};
use crate::session::SYNC_XATTR;
use crate::wire::{GetxattrIn, InHeader, TransferIn, op};

/// Data from here on takes longer to move than a thread to wake.
const LONG_BYTES_MIN: u32 = 64 << 10;

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Nobody waits for it, and it takes no time worth dividing.
    Unwaited,
    /// As a rule no longer than waking another thread takes.
    Brief,
    Long,
}

/// What a request may wait for, and so which share of the threads serves it
/// ([`shares`](crate::share)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Writes file data: it may be throttled.
    Write,
    /// Waits for devices or for a commit: reads of file data, changes of names, syncs.
    Io,
    /// Waits for tree blocks at most.
    Look,
}

/// A request, and how far it has been read.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    /// Where it came from, and its answer goes.
    pub(crate) device: &'a Arc<OwnedFd>,
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    /// `None` for what is no request at all.
    pub(crate) fn parse(bytes: &'a [u8], device: &'a Arc<OwnedFd>) -> Option<Self> {
        let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
        (usize::try_from(header.len) == Ok(bytes.len())).then_some(Self { header, device, rest })
    }

    /// How long it may take, as far as that can be told from it.
    pub(crate) fn pace(&self) -> Pace {
        match self.header.opcode {
            op::FORGET
            | op::BATCH_FORGET
            | op::RELEASE
            | op::RELEASEDIR
            | op::INTERRUPT
            | op::NOTIFY_REPLY => Pace::Unwaited,
            op::FSYNC
            | op::FSYNCDIR
            | op::SYNCFS
            | op::DESTROY
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::COPY_FILE_RANGE_64 => Pace::Long,
            op::READ | op::WRITE => match TransferIn::read_from_prefix(self.rest) {
                Ok((transfer, _)) if transfer.size >= LONG_BYTES_MIN => Pace::Long,
                _ => Pace::Brief,
            },
            _ => Pace::Brief,
        }
    }

    /// What it may wait for, as far as that can be told from it.
    pub(crate) fn class(&self) -> Class {
        match self.header.opcode {
            op::WRITE | op::FALLOCATE | op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                Class::Write
            }
            op::GETXATTR => {
                let name = self.rest.get(size_of::<GetxattrIn>()..).unwrap_or_default();
                let is_sync = name.strip_suffix(&[0]) == Some(SYNC_XATTR.as_bytes());
                if is_sync { Class::Io } else { Class::Look }
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
            | op::NOTIFY_REPLY
            | op::DESTROY => Class::Look,
            _ => Class::Io,
        }
    }

    /// The next fixed part.
    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Answer<T> {
        let (part, rest) = T::read_from_prefix(self.rest).map_err(|_| Refusal::IO)?;
        self.rest = rest;
        Ok(part)
    }

    /// The next name.
    pub(crate) fn name(&mut self) -> Answer<&'a [u8]> {
        let name = CStr::from_bytes_until_nul(self.rest).map_err(|_| Refusal::IO)?;
        self.rest = self.rest.get(name.count_bytes() + 1..).unwrap_or_default();
        Ok(name.to_bytes())
    }

    /// The next `bytes` bytes.
    pub(crate) fn data(&mut self, bytes: u32) -> Answer<&'a [u8]> {
        let bytes = usize::try_from(bytes).map_err(|_| Refusal::IO)?;
        let (data, rest) = self.rest.split_at_checked(bytes).ok_or(Refusal::IO)?;
        self.rest = rest;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ForgetIn, OpenIn};
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
        assert_eq!(request.data(1).unwrap_err(), Refusal::IO);
    }

    #[test]
    fn the_pace_of_a_transfer_is_that_of_its_size() {
        let device = nowhere();
        let pace = |opcode, size| {
            let transfer = TransferIn { size, ..TransferIn::default() };
            let len = u32::try_from(size_of::<InHeader>() + size_of::<TransferIn>()).unwrap();
            let header = InHeader { len, opcode, ..InHeader::default() };
            let bytes = [header.as_bytes(), transfer.as_bytes()].concat();
            Request::parse(&bytes, &device).unwrap().pace()
        };
        for opcode in [op::READ, op::WRITE] {
            assert_eq!(pace(opcode, LONG_BYTES_MIN - 1), Pace::Brief);
            assert_eq!(pace(opcode, LONG_BYTES_MIN), Pace::Long);
        }
        assert_eq!(pace(op::FSYNC, 0), Pace::Long);
        assert_eq!(pace(op::UNLINK, 1 << 20), Pace::Brief);
        assert_eq!(pace(op::RELEASE, 0), Pace::Unwaited);
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
        for opcode in [op::READ, op::CREATE, op::FSYNC, op::UNLINK, op::SETATTR, op::RELEASE, 999] {
            assert_eq!(class(opcode, &[]), Class::Io);
        }
        for opcode in [op::LOOKUP, op::GETATTR, op::READDIRPLUS, op::STATFS, op::DESTROY] {
            assert_eq!(class(opcode, &[]), Class::Look);
        }
        assert_eq!(class(op::OPEN, OpenIn { flags: 2, open_flags: 0 }.as_bytes()), Class::Look);
        let asked = GetxattrIn { size: 9, padding: 0 };
        let named = |name: &[u8]| [asked.as_bytes(), name, &[0]].concat();
        assert_eq!(class(op::GETXATTR, &named(b"user.a")), Class::Look);
        assert_eq!(class(op::GETXATTR, &named(SYNC_XATTR.as_bytes())), Class::Io);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let whole = bytes(b"name without an end");
        let device = nowhere();
        assert!(Request::parse(&whole[..20], &device).is_none());
        assert!(Request::parse(&whole[..50], &device).is_none());
        let mut request = Request::parse(&whole, &device).unwrap();
        assert_eq!(request.name().unwrap_err(), Refusal::IO);
        let bare = bytes(b"");
        let mut request = Request::parse(&bare, &device).unwrap();
        assert_eq!(request.take::<ForgetIn>().unwrap_err(), Refusal::IO);
    }
}
