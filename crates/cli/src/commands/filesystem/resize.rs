//! `filesystem resize`: makes the volume larger or smaller on one of its devices.
//!
//! 1. An image file is made as long as its volume is to be before the volume grows, and cut back
//!    where that then fails.
//! 2. It is cut after its volume has shrunk, if the volume reached to its end: what lies behind a
//!    volume in a bigger image is not the volume's.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use butternut::{DeviceInfo, DevicePath};

use super::super::change::Change;
use super::super::truncate::Size;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, ResizeArgs};
use crate::output::Output;
use crate::output::size::{Units, pretty};

/// Volumes are made of whole sectors.
const SECTOR_BYTES: u64 = 4096;

/// A device of the volume, and what it is to be.
struct Plan {
    devid: u64,
    bytes_was: u64,
    bytes: u64,
    /// The image file that the device is, if it is one.
    file: Option<ImageFile>,
}

struct ImageFile {
    path: PathBuf,
    /// Where the volume starts.
    offset: u64,
    bytes: u64,
}

pub(crate) fn run(global: &GlobalArgs, args: &ResizeArgs, out: &mut Output) -> Outcome {
    let mut change = Change::open(global, &args.volume)?;
    let plan = Plan::of(&change, &args.size)?;
    let mut grown = None;
    if let Some(file) = &plan.file
        && file.offset.saturating_add(plan.bytes) > file.bytes
    {
        // A device knows its size from when it was opened.
        drop(change);
        file.set_bytes(file.offset.saturating_add(plan.bytes))?;
        grown = Some(file);
        change = Change::open(global, &args.volume).inspect_err(|_| undo(grown))?;
    }
    let resized = change.filesystem().resize(plan.devid, plan.bytes);
    let resized = resized.map_err(|error| change.whole(&error)).and_then(|()| change.commit());
    if let Err(failure) = resized {
        drop(change);
        undo(grown);
        return Err(failure.cure(format!(
            "ask for at least what is allocated: `butternut filesystem usage` shows it; now {}",
            pretty(plan.bytes_was, Units::Binary)
        )));
    }
    let done = change.finish(global, out, |object| {
        object.put("devid", plan.devid).put("bytes_was", plan.bytes_was).put("bytes", plan.bytes)
    })?;
    if let Some(file) = plan.file.filter(|_| !args.keep_file)
        && plan.bytes < plan.bytes_was
        && file.bytes.saturating_sub(file.offset) / SECTOR_BYTES <= plan.bytes_was / SECTOR_BYTES
    {
        file.set_bytes(file.offset + plan.bytes)?;
    }
    Ok(done)
}

impl Plan {
    fn of(change: &Change, typed: &str) -> Result<Self, Failure> {
        let devices = change.filesystem().devices();
        let (device, typed) = chosen(&devices, typed)?;
        let file = image_file(change, device);
        let most = file.as_ref().map_or(device.device_bytes, |file| file.bytes - file.offset);
        let bytes = match typed {
            "max" => Some(most),
            typed => Size::parse("size", typed)?.of(device.total_bytes),
        };
        let bytes = bytes.map(|bytes| bytes / SECTOR_BYTES * SECTOR_BYTES);
        let bytes = bytes.filter(|bytes| file.is_some() || *bytes <= most).ok_or_else(|| {
            Failure::new("size", format!("the device has {}", pretty(most, Units::Binary)))
                .cure("ask for max, or for less")
        })?;
        Ok(Self { devid: device.id, bytes_was: device.total_bytes, bytes, file })
    }
}

/// The device that is meant, and the rest of what was typed.
fn chosen<'a, 't>(
    devices: &'a [DeviceInfo],
    typed: &'t str,
) -> Result<(&'a DeviceInfo, &'t str), Failure> {
    let (devid, size) = match typed.split_once(':') {
        Some((devid, size)) => (Some(devid), size),
        None => (None, typed),
    };
    let found = match (devid, devices) {
        (None, [only]) => Some(only),
        (None, _) => None,
        (Some(devid), _) => {
            let devid = devid.parse::<u64>().ok();
            devices.iter().find(|device| Some(device.id) == devid)
        }
    };
    let known: Vec<String> = devices.iter().map(|device| device.id.to_string()).collect();
    let found = found.ok_or_else(|| {
        let why = devid.map_or("of which device?".into(), |devid| format!("no device {devid}"));
        Failure::new("size", why).cure(format!("write DEVID:SIZE; there is {}", known.join(", ")))
    })?;
    Ok((found, size))
}

fn image_file(change: &Change, device: &DeviceInfo) -> Option<ImageFile> {
    let path = device.path.as_ref()?;
    let is_it = |named: &&DevicePath| named.path.display().to_string() == *path;
    let named = change.devices().iter().find(is_it)?;
    let meta = std::fs::metadata(&named.path).ok().filter(std::fs::Metadata::is_file)?;
    Some(ImageFile { path: named.path.clone(), offset: named.offset, bytes: meta.len() })
}

impl ImageFile {
    fn set_bytes(&self, bytes: u64) -> Result<(), Failure> {
        set_bytes(&self.path, bytes)
            .map_err(|error| Failure::io(self.path.display().to_string(), &error))
    }
}

/// Law 1: cuts a file back to what it was.
fn undo(grown: Option<&ImageFile>) {
    if let Some(file) = grown {
        // The failure that led here is the one to tell.
        set_bytes(&file.path, file.bytes).unwrap_or_default();
    }
}

fn set_bytes(path: &Path, bytes: u64) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(bytes)
}
