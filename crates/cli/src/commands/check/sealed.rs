//! Verifies the data of files that fs-verity has sealed, through the library: a second reader
//! beside the checker, which verifies descriptors and trees of hashes, and reads no files. Every
//! byte of each such file is read, and the library verifies it by the hashes up to the root hash in
//! the descriptor. Of a mounted volume, the process of the mount keeps what the last commit refers
//! to meanwhile.
//!
//! Data that does not match a checksum of the volume is left out, and so are files whose items the
//! checker has found damaged: it has reported them.

use std::ops::ControlFlow;
use std::sync::Arc;

use butternut::device::Device;
use butternut::format::feature;
use butternut::format::key::{ItemType, Key};
use butternut::format::units::TreeId;
use butternut::inspect::TreeSearch;
use butternut::{Error, File, FileError, FileId, Filesystem, MountOptions, Result, TOP_LEVEL};
use butternut_check::{CheckOptions, Finding, Kind, Report};

use crate::args::GlobalArgs;
use crate::failure::chain;

/// Bytes that are read at a time.
const PART_BYTES: usize = 1 << 20;
/// What is skipped behind a byte that cannot be read: the largest block that is hashed.
const BLOCK_BYTES: u64 = 4096;

/// Adds what the sealed files of a volume have to a report, if it has any.
pub(super) fn check(global: &GlobalArgs, devices: Vec<Arc<dyn Device>>, report: &mut Report) {
    // As the checker, which reads the last commit.
    let options = MountOptions::default().degraded(global.degraded).ignore_log(true);
    let checked = Filesystem::open_devices(devices, &options)
        .and_then(|filesystem| check_filesystem(&filesystem, report));
    if let Err(error) = checked {
        // The checker has said what is wrong with the volume.
        report.notes.push(format!("sealed files are not verified: {}", chain(&error)));
    }
    report.findings.sort();
}

fn check_filesystem(filesystem: &Filesystem, report: &mut Report) -> Result<()> {
    if !filesystem.inspect().super_block().has_compat_ro(feature::VERITY) {
        return Ok(());
    }
    let subvolumes = filesystem.subvolumes()?;
    let ids = subvolumes.iter().map(|info| info.id).filter(|id| *id != TOP_LEVEL);
    for subvolume in [TOP_LEVEL].into_iter().chain(ids) {
        for id in described(filesystem, subvolume)? {
            match filesystem.open_file(id) {
                Ok(file) => check_file(&file, report),
                Err(error) => add(report, id, None, &error),
            }
        }
    }
    Ok(())
}

/// Returns the files of a subvolume that have a descriptor.
fn described(filesystem: &Filesystem, subvolume: u64) -> Result<Vec<FileId>> {
    let search = TreeSearch {
        tree: TreeId(subvolume),
        keys: Key::default()..=Key::new(u64::MAX, ItemType(u8::MAX), u64::MAX),
        generations: 0..=u64::MAX,
    };
    let mut found = Vec::new();
    filesystem.inspect().search(&search, &mut |item| {
        let key = item.key;
        if key.item_type == ItemType::VERITY_DESC_ITEM && key.offset == 0 {
            found.push(FileId::new(subvolume, key.objectid));
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Reads a file, and reports its first block that does not agree.
fn check_file(file: &File, report: &mut Report) {
    if matches!(file.measure_verity(), Err(Error::NotSealed)) {
        return;
    }
    let mut part = vec![0; PART_BYTES];
    let mut at = 0;
    while at < file.len() {
        match file.read_uncached(at, &mut part) {
            Ok(0) => return,
            Ok(read) => at += read as u64,
            Err(Error::File(FileError::Data { .. } | FileError::NoChecksum { .. })) => {
                at = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            }
            Err(error) => {
                add(report, file.id(), Some(at), &error);
                return;
            }
        }
    }
}

fn add(report: &mut Report, id: FileId, offset: Option<u64>, error: &Error) {
    let kind = Kind::VerityData;
    let place = format!("tree {} inode {}", id.subvolume_id(), id.ino);
    if report.findings.iter().any(|found| is_of_items(found, &place)) {
        return;
    }
    if report.findings.len() >= CheckOptions::default().findings_max {
        report.findings_left_out += 1;
        return;
    }
    report.findings.push(Finding {
        severity: kind.severity(),
        kind,
        place,
        field: offset.map_or("sealed file".to_owned(), |at| format!("sealed data at {at}")),
        have: chain(error),
        want: "what its hashes say".to_owned(),
    });
}

/// Returns whether the checker has found the items of a file damaged, whose data cannot be verified
/// then.
fn is_of_items(found: &Finding, place: &str) -> bool {
    let kinds = [Kind::VerityItems, Kind::VerityDescriptor, Kind::VerityHashes];
    let rest = found.place.strip_prefix(place);
    kinds.contains(&found.kind) && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}
