//! WRITE: from the kernel's page cache, through it, and past it.
//!
//! | mount | handle | the kernel |
//! |---|---|---|
//! | any other | any | writes back what it cached, or passes the cache with `O_DIRECT` |
//! | `parallel_direct` | without `O_DIRECT` | keeps the pages that it sends |
//! | | with `O_DIRECT` | passes the cache |
//! | uncached | any | passes the cache, and writes back the pages of mappings |
//!
//! 1. A write past the cache is applied while the cache holds none of its pages ([`fills`]). Where
//!    it may hold some, the kernel drops them first, which a thread of its own waits for.
//! 2. What the kernel keeps of what it sends counts as a fill. On an uncached mount it keeps only
//!    pages of mappings, which a READ filled.
//!
//! [`fills`]: crate::fills

use std::os::fd::OwnedFd;
use std::sync::Arc;

use butternut::Privileges;

use crate::connection;
use crate::door::data::{Keeps, stripping};
use crate::door::lane::{Lane, O_DIRECT, Writer};
use crate::door::{Door, Wanted};
use crate::handles::Open;
use crate::options::Caching;
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::{InHeader, TransferIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteOut};

/// A program wants its write durable.
const O_DSYNC: u32 = 0o10000;

/// One WRITE, without its bytes.
struct Write {
    header: InHeader,
    asked: TransferIn,
    open: Open,
    lane: Lane,
    device: Arc<OwnedFd>,
}

impl Door {
    pub(super) fn write(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<Wanted> {
        let asked: TransferIn = request.take()?;
        let bytes = request.data(asked.size)?;
        let open = self.find(request, asked.fh)?;
        let is_from_cache = asked.transfer_flags & WRITE_CACHE != 0;
        let lane = self.lane(if is_from_cache { 0 } else { asked.flags });
        let device = Arc::clone(request.device);
        let write = Write { header: request.header, asked, open, lane, device };
        if !write.passes_cache() {
            if self.manner.caching != Caching::Nothing {
                write.open.fills.begin_fill(asked.range());
            }
            return write.apply(bytes, reply).map(|()| Wanted::Reply);
        }
        let stale = match write.open.fills.begin_write(asked.range()) {
            Ok(_applying) => return write.apply(bytes, reply).map(|()| Wanted::Reply),
            Err(stale) => stale,
        };
        let (mut stale, bytes) = (stale, bytes.to_vec());
        self.answer_aside(request, size_of::<WriteOut>(), move |reply| {
            loop {
                connection::drop_pages(&write.device, write.header.nodeid, &stale.pages);
                match write.open.fills.begin_write_after(&stale, write.asked.range()) {
                    Ok(_applying) => return write.apply(&bytes, reply),
                    Err(more) => stale = more,
                }
            }
        })
    }
}

impl Write {
    fn has(&self, flag: u32) -> bool {
        self.asked.transfer_flags & flag != 0
    }

    fn passes_cache(&self) -> bool {
        !self.has(WRITE_CACHE) && (self.open.passes_cache || self.asked.flags & O_DIRECT != 0)
    }

    fn apply(&self, bytes: &[u8], reply: &mut Reply) -> Answer<()> {
        let open = &self.open;
        let write_as = |writer| self.lane.write(&open.file, self.asked.offset, bytes, writer);
        let written = if self.has(WRITE_CACHE) {
            write_as(Writer::Cache)?
        } else if self.has(WRITE_KILL_SUIDGID) {
            let of = (self.header.nodeid, &open.file);
            stripping(&self.header, &self.device, of, Keeps::Nothing, |privileges| {
                write_as(Writer::Program(privileges))
            })?
        } else if open.passes_cache {
            write_as(Writer::Program(Privileges::StripCapabilities))?
        } else {
            write_as(Writer::Program(Privileges::Keep))?
        };
        // What goes through its cache, or past it one at a time, the kernel syncs itself.
        if open.passes_cache && !self.has(WRITE_CACHE) && self.asked.flags & O_DSYNC != 0 {
            open.file.sync_data()?;
        }
        reply.put(&WriteOut { size: u32::try_from(written).unwrap_or(0), padding: 0 })
    }
}
