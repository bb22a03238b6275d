//! [`Output`]: encodes the commands of a stream, and writes them to the caller's writer.

use crate::send::watch::Watch;
use crate::{Error, Result};
use butternut_format::stream::{Command, StreamVersion, check_path};
use std::io::Write;

/// The stream as it is written. It keeps the bytes of one command at a time.
pub(crate) struct Output<'a> {
    to: &'a mut dyn Write,
    version: StreamVersion,
    watch: &'a Watch<'a>,
    bytes: Vec<u8>,
}

impl<'a> Output<'a> {
    /// Writes the header of the stream.
    pub(crate) fn begin(
        to: &'a mut dyn Write,
        version: StreamVersion,
        watch: &'a Watch<'a>,
    ) -> Result<Self> {
        to.write_all(&version.encode()).map_err(Error::StreamOutput)?;
        Ok(Self { to, version, watch, bytes: Vec::new() })
    }

    /// Fails if the caller wants no more of the stream. Called for each inode, which may have no
    /// command.
    pub(crate) fn require_wanted(&self) -> Result<()> {
        self.watch.check()
    }

    pub(crate) fn version(&self) -> StreamVersion {
        self.version
    }

    /// Writes a command.
    ///
    /// # Errors
    /// [`Error::StreamOutput`]; [`Error::StreamCommand`] if a path or a value is too long for the
    /// version; [`Error::StreamPath`] for a path that leads out of the subvolume: receivers may
    /// follow it.
    pub(crate) fn put(&mut self, command: &Command<'_>) -> Result<()> {
        for path in [command.path(), command.other_path()].into_iter().flatten() {
            check_path(path).map_err(|refused| {
                Error::StreamPath(refused.at(format_args!("command {}", command.name())))
            })?;
        }
        self.bytes.clear();
        command.encode(self.version, &mut self.bytes).map_err(Error::StreamCommand)?;
        self.to.write_all(&self.bytes).map_err(Error::StreamOutput)
    }

    /// Writes the end of the stream.
    pub(crate) fn end(mut self) -> Result<()> {
        self.put(&Command::End)?;
        self.to.flush().map_err(Error::StreamOutput)
    }
}
