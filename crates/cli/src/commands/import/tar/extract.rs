//! [`Extract`]: creates the members of an archive in the volume, in the order of the archive.
//!
//! 1. A name is looked up component by component below the destination. A component that is not a
//!    directory, such as a symlink, is a failure.
//! 2. Only what this import has made is replaced.
//! 3. The attributes of a directory are set when its member is read; its times, which change with
//!    each new entry, once more at the end. Those waiting are at most [`TIMES_MAX`].
//! 4. A member takes time in proportion to its name and data, however deep it is and whatever its
//!    parents have: of these only the last one is examined, and those of directories that the
//!    archive does not name. The last [`PARENTS_MAX`] parents are remembered.

use std::collections::HashMap;
use std::io::Read;

use butternut::{Error, File, FileId, FileKind, Filesystem, NewInode, Privileges, Stat, Time};
use rustix::io::Errno;

use super::super::super::progress::Progress;
use super::super::super::transaction::failed;
use super::super::super::write::write_all;
use super::super::apply::Counts;
use super::super::create::{Create, INHERITED_XATTRS, NotFinished, Rules, is_attribute_too_large};
use super::reader::{Kind, Member, Reader};
use crate::failure::Failure;
use crate::output::text;

/// Permissions of directories that the archive does not name. They belong to root.
pub(super) const PERMISSIONS: u32 = 0o755;
/// Bytes per read and write.
const PART_BYTES: usize = 1 << 20;
/// Maximum number of directories whose times are to be set (law 3).
const TIMES_MAX: usize = 1 << 16;
/// Maximum number of parent directories that are remembered (law 4).
const PARENTS_MAX: usize = 8;
const SET_GROUP_ID: u32 = 0o2000;

pub(super) struct Extract<'a> {
    create: Create<'a>,
    progress: &'a Progress,
    root: FileId,
    /// Inodes of later generations were made by this import.
    generation: u64,
    times: HashMap<FileId, (Time, Time)>,
    /// The parent directories of the last members, the last one last (law 4).
    parents: Vec<Parent>,
    /// How often a directory was examined.
    examined: u64,
    buffer: Vec<u8>,
    pub(super) counts: Counts,
    pub(super) is_full: bool,
}

#[derive(Clone)]
struct Parent {
    path: Vec<u8>,
    id: FileId,
    /// Entries may inherit something from it.
    is_inherited: bool,
}

impl<'a> Extract<'a> {
    pub(super) fn new(
        filesystem: &'a Filesystem,
        rules: Rules,
        progress: &'a Progress,
        (root, generation): (FileId, u64),
    ) -> Self {
        Self {
            create: Create { filesystem, rules },
            progress,
            root,
            generation,
            times: HashMap::new(),
            parents: Vec::new(),
            examined: 0,
            buffer: vec![0; PART_BYTES],
            counts: Counts::default(),
            is_full: false,
        }
    }

    /// Creates all members.
    pub(super) fn run<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<(), Failure> {
        while let Some(member) = reader.next()? {
            self.member(reader, &member)?;
        }
        self.set_times().map_err(|error| self.failed(b"/", &error))
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Failure {
        self.is_full |=
            error.errno() == Errno::NOSPC.raw_os_error() && !is_attribute_too_large(error);
        failed(path, error)
    }

    fn not_finished(&mut self, member: &Member, why: &NotFinished) -> Failure {
        why.described(&member.name, |path, error| self.failed(path, error))
    }

    fn member<R: Read>(&mut self, reader: &mut Reader<R>, member: &Member) -> Result<(), Failure> {
        let names = components(&member.name).map_err(|why| reader.failed(why))?;
        let is_directory = member.attributes.kind == FileKind::Directory;
        let Some((name, above)) = names.split_last() else {
            if is_directory && !member.name.is_empty() {
                return self.directory(self.root, member);
            }
            return Err(reader.failed("has the name of the destination, and is not a directory"));
        };
        let parent = self.parent(above, reader)?;
        let existing = self.lookup(parent.id, name, member)?;
        if let Some(stat) = &existing {
            if is_directory && stat.kind == FileKind::Directory {
                return self.directory(stat.id, member);
            }
            if stat.kind == FileKind::Directory && stat.generation > self.generation {
                return Err(reader.failed("is a directory earlier in the archive, and not here"));
            }
            if stat.kind == FileKind::Directory {
                return Err(reader
                    .failed("is a directory in the volume, and not in the archive")
                    .hint("remove it, or choose another PATH"));
            }
            if stat.generation <= self.generation {
                return Err(self.failed(&member.name, &Error::Exists));
            }
        }
        self.touch(parent.id, member)?;
        if let Kind::HardLink { target } = &member.kind {
            let target = self.link_target(target, reader)?;
            if existing.as_ref().is_some_and(|stat| stat.id == target) {
                return Ok(());
            }
            self.replace(existing.as_ref(), parent.id, name, member)?;
            let linked = self.create.filesystem.link(target, parent.id, name);
            linked.map_err(|error| self.failed(&member.name, &error))?;
            self.counts.links += 1;
            return Ok(());
        }
        self.replace(existing.as_ref(), parent.id, name, member)?;
        if is_directory {
            let new = self.create.new_inode(&member.attributes, member.attributes.permissions);
            let id = self.make_directory(parent.id, name, &new, &member.name)?;
            return self.directory(id, member);
        }
        self.file(&parent, name, member, reader)
    }

    /// Removes an earlier member of the same name (law 2).
    fn replace(
        &mut self,
        existing: Option<&Stat>,
        dir: FileId,
        name: &[u8],
        member: &Member,
    ) -> Result<(), Failure> {
        if existing.is_none() {
            return Ok(());
        }
        let removed = self.create.filesystem.unlink(dir, name);
        removed.map_err(|error| self.failed(&member.name, &error))
    }

    fn file<R: Read>(
        &mut self,
        parent: &Parent,
        name: &[u8],
        member: &Member,
        reader: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let (found, empty) = (&member.attributes, Vec::new());
        let target = if let Kind::File { target } = &member.kind { target } else { &empty };
        self.progress.found(found.size);
        let made = self.create.make(parent.id, name, found, target, parent.is_inherited);
        let id = made.map_err(|error| self.failed(&member.name, &error))?;
        if found.kind == FileKind::File && found.size > 0 {
            let file = self.create.filesystem.open_file(id);
            let file = file.map_err(|error| self.failed(&member.name, &error))?;
            self.fill(&file, member, reader)?;
        }
        let finished = self.create.finish(id, found, None);
        finished.map_err(|why| self.not_finished(member, &why))?;
        self.counts.files += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(found.size);
        Ok(())
    }

    /// Writes the data of a file, and leaves its holes.
    fn fill<R: Read>(
        &mut self,
        file: &File,
        member: &Member,
        reader: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let size = member.attributes.size;
        let whole = std::slice::from_ref(&(0..size)).to_vec();
        let ranges = member.map.as_ref().map_or(&whole, |map| &map.ranges);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut done = 0;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let part = usize::try_from(range.end - at).unwrap_or(PART_BYTES).min(PART_BYTES);
                reader.read_data(&mut buffer[..part])?;
                let written = write_all(file, at, &buffer[..part], Privileges::Keep);
                written.map_err(|error| self.failed(&member.name, &error))?;
                at += part as u64;
                self.progress.done(at - done);
                done = at;
            }
        }
        self.buffer = buffer;
        if file.len() < size {
            file.truncate(size).map_err(|error| self.failed(&member.name, &error))?;
            self.progress.done(size - done);
        }
        Ok(())
    }

    /// Sets the attributes of a directory that the archive names (law 3).
    fn directory(&mut self, id: FileId, member: &Member) -> Result<(), Failure> {
        let found = &member.attributes;
        let set = || -> Result<(), NotFinished> {
            self.create.remove_inherited(id, found, found.permissions)?;
            self.create.finish(id, found, Some(found.permissions))
        };
        set().map_err(|why| self.not_finished(member, &why))?;
        // Its entries inherit from it now.
        self.parents.retain(|parent| parent.id != id);
        let times = self.create.times(found);
        self.wait(id, times).map_err(|error| self.failed(&member.name, &error))
    }

    fn make_directory(
        &mut self,
        dir: FileId,
        name: &[u8],
        new: &NewInode,
        path: &[u8],
    ) -> Result<FileId, Failure> {
        let made = self.create.filesystem.mkdir(dir, name, new);
        let id = made.map_err(|error| self.failed(path, &error))?;
        self.counts.directories += 1;
        Ok(id)
    }

    fn lookup(
        &mut self,
        dir: FileId,
        name: &[u8],
        member: &Member,
    ) -> Result<Option<Stat>, Failure> {
        let fs = self.create.filesystem;
        match fs.lookup(dir, name).and_then(|id| fs.stat(id)) {
            Ok(stat) => Ok(Some(stat)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(self.failed(&member.name, &error)),
        }
    }

    /// Finds the directory at a path below the destination, and creates what is missing (law 1).
    fn parent<R: Read>(&mut self, names: &[&[u8]], reader: &Reader<R>) -> Result<Parent, Failure> {
        let path = names.join(&b'/');
        if let Some(at) = self.parents.iter().position(|parent| parent.path == path) {
            let parent = self.parents.remove(at);
            self.parents.push(parent.clone());
            return Ok(parent);
        }
        let (mut id, mut end) = (self.root, 0);
        for name in names {
            let fs = self.create.filesystem;
            let above = &path[..end];
            end += usize::from(end > 0) + name.len();
            let path = &path[..end];
            id = match fs.lookup(id, name).and_then(|id| fs.stat(id)) {
                Ok(stat) if stat.kind == FileKind::Directory => stat.id,
                Ok(stat) => return Err(not_directory(stat.kind, path, reader)),
                Err(Error::NotFound) => {
                    let new = NewInode::new(PERMISSIONS);
                    let is_inherited = self.is_inherited(id, above)?;
                    self.touch_at(id, path)?;
                    let made = self.make_directory(id, name, &new, path)?;
                    if is_inherited {
                        self.make_plain(made, path)?;
                    }
                    made
                }
                Err(error) => return Err(self.failed(path, &error)),
            };
        }
        let is_inherited = self.is_inherited(id, &path)?;
        let parent = Parent { path, id, is_inherited };
        if self.parents.len() >= PARENTS_MAX {
            self.parents.remove(0);
        }
        self.parents.push(parent.clone());
        Ok(parent)
    }

    /// Removes what a directory that the archive does not name has inherited.
    fn make_plain(&mut self, id: FileId, path: &[u8]) -> Result<(), Failure> {
        let fs = self.create.filesystem;
        let plain = || -> butternut::Result<()> {
            for name in fs.xattr_names(id)? {
                if INHERITED_XATTRS.contains(&name.as_slice()) {
                    fs.remove_xattr(id, &name)?;
                }
            }
            let set = butternut::SetAttributes {
                mode: Some(PERMISSIONS),
                uid: Some(0),
                gid: Some(0),
                ..Default::default()
            };
            fs.set_attributes(id, &set).map(drop)
        };
        plain().map_err(|error| self.failed(path, &error))
    }

    /// Returns whether entries may inherit something from a directory.
    fn is_inherited(&mut self, id: FileId, path: &[u8]) -> Result<bool, Failure> {
        self.examined += 1;
        let fs = self.create.filesystem;
        let is_inherited = || -> butternut::Result<bool> {
            let stat = fs.stat(id)?;
            if stat.generation <= self.generation || stat.mode & SET_GROUP_ID != 0 {
                return Ok(true);
            }
            // By their names: there may be any number of others.
            for name in INHERITED_XATTRS {
                match fs.xattr(id, name) {
                    Ok(_) => return Ok(true),
                    Err(Error::NoAttribute) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(false)
        };
        is_inherited().map_err(|error| self.failed(path, &error))
    }

    /// Finds the file that a hard link is another name of.
    fn link_target<R: Read>(
        &mut self,
        target: &[u8],
        reader: &Reader<R>,
    ) -> Result<FileId, Failure> {
        let shown = text::escaped(target);
        let names = components(target)
            .map_err(|why| reader.failed(format!("is a hard link to {shown}, which {why}")))?;
        let mut id = self.root;
        for (at, name) in names.iter().enumerate() {
            let found = self.create.filesystem.lookup(id, name);
            let stat = found.and_then(|id| self.create.filesystem.stat(id));
            let is_last = at + 1 == names.len();
            match stat {
                Ok(stat) if is_last == (stat.kind != FileKind::Directory) => id = stat.id,
                Ok(_) => {
                    let why = format!("is a hard link to {shown}, which is not a file below PATH");
                    return Err(reader.failed(why));
                }
                Err(Error::NotFound) => {
                    let why = format!("is a hard link to {shown}, which does not exist");
                    return Err(reader.failed(why).hint("a link follows what it links to"));
                }
                Err(error) => return Err(self.failed(target, &error)),
            }
        }
        if names.is_empty() {
            return Err(reader.failed("is a hard link to the destination itself"));
        }
        Ok(id)
    }

    /// Keeps the times of a directory that this import has made, before it gets a new entry.
    fn touch(&mut self, dir: FileId, member: &Member) -> Result<(), Failure> {
        self.touch_at(dir, &member.name)
    }

    fn touch_at(&mut self, dir: FileId, path: &[u8]) -> Result<(), Failure> {
        if self.times.contains_key(&dir) {
            return Ok(());
        }
        let stat = self.create.filesystem.stat(dir);
        let stat = stat.map_err(|error| self.failed(path, &error))?;
        if stat.generation <= self.generation {
            return Ok(());
        }
        let waits = self.wait(dir, (stat.atime, stat.mtime));
        waits.map_err(|error| self.failed(path, &error))
    }

    fn wait(&mut self, dir: FileId, times: (Time, Time)) -> butternut::Result<()> {
        if self.times.len() >= TIMES_MAX && !self.times.contains_key(&dir) {
            self.set_times()?;
        }
        self.times.insert(dir, times);
        Ok(())
    }

    fn set_times(&mut self) -> butternut::Result<()> {
        for (dir, times) in self.times.drain() {
            self.create.set_times(dir, times, None)?;
        }
        Ok(())
    }
}

fn not_directory<R: Read>(kind: FileKind, path: &[u8], reader: &Reader<R>) -> Failure {
    let what = if kind == FileKind::Symlink { "a symlink" } else { "not a directory" };
    let path = text::escaped(path);
    reader.failed(format!("{path} is {what}, and nothing is created through it"))
}

/// Splits a name into the names on its path.
///
/// # Errors
/// Why the name could leave the destination, or is none.
fn components(name: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    if name.contains(&0) {
        return Err("has a zero byte in its name");
    }
    let names = name.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let names: Vec<_> = names.collect();
    if names.contains(&&b".."[..]) {
        return Err("has .. in its name, which could leave the destination");
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::GlobalArgs;
    use butternut::MountOptions;
    use butternut::device::{Device, MemoryDevice};
    use butternut_mkfs::MkfsOptions;
    use std::sync::Arc;

    /// Of directories that exist, only the last one on a path is examined, and it once.
    #[test]
    fn members_by_turns_in_a_deep_and_another_directory_examine_each_once() {
        const DEPTH: u64 = 40;
        let device = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let devices = vec![Arc::new(device) as Arc<dyn Device>];
        let fs = Filesystem::open_devices(devices, &options).unwrap();
        let (verbose, quiet, json, degraded) = (false, true, false, false);
        let progress = Progress::new(&GlobalArgs { verbose, quiet, json, degraded });
        let mut extract = Extract::new(&fs, Rules::default(), &progress, (fs.root(), 0));
        let reader = Reader::new(&[][..], "tar".into(), true);
        let deep = vec![&b"a"[..]; usize::try_from(DEPTH).unwrap()];
        let made = extract.parent(&deep, &reader).unwrap();
        assert_eq!(extract.examined, DEPTH + 1, "those above the made ones, and the last");
        for _ in 0..50 {
            assert_eq!(extract.parent(&[], &reader).unwrap().id, fs.root());
            assert_eq!(extract.parent(&deep, &reader).unwrap().id, made.id);
            assert_eq!(extract.parent(&[b"b"], &reader).unwrap().path, b"b");
        }
        // The root, and once more to make b in it, and b.
        assert_eq!(extract.examined, DEPTH + 4);
        for depth in 1..deep.len() {
            extract.parent(&deep[..depth], &reader).unwrap();
            assert!(extract.parents.len() <= PARENTS_MAX);
        }
        assert_eq!(extract.examined, DEPTH + 4 + DEPTH - 1);
        extract.parent(&deep, &reader).unwrap();
        assert_eq!(extract.examined, DEPTH + 4 + DEPTH, "it was forgotten");
    }

    #[test]
    fn names_stay_below_the_destination() {
        assert_eq!(components(b"/a//./b/").unwrap(), [b"a", b"b"]);
        assert_eq!(components(b"./").unwrap(), [b""; 0]);
        assert_eq!(components(b"...").unwrap(), [b"..."]);
        for name in [&b".."[..], b"a/../b", b"/..", b"a\0b"] {
            assert!(components(name).is_err(), "{name:?}");
        }
    }
}
