//! `compare-trees [--copy] A B`: compares two directories entry by entry.
//!
//! It compares names, file types, modes, owners, times, links, xattrs, every byte, and data ranges.
//! With `--copy`, B is a copy of A, and may differ in inode numbers, allocation, access times and
//! change times.

use anyhow::{Context, Result, bail};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::walk::walk;
use std::io::Write;
use std::path::Path;

/// The differences between two mounts of one volume, which FUSE cannot represent.
const MOUNT: [Field; 3] = [Field::Btime, Field::Flags, Field::Ino];

const COPY: [Field; 12] = [
    Field::Ino,
    Field::Atime,
    Field::Btime,
    Field::Ctime,
    Field::Blocks,
    Field::Order,
    Field::Flags,
    Field::Data,
    Field::DirectorySize,
    Field::DirectoryLinks,
    Field::DirectoryTimes,
    Field::BtrfsXattrs,
];

fn main() -> Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let is_copy = args.first().is_some_and(|arg| arg == "--copy");
    if is_copy {
        args.remove(0);
    }
    let [a, b] = args.as_slice() else { bail!("usage: compare-trees [--copy] A B") };
    let (one, two) = (look(a)?, look(b)?);
    let bytes: u64 = one.entries.iter().filter(|e| !e.pieces.is_empty()).map(|e| e.size).sum();
    let (want, have) = (Side { name: a, manifest: &one }, Side { name: b, manifest: &two });
    match compare(want, have, if is_copy { &COPY } else { &MOUNT }) {
        Ok(entries) => {
            let mib = bytes >> 20;
            Ok(writeln!(std::io::stdout(), "{entries} entries, {mib} MiB: the same")?)
        }
        Err(text) => bail!("{text}"),
    }
}

fn look(path: &str) -> Result<butternut_judges::manifest::Manifest> {
    walk(Path::new(path)).with_context(|| path.to_owned())
}
