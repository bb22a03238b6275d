//! Data and holes of a file that the kernel may have written to in its cache.
//!
//! The kernel asks where data is without sending what it holds back. So it is asked for that first;
//! and because it then waits for other threads to take it, and all of them may be looking for data,
//! such a request gets a thread of its own.

use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use butternut::File;

use crate::connection;
use crate::door::{Door, Wanted};
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{LseekIn, LseekOut};

/// `lseek`'s two questions.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Door {
    pub(super) fn seek(
        self: &Arc<Self>,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Answer<Wanted> {
        let seek: LseekIn = request.take()?;
        let file = self.file(request, seek.fh)?;
        if !self.handles.is_written(file.id()) {
            return found(&file, &seek, reply).map(|()| Wanted::Reply);
        }
        let (unique, node) = (request.header.unique, request.header.nodeid);
        let device = Arc::clone(request.device);
        let search = move || {
            let mut reply = Reply::new(size_of::<LseekOut>());
            connection::write_pages_back(&device, node);
            let answer = found(&file, &seek, &mut reply);
            connection::answer(&device, unique, answer, &reply);
        };
        let seeker = thread::Builder::new().name("butternut-seek".into()).spawn(search);
        let seeker = seeker.map_err(|error| Refusal(error.raw_os_error().unwrap_or(11)))?;
        let mut seekers = self.seekers.lock().unwrap_or_else(PoisonError::into_inner);
        seekers.retain(|seeker| !seeker.is_finished());
        seekers.push(seeker);
        Ok(Wanted::Nothing)
    }

    /// Waits until nobody is looking for data any more.
    pub(super) fn end_seekers(seekers: Vec<JoinHandle<()>>) {
        for seeker in seekers {
            // One that panicked has no answer, and is at its end all the same.
            seeker.join().unwrap_or_default();
        }
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
