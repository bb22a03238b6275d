//! [`FileCursor`], which gives a [`File`] a position for `std::io`, and the calls that transfer a
//! whole buffer.
//!
//! 1. The position moves by exactly the bytes that a call has transferred.
//! 2. A transfer of a whole buffer ends at the first call without progress.

use crate::{Error, File, Result};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// A [`File`] with a position, for code that wants [`Read`], [`Write`] and [`Seek`].
///
/// Each cursor has its own position and readahead belongs to the file, so use one cursor for each
/// sequential reader. [`Write::flush`] does nothing: a written byte is visible to all handles at
/// once, and durable after [`File::sync_all`].
///
/// ```
/// # #[path = "../../tests/image/mod.rs"]
/// # mod image;
/// # use image::image_of;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let image = image_of(&[], |root| std::fs::write(root.join("list"), "one\ntwo\n").unwrap());
/// # let devices = [butternut::DevicePath::from(&image.path)];
/// use butternut::{FileCursor, Filesystem, MountOptions};
/// use std::io::{BufRead, BufReader};
///
/// let filesystem = Filesystem::open(&devices, &MountOptions::default())?;
/// let list = FileCursor::new(filesystem.open_path(b"list")?);
/// let lines: Vec<String> = BufReader::new(list).lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["one", "two"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FileCursor {
    file: File,
    position: u64,
}

impl FileCursor {
    /// Returns a cursor at the start of the file.
    pub fn new(file: File) -> Self {
        Self { file, position: 0 }
    }

    /// Returns the offset of the next byte that is read or written.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves the cursor to an offset, which may be past the end of the file.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    /// Returns the file.
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// Returns the file; the position is lost.
    pub fn into_inner(self) -> File {
        self.file
    }

    fn advance(&mut self, bytes: usize) -> usize {
        self.position = self.position.saturating_add(bytes as u64);
        bytes
    }
}

impl Read for FileCursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(self.position, buf)?;
        Ok(self.advance(read))
    }
}

impl Write for FileCursor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(self.position, bytes)?;
        Ok(self.advance(written))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FileCursor {
    /// # Errors
    /// `InvalidInput`: the offset is negative, or does not fit into 64 bits.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.file.len().checked_add_signed(by),
        };
        let out_of_range = || io::Error::new(io::ErrorKind::InvalidInput, "offset out of range");
        self.position = target.ok_or_else(out_of_range)?;
        Ok(self.position)
    }
}

impl File {
    /// Fills all of `buf` from `offset`.
    ///
    /// # Errors
    /// [`Error::EndOfFile`] if the file ends before the buffer is full; or as [`File::read_at`].
    /// The content of `buf` is then unspecified.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_at(offset.saturating_add(done as u64), rest)? {
                0 => return Err(Error::EndOfFile),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`File::write_at`]; a part of the bytes may have been written then.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_at(offset.saturating_add(done as u64), rest)? {
                0 => return Err(Error::InvalidArgument { what: "a write made no progress" }),
                written => done += written,
            }
        }
        Ok(())
    }
}
