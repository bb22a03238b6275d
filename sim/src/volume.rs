//! New volumes in memory and in files, and the checker's verdict on a device.

use anyhow::{Result, bail};
use butternut_check::{CheckOptions, Kind};
use butternut_device::{Device, FileDevice, MemoryDevice, OpenDevice};
use butternut_mkfs::MkfsOptions;
use std::sync::Arc;
use tempfile::NamedTempFile;

/// Findings that a report lists.
const FINDINGS_SHOWN: usize = 12;

/// The offsets of the superblock copies, and their size.
const SUPER_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const SUPER_BYTES: u64 = 4096;

/// Makes an empty volume in memory.
pub fn fresh(bytes: u64, options: &MkfsOptions) -> Result<Arc<dyn Device>> {
    let device = MemoryDevice::new("memory", bytes);
    butternut_mkfs::make(&device, options)?;
    Ok(Arc::new(device))
}

/// A volume in a file, for tests that need `io_uring`. The file is deleted when this is dropped.
pub struct InFile {
    pub device: Arc<dyn Device>,
    _image: NamedTempFile,
}

/// Makes an empty volume in a file.
pub fn fresh_in_file(bytes: u64, options: &MkfsOptions) -> Result<InFile> {
    let image = NamedTempFile::new_in("/dev/shm")?;
    image.as_file().set_len(bytes)?;
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = FileDevice::open(image.path(), &how)?;
    butternut_mkfs::make(&device, options)?;
    Ok(InFile { device: Arc::new(device), _image: image })
}

/// Fails if the checker finds anything, including warnings.
pub fn check(device: &Arc<dyn Device>) -> Result<()> {
    check_but(device, |_| false)
}

/// Checks a volume after a crash. A crash may leave a superblock torn or older than another one;
/// the newest valid superblock counts.
pub fn check_crashed(device: &Arc<dyn Device>) -> Result<()> {
    check_but(device, |kind| matches!(kind, Kind::SuperCopy | Kind::SuperMirror))
}

fn check_but(device: &Arc<dyn Device>, is_excused: fn(Kind) -> bool) -> Result<()> {
    let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
    let mut report = butternut_check::check(vec![Arc::clone(device)], &options)?;
    // The device statistics record failures that a test injected; they are no damage.
    report.findings.retain(|found| found.kind != Kind::DeviceErrors && !is_excused(found.kind));
    if report.findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> =
        report.findings.iter().take(FINDINGS_SHOWN).map(ToString::to_string).collect();
    bail!("{} findings:\n{}", report.findings.len(), lines.join("\n"))
}

/// Returns whether a write is that of a superblock, which commits a transaction. Crash tests lose
/// and tear such writes on purpose.
pub fn is_super_block(offset: u64, bytes: u64) -> bool {
    bytes == SUPER_BYTES && SUPER_OFFSETS.contains(&offset)
}
