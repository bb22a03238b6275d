//! A volume that is not mounted, as a place with files.
//!
//! 1. Without a path, the search begins at the top level, so that it finds all subvolumes, unless
//!    the argument names a subvolume.
//! 2. All changes are in one transaction, which is committed at the end, also if the run ended
//!    early. A dry run opens the volume for reading.
//! 3. Files are read past the page cache.
//! 4. No other process changes the volume, so a file that is not found again is damaged.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;

use butternut::format::inode::InodeFlags;
use butternut::{
    Compression, Dedupe, Error, Extent, ExtentKind, File, FileId, FileKind, Filesystem, Follow,
    Stat, Subvolume, TOP_LEVEL, Time,
};
use butternut_dedupe::{Answer, DataExtent, Facts, Identity, Location, Place, Problem, Skip};

use super::{NO_FILE, Options, Run, Shown};
use crate::args::VolumeArgs;
use crate::commands::transaction::{Transaction, failed};
use crate::commands::walk::{Walk, WalkEntry, WalkPath};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};
use crate::volume::OpenVolume;

/// Maximum number of extents that are returned at once.
const EXTENTS_MAX: usize = 256;

/// The name of a file: its inode, and the path that it was found under.
struct Name {
    id: FileId,
    path: WalkPath,
}

impl Shown for Name {
    fn path(&self) -> Vec<u8> {
        self.path.bytes()
    }
}

/// A file, and the path for messages.
struct OpenFile {
    file: File,
    path: WalkPath,
}

struct Volume<'a> {
    filesystem: &'a Filesystem,
    /// Subvolumes that are read-only, and those that are not.
    read_only: RefCell<HashMap<u64, bool>>,
}

pub(super) fn run(
    options: &Options<'_>,
    volume: &OsString,
    paths: &[OsString],
    out: &mut Output,
) -> Outcome {
    let volume = VolumeArgs { volume: volume.clone() };
    if options.is_dry {
        let opened = OpenVolume::from_arg(options.global, &volume)?;
        let starts = starts(&opened.filesystem, &opened.arg.subvolume, paths)?;
        return search(options, &opened.filesystem, starts)?.print(options, out);
    }
    let mut transaction = Transaction::open(options.global, &volume)?;
    let starts = starts(transaction.filesystem(), transaction.subvolume(), paths)?;
    let done = search(options, transaction.filesystem(), starts)?;
    transaction.commit()?;
    done.print(options, out)
}

/// Returns where the search begins (law 1).
fn starts(
    filesystem: &Filesystem,
    subvolume: &Subvolume,
    paths: &[OsString],
) -> Result<Vec<WalkEntry>, Failure> {
    let start = |path: &[u8], id: FileId| -> Result<WalkEntry, Failure> {
        let kind = filesystem.stat(id).map_err(|error| failed(path, &error))?.kind;
        Ok(WalkEntry { path: WalkPath::new(path.to_vec()), id, kind, depth: 0 })
    };
    if paths.is_empty() {
        let is_default = *subvolume == Subvolume::Default;
        let root = if is_default { FileId::root_of(TOP_LEVEL) } else { filesystem.root() };
        return Ok(vec![start(b"/", root)?]);
    }
    let resolved = paths.iter().map(|path| {
        let path = text::bytes(path);
        let id = filesystem.resolve(&path, Follow::NotLast);
        start(&path, id.map_err(|error| failed(&path, &error))?)
    });
    resolved.collect()
}

/// Adds the files below the starts, and deduplicates them.
fn search(
    options: &Options<'_>,
    filesystem: &Filesystem,
    starts: Vec<WalkEntry>,
) -> Result<super::Done, Failure> {
    let place = Volume { filesystem, read_only: RefCell::new(HashMap::new()) };
    let mut run = Run::begin(options)?;
    let is_one = starts.len() == 1;
    for start in starts {
        let mut walk = Walk::new(filesystem, false);
        let mut next = Some(Ok(start));
        while let Some(step) = next {
            let entered = match step {
                Ok(found) if found.is_directory() => walk.enter(&found),
                Ok(found) if found.depth == 0 && found.kind != FileKind::File => {
                    run.failed(&Failure::new(text::escaped(&found.path.bytes()), NO_FILE));
                    Ok(())
                }
                Ok(found) => {
                    add(&place, &mut run, found, is_one)?;
                    Ok(())
                }
                Err(broken) => Err(broken),
            };
            if let Err(broken) = entered {
                run.failed(&Failure::of(text::escaped(&broken.path), &broken.error));
            }
            next = walk.next();
        }
    }
    run.share(&place)
}

fn add(
    place: &Volume<'_>,
    run: &mut Run<'_, Name>,
    found: WalkEntry,
    is_one: bool,
) -> Result<(), Failure> {
    if found.kind != FileKind::File {
        return Ok(());
    }
    let name = Name { id: found.id, path: found.path };
    let links = place.filesystem.stat(name.id).map_or(1, |stat| stat.nlink);
    match place.open(&name) {
        Ok((file, facts)) => run.add(place, &file, name, facts, !is_one || links > 1),
        Err(Problem::Skip(skip)) => {
            run.skip(&name.path(), skip);
            Ok(())
        }
        Err(Problem::Failed(failure)) => {
            run.failed(&failure);
            Ok(())
        }
        Err(Problem::Ends(failure)) => Err(failure),
    }
}

impl Volume<'_> {
    fn facts(&self, stat: &Stat) -> butternut::Result<Facts> {
        let id = stat.id;
        let known = self.read_only.borrow().get(&id.subvolume).copied();
        let is_read_only = if let Some(known) = known {
            known
        } else {
            let found = self.filesystem.subvolume(id.subvolume)?.read_only;
            self.read_only.borrow_mut().insert(id.subvolume, found);
            found
        };
        let has = |flag: InodeFlags| stat.flags & flag.0 != 0;
        let times = [stat.mtime, stat.ctime, stat.btime];
        let times = times.iter().flat_map(|Time { secs, nanos, .. }| {
            [secs.to_le_bytes(), i64::from(*nanos).to_le_bytes()].concat()
        });
        let numbers = [id.subvolume, id.ino, stat.generation, stat.size];
        let mut parts = b"volume".to_vec();
        parts.extend(self.filesystem.super_block().fsid());
        parts.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        parts.extend(times);
        Ok(Facts {
            identity: Identity::of(&parts),
            size: stat.size,
            filesystem: 0,
            has_checksums: !has(InodeFlags::NODATASUM),
            is_target: !is_read_only && !has(InodeFlags::IMMUTABLE) && !has(InodeFlags::APPEND),
            // No other process writes to the volume.
            is_settled: true,
        })
    }

    /// Returns what an error at a path means for the run.
    fn problem(&self, path: &WalkPath, error: &Error) -> Problem<Failure> {
        if self.filesystem.is_writable() && self.filesystem.write_error().is_some() {
            return Problem::Ends(failed(&path.bytes(), error));
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "every other error is reported")]
        match error {
            Error::NotPermitted { .. } | Error::ReadOnly { .. } => {
                Problem::Skip(Skip::NotPermitted)
            }
            Error::InvalidArgument { .. } => Problem::Skip(Skip::Refused),
            error => Problem::Failed(failed(&path.bytes(), error)),
        }
    }
}

impl Place for Volume<'_> {
    type Name = Name;
    type File = OpenFile;
    type Error = Failure;

    fn open(&self, name: &Name) -> Result<(OpenFile, Facts), Problem<Failure>> {
        let opened = || {
            let file = self.filesystem.open_file(name.id)?;
            let facts = self.facts(&file.metadata()?)?;
            Ok((OpenFile { file, path: name.path.clone() }, facts))
        };
        opened().map_err(|error| self.problem(&name.path, &error))
    }

    fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Problem<Failure>> {
        let read = file.file.read_uncached(offset, buf);
        read.map_err(|error| self.problem(&file.path, &error))
    }

    fn extents(&self, file: &OpenFile, from: u64) -> Result<Vec<DataExtent>, Problem<Failure>> {
        let extents = file.file.extents(from..file.file.len());
        let data = extents.filter_map(|extent| extent.map(data_extent).transpose());
        let some: Result<Vec<_>, Error> = data.take(EXTENTS_MAX).collect();
        some.map_err(|error| self.problem(&file.path, &error))
    }

    fn dedupe(
        &self,
        source: (&OpenFile, u64),
        target: (&OpenFile, u64),
        bytes: u64,
    ) -> Result<Answer, Problem<Failure>> {
        match target.0.file.dedupe_range(target.1, &source.0.file, source.1, bytes) {
            Ok(Dedupe::Shared(bytes)) => Ok(Answer::Shared(bytes)),
            Ok(Dedupe::Differs) => Ok(Answer::Differs),
            Err(error) => Err(self.problem(&target.0.path, &error)),
        }
    }
}

/// Returns an extent with data; `None` for any other.
fn data_extent(extent: Extent) -> Option<DataExtent> {
    let location = match extent.kind {
        ExtentKind::Hole | ExtentKind::Prealloc { .. } => return None,
        ExtentKind::Inline { .. } => Location::Inline,
        ExtentKind::Buffered => Location::Buffered,
        ExtentKind::Regular { logical, extent_offset, compression: Compression::None, .. } => {
            Location::Stored { address: logical.saturating_add(extent_offset) }
        }
        ExtentKind::Regular { logical, .. } => Location::Encoded { address: logical },
    };
    Some(DataExtent { offset: extent.offset, bytes: extent.bytes, location })
}
