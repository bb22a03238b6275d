//! Floor 6: an offline checker. It reads everything on a volume, independently of the crates that
//! write it, and so serves as their oracle.
//!
//! It walks every tree itself, over `volume`, and compares all data that the format stores twice:
//! extent items with the references of trees and files, block groups with chunks and devices, free
//! space with allocated extents, checksums with file extents, names with inodes. It never uses
//! `tree`, `file`, `names`, `space` or `fs`, so that it does not repeat their mistakes. The one
//! exception is the usage of quota groups (`quotas`).
//!
//! [`check`] returns a [`Report`], which lists all damage. It returns an error only if it could
//! check nothing. It never writes.
//!
//! References and names take no memory while they are consistent: each side of a comparison is
//! compared by hashes (`hash`, `ledger`), and only if the sums differ a second pass collects
//! the mismatches. Allocated space and space with checksums are kept as merged ranges, tree blocks
//! with 40 bytes each, and files that fs-verity has sealed with 16 bytes each.

mod blocks;
mod checksum_items;
mod chunk_tree;
mod data;
mod device_tree;
mod error;
mod extent_items;
mod finding;
mod free_space;
mod group_tree;
mod hash;
mod inode;
mod ledger;
mod misplaced;
mod names;
mod open;
mod options;
mod pass;
mod quotas;
mod report;
mod roots;
mod run;
mod sealed;
mod sink;
mod spans;
mod subvolume;
mod supers;
mod verity;
mod walk;

pub use butternut_tree::{QgroupCount, QgroupUsage};
pub use error::CheckError;
pub use finding::{Finding, Kind, Severity};
pub use open::open_device;
pub use options::{CheckOptions, Progress};
pub use report::{Counts, Report, SealedFile};

use crate::blocks::Reader;
use crate::data::DataSurvey;
use crate::ledger::Ledger;
use crate::pass::Pass;
use crate::roots::{Root, Roots};
use crate::sink::Sink;
use crate::walk::{Route, Walker};
use butternut_device::Device;
use butternut_format::feature;
use butternut_format::units::TreeId;
use butternut_volume::Volume;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Checks the volume on these devices and returns its findings.
///
/// # Errors
/// The volume cannot be opened, or the threads cannot be started.
pub fn check(
    devices: Vec<Arc<dyn Device>>,
    options: &CheckOptions<'_>,
) -> Result<Report, CheckError> {
    let pool = match options.threads {
        1 => None,
        threads => {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
            Some(builder.build().map_err(CheckError::Threads)?)
        }
    };
    let volume = Arc::new(open::volume(devices, options)?);
    let sink = Sink::new(options);
    let (qgroups, sealed_files) = run(&volume, &sink, pool.as_ref())?;
    let super_block = volume.super_block();
    let (generation, fsid) = (super_block.generation().0, super_block.fsid());
    Ok(Report { qgroups, sealed_files, generation, fsid, ..sink.into_report() })
}

/// Runs all checks. Returns the usage of quota groups, where it was counted, and the sealed files
/// whose items are whole.
fn run(
    volume: &Arc<Volume>,
    sink: &Sink<'_>,
    pool: Option<&rayon::ThreadPool>,
) -> Result<(Vec<QgroupCount>, Vec<SealedFile>), CheckError> {
    let reader = Reader::new(volume, sink);
    if sink.options().held_since.is_none() {
        supers::check_copies(&reader);
    }
    let ledger = Ledger::new();
    let pass = Pass::new(&reader, &ledger, pool);
    let chunk_tree = pass.chunk_tree();
    if !chunk_tree.is_lost {
        supers::check_system_chunks(&chunk_tree.chunks, &reader);
    }
    if !open::install(volume, &chunk_tree, sink)? {
        return Ok((Vec::new(), Vec::new()));
    }
    device_tree::check_devices(&chunk_tree, &reader);
    pass.trees(&chunk_tree);
    if volume.super_block().has(feature::RAID56) {
        sink.note("parity of raid5 and raid6 is not checked");
    }
    drop(pass);
    let has_same_references = compare_references(&reader, &ledger, pool);
    let qgroups = quotas::check(volume, sink, has_same_references);
    let sealed = sink.take_sealed();
    if !sealed.is_empty() {
        if !volume.super_block().has_compat_ro(feature::VERITY) {
            let want = format_args!("VERITY, for {} sealed files", sealed.len());
            sink.add(Kind::VerityItems, "superblock", "compat_ro_flags", "without VERITY", want);
        }
        sealed::check(&sealed, &root_tree(&reader, pool), &reader, pool);
    }
    if sink.options().check_data_csum {
        verify_data(&reader, pool);
    }
    Ok((qgroups, sealed))
}

/// Compares references with extent items. If the sums of the first pass differ, a second pass
/// collects the references that do not match. Returns whether all references match.
fn compare_references(
    reader: &Reader<'_>,
    ledger: &Ledger,
    pool: Option<&rayon::ThreadPool>,
) -> bool {
    let sink = reader.sink();
    if sink.lost.extents.load(Ordering::Relaxed) || sink.lost.users.load(Ordering::Relaxed) {
        sink.note("some tree blocks cannot be read, so references to extents are not compared");
        return false;
    }
    let Some(second) = ledger.second_pass() else { return true };
    sink.mute(true);
    let pass = Pass::new(reader, &second, pool);
    let chunk_tree = pass.chunk_tree();
    pass.trees(&chunk_tree);
    drop(pass);
    sink.mute(false);
    second.report(sink);
    false
}

/// The route of a walk that counts no references.
const UNACCOUNTED: Route = Route { removed_to: None, is_unaccounted: true };

/// Reads the root tree again, which was checked before.
fn root_tree(reader: &Reader<'_>, pool: Option<&rayon::ThreadPool>) -> Roots {
    let (sink, unused) = (reader.sink(), Ledger::new());
    sink.mute(true);
    let walker = Walker::new(reader, &unused, pool);
    let survey = roots::RootSurvey { reader, ledger: &unused };
    let roots = walker.tree(&survey, reader.volume().super_block().root(), &UNACCOUNTED);
    sink.mute(false);
    roots
}

/// Reads and verifies all data that has checksums.
fn verify_data(reader: &Reader<'_>, pool: Option<&rayon::ThreadPool>) {
    let sums = root_tree(reader, pool).find(TreeId::CHECKSUM).map(Root::expected);
    if let Some(root) = sums {
        let unused = Ledger::new();
        let walker = Walker::new(reader, &unused, pool);
        walker.tree(&DataSurvey::new(reader), root, &UNACCOUNTED);
    }
}
