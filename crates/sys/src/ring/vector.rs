//! [`Vector`]: the `iovec` list of a write from several buffers.
//!
//! 1. The list is built anew for each submission, from the first byte that is not written yet: a
//!    short write continues in the middle of a buffer, and a write of more than [`SEGMENTS_MAX`]
//!    segments is submitted as several, one after the other.
//! 2. Buffers that are adjacent in memory form one segment, and a single segment is submitted
//!    without a list: buffers in sequence in one registered arena are written as registered memory.

/// Maximum number of segments of one submission.
pub const SEGMENTS_MAX: usize = 256;

pub(super) struct Vector {
    /// Boxed, because the kernel may read it as long as the request is in flight.
    list: Box<[libc::iovec; SEGMENTS_MAX]>,
}

/// The memory to submit next.
pub(super) struct Segment {
    pub(super) start: *mut u8,
    pub(super) len: usize,
    /// The list and its length, if there is more than one segment.
    pub(super) vector: Option<(*const libc::iovec, u32)>,
}

impl Default for Vector {
    fn default() -> Vector {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Vector { list: Box::new([empty; SEGMENTS_MAX]) }
    }
}

impl Vector {
    /// Lists at most `bytes_max` bytes of the buffers in `row` (start and length of each) behind
    /// the first `done` bytes.
    pub(super) fn fill(
        &mut self,
        row: impl Iterator<Item = (*mut u8, usize)>,
        done: usize,
        bytes_max: usize,
    ) -> Segment {
        let (mut skip, mut left, mut count) = (done, bytes_max, 0);
        for (start, len) in row {
            let skipped = skip.min(len);
            skip -= skipped;
            let len = (len - skipped).min(left);
            if len == 0 {
                continue;
            }
            let start = start.wrapping_add(skipped);
            if !self.grow_last(count, start, len) {
                let Some(entry) = self.list.get_mut(count) else { break };
                *entry = libc::iovec { iov_base: start.cast(), iov_len: len };
                count += 1;
            }
            left -= len;
        }
        let first = self.list[0];
        match count {
            0 => Segment { start: std::ptr::null_mut(), len: 0, vector: None },
            1 => Segment { start: first.iov_base.cast(), len: first.iov_len, vector: None },
            count => {
                let count = u32::try_from(count).expect("at most 256");
                let vector = Some((self.list.as_ptr(), count));
                Segment { start: std::ptr::null_mut(), len: 0, vector }
            }
        }
    }

    /// Extends the last segment if it ends where this one starts (law 2). Returns whether it did.
    fn grow_last(&mut self, count: usize, start: *mut u8, len: usize) -> bool {
        let last = count.checked_sub(1).and_then(|last| self.list.get_mut(last));
        let Some(last) = last else { return false };
        let touches = last.iov_base.cast::<u8>().wrapping_add(last.iov_len).addr() == start.addr();
        if touches {
            last.iov_len += len;
        }
        touches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::buffer::Buffer;

    /// Returns the segments as (address, length).
    fn listed(row: &[Buffer], done: usize, bytes_max: usize) -> Vec<(usize, usize)> {
        let mut vector = Vector::default();
        let row = row.iter().map(|buffer| (buffer.start().as_ptr(), buffer.len()));
        let segment = vector.fill(row, done, bytes_max);
        match segment.vector {
            None => vec![(segment.start.addr(), segment.len)],
            Some((_, count)) => {
                let list = vector.list.iter().take(count as usize);
                list.map(|entry| (entry.iov_base.addr(), entry.iov_len)).collect()
            }
        }
    }

    #[test]
    fn a_short_write_continues_inside_a_buffer() {
        let (first, second, third) = (Buffer::zeroed(10), Buffer::zeroed(20), Buffer::zeroed(30));
        let at = |buffer: &Buffer| buffer.as_ptr().addr();
        let (a, b, c) = (at(&first), at(&second), at(&third));
        let row = [first, Buffer::default(), second, third];
        assert_eq!(listed(&row, 0, 1000), [(a, 10), (b, 20), (c, 30)]);
        assert_eq!(listed(&row, 4, 1000), [(a + 4, 6), (b, 20), (c, 30)]);
        assert_eq!(listed(&row, 10, 1000), [(b, 20), (c, 30)]);
        assert_eq!(listed(&row, 29, 1000), [(b + 19, 1), (c, 30)]);
        assert_eq!(listed(&row, 31, 1000), [(c + 1, 29)]);
        assert_eq!(listed(&row, 4, 10), [(a + 4, 6), (b, 4)]);
    }

    #[test]
    fn adjacent_buffers_form_one_segment() {
        let arena = Arena::new(2 << 20).unwrap();
        let mut row: Vec<Buffer> = (0..4).map(|_| arena.allocate(4096).unwrap()).collect();
        row.sort_by_key(|buffer| buffer.as_ptr().addr());
        let start = row[0].as_ptr().addr();
        assert_eq!(listed(&row, 0, 1 << 30), [(start, 4 * 4096)]);
        row[1].set_len(4095);
        assert_eq!(listed(&row, 0, 1 << 30), [(start, 8191), (start + 8192, 8192)]);
    }

    #[test]
    fn a_list_that_is_full_ends_between_two_buffers() {
        let row: Vec<Buffer> = (0..SEGMENTS_MAX + 9).map(|_| Buffer::zeroed(9)).collect();
        let first = listed(&row, 0, 10_000);
        assert_eq!(first.len(), SEGMENTS_MAX);
        let rest = listed(&row, SEGMENTS_MAX * 9, 10_000);
        assert_eq!((rest.len(), rest[0].0), (9, row[SEGMENTS_MAX].as_ptr().addr()));
    }
}
