//! Opens devices and the volume on them.

use crate::chunk_tree::ChunkTree;
use crate::error::CheckError;
use crate::finding::Kind;
use crate::options::CheckOptions;
use crate::sink::Sink;
use butternut_device::{Device, FileDevice, OpenDevice, Sharing};
use butternut_sys::holder;
use butternut_volume::{OpenOptions, Volume, VolumeError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often the superblocks of a volume that is written to are read, and the time in between.
const ATTEMPTS_MAX: u32 = 200;
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a device or image file for reading. The volume begins at byte `offset`, and has at most
/// `bytes` bytes: `None` means up to the end of the file.
///
/// Reads go through the kernel's page cache.
///
/// # Errors
/// The device cannot be opened, or, without `force`, it is mounted for writing or locked by another
/// process.
pub fn open_device(
    path: &Path,
    offset: u64,
    bytes: Option<u64>,
    force: bool,
) -> Result<Arc<dyn Device>, CheckError> {
    let device = || path.display().to_string();
    if let Some(holder) = holder::writing_mount(path).filter(|_| !force) {
        return Err(CheckError::Mounted { device: device(), holder });
    }
    let sharing = if force { Sharing::Unlocked } else { Sharing::Locked };
    let how = OpenDevice { offset, bytes, direct: false, sharing, ..OpenDevice::default() };
    let device = FileDevice::open(path, &how).map_err(|source| CheckError::Device { source })?;
    Ok(Arc::new(device))
}

/// Opens the volume. A commit writes the superblocks one after another, so those of a volume that
/// is written to are read until they are of one commit that is kept.
pub(crate) fn volume(
    devices: Vec<Arc<dyn Device>>,
    options: &CheckOptions<'_>,
) -> Result<Volume, CheckError> {
    let Some(since) = options.held_since else { return open_once(devices, options) };
    for _ in 0..ATTEMPTS_MAX {
        let volume = open_once(devices.clone(), options);
        if let Ok(volume) = volume
            && volume.super_block().generation().0 >= since
            && !volume.devices().iter().any(|device| device.is_stale)
        {
            return Ok(volume);
        }
        std::thread::sleep(PAUSE);
    }
    Err(CheckError::Changing { since })
}

fn open_once(
    devices: Vec<Arc<dyn Device>>,
    options: &CheckOptions<'_>,
) -> Result<Volume, CheckError> {
    let how = OpenOptions {
        degraded: options.degraded,
        allow_short_devices: true,
        ..OpenOptions::default()
    };
    Volume::open(devices, how).map_err(CheckError::Volume)
}

/// Installs devices and chunks in the volume. Returns whether the other trees can be read.
pub(crate) fn install(
    volume: &Volume,
    chunk_tree: &ChunkTree,
    sink: &Sink<'_>,
) -> Result<bool, CheckError> {
    if chunk_tree.is_lost {
        sink.note("the chunk tree cannot be read, so nothing else was checked");
        return Ok(false);
    }
    for device in &chunk_tree.devices {
        volume.install_device(device);
    }
    for chunk in &chunk_tree.chunks {
        if let Err(error) = volume.install_chunk(chunk.logical, chunk) {
            return refused(error, sink);
        }
    }
    match volume.seal() {
        Ok(()) => Ok(true),
        Err(error) => refused(error, sink),
    }
}

/// Reports an inconsistent chunk as damage. Any other error ends the check.
fn refused(error: VolumeError, sink: &Sink<'_>) -> Result<bool, CheckError> {
    if let VolumeError::Chunk(refused) = &error {
        sink.refused(Kind::ChunkLayout, "chunk tree", refused);
        sink.note("the chunks are inconsistent, so nothing else was checked");
        return Ok(false);
    }
    Err(CheckError::Volume(error))
}
