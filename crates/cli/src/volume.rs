//! Opens the volume that a command names, or the one that send streams make, and resolves paths in
//! it.

pub(crate) mod arg;
pub(crate) mod contents;
pub(crate) mod growth;
pub(crate) mod identity;
pub(crate) mod image_size;
pub(crate) mod partitions;
pub(crate) mod stream;

use std::ffi::OsString;
use std::path::Path;

use butternut::device::{DeviceError, OpenError};
use butternut::{Error, FileId, Filesystem, Follow, MountOptions, Subvolume, TOP_LEVEL, TreeError};
use rustix::io::Errno;

use crate::args::{GlobalArgs, VolumeArgs, VolumesArgs};
use crate::failure::Failure;
use crate::output::{size, stderr_line, text};
use arg::VolumeArg;

/// An open volume, and the argument that named it.
pub(crate) struct OpenVolume {
    pub(crate) filesystem: Filesystem,
    pub(crate) arg: VolumeArg,
    verbose: bool,
}

impl OpenVolume {
    /// Opens a volume named by one argument, for reading.
    pub(crate) fn from_arg(global: &GlobalArgs, volume: &VolumeArgs) -> Result<Self, Failure> {
        Self::open(global, std::slice::from_ref(&volume.volume), &MountOptions::default())
    }

    /// Opens a volume whose devices may be separate arguments, for reading.
    pub(crate) fn from_args(global: &GlobalArgs, volumes: &VolumesArgs) -> Result<Self, Failure> {
        Self::open(global, &volumes.volume, &MountOptions::default())
    }

    /// Opens a volume for writing, with the periodic commit off. With `commits_for_space`, a full
    /// volume may commit earlier, so that deletions free space.
    pub(crate) fn for_writing(
        global: &GlobalArgs,
        arguments: &[OsString],
        commits_for_space: bool,
    ) -> Result<Self, Failure> {
        let options = MountOptions::default()
            .read_only(false)
            .commit_seconds(0)
            .commits_for_space(commits_for_space);
        Self::open(global, arguments, &options)
    }

    fn open(
        global: &GlobalArgs,
        arguments: &[OsString],
        options: &MountOptions,
    ) -> Result<Self, Failure> {
        let arg = parse_arg(arguments)?;
        let options = options.clone().degraded(global.degraded).subvolume(arg.subvolume.clone());
        let filesystem = open(&arg, &options)?;
        if !global.quiet {
            for notice in filesystem.notices() {
                stderr_line(&format!("{}: note: {notice}", arg.typed));
            }
            for note in &contents::notes(&arg.devices) {
                stderr_line(note);
            }
        }
        Ok(Self { filesystem, arg, verbose: global.verbose })
    }

    /// Resolves a path given on the command line.
    pub(crate) fn resolve(&self, path: &OsString, follow: Follow) -> Result<FileId, Failure> {
        let bytes = text::bytes(path);
        self.filesystem.resolve(&bytes, follow).map_err(|error| self.failed(&bytes, &error))
    }

    /// Converts an error that occurred at a path. A path that begins at a subvolume other than the
    /// top level may be meant to begin there, so the failure of one that is not found, or of a
    /// read-only subvolume, names the argument that begins at the top level.
    pub(crate) fn failed(&self, path: &[u8], error: &Error) -> Failure {
        let failure = Failure::of(text::escaped(path), error);
        let root = self.filesystem.root().subvolume;
        let depends_on_root = matches!(error, Error::NotFound | Error::ReadOnly { .. });
        if root == TOP_LEVEL || !depends_on_root {
            return failure;
        }
        failure.hint(format!(
            "paths begin inside subvolume {root}; name the volume {} to begin at the top level",
            self.top_level()
        ))
    }

    /// Returns the argument for the same volume whose paths begin at the top level.
    pub(crate) fn top_level(&self) -> String {
        format!("{}@{TOP_LEVEL}", self.arg.without_subvolume())
    }

    /// Converts an error that concerns the whole volume.
    pub(crate) fn failure(&self, error: &Error) -> Failure {
        Failure::of(self.arg.typed.clone(), error)
    }
}

impl Drop for OpenVolume {
    /// With `-v`, reports how much the command has read.
    fn drop(&mut self) {
        if self.verbose {
            let counters = self.filesystem.counters();
            stderr_line(&format!(
                "{}: {}, {} read, {}",
                self.arg.typed,
                text::counted(counters.device_reads, "device read", "device reads"),
                size::pretty(counters.device_bytes_read, size::Units::Binary),
                text::counted(counters.node_cache_misses, "tree block", "tree blocks"),
            ));
        }
    }
}

/// Parses a volume argument.
pub(crate) fn parse_arg(arguments: &[OsString]) -> Result<VolumeArg, Failure> {
    arg::parse(arguments).map_err(|error| {
        let typed: Vec<String> =
            arguments.iter().map(|argument| argument.display().to_string()).collect();
        Failure::new(typed.join(" "), error.to_string())
    })
}

/// Opens the volume. In its place, send streams can be read.
pub(crate) fn open(arg: &VolumeArg, options: &MountOptions) -> Result<Filesystem, Failure> {
    check_devices(arg)?;
    if stream::is_named(arg)? {
        return if options.read_only {
            stream::filesystem(arg, options)
        } else {
            Err(stream::refused(arg))
        };
    }
    Filesystem::open(&arg.devices, options).map_err(|error| not_opened(arg, options, &error))
}

/// How the failure of an open(2) is described.
const OPENED: &str = "opened:";

/// Describes a volume that cannot be opened, and what the devices hold where that is no volume.
#[expect(clippy::wildcard_enum_match_arm, reason = "most errors say nothing of the contents")]
pub(crate) fn not_opened(arg: &VolumeArg, options: &MountOptions, error: &Error) -> Failure {
    let failure = Failure::of(arg.typed.clone(), error);
    match error {
        Error::Device(DeviceError::Open(cause)) => match (&**cause, options.read_only) {
            (OpenError::Refused { .. }, true) => failure.replace(OPENED, "opened for reading:"),
            (OpenError::Refused { .. }, false) => failure.replace(OPENED, "opened for writing:"),
            _ => failure,
        },
        Error::Volume(cause) => contents::explain(arg, failure, cause),
        Error::Tree(TreeError::Assemble(cause)) => contents::explain(arg, failure, cause),
        _ => failure,
    }
}

/// Reports the first missing, unreadable or unsuitable device of a volume.
///
/// # Errors
/// As [`check_device`]; a subvolume of a directory is named.
pub(crate) fn check_devices(arg: &VolumeArg) -> Result<(), Failure> {
    let directory = arg.devices.iter().find(|device| device.path.is_dir());
    if let Some(directory) = directory {
        refuse_subvolume(&directory.path, &arg.subvolume)?;
    }
    arg.devices.iter().try_for_each(|device| check_device(&device.path))
}

/// Refuses `DIRECTORY@SUBVOL`, and says how the subvolume of a mounted volume is named.
fn refuse_subvolume(directory: &Path, subvolume: &Subvolume) -> Result<(), Failure> {
    let shown = directory.display();
    let hint = match subvolume {
        Subvolume::Default => return Ok(()),
        Subvolume::Path(path) => {
            let path = String::from_utf8_lossy(path);
            format!("name it by its path: {shown}/{}", path.trim_start_matches('/'))
        }
        Subvolume::Id(_) => {
            format!("name it by its path; `butternut subvolume list {shown}` shows the paths")
        }
    };
    let what = format!("{shown}@{}", arg::describe(subvolume));
    Err(Failure::new(what, "a subvolume of a mounted volume is named without @").hint(hint))
}

/// Reports a missing, unreadable or unsuitable device before the volume is opened.
///
/// # Errors
/// Fails if `path` does not exist, cannot be examined, or is a directory.
pub(crate) fn check_device(path: &Path) -> Result<(), Failure> {
    let what = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|error| {
        let failure = Failure::io(what.clone(), &error);
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                failure.hint("name an image file or a block device, as in disk.img@snap1")
            }
            Some(Errno::ACCESS) => failure.hint("run as its owner or as root"),
            _ => failure,
        }
    })?;
    if meta.is_dir() {
        return Err(Failure::new(what, "is a directory")
            .hint("name the image file or device; for a mounted volume use ordinary tools"));
    }
    Ok(())
}
