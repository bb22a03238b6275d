//! One request of a queue, and the blocking calls that serve requests which cannot be in flight.

use super::{Completion, IoFlags, SyncKind};
use crate::{DirectStability, File, Privileges, Result};
use butternut_pages::CacheMode;
use butternut_sys::buffer::Buffer;

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
}

impl Request {
    pub(super) fn flags(&self) -> IoFlags {
        self.operation.flags()
    }

    /// Serves the request if it does not block; returns it otherwise.
    pub(super) fn run_nowait(self) -> std::result::Result<Completion, Self> {
        let Self { file, tag, mut buffer, operation, is_fallback } = self;
        let flags = operation.flags();
        let stay =
            if flags.contains(IoFlags::UNCACHED) { CacheMode::Uncached } else { CacheMode::Cached };
        let result = match operation {
            _ if flags.contains(IoFlags::DIRECT) || flags.contains(IoFlags::DSYNC) => None,
            Operation::Sync(_) => None,
            Operation::Read { offset, .. } => file.read_nowait(offset, &mut buffer, stay).map(Ok),
            Operation::Write { offset, privileges, .. } => {
                let offset = (!flags.contains(IoFlags::APPEND)).then_some(offset);
                file.write_nowait(offset, &buffer, privileges, stay)
            }
        };
        match result {
            Some(result) => {
                count_fallback(&file, is_fallback);
                Ok(Completion { tag, buffer, result })
            }
            None => Err(Self { file, tag, buffer, operation, is_fallback }),
        }
    }

    /// Serves the request, however long that takes. `memory` returns a buffer to which bytes are
    /// copied that may change meanwhile.
    pub(super) fn run(self, memory: impl FnOnce(usize) -> Buffer) -> Completion {
        let Self { file, tag, mut buffer, operation, is_fallback } = self;
        count_fallback(&file, is_fallback);
        let result = match operation {
            Operation::Read { offset, flags } if flags.contains(IoFlags::DIRECT) => {
                file.read_direct(offset, &mut buffer)
            }
            Operation::Read { offset, flags } if flags.contains(IoFlags::UNCACHED) => {
                file.read_uncached(offset, &mut buffer)
            }
            Operation::Read { offset, .. } => file.read_at(offset, &mut buffer),
            Operation::Write { offset, flags, privileges } => {
                // Bytes that are written to a device from here must not change between checksum and
                // device.
                let reaches_device =
                    flags.contains(IoFlags::DIRECT) || !file.source().has_flusher();
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
        Completion { tag, buffer, result }
    }
}

fn count_fallback(file: &File, is_fallback: bool) {
    if is_fallback {
        file.lane_counters().dio_write_fallback.add();
    }
}

fn write(
    file: &File,
    offset: u64,
    bytes: &[u8],
    flags: IoFlags,
    privileges: Privileges,
) -> Result<usize> {
    let written = if flags.contains(IoFlags::APPEND) {
        file.append(bytes, privileges)?.1
    } else if flags.contains(IoFlags::DIRECT) {
        file.write_direct_exclusive(offset, bytes, privileges)?
    } else if flags.contains(IoFlags::UNCACHED) {
        file.write_uncached(offset, bytes, privileges)?
    } else {
        file.write_as(offset, bytes, privileges)?
    };
    if flags.contains(IoFlags::DSYNC) {
        file.sync_data()?;
    }
    Ok(written)
}
