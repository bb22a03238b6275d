//! Walks the source on one thread, sends its contents in order, and queues reads of its files.
//!
//! ```text
//! walker --- steps, in order -------------------------> apply
//!     \----- jobs --> readers --- entries and data ----/
//! ```
//!
//! 1. Entries are sorted by the bytes of their names, files before directories, so the same tree
//!    gives the same volume.
//! 2. Reads ahead are bounded: [`STEPS_MAX`] steps of [`FILES_PER_STEP`] small files.

use butternut_sys::lock::{Mutex, rank};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat};

use super::entry::{Attributes, Entry, ReadOptions, open_to_read, read_range};
use crate::failure::Failure;
use crate::output::text;

/// Maximum number of steps ahead, and of files in a step (law 2).
pub(super) const STEPS_MAX: usize = 16;
const FILES_PER_STEP: usize = 32;
/// Maximum depth of nested directories.
const DEPTH_MAX: usize = 4096;

/// A step of the walk, in the order in which the volume is filled.
pub(super) enum Step {
    /// Create a directory and enter it.
    Enter {
        name: Vec<u8>,
        path: Vec<u8>,
        attributes: Attributes,
    },
    /// Create files in the current directory.
    Files {
        names: Arc<Batch>,
        entries: Receiver<Vec<Read>>,
    },
    /// The current directory is complete.
    Leave,
    Failed(Failure),
}

/// A file, or the error of reading it.
pub(super) type Read = std::io::Result<Entry>;

/// Files of one directory that are read together.
pub(super) struct Batch {
    dir: Arc<File>,
    /// Path of the directory.
    pub(super) path: Vec<u8>,
    pub(super) names: Vec<Name>,
}

pub(super) struct Name {
    /// The name in the source.
    pub(super) name: Vec<u8>,
    is_file: bool,
}

/// A job of a reader thread.
pub(super) enum Job {
    Files(Arc<Batch>, SyncSender<Vec<Read>>),
    ReadRange(Arc<File>, Range<u64>, SyncSender<std::io::Result<Vec<u8>>>),
}

/// Runs jobs until the job channel is closed.
pub(super) fn work(jobs: &Mutex<Receiver<Job>, rank::CommandJobs>, options: ReadOptions) {
    loop {
        let job = jobs.lock().recv();
        // A reply is dropped if its receiver has failed meanwhile.
        match job {
            Ok(Job::Files(batch, reply)) => drop(reply.send(batch.read(options))),
            Ok(Job::ReadRange(file, range, reply)) => drop(reply.send(read_range(&file, &range))),
            Err(_) => return,
        }
    }
}

impl Batch {
    fn read(&self, options: ReadOptions) -> Vec<Read> {
        let dir = self.dir.as_fd();
        let read = |name: &Name| Entry::read(dir, &name.name, name.is_file, options);
        self.names.iter().map(read).collect()
    }

    /// Returns the path of one of the files.
    pub(super) fn path_of(&self, name: &Name) -> Vec<u8> {
        text::joined(&self.path, &name.name)
    }
}

/// The walk, with the channels for its results.
pub(super) struct Walker {
    pub(super) steps: SyncSender<Step>,
    pub(super) jobs: Sender<Job>,
    pub(super) options: ReadOptions,
    pub(super) one_file_system: bool,
}

/// A directory on the current path.
struct Level {
    dir: Arc<File>,
    path: Vec<u8>,
    /// Its subdirectories that are still to be walked, in reverse order.
    below: Vec<Vec<u8>>,
}

/// The receiver of the steps has ended.
struct Stopped;

impl Walker {
    /// Walks a directory. The first step enters it with this name and path.
    pub(super) fn directory(&self, dir: File, name: Vec<u8>, path: Vec<u8>) {
        let walked = self.walk(dir, name, path);
        if let Err(Some(failure)) = walked {
            self.steps.send(Step::Failed(failure)).unwrap_or_default();
        }
    }

    /// Sends a single file that is not a directory.
    pub(super) fn file(&self, dir: File, path: Vec<u8>, name: Vec<u8>, is_file: bool) {
        let names = vec![Name { name, is_file }];
        // The walk ends here in any case.
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
                return Err(Some(Failure::new(text::escaped(&path), "is nested too deeply")));
            }
            let only = self.one_file_system.then_some(device);
            self.enter(dir, name, path, &mut levels, only)?;
        }
        Ok(())
    }

    /// Sends the files of a directory and collects its subdirectories. A directory on a device
    /// other than `only` is created empty.
    fn enter(
        &self,
        dir: File,
        name: Vec<u8>,
        path: Vec<u8>,
        levels: &mut Vec<Level>,
        only: Option<u64>,
    ) -> Result<(), Option<Failure>> {
        let failed = |error: std::io::Error| Some(Failure::io(text::escaped(&path), &error));
        let attributes = Attributes::of_directory(&dir, self.options).map_err(failed)?;
        let is_other_filesystem = only.is_some_and(|device| device != attributes.identity.0);
        self.send(Step::Enter { name, path: path.clone(), attributes })?;
        let (mut files, mut below) = (Vec::new(), Vec::new());
        if !is_other_filesystem {
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

fn kind_of(dir: &File, name: &[u8], from_entry: FileType) -> std::io::Result<FileType> {
    if from_entry != FileType::Unknown {
        return Ok(from_entry);
    }
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}
