//! A volume that one command changes: all of it, or nothing.
//!
//! 1. Everything that a command does is in one transaction, committed by [`Change::finish`]. A
//!    command that fails before has changed nothing.
//! 2. What is printed about changes is printed after the commit.
//! 3. A path leads to the directory that a name is in, through symlinks inside the volume; the name
//!    itself is not followed.

use std::ffi::OsString;

use butternut::{DevicePath, Error, FileId, Filesystem, Follow, NewInode, Stat};
use rustix::process::{getegid, geteuid};
use serde_json::Value;

use super::walk::WalkPath;
use crate::failure::{Done, Failure, Outcome};
use crate::flags::{GlobalArgs, VolumeArgs};
use crate::options::Opened;
use crate::output::json::Object;
use crate::output::{Output, json, say, text};

/// Subvolumes' roots.
const ROOT_INO: u64 = 256;

/// A volume that is being changed.
pub(crate) struct Change {
    opened: Opened,
    /// What was done to which path, in order. Paths share their names: those of a deep tree, each
    /// on its own, take gigabytes.
    acts: Vec<(&'static str, WalkPath)>,
    is_committed: bool,
}

/// A name in a directory, whether it is there or not.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) dir: FileId,
    pub(crate) name: Vec<u8>,
    /// As typed, or as it came about.
    pub(crate) path: Vec<u8>,
}

impl Change {
    pub(crate) fn open(global: &GlobalArgs, volume: &VolumeArgs) -> Result<Self, Failure> {
        Self::open_words(global, std::slice::from_ref(&volume.volume))
    }

    pub(crate) fn open_words(global: &GlobalArgs, words: &[OsString]) -> Result<Self, Failure> {
        let opened = Opened::to_change(global, words, false)?;
        Ok(Self { opened, acts: Vec::new(), is_committed: false })
    }

    /// For what deletes: where the volume is so full that it must, it is committed on the way.
    pub(crate) fn open_to_delete(
        global: &GlobalArgs,
        volume: &VolumeArgs,
    ) -> Result<Self, Failure> {
        let opened = Opened::to_change(global, std::slice::from_ref(&volume.volume), true)?;
        Ok(Self { opened, acts: Vec::new(), is_committed: false })
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        &self.opened.filesystem
    }

    /// The volume as typed.
    pub(crate) fn volume(&self) -> &str {
        &self.opened.named.typed
    }

    pub(crate) fn devices(&self) -> &[DevicePath] {
        &self.opened.named.devices
    }

    /// Turns an error of the volume as a whole into a failure.
    pub(crate) fn whole(&self, error: &Error) -> Failure {
        self.opened.whole(error)
    }

    pub(crate) fn find(&self, path: &[u8], follow: Follow) -> Result<FileId, Failure> {
        self.filesystem().resolve(path, follow).map_err(|error| failed(path, &error))
    }

    pub(crate) fn stat(&self, id: FileId, path: &[u8]) -> Result<Stat, Failure> {
        self.filesystem().stat(id).map_err(|error| failed(path, &error))
    }

    /// The place that a path names (law 3).
    pub(crate) fn place(&self, path: &[u8]) -> Result<Place, Failure> {
        let (above, name) = split(path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Failure::new(text::escaped(path), "no name of anything in a directory")
                .cure("write the path of one thing, without . or .. at its end"));
        }
        let dir = self.find(above, Follow::Last)?;
        Ok(Place { dir, name: name.to_vec(), path: path.to_vec() })
    }

    /// What has a name, if anything does.
    pub(crate) fn occupant(&self, place: &Place) -> Result<Option<FileId>, Failure> {
        match self.filesystem().lookup(place.dir, &place.name) {
            Ok(id) => Ok(Some(id)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(failed(&place.path, &error)),
        }
    }

    /// A place under `place`'s directory's entry `dir`.
    pub(crate) fn within(dir: FileId, dir_path: &[u8], name: &[u8]) -> Place {
        Place { dir, name: name.to_vec(), path: text::joined(dir_path, name) }
    }

    /// Takes note of what was done, to be said when it is committed.
    pub(crate) fn did(&mut self, what: &'static str, path: &[u8]) {
        self.did_at(what, &WalkPath::new(path.to_vec()));
    }

    /// As [`Change::did`], for something that a walk has come to.
    pub(crate) fn did_at(&mut self, what: &'static str, path: &WalkPath) {
        self.acts.push((what, path.clone()));
    }

    /// Commits, and says what was done. `more` is for JSON.
    pub(crate) fn finish(
        mut self,
        global: &GlobalArgs,
        out: &mut Output,
        more: impl FnOnce(Object) -> Object,
    ) -> Outcome {
        self.commit()?;
        if global.json {
            let changes = self.acts.iter().map(|(what, path)| {
                Value::from(Object::new().put("did", *what).name("path", &path.bytes()))
            });
            let object = Object::new()
                .put("volume", self.volume())
                .put("changes", changes.collect::<Vec<_>>());
            json::document(out, more(object))?;
        } else if global.verbose {
            for (what, path) in &self.acts {
                say(&format!("{}: {what}", text::escaped(&path.bytes())));
            }
        }
        Ok(Done::Well)
    }

    /// Commits now (law 1).
    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        self.filesystem().sync().map_err(|error| self.whole(&error))?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if !self.is_committed {
            self.filesystem().abandon();
        }
    }
}

/// An inode for whoever runs the command.
pub(crate) fn new_inode(permissions: u32) -> NewInode {
    NewInode { uid: geteuid().as_raw(), gid: getegid().as_raw(), ..NewInode::new(permissions) }
}

/// An error at a path.
pub(crate) fn failed(path: &[u8], error: &Error) -> Failure {
    Failure::of(text::escaped(path), error)
}

/// Refuses a subvolume in `dir`, and a placeholder of one.
pub(crate) fn refuse_subvolume(
    dir: FileId,
    stat: &Stat,
    path: &WalkPath,
    verb: &str,
) -> Result<(), Failure> {
    let (what, cure) = if stat.id.is_placeholder() {
        let what = "stands for a subvolume that this snapshot does not hold";
        (what, "`butternut rm -r` removes it")
    } else if stat.id.subvolume != dir.subvolume || stat.ino == ROOT_INO {
        ("is a subvolume", "mount the volume with the kernel's btrfs, and use btrfs-subvolume(8)")
    } else {
        return Ok(());
    };
    let why = format!("{what}, and those are not {verb} like directories");
    Err(Failure::new(text::escaped(&path.bytes()), why).cure(cure))
}

/// The directory of a path, and the name in it, without slashes at its end.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let whole = &path[..end];
    match whole.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", &whole[1..]),
        Some(at) => (&whole[..at], &whole[at + 1..]),
        None if whole.is_empty() => (b"/", b""),
        None => (b".", whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        assert_eq!(split(b"a"), (&b"."[..], &b"a"[..]));
        assert_eq!(split(b"/a"), (&b"/"[..], &b"a"[..]));
        assert_eq!(split(b"/a/b//"), (&b"/a"[..], &b"b"[..]));
        assert_eq!(split(b"a/.."), (&b"a"[..], &b".."[..]));
        assert_eq!(split(b"/"), (&b"/"[..], &b""[..]));
        assert_eq!(split(b""), (&b"/"[..], &b""[..]));
    }
}
