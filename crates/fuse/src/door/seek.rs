//! Data and holes of a file.

use butternut::File;

use crate::door::{Door, Wanted};
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{LseekIn, LseekOut};

/// `lseek`'s two questions.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Door {
    pub(super) fn seek(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let seek: LseekIn = request.take()?;
        let file = self.file(request, seek.fh)?;
        if !self.handles.is_written(file.id()) {
            return found(&file, &seek, reply).map(|()| Wanted::Reply);
        }
        self.answer_aside(request, size_of::<LseekOut>(), move |reply| found(&file, &seek, reply))
    }
}

fn found(file: &File, seek: &LseekIn, reply: &mut Reply) -> Answer<()> {
    let found = match seek.whence {
        SEEK_DATA => file.seek_data(seek.offset)?,
        SEEK_HOLE => file.seek_hole(seek.offset)?,
        _ => return Err(Refusal::INVALID),
    };
    reply.put(&LseekOut { offset: found.ok_or(Refusal::NO_ADDRESS)? })
}
