//! The command line as meant: an open volume, resolved paths, checked numbers.

use std::ffi::OsString;
use std::path::Path;

use butternut::{FileId, Filesystem, Follow, MountOptions};
use rustix::io::Errno;

use crate::failure::Failure;
use crate::flags::{GlobalArgs, VolumeArgs, VolumesArgs};
use crate::output::{say, size, text};
use crate::volume_arg::{self, VolumeArg};

/// An open volume and how its user named it.
pub(crate) struct Opened {
    pub(crate) filesystem: Filesystem,
    pub(crate) named: VolumeArg,
    verbose: bool,
}

impl Opened {
    pub(crate) fn one(global: &GlobalArgs, volume: &VolumeArgs) -> Result<Self, Failure> {
        Self::open(global, std::slice::from_ref(&volume.volume), &MountOptions::default())
    }

    pub(crate) fn many(global: &GlobalArgs, volumes: &VolumesArgs) -> Result<Self, Failure> {
        Self::open(global, &volumes.volume, &MountOptions::default())
    }

    /// For writing; nothing is committed that is not asked for, unless a full volume needs it to
    /// delete what is on it.
    pub(crate) fn to_change(
        global: &GlobalArgs,
        words: &[OsString],
        commits_for_space: bool,
    ) -> Result<Self, Failure> {
        let options = MountOptions {
            read_only: false,
            commit_seconds: 0,
            commits_for_space,
            ..MountOptions::default()
        };
        Self::open(global, words, &options)
    }

    fn open(
        global: &GlobalArgs,
        words: &[OsString],
        options: &MountOptions,
    ) -> Result<Self, Failure> {
        let named = volume(words)?;
        let options = MountOptions {
            degraded: global.degraded,
            subvolume: named.subvolume.clone(),
            ..options.clone()
        };
        let filesystem = open(&named, &options)?;
        if !global.quiet {
            for notice in filesystem.notices() {
                say(&format!("{}: note: {notice}", named.typed));
            }
        }
        Ok(Self { filesystem, named, verbose: global.verbose })
    }

    /// The inode at a path that the user typed.
    pub(crate) fn resolve(&self, path: &OsString, follow: Follow) -> Result<FileId, Failure> {
        let bytes = text::bytes(path);
        self.filesystem
            .resolve(&bytes, follow)
            .map_err(|error| Failure::of(text::escaped(&bytes), &error))
    }

    /// Turns an error of the volume as a whole into a failure.
    pub(crate) fn whole(&self, error: &butternut::Error) -> Failure {
        Failure::of(self.named.typed.clone(), error)
    }
}

impl Drop for Opened {
    /// Under `-v`, what the command cost.
    fn drop(&mut self) {
        if self.verbose {
            let counters = self.filesystem.counters();
            say(&format!(
                "{}: {} device reads, {} read, {} tree blocks",
                self.named.typed,
                counters.device_reads,
                size::pretty(counters.device_bytes_read, size::Units::Binary),
                counters.node_cache_misses,
            ));
        }
    }
}

/// Reads a volume argument.
pub(crate) fn volume(words: &[OsString]) -> Result<VolumeArg, Failure> {
    volume_arg::parse(words).map_err(|error| {
        let typed: Vec<String> = words.iter().map(|word| word.display().to_string()).collect();
        Failure::new(typed.join(" "), error.to_string())
    })
}

/// Opens the volume, with the cure that fits what went wrong.
pub(crate) fn open(named: &VolumeArg, options: &MountOptions) -> Result<Filesystem, Failure> {
    for device in &named.devices {
        check_device(&device.path)?;
    }
    Filesystem::open(&named.devices, options).map_err(|error| open_failure(named, &error))
}

fn open_failure(named: &VolumeArg, error: &butternut::Error) -> Failure {
    let failure = Failure::of(named.typed.clone(), error);
    let text = failure.to_string();
    if text.contains("missing device") {
        return failure.cure("name all its devices, joined with commas, or add --degraded");
    }
    if text.contains("chunks cannot be read") {
        return failure.cure("name more of its devices, joined with commas");
    }
    if text.contains("busy") {
        return failure.cure("unmount it, or wait until it is free");
    }
    if text.contains("magic") || text.contains("not btrfs") {
        return failure.cure("is it btrfs? In a bigger image, say where it starts: ?offset=N");
    }
    failure
}

/// Says what is wrong with a device before the engine has to guess.
pub(crate) fn check_device(path: &Path) -> Result<(), Failure> {
    let what = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|error| {
        let failure = Failure::io(what.clone(), &error);
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                failure.cure("name an image file or a block device, as in disk.img@snap1")
            }
            Some(Errno::ACCESS) => failure.cure("ask its owner, or become root"),
            _ => failure,
        }
    })?;
    if meta.is_dir() {
        return Err(Failure::new(what, "is a directory")
            .cure("name the image file or device; for a mounted tree use ordinary tools"));
    }
    Ok(())
}

/// A number of bytes that the user typed for `flag`.
pub(crate) fn bytes(flag: &str, typed: &str) -> Result<u64, Failure> {
    size::parse(typed).ok_or_else(|| {
        Failure::new(flag, format!("{typed:?} is not a number of bytes"))
            .cure("write 4096, 64K, 1M or 2G")
    })
}
