//! [`Target`]: the file or block device that a volume is made on. It is opened exclusively.
//!
//! 1. With a size, a missing image file is created and a short one is extended, after the options
//!    and the existing contents were checked. If making the volume fails, a created file is
//!    removed.
//! 2. With a size, inside a larger image, nothing behind the volume is read or written. Otherwise
//!    the window is the whole device, so that old superblock copies behind a smaller volume are
//!    wiped.
//! 3. A zoned block device is refused, because superblocks have fixed addresses and such a device
//!    accepts only sequential writes.
//! 4. A filesystem or partition that the volume would overlap is refused as one at its start is,
//!    while the file is locked.
//! 5. Only block devices are discarded; an image file keeps its allocated blocks.

use crate::error::MkfsError;
use crate::options::{MkfsOptions, Plan};
use crate::overlap::Overlap;
use crate::{Made, Unfinished, make, make_unfinished, signature};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_sys::errno::Errno;
use butternut_sys::file::DiskKind;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The place where a volume is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub path: PathBuf,
    /// Start of the volume in the file, in bytes.
    pub offset: u64,
    /// The bytes that the volume may use, such as those of a partition: nothing behind them is read
    /// or written, and the file is not extended. `None` means up to the end of the file.
    pub bytes: Option<u64>,
}

impl Target {
    /// Makes a volume. [`MkfsOptions::bytes`] is the size of law 1.
    ///
    /// # Errors
    /// The file cannot be opened or created, or as of [`crate::make`].
    pub fn make(&self, options: &MkfsOptions) -> Result<Made, MkfsError> {
        self.make_with(options, |device, options| make(&device, options))
    }

    /// Makes a volume that is to be filled: the device has none until [`Unfinished::finish`].
    ///
    /// # Errors
    /// As [`Target::make`].
    pub fn make_unfinished(&self, options: &MkfsOptions) -> Result<(Made, Unfinished), MkfsError> {
        self.make_with(options, make_unfinished)
    }

    fn make_with<T>(
        &self,
        options: &MkfsOptions,
        run: impl FnOnce(FileDevice, &MkfsOptions) -> Result<T, MkfsError>,
    ) -> Result<T, MkfsError> {
        let is_new = self.prepare(options)?;
        let made = self.open(options).and_then(|device| {
            let kind = device.ring_target().map(|target| target.file.kind());
            let is_block = kind != Some(DiskKind::Image);
            if let Some(DiskKind::BlockDevice { major, minor }) = kind
                && is_zoned(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
            {
                return Err(MkfsError::Zoned);
            }
            self.check_overlap(device.bytes(), options)?;
            run(device, &MkfsOptions { discard: options.discard && is_block, ..options.clone() })
        });
        if made.is_err() && is_new {
            // The first error is returned; an error of the removal is ignored.
            std::fs::remove_file(&self.path).ok();
        }
        made
    }

    fn open(&self, options: &MkfsOptions) -> Result<FileDevice, MkfsError> {
        let bytes = self.bytes.or(options.bytes.filter(|_| self.offset != 0));
        let how =
            OpenDevice { writable: true, offset: self.offset, bytes, ..OpenDevice::default() };
        Ok(FileDevice::open(&self.path, &how)?)
    }

    /// Creates or extends the image file. Returns whether it was created.
    fn prepare(&self, options: &MkfsOptions) -> Result<bool, MkfsError> {
        let Some(bytes) = options.bytes.filter(|_| self.bytes.is_none()) else { return Ok(false) };
        let end = self.offset.checked_add(bytes).ok_or(MkfsError::OffsetTooLarge)?;
        match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Plan::check(bytes, options)?;
                extend(&self.path, end, true)?;
                Ok(true)
            }
            Ok(meta) if meta.is_file() && meta.len() < end => {
                Plan::check(bytes, options)?;
                self.check_short(options)?;
                extend(&self.path, end, false)?;
                Ok(false)
            }
            // Long files, devices and everything else are checked when they are opened.
            _ => Ok(false),
        }
    }

    /// Refuses an image that is in use or has contents, before it is extended.
    fn check_short(&self, options: &MkfsOptions) -> Result<(), MkfsError> {
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let whole = FileDevice::open(&self.path, &how)?;
        let rest = whole.bytes().saturating_sub(self.offset);
        self.check_overlap(rest, options)?;
        drop(whole);
        if rest == 0 || options.overwrite {
            return Ok(());
        }
        let window = FileDevice::open(&self.path, &OpenDevice { offset: self.offset, ..how })?;
        match signature::find(&window)? {
            Some(signature) => Err(MkfsError::InUse { signature }),
            None => Ok(()),
        }
    }

    /// Refuses a volume that would overlap something else (law 4). `rest`: the bytes of the file
    /// from the start of the volume.
    fn check_overlap(&self, rest: u64, options: &MkfsOptions) -> Result<(), MkfsError> {
        if options.overwrite {
            return Ok(());
        }
        let bytes = options.bytes.unwrap_or(rest);
        // More than the bytes that it may use is refused for its size.
        let bytes = self.bytes.map_or(bytes, |bytes_max| bytes.min(bytes_max));
        let range = self.offset..self.offset.saturating_add(bytes);
        let found = Overlap::find(&self.path, &range, None)?;
        found.map_or(Ok(()), |with| Err(MkfsError::Overlaps { range, with }))
    }
}

/// Returns whether the device, or the device of the partition, is zoned according to sysfs.
fn is_zoned(sysfs: &Path) -> bool {
    let model = |path: PathBuf| std::fs::read_to_string(path).ok();
    let own = model(sysfs.join("queue/zoned"));
    own.or_else(|| model(sysfs.join("../queue/zoned"))).is_some_and(|model| model.trim() != "none")
}

fn extend(path: &Path, bytes: u64, is_new: bool) -> Result<(), MkfsError> {
    let failed = |error: std::io::Error| MkfsError::Extend {
        path: path.to_owned(),
        bytes,
        cause: Errno::from(&error),
    };
    let mut how = OpenOptions::new();
    // A volume has the contents of files that only their owners may read.
    let file = how.write(true).create_new(is_new).mode(0o600).open(path).map_err(failed)?;
    file.set_len(bytes).map_err(|error| {
        if is_new {
            std::fs::remove_file(path).ok();
        }
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn zoned_devices_and_their_partitions_are_detected() {
        let check = |model: &str| {
            let disk = tempfile::tempdir().unwrap();
            fs::create_dir_all(disk.path().join("queue")).unwrap();
            fs::create_dir_all(disk.path().join("part1")).unwrap();
            fs::write(disk.path().join("queue/zoned"), model).unwrap();
            (is_zoned(disk.path()), is_zoned(&disk.path().join("part1")))
        };
        assert_eq!(check("none\n"), (false, false));
        assert_eq!(check("host-managed\n"), (true, true));
        assert_eq!(check("host-aware\n"), (true, true));
        assert!(!is_zoned(Path::new("/nowhere")));
    }
}
