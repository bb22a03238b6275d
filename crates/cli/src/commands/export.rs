//! `export`: copies a file or directory tree out of the volume, with its metadata.
//!
//! 1. Nothing is written outside DEST: names are checked, every file is created relative to the
//!    open descriptor of its directory, and symlinks are not followed.
//! 2. Nothing that exists is overwritten or linked to, and its owner and mode are not changed. This
//!    includes DEST itself, if it exists.
//! 3. Attributes that could not be preserved are reported, and the exit status is then not 0.
//! 4. The volume is not trusted. Without owners, nothing that grants privileges is copied: no
//!    set-ID bits, no `security.*` and `trusted.*` attributes, no devices. With owners, devices are
//!    created only with --devices: a device node gives every user that can open it access to the
//!    hardware of this machine.
//!
//! One thread walks the tree and creates directories; worker threads copy. The attributes of a
//! directory or file are set when its last reference is dropped, after everything in it is written.

mod attributes;
mod copy;
mod directory;
mod filter;
mod links;
mod preserve;
mod report;
mod shared;
mod source;
mod tar;

use butternut_sys::lock::Mutex;
use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use butternut::{FileKind, Follow, Stat};

use super::progress::Progress;
use crate::args::{ExportArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome, SIGPIPE_STATUS};
use crate::output::{Output, text};
use crate::volume::OpenVolume;
use copy::{CopyTarget, Job, NewFile};
use directory::OutputDirectory;
pub(super) use directory::raise_open_files_limit;
use filter::Filter;
use links::Links;
use preserve::Preserve;
use report::{NotPreserved, Report};
use shared::Export;
use tar::Archive;

use super::walk::{Walk, WalkEntry, WalkPath};

/// Maximum number of queued jobs. Each keeps its directory open.
const JOBS_MAX: usize = 256;
/// Maximum number of worker threads.
const THREADS_MAX: usize = 256;

/// Extents of up to this size are read whatever the size of the devices: some may be missing.
const EXTENT_BYTES_MIN: u64 = 1 << 30;

/// The destination of an archive, in messages.
const STDOUT: &str = "stdout";

pub(crate) fn run(global: &GlobalArgs, args: &ExportArgs, out: &mut Output) -> Outcome {
    check_stdout(global, args, out)?;
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let id = opened.resolve(&args.path, Follow::NotLast)?;
    let path = text::bytes(&args.path);
    let stat =
        opened.filesystem.stat(id).map_err(|error| Failure::of(text::escaped(&path), &error))?;
    raise_open_files_limit();
    let devices = opened.filesystem.devices();
    let device_bytes = devices.iter().map(|device| device.device_bytes);
    let device_bytes = device_bytes.fold(0, u64::saturating_add);
    let export = Arc::new(Export {
        extent_bytes_max: EXTENT_BYTES_MIN.max(device_bytes),
        filesystem: opened.filesystem.clone(),
        preserve: Preserve::of(args),
        report: Report::default(),
        progress: Progress::new(global),
    });
    let top = WalkEntry { path: WalkPath::new(path), id, kind: stat.kind, depth: 0 };
    let filter = Filter::of(args)?;
    if args.tar {
        let archive = Archive::new(&export, &filter, &mut *out);
        let written = archive.write(&top, &stat, args.one_subvolume);
        export.progress.finish();
        let reported = export.report.print(global, export.preserve, STDOUT, out)?;
        return match written.map_err(Failure::from) {
            // A part of an archive is not the archive.
            Err(Failure::StdoutClosed) => Ok(Completion::Status(SIGPIPE_STATUS)),
            Err(failure) => Err(failure),
            Ok(()) => Ok(reported),
        };
    }
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    let threads = args.threads.unwrap_or(cores.max(2)).clamp(1, THREADS_MAX);
    let destination = Destination::of(&args.dest, &top)?;
    let (jobs, queue) = sync_channel::<Job>(JOBS_MAX);
    let queue = Mutex::new(queue);
    let walked = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| copy::work(&export, &queue));
        }
        let mut walker = Walker { export: &export, filter: &filter, jobs, links: Links::default() };
        walker.run(&top, &stat, &destination, args.one_subvolume)
    });
    export.progress.finish();
    walked?;
    export.report.print(global, export.preserve, &destination.shown, out)
}

/// Fails unless an archive, and nothing else, goes to stdout.
fn check_stdout(global: &GlobalArgs, args: &ExportArgs, out: &Output) -> Result<(), Failure> {
    let is_stdout = args.dest.as_os_str() == "-";
    if args.tar && !is_stdout {
        return Err(Failure::new(args.dest.display().to_string(), "is not -").hint(
            "an archive is written to stdout: `butternut export --tar VOLUME PATH - >FILE`",
        ));
    }
    if is_stdout && !args.tar {
        return Err(Failure::new("-", "a copy cannot be written to stdout").hint(
            "add --tar for an archive; `butternut cat` prints one file; ./- is a file name",
        ));
    }
    if args.tar && out.is_terminal {
        return Err(Failure::new(STDOUT, "an archive is not written to a terminal")
            .hint("redirect it to a file, or pipe it to tar(1)"));
    }
    if args.tar && global.json {
        return Err(Failure::new("--json", "cannot be used with --tar, which uses stdout"));
    }
    Ok(())
}

/// The destination: a directory and a name in it, or without a name the directory itself, for a
/// subvolume root.
struct Destination {
    directory: File,
    name: Option<Vec<u8>>,
    shown: String,
}

impl Destination {
    fn of(dest: &Path, top: &WalkEntry) -> Result<Self, Failure> {
        let shown = dest.display().to_string();
        let name = top.name().to_vec();
        let has_name = !name.is_empty() && name != b"." && name != b"..";
        if dest.is_dir() {
            let directory = File::open(dest).map_err(|error| Failure::io(&*shown, &error))?;
            let name = has_name.then_some(name);
            let inside = name.as_ref().map(|name| format!("/{}", text::escaped(name)));
            let shown = format!("{}{}", shown.trim_end_matches('/'), inside.unwrap_or_default());
            return Ok(Self { directory, name, shown });
        }
        if dest.symlink_metadata().is_ok() {
            return Err(Failure::new(shown, "exists and is not a directory")
                .hint("name a path that does not exist, or a directory"));
        }
        if !top.is_directory() && dest.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(Failure::new(shown, "not a directory")
                .hint("leave out the slash at the end, or make the directory first"));
        }
        let parent = match dest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let directory = File::open(&parent).map_err(|error| {
            Failure::io(parent.display().to_string(), &error)
                .hint("create the parent directory of DEST")
        })?;
        let name = dest.file_name().ok_or_else(|| {
            Failure::new(&*shown, "is not a file name").hint("name the file or directory to create")
        })?;
        let name = name.as_encoded_bytes().to_vec();
        Ok(Self { directory, name: Some(name), shown })
    }
}

/// The thread that walks the tree, creates directories and links, and queues files for the workers.
struct Walker<'a> {
    export: &'a Arc<Export>,
    filter: &'a Filter,
    jobs: SyncSender<Job>,
    links: Links,
}

impl Walker<'_> {
    fn run(
        &mut self,
        top: &WalkEntry,
        stat: &Stat,
        destination: &Destination,
        one_subvolume: bool,
    ) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io(&*destination.shown, &error);
        let outside = OutputDirectory::outside(&destination.directory).map_err(failed)?;
        if top.kind != FileKind::Directory {
            let name = destination.name.clone().unwrap_or_else(|| top.name().to_vec());
            self.file(&outside, name, top, stat);
            return Ok(());
        }
        let directory = match &destination.name {
            Some(name) => OutputDirectory::make(&outside, name, top, self.export)
                .map_err(|error| failed(error).hint("remove it, or choose another DEST"))?,
            None => OutputDirectory::outside(&destination.directory).map_err(failed)?,
        };
        self.links.start(&directory).map_err(failed)?;
        self.tree(top, directory, one_subvolume);
        Ok(())
    }

    fn tree(&mut self, top: &WalkEntry, directory: Arc<OutputDirectory>, one_subvolume: bool) {
        let export = self.export;
        let mut walk = Walk::new(&export.filesystem, one_subvolume);
        let mut directories = vec![directory];
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
            directories.truncate(found.depth);
            let Some(directory) = directories.last() else { continue };
            let name = found.name().to_vec();
            if !directory::is_safe(&name) {
                export.report.failed(&found.path, "invalid file name");
                continue;
            }
            if !found.is_directory() {
                match export.filesystem.stat(found.id) {
                    Ok(stat) if stat.kind == FileKind::Directory => {
                        let why = "is a directory, and its directory entry has another type";
                        export.report.failed(&found.path, why);
                    }
                    Ok(stat) if !self.filter.takes(&found.path, &stat) => {}
                    Ok(stat) => self.file(&Arc::clone(directory), name, &found, &stat),
                    Err(error) => export.report.unreadable(&found.path, &error),
                }
                continue;
            }
            if self.filter.excludes(&found.path) {
                continue;
            }
            match OutputDirectory::make(directory, &name, &found, export) {
                Ok(made) => {
                    directories.push(made);
                    if let Err(broken) = walk.enter(&found) {
                        export.report.unreadable(&WalkPath::new(broken.path), &broken.error);
                    }
                }
                Err(error) => export.report.io(&found.path, &error),
            }
        }
    }

    /// Links to an earlier copy of the same file, or queues the file for the workers.
    fn file(
        &mut self,
        directory: &Arc<OutputDirectory>,
        name: Vec<u8>,
        found: &WalkEntry,
        stat: &Stat,
    ) {
        let is_linked = stat.nlink > 1;
        if is_linked && self.links.link(directory, &name, found, &self.export.report) {
            return;
        }
        let is_device = matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if is_device && !self.export.preserve.devices {
            return self.export.report.skipped(
                NotPreserved::Device,
                &found.path,
                self.export.preserve,
            );
        }
        self.export.progress.found(stat.size);
        let is_big = stat.size > copy::RANGE_BYTES;
        let (path, copy) = (found.path.clone(), stat.clone());
        let wanted = NewFile { directory: Arc::clone(directory), name, path, stat: copy };
        if !is_linked && !is_big {
            return self.submit(Job::Create(wanted));
        }
        // Created here, so that later links find it, and several workers can copy its ranges.
        let (target, made) = CopyTarget::make(self.export, wanted);
        if let Some(made) = made.filter(|_| is_linked) {
            self.links.remember(found, stat, made);
        }
        let Some(target) = target else { return };
        for range in target.ranges() {
            self.submit(Job::CopyRange(Arc::clone(&target), range));
        }
    }

    fn submit(&self, job: Job) {
        self.jobs.send(job).expect("workers run until the walk has ended");
    }
}
