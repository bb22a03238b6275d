//! [`Vector`]: the list of segments that the kernel reads a write from several buffers by.
//!
//! 1. A list is made afresh for each submission, from the byte that the write has come to: a short
//!    write goes on in the middle of a buffer, a write of more than [`SEGMENTS_MAX`] segments goes
//!    down as several, one after the other.
//! 2. Buffers that touch in memory are one segment, and a list of one segment is no list: a run cut
//!    from one registered arena is written as registered memory.

/// The most segments that are given to the kernel at once.
pub const SEGMENTS_MAX: usize = 256;

pub(super) struct Vector {
    /// Boxed: the kernel may look at it as long as the request is out.
    list: Box<[libc::iovec; SEGMENTS_MAX]>,
}

/// What to write next.
pub(super) struct Segment {
    pub(super) start: *mut u8,
    pub(super) len: usize,
    /// The list and how many are in it, if one segment is not all.
    pub(super) vector: Option<(*const libc::iovec, u32)>,
}

impl Default for Vector {
    fn default() -> Vector {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Vector { list: Box::new([empty; SEGMENTS_MAX]) }
    }
}

impl Vector {
    /// Lists the bytes of the row, whose pieces start there and are that long, behind the first
    /// `done`, at most `bytes_max`.
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

    /// Whether the last segment ends where this one starts, and was made longer by it (law 2).
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

    /// The segments as (address, length).
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
    fn a_short_write_goes_on_inside_the_buffer_that_it_came_to() {
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
    fn neighbours_in_memory_are_one_segment() {
        let arena = Arena::new(2 << 20).unwrap();
        let mut row: Vec<Buffer> = (0..4).map(|_| arena.take(4096).unwrap()).collect();
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
