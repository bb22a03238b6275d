//! Checkpoints of a subvolume that is being received, so that an interrupted receive can go on.
//!
//! ```text
//! begun:        empty subvolume, or snapshot of the parent -> checkpoint -> the subvolume
//! after each CHECKPOINT_BYTES:  subvolume -> next checkpoint; the one before is deleted
//! interrupted:  subvolume -> last checkpoint; the subvolume is deleted
//! resumed:      checkpoint -> the subvolume; the commands before it are read, and not applied
//! ```
//!
//! 1. A checkpoint is a snapshot, so it has the effects of the commands before it, and of no other.
//!    Its name has the UUID of the source, the number of the commands and their digest: it is
//!    complete as soon as it exists, and a crash at any time leaves at least one.
//! 2. Commands are skipped only if they are those that made the checkpoint: their digest is
//!    compared where the first command is applied.
//! 3. A subvolume that a crash has left is deleted only if its UUID or that of its origin says that
//!    a checkpoint was made from it or it from the checkpoint.
//! 4. The checkpoints of a source are deleted when its subvolume is complete.
//! 5. A checkpoint is read-only, so that no program changes what a receive begins with, and the
//!    commit that makes it marks it ([`CheckpointMark`]), so that no program makes one under its
//!    name. On a mount, no program sees a checkpoint while a receive makes, uses or deletes it.
//!    What an interrupted receive has left is visible, so that it can be deleted.
//! 6. The owner of a checkpoint's root directory, which the stream sets, can make it writable. It
//!    has no mark then, whether it was changed or not: the kernel may have changes of files that
//!    are open, which no other thread knows. It is not used. It is not deleted or made read-only
//!    either, because it may have files of a user: it is reported, and a new checkpoint after the
//!    same commands gets a number at the end of its name. While a subvolume is made from a
//!    checkpoint, that stays as it is.
//! 7. One receive at a time uses the checkpoints of a source in a directory
//!    ([`super::in_progress`]).

use super::ReceiveReport;
use super::serving::{HiddenName, ReceiveServing};
use crate::send::in_progress::StreamInProgress;
use crate::subvolume::mark::CheckpointMark;
use crate::{Error, FIRST_ENTRY, FileId, Filesystem, Result, SubvolumeInfo};
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::Refused;
use butternut_format::root::RootHistory;
use butternut_format::units::TreeId;
use butternut_format::uuid::Uuid;
use std::collections::BTreeSet;

/// The beginning of the names of checkpoints. UUID, number and digest follow, and where another
/// entry had that name, a number from 2 on.
const PREFIX: &str = ".butternut-receive";

/// The commands of one subvolume that have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Their number, with the one that begins the subvolume.
    pub(super) commands: u64,
    /// A checksum of the checksums of the commands.
    pub(super) digest: u64,
}

/// A checkpoint in the directory of the subvolumes.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) id: u64,
    pub(super) name: Vec<u8>,
    pub(super) progress: Progress,
    mark: CheckpointMark,
    uuid: [u8; 16],
    /// The UUID of the subvolume that it was made from.
    origin: [u8; 16],
    /// On a mount, the name is hidden until this is dropped (law 5).
    hidden: Option<HiddenName>,
}

/// The checkpoints of a source in a directory.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Those that can be used, the last one last.
    pub(super) usable: Vec<Checkpoint>,
    /// The names of those that have no mark (law 6).
    pub(super) changed: Vec<Vec<u8>>,
}

impl Progress {
    /// Adds a command, of which `checksum` is the stored checksum.
    pub(super) fn add(&mut self, checksum: u32) {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.digest.to_le_bytes());
        bytes[8..].copy_from_slice(&checksum.to_le_bytes());
        let digest = ChecksumKind::Xxhash64.compute(&bytes);
        let mut low = [0; 8];
        low.copy_from_slice(&digest[..8]);
        self.digest = u64::from_le_bytes(low);
        self.commands += 1;
    }

    /// Returns the name of the checkpoint after these commands.
    fn name(self, uuid: Uuid) -> String {
        format!("{PREFIX}.{uuid}.{}.{:016x}", self.commands, self.digest)
    }

    /// Returns the mark of the checkpoint after these commands.
    pub(super) fn mark(self, uuid: Uuid) -> CheckpointMark {
        let checksum = ChecksumKind::Sha256.compute(self.name(uuid).as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&checksum[..16]);
        CheckpointMark(Uuid(bytes))
    }

    /// Reads the name of a checkpoint of the source `uuid`.
    fn of_name(name: &[u8], uuid: Uuid) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name.strip_prefix(&format!("{PREFIX}.{uuid}."))?;
        let mut fields = rest.split('.');
        let progress = Self {
            commands: fields.next()?.parse().ok()?,
            digest: u64::from_str_radix(fields.next()?, 16).ok()?,
        };
        let number = fields.next().map(|number| number.parse::<u32>().ok());
        let written = match number {
            None => progress.name(uuid),
            Some(number) => format!("{}.{}", progress.name(uuid), number.filter(|of| *of > 1)?),
        };
        (progress.commands > 0 && written == name).then_some(progress)
    }

    /// Checks that the commands which were skipped made the checkpoint.
    pub(super) fn require(self, checkpoint: Self) -> Result<()> {
        if self == checkpoint {
            return Ok(());
        }
        let have = format_args!("{} other commands", self.commands).to_string();
        let want = format!(
            "the {} commands of the stream that was interrupted: it is another stream",
            checkpoint.commands
        );
        Err(Error::Stream(Refused::new("stream", have, want)))
    }
}

impl Filesystem {
    /// Returns the checkpoints of a source in a directory, and hides those that can be used.
    pub(super) fn checkpoints(
        &self,
        dir: FileId,
        uuid: Uuid,
        serving: Option<ReceiveServing<'_>>,
    ) -> Result<Checkpoints> {
        let mut named = Vec::new();
        for entry in self.read_dir(dir, FIRST_ENTRY)? {
            let name = entry?.name;
            named.extend(Progress::of_name(&name, uuid).map(|progress| (name, progress)));
        }
        let mut found = Checkpoints { usable: Vec::new(), changed: Vec::new() };
        for (name, progress) in named {
            let id = self.lookup(dir, &name)?;
            if !id.is_subvolume_root() {
                continue;
            }
            let (id, mark) = (id.subvolume, progress.mark(uuid));
            let hidden = serving.map(|serving| serving.hide_name(&name));
            let Some((_, root)) = self.forest().root_item(TreeId(id))? else { continue };
            let RootHistory { uuid, parent_uuid: origin, received_uuid, .. } =
                root.history().unwrap_or_default();
            if mark.is_of(&root) {
                found.usable.push(Checkpoint { id, name, progress, mark, uuid, origin, hidden });
            } else if Uuid(received_uuid).is_nil() || received_uuid == mark.0.0 {
                found.changed.push(name);
            }
            // Another received subvolume of such a name was never a checkpoint.
        }
        found.usable.sort_by_key(|checkpoint| checkpoint.progress.commands);
        Ok(found)
    }

    /// Keeps a checkpoint as it is until the result is dropped.
    ///
    /// # Errors
    /// It was changed after it was found.
    pub(super) fn keep_checkpoint(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<Option<StreamInProgress<'_>>> {
        let what = "a program changes the snapshot that the receive goes on from";
        let changed = || Error::NotPermitted { what };
        let kept = match self.begin_stream(vec![checkpoint.id]) {
            Err(Error::NotPermitted { .. } | Error::NoSubvolume { .. }) => return Err(changed()),
            begun => begun?,
        };
        let root = self.forest().root_item(TreeId(checkpoint.id))?;
        let is_kept = root.is_some_and(|(_, root)| checkpoint.mark.is_kept(&root));
        if is_kept { Ok(kept) } else { Err(changed()) }
    }

    /// Returns a name for the checkpoint after some commands that no entry has (law 6).
    pub(super) fn free_checkpoint_name(
        &self,
        dir: FileId,
        progress: Progress,
        uuid: Uuid,
    ) -> Result<Vec<u8>> {
        let first = progress.name(uuid);
        let (mut name, mut number) = (first.clone(), 1_u32);
        loop {
            match self.lookup(dir, name.as_bytes()) {
                Err(Error::NotFound) => return Ok(name.into_bytes()),
                found => found?,
            };
            number = number.checked_add(1).ok_or(Error::Exists)?;
            name = format!("{first}.{number}");
        }
    }

    /// Waits until the orphans that the commands have left in a subvolume are deleted. A checkpoint
    /// that had them would be changed by their deletion (law 6).
    pub(super) fn wait_for_orphans_of(&self, id: u64) -> Result<()> {
        let of_subvolume =
            |all: &BTreeSet<u64>| all.iter().copied().filter(|other| *other == id).collect();
        self.write_state()?.cleaner.wait_until_evicted(&of_subvolume);
        Ok(())
    }

    /// Returns whether a subvolume is deleted, also where its space is not freed yet.
    pub(super) fn is_deleted(&self, id: u64) -> bool {
        match self.subvolume(id) {
            Ok(info) => info.deleted,
            Err(error) => matches!(error, Error::NoSubvolume { .. }),
        }
    }

    /// Returns the subvolume of a name, if there is one.
    ///
    /// # Errors
    /// [`Error::Exists`]: another kind of entry has the name.
    pub(super) fn received_at(&self, dir: FileId, name: &[u8]) -> Result<Option<SubvolumeInfo>> {
        match self.lookup(dir, name) {
            Ok(id) if id.is_subvolume_root() => self.subvolume(id.subvolume).map(Some),
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes all checkpoints but the last one, which it returns. Those that a program has changed
    /// stay, and are reported.
    pub(super) fn keep_last(
        &self,
        dir: FileId,
        mut found: Vec<Checkpoint>,
        report: &mut ReceiveReport,
    ) -> Result<Vec<Checkpoint>> {
        let last = found.pop();
        self.delete_checkpoints(dir, &found, report)?;
        Ok(last.into_iter().collect())
    }

    /// Deletes checkpoints, and frees their space. On a mount, the cleaner frees it. Those that a
    /// program has changed stay, and are reported.
    pub(super) fn delete_checkpoints(
        &self,
        dir: FileId,
        all: &[Checkpoint],
        report: &mut ReceiveReport,
    ) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        for Checkpoint { id, name, mark, .. } in all {
            match self.delete_checkpoint(dir, name, (*id, *mark)) {
                Err(Error::NotFound) if self.is_deleted(*id) => {}
                Err(Error::NotFound) => report.add_changed([name.clone()]),
                deleted => deleted?,
            }
        }
        let is_mounted = all.iter().any(|checkpoint| checkpoint.hidden.is_some());
        if is_mounted { Ok(()) } else { self.clean_subvolumes().map(drop) }
    }
}

impl Checkpoint {
    /// Returns whether `info` is the subvolume that was being received (law 3).
    pub(super) fn is_of(&self, info: &SubvolumeInfo) -> bool {
        !info.read_only
            && info.received_uuid == [0; 16]
            && (is_same(info.parent_uuid, self.uuid) || is_same(self.origin, info.uuid))
    }
}

/// Returns whether two UUIDs name one subvolume. Nil UUIDs name none.
fn is_same(one: [u8; 16], other: [u8; 16]) -> bool {
    one == other && !Uuid(one).is_nil()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;

    /// A root item in its old form has no UUIDs, and the first checkpoint of a full stream no
    /// origin.
    #[test]
    fn subvolumes_without_a_uuid_are_not_what_a_crash_has_left() {
        let (progress, mark) = (Progress::default(), CheckpointMark(Uuid([1; 16])));
        let (name, hidden) = (Vec::new(), None);
        let (own, origin) = ([2; 16], [0; 16]);
        let mut checkpoint =
            Checkpoint { id: 256, name, progress, mark, uuid: own, origin, hidden };
        let now = Time::default();
        let mut left = SubvolumeInfo {
            id: 257,
            parent: Some(5),
            dir: 256,
            name: b"sub".to_vec(),
            path: None,
            uuid: [0; 16],
            parent_uuid: [0; 16],
            received_uuid: [0; 16],
            generation: 9,
            created_generation: 9,
            changed_generation: 9,
            sent_generation: 0,
            received_generation: 0,
            created: now,
            changed: now,
            sent: now,
            received: now,
            flags: 0,
            read_only: false,
            deleted: false,
        };
        assert!(!checkpoint.is_of(&left), "no UUID, as the origin");
        left.parent_uuid = own;
        assert!(checkpoint.is_of(&left));
        (left.uuid, left.parent_uuid) = ([3; 16], [0; 16]);
        checkpoint.uuid = [0; 16];
        assert!(!checkpoint.is_of(&left), "no origin, as the checkpoint has no UUID");
        checkpoint.origin = [3; 16];
        assert!(checkpoint.is_of(&left));
    }
}
