//! Lists every file of a volume: `cargo run --example list_tree -- IMAGE [DIRECTORY]`.

use butternut::{
    DevicePath, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, Follow, MountOptions,
};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(std::env::args_os().skip(1), &mut io::stdout().lock())
}

pub(crate) fn run(
    mut arguments: impl Iterator<Item = OsString>,
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let image = arguments.next().ok_or("usage: list_tree IMAGE [DIRECTORY]")?;
    let start = arguments.next().map(OsStringExt::into_vec).unwrap_or_default();

    let filesystem = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
    let directory = filesystem.resolve(&start, Follow::Last)?;
    list(&filesystem, directory, &start, out)
}

fn list(
    filesystem: &Filesystem,
    directory: FileId,
    path: &[u8],
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let entries: Vec<_> =
        filesystem.read_dir(directory, FIRST_ENTRY)?.collect::<Result<_, Error>>()?;
    for entry in entries {
        let path = [path, entry.name.as_slice()].join(&b'/');
        let stat = filesystem.stat(entry.id)?;
        write!(out, "{:06o} {:>5} {:>5} {:>12} ", stat.mode, stat.uid, stat.gid, stat.size)?;
        out.write_all(&path)?;
        writeln!(out)?;
        if entry.kind == FileKind::Directory {
            list(filesystem, entry.id, &path, out)?;
        }
    }
    Ok(())
}
