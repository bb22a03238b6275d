//! INIT: the features and limits that the kernel and the door agree on.

use crate::connection::protocol::{InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, init, op};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, DoorOptions};
use crate::errno::{Errno, ErrnoResult};
use crate::options::Caching;
use crate::worker::thread_limits::QUEUED_BYTES_MAX;

/// Maximum number of bytes of one READ or WRITE.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
const TRANSFER_PAGES_MAX: u16 = 256;
/// Maximum number of background requests (readahead and writeback) that the kernel has in flight,
/// and the number from which on it is congested. All of them fit into the queue of requests
/// ([`QUEUED_BYTES_MAX`]).
pub(crate) const BACKGROUND_MAX: u16 = 48;
const BACKGROUND_CONGESTED: u16 = 36;
const _: () = assert!(
    (BACKGROUND_MAX as usize + 8) * (TRANSFER_BYTES_MAX as usize + 8192) < QUEUED_BYTES_MAX
);

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

/// Without `ATOMIC_O_TRUNC` the kernel sends a SETATTR of the size for `O_TRUNC`, after it has
/// checked that no process executes the file. An OPEN with the flag would truncate the file before
/// that check.
const WRITABLE: u64 = init::DONT_MASK | init::HANDLE_KILLPRIV_V2 | init::SETXATTR_EXT;

impl DoorOptions {
    fn features(&self) -> u64 {
        let mut features = ALWAYS;
        if self.checks_permissions {
            features |= init::POSIX_ACL;
        }
        if self.is_writable {
            features |= WRITABLE;
        } else {
            // A read-only volume gets no new names, so a listing needs no end (`listing`).
            features |= init::NO_OPENDIR_SUPPORT;
        }
        if !self.is_writable && self.caching != Caching::Nothing {
            // No file of a read-only volume can be removed, so none needs a handle.
            features |= init::NO_OPEN_SUPPORT;
        }
        if self.writes_back() {
            // Only append-only files bypass the cache here, and those must not be mapped shared.
            features |= init::WRITEBACK_CACHE;
        } else {
            features |= init::DIRECT_IO_ALLOW_MMAP;
        }
        features
    }
}

impl Door {
    /// Answers INIT. A feature that an older kernel does not offer is left out.
    ///
    /// # Errors
    /// The request is not INIT, or the kernel is older than 4.20.
    pub(crate) fn negotiate(
        &self,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        if request.header.opcode != op::INIT {
            return Err(Errno::EIO);
        }
        let init_in: InitIn = request.take()?;
        if init_in.major != MAJOR || init_in.minor < MINOR_MIN {
            return Err(Errno::EOPNOTSUPP);
        }
        let more: u32 = request.take().unwrap_or(0);
        let offered = u64::from(init_in.flags) | u64::from(more) << 32;
        let agreed = self.options.features() & offered;
        self.set_has_long_setxattr(agreed & init::SETXATTR_EXT != 0);
        let half = |flags: u64| u32::try_from(flags & u64::from(u32::MAX)).unwrap_or(0);
        reply.push(&InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: TRANSFER_BYTES_MAX,
            flags: half(agreed),
            flags2: half(agreed >> 32),
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_CONGESTED,
            max_write: TRANSFER_BYTES_MAX,
            max_pages: TRANSFER_PAGES_MAX,
            time_gran: 1,
            ..InitOut::default()
        })
    }
}
