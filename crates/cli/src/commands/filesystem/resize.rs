//! `filesystem resize`: resizes a volume on one of its devices.
//!
//! 1. An image file is extended before its volume grows, and truncated to its old size if the
//!    resize is then refused.
//! 2. An image file is truncated after its volume has shrunk, if the volume reached the end of the
//!    file: bytes after the volume do not belong to it.
//! 3. An image file is changed only while the volume is open, which locks the file: otherwise
//!    another process may have resized the volume, too. So a file that was extended stays extended
//!    if the volume cannot be opened again, and also if the commit fails: the superblocks may have
//!    the new size by then.

use std::path::{Path, PathBuf};

use butternut::{DeviceInfo, DevicePath};

use super::super::transaction::Transaction;
use super::super::truncate::Size;
use crate::args::{GlobalArgs, ResizeArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::output::size::{Units, pretty};
use crate::volume::image_size;

/// The size of a volume is a multiple of this.
const SECTOR_BYTES: u64 = 4096;

/// Maximum size of an image file in bytes.
const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// The device to resize, and its new size.
struct Plan {
    devid: u64,
    bytes_was: u64,
    bytes: u64,
    /// Set if the device is an image file.
    file: Option<ImageFile>,
}

struct ImageFile {
    path: PathBuf,
    identity: image_size::Identity,
    /// Offset of the volume in the file, in bytes.
    offset: u64,
    bytes: u64,
}

pub(crate) fn run(global: &GlobalArgs, args: &ResizeArgs, out: &mut Output) -> Outcome {
    check_order(args)?;
    let mut bytes_before = None;
    let (mut transaction, plan) = loop {
        let transaction = Transaction::open_args(global, std::slice::from_ref(&args.volume))?;
        let plan = Plan::of(&transaction, &args.size)?;
        let Some(file) = plan.file.as_ref().filter(|file| file.bytes < file.end_of(plan.bytes))
        else {
            break (transaction, plan);
        };
        bytes_before.get_or_insert(file.bytes);
        file.set_bytes(file.end_of(plan.bytes))?;
        // The size of a device is read when it is opened.
    };
    if let Err(error) = transaction.filesystem().resize(plan.devid, plan.bytes) {
        plan.undo_extension(bytes_before);
        return Err(plan.refused(transaction.failure(&error)));
    }
    transaction.commit().map_err(|failure| plan.refused(failure))?;
    if let Some(file) = plan.file.as_ref().filter(|_| !args.keep_file)
        && plan.bytes < plan.bytes_was
        && file.bytes.saturating_sub(file.offset) / SECTOR_BYTES <= plan.bytes_was / SECTOR_BYTES
    {
        file.set_bytes(file.end_of(plan.bytes))?;
    }
    transaction.finish(global, out, |object| {
        object.put("devid", plan.devid).put("bytes_was", plan.bytes_was).put("bytes", plan.bytes)
    })
}

/// Detects the order of the arguments of btrfs-progs, SIZE VOLUME.
fn check_order(args: &ResizeArgs) -> Result<(), Failure> {
    let Some(first) = args.volume.to_str() else { return Ok(()) };
    let size = first.split_once(':').map_or(first, |(_, size)| size);
    let is_size = size == "max" || Size::parse("size", size).is_ok();
    let (is_volume, is_swapped) = (Path::new(first).exists(), Path::new(&args.size).exists());
    if !is_size || is_volume || !is_swapped {
        return Ok(());
    }
    let usage = format!("`butternut filesystem resize {} {first}`", args.size);
    Err(Failure::new(first, "is a size, not a volume")
        .hint(format!("the volume is first: {usage}")))
}

impl Plan {
    fn of(transaction: &Transaction, typed: &str) -> Result<Self, Failure> {
        let devices = transaction.filesystem().devices();
        let (device, typed) = select_device(&devices, typed)?;
        let file = image_file(transaction, device);
        let most = file.as_ref().map_or(device.device_bytes, |file| file.bytes - file.offset);
        let bytes = match typed {
            "max" => Some(most),
            typed => Size::parse("size", typed)?.of(device.total_bytes),
        };
        let bytes = bytes.map(|bytes| bytes / SECTOR_BYTES * SECTOR_BYTES);
        let (what, bytes_max) = match &file {
            Some(file) => ("an image file has at most", FILE_BYTES_MAX.saturating_sub(file.offset)),
            None => ("the device has", most),
        };
        let bytes = bytes.filter(|bytes| *bytes <= bytes_max).ok_or_else(|| {
            Failure::new("size", format!("{what} {}", pretty(bytes_max, Units::Binary)))
                .hint("choose max or a smaller size")
        })?;
        Ok(Self { devid: device.id, bytes_was: device.total_bytes, bytes, file })
    }

    /// Truncates a file that was extended to its size before (law 1), unless the volume needs it.
    fn undo_extension(&self, bytes_before: Option<u64>) {
        if let (Some(file), Some(bytes)) = (&self.file, bytes_before)
            && file.end_of(self.bytes_was) <= bytes
        {
            // The caller reports the failure of the resize.
            image_size::set(&file.path, &[file.identity], bytes).unwrap_or_default();
        }
    }

    fn refused(&self, failure: Failure) -> Failure {
        failure.hint(format!(
            "choose at least the allocated size, see `butternut filesystem usage`; the size is {}",
            pretty(self.bytes_was, Units::Binary)
        ))
    }
}

/// Parses `[DEVID:]SIZE`. Returns the device and the unparsed size.
fn select_device<'a, 't>(
    devices: &'a [DeviceInfo],
    typed: &'t str,
) -> Result<(&'a DeviceInfo, &'t str), Failure> {
    let (devid, size) = match typed.split_once(':') {
        Some((devid, size)) => (Some(devid), size),
        None => (None, typed),
    };
    // Other volumes use a seed, too.
    let own: Vec<&DeviceInfo> = devices.iter().filter(|device| !device.seed).collect();
    let found = match (devid, &own[..]) {
        (None, [only]) => Some(*only),
        (None, _) => None,
        (Some(devid), _) => {
            let devid = devid.parse::<u64>().ok();
            own.iter().copied().find(|device| Some(device.id) == devid)
        }
    };
    let known: Vec<String> = own.iter().map(|device| device.id.to_string()).collect();
    let found = found.ok_or_else(|| {
        let why = devid.map_or("no device is named".into(), |devid| format!("no device {devid}"));
        Failure::new("size", why)
            .hint(format!("give DEVID:SIZE with one of the devices {}", known.join(", ")))
    })?;
    Ok((found, size))
}

fn image_file(transaction: &Transaction, device: &DeviceInfo) -> Option<ImageFile> {
    let path = device.path.as_ref()?;
    let is_wanted = |named: &&DevicePath| named.path.display().to_string() == *path;
    let named = transaction.devices().iter().find(is_wanted)?;
    let meta = std::fs::metadata(&named.path).ok().filter(std::fs::Metadata::is_file)?;
    let (path, identity) = (named.path.clone(), image_size::identity(&meta));
    Some(ImageFile { path, identity, offset: named.offset, bytes: meta.len() })
}

impl ImageFile {
    /// Returns the size of the file that a volume of `bytes` bytes needs.
    fn end_of(&self, bytes: u64) -> u64 {
        self.offset.saturating_add(bytes)
    }

    fn set_bytes(&self, bytes: u64) -> Result<(), Failure> {
        image_size::set(&self.path, &[self.identity], bytes)
            .map_err(|error| Failure::io(self.path.display().to_string(), &error))
    }
}
