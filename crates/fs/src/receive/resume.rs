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
//! 5. A checkpoint is read-only, so that no program changes what a receive begins with. On a mount,
//!    no program sees a checkpoint while a receive makes, uses or deletes it. What an interrupted
//!    receive has left is visible, so that it can be deleted.
//! 6. The owner of a checkpoint's root directory, which the stream sets, can make it writable,
//!    change it and make it read-only again. The root item then names a change after the creation,
//!    and the checkpoint is not used. It is not deleted either, because it may have files of a
//!    user: it is reported, and a new checkpoint after the same commands gets a number at the end
//!    of its name. While a subvolume is made from a checkpoint, that stays as it is.
//! 7. One receive at a time uses the checkpoints of a source in a directory
//!    ([`super::in_progress`]).

use super::serving::{HiddenName, ReceiveServing};
use crate::send::in_progress::StreamInProgress;
use crate::{Error, FIRST_ENTRY, FileId, Filesystem, Result, SubvolumeInfo};
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::Refused;
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
    /// The names of those that were changed (law 6).
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
            // A received subvolume of such a name is none: it has another content.
            if !id.is_subvolume_root() || self.subvolume(id.subvolume)?.received_uuid != [0; 16] {
                continue;
            }
            let hidden = serving.map(|serving| serving.hide_name(&name));
            let info = self.closed_checkpoint(id.subvolume)?;
            if is_unchanged(&info) {
                let (id, uuid, origin) = (info.id, info.uuid, info.parent_uuid);
                found.usable.push(Checkpoint { id, name, progress, uuid, origin, hidden });
            } else {
                found.changed.push(name);
            }
        }
        found.usable.sort_by_key(|checkpoint| checkpoint.progress.commands);
        Ok(found)
    }

    /// Makes a checkpoint read-only that a crash or a program has left writable, unless it was
    /// changed, and returns what the root item says then.
    fn closed_checkpoint(&self, id: u64) -> Result<SubvolumeInfo> {
        let info = self.subvolume(id)?;
        if info.read_only {
            return Ok(info);
        }
        // The root item names a change after its commit.
        self.sync_names()?;
        if has_later_change(&self.subvolume(id)?) {
            return self.subvolume(id);
        }
        // This commits what a program has changed meanwhile.
        self.set_subvolume_read_only(id, true)?;
        self.subvolume(id)
    }

    /// Keeps a checkpoint as it is until the result is dropped.
    ///
    /// # Errors
    /// It was changed after it was found.
    pub(super) fn keep_checkpoint(&self, id: u64) -> Result<Option<StreamInProgress<'_>>> {
        let what = "a program changes the snapshot that the receive goes on from";
        let changed = || Error::NotPermitted { what };
        let kept = match self.begin_stream(vec![id]) {
            Err(Error::NotPermitted { .. } | Error::NoSubvolume { .. }) => return Err(changed()),
            begun => begun?,
        };
        if is_unchanged(&self.subvolume(id)?) { Ok(kept) } else { Err(changed()) }
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

    /// Deletes all checkpoints but the last one, which it returns.
    pub(super) fn keep_last(
        &self,
        dir: FileId,
        mut found: Vec<Checkpoint>,
    ) -> Result<Vec<Checkpoint>> {
        let last = found.pop();
        self.delete_checkpoints(dir, &found)?;
        Ok(last.into_iter().collect())
    }

    /// Deletes checkpoints, and frees their space. On a mount, the cleaner frees it.
    pub(super) fn delete_checkpoints(&self, dir: FileId, all: &[Checkpoint]) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        for Checkpoint { id, name, .. } in all {
            self.delete_subvolume_of_id(dir, name, *id)?;
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
            && (info.parent_uuid == self.uuid || self.origin == info.uuid)
    }
}

/// Returns whether a checkpoint is as it was made (law 6).
fn is_unchanged(info: &SubvolumeInfo) -> bool {
    info.read_only && !has_later_change(info)
}

/// Returns whether a transaction after the one that made a subvolume has changed it.
fn has_later_change(info: &SubvolumeInfo) -> bool {
    info.changed_generation > info.created_generation
}
