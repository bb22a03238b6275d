//! What a file or device holds that is not a btrfs volume, or not one at this offset.
//!
//! 1. Everything is a hint for a message: what cannot be read is left out.
//! 2. Partitions with volumes are named before a filesystem at the place, and other partitions
//!    where none is. A volume without a partition is looked for last, where partitions commonly
//!    begin.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use butternut::device::partitions::PartitionTable;
use butternut::format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut::{DevicePath, VolumeError};
use butternut_mkfs::Signature;

use super::arg::VolumeArg;
use super::{partitions, stream};
use crate::commands::mounted::is_plain_file;
use crate::failure::{Failure, hints};
use crate::output::size::exact;

/// The first partition began here when disks had cylinders, in bytes.
const OLD_START: u64 = 63 * 512;

/// What to do if a file of a mounted volume was named to select that volume.
const IN_A_MOUNT: &str = "to use the mounted volume that the file is in, name a directory of it";

/// Magic numbers at the start of files that contain something else, and what to do with them.
const CONTAINERS: [(&[u8], &str); 9] = [
    (b"QFI\xfb", "it is a qcow2 image: `qemu-img convert -O raw` makes a raw one"),
    (b"KDMV", "it is a VMDK image: `qemu-img convert -O raw` makes a raw one"),
    (b"vhdxfile", "it is a VHDX image: `qemu-img convert -O raw` makes a raw one"),
    (b"conectix", "it is a VHD image: `qemu-img convert -O raw` makes a raw one"),
    (b"<<< ", "it is a VDI image: `qemu-img convert -O raw` makes a raw one"),
    (b"\x1f\x8b", "it is compressed: gunzip(1) decompresses it"),
    (b"\xfd7zXZ\0", "it is compressed: unxz(1) decompresses it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed: unzstd(1) decompresses it"),
    (b"PK\x03\x04", "it is a zip archive: unzip(1) extracts it"),
];

/// Says what the devices hold in the failure of an open that found no btrfs volume.
pub(crate) fn explain(arg: &VolumeArg, failure: Failure, error: &VolumeError) -> Failure {
    if !hints::is_not_btrfs(error) {
        return failure;
    }
    if let Some(found) = arg.devices.iter().find_map(describe) {
        return failure.hint(found);
    }
    if arg.devices.iter().any(|device| is_plain_file(device.path.as_os_str())) {
        return failure.hint(format!("{}; {IN_A_MOUNT}", hints::NOT_BTRFS));
    }
    failure
}

/// Describes a device that holds no btrfs volume at its place (law 2).
fn describe(device: &DevicePath) -> Option<String> {
    let path = &device.path;
    let here = partitions::contents_of(path, device.offset, device.bytes);
    if here.as_ref().is_some_and(Signature::is_btrfs) {
        return None;
    }
    if let Some(container) = container(path) {
        return Some(container.to_owned());
    }
    let table = PartitionTable::of_path(path).ok();
    let listed = table.as_ref().and_then(|table| partitions::list(path, table));
    let is_filesystem = here.as_ref().is_some_and(|here| !here.is_partition_table());
    match (listed, here) {
        (Some(listed), _) if listed.has_volume || !is_filesystem => Some(listed.text),
        (_, Some(here)) => Some(format!("it holds {here}")),
        _ => volume_elsewhere(device),
    }
}

/// Describes a file whose first bytes say that its contents are inside another format.
fn container(path: &Path) -> Option<&'static str> {
    let mut front = [0; 8];
    let read = File::open(path).ok()?.read_at(&mut front, 0).ok()?;
    let found = CONTAINERS.iter().find(|(magic, _)| front[..read].starts_with(magic));
    found.map(|(_, what)| *what)
}

/// Names the place of a volume that begins where partitions commonly do.
fn volume_elsewhere(device: &DevicePath) -> Option<String> {
    let starts = [0, OLD_START].into_iter().chain((1..=8).map(|number| number << 20));
    let is_volume = |start: &u64| {
        let found = partitions::contents_of(&device.path, *start, None);
        found.is_some_and(|found| found.is_btrfs())
    };
    let start = starts.filter(|start| *start != device.offset).find(is_volume)?;
    let how = match (start, device.bytes) {
        (0, None) => "leave out ?offset".to_owned(),
        (0, Some(_)) => "leave out ?partition".to_owned(),
        _ => format!("add ?offset={}", exact(start)),
    };
    Some(format!("a btrfs volume begins at byte {start}: {how}"))
}

/// Returns whether a regular file is the image of a volume or of a disk, or a send stream.
pub(crate) fn is_volume(path: &Path) -> bool {
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return false;
    }
    let device = DevicePath { path: path.to_path_buf(), offset: 0, bytes: None };
    let found = partitions::contents_of(path, 0, None);
    found.is_some_and(|found| found.is_btrfs() || found.is_partition_table())
        || stream::is_stream(&device)
}

/// Returns a note for each device of an open volume whose first superblock is damaged: a copy is in
/// use. A send stream has none.
pub(crate) fn notes(devices: &[DevicePath]) -> Vec<String> {
    let damage = |device: &DevicePath| {
        if stream::is_stream(device) {
            return None;
        }
        let mut block = vec![0; SUPER_BLOCK_BYTES];
        let at = device.offset.saturating_add(COPY_OFFSETS[0]);
        File::open(&device.path).ok()?.read_exact_at(&mut block, at).ok()?;
        let refused = SuperBlock::check(&block, 0).err()?;
        let path = device.path.display();
        Some(format!(
            "{path}: note: the first superblock is damaged, and a copy of it is used: {refused} \
             (the next change of the volume writes it again)"
        ))
    };
    devices.iter().filter_map(damage).collect()
}
