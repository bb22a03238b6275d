//! Verifies the data of files that fs-verity has sealed, through the library: a second reader
//! beside the checker, which verifies descriptors and trees of hashes, and reads no files. Every
//! byte of each such file is read, and the library verifies it by the hashes up to the root hash in
//! the descriptor. Of a mounted volume, the process of the mount keeps what the last commit refers
//! to meanwhile.
//!
//! Data that does not match a checksum of the volume is left out, and so are files whose items the
//! checker has found damaged: it has reported them. A file may claim more of such data than a
//! volume can have, so all that is left out is bounded, and what is beyond that is a finding.
//!
//! What cannot be verified in one subvolume or file does not end the verification of the others.

use std::ops::ControlFlow;
use std::sync::Arc;

use butternut::device::Device;
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
    let mut skips_left = filesystem.inspect().super_block().raw().total_bytes.get() / BLOCK_BYTES;
    let subvolumes = filesystem.subvolumes()?;
    let kept = subvolumes.iter().filter(|info| info.id != TOP_LEVEL && !info.deleted);
    for subvolume in [TOP_LEVEL].into_iter().chain(kept.map(|info| info.id)) {
        let files = match described(filesystem, subvolume) {
            Ok(files) => files,
            Err(error) => {
                add_to(report, format!("tree {subvolume}"), "sealed files".to_owned(), &error);
                continue;
            }
        };
        for id in files {
            match filesystem.open_file(id) {
                Ok(file) => check_file(&file, &mut skips_left, report),
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

/// Reads a file, and reports its first block that does not agree. Leaves at most `skips_left`
/// blocks out that the checker has reported.
fn check_file(file: &File, skips_left: &mut u64, report: &mut Report) {
    if matches!(file.measure_verity(), Err(Error::NotSealed)) {
        return;
    }
    let mut part = vec![0; PART_BYTES];
    let mut at = 0;
    while at < file.len() {
        match file.read_uncached(at, &mut part) {
            Ok(0) => return,
            Ok(read) => at += read as u64,
            Err(Error::File(FileError::Data { .. } | FileError::NoChecksum { .. }))
                if *skips_left > 0 =>
            {
                *skips_left -= 1;
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
    let place = format!("tree {} inode {}", id.subvolume_id(), id.ino);
    if report.findings.iter().any(|found| is_of_items(found, &place)) {
        return;
    }
    let field = offset.map_or("sealed file".to_owned(), |at| format!("sealed data at {at}"));
    add_to(report, place, field, error);
}

fn add_to(report: &mut Report, place: String, field: String, error: &Error) {
    let kind = Kind::VerityData;
    if report.findings.len() >= CheckOptions::default().findings_max {
        report.findings_left_out += 1;
        return;
    }
    report.findings.push(Finding {
        severity: kind.severity(),
        kind,
        place,
        field,
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

#[cfg(test)]
mod tests {
    use super::*;
    use butternut::device::MemoryDevice;
    use butternut::{NewInode, VerityOptions};
    use butternut_mkfs::MkfsOptions;

    fn volume() -> Vec<Arc<dyn Device>> {
        let memory = MemoryDevice::new("memory", 256 << 20);
        butternut_mkfs::make(&memory, &MkfsOptions::default()).expect("a fresh volume");
        vec![Arc::new(memory)]
    }

    fn open(devices: &[Arc<dyn Device>]) -> Filesystem {
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        Filesystem::open_devices(devices.to_vec(), &options).expect("a volume")
    }

    /// A deleted subvolume, which cannot be read, is before the one with the sealed file.
    #[test]
    fn a_deleted_subvolume_does_not_hide_damage_in_others() {
        let devices = volume();
        let filesystem = open(&devices);
        let (root, new) = (filesystem.root(), NewInode::new(0o755));
        let deleted = filesystem.create_subvolume(root, b"deleted", &new).expect("a name");
        filesystem.create_subvolume(root, b"kept", &new).expect("a name");
        let file = filesystem.create_path(b"kept/file", &NewInode::new(0o644)).expect("a name");
        let bytes = b"what is sealed, and lies on the medium once".repeat(2000);
        file.write_all_at(0, &bytes).expect("space");
        let id = file.id();
        drop(file);
        let sealed = filesystem.open_file(id).expect("a file");
        sealed.enable_verity(&VerityOptions::default()).expect("a file without writers");
        drop(sealed);
        filesystem.sync().expect("a commit");
        filesystem.delete_subvolume(root, b"deleted").expect("an empty subvolume");
        filesystem.sync().expect("a commit");
        assert!(filesystem.subvolume(deleted).is_ok_and(|info| info.deleted));
        drop(filesystem);

        let mut report = Report::default();
        let options = MountOptions::default().ignore_log(true);
        let filesystem = Filesystem::open_devices(devices, &options).expect("a volume");
        check_filesystem(&filesystem, &mut report).expect("no error that ends the verification");
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{report:?}");
    }
}
