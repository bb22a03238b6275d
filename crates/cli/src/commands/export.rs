//! `export`: copies a file or tree out of the volume, with everything that belongs to it.
//!
//! 1. Nothing is written outside DEST: names are checked, every file is reached through the open
//!    directory that holds it, and no symlink is followed on the way.
//! 2. Nothing that exists is overwritten, linked to, or given another owner or mode: not DEST
//!    itself either, if it is there.
//! 3. What could not be kept is said, and the exit status is not 0.
//! 4. The volume is not trusted. Without owners nothing comes out that lends rights: no set-user-id
//!    bits, no `security.*` and `trusted.*` attributes, no devices. With them devices are made only
//!    on request: a device node gives every user that may open it the hardware of this machine.
//!
//! One thread walks and makes directories; workers copy. A directory or file gets its attributes
//! when the last reference to it goes, which is after everything in it is written.

mod attributes;
mod copy;
mod folder;
mod links;
mod report;

use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use butternut::{FileKind, Filesystem, Follow, Stat};

use super::progress::Progress;
use crate::failure::{Failure, Outcome};
use crate::flags::{ExportArgs, GlobalArgs};
use crate::options::Opened;
use crate::output::{Output, text};
use attributes::Keeping;
use copy::{Job, Target, Wanted};
use folder::Folder;
pub(super) use folder::raise_open_files_limit;
use links::Links;
use report::{Lost, Report};

use super::walk::{Found, Walk, WalkPath};

/// Jobs that wait for a worker; each holds its directory open.
const JOBS_MAX: usize = 256;
/// Workers, at most.
const THREADS_MAX: usize = 256;

/// What every part of an export sees.
struct Export {
    filesystem: Filesystem,
    keeping: Keeping,
    report: Report,
    progress: Progress,
}

pub(crate) fn run(global: &GlobalArgs, args: &ExportArgs, out: &mut Output) -> Outcome {
    let opened = Opened::one(global, &args.volume)?;
    let id = opened.resolve(&args.path, Follow::NotLast)?;
    let path = text::bytes(&args.path);
    let stat =
        opened.filesystem.stat(id).map_err(|error| Failure::of(text::escaped(&path), &error))?;
    raise_open_files_limit();
    let export = Arc::new(Export {
        filesystem: opened.filesystem.clone(),
        keeping: Keeping::of(args),
        report: Report::default(),
        progress: Progress::new(global),
    });
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    let threads = args.threads.unwrap_or(cores.max(2)).clamp(1, THREADS_MAX);
    let top = Found { path: WalkPath::new(path), id, kind: stat.kind, depth: 0 };
    let place = Place::of(&args.dest, &top)?;
    let (jobs, waiting) = sync_channel::<Job>(JOBS_MAX);
    let waiting = Mutex::new(waiting);
    let walked = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| copy::work(&export, &waiting));
        }
        let mut walker = Walker { export: &export, jobs, links: Links::default() };
        walker.run(&top, &stat, &place, args.one_subvolume)
    });
    export.progress.finish();
    walked?;
    export.report.print(global, export.keeping, &place.shown, out)
}

/// Where the top goes: a directory, and the name in it, or the directory itself for a root.
struct Place {
    folder: File,
    name: Option<Vec<u8>>,
    shown: String,
}

impl Place {
    fn of(dest: &Path, top: &Found) -> Result<Self, Failure> {
        let shown = dest.display().to_string();
        let name = top.name().to_vec();
        let has_name = !name.is_empty() && name != b"." && name != b"..";
        if dest.is_dir() {
            let folder = File::open(dest).map_err(|error| Failure::io(&*shown, &error))?;
            let name = has_name.then_some(name);
            let inside = name.as_ref().map(|name| format!("/{}", text::escaped(name)));
            let shown = format!("{}{}", shown.trim_end_matches('/'), inside.unwrap_or_default());
            return Ok(Self { folder, name, shown });
        }
        if dest.symlink_metadata().is_ok() {
            return Err(Failure::new(shown, "exists and is not a directory")
                .cure("name a place that does not exist yet, or a directory"));
        }
        let above = match dest.parent() {
            Some(above) if !above.as_os_str().is_empty() => above.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let folder = File::open(&above).map_err(|error| {
            Failure::io(above.display().to_string(), &error)
                .cure("make the directory that DEST is to be in")
        })?;
        let name = dest.file_name().ok_or_else(|| {
            Failure::new(&*shown, "is no name").cure("write the path of what to make")
        })?;
        let name = name.as_encoded_bytes().to_vec();
        Ok(Self { folder, name: Some(name), shown })
    }
}

/// The one thread that walks: it makes directories and links, and hands out files.
struct Walker<'a> {
    export: &'a Arc<Export>,
    jobs: SyncSender<Job>,
    links: Links,
}

impl Walker<'_> {
    fn run(
        &mut self,
        top: &Found,
        stat: &Stat,
        place: &Place,
        one_subvolume: bool,
    ) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io(&*place.shown, &error);
        let outside = Folder::outside(&place.folder).map_err(failed)?;
        if top.kind != FileKind::Directory {
            let name = place.name.clone().unwrap_or_else(|| top.name().to_vec());
            self.file(&outside, name, top, stat);
            return Ok(());
        }
        let folder = match &place.name {
            Some(name) => Folder::make(&outside, name, top, self.export)
                .map_err(|error| failed(error).cure("remove it, or choose another DEST"))?,
            None => Folder::outside(&place.folder).map_err(failed)?,
        };
        self.links.start(&folder).map_err(failed)?;
        self.tree(top, folder, one_subvolume);
        Ok(())
    }

    fn tree(&mut self, top: &Found, folder: Arc<Folder>, one_subvolume: bool) {
        let export = self.export;
        let mut walk = Walk::new(&export.filesystem, one_subvolume);
        let mut folders = vec![folder];
        if let Err(broken) = walk.enter(top) {
            export.report.unreadable(&WalkPath::new(broken.path), &broken.error);
        }
        while let Some(step) = walk.next() {
            let found = match step {
                Ok(found) => found,
                Err(broken) => {
                    export.report.unreadable(&WalkPath::new(broken.path), &broken.error);
                    continue;
                }
            };
            folders.truncate(found.depth);
            let Some(folder) = folders.last() else { continue };
            let name = found.name().to_vec();
            if !folder::is_safe(&name) {
                export.report.failed(&found.path, "a name that no directory can hold");
                continue;
            }
            if !found.is_directory() {
                match export.filesystem.stat(found.id) {
                    Ok(stat) => self.file(&Arc::clone(folder), name, &found, &stat),
                    Err(error) => export.report.unreadable(&found.path, &error),
                }
                continue;
            }
            match Folder::make(folder, &name, &found, export) {
                Ok(made) => {
                    folders.push(made);
                    if let Err(broken) = walk.enter(&found) {
                        export.report.unreadable(&WalkPath::new(broken.path), &broken.error);
                    }
                }
                Err(error) => export.report.io(&found.path, &error),
            }
        }
    }

    /// Links to a file that is already there, or hands the copy to the workers.
    fn file(&mut self, folder: &Arc<Folder>, name: Vec<u8>, found: &Found, stat: &Stat) {
        let is_linked = stat.nlink > 1;
        if is_linked && self.links.link(folder, &name, found, &self.export.report) {
            return;
        }
        let is_device = matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if is_device && !self.export.keeping.devices {
            return self.export.report.left_out(Lost::Device, &found.path, self.export.keeping);
        }
        self.export.progress.found(stat.size);
        let is_big = stat.size > copy::PIECE_BYTES;
        let (path, copy) = (found.path.clone(), stat.clone());
        let wanted = Wanted { folder: Arc::clone(folder), name, path, stat: copy };
        if !is_linked && !is_big {
            return self.hand_out(Job::Make(wanted));
        }
        // Made here, so that a link to it finds it, and many workers can share its pieces.
        let (target, made) = Target::make(self.export, wanted);
        if let Some(made) = made.filter(|_| is_linked) {
            self.links.remember(found, stat, made);
        }
        let Some(target) = target else { return };
        for range in target.pieces() {
            self.hand_out(Job::Piece(Arc::clone(&target), range));
        }
    }

    fn hand_out(&self, job: Job) {
        self.jobs.send(job).expect("workers run until the walk has ended");
    }
}
