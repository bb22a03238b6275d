//! LSEEK: the next data or hole of a file.

use butternut::File;

use crate::connection::protocol::{LseekIn, LseekOut};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

/// The values of `whence` that the kernel passes on.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Door {
    pub(super) fn seek(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<Outcome> {
        let seek: LseekIn = request.take()?;
        let file = self.file(request, seek.fh)?;
        if !self.handles.is_open_for_write(file.id()) {
            return seek_in(&file, &seek, reply).map(|()| Outcome::Reply);
        }
        self.reply_after_writeback(request, size_of::<LseekOut>(), move |reply| {
            seek_in(&file, &seek, reply)
        })
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
