//! Send streams: a read-only subvolume, whole or as the difference to another one, as commands that
//! `btrfs receive` applies.
//!
//! ```text
//! compare    which inodes differ            -> inodes: kept, new or removed
//! names      create, move, link, unlink, rmdir, until all names are those of the subvolume
//! attributes for each inode: extended attributes, owner, mode, times
//! contents   the data of a file             -> output: encoded commands
//! clones     files of the receiver that have a part of it
//! paths      where the receiver has an inode at this moment
//! ```
//!
//! Laws:
//!
//! 1. The subvolumes are read-only. On a volume that is open for writing they stay so, and are not
//!    deleted, until the stream ends (`in_progress`): what a stream is made of does not change.
//!    No lock is held while a command is written, however long its reader takes.
//! 2. The result at the receiver equals the subvolume in every name, in the attributes that the
//!    protocol has, and in every byte. The commands are not those of the kernel: the order of names
//!    is another one, and the data of a file comes after all names.
//! 3. What the protocol does not have is not sent, as in the kernel: flags of inodes, preallocated
//!    space, and subvolumes inside the subvolume.
//! 4. A stream that fails has no end command, and a receiver refuses it.
//! 5. No path of a stream leads out of the subvolume, whatever the volume has: no name is `.` or
//!    `..`, and what has names in it is a directory.
//! 6. Data is sent if the search for a file to clone it from fails: a damaged extent tree makes a
//!    stream larger, and does not prevent it.
//! 7. Memory grows with the number of inodes that differ, and not with the size of files.
//! 8. A caller can end a stream also while nothing is written: reading the trees of a large
//!    subvolume takes minutes, in which its subvolumes cannot be deleted ([`Watch`]).

mod attributes;
mod clones;
mod compare;
mod contents;
pub(crate) mod in_progress;
mod inodes;
mod names;
mod output;
mod paths;
mod watch;

use crate::{Error, Filesystem, Result, SubvolumeInfo};
use butternut_format::stream::{Command, StreamVersion};
use butternut_format::uuid::Uuid;
use clones::{CloneSource, Clones};
use contents::{Contents, How};
use inodes::Trees;
use output::Output;
use paths::Paths;
use std::io::Write;
use watch::Watch;

/// What a stream contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendOptions {
    /// The subvolume that the receiver already has. Without it, the stream makes the whole
    /// subvolume.
    pub parent: Option<u64>,
    /// Further subvolumes that the receiver already has: data that the subvolume shares with them,
    /// or with the parent, is not sent.
    pub clone_sources: Vec<u64>,
    /// Name the ranges of data that differ, and do not send the data.
    pub no_data: bool,
    /// Send compressed data as it is stored. This needs version 2.
    pub compressed_data: bool,
    /// Version of the protocol.
    pub protocol: SendProtocol,
}

/// The version of the protocol of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendProtocol {
    /// Every receiver knows it.
    #[default]
    One,
    /// Longer writes, holes, and creation times. It needs btrfs-progs 6.0.
    Two,
}

impl SendOptions {
    /// Sets the subvolume that the receiver already has.
    #[must_use]
    pub fn parent(mut self, parent: Option<u64>) -> Self {
        self.parent = parent;
        self
    }

    /// Sets further subvolumes that the receiver already has.
    #[must_use]
    pub fn clone_sources(mut self, clone_sources: Vec<u64>) -> Self {
        self.clone_sources = clone_sources;
        self
    }

    /// Sets whether compressed data is sent as it is stored.
    #[must_use]
    pub fn compressed_data(mut self, compressed_data: bool) -> Self {
        self.compressed_data = compressed_data;
        self
    }

    /// Sets whether data is left out.
    #[must_use]
    pub fn no_data(mut self, no_data: bool) -> Self {
        self.no_data = no_data;
        self
    }

    /// Sets the version of the protocol.
    #[must_use]
    pub fn protocol(mut self, protocol: SendProtocol) -> Self {
        self.protocol = protocol;
        self
    }
}

impl Filesystem {
    /// Writes a stream that makes a read-only subvolume at a receiver: `btrfs receive`, or another
    /// Butternut. While the stream is made, its subvolumes cannot be deleted or become writable.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`]; [`Error::NotPermitted`] for a subvolume that is writable;
    /// [`Error::InvalidArgument`] for compressed data in version 1; [`Error::StreamOutput`] if the
    /// stream cannot be written;
    /// [`Error::StreamCommand`] and [`Error::NameTooLong`] for an attribute or a path that is too
    /// long for the protocol; [`Error::StreamPath`] for a path that leads out of the subvolume;
    /// data or metadata that cannot be read.
    pub fn send(&self, subvolume: u64, options: &SendOptions, to: &mut dyn Write) -> Result<()> {
        self.send_while(subvolume, options, to, &|| true)
    }

    /// As [`Filesystem::send`], as long as `goes_on` returns true, which is called repeatedly, also
    /// before the first byte is written, while the trees are read.
    ///
    /// # Errors
    /// As [`Filesystem::send`]; [`Error::StreamOutput`] with `ECANCELED` after `goes_on` has
    /// returned false.
    pub fn send_while(
        &self,
        subvolume: u64,
        options: &SendOptions,
        to: &mut dyn Write,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let watch = Watch::new(goes_on);
        let ids = [subvolume].into_iter().chain(options.parent);
        let ids = ids.chain(options.clone_sources.iter().copied()).collect();
        let _in_progress = self.begin_stream(ids)?;
        let new = self.sendable(subvolume)?;
        let old = options.parent.map(|parent| self.sendable(parent)).transpose()?;
        if options.compressed_data && options.protocol == SendProtocol::One {
            return Err(Error::InvalidArgument { what: "compressed data needs protocol 2" });
        }
        let clones = self.clones(&new, old.as_ref(), &options.clone_sources)?;
        let version = match options.protocol {
            SendProtocol::One => StreamVersion::One,
            SendProtocol::Two => StreamVersion::Two,
        };
        let trees = Trees {
            old: old.as_ref().map(|old| self.subvolume_tree(old.id)).transpose()?,
            new: self.subvolume_tree(new.id)?,
        };
        let mut paths = Paths::new(trees, Uuid(new.uuid), &watch)?;
        let mut out = Output::begin(to, version, &watch)?;
        out.put(&first_command(&new, old.as_ref()))?;
        let touched = names::change_names(&mut paths, &mut out, &self.shared.source)?;
        let of = (old.map(|old| old.id), new.id);
        let how = How { no_data: options.no_data, compressed_data: options.compressed_data };
        let mut contents = Contents::new(self, of, version, how, clones);
        attributes::send_inodes(&mut paths, &mut out, &mut contents, &touched)?;
        out.end()
    }

    /// Chooses the parent of a stream among subvolumes that the receiver has, as `btrfs send -c`:
    /// the subvolume that `subvolume` is a snapshot of, or else the snapshot of that one which is
    /// nearest in time. Returns `None` if there is neither.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`], or metadata that cannot be read.
    pub fn best_parent(&self, subvolume: u64, candidates: &[u64]) -> Result<Option<u64>> {
        let origin = self.subvolume(subvolume)?.parent_uuid;
        let candidates: Vec<SubvolumeInfo> =
            candidates.iter().map(|id| self.subvolume(*id)).collect::<Result<_>>()?;
        if origin == [0; 16] {
            return Ok(None);
        }
        if let Some(source) = candidates.iter().find(|candidate| candidate.uuid == origin) {
            return Ok(Some(source.id));
        }
        let generation = self.subvolume(subvolume)?.changed_generation;
        let siblings = candidates.iter().filter(|candidate| candidate.parent_uuid == origin);
        let nearest =
            siblings.min_by_key(|sibling| sibling.changed_generation.abs_diff(generation));
        Ok(nearest.map(|sibling| sibling.id))
    }

    /// Prepares the search for data that the receiver has.
    fn clones(
        &self,
        new: &SubvolumeInfo,
        old: Option<&SubvolumeInfo>,
        others: &[u64],
    ) -> Result<Clones<'_>> {
        let mut sources = vec![self.clone_source(new)?];
        for source in
            old.into_iter().cloned().map(Ok).chain(others.iter().map(|id| self.sendable(*id)))
        {
            let source = source?;
            if sources.iter().all(|known| known.id != source.id) {
                sources.push(self.clone_source(&source)?);
            }
        }
        Ok(Clones::new(self, sources))
    }

    fn clone_source(&self, info: &SubvolumeInfo) -> Result<CloneSource> {
        let tree = self.subvolume_tree(info.id)?;
        let (uuid, ctransid) = (uuid_of(info), info.changed_generation);
        Ok(CloneSource { id: info.id, uuid, ctransid, tree })
    }

    /// Returns a subvolume that may be sent.
    fn sendable(&self, id: u64) -> Result<SubvolumeInfo> {
        let info = self.subvolume(id)?;
        if info.deleted {
            return Err(Error::NoSubvolume { what: id.to_string() });
        }
        if !info.read_only {
            return Err(Error::NotPermitted { what: "only read-only subvolumes can be sent" });
        }
        Ok(info)
    }
}

/// Returns the command that makes the subvolume.
fn first_command<'a>(new: &'a SubvolumeInfo, old: Option<&SubvolumeInfo>) -> Command<'a> {
    let (path, uuid, ctransid) = (&new.name[..], uuid_of(new), new.changed_generation);
    match old {
        None => Command::Subvol { path, uuid, ctransid },
        Some(old) => Command::Snapshot {
            path,
            uuid,
            ctransid,
            clone_uuid: uuid_of(old),
            clone_ctransid: old.changed_generation,
        },
    }
}

/// Returns the UUID by which receivers know a subvolume: that of its first source, if it was itself
/// received.
fn uuid_of(subvolume: &SubvolumeInfo) -> Uuid {
    let received = Uuid(subvolume.received_uuid);
    if received.is_nil() { Uuid(subvolume.uuid) } else { received }
}
