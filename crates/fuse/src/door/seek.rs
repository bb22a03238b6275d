//! LSEEK: the next data or hole of a file.
//!
//! 1. The kernel holds the lock of the file until the reply, so the request is not queued (law 3 of
//!    `deferred`). Above the limit of such calls, all of the file is data, which every filesystem
//!    may answer: a program copies zeros then.
//! 2. With write-back caching only the kernel knows the size of a file that is written, so above
//!    the limit the call fails with `EINVAL`, as on a filesystem without holes: programs read the
//!    whole file then.
//! 3. A search may pass any number of extents of the file, so a thread of its own searches a large
//!    one: otherwise the searches of one user could occupy all workers.

use butternut::File;

use crate::connection::protocol::{LseekIn, LseekOut};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

/// The values of `whence` that the kernel passes on.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Maximum size of a file that a worker searches, in bytes (law 3): it has at most 8,192 extents
/// and holes.
const SMALL_BYTES_MAX: u64 = 32 << 20;

impl Door {
    pub(super) fn seek(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let seek: LseekIn = request.take()?;
        let file = self.file(request, seek.fh)?;
        let is_written = self.handles.is_open_for_write(file.id());
        if !is_written && file.len() <= SMALL_BYTES_MAX {
            return seek_in(&file, &seek, reply).map(|()| Outcome::Reply);
        }
        if let Some(counted) = self.seeks.begin(self.counted_user(request)) {
            let (of_thread, bytes) = (file.clone(), size_of::<LseekOut>());
            let answer = move |reply: &mut Reply| seek_in(&of_thread, &seek, reply);
            let deferred = if is_written {
                self.reply_after_writeback(request, counted, bytes, answer)
            } else {
                self.reply_deferred(request, bytes, move |reply| {
                    let _counted = counted;
                    answer(reply)
                })
            };
            if deferred.is_ok() {
                return deferred;
            }
        }
        // Law 2.
        if is_written && self.options.writes_back() {
            return Err(Errno::EINVAL);
        }
        reply.push(&LseekOut { offset: position_in_data(&seek, file.len())? })?;
        Ok(Outcome::Reply)
    }
}

/// Returns the answer for a file of `size` bytes without holes (law 1).
fn position_in_data(seek: &LseekIn, size: u64) -> ErrnoResult<u64> {
    match seek.whence {
        SEEK_DATA | SEEK_HOLE if seek.offset >= size => Err(Errno::ENXIO),
        SEEK_DATA => Ok(seek.offset),
        SEEK_HOLE => Ok(size),
        _ => Err(Errno::EINVAL),
    }
}

fn seek_in(file: &File, seek: &LseekIn, reply: &mut Reply) -> ErrnoResult<()> {
    let position = match seek.whence {
        SEEK_DATA => file.seek_data(seek.offset)?,
        SEEK_HOLE => file.seek_hole(seek.offset)?,
        _ => return Err(Errno::EINVAL),
    };
    reply.push(&LseekOut { offset: position.ok_or(Errno::ENXIO)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_holes_is_data_up_to_its_end() {
        let position = |whence, offset| {
            position_in_data(&LseekIn { offset, whence, ..LseekIn::default() }, 100)
        };
        assert_eq!([0, 99].map(|offset| position(SEEK_DATA, offset)), [Ok(0), Ok(99)]);
        assert_eq!([0, 99].map(|offset| position(SEEK_HOLE, offset)), [Ok(100); 2]);
        for whence in [SEEK_DATA, SEEK_HOLE] {
            assert_eq!(position(whence, 100), Err(Errno::ENXIO));
        }
        assert_eq!(position(0, 0), Err(Errno::EINVAL));
    }
}
