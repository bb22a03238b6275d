//! The transaction of a command that changes a volume.
//!
//! 1. All changes of a command are in one transaction, which [`Transaction::finish`] commits. A
//!    command that fails before has changed nothing, unless the library had to commit early:
//!    because 256 MiB of metadata were dirty, because a deletion dropped a million references, or
//!    because it needed the space on a full volume. Changes of subvolumes are different: the
//!    library commits each of them at once, so those before a failure stay.
//! 2. Changes are reported after the commit. A command that fails after durable changes reports
//!    these, too ([`Transaction::finish_after`]).
//! 3. The parent directory of a path is resolved through symlinks inside the volume. The last
//!    component is not followed.
//! 4. A path that begins at a subvolume other than the top level may be meant to begin there, since
//!    the default subvolume is the root of a volume argument that names none. So the failure of a
//!    path that is not found, or of a read-only subvolume, names the argument that begins at the
//!    top level.

use std::ffi::OsString;

use butternut::server::FilesystemExt;
use butternut::{DevicePath, Error, FileId, Filesystem, Follow, NewInode, Stat, Subvolume};
use rustix::process::{getegid, geteuid};
use serde_json::Value;

use super::walk::WalkPath;
use crate::args::{GlobalArgs, VolumeArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, stderr_line, text};
use crate::volume::OpenVolume;

/// A volume open for writing. Dropping the value without a commit abandons all changes.
pub(crate) struct Transaction {
    opened: OpenVolume,
    /// The changes in order, each with its path. Paths share their parent names: separate copies of
    /// the paths of a deep tree would take gigabytes.
    actions: Vec<(&'static str, WalkPath)>,
    is_committed: bool,
}

/// A name in a directory. The entry may or may not exist.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) dir: FileId,
    pub(crate) name: Vec<u8>,
    /// The path for messages.
    pub(crate) path: Vec<u8>,
}

impl Location {
    /// Fails if the path ends with a slash: it names a directory then.
    pub(crate) fn refuse_slash(&self) -> Result<(), Failure> {
        if !self.path.ends_with(b"/") {
            return Ok(());
        }
        Err(Failure::new(text::escaped(&self.path), "not a directory")
            .hint("leave out the slash at the end, or make the directory first"))
    }
}

impl Transaction {
    pub(crate) fn open(global: &GlobalArgs, volume: &VolumeArgs) -> Result<Self, Failure> {
        Self::open_args(global, std::slice::from_ref(&volume.volume))
    }

    pub(crate) fn open_args(global: &GlobalArgs, arguments: &[OsString]) -> Result<Self, Failure> {
        let opened = OpenVolume::for_writing(global, arguments, false)?;
        Ok(Self { opened, actions: Vec::new(), is_committed: false })
    }

    /// Opens a volume for a command that frees space: a full volume may commit before the end.
    pub(crate) fn open_to_delete(
        global: &GlobalArgs,
        volume: &VolumeArgs,
    ) -> Result<Self, Failure> {
        let opened = OpenVolume::for_writing(global, std::slice::from_ref(&volume.volume), true)?;
        Ok(Self { opened, actions: Vec::new(), is_committed: false })
    }

    pub(crate) fn filesystem(&self) -> &Filesystem {
        &self.opened.filesystem
    }

    /// Returns the volume argument as typed.
    pub(crate) fn volume(&self) -> &str {
        &self.opened.arg.typed
    }

    /// Returns the argument for the same volume whose paths begin at the top level.
    pub(crate) fn top_level(&self) -> String {
        self.opened.top_level()
    }

    /// Returns the subvolume that the argument names.
    pub(crate) fn subvolume(&self) -> &Subvolume {
        &self.opened.arg.subvolume
    }

    pub(crate) fn devices(&self) -> &[DevicePath] {
        &self.opened.arg.devices
    }

    /// Converts an error that concerns the whole volume.
    pub(crate) fn failure(&self, error: &Error) -> Failure {
        self.opened.failure(error)
    }

    pub(crate) fn find(&self, path: &[u8], follow: Follow) -> Result<FileId, Failure> {
        self.filesystem().resolve(path, follow).map_err(|error| self.failed(path, &error))
    }

    /// Converts an error that occurred at a path (law 4).
    pub(crate) fn failed(&self, path: &[u8], error: &Error) -> Failure {
        self.opened.failed(path, error)
    }

    pub(crate) fn stat(&self, id: FileId, path: &[u8]) -> Result<Stat, Failure> {
        self.filesystem().stat(id).map_err(|error| failed(path, &error))
    }

    /// Returns the parent directory and name of a path (law 3).
    ///
    /// # Errors
    /// Fails if the parent does not exist, or the last component is empty, `.` or `..`.
    pub(crate) fn locate(&self, path: &[u8]) -> Result<Location, Failure> {
        let (parent, name) = split(path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Failure::new(text::escaped(path), "does not name a directory entry")
                .hint("name a file or directory, without . or .. at the end"));
        }
        let dir = self.find(parent, Follow::Last)?;
        Ok(Location { dir, name: name.to_vec(), path: path.to_vec() })
    }

    /// Returns the inode at a location, if it exists.
    pub(crate) fn existing(&self, location: &Location) -> Result<Option<FileId>, Failure> {
        match self.filesystem().lookup(location.dir, &location.name) {
            Ok(id) => Ok(Some(id)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(self.failed(&location.path, &error)),
        }
    }

    /// Returns the location of `name` in the directory `dir`, whose path is `dir_path`.
    pub(crate) fn location_in(dir: FileId, dir_path: &[u8], name: &[u8]) -> Location {
        Location { dir, name: name.to_vec(), path: text::joined(dir_path, name) }
    }

    /// Records a change, to be reported after the commit.
    pub(crate) fn record(&mut self, what: &'static str, path: &[u8]) {
        self.record_at(what, &WalkPath::new(path.to_vec()));
    }

    /// Records a change at a path found by a walk.
    pub(crate) fn record_at(&mut self, what: &'static str, path: &WalkPath) {
        self.actions.push((what, path.clone()));
    }

    /// Commits, and reports the changes. `more` adds keys to the JSON object.
    pub(crate) fn finish(
        mut self,
        global: &GlobalArgs,
        out: &mut Output,
        more: impl FnOnce(Object) -> Object,
    ) -> Outcome {
        self.commit()?;
        self.report(global, out, more)?;
        Ok(Completion::Success)
    }

    /// As [`Self::finish`], for a command whose changes are durable at once: they are reported also
    /// if `done` is a failure, which is returned then (law 2).
    pub(crate) fn finish_after(
        mut self,
        done: Result<(), Failure>,
        global: &GlobalArgs,
        out: &mut Output,
        more: impl FnOnce(Object) -> Object,
    ) -> Outcome {
        let Err(failure) = done else { return self.finish(global, out, more) };
        // The first failure is the one to return.
        if self.commit().is_ok() && !self.actions.is_empty() {
            drop(self.report(global, out, more));
        }
        Err(failure)
    }

    fn report(
        &self,
        global: &GlobalArgs,
        out: &mut Output,
        more: impl FnOnce(Object) -> Object,
    ) -> Result<(), Failure> {
        if global.json {
            let changes = self.actions.iter().map(|(what, path)| {
                Value::from(Object::new().put("did", *what).name("path", &path.bytes()))
            });
            let object = Object::new()
                .put("volume", self.volume())
                .put("changes", changes.collect::<Vec<_>>());
            json::document(out, more(object))?;
        } else if global.verbose {
            for (what, path) in &self.actions {
                stderr_line(&format!("{}: {what}", text::escaped(&path.bytes())));
            }
        }
        Ok(())
    }

    /// Commits now (law 1).
    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        self.filesystem().sync_whole().map_err(|error| self.failure(&error))?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_committed {
            self.filesystem().abandon();
        }
    }
}

/// Returns the attributes of a new inode, which belongs to the user who runs the command.
pub(crate) fn new_inode(permissions: u32) -> NewInode {
    NewInode { uid: geteuid().as_raw(), gid: getegid().as_raw(), ..NewInode::new(permissions) }
}

/// Converts an error that occurred at a path.
pub(crate) fn failed(path: &[u8], error: &Error) -> Failure {
    Failure::of(text::escaped(path), error)
}

/// Fails if the inode of `stat`, an entry of `dir`, is a subvolume or the placeholder of one.
pub(crate) fn refuse_subvolume(
    dir: FileId,
    stat: &Stat,
    path: &WalkPath,
    verb: &str,
) -> Result<(), Failure> {
    let (what, hint) = if stat.id.is_placeholder() {
        let what = "is the placeholder of a subvolume that this snapshot does not contain";
        (what, "`butternut rm -r` removes it")
    } else if stat.id.subvolume != dir.subvolume || stat.id.is_subvolume_root() {
        ("is a subvolume", "`butternut subvolume delete` deletes it")
    } else {
        return Ok(());
    };
    let why = format!("{what}, which cannot be {verb} like a directory");
    Err(Failure::new(text::escaped(&path.bytes()), why).hint(hint))
}

/// Splits a path into its parent directory and its last component, without trailing slashes.
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
    fn a_path_splits_into_parent_and_name() {
        assert_eq!(split(b"a"), (&b"."[..], &b"a"[..]));
        assert_eq!(split(b"/a"), (&b"/"[..], &b"a"[..]));
        assert_eq!(split(b"/a/b//"), (&b"/a"[..], &b"b"[..]));
        assert_eq!(split(b"a/.."), (&b"a"[..], &b".."[..]));
        assert_eq!(split(b"/"), (&b"/"[..], &b""[..]));
        assert_eq!(split(b""), (&b"/"[..], &b""[..]));
    }
}
