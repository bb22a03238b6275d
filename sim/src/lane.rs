//! Files of the library, made and read by one of the lanes: what the runs of threads share.

use crate::operation::Lane;
use anyhow::{Context, Result};
use butternut::{AttributeFlags, File, Filesystem, NewInode};

/// Makes an empty file with attribute flags in the root directory, and opens it.
pub(crate) fn make(filesystem: &Filesystem, name: &str, flags: u32) -> Result<File> {
    let id = filesystem.create(filesystem.root(), name.as_bytes(), &NewInode::new(0o644))?;
    filesystem.set_attribute_flags(id, AttributeFlags(flags))?;
    Ok(filesystem.open_file(id)?)
}

/// Reads what the file has of a range; the length of what came back is that of what came.
pub(crate) fn read_within(file: &File, offset: u64, bytes: usize, lane: Lane) -> Result<Vec<u8>> {
    let mut memory = vec![0xee; bytes];
    let came = match lane {
        Lane::Cached => file.read_at(offset, &mut memory),
        Lane::Direct => file.read_direct(offset, &mut memory),
        Lane::Uncached => file.read_uncached(offset, &mut memory),
    };
    let what = || format!("a read of {bytes} bytes at {offset} of {:?}, {lane:?}", file.id());
    memory.truncate(came.with_context(what)?);
    Ok(memory)
}

/// Reads a range, with zeroes behind the end of the file.
pub(crate) fn read(file: &File, offset: u64, bytes: usize, lane: Lane) -> Result<Vec<u8>> {
    let mut memory = read_within(file, offset, bytes, lane)?;
    memory.resize(bytes, 0);
    Ok(memory)
}

/// Reads all of a range that lies inside the file.
pub(crate) fn read_whole(file: &File, offset: u64, bytes: usize, lane: Lane) -> Result<Vec<u8>> {
    let memory = read_within(file, offset, bytes, lane)?;
    anyhow::ensure!(memory.len() == bytes, "{bytes} bytes at {offset}: {} came", memory.len());
    Ok(memory)
}
