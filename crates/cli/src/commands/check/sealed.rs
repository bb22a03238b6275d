//! Verifies the data of files that fs-verity has sealed, through the library: a second reader
//! beside the checker, which verifies descriptors and trees of hashes, and reads no files. Every
//! byte of each such file is read, and the library verifies it by the hashes up to the root hash in
//! the descriptor. Of a mounted volume, the process of the mount keeps what the last commit refers
//! to meanwhile.
//!
//! 1. The files are those whose items the checker has found whole: the volume has all hashes of
//!    such a file, so its size is bounded by what the volume has. Damaged items of other files are
//!    findings of the checker. A file of several snapshots that has the same descriptor and the
//!    same extents in all of them is read once.
//! 2. Data that does not match a checksum of the volume, or has none where it should, is left out:
//!    the checker has reported it. After [`BAD_BLOCKS_MAX`] such blocks, and where checksums are
//!    missing, what follows is left out, too, up to as many bytes as could not be read before it.
//!    So an extent of any size that a damaged volume claims takes few reads. Of a file without
//!    checksums, the checker reads nothing, so what cannot be read is reported here.
//! 3. What cannot be verified in one file does not end the verification of the others.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use butternut::device::Device;
use butternut::format::inode::InodeFlags;
use butternut::{Error, ExtentKind, File, FileError, FileId, Filesystem, MountOptions, Result};
use butternut_check::{CheckOptions, Finding, Kind, Report};

use crate::args::GlobalArgs;
use crate::failure::chain;

/// Maximum number of bytes that are read at a time.
const PART_BYTES: usize = 1 << 20;
/// What is read behind a byte that cannot be read, and skipped at least: the largest block that is
/// hashed.
const BLOCK_BYTES: usize = 4096;
/// Blocks without good data, one after the other, that are skipped one by one (law 2).
const BAD_BLOCKS_MAX: u32 = 1024;

/// Adds what the sealed files of a volume have to a report, if it has any.
pub(super) fn check(global: &GlobalArgs, devices: Vec<Arc<dyn Device>>, report: &mut Report) {
    if report.sealed_files.is_empty() {
        return;
    }
    // As the checker, which reads the last commit.
    let options = MountOptions::default().degraded(global.degraded).ignore_log(true);
    match Filesystem::open_devices(devices, &options) {
        Ok(filesystem) => check_files(&filesystem, report),
        // The checker has said what is wrong with the volume.
        Err(error) => {
            report.notes.push(format!("sealed files are not verified: {}", chain(&error)));
        }
    }
    report.findings.sort();
}

fn check_files(filesystem: &Filesystem, report: &mut Report) {
    let mut seen = HashSet::new();
    for sealed in std::mem::take(&mut report.sealed_files) {
        let id = FileId::new(sealed.tree, sealed.ino);
        match filesystem.open_file(id) {
            Ok(file) if contents_of(&file).is_none_or(|contents| seen.insert(contents)) => {
                check_file(&file, report);
            }
            Ok(_) => {}
            Err(error) => add(report, id, None, &error),
        }
    }
}

/// Returns a hash of what the data of a file depends on. `None` if it cannot be read, or if the
/// data is in the items of the file.
fn contents_of(file: &File) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    file.measure_verity().ok()?.digest.hash(&mut hasher);
    for extent in file.extents(0..file.len()) {
        let extent = extent.ok().filter(|it| !matches!(it.kind, ExtentKind::Inline { .. }))?;
        extent.hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Reads a file, and reports its first block that does not agree.
fn check_file(file: &File, report: &mut Report) {
    if matches!(file.measure_verity(), Err(Error::NotSealed)) {
        return;
    }
    let has_checksums = file.metadata().is_ok_and(|stat| stat.flags & InodeFlags::NODATASUM.0 == 0);
    let bad = verify(file.len(), has_checksums, &mut |at, part| file.read_uncached(at, part));
    if let Some((at, error)) = bad {
        add(report, file.id(), Some(at), &error);
    }
}

/// Reads a file of `len` bytes in parts, except for data that the checker has reported (law 2).
/// Returns the first byte that cannot be read for another reason, and the error.
fn verify(
    len: u64,
    has_checksums: bool,
    read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
) -> Option<(u64, Error)> {
    let mut part = vec![0; PART_BYTES];
    let (mut at, mut bytes, mut skipped) = (0_u64, PART_BYTES, BLOCK_BYTES as u64);
    let mut bad_blocks = 0;
    while at < len {
        match read(at, &mut part[..bytes]) {
            Ok(0) => return None,
            Ok(read) => {
                at += read as u64;
                (bytes, skipped) = (PART_BYTES.min(2 * bytes), BLOCK_BYTES as u64);
                bad_blocks = 0;
            }
            Err(Error::File(FileError::Data { .. }))
                if has_checksums && bad_blocks < BAD_BLOCKS_MAX =>
            {
                bad_blocks += 1;
                at = (at - at % BLOCK_BYTES as u64).saturating_add(BLOCK_BYTES as u64);
                bytes = BLOCK_BYTES;
            }
            Err(Error::File(FileError::Data { .. } | FileError::NoChecksum { .. }))
                if has_checksums =>
            {
                at = (at - at % BLOCK_BYTES as u64).saturating_add(skipped);
                (bytes, skipped) = (BLOCK_BYTES, skipped.saturating_mul(2));
            }
            Err(error) => return Some((at, error)),
        }
    }
    None
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
    use butternut::format::units::{Ino, TreeId};
    use butternut::{NewInode, SnapshotAccess, VerityOptions};
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

    /// Makes the file `kept/file` in a subvolume, and seals it.
    fn seal(filesystem: &Filesystem, bytes: &[u8]) {
        filesystem.create_subvolume(filesystem.root(), b"kept", &NewInode::new(0o755)).unwrap();
        let file = filesystem.create_path(b"kept/file", &NewInode::new(0o644)).unwrap();
        file.write_all_at(0, bytes).unwrap();
        let id = file.id();
        drop(file);
        let sealed = filesystem.open_file(id).unwrap();
        sealed.enable_verity(&VerityOptions::default()).expect("a file without writers");
    }

    /// Returns the report on a volume, and the number of bytes that were read of its sealed files.
    fn checked(devices: &[Arc<dyn Device>]) -> (Report, u64) {
        let options = CheckOptions { threads: 1, ..CheckOptions::default() };
        let mut report = butternut_check::check(devices.to_vec(), &options).expect("a volume");
        let options = MountOptions::default().ignore_log(true);
        let filesystem = Filesystem::open_devices(devices.to_vec(), &options).expect("a volume");
        let read = || devices[0].counters().now().read_bytes;
        let before = read();
        check_files(&filesystem, &mut report);
        let bytes = read() - before;
        (report, bytes)
    }

    /// A deleted subvolume, which cannot be read, is before the one with the sealed file.
    #[test]
    fn a_deleted_subvolume_does_not_hide_damage_in_others() {
        let devices = volume();
        let filesystem = open(&devices);
        let (root, new) = (filesystem.root(), NewInode::new(0o755));
        let deleted = filesystem.create_subvolume(root, b"deleted", &new).expect("a name");
        let bytes = b"what is sealed, and lies on the medium once".repeat(2000);
        seal(&filesystem, &bytes);
        filesystem.sync().expect("a commit");
        filesystem.delete_subvolume(root, b"deleted").expect("an empty subvolume");
        filesystem.sync().expect("a commit");
        assert!(filesystem.subvolume(deleted).is_ok_and(|info| info.deleted));
        drop(filesystem);

        let (report, read) = checked(&devices);
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{report:?}");
        assert!(read >= bytes.len() as u64, "the file was read");
    }

    #[test]
    fn a_file_that_snapshots_share_is_read_once() {
        let devices = volume();
        let filesystem = open(&devices);
        let bytes = vec![7; 8 << 20];
        seal(&filesystem, &bytes);
        let (root, new) = (filesystem.root(), SnapshotAccess::ReadOnly);
        let kept = filesystem.lookup(root, b"kept").unwrap().subvolume_id();
        for name in [b"1", b"2", b"3", b"4", b"5", b"6"] {
            filesystem.snapshot(kept, root, name, new).unwrap();
        }
        filesystem.sync().expect("a commit");
        drop(filesystem);
        let (report, read) = checked(&devices);
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{report:?}");
        let bytes = bytes.len() as u64;
        assert!((bytes..2 * bytes).contains(&read), "{read}");
    }

    fn no_data(offset: u64) -> Error {
        let logical = butternut::format::units::Logical(0);
        let (tree, ino) = (TreeId(5), Ino(257));
        Error::File(FileError::NoChecksum { tree, ino, offset, logical })
    }

    fn bad_data(offset: u64) -> Error {
        let source = Arc::new(butternut::VolumeError::NoDevices);
        Error::File(FileError::Data { tree: TreeId(5), ino: Ino(257), offset, source })
    }

    #[test]
    fn an_extent_of_any_size_without_data_takes_few_reads() {
        let mut reads = 0;
        let verified = verify(1 << 62, true, &mut |at, _| {
            reads += 1;
            Err(no_data(at))
        });
        assert!(verified.is_none() && reads < 64, "{reads}");
        let mut reads = 0;
        let verified = verify(1 << 62, true, &mut |at, _| {
            reads += 1;
            Err(bad_data(at))
        });
        assert!(verified.is_none() && reads < BAD_BLOCKS_MAX + 64, "{reads}");
    }

    #[test]
    fn what_the_checker_does_not_read_is_reported() {
        let mut read = |at: u64, _: &mut [u8]| match at {
            0 | 4096 => Err(bad_data(at)),
            _ => Err(Error::NotSealed),
        };
        let verified = verify(1 << 20, false, &mut read);
        assert!(matches!(verified, Some((0, Error::File(FileError::Data { .. })))), "{verified:?}");
        // The block behind two bad ones is read.
        let verified = verify(1 << 20, true, &mut read);
        assert!(matches!(verified, Some((8192, Error::NotSealed))), "{verified:?}");
    }

    #[test]
    fn data_beside_damage_is_read() {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let len = 8 << 20;
        let is_damaged = |at: u64| (at / BLOCK).is_multiple_of(5);
        let (mut good, mut asked) = (0, 0);
        let verified = verify(len, true, &mut |at, part| {
            asked += part.len() as u64;
            let end = (at + part.len() as u64).min(len);
            let mut blocks = (at / BLOCK..end.div_ceil(BLOCK)).map(|block| block * BLOCK);
            let read = blocks.find(|at| is_damaged(*at)).unwrap_or(end).saturating_sub(at);
            good += read;
            if read == 0 { Err(no_data(at)) } else { Ok(usize::try_from(read).unwrap()) }
        });
        assert!(verified.is_none());
        assert_eq!(
            good,
            (0..len / BLOCK).filter(|at| !is_damaged(at * BLOCK)).count() as u64 * BLOCK
        );
        assert!(asked < 4 * len, "{asked}");
        let verified = verify(len, true, &mut |at, part| match at {
            0 => Ok(part.len()),
            _ => Err(Error::NotSealed),
        });
        assert!(matches!(verified, Some((at, Error::NotSealed)) if at == PART_BYTES as u64));
    }
}
