//! Fresh volumes in memory and in files, and the oracle's word on what lies on a device.

use anyhow::{Result, bail};
use butternut_check::{CheckOptions, Kind};
use butternut_device::{Device, FileDevice, MemoryDevice, OpenDevice};
use butternut_mkfs::MkfsOptions;
use std::sync::Arc;
use tempfile::NamedTempFile;

/// So many findings are told.
const FINDINGS_SHOWN: usize = 12;

/// Where the copies of a superblock lie, and how long they are.
const SUPER_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const SUPER_BYTES: u64 = 4096;

/// An empty volume.
pub fn fresh(bytes: u64, options: &MkfsOptions) -> Result<Arc<dyn Device>> {
    let device = MemoryDevice::new("memory", bytes);
    butternut_mkfs::make(&device, options)?;
    Ok(Arc::new(device))
}

/// A volume in a file, which a ring reaches; the file goes with this.
pub struct InFile {
    pub device: Arc<dyn Device>,
    _image: NamedTempFile,
}

/// An empty volume in a file.
pub fn fresh_in_file(bytes: u64, options: &MkfsOptions) -> Result<InFile> {
    let image = NamedTempFile::new_in("/dev/shm")?;
    image.as_file().set_len(bytes)?;
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = FileDevice::open(image.path(), &how)?;
    butternut_mkfs::make(&device, options)?;
    Ok(InFile { device: Arc::new(device), _image: image })
}

/// Fails with what the checker found, warnings too: nothing of ours is a little wrong.
pub fn check(device: &Arc<dyn Device>) -> Result<()> {
    check_but(device, |_| false)
}

/// The same after a crash, which may leave a superblock torn or older than another: what counts is
/// that the newest whole one is there.
pub fn check_crashed(device: &Arc<dyn Device>) -> Result<()> {
    check_but(device, |kind| matches!(kind, Kind::SuperCopy | Kind::SuperMirror))
}

fn check_but(device: &Arc<dyn Device>, is_excused: fn(Kind) -> bool) -> Result<()> {
    let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
    let mut report = butternut_check::check(vec![Arc::clone(device)], &options)?;
    // Failures that a test injected are on record in the volume, and are no damage.
    report.findings.retain(|found| found.kind != Kind::DeviceErrors && !is_excused(found.kind));
    if report.findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> =
        report.findings.iter().take(FINDINGS_SHOWN).map(ToString::to_string).collect();
    bail!("{} findings:\n{}", report.findings.len(), lines.join("\n"))
}

/// Whether a write is one of a superblock: the instant of truth, and so the one to lose and tear.
pub fn is_super_block(offset: u64, bytes: u64) -> bool {
    bytes == SUPER_BYTES && SUPER_OFFSETS.contains(&offset)
}
