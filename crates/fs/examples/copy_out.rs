//! Copies a file out of a volume: `cargo run --example copy_out -- IMAGE PATH DESTINATION`.
//!
//! Holes stay holes: only data is read and written.

use butternut::{DevicePath, Filesystem, MountOptions};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

const BUFFER_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(std::env::args_os().skip(1))
}

pub(crate) fn run(
    mut arguments: impl Iterator<Item = OsString>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (Some(image), Some(path), Some(destination)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: copy_out IMAGE PATH DESTINATION".into());
    };

    let filesystem = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
    let file = filesystem.open_path(&path.into_vec())?;

    let copy = fs::File::create(destination)?;
    copy.set_len(file.len())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut offset = 0;
    while let Some(start) = file.seek_data(offset)? {
        let end = file.seek_hole(start)?.unwrap_or(file.len());
        offset = start;
        while offset < end {
            let wanted = usize::try_from(end - offset).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            let read = file.read_at(offset, &mut buffer[..wanted])?;
            copy.write_all_at(&buffer[..read], offset)?;
            offset += read as u64;
        }
    }
    Ok(())
}
