//! Direct writes that share their file: which do, how they begin, and those that are waited for.
//!
//! Laws:
//!
//! 1. A write of whole blocks inside the file shares it, unless the writer must not leave the file
//!    its privileges, or the file is append-only or down with every write (`chattr +S`).
//! 2. Who finds too much pending merges it before he begins, with nothing locked.
//! 3. No lock is held while such a write is on its way; whoever waits for the file waits for
//!    [`Flights`](crate::flusher::Flights), or completes it himself.

use crate::data::Times;
use crate::inode_table::{Body, InodeEntry};
use crate::writer::Writer;
use crate::{Error, File, Filesystem, Privileges, Result};
use butternut_file::{DirectRoom, DirectWrite, FileState, Help, Patience, Source};
use butternut_format::inode::InodeFlags;
use butternut_format::units::length;
use butternut_volume::DataWrite;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

const SECTOR: usize = 4096;

/// Writes of one file that are down and in no tree, at which they are merged, and at which who
/// writes does that himself.
const PENDING_KICK: u64 = 32 << 10;
const PENDING_MAX: u64 = 64 << 10;
const PENDING_STEP: u64 = 2 << 10;
/// What a write waits with the most pending that there may be; with less, the square of that part
/// of it. So those who write come to write as fast as what they write is merged, with no stop.
const PACE_MAX: Duration = Duration::from_micros(40);
/// Rooms that are kept for those who write one thing after the other.
const ROOMS_MAX: usize = 64;

/// How many of a file's writes are down and in no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Few,
    /// Somebody should merge them; who writes on waits a little.
    Many {
        count: u64,
        pause: Duration,
    },
    /// Who writes merges first.
    TooMany,
}

/// Space for the next writes of those who have no queue.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<Vec<DirectRoom>>);

impl Rooms {
    /// Lets whoever finds no space have what is held here.
    pub(crate) fn offer(self: &Arc<Self>, source: &Source) {
        let helper: Weak<Self> = Arc::downgrade(self);
        source.add_helper(helper);
    }

    fn with<R>(&self, source: &Source, run: impl FnOnce(&mut DirectRoom) -> R) -> R {
        let known = self.lock().pop();
        let mut room = known.unwrap_or_else(|| new_room(source));
        let result = run(&mut room);
        let mut rooms = self.lock();
        if rooms.len() < ROOMS_MAX {
            rooms.push(room);
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Vec<DirectRoom>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Help for Rooms {
    fn help(&self, _: Duration) {}

    fn give_back_space(&self) {
        let rooms = std::mem::take(&mut *self.lock());
        drop(rooms);
    }
}

/// Room for a writer beside all others.
pub(crate) fn new_room(source: &Source) -> DirectRoom {
    static NEXT_WRITER: AtomicU64 = AtomicU64::new(0);
    DirectRoom::new(source, NEXT_WRITER.fetch_add(1, Ordering::Relaxed))
}

/// Whether a request is of whole blocks.
pub(crate) fn is_whole(offset: u64, bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(SECTOR) && offset.is_multiple_of(length(SECTOR))
}

impl Pending {
    pub(crate) fn of(body: &Body) -> Self {
        match body.file.as_deref().map_or(0, FileState::pending_writes) {
            PENDING_MAX.. => Self::TooMany,
            count @ PENDING_KICK.. => Self::Many { count, pause: pause(count) },
            _ => Self::Few,
        }
    }
}

/// What a write owes with so many pending.
fn pause(pending: u64) -> Duration {
    let part = |most: u64| most * (pending - PENDING_KICK) / (PENDING_MAX - PENDING_KICK);
    let nanos = u64::try_from(PACE_MAX.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos((part(nanos) * part(1 << 10)) >> 10)
}

impl Filesystem {
    /// Merges some of what is pending. What is lost by it is for whoever syncs.
    pub(crate) fn merge_first(&self, writer: &Writer, entry: &Arc<InodeEntry>) {
        drop(self.merge_down_to(writer, entry, PENDING_MAX - PENDING_STEP));
    }
}

impl File {
    /// Begins a direct write of whole blocks, with the body shared; `None` where it needs the file
    /// alone (law 1), or more patience.
    pub(crate) fn begin_shared_write(
        &self,
        body: &Body,
        range: &Range<u64>,
        privileges: Privileges,
        (room, patience): (&mut DirectRoom, Patience),
    ) -> Result<Option<DirectWrite>> {
        let held = self.held()?;
        let (filesystem, entry) = (held.filesystem(), held.entry());
        let known = entry.known_at_once();
        let inode = match known {
            Some(inode) => inode,
            None if patience == Patience::None => return Ok(None),
            None => filesystem.facts(entry)?,
        };
        self.may_write(&inode)?;
        let is_plain = ![InodeFlags::APPEND, InodeFlags::SYNC]
            .into_iter()
            .any(|flag| inode.flags.contains(flag));
        let keeps_privileges = privileges == Privileges::Keep || entry.has_no_privileges();
        let may_share = is_plain && keeps_privileges && filesystem.switches().nosec;
        let Some(state) = body.file.as_ref().filter(|_| may_share) else { return Ok(None) };
        Ok(state.begin_direct_write(range, room, patience)?)
    }

    /// Takes note of a shared write that goes on its way: the times of the file are new.
    pub(crate) fn note_shared_write(&self, writer: &Writer, entry: &Arc<InodeEntry>, body: &Body) {
        if self.times == Times::Now {
            let now = writer.clock.now();
            entry.update(|inode| {
                (inode.mtime, inode.ctime) = (now, now);
                inode.sequence = inode.sequence.wrapping_add(1);
            });
            body.is_stamp_due.store(true, Ordering::Release);
        }
        if !entry.is_listed() {
            writer.mark_dirty(entry);
            writer.signal.changed();
        }
    }

    /// Writes whole blocks while others read and write the file, and waits for that; `None` where
    /// the file is needed alone.
    pub(crate) fn write_shared(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<Option<usize>> {
        if !is_whole(offset, bytes.len()) {
            return Ok(None);
        }
        let held = self.held()?;
        let (filesystem, entry) = (held.filesystem(), held.entry());
        let shared = &filesystem.shared;
        let writer = filesystem.begin()?;
        let mut body = entry.body();
        match Pending::of(&body) {
            Pending::Few => {}
            Pending::Many { .. } => writer.signal.want_merge(entry),
            Pending::TooMany => {
                drop(body);
                filesystem.merge_first(writer, entry);
                body = entry.body();
            }
        }
        let range = offset..offset.saturating_add(length(bytes.len()));
        let begun = shared.rooms.with(&shared.source, |room| {
            self.begin_shared_write(&body, &range, privileges, (room, Patience::Any))
        })?;
        let Some(write) = begun else { return Ok(None) };
        let flight = shared.flights.begin();
        self.note_shared_write(writer, entry, &body);
        drop(body);
        let mut digests = Vec::new();
        if write.wants_digests() {
            shared.volume().sum(bytes, &mut digests);
        }
        let mut rows = [DataWrite::new(write.logical(), bytes)];
        shared.volume().write_data(&mut rows);
        let [DataWrite { result, .. }] = rows;
        match &result {
            Ok(()) => write.land(&shared.source, &digests),
            Err(_) => write.fail(&shared.source),
        }
        drop(write);
        drop(flight);
        result.map_err(Error::Volume)?;
        let counters = self.lane_counters();
        counters.dio_write_shared.add();
        counters.dio_write_zero_copy.add();
        Ok(Some(bytes.len()))
    }
}
