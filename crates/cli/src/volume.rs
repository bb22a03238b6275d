//! Opens the volume that a command names, or the one that send streams make, and resolves paths in
//! it.

pub(crate) mod arg;
pub(crate) mod image_size;
pub(crate) mod stream;

use std::ffi::OsString;
use std::path::Path;

use butternut::{FileId, Filesystem, Follow, MountOptions};
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
        }
        Ok(Self { filesystem, arg, verbose: global.verbose })
    }

    /// Resolves a path given on the command line.
    pub(crate) fn resolve(&self, path: &OsString, follow: Follow) -> Result<FileId, Failure> {
        let bytes = text::bytes(path);
        self.filesystem
            .resolve(&bytes, follow)
            .map_err(|error| Failure::of(text::escaped(&bytes), &error))
    }

    /// Converts an error that concerns the whole volume.
    pub(crate) fn failure(&self, error: &butternut::Error) -> Failure {
        Failure::of(self.arg.typed.clone(), error)
    }
}

impl Drop for OpenVolume {
    /// With `-v`, reports how much the command has read.
    fn drop(&mut self) {
        if self.verbose {
            let counters = self.filesystem.counters();
            stderr_line(&format!(
                "{}: {} device reads, {} read, {} tree blocks",
                self.arg.typed,
                counters.device_reads,
                size::pretty(counters.device_bytes_read, size::Units::Binary),
                counters.node_cache_misses,
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
    Filesystem::open(&arg.devices, options).map_err(|error| Failure::of(arg.typed.clone(), &error))
}

/// Reports the first missing, unreadable or unsuitable device of a volume.
///
/// # Errors
/// As [`check_device`].
pub(crate) fn check_devices(arg: &VolumeArg) -> Result<(), Failure> {
    arg.devices.iter().try_for_each(|device| check_device(&device.path))
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
