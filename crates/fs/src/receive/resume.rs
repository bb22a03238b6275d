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
//! 5. A checkpoint is read-only, so that no program changes what a receive begins with; one that is
//!    writable is not used. On a mount, no program sees a checkpoint while a receive makes, uses or
//!    deletes it. What an interrupted receive has left is visible, so that it can be deleted.
//! 6. One receive at a time uses the checkpoints of a source in a directory
//!    ([`super::in_progress`]).

use super::serving::{HiddenName, ReceiveServing};
use crate::{Error, FIRST_ENTRY, FileId, Filesystem, Result, SubvolumeInfo};
use butternut_format::checksum::ChecksumKind;
use butternut_format::refused::Refused;
use butternut_format::uuid::Uuid;

/// The beginning of the names of checkpoints. UUID, number and digest follow.
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
    pub(super) is_read_only: bool,
    /// On a mount, the name is hidden until this is dropped (law 5).
    hidden: Option<HiddenName>,
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
    pub(super) fn name(self, uuid: Uuid) -> Vec<u8> {
        format!("{PREFIX}.{uuid}.{}.{:016x}", self.commands, self.digest).into_bytes()
    }

    /// Reads the name of a checkpoint of the source `uuid`.
    fn of_name(name: &[u8], uuid: Uuid) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name.strip_prefix(&format!("{PREFIX}.{uuid}."))?;
        let (commands, digest) = rest.split_once('.')?;
        let progress = Self {
            commands: commands.parse().ok()?,
            digest: u64::from_str_radix(digest, 16).ok()?,
        };
        (progress.commands > 0 && progress.name(uuid) == name.as_bytes()).then_some(progress)
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
    /// Returns the checkpoints of a source in a directory, the last one last, and hides them.
    pub(super) fn checkpoints(
        &self,
        dir: FileId,
        uuid: Uuid,
        serving: Option<ReceiveServing<'_>>,
    ) -> Result<Vec<Checkpoint>> {
        let mut found = Vec::new();
        for entry in self.read_dir(dir, FIRST_ENTRY)? {
            let entry = entry?;
            let Some(progress) = Progress::of_name(&entry.name, uuid) else { continue };
            let id = self.lookup(dir, &entry.name)?;
            if !id.is_subvolume_root() {
                continue;
            }
            let info = self.subvolume(id.subvolume)?;
            // A received subvolume of such a name is none: it has another content.
            if info.received_uuid == [0; 16] {
                let (id, uuid, origin) = (id.subvolume, info.uuid, info.parent_uuid);
                let is_read_only = info.read_only;
                let hidden = serving.map(|serving| serving.hide_name(&entry.name));
                found.push(Checkpoint {
                    id,
                    name: entry.name,
                    progress,
                    uuid,
                    origin,
                    is_read_only,
                    hidden,
                });
            }
        }
        found.sort_by_key(|checkpoint| checkpoint.progress.commands);
        Ok(found)
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
