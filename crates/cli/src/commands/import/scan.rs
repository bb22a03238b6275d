//! The one thread that walks the source: it says what there is, in order, and has it read.
//!
//! ```text
//! walker --- steps, in order -------------------------> who applies them
//!     \----- jobs --> readers --- what they read ------/
//! ```
//!
//! 1. The order is that of the names' bytes, files before directories, so the same tree gives the
//!    same volume.
//! 2. What is read ahead is bounded: [`STEPS_MAX`] steps of [`FILES_PER_STEP`] small files.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat};

use super::entry::{Attributes, Entry, Wanted, open_to_read, read_range};
use crate::failure::Failure;
use crate::output::text;

/// Law 2.
pub(super) const STEPS_MAX: usize = 16;
const FILES_PER_STEP: usize = 32;
/// Directories inside one another, at most.
const DEPTH_MAX: usize = 4096;

/// What is to be done next.
pub(super) enum Step {
    /// Make a directory and go into it.
    Enter {
        name: Vec<u8>,
        path: Vec<u8>,
        attributes: Attributes,
    },
    /// Make files in it: each with its name and path.
    Files {
        names: Arc<Batch>,
        entries: Receiver<Vec<Read>>,
    },
    /// It is complete.
    Leave,
    Failed(Failure),
}

/// One file, as far as it could be read.
pub(super) type Read = std::io::Result<Entry>;

/// Files of one directory.
pub(super) struct Batch {
    dir: Arc<File>,
    /// Of the directory.
    pub(super) path: Vec<u8>,
    pub(super) names: Vec<Name>,
}

pub(super) struct Name {
    /// In the source.
    pub(super) name: Vec<u8>,
    is_file: bool,
}

/// Something for a reader.
pub(super) enum Job {
    Files(Arc<Batch>, SyncSender<Vec<Read>>),
    Piece(Arc<File>, Range<u64>, SyncSender<std::io::Result<Vec<u8>>>),
}

/// Runs jobs until nobody can hand out any.
pub(super) fn work(jobs: &Mutex<Receiver<Job>>, wanted: Wanted) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // Whoever asked may have failed meanwhile, and not want it any more.
        match job {
            Ok(Job::Files(batch, reply)) => drop(reply.send(batch.read(wanted))),
            Ok(Job::Piece(file, range, reply)) => drop(reply.send(read_range(&file, &range))),
            Err(_) => return,
        }
    }
}

impl Batch {
    fn read(&self, wanted: Wanted) -> Vec<Read> {
        let dir = self.dir.as_fd();
        let read = |name: &Name| Entry::read(dir, &name.name, name.is_file, wanted);
        self.names.iter().map(read).collect()
    }

    /// The path of one of the files.
    pub(super) fn path_of(&self, name: &Name) -> Vec<u8> {
        text::joined(&self.path, &name.name)
    }
}

/// Where the walk sends what it finds.
pub(super) struct Walker {
    pub(super) steps: SyncSender<Step>,
    pub(super) jobs: Sender<Job>,
    pub(super) wanted: Wanted,
    pub(super) one_file_system: bool,
}

/// A directory on the way.
struct Level {
    dir: Arc<File>,
    path: Vec<u8>,
    /// Directories in it that are still to be walked, the last name first.
    below: Vec<Vec<u8>>,
}

/// Nobody wants the rest.
struct Stopped;

impl Walker {
    /// Walks what is in a directory: its attributes come with an Enter of this name and path.
    pub(super) fn directory(&self, dir: File, name: Vec<u8>, path: Vec<u8>) {
        let walked = self.walk(dir, name, path);
        if let Err(Some(failure)) = walked {
            self.steps.send(Step::Failed(failure)).unwrap_or_default();
        }
    }

    /// One file that is no directory.
    pub(super) fn file(&self, dir: File, path: Vec<u8>, name: Vec<u8>, is_file: bool) {
        let names = vec![Name { name, is_file }];
        // There is nothing to stop.
        drop(self.files(Batch { dir: Arc::new(dir), path, names }));
    }

    fn walk(&self, dir: File, name: Vec<u8>, path: Vec<u8>) -> Result<(), Option<Failure>> {
        let device = device_of(&dir, &path)?;
        let mut levels = Vec::new();
        self.enter(dir, name, path, &mut levels, None)?;
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.below.pop() else {
                self.send(Step::Leave)?;
                levels.pop();
                continue;
            };
            let path = text::joined(&level.path, &name);
            let failed = |error: std::io::Error| Some(Failure::io(text::escaped(&path), &error));
            let dir = open_to_read(&*level.dir, name.as_slice(), OFlags::DIRECTORY);
            let dir = File::from(dir.map_err(failed)?);
            if levels.len() >= DEPTH_MAX {
                return Err(Some(Failure::new(text::escaped(&path), "too deep")));
            }
            let only = self.one_file_system.then_some(device);
            self.enter(dir, name, path, &mut levels, only)?;
        }
        Ok(())
    }

    /// Says what is in a directory. One that is on another device than `only` is left empty.
    fn enter(
        &self,
        dir: File,
        name: Vec<u8>,
        path: Vec<u8>,
        levels: &mut Vec<Level>,
        only: Option<u64>,
    ) -> Result<(), Option<Failure>> {
        let failed = |error: std::io::Error| Some(Failure::io(text::escaped(&path), &error));
        let attributes = Attributes::of_directory(&dir, self.wanted).map_err(failed)?;
        let is_elsewhere = only.is_some_and(|device| device != attributes.identity.0);
        self.send(Step::Enter { name, path: path.clone(), attributes })?;
        let (mut files, mut below) = (Vec::new(), Vec::new());
        if !is_elsewhere {
            for entry in Dir::read_from(&dir).map_err(|error| failed(error.into()))? {
                let entry = entry.map_err(|error| failed(error.into()))?;
                let name = entry.file_name().to_bytes().to_vec();
                if matches!(name.as_slice(), b"." | b"..") {
                    continue;
                }
                let kind = kind_of(&dir, &name, entry.file_type()).map_err(failed)?;
                if kind == FileType::Directory {
                    below.push(name);
                } else {
                    files.push(Name { name, is_file: kind == FileType::RegularFile });
                }
            }
        }
        files.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        below.sort_unstable_by(|one, other| other.cmp(one));
        let dir = Arc::new(dir);
        let mut files = files.into_iter().peekable();
        while files.peek().is_some() {
            let names = files.by_ref().take(FILES_PER_STEP).collect();
            self.files(Batch { dir: Arc::clone(&dir), path: path.clone(), names })?;
        }
        levels.push(Level { dir, path, below });
        Ok(())
    }

    fn files(&self, batch: Batch) -> Result<(), Stopped> {
        let (reply, entries) = sync_channel(1);
        let names = Arc::new(batch);
        self.jobs.send(Job::Files(Arc::clone(&names), reply)).map_err(|_| Stopped)?;
        self.send(Step::Files { names, entries })
    }

    fn send(&self, step: Step) -> Result<(), Stopped> {
        self.steps.send(step).map_err(|_| Stopped)
    }
}

impl From<Stopped> for Option<Failure> {
    fn from(_: Stopped) -> Self {
        None
    }
}

fn device_of(dir: &File, path: &[u8]) -> Result<u64, Option<Failure>> {
    use std::os::unix::fs::MetadataExt;
    let meta = dir.metadata();
    meta.map(|meta| meta.dev()).map_err(|error| Some(Failure::io(text::escaped(path), &error)))
}

fn kind_of(dir: &File, name: &[u8], told: FileType) -> std::io::Result<FileType> {
    if told != FileType::Unknown {
        return Ok(told);
    }
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}
