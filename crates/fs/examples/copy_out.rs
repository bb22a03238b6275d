//! Copies a file out of a volume: `cargo run --example copy_out -- IMAGE PATH DESTINATION`.
//!
//! Holes stay holes: only what holds data is read and written.

use butternut::{DevicePath, Filesystem, Follow, MountOptions};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

const PIECE_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(image), Some(path), Some(destination)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: copy_out IMAGE PATH DESTINATION".into());
    };

    let filesystem = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
    let id = filesystem.resolve(&path.into_vec(), Follow::Last)?;
    let file = filesystem.open_file(id)?;

    let copy = fs::File::create(destination)?;
    copy.set_len(file.size())?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while let Some(start) = file.seek_data(offset)? {
        let end = file.seek_hole(start)?.unwrap_or(file.size());
        offset = start;
        while offset < end {
            let wanted = usize::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let read = file.read_at(offset, &mut piece[..wanted])?;
            copy.write_all_at(&piece[..read], offset)?;
            offset += read as u64;
        }
    }
    Ok(())
}
