//! [`TemporaryFile`]: gives a file its name when it is complete.
//!
//! 1. Until then the file has no name (`O_TMPFILE`), so nothing is left of it, however the process
//!    ends. A file that replaces another one has a temporary name between two system calls.
//! 2. Where the filesystem makes no file without a name, as NFS, or /proc is not mounted, it has a
//!    temporary name from the beginning.
//! 3. A temporary name is removed on drop, and before the process dies of a hang-up, an interrupt
//!    or SIGTERM ([`SignalGuard`]). A signal that the process ignores changes nothing.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use butternut_sys::lock::{Mutex, rank};
use butternut_sys::signal::EndSignals;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use rustix::io::Errno;

use crate::commands::signal_thread;
use crate::failure::Failure;

/// Number of temporary names that are tried.
const NAMES_MAX: u32 = 100;

/// A file that has not got its name.
pub(super) struct TemporaryFile {
    /// The name that it gets when it is complete.
    target: PathBuf,
    guard: SignalGuard,
    /// Its temporary name, if it has one.
    name: Option<TemporaryName>,
}

/// A temporary name, which is removed on drop.
struct TemporaryName {
    path: PathBuf,
    guard: SignalGuard,
}

/// Removes the temporary name of the process when a signal ends it (law 3).
#[derive(Clone)]
pub(super) struct SignalGuard(Arc<Shared>);

struct Shared {
    signals: EndSignals,
    path: Mutex<Option<PathBuf>, rank::TemporaryName>,
}

impl TemporaryFile {
    /// Creates a file in the directory of its target.
    ///
    /// # Errors
    /// The directory cannot be changed, or its filesystem is full.
    pub(super) fn create(
        target: PathBuf,
        mode: u32,
        guard: &SignalGuard,
    ) -> io::Result<(File, Self)> {
        let guard = guard.clone();
        if let Some(file) = nameless(directory(&target), mode) {
            return Ok((file, Self { target, guard, name: None }));
        }
        // This also says why no file can be made.
        let (file, name) = named(&target, mode, &guard)?;
        Ok((file, Self { target, guard, name: Some(name) }))
    }

    /// Returns the name that the file gets.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Gives the file its name, where it replaces another file.
    ///
    /// # Errors
    /// The directory cannot be changed.
    pub(super) fn publish(self, file: &File) -> io::Result<()> {
        let Self { target, guard, name } = self;
        let name = match name {
            Some(name) => name,
            None => match link(file, &target) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    try_names(&target, &guard, |path| link(file, path))?.1
                }
                linked => return linked,
            },
        };
        name.rename(&target)
    }
}

impl TemporaryName {
    fn rename(self, target: &Path) -> io::Result<()> {
        let mut guarded = self.guard.0.path.lock();
        fs::rename(&self.path, target)?;
        *guarded = None;
        Ok(())
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // Nothing is left to remove after a rename. A failure that led here is reported.
        if let Some(path) = self.guard.0.path.lock().take() {
            fs::remove_file(path).unwrap_or_default();
        }
    }
}

impl SignalGuard {
    /// Receives the signals from now on. The process has no other thread yet.
    ///
    /// # Errors
    /// The signals cannot be blocked, or there is no thread for them.
    pub(super) fn start() -> Result<Self, Failure> {
        let make = |signals| Shared { signals, path: Mutex::new(None) };
        signal_thread::start(make, Shared::end_process_by_signal).map(Self)
    }
}

impl Shared {
    fn end_process_by_signal(&self) {
        // A signal that does not end the process must not be the last one that is received.
        while let Ok(signal) = self.signals.wait() {
            // Held until the end: the file gets no name any more.
            let path = self.path.lock();
            if let Some(path) = &*path {
                fs::remove_file(path).unwrap_or_default();
            }
            self.signals.end_process(signal);
        }
    }
}

/// Creates a file without a name, for which [`link`] can make one (law 2).
fn nameless(directory: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, directory, flags, Mode::from_raw_mode(mode)).ok()?);
    let (own, linked) = (file.metadata().ok()?, fs::metadata(descriptor(&file)).ok()?);
    ((own.dev(), own.ino()) == (linked.dev(), linked.ino())).then_some(file)
}

/// Creates a file with a temporary name.
fn named(target: &Path, mode: u32, guard: &SignalGuard) -> io::Result<(File, TemporaryName)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    try_names(target, guard, |path| options.open(path))
}

/// Calls `create` with temporary names in the directory of a target until one is free.
fn try_names<R>(
    target: &Path,
    guard: &SignalGuard,
    create: impl Fn(&Path) -> io::Result<R>,
) -> io::Result<(R, TemporaryName)> {
    let mut number = 0;
    loop {
        let name = format!(".butternut-send-{}-{number}", process::id());
        let path = target.with_file_name(OsString::from(name));
        let mut guarded = guard.0.path.lock();
        match create(&path) {
            Ok(made) => {
                *guarded = Some(path.clone());
                drop(guarded);
                return Ok((made, TemporaryName { path, guard: guard.clone() }));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < NAMES_MAX => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives a file without a name a new one.
fn link(file: &File, path: &Path) -> io::Result<()> {
    match linkat(CWD, descriptor(file), CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::EXIST) => Err(ErrorKind::AlreadyExists.into()),
        linked => Ok(linked?),
    }
}

fn descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::thread;

    fn guard() -> SignalGuard {
        // Blocks no signal in the process of the tests: no thread waits for one.
        let signals = thread::spawn(|| EndSignals::block().unwrap()).join().unwrap();
        SignalGuard(Arc::new(Shared { signals, path: Mutex::new(None) }))
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_without_a_name_gets_a_new_one_or_replaces_another() {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = scratch.path().join("file");
        for content in ["first", "second"] {
            let (mut file, temporary) =
                TemporaryFile::create(target.clone(), 0o600, &guard()).unwrap();
            assert!(temporary.name.is_none());
            file.write_all(content.as_bytes()).unwrap();
            temporary.publish(&file).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
            assert_eq!(names(scratch.path()), ["file"]);
        }
    }

    #[test]
    fn a_file_with_a_temporary_name_replaces_another_or_is_removed() {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = scratch.path().join("file");
        fs::write(&target, "old").unwrap();
        let guard = guard();
        drop(named(&target, 0o600, &guard).unwrap());
        assert_eq!(names(scratch.path()), ["file"]);
        let (mut file, name) = named(&target, 0o600, &guard).unwrap();
        assert_eq!(guard.0.path.lock().as_ref(), Some(&name.path));
        file.write_all(b"new").unwrap();
        let temporary =
            TemporaryFile { target: target.clone(), guard: guard.clone(), name: Some(name) };
        temporary.publish(&file).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(names(scratch.path()), ["file"]);
        assert!(guard.0.path.lock().is_none());
    }
}
