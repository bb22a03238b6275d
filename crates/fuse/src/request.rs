//! One request of the kernel: its header, and what follows taken apart piece by piece.
//!
//! The kernel is trusted to mean what it says, not to say enough: a request that ends too early is
//! `EIO`, never a panic.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::refusal::{Answer, Refusal};
use crate::wire::InHeader;

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
    use crate::wire::{ForgetIn, op};
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
