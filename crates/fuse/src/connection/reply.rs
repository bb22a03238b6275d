//! The reply to one request, built in memory that is reused for the next one.
//!
//! ```text
//! up to a page    | header | payload |
//! larger          | unused ..... header | payload |    page-aligned payload, for device reads
//! ```

use butternut_sys::buffer::Buffer;
use zerocopy::{Immutable, IntoBytes};

use crate::connection::protocol::{Dirent, EntryOut, GetxattrOut, OutHeader};
use crate::errno::{Errno, ErrnoResult};

/// Alignment of directory entries, in bytes.
const DIRENT_ALIGN: usize = 8;

const HEADER_BYTES: usize = size_of::<OutHeader>();
/// Offset of the payload in the memory.
const PAYLOAD_AT: usize = 4096;

/// A reply: its header and payload.
pub(crate) struct Reply {
    memory: Buffer,
    /// Bytes of the payload.
    len: usize,
}

impl Reply {
    /// Allocates memory for payloads of up to `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { memory: Buffer::zeroed(PAYLOAD_AT + bytes_max), len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[cfg(test)]
    fn bytes(&self) -> &[u8] {
        &self.memory[PAYLOAD_AT..PAYLOAD_AT + self.len]
    }

    /// Returns the bytes to send, contiguous, and on one page if they fit into one.
    pub(crate) fn message(&mut self, error: i32, unique: u64) -> &[u8] {
        let bytes = HEADER_BYTES + self.len;
        let header = OutHeader { len: u32::try_from(bytes).unwrap_or(u32::MAX), error, unique };
        let at = if bytes <= PAYLOAD_AT {
            self.memory.copy_within(PAYLOAD_AT..PAYLOAD_AT + self.len, HEADER_BYTES);
            0
        } else {
            PAYLOAD_AT - HEADER_BYTES
        };
        self.memory[at..at + HEADER_BYTES].copy_from_slice(header.as_bytes());
        &self.memory[at..at + bytes]
    }

    /// Returns memory for up to `bytes` more bytes of payload, page-aligned in an empty reply. The
    /// bytes belong to the payload after [`Reply::advance`].
    pub(crate) fn spare(&mut self, bytes: usize) -> &mut [u8] {
        let payload = &mut self.memory[PAYLOAD_AT..];
        let end = self.len.saturating_add(bytes).min(payload.len());
        &mut payload[self.len..end]
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.len = self.len.saturating_add(bytes).min(self.memory.len() - PAYLOAD_AT);
    }

    pub(crate) fn push<T: IntoBytes + Immutable>(&mut self, part: &T) -> ErrnoResult<()> {
        self.push_bytes(part.as_bytes())
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) -> ErrnoResult<()> {
        let spare = self.spare(bytes.len());
        if spare.len() < bytes.len() {
            return Err(Errno::ERANGE);
        }
        spare.copy_from_slice(bytes);
        self.advance(bytes.len());
        Ok(())
    }

    /// Adds the value of an extended attribute, or its size where the caller's buffer has 0 bytes.
    pub(crate) fn push_xattr(&mut self, spare: u32, value: &[u8]) -> ErrnoResult<()> {
        let size = u32::try_from(value.len()).map_err(|_| Errno::ERANGE)?;
        match spare {
            0 => self.push(&GetxattrOut { size, padding: 0 }),
            spare if size <= spare => self.push_bytes(value),
            _ => Err(Errno::ERANGE),
        }
    }

    /// Adds a directory entry. Returns `false` where the payload would be larger than `bytes_max`.
    pub(crate) fn push_dirent(
        &mut self,
        bytes_max: usize,
        plus: Option<&EntryOut>,
        dirent: &Dirent,
        name: &[u8],
    ) -> bool {
        let plus = plus.map_or(&[][..], IntoBytes::as_bytes);
        let bytes = plus.len() + size_of::<Dirent>() + name.len();
        let padded = bytes.next_multiple_of(DIRENT_ALIGN);
        if self.len + padded > bytes_max.min(self.memory.len() - PAYLOAD_AT) {
            return false;
        }
        let spare = self.spare(padded);
        let (head, rest) = spare.split_at_mut(plus.len());
        head.copy_from_slice(plus);
        let (fixed, rest) = rest.split_at_mut(size_of::<Dirent>());
        fixed.copy_from_slice(dirent.as_bytes());
        let (text, padding) = rest.split_at_mut(name.len());
        text.copy_from_slice(name);
        padding.fill(0);
        self.advance(padded);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_entries_are_padded_and_end_at_the_readers_size() {
        let mut reply = Reply::new(4096);
        let dirent = Dirent { ino: 7, off: 3, namelen: 3, kind: 8 };
        assert!(reply.push_dirent(64, None, &dirent, b"abc"));
        assert_eq!(reply.bytes().len(), 32);
        assert_eq!(&reply.bytes()[24..], b"abc\0\0\0\0\0");
        assert!(reply.push_dirent(64, None, &dirent, b"abc"));
        assert!(!reply.push_dirent(64, None, &dirent, b"abc"));
        assert_eq!(reply.bytes().len(), 64);
    }

    #[test]
    fn a_message_is_its_header_and_its_payload_whatever_its_size() {
        let mut reply = Reply::new(8192);
        for bytes in [0, 1, 4080, 4081, 8192] {
            reply.clear();
            let payload: Vec<u8> = (0..bytes).map(|at: u32| at.to_le_bytes()[0]).collect();
            reply.push_bytes(&payload).unwrap();
            let header = OutHeader { len: 16 + bytes, error: -2, unique: 7 };
            let message = [header.as_bytes(), &payload].concat();
            assert!(reply.message(-2, 7) == message, "{bytes}");
        }
        assert_eq!(reply.push_bytes(b"more"), Err(Errno::ERANGE));
    }

    #[test]
    fn an_xattr_reply_is_the_value_or_its_size() {
        let mut reply = Reply::new(4096);
        assert_eq!(reply.push_xattr(2, b"abc"), Err(Errno::ERANGE));
        reply.push_xattr(0, b"abc").unwrap();
        assert_eq!(reply.bytes(), [3, 0, 0, 0, 0, 0, 0, 0]);
        reply.clear();
        reply.push_xattr(3, b"abc").unwrap();
        assert_eq!(reply.bytes(), b"abc");
    }
}
