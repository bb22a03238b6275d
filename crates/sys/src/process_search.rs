//! The descriptors of other processes, from `/proc`.
//!
//! 1. Nothing here accesses a file that another process has open: it may be on a filesystem that
//!    does not respond.
//! 2. The `fdinfo` of a descriptor without a path is not read. The kernel writes a line for each
//!    target of an epoll descriptor, so any process could make each read of it slow.
//! 3. Any user can start many processes with many descriptors, and give a file many locks, so every
//!    search ends in time. One on which a decision depends says so then: what it was to exclude may
//!    exist ([`Search::is_cut`]).

use crate::text;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a search takes at most: one that no decision depends on, and one that does (law 3).
const HINT_TIME: Duration = Duration::from_secs(1);
const DECISION_TIME: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a `fdinfo` that are read. A process can have any number of locks.
const INFO_BYTES_MAX: u64 = 1 << 16;

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    until: Instant,
}

/// A process: its id and its directory.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) directory: PathBuf,
}

/// A descriptor of a process: its two files in `/proc`, and the path of the open file as the kernel
/// shows it.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) link: PathBuf,
    pub(crate) path: PathBuf,
    info: PathBuf,
}

impl Search {
    /// Begins a search on which a decision depends.
    pub(crate) fn decision() -> Self {
        Self { until: Instant::now() + DECISION_TIME }
    }

    /// Begins a search that no decision depends on (law 3).
    pub(crate) fn hint() -> Self {
        Self { until: Instant::now() + HINT_TIME }
    }

    /// Returns whether the search has run out of time, so that it may have missed something.
    pub(crate) fn is_cut(self) -> bool {
        Instant::now() >= self.until
    }

    fn goes_on(self) -> bool {
        !self.is_cut()
    }

    pub(crate) fn processes(self) -> impl Iterator<Item = Process> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.take_while(move |_| self.goes_on()).filter_map(|entry| {
            let id = entry.file_name().to_string_lossy().parse().ok()?;
            Some(Process { id, directory: entry.path() })
        })
    }

    /// Returns the descriptors of a process that have a path (law 2).
    pub(crate) fn descriptors(self, process: &Path) -> impl Iterator<Item = Descriptor> + use<> {
        let process = process.to_path_buf();
        let all = fs::read_dir(process.join("fd")).into_iter().flatten();
        let entries = all.flatten().take_while(move |_| self.goes_on());
        entries.filter_map(move |entry| descriptor(&process, &entry.file_name()))
    }
}

/// Returns a descriptor of a process by its number, if it has a path (law 2).
pub(crate) fn descriptor(process: &Path, number: &OsStr) -> Option<Descriptor> {
    let link = process.join("fd").join(number);
    let path = path_of(&link).filter(|path| path.has_root())?;
    Some(Descriptor { link, path, info: process.join("fdinfo").join(number) })
}

/// Returns the path of an open file; only its beginning if it is too long for the kernel.
fn path_of(link: &Path) -> Option<PathBuf> {
    match fs::read_link(link) {
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => Some(PathBuf::from("/")),
        path => path.ok(),
    }
}

impl Descriptor {
    /// Reads the `fdinfo` of the descriptor. `None` if it was closed or is hidden.
    pub(crate) fn info(&self) -> Option<String> {
        text::of_file_start(&self.info, INFO_BYTES_MAX).ok()
    }
}

/// Returns a number in a `fdinfo`. `name` includes the colon.
pub(crate) fn number_in(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use rustix::event::epoll::{self, CreateFlags};
    use std::os::fd::AsRawFd;

    #[test]
    fn only_descriptors_with_a_path_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let found: Vec<_> = Search::decision().descriptors(Path::new("/proc/self")).collect();
        let of =
            |fd: i32| found.iter().find(|descriptor| descriptor.link.ends_with(fd.to_string()));
        assert!(of(epoll.as_raw_fd()).is_none());
        let own = of(file.as_file().as_raw_fd()).unwrap();
        assert_eq!(own.path, file.path().canonicalize().unwrap());
        assert!(number_in(&own.info().unwrap(), "mnt_id:").is_some());
    }

    #[test]
    fn a_search_ends_in_time() {
        let ended = Search { until: Instant::now() };
        assert!(ended.is_cut());
        assert_eq!(ended.processes().count(), 0);
        assert_eq!(ended.descriptors(Path::new("/proc/self")).count(), 0);
        let me = std::process::id();
        assert!(Search::hint().processes().any(|process| process.id == me));
    }
}
