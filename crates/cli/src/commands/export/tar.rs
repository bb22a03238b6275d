//! `export --tar`: writes a file or directory tree to stdout as an archive in the pax format of
//! POSIX.1-2001, which GNU tar, bsdtar and star read.
//!
//! 1. A member has as many bytes as its header says. What cannot be read is zeros, and is reported.
//! 2. Each name is one of a file in the tree: names that could leave it are reported, not written.
//! 3. With `--no-owner`, nothing that grants privileges is written, as for a copy: the members
//!    belong to root in the archive. Devices are written only with `--devices`. The root directory
//!    of the tree has no member: a tar program would give its mode and its access lists to the
//!    directory that it extracts into, which a copy does not change either.
//! 4. Members are in the order of the walk: a directory is before what it contains, and the first
//!    name of a file before its hard links.
//! 5. No two members have one name, unless a directory has two entries of one file. A tar program
//!    would follow a symlink that another member replaces by a directory. So an entry is written
//!    only if a lookup of its name finds its file: no names have to be remembered.

mod member;
mod records;
mod sparse;

use std::collections::HashMap;
use std::io::{self, Write};

use ::tar::EntryType;
use butternut::{FileId, FileKind, Stat};

use super::super::walk::{Walk, WalkEntry, WalkError, WalkPath};
use super::filter::Filter;
use super::report::NotPreserved;
use super::shared::Export;
use super::source::{READ_BYTES, Sink, Source};
use super::{attributes, directory};
use crate::failure::chain;
use member::Member;
use sparse::Map;

/// Two blocks of zeros end an archive.
const END: [u8; 1024] = [0; 1024];

/// An archive that is being written.
pub(super) struct Archive<'a, W> {
    export: &'a Export,
    filter: &'a Filter,
    to: W,
    /// The first member of each file with names left to come, and their number.
    links: HashMap<FileId, (Vec<u8>, u32)>,
    buffer: Vec<u8>,
}

impl<'a, W: Write> Archive<'a, W> {
    pub(super) fn new(export: &'a Export, filter: &'a Filter, to: W) -> Self {
        Self { export, filter, to, links: HashMap::new(), buffer: vec![0; READ_BYTES] }
    }

    /// Writes the whole archive.
    ///
    /// # Errors
    /// Fails if it cannot be written. What cannot be read has been reported.
    pub(super) fn write(
        mut self,
        top: &WalkEntry,
        stat: &Stat,
        one_subvolume: bool,
    ) -> io::Result<()> {
        let is_named = !matches!(top.name(), b"" | b"." | b"..");
        let name = if is_named { top.name().to_vec() } else { b".".to_vec() };
        // Law 3.
        if is_named || self.export.preserve.owners {
            self.entry(&name, top, stat)?;
        }
        if top.is_directory() {
            self.tree(&name, top, one_subvolume)?;
        }
        self.to.write_all(&END)?;
        self.to.flush()
    }

    fn tree(&mut self, name: &[u8], top: &WalkEntry, one_subvolume: bool) -> io::Result<()> {
        let export = self.export;
        let unreadable = |broken: WalkError| {
            export.report.unreadable(&WalkPath::new(broken.path), &broken.error);
        };
        let mut walk = Walk::new(&export.filesystem, one_subvolume);
        walk.enter(top).unwrap_or_else(unreadable);
        while let Some(step) = walk.next() {
            let found = match step {
                Ok(found) => found,
                Err(broken) => {
                    unreadable(broken);
                    continue;
                }
            };
            if !directory::is_safe(found.name()) {
                export.report.failed(&found.path, "invalid file name");
                continue;
            }
            let stat = match export.filesystem.stat(found.id) {
                Ok(stat) => stat,
                Err(error) => {
                    export.report.unreadable(&found.path, &error);
                    continue;
                }
            };
            if !self.filter.takes(&found.path, &stat) {
                continue;
            }
            if let Some(parent) = walk.parent()
                && let Err(why) = self.look_up(*parent, &found)
            {
                export.report.failed(&found.path, &why);
                continue;
            }
            let path = [name, &found.path.names().join(&b'/')].join(&b'/');
            self.entry(&path, &found, &stat)?;
            if found.is_directory() {
                walk.enter(&found).unwrap_or_else(unreadable);
            }
        }
        Ok(())
    }

    /// Checks that the name of an entry of a directory is that of its file (law 5).
    fn look_up(&self, parent: FileId, found: &WalkEntry) -> Result<(), String> {
        let why = match self.export.filesystem.lookup(parent, found.name()) {
            Ok(named) if named == found.id => return Ok(()),
            Ok(_) => "the directory has another file of this name".to_owned(),
            Err(error) => format!("its name cannot be looked up: {}", chain(&error)),
        };
        Err(format!("the directory entry is damaged: {why}"))
    }

    /// Writes one file or directory.
    fn entry(&mut self, name: &[u8], found: &WalkEntry, stat: &Stat) -> io::Result<()> {
        let report = &self.export.report;
        if (stat.kind == FileKind::Directory) != found.is_directory() {
            report.failed(&found.path, "is not of the type that its directory entry has");
            return Ok(());
        }
        if let Some(first) = self.earlier_name(stat) {
            report.link();
            return Member::new(name, EntryType::Link)
                .link(&first)
                .attributes(stat, 0)
                .write(&mut self.to);
        }
        let preserve = self.export.preserve;
        match stat.kind {
            FileKind::File => return self.file(name, found, stat),
            FileKind::CharDevice | FileKind::BlockDevice if !preserve.devices => {
                report.skipped(NotPreserved::Device, &found.path, preserve);
                return Ok(());
            }
            FileKind::Socket => {
                let why = io::Error::other("an archive has no sockets");
                report.not_preserved(NotPreserved::Socket, &found.path, &why);
                return Ok(());
            }
            FileKind::Symlink
            | FileKind::Directory
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo => {}
        }
        let Some(member) = self.special(name, found, stat) else { return Ok(()) };
        self.described(member, found, stat).write(&mut self.to)?;
        if stat.kind == FileKind::Directory {
            self.export.report.directory();
        } else {
            self.export.report.file(0);
            self.remember(name, stat);
        }
        Ok(())
    }

    /// The member of a file without data, before its attributes are added.
    fn special(&self, name: &[u8], found: &WalkEntry, stat: &Stat) -> Option<Member> {
        match stat.kind {
            FileKind::Symlink => match self.export.filesystem.read_link(stat.id) {
                Ok(target) if target.contains(&0) => {
                    let why = "the symlink is damaged: its target has a NUL byte";
                    self.export.report.failed(&found.path, why);
                    None
                }
                Ok(target) => Some(Member::new(name, EntryType::Symlink).link(&target)),
                Err(error) => {
                    self.export.report.unreadable(&found.path, &error);
                    None
                }
            },
            FileKind::CharDevice => Some(Member::new(name, EntryType::Char).device(stat.rdev)),
            FileKind::BlockDevice => Some(Member::new(name, EntryType::Block).device(stat.rdev)),
            FileKind::Fifo => Some(Member::new(name, EntryType::Fifo)),
            FileKind::File | FileKind::Directory | FileKind::Socket => {
                Some(Member::new(&[name, b"/"].concat(), EntryType::Directory))
            }
        }
    }

    fn file(&mut self, name: &[u8], found: &WalkEntry, stat: &Stat) -> io::Result<()> {
        let export = self.export;
        let file = match export.filesystem.open_file(stat.id) {
            Ok(file) => file,
            Err(error) => {
                export.report.unreadable(&found.path, &error);
                return Ok(());
            }
        };
        export.progress.found(stat.size);
        let source = Source { export, file: &file, path: &found.path };
        let map = Map::of(source, stat.size)?;
        let member = self.described(map.member(name), found, stat).size(map.bytes());
        member.write(&mut self.to)?;
        map.write(&mut self.to)?;
        for data in map.data() {
            let mut padded = Padded { to: &mut self.to, left: data.end - data.start };
            source.read(data.clone(), &mut self.buffer, &mut padded)?;
            padded.end()?;
        }
        member::pad(&mut self.to, map.bytes())?;
        export.progress.done(stat.size);
        export.report.file(stat.size);
        self.remember(name, stat);
        Ok(())
    }

    /// Adds what `preserve` allows of the attributes of a file.
    fn described(&self, member: Member, found: &WalkEntry, stat: &Stat) -> Member {
        let Self { export, .. } = self;
        let mut member = member.attributes(stat, attributes::mode_bits(export, stat));
        if export.preserve.owners {
            member = member.owner(stat.uid, stat.gid);
        }
        attributes::each_xattr(export, stat.id, &found.path, |_| true, &mut |name, value| {
            if !attributes::is_property(name) {
                member.xattr(name, value);
            }
        });
        member
    }

    /// Returns the member of the file that was written for another of its names.
    fn earlier_name(&mut self, stat: &Stat) -> Option<Vec<u8>> {
        let (_, left) = self.links.get_mut(&stat.id)?;
        *left = left.saturating_sub(1);
        if *left > 0 {
            return self.links.get(&stat.id).map(|(name, _)| name.clone());
        }
        self.links.remove(&stat.id).map(|(name, _)| name)
    }

    fn remember(&mut self, name: &[u8], stat: &Stat) {
        if stat.nlink > 1 {
            self.links.insert(stat.id, (name.to_vec(), stat.nlink - 1));
        }
    }
}

/// Writes the data of one range, and zeros for what is missing of it (law 1).
struct Padded<'a, W> {
    to: &'a mut W,
    left: u64,
}

impl<W: Write> Padded<'_, W> {
    fn end(mut self) -> io::Result<()> {
        let left = self.left;
        self.unreadable(left)
    }
}

impl<W: Write> Sink for Padded<'_, W> {
    fn data(&mut self, _at: u64, bytes: &[u8]) -> io::Result<()> {
        let taken = usize::try_from(self.left).unwrap_or(bytes.len()).min(bytes.len());
        self.left -= taken as u64;
        self.to.write_all(&bytes[..taken])
    }

    fn unreadable(&mut self, bytes: u64) -> io::Result<()> {
        let mut bytes = bytes.min(self.left);
        self.left -= bytes;
        while bytes > 0 {
            let part = bytes.min(member::ZEROS.len() as u64);
            self.to.write_all(&member::ZEROS[..usize::try_from(part).unwrap_or(0)])?;
            bytes -= part;
        }
        Ok(())
    }
}
