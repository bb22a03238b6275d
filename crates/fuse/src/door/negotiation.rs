//! INIT: what the kernel and we can do, settled before anything else.

use crate::door::{Door, Manner};
use crate::options::Caching;
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;
use crate::share::KEPT_BYTES_MAX;
use crate::wire::{InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, init, op};

/// The largest read or write that the kernel may ask for.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
const TRANSFER_PAGES_MAX: u16 = 256;
/// Requests that the kernel may have in flight for readahead and writeback, and from how many on
/// it slows down. With all of them waiting for their share of the threads, there is memory for
/// more ([`KEPT_BYTES_MAX`]).
pub(crate) const BACKGROUND_MAX: u16 = 48;
const BACKGROUND_MANY: u16 = 36;
const _: () =
    assert!((BACKGROUND_MAX as usize + 8) * (TRANSFER_BYTES_MAX as usize + 8192) < KEPT_BYTES_MAX);

const ALWAYS: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::MAX_PAGES
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::EXPORT_SUPPORT
    | init::INIT_EXT;

/// `O_TRUNC` is left to the kernel, which sends a change of the size once it has found that no
/// process executes the file: of an OPEN with the flag it finds that out when the file is empty.
const WRITABLE: u64 = init::DONT_MASK | init::HANDLE_KILLPRIV_V2 | init::SETXATTR_EXT;

impl Manner {
    fn wanted(&self) -> u64 {
        let mut wanted = ALWAYS;
        if self.checks_permissions {
            wanted |= init::POSIX_ACL;
        }
        if self.is_writable {
            wanted |= WRITABLE;
        } else {
            // No name is new, so a listing needs no end (`listing`).
            wanted |= init::NO_OPENDIR_SUPPORT;
        }
        if !self.is_writable && self.caching != Caching::Nothing {
            // Nothing that is open can go, so nothing has to be opened.
            wanted |= init::NO_OPEN_SUPPORT;
        }
        if self.writes_back() {
            // Only append-only files pass the cache here, and those are not to be mapped.
            wanted |= init::WRITEBACK_CACHE;
        } else {
            wanted |= init::DIRECT_IO_ALLOW_MMAP;
        }
        wanted
    }
}

impl Door {
    /// Answers the first request. An older kernel goes without what it does not know, and is
    /// slower.
    pub(crate) fn negotiate(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        if request.header.opcode != op::INIT {
            return Err(Refusal::IO);
        }
        let asked: InitIn = request.take()?;
        if asked.major != MAJOR || asked.minor < MINOR_MIN {
            return Err(Refusal::UNSUPPORTED);
        }
        let more: u32 = request.take().unwrap_or(0);
        let known = u64::from(asked.flags) | u64::from(more) << 32;
        let agreed = self.manner.wanted() & known;
        self.set_has_long_setxattr(agreed & init::SETXATTR_EXT != 0);
        let half = |flags: u64| u32::try_from(flags & u64::from(u32::MAX)).unwrap_or(0);
        reply.put(&InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: TRANSFER_BYTES_MAX,
            flags: half(agreed),
            flags2: half(agreed >> 32),
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MANY,
            max_write: TRANSFER_BYTES_MAX,
            max_pages: TRANSFER_PAGES_MAX,
            time_gran: 1,
            ..InitOut::default()
        })
    }
}
