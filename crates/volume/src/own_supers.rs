//! The checks that no other writer has changed the first superblock of a device. What this process
//! knows of it is [`crate::last_super::LastSuper`].
//!
//! Laws:
//! 1. A check that read a superblock while a write of it was in flight waits until the write has
//!    ended, and reads it again.
//! 2. After a failed write, what can be on the device and is intact is the superblock before it,
//!    the one that was tried, or one between them, if more than one write has failed. After a
//!    failed flush it is the last durable superblock, the last one that was written, or one between
//!    them. The same holds while a flush runs: the check may read what the device has left before
//!    the failure is recorded. One of a newer generation than all of these is foreign.
//! 3. Generations do not tell superblocks apart: a log is synced with a superblock of the same
//!    generation. Their checksums do.
//! 4. If the volume was opened by another copy, because the first one was damaged or older, then a
//!    first one that is newer, or of another volume, is foreign. One that is still damaged or older
//!    is that of the open, if the copy that was opened is unchanged.

use crate::barrier::Copies;
use crate::error::VolumeError;
use crate::last_super::{Known, SuperId};
use crate::members::Member;
use crate::super_blocks;
use crate::volume::Volume;
use crate::write_guard::ForeignSuper;
use butternut_format::checksum::ChecksumKind;
use butternut_format::super_block::{COPY_OFFSETS, MAGIC, RawSuperBlock};
use std::cmp::Ordering;
use zerocopy::{FromBytes, IntoBytes};

/// What the first superblock of a device shows.
enum Verdict {
    /// It is the one that this process wrote last or opened.
    Own,
    Foreign(ForeignSuper),
    /// It cannot be read, or is damaged, or may be of this process or of another writer.
    Unknown,
}

/// Writes of first superblocks that have begun, and have ended when this is dropped.
pub(crate) struct SupersInFlight<'a> {
    volume: &'a Volume,
    copies: &'a Copies,
}

impl Volume {
    /// Checks that no other writer has changed the first superblock of a device since this process
    /// wrote it or opened the volume. One that cannot be read or is damaged proves nothing. Also
    /// finds devices that have become shorter (laws 7 and 8 of [`crate::barrier`]). The caller
    /// prevents this process from writing superblocks meanwhile.
    ///
    /// # Errors
    ///
    /// [`VolumeError::ForeignSuper`], which no profile tolerates.
    pub fn check_own_supers(&self) -> Result<(), VolumeError> {
        for member in self.members.iter().filter(|member| !member.is_seed) {
            if !self.record_length(member) {
                continue;
            }
            let read = read_super(member, COPY_OFFSETS[0]);
            if read.is_none() {
                member.errors.count_read();
            }
            if let Verdict::Foreign(found) = judge(member, member.last_super.now(), read.as_ref()) {
                return Err(self.write_guard.record(found));
            }
        }
        Ok(())
    }

    /// Checks that the first superblock of each of these devices is the one that this process wrote
    /// last, or that it opened. One that cannot be read proves nothing, so it fails, too. Other
    /// threads may write superblocks meanwhile (law 1).
    ///
    /// # Errors
    ///
    /// [`VolumeError::ForeignSuper`].
    pub(crate) fn check_unchanged_supers(&self, members: &[&Member]) -> Result<(), VolumeError> {
        for member in members {
            let (known, found) = read_settled(member);
            let found = match judge(member, known, found.as_ref()) {
                Verdict::Own => continue,
                Verdict::Foreign(found) => found,
                Verdict::Unknown => foreign(member, known, "none that can be recognized"),
            };
            return Err(self.write_guard.record(found));
        }
        Ok(())
    }

    /// Records that writes of first superblocks begin.
    pub(crate) fn begin_supers<'a>(&'a self, copies: &'a Copies) -> SupersInFlight<'a> {
        for (slot, _, bytes) in copies {
            let Some(member) = self.members.get(*slot) else { continue };
            let tried = RawSuperBlock::read_from_bytes(bytes).ok().map(|raw| SuperId::of(&raw));
            member.last_super.begin(tried);
        }
        SupersInFlight { volume: self, copies }
    }
}

impl SupersInFlight<'_> {
    /// Records which of the writes have failed.
    pub(crate) fn end(self, failures: &[(usize, VolumeError)]) {
        for (slot, _, bytes) in self.copies {
            let Some(member) = self.volume.members.get(*slot) else { continue };
            if failures.iter().any(|(failed, _)| failed == slot) {
                continue;
            }
            let Ok(raw) = RawSuperBlock::read_from_bytes(bytes) else { continue };
            // A log writes the same item again.
            *member.committed_item.lock() = raw.dev_item;
            member.last_super.set_written(SuperId::of(&raw));
        }
    }
}

impl Drop for SupersInFlight<'_> {
    fn drop(&mut self) {
        for (slot, ..) in self.copies {
            let Some(member) = self.volume.members.get(*slot) else { continue };
            member.last_super.end();
        }
    }
}

/// Reads the first superblock of a device while no write of it is in flight (law 1). Returns what
/// this process knew of it, and `None` if it cannot be read.
fn read_settled(member: &Member) -> (Known, Option<RawSuperBlock>) {
    loop {
        let before = member.last_super.now();
        let found = read_super(member, COPY_OFFSETS[0]);
        let after = member.last_super.settled();
        if before == after {
            return (after, found);
        }
    }
}

fn read_super(member: &Member, at: u64) -> Option<RawSuperBlock> {
    let bytes = super_blocks::read_bytes(member.device.as_ref(), at).ok()?;
    RawSuperBlock::read_from_bytes(&bytes).ok()
}

/// Returns whether a superblock is as its writer wrote it.
fn is_intact(raw: &RawSuperBlock) -> bool {
    let csum = ChecksumKind::check(raw.csum_type.get());
    let bytes = raw.as_bytes().get(raw.csum.len()..).unwrap_or_default();
    raw.magic.get() == MAGIC && csum.is_ok_and(|csum| csum.matches(bytes, &raw.csum))
}

/// Compares the first superblock that was found with what this process knows of it.
fn judge(member: &Member, known: Known, found: Option<&RawSuperBlock>) -> Verdict {
    let Some(found) = found else { return judge_opened_copy(member, known) };
    let (is_intact, id) = (is_intact(found), SuperId::of(found));
    let opened = member.super_block.raw();
    let is_first = opened.bytenr.get() == COPY_OFFSETS[0];
    let before = known.oldest().or_else(|| is_first.then(|| SuperId::of(opened)));
    let of_volume = is_intact && found.fsid == opened.fsid;
    let have = || foreign(member, known, &format!("generation {}", found.generation));
    match (known.uncertain(), before) {
        // Law 2.
        (Some(newest), _) if of_volume && id.generation > newest.generation => {
            Verdict::Foreign(have())
        }
        (Some(newest), before) => {
            let from = before.map_or(opened.generation.get(), |before| before.generation);
            let is_between = from < id.generation && id.generation < newest.generation;
            let of_process = [Some(newest), known.written, before];
            let is_known = of_process.iter().flatten().any(|known| id.is(known));
            if of_volume && (is_known || is_between) { Verdict::Own } else { Verdict::Unknown }
        }
        (None, Some(before)) if id.is(&before) => {
            if of_volume {
                Verdict::Own
            } else {
                Verdict::Unknown
            }
        }
        // One with a feature that is not supported has a writer, too. What is not intact may be
        // what an open found, but not what this process has written since.
        (None, Some(_)) if is_intact || known.written.is_some() => Verdict::Foreign(have()),
        (None, Some(_)) => Verdict::Unknown,
        // Law 4.
        (None, None) => match id.generation.cmp(&opened.generation.get()) {
            Ordering::Greater if is_intact => Verdict::Foreign(have()),
            _ if is_intact && !of_volume => Verdict::Foreign(have()),
            Ordering::Equal if is_intact => Verdict::Unknown,
            Ordering::Less | Ordering::Equal | Ordering::Greater => {
                judge_opened_copy(member, known)
            }
        },
    }
}

/// Compares the copy that was opened, where it is another one than the first (law 4).
fn judge_opened_copy(member: &Member, known: Known) -> Verdict {
    let opened = member.super_block.raw();
    let at = opened.bytenr.get();
    if known.has_begun() || at == COPY_OFFSETS[0] {
        return Verdict::Unknown;
    }
    let is_opened =
        |found: &RawSuperBlock| is_intact(found) && SuperId::of(found).is(&SuperId::of(opened));
    let is_unchanged = read_super(member, at).as_ref().is_some_and(is_opened);
    if is_unchanged { Verdict::Own } else { Verdict::Unknown }
}

fn foreign(member: &Member, known: Known, have: &str) -> ForeignSuper {
    let opened = member.super_block.generation();
    let want = match (known.written, known.uncertain()) {
        (Some(_), None) => "the one written last".to_owned(),
        (None, None) => format!("the one of generation {opened} that was opened"),
        (_, Some(_)) => "one that this process has written".to_owned(),
    };
    ForeignSuper { device: member.device.name().to_owned(), have: have.to_owned(), want }
}
