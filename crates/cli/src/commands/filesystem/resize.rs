//! `filesystem resize`: resizes a volume on one of its devices.
//!
//! 1. An image file is extended before its volume grows, and truncated to its old size if the
//!    resize is then refused.
//! 2. An image file is truncated after its volume has shrunk, if the volume reached the end of the
//!    file: bytes after the volume do not belong to it.
//! 3. A volume inside a larger image or device does not grow over another partition or filesystem.
//! 4. An image file is changed only while the volume is open, which locks the file: otherwise
//!    another process may have resized the volume, too. So a file that was extended stays extended
//!    if the volume cannot be opened again, and also if the commit fails: the superblocks may have
//!    the new size by then.
//! 5. A mounted volume is resized by the process of its mount, or by the kernel ([`resize`]).
//!
//! [`resize`]: crate::control::resize

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use butternut::{DeviceInfo, DevicePath};
use butternut_sys::volume_calls;

use super::super::transaction::Transaction;
use crate::args::{GlobalArgs, ResizeArgs};
use crate::commands::mounted::directory::MountedDirectory;
use crate::control::Request;
use crate::control::resize::{ResizeRequest, Resized, SECTOR_BYTES, SEVERAL_IN_FILE};
use crate::failure::{Failure, Outcome, chain, hints, without_object};
use crate::output::Output;
use crate::output::size::{Units, pretty};
use crate::volume::{growth, image_size};

const COMMAND: &str = "filesystem resize";

/// Maximum size of an image file in bytes.
const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// The device to resize, and its new size.
struct Plan {
    devid: u64,
    /// How the caller named the device, if it did.
    named: Option<DevicePath>,
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
    let request = ResizeRequest::parse(&args.size)?;
    if let Some(mounted) = MountedDirectory::open(&args.volume)? {
        return of_mount(global, &mounted, request, out);
    }
    let mut bytes_before = None;
    let (mut transaction, plan) = loop {
        let transaction = Transaction::open_args(global, std::slice::from_ref(&args.volume))?;
        let plan = Plan::of(&transaction, &request)?;
        plan.check_growth()?;
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

/// Resizes a mounted volume.
fn of_mount(
    global: &GlobalArgs,
    mounted: &MountedDirectory<'_>,
    request: ResizeRequest,
    out: &mut Output,
) -> Outcome {
    if mounted.is_kernels() {
        let Some(size) = request.for_kernel() else {
            return Err(mounted.of_kernel("btrfs inspect-internal min-dev-size"));
        };
        let resized = volume_calls::resize(mounted.reopen()?.as_fd(), &size);
        resized.map_err(|error| mounted.failed(&error))?;
        return mounted.finish(global, out, |object| object);
    }
    mounted.require_writable()?;
    let resized: Resized = mounted.request(COMMAND, &Request::Resize(request))?;
    let Resized { devid, bytes_was, bytes } = resized;
    mounted.finish(global, out, |object| {
        object.put("devid", devid).put("bytes_was", bytes_was).put("bytes", bytes)
    })
}

/// Detects the order of the arguments of btrfs-progs, SIZE VOLUME.
fn check_order(args: &ResizeArgs) -> Result<(), Failure> {
    let Some(first) = args.volume.to_str() else { return Ok(()) };
    let is_size = ResizeRequest::parse(first).is_ok();
    let (is_volume, is_swapped) = (Path::new(first).exists(), Path::new(&args.size).exists());
    if !is_size || is_volume || !is_swapped {
        return Ok(());
    }
    let usage = format!("`butternut filesystem resize {} {first}`", args.size);
    Err(Failure::new(first, "is a size, not a volume")
        .hint(format!("the volume is first: {usage}")))
}

impl Plan {
    fn of(transaction: &Transaction, request: &ResizeRequest) -> Result<Self, Failure> {
        let devices = transaction.filesystem().devices();
        let device = request.device(&devices);
        let device = device.map_err(|(why, hint)| Failure::new("size", why).hint(hint))?;
        let named = named(transaction, device)?;
        let file = image_file(named.as_ref());
        let most = file.as_ref().map_or(device.device_bytes, |file| file.bytes - file.offset);
        let min = || transaction.filesystem().size_min(device.id);
        let bytes = request.size.of(device.total_bytes, min, most);
        let bytes = bytes.map_err(|error| transaction.failure(&error))?;
        let (what, bytes_max) = match &file {
            Some(file) => ("an image file has at most", FILE_BYTES_MAX.saturating_sub(file.offset)),
            None => ("the device has", most),
        };
        let bytes = bytes.filter(|bytes| *bytes <= bytes_max).ok_or_else(|| {
            Failure::new("size", format!("{what} {}", pretty(bytes_max, Units::Binary)))
                .hint("choose max or a smaller size")
        })?;
        Ok(Self { devid: device.id, named, bytes_was: device.total_bytes, bytes, file })
    }

    /// Refuses to grow over something else in the same file or device (law 3).
    fn check_growth(&self) -> Result<(), Failure> {
        let Some(DevicePath { path, offset, .. }) = &self.named else { return Ok(()) };
        let shown = path.display().to_string();
        let found = growth::overlap(path, *offset, (self.bytes_was, self.bytes));
        let found = found.map_err(|error| {
            Failure::new(shown.clone(), without_object(&chain(&error), &shown))
                .hint_if(hints::of_device(&error))
        })?;
        found.map_or(Ok(()), |why| Err(Failure::new(shown, why).hint(growth::SMALLER)))
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

/// Returns how the caller named a device, if it did.
///
/// # Errors
/// Another device of the volume is in the same file.
fn named(transaction: &Transaction, device: &DeviceInfo) -> Result<Option<DevicePath>, Failure> {
    let Some(path) = &device.path else { return Ok(None) };
    let is_wanted = |named: &&DevicePath| named.path.display().to_string() == *path;
    let mut found = transaction.devices().iter().filter(is_wanted);
    match (found.next(), found.next()) {
        (_, Some(_)) => Err(Failure::new(path.clone(), SEVERAL_IN_FILE)),
        (first, None) => Ok(first.cloned()),
    }
}

fn image_file(named: Option<&DevicePath>) -> Option<ImageFile> {
    // A partition has the size that its table says, so the file stays as it is.
    let named = named.filter(|named| named.bytes.is_none())?;
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
