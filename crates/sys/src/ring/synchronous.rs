//! Completes a request by a system call of the calling thread, where the kernel does not serve it.
//!
//! 1. The kernel passes a request that blocks to a thread of its own: every flush, and some writes
//!    to files. Where it may start none (the limit of tasks of a user or a container is reached),
//!    it cancels the request. It also fails a request for which it has no memory. Neither is a
//!    failure of the disk.
//! 2. The kernel has answered the request, so it no longer uses the memory of the request. The call
//!    transfers the rest of it, by the same descriptor, memory and flags as a submission.
//! 3. The call waits for the disk, also past the deadline of [`Ring::wait`].
//! 4. An error of the call is the result, unless a signal interrupted it.

use super::vector::Segment;
use super::{Operation, Ring};
use crate::errno::Errno;

impl<T> Ring<T> {
    /// Transfers the rest of a request that the kernel has answered (law 2).
    pub(super) fn transfer_synchronously(&mut self, index: u32) -> Result<(), Errno> {
        loop {
            match self.call(index) {
                Ok(count) => {
                    if let Some(result) = self.slots[index as usize].progress(count) {
                        return result;
                    }
                }
                Err(Errno::INTERRUPTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Calls the kernel once. Returns the number of bytes transferred.
    fn call(&mut self, index: u32) -> Result<usize, Errno> {
        let slot = &mut self.slots[index as usize];
        let fd = self.table.descriptor(slot.file);
        let at = slot.offset.checked_add(slot.done as u64);
        let at = at.and_then(|at| libc::off_t::try_from(at).ok()).ok_or(Errno::INVALID)?;
        let Segment { start, len, vector } = slot.segment();
        let one = libc::iovec { iov_base: start.cast(), iov_len: len };
        let (list, count) = vector.unwrap_or((&raw const one, 1));
        let count = libc::c_int::try_from(count).map_err(|_| Errno::INVALID)?;
        let answer = match slot.operation {
            // SAFETY: the slot's memory stays valid until its completion (laws 1 and 2 of `ring`),
            // and the kernel no longer uses it for the request (law 2). The list is in the slot's
            // vector, or `one`.
            Operation::Read => unsafe { libc::preadv(fd, list, count, at) },
            // SAFETY: as above.
            Operation::Write => unsafe { libc::pwritev2(fd, list, count, at, slot.write_flags()) },
            // SAFETY: takes an integer only.
            Operation::Flush => unsafe { libc::fdatasync(fd) as libc::ssize_t },
        };
        usize::try_from(answer).map_err(|_| Errno::last())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Memory, Outcome, RingOptions, SEGMENTS_MAX, Slot, Submission, TRIES_MAX, Transfer,
    };
    use super::*;
    use crate::buffer::Buffer;
    use crate::buffers::Load;
    use crate::file::{DiskFile, OpenDisk};
    use std::io::Write;

    const BLOCK: usize = 4096;
    const BLOCKS: u8 = 16;

    /// Returns a file whose every block is filled with its own number, and a ring over it.
    fn numbered(writable: bool) -> (tempfile::NamedTempFile, Ring<u32>) {
        let mut image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        (0..BLOCKS).for_each(|number| image.write_all(&[number; BLOCK]).unwrap());
        let how = OpenDisk { writable, ..OpenDisk::default() };
        let file = DiskFile::open(image.path(), how).unwrap();
        let options = RingOptions { depth: 4, ..RingOptions::default() };
        let ring = Ring::new(&[&file], &options).unwrap();
        (image, ring)
    }

    fn block(operation: Operation, number: usize, load: Load) -> Submission<u32> {
        let (offset, need) = ((number * BLOCK) as u64, load.bytes());
        Submission { operation, file: 0, offset, load, need, user_data: 7 }
    }

    /// Puts a request into the ring as if the kernel had transferred `done` bytes of it, and had
    /// then failed to serve it several times. Returns its slot.
    fn refused(ring: &mut Ring<u32>, slot: Slot<u32>, done: usize) -> u32 {
        let index = ring.free.pop().unwrap();
        ring.slots[index as usize] = Slot { done, tries: TRIES_MAX - 1, ..slot };
        index
    }

    fn complete_owned(
        ring: &mut Ring<u32>,
        submission: Submission<u32>,
        done: usize,
    ) -> (Load, Result<(), Errno>) {
        let slot = ring.owned_slot(submission);
        ring.owned += 1;
        let index = refused(ring, slot, done);
        let outcome = ring.complete_slot((index.into(), -libc::ECANCELED));
        assert!(matches!(outcome, Outcome::Nothing));
        let completion = ring.next_completion().unwrap();
        assert_eq!(completion.user_data, 7);
        assert_eq!((ring.outstanding(), ring.free.len()), (0, 8));
        (completion.load, completion.result)
    }

    #[test]
    fn the_rest_of_a_read_is_read() {
        let (_image, mut ring) = numbered(false);
        let load = Load::from(Buffer::zeroed(3 * BLOCK));
        let (load, result) = complete_owned(&mut ring, block(Operation::Read, 4, load), BLOCK);
        assert_eq!(result, Ok(()));
        let buffer = load.into_one().unwrap();
        let want: Vec<u8> = [0, 5, 6].into_iter().flat_map(|number| [number; BLOCK]).collect();
        assert!(buffer[..] == want, "the first block was transferred before");
    }

    #[test]
    fn a_read_past_the_end_and_a_write_without_permission_fail_with_their_own_errors() {
        let (_image, mut ring) = numbered(false);
        let read = block(Operation::Read, BLOCKS.into(), Buffer::zeroed(BLOCK).into());
        assert_eq!(complete_owned(&mut ring, read, 0).1, Err(Errno::NO_DATA));
        let write = block(Operation::Write, 1, Buffer::zeroed(BLOCK).into());
        assert_eq!(complete_owned(&mut ring, write, 0).1, Err(Errno(libc::EBADF)));
    }

    #[test]
    fn a_write_from_many_buffers_is_written_from_where_it_ended() {
        let (image, mut ring) = numbered(true);
        let count = SEGMENTS_MAX + 5;
        let row: Vec<Buffer> = (0..count)
            .map(|number| {
                let mut buffer = Buffer::zeroed(BLOCK);
                buffer.fill(u8::try_from(100 + number % 100).unwrap());
                buffer
            })
            .collect();
        let (load, result) =
            complete_owned(&mut ring, block(Operation::Write, 1, row.into()), 2 * BLOCK);
        assert_eq!(result, Ok(()));
        assert_eq!(load.as_slice().len(), count, "all buffers come back");
        let bytes = std::fs::read(image.path()).unwrap();
        let numbers: Vec<u8> = bytes.chunks(BLOCK).map(|block| block[0]).collect();
        assert_eq!(&numbers[..5], [0, 1, 2, 102, 103]);
        assert_eq!(numbers.len(), 1 + count);
        assert_eq!(usize::from(numbers[count]), 100 + (count - 1) % 100);
    }

    #[test]
    fn a_flush_and_a_durable_write_of_borrowed_memory_succeed() {
        let (image, mut ring) = numbered(true);
        let flush = Submission { need: 0, ..block(Operation::Flush, 0, Load::default()) };
        assert_eq!(complete_owned(&mut ring, flush, 0).1, Ok(()));
        let mut memory = Buffer::zeroed(2 * BLOCK);
        memory.fill(0x77);
        let row: [&[u8]; 2] = [&memory[..BLOCK], &memory[BLOCK..]];
        let memory = Memory::WriteVectored(&row);
        let transfer = Transfer { file: 0, offset: 0, memory, need: 2 * BLOCK, is_durable: true };
        let slot = Slot::borrowed(transfer, 3, &mut ring.vectors);
        ring.borrowed += 1;
        let index = refused(&mut ring, slot, 0);
        let outcome = ring.complete_slot((index.into(), -libc::EAGAIN));
        assert!(matches!(outcome, Outcome::Batch { index: 3, result: Ok(()) }));
        assert_eq!(ring.borrowed, 0);
        let bytes = std::fs::read(image.path()).unwrap();
        assert!(bytes[..2 * BLOCK].iter().all(|byte| *byte == 0x77));
        assert_eq!(bytes[2 * BLOCK], 2);
    }
}
