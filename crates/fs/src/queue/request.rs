//! One request of a queue, and the blocking calls that serve requests which cannot be in flight.

use super::{Completion, IoFlags, SyncKind};
use crate::error::is_refused;
use crate::{DirectStability, Error, File, Privileges, Result};
use butternut_pages::CacheMode;
use butternut_sys::buffer::Buffer;
use butternut_sys::wait::Wait;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) file: File,
    pub(super) tag: u64,
    pub(super) buffer: Buffer,
    pub(super) operation: Operation,
    /// A direct write that falls back to the page cache.
    pub(super) is_fallback: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Read { offset: u64, flags: IoFlags },
    Write { offset: u64, flags: IoFlags, privileges: Privileges },
    Sync(SyncKind),
}

impl Operation {
    fn flags(self) -> IoFlags {
        match self {
            Self::Read { flags, .. } | Self::Write { flags, .. } => flags,
            Self::Sync(_) => IoFlags::default(),
        }
    }

    /// Whether the caller waits for a device, whatever is in memory.
    fn reaches_device(self) -> bool {
        let flags = self.flags();
        flags.contains(IoFlags::DIRECT)
            || flags.contains(IoFlags::DSYNC)
            || matches!(self, Self::Sync(_))
    }
}

impl Request {
    pub(super) fn flags(&self) -> IoFlags {
        self.operation.flags()
    }

    /// Serves the request, however long that takes, unless it must not block: it then fails with
    /// [`Error::WouldBlock`]. `memory` returns a buffer to which bytes are copied that may change
    /// meanwhile.
    pub(super) fn run(self, memory: impl FnOnce(usize) -> Buffer) -> Completion {
        let Self { file, tag, mut buffer, operation, is_fallback } = self;
        let wait = operation.flags().wait();
        let result = match operation {
            _ if operation.reaches_device() && wait == Wait::NoWait => Err(Error::WouldBlock),
            Operation::Read { offset, flags } if flags.contains(IoFlags::DIRECT) => {
                file.read_direct(offset, &mut buffer)
            }
            Operation::Read { offset, flags } => file.read(offset, &mut buffer, stay(flags), wait),
            Operation::Write { offset, flags, privileges } => {
                // Bytes that are written to a device from here must not change between checksum and
                // device.
                let reaches_device = flags.contains(IoFlags::DIRECT)
                    || wait == Wait::Block && !file.source().has_flusher();
                let is_trusted = file.stability() == DirectStability::Trust;
                if reaches_device && !buffer.is_stable() && !is_trusted {
                    if flags.contains(IoFlags::DIRECT) {
                        file.lane_counters().dio_write_bounced.add();
                    }
                    let mut copy = memory(buffer.len());
                    buffer.copy_to(0, &mut copy);
                    write(&file, offset, &copy, flags, privileges)
                } else {
                    write(&file, offset, &buffer, flags, privileges)
                }
            }
            Operation::Sync(SyncKind::Data) => file.sync_data().map(|()| 0),
            Operation::Sync(SyncKind::All) => file.sync_all().map(|()| 0),
        };
        if is_fallback && !is_refused(&result) {
            file.lane_counters().dio_write_fallback.add();
        }
        Completion { tag, buffer, result }
    }
}

/// What happens to the pages of a request through the page cache.
fn stay(flags: IoFlags) -> CacheMode {
    if flags.contains(IoFlags::UNCACHED) { CacheMode::Uncached } else { CacheMode::Cached }
}

fn write(
    file: &File,
    offset: u64,
    bytes: &[u8],
    flags: IoFlags,
    privileges: Privileges,
) -> Result<usize> {
    let is_append = flags.contains(IoFlags::APPEND);
    let written = if flags.contains(IoFlags::DIRECT) && !is_append {
        file.write_direct_exclusive(offset, bytes, privileges)?
    } else {
        let offset = (!is_append).then_some(offset);
        file.write(offset, bytes, privileges, stay(flags), flags.wait())?.1
    };
    if flags.contains(IoFlags::DSYNC) {
        file.sync_data()?;
    }
    Ok(written)
}
