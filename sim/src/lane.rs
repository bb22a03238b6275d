//! Files of the library, created and read through a given lane, for the multi-threaded runs.

use crate::operation::Lane;
use anyhow::{Context, Result};
use butternut::{AttributeFlags, File, Filesystem, NewInode};

/// Creates an empty file with attribute flags in the root directory, and opens it.
pub(crate) fn make(filesystem: &Filesystem, name: &str, flags: u32) -> Result<File> {
    let id = filesystem.create(filesystem.root(), name.as_bytes(), &NewInode::new(0o644))?;
    filesystem.set_attribute_flags(id, AttributeFlags(flags))?;
    Ok(filesystem.open_file(id)?)
}

/// Reads a range as far as the file goes; the result is as long as the number of bytes read.
pub(crate) fn read_within(file: &File, offset: u64, bytes: usize, lane: Lane) -> Result<Vec<u8>> {
    let mut memory = vec![0xee; bytes];
    let transferred = match lane {
        Lane::Cached => file.read_at(offset, &mut memory),
        Lane::Direct => file.read_direct(offset, &mut memory),
        Lane::Uncached => file.read_uncached(offset, &mut memory),
    };
    let what = || format!("a read of {bytes} bytes at {offset} of {:?}, {lane:?}", file.id());
    memory.truncate(transferred.with_context(what)?);
    Ok(memory)
}

/// Reads a range; bytes behind the end of the file are zeroes.
pub(crate) fn read(file: &File, offset: u64, bytes: usize, lane: Lane) -> Result<Vec<u8>> {
    let mut memory = read_within(file, offset, bytes, lane)?;
    memory.resize(bytes, 0);
    Ok(memory)
}

/// Reads a range that lies inside the file.
pub(crate) fn read_whole(file: &File, offset: u64, bytes: usize, lane: Lane) -> Result<Vec<u8>> {
    let memory = read_within(file, offset, bytes, lane)?;
    anyhow::ensure!(memory.len() == bytes, "{bytes} bytes at {offset}: {} were read", memory.len());
    Ok(memory)
}
