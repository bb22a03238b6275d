//! The answer to one request, put together in memory that is used again for the next.
//!
//! ```text
//! small    | header | payload |
//! large    | room of a page .... header | payload |      page-aligned, so that reads go into it
//! ```

use butternut_sys::buffer::Buffer;
use zerocopy::{Immutable, IntoBytes};

use crate::refusal::{Answer, Refusal};
use crate::wire::{Dirent, EntryOut, GetxattrOut, OutHeader};

/// Directory entries begin at multiples of this.
const DIRENT_ALIGN: usize = 8;

const HEADER_BYTES: usize = size_of::<OutHeader>();
/// Where the payload begins.
const PAYLOAD_AT: usize = 4096;

/// A header, and what is sent behind it.
pub(crate) struct Reply {
    memory: Buffer,
    /// Of the payload.
    len: usize,
}

impl Reply {
    /// Room for answers of up to `bytes_max`.
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

    /// All that is sent: the kernel takes it in one piece, and a small one from one page.
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

    /// Memory for `bytes` more bytes, page-aligned in an empty answer; less where it ends. They
    /// count once they are [`filled`](Self::filled).
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        let payload = &mut self.memory[PAYLOAD_AT..];
        let end = self.len.saturating_add(bytes).min(payload.len());
        &mut payload[self.len..end]
    }

    pub(crate) fn filled(&mut self, bytes: usize) {
        self.len = self.len.saturating_add(bytes).min(self.memory.len() - PAYLOAD_AT);
    }

    pub(crate) fn put<T: IntoBytes + Immutable>(&mut self, part: &T) -> Answer<()> {
        self.data(part.as_bytes())
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) -> Answer<()> {
        let room = self.room(bytes.len());
        if room.len() < bytes.len() {
            return Err(Refusal::RANGE);
        }
        room.copy_from_slice(bytes);
        self.filled(bytes.len());
        Ok(())
    }

    /// Bytes in the way of extended attributes: room for 0 asks for their number.
    pub(crate) fn sized(&mut self, room: u32, value: &[u8]) -> Answer<()> {
        let size = u32::try_from(value.len()).map_err(|_| Refusal::RANGE)?;
        match room {
            0 => self.put(&GetxattrOut { size, padding: 0 }),
            room if size <= room => self.data(value),
            _ => Err(Refusal::RANGE),
        }
    }

    /// Adds an entry of a directory, unless the answer would be larger than `bytes_max`; whether
    /// it was added.
    pub(crate) fn entry(
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
        let room = self.room(padded);
        let (head, rest) = room.split_at_mut(plus.len());
        head.copy_from_slice(plus);
        let (fixed, rest) = rest.split_at_mut(size_of::<Dirent>());
        fixed.copy_from_slice(dirent.as_bytes());
        let (text, padding) = rest.split_at_mut(name.len());
        text.copy_from_slice(name);
        padding.fill(0);
        self.filled(padded);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_stop_where_the_reader_has_no_more_room() {
        let mut reply = Reply::new(4096);
        let dirent = Dirent { ino: 7, off: 3, namelen: 3, kind: 8 };
        assert!(reply.entry(64, None, &dirent, b"abc"));
        assert_eq!(reply.bytes().len(), 32);
        assert_eq!(&reply.bytes()[24..], b"abc\0\0\0\0\0");
        assert!(reply.entry(64, None, &dirent, b"abc"));
        assert!(!reply.entry(64, None, &dirent, b"abc"));
        assert_eq!(reply.bytes().len(), 64);
    }

    #[test]
    fn a_message_is_its_header_and_its_payload_whatever_its_size() {
        let mut reply = Reply::new(8192);
        for bytes in [0, 1, 4080, 4081, 8192] {
            reply.clear();
            let payload: Vec<u8> = (0..bytes).map(|at: u32| at.to_le_bytes()[0]).collect();
            reply.data(&payload).unwrap();
            let header = OutHeader { len: 16 + bytes, error: -2, unique: 7 };
            let message = [header.as_bytes(), &payload].concat();
            assert!(reply.message(-2, 7) == message, "{bytes}");
        }
        assert_eq!(reply.data(b"more"), Err(Refusal::RANGE));
    }

    #[test]
    fn a_value_is_sent_where_there_is_room_and_its_size_where_that_is_asked() {
        let mut reply = Reply::new(4096);
        assert_eq!(reply.sized(2, b"abc"), Err(Refusal::RANGE));
        reply.sized(0, b"abc").unwrap();
        assert_eq!(reply.bytes(), [3, 0, 0, 0, 0, 0, 0, 0]);
        reply.clear();
        reply.sized(3, b"abc").unwrap();
        assert_eq!(reply.bytes(), b"abc");
    }
}
