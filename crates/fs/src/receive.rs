//! Receiving: makes the subvolumes that a send stream describes.
//!
//! ```text
//! bytes -> StreamReader (one command at a time) -> Receiver -> subvolume, writable
//!                                                           -> read-only, with the UUID and the
//!                                                              transaction of its source
//! ```
//!
//! Laws:
//!
//! 1. A subvolume becomes read-only, and is listed under the UUID of its source, in one commit,
//!    after all commands for it have been applied. A crash before leaves a writable subvolume that
//!    no stream can use as its parent. That commit is not made if data of the subvolume was lost,
//!    whichever thread was to write it.
//! 2. If a command fails, the subvolume that it would have changed is deleted; `resume` can keep a
//!    checkpoint of it. Subvolumes of the same stream that are complete stay, and the caller learns
//!    of them ([`ReceiveReport`]).
//! 3. No command reaches anything outside its subvolume: paths are names below its root, and no
//!    symbolic link is followed.
//! 4. The parent and the sources of clones are read-only from the first command that names them
//!    until the subvolume is complete or deleted: calls that would delete them or make them
//!    writable fail meanwhile (`source`).
//! 5. A server or a signal can end a receive also in the midst of a command that copies or seals
//!    data: the size of it is in the stream, and the data is not (`limits`).
//! 6. An error names the command, its number and its place in the stream.
//!
//! Inodes of a received subvolume, its root among them, inherit no attributes from their
//! directories: the stream says what they have.

mod apply;
mod command_place;
mod data;
mod finish;
pub(crate) mod in_progress;
mod limits;
mod reader;
mod resume;
mod serving;
mod source;

pub use command_place::CommandPlace;
pub use limits::{EXTENTS_FIELD, HASHES_BYTES_FIELD, SEALED_BYTES_FIELD, StreamLimits};
pub use reader::StreamReader;
pub use serving::ReceiveServing;

use crate::{Error, FileId, Filesystem, Result};
use apply::Receiver;
use butternut_format::stream::Command;
use data::Encoded;
use reader::NextCommand;
use std::io::Read;

/// A subvolume that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedSubvolume {
    pub id: u64,
    pub name: Vec<u8>,
    /// The UUID of the source.
    pub uuid: [u8; 16],
    /// Whether the stream was incremental: the subvolume began as a snapshot of its parent.
    pub is_snapshot: bool,
}

/// What [`Filesystem::receive_with`] has made, also if it has failed.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ReceiveReport {
    /// The complete subvolumes. They are durable.
    pub subvolumes: Vec<ReceivedSubvolume>,
    /// The number of subvolumes that were complete before [`Filesystem::receive_resumable`].
    pub present: usize,
    /// The number of commands of the incomplete subvolume that need not be applied again, if
    /// [`Filesystem::receive_resumable`] has kept it.
    pub resumable: Option<u64>,
    /// The names of the snapshots of an interrupted [`Filesystem::receive_resumable`] that are not
    /// as it has made them, also if they were writable only. They are not used and not deleted.
    pub changed: Vec<Vec<u8>>,
    /// The incomplete subvolume, if it could not be deleted.
    pub unfinished: Option<Unfinished>,
}

impl ReceiveReport {
    /// Adds names of snapshots that were changed.
    fn add_changed(&mut self, names: impl IntoIterator<Item = Vec<u8>>) {
        for name in names {
            if !self.changed.contains(&name) {
                self.changed.push(name);
            }
        }
    }
}

/// A subvolume of a stream that failed, and that could not be deleted. It is writable, and not the
/// parent of any stream.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unfinished {
    pub name: Vec<u8>,
    /// Why it could not be deleted.
    pub error: Error,
}

/// Where a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// At the end of the input: streams may follow one another.
    Input,
    /// At the first `END` command; the rest of the input is not read.
    Command,
}

impl Filesystem {
    /// Applies a send stream: makes its subvolumes in the directory `dir`, and returns them. They
    /// are durable when this returns. After an error, those that were complete stay, too:
    /// [`Filesystem::receive_with`] reports them.
    ///
    /// # Errors
    /// [`Error::Receive`] with the command that failed. Its cause may be a damaged stream, a path
    /// that leaves the subvolume, or a parent that the volume does not have ([`Error::Stream`]); a
    /// name that exists; a full volume; and what the calls that apply the command return. At the
    /// `END` command: file data that could not be written.
    pub fn receive<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
    ) -> Result<Vec<ReceivedSubvolume>> {
        let mut report = ReceiveReport::default();
        self.receive_with(dir, stream, end, &mut report)?;
        Ok(report.subvolumes)
    }

    /// Applies a send stream as [`Filesystem::receive`] does, and adds each subvolume to `report`
    /// when it is complete and durable.
    ///
    /// # Errors
    /// As [`Filesystem::receive`].
    pub fn receive_with<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
        report: &mut ReceiveReport,
    ) -> Result<()> {
        self.receive_checked(dir, stream, end, (None, None), report)
    }

    /// As [`FilesystemExt::receive_serving`](crate::server::FilesystemExt::receive_serving).
    pub(crate) fn receive_serving<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
        checkpoint_bytes: Option<u64>,
        report: &mut ReceiveReport,
        serving: ReceiveServing<'_>,
    ) -> Result<()> {
        self.receive_checked(dir, stream, end, (checkpoint_bytes, Some(serving)), report)
    }

    /// Applies a send stream as [`Filesystem::receive_with`] does, and goes on where an earlier
    /// call was interrupted, by an error or a crash: subvolumes that are complete stay, and
    /// commands whose effects were kept are read and not applied. The stream must be the same one,
    /// from its beginning.
    ///
    /// What is incomplete is kept in `dir`, in a snapshot whose name begins with
    /// `.butternut-receive`, until its subvolume is complete. It has the effects of the commands up
    /// to a damage or the end of the input; after another error or a crash, of all but those of the
    /// last `checkpoint_bytes` bytes of the stream. A snapshot that was writable since then, or
    /// that no receive has made, is not used and not deleted: [`ReceiveReport::changed`].
    ///
    /// # Errors
    /// As [`Filesystem::receive`]; [`Error::Stream`] for a stream that is not the one that was
    /// interrupted.
    pub fn receive_resumable<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
        checkpoint_bytes: u64,
        report: &mut ReceiveReport,
    ) -> Result<()> {
        self.receive_checked(dir, stream, end, (Some(checkpoint_bytes), None), report)
    }

    fn receive_checked<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
        (checkpoint_bytes, serving): (Option<u64>, Option<ReceiveServing<'_>>),
        report: &mut ReceiveReport,
    ) -> Result<()> {
        let limits = stream.limits().clone();
        let receiver = Receiver::new(self, dir, checkpoint_bytes, limits, report);
        let mut receiver = match serving {
            Some(serving) => receiver.serving(serving),
            None => receiver,
        };
        let applied = receive_all(&mut receiver, stream, end);
        if applied.is_err() {
            receiver.interrupt();
        }
        applied
    }
}

/// Returns the bytes that an `ENCODED_WRITE` writes at its offset; `None` for other commands.
///
/// # Errors
/// [`Error::Stream`]: the compressed data is damaged, or larger than an extent can be.
pub fn decode_write(command: &Command<'_>) -> Result<Option<Vec<u8>>> {
    let Some(encoded) = Encoded::of(command) else { return Ok(None) };
    encoded.decode().map(Some).map_err(Error::Stream)
}

fn receive_all<R: Read>(
    receiver: &mut Receiver<'_, '_>,
    stream: &mut StreamReader<R>,
    end: StreamEnd,
) -> Result<()> {
    while stream.next_stream()?.is_some() {
        loop {
            let NextCommand { place, command, checksum, bytes } = stream.next_checked()?;
            let applied = receiver.next(&command, checksum, bytes);
            applied.map_err(|error| at_command(place, &command, error))?;
            if command == Command::End {
                break;
            }
        }
        if end == StreamEnd::Command {
            break;
        }
    }
    Ok(())
}

fn at_command(place: CommandPlace, command: &Command<'_>, source: Error) -> Error {
    let what = match command.path() {
        Some(path) => format!("{} {}", command.name(), path.escape_ascii()),
        None => command.name().to_owned(),
    };
    Error::Receive { place, what, source: Box::new(source) }
}
