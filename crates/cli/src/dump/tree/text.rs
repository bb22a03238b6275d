//! Prints the dump in the text format of btrfs-progs.

use super::block;
use super::formatting::UuidText;
use super::key::KeyText;
use super::render::{Heading, Renderer, Style};
use butternut_format::super_block::{RawRootBackup, RawSuperBlock};
use std::io::{self, Write};

/// The first line of the output, which names the program.
const PROGRAM: &str = "btrfs-progs v6.14";

pub(super) struct Text<'a> {
    style: Style,
    out: &'a mut dyn Write,
}

impl<'a> Text<'a> {
    pub(super) fn start(style: Style, out: &'a mut dyn Write) -> io::Result<Self> {
        writeln!(out, "{PROGRAM}")?;
        Ok(Self { style, out })
    }

    fn backup(&mut self, slot: usize, backup: &RawRootBackup) -> io::Result<()> {
        writeln!(self.out, "btrfs root backup slot {slot}")?;
        let (generation, root) = (backup.tree_root_gen, backup.tree_root);
        writeln!(self.out, "\ttree root gen {generation} block {root}")?;
        for (name, generation, root) in [
            ("extent", backup.extent_root_gen, backup.extent_root),
            ("chunk", backup.chunk_root_gen, backup.chunk_root),
            ("device", backup.dev_root_gen, backup.dev_root),
            ("csum", backup.csum_root_gen, backup.csum_root),
            ("fs", backup.fs_root_gen, backup.fs_root),
        ] {
            writeln!(self.out, "\t\t{name} root gen {generation} block {root}")?;
        }
        let (used, total, devices) = (backup.bytes_used, backup.total_bytes, backup.num_devices);
        writeln!(self.out, "\t\t{used} used {total} total {devices} devices")
    }
}

impl Renderer for Text<'_> {
    fn tree(&mut self, heading: &Heading<'_>) -> io::Result<()> {
        let Heading { name, key, root, is_short, is_extents } = heading;
        let (logical, level) = (root.logical, root.level);
        match key.map(KeyText) {
            None if *is_short => writeln!(self.out, "{name}: {logical} level {level}"),
            None => writeln!(self.out, "{name}"),
            Some(key) if *is_extents => writeln!(self.out, "{name} {key}"),
            Some(key) if *is_short => writeln!(self.out, "{name} {key} {logical} level {level}"),
            Some(key) => writeln!(self.out, "{name} {key} "),
        }
    }

    fn block(&mut self, bytes: &[u8]) -> io::Result<()> {
        block::print(bytes, self.style, self.out)
    }

    fn totals(&mut self, raw: &RawSuperBlock, with_backups: bool) -> io::Result<()> {
        if with_backups {
            for (slot, backup) in raw.super_roots.iter().enumerate() {
                self.backup(slot, backup)?;
            }
        }
        writeln!(self.out, "total bytes {}", raw.total_bytes)?;
        writeln!(self.out, "bytes used {}", raw.bytes_used)?;
        writeln!(self.out, "uuid {}", UuidText(&raw.fsid))
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}
