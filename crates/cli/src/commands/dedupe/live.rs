//! Paths of mounted filesystems, as a place with files.
//!
//! 1. Only regular files are read, which are found and opened as `walk/live` does it. A file is
//!    opened again below the directory of its argument, in the same way.
//! 2. What is mounted below an argument is neither entered nor opened. Subvolumes of btrfs are
//!    entered.
//! 3. What the user may not write to and does not own is a source only, and so is a file of a
//!    read-only subvolume. What the kernel refuses all the same is skipped.
//! 4. An argument whose filesystem has no deduplication is refused, in dry runs too. This is found
//!    out by a request for no bytes, as the first file is added.
//! 5. A file that was changed so recently that its times might not tell of another change is not
//!    kept in an index.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use butternut_dedupe::{Answer, DataExtent, Facts, Identity, Location, Place, Problem, Skip};
use butternut_sys::extent_calls::{
    self, Deduped, EXTENT_DELALLOC, EXTENT_ENCODED, EXTENT_INLINE, EXTENT_UNKNOWN, EXTENT_UNWRITTEN,
};
use butternut_sys::{mounts, subvolume_calls};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, IFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags,
    StatxTimestamp, accessat, fstatfs, ioctl_getflags, open, openat, openat2, statx,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{NO_FILE, Options, Run, Shown};
use crate::commands::export::raise_open_files_limit;
use crate::commands::walk::WalkPath;
use crate::commands::walk::live::{BELOW, LiveWalk, OPEN};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// A change is told by the times of a file if it was made so long before.
const TIME_RESOLUTION: Duration = Duration::from_millis(100);

/// The path of a file below an argument, which is its first part.
struct Name {
    /// The number of the argument.
    root: usize,
    path: WalkPath,
}

impl Shown for Name {
    fn path(&self) -> Vec<u8> {
        self.path.bytes()
    }
}

struct OpenFile {
    fd: OwnedFd,
    path: WalkPath,
}

/// The directory of an argument; of a file, the one that it is in.
struct Root {
    dir: Rc<OwnedFd>,
    /// The name of a file in it.
    file: Option<OsString>,
    path: WalkPath,
}

struct Live {
    roots: Vec<Root>,
    /// The devices of the filesystems of mounts.
    filesystems: HashMap<u64, u64>,
}

pub(super) fn run(options: &Options<'_>, paths: &[OsString], out: &mut Output) -> Outcome {
    raise_open_files_limit();
    let mut run = Run::begin(options)?;
    let mut parents = HashMap::new();
    let roots: Result<Vec<Root>, Failure> =
        paths.iter().map(|path| root(Path::new(path), &mut parents)).collect();
    let table = mounts::read().unwrap_or_default();
    let number = |(major, minor): (u32, u32)| u64::from(major) << 32 | u64::from(minor);
    let filesystems = table.iter().map(|mount| (mount.id, number(mount.device))).collect();
    let live = Live { roots: roots?, filesystems };
    for root in 0..live.roots.len() {
        walk(&live, root, &mut run)?;
    }
    run.share(&live)?.print(options, out)
}

/// Opens the directory of an argument. Files in one directory have one descriptor of it.
fn root(path: &Path, parents: &mut HashMap<PathBuf, Rc<OwnedFd>>) -> Result<Root, Failure> {
    let bytes = path.as_os_str().as_bytes();
    let open = |path: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map(Rc::new);
        dir.map_err(|errno| Failure::io(text::escaped(bytes), &errno.into()))
    };
    let shown = WalkPath::new(bytes.to_vec());
    if path.is_dir() {
        return Ok(Root { dir: open(path)?, file: None, path: shown });
    }
    // Later, a file that does not exist is one that was removed meanwhile.
    path.symlink_metadata().map_err(|error| Failure::io(text::escaped(bytes), &error))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let dir = match parents.get(parent) {
        Some(dir) => Rc::clone(dir),
        None => open(parent)?,
    };
    parents.insert(parent.to_owned(), Rc::clone(&dir));
    let file = path.file_name().map(OsStr::to_owned);
    let file = file.ok_or_else(|| Failure::new(text::escaped(bytes), "names no file"))?;
    Ok(Root { dir, file: Some(file), path: shown })
}

/// Adds the files below an argument.
fn walk(live: &Live, number: usize, run: &mut Run<'_, Name>) -> Result<(), Failure> {
    let root = &live.roots[number];
    if root.file.is_some() {
        let name = Name { root: number, path: root.path.clone() };
        let opened = Live::open_below(root, &name.path);
        if opened.as_ref().err() == Some(&Errno::LOOP) {
            let why = "is a symbolic link, which is not followed";
            run.failed(&Failure::new(text::escaped(&name.path()), why));
            return Ok(());
        }
        return add(live, run, name, opened, &mut false).map(|_| ());
    }
    let again = openat(&root.dir, ".", OPEN | OFlags::DIRECTORY, Mode::empty());
    let top = match again {
        Ok(dir) => dir,
        Err(errno) => {
            run.failed(&Failure::io(text::escaped(&root.path.bytes()), &errno.into()));
            return Ok(());
        }
    };
    let mut below = LiveWalk::default();
    let mut is_probed = false;
    enter(run, &mut below, top, &root.path);
    while let Some((path, found)) = below.next() {
        match found {
            Ok((FileType::Directory, fd)) => enter(run, &mut below, fd, &path),
            found => {
                let opened = found.map(|(_, fd)| fd);
                let name = Name { root: number, path };
                if add(live, run, name, opened, &mut is_probed)?.is_break() {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Visits a directory next.
fn enter(run: &mut Run<'_, Name>, below: &mut LiveWalk, dir: OwnedFd, path: &WalkPath) {
    if let Err(errno) = below.enter(dir, path) {
        run.failed(&Failure::io(text::escaped(&path.bytes()), &errno.into()));
    }
}

/// Adds a file that was opened, or says why it was not. Breaks if no other file of the argument can
/// be added.
fn add(
    live: &Live,
    run: &mut Run<'_, Name>,
    name: Name,
    opened: Result<OwnedFd, Errno>,
    is_probed: &mut bool,
) -> Result<ControlFlow<()>, Failure> {
    const GO_ON: ControlFlow<()> = ControlFlow::Continue(());
    let found = opened.and_then(|fd| {
        let stat = stat(&fd)?;
        Ok((fd, stat))
    });
    let (fd, stat) = match found {
        Ok(found) => found,
        // It was removed, or replaced by a symlink, or a process that has a lease on it is about to
        // change it.
        Err(Errno::NOENT | Errno::LOOP | Errno::AGAIN) => {
            run.skip(&name.path(), Skip::Changed);
            return Ok(GO_ON);
        }
        Err(errno) => {
            run.failed(&Failure::io(text::escaped(&name.path()), &errno.into()));
            return Ok(GO_ON);
        }
    };
    let root = &live.roots[name.root];
    if kind_of(&stat) != FileType::RegularFile {
        if root.file.is_some() {
            run.failed(&Failure::new(text::escaped(&name.path()), NO_FILE));
        }
        return Ok(GO_ON);
    }
    let facts = live.facts(&fd, &stat);
    if run.options.is_small(&facts) {
        return Ok(GO_ON);
    }
    // Law 4.
    if !*is_probed && !has_deduplication(&fd) {
        let why = "the filesystem has no deduplication";
        let failure = Failure::new(text::escaped(&root.path.bytes()), why);
        run.failed(&failure.hint("btrfs, xfs and mounts of butternut have"));
        return Ok(ControlFlow::Break(()));
    }
    *is_probed = true;
    let file = OpenFile { fd, path: name.path.clone() };
    let may_recur = live.roots.len() > 1 || stat.stx_nlink > 1;
    run.add(live, &file, name, facts, may_recur).map(|()| GO_ON)
}

/// Whether the filesystem of a file has deduplication: it is requested for no bytes.
fn has_deduplication(fd: &OwnedFd) -> bool {
    let at = (fd.as_fd(), 0);
    extent_calls::dedupe(at, at, 0)
        .map_or_else(|error| !extent_calls::is_unsupported(&error), |_| true)
}

fn stat(fd: &OwnedFd) -> Result<Statx, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    statx(fd, "", AtFlags::EMPTY_PATH, wanted)
}

fn kind_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

impl Live {
    /// Opens a file below an argument (law 1).
    fn open_below(root: &Root, path: &WalkPath) -> Result<OwnedFd, Errno> {
        if let Some(file) = &root.file {
            // A mount point may be an argument.
            let resolve = BELOW.difference(ResolveFlags::NO_XDEV);
            return openat2(&root.dir, file, OPEN, Mode::empty(), resolve);
        }
        let names = path.names();
        let below: PathBuf = names.iter().map(|name| OsStr::from_bytes(name)).collect();
        openat2(&root.dir, below, OPEN, Mode::empty(), BELOW)
    }

    fn facts(&self, fd: &OwnedFd, stat: &Statx) -> Facts {
        let flags = ioctl_getflags(fd).unwrap_or_else(|_| IFlags::empty());
        let subvolume = subvolume_calls::info(fd.as_fd()).ok();
        let is_read_only = subvolume.is_some_and(|info| info.is_read_only);
        let is_fixed = flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND);
        let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
        let filesystem = self.filesystems.get(&stat.stx_mnt_id).copied();
        let mut parts = b"live".to_vec();
        match subvolume {
            Some(info) => parts.extend([&info.id.to_le_bytes()[..], &info.uuid].concat()),
            None => parts.extend(filesystem_id(fd, device)),
        }
        for number in [stat.stx_ino, stat.stx_size] {
            parts.extend(number.to_le_bytes());
        }
        for StatxTimestamp { tv_sec, tv_nsec, .. } in
            [stat.stx_mtime, stat.stx_ctime, stat.stx_btime]
        {
            parts.extend(tv_sec.to_le_bytes());
            parts.extend(tv_nsec.to_le_bytes());
        }
        Facts {
            identity: Identity::of(&parts),
            size: stat.stx_size,
            filesystem: filesystem.unwrap_or(device),
            has_checksums: !flags.contains(IFlags::NOCOW),
            is_target: !is_read_only && !is_fixed && may_change(fd, stat),
            is_settled: is_settled(stat.stx_ctime),
        }
    }

    /// Returns what an error at a path means for the run.
    fn problem(path: &WalkPath, error: &io::Error) -> Problem<Failure> {
        let failure = || Failure::io(text::escaped(&path.bytes()), error);
        // Below a filesystem that passes the calls on, others may be that have none.
        if extent_calls::is_unsupported(error) {
            return Problem::Skip(Skip::Refused);
        }
        match Errno::from_io_error(error) {
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => Problem::Skip(Skip::NotPermitted),
            Some(Errno::INVAL | Errno::XDEV | Errno::TXTBSY) => Problem::Skip(Skip::Refused),
            Some(Errno::NOENT | Errno::LOOP | Errno::STALE | Errno::NOTDIR | Errno::AGAIN) => {
                Problem::Skip(Skip::Changed)
            }
            _ => Problem::Failed(failure()),
        }
    }
}

/// Law 3.
fn may_change(fd: &OwnedFd, stat: &Statx) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    match accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
        // Without /proc, the kernel decides later.
        Ok(()) | Err(Errno::NOENT) => true,
        Err(Errno::ACCESS) => stat.stx_uid == geteuid().as_raw(),
        Err(_) => false,
    }
}

/// Law 5.
fn is_settled(changed: StatxTimestamp) -> bool {
    let since = u64::try_from(changed.tv_sec).ok().map(|secs| Duration::new(secs, changed.tv_nsec));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.is_none_or(|since| since.saturating_add(TIME_RESOLUTION) < now)
}

/// Returns what tells a filesystem from others, also after it is mounted again.
fn filesystem_id(fd: &OwnedFd, device: u64) -> Vec<u8> {
    match fstatfs(fd) {
        Ok(found) => format!("{:?}", found.f_fsid).into_bytes(),
        Err(_) => device.to_le_bytes().to_vec(),
    }
}

impl Place for Live {
    type Name = Name;
    type File = OpenFile;
    type Error = Failure;

    fn open(&self, name: &Name) -> Result<(OpenFile, Facts), Problem<Failure>> {
        let opened = Self::open_below(&self.roots[name.root], &name.path);
        let found = opened.and_then(|fd| Ok((stat(&fd)?, fd)));
        match found {
            Ok((stat, fd)) => {
                let facts = self.facts(&fd, &stat);
                Ok((OpenFile { fd, path: name.path.clone() }, facts))
            }
            // A filesystem was mounted there meanwhile.
            Err(Errno::XDEV) => Err(Problem::Skip(Skip::Changed)),
            Err(errno) => Err(Self::problem(&name.path, &errno.into())),
        }
    }

    fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Problem<Failure>> {
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&file.fd, &mut *buf, offset));
        read.map_err(|errno| {
            Problem::Failed(Failure::io(text::escaped(&file.path.bytes()), &errno.into()))
        })
    }

    fn extents(&self, file: &OpenFile, from: u64) -> Result<Vec<DataExtent>, Problem<Failure>> {
        let mut from = from;
        loop {
            let extents = extent_calls::extents(file.fd.as_fd(), from)
                .map_err(|error| Self::problem(&file.path, &error))?;
            let Some(last) = extents.last().copied() else { return Ok(Vec::new()) };
            let data: Vec<DataExtent> = extents.into_iter().filter_map(data_extent).collect();
            let reached = last.offset.saturating_add(last.bytes);
            let is_last = last.flags & extent_calls::EXTENT_LAST != 0 || reached <= from;
            if !data.is_empty() || is_last {
                return Ok(data);
            }
            from = reached;
        }
    }

    fn dedupe(
        &self,
        source: (&OpenFile, u64),
        target: (&OpenFile, u64),
        bytes: u64,
    ) -> Result<Answer, Problem<Failure>> {
        let (from, to) = ((source.0.fd.as_fd(), source.1), (target.0.fd.as_fd(), target.1));
        match extent_calls::dedupe(from, to, bytes) {
            Ok(Deduped::Bytes(bytes)) => Ok(Answer::Shared(bytes)),
            Ok(Deduped::Differs) => Ok(Answer::Differs),
            Err(_) if [source, target].iter().any(|(file, at)| is_shorter(file, at + bytes)) => {
                Err(Problem::Skip(Skip::Changed))
            }
            Err(error) => Err(Self::problem(&target.0.path, &error)),
        }
    }
}

/// Returns whether a file ends before an offset, because it was truncated.
fn is_shorter(file: &OpenFile, end: u64) -> bool {
    stat(&file.fd).is_ok_and(|stat| stat.stx_size < end)
}

/// Returns an extent with data; `None` for preallocated space.
fn data_extent(extent: extent_calls::FileExtent) -> Option<DataExtent> {
    let has = |flag: u32| extent.flags & flag != 0;
    if has(EXTENT_UNWRITTEN) {
        return None;
    }
    let location = if has(EXTENT_INLINE) {
        Location::Inline
    } else if has(EXTENT_DELALLOC) || has(EXTENT_UNKNOWN) {
        Location::Buffered
    } else if has(EXTENT_ENCODED) {
        Location::Encoded { address: extent.physical }
    } else {
        Location::Stored { address: extent.physical }
    };
    Some(DataExtent { offset: extent.offset, bytes: extent.bytes, location })
}
