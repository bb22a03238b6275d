//! Floor 6: an independent reader of everything on a volume, the oracle of the other crates.
//!
//! It walks every tree itself, over `volume`, and compares whatever the format says twice: extents
//! with who uses them, block groups with chunks and devices, free space with what is allocated,
//! checksums with files, names with inodes. It never uses `tree`, `file`, `names`, `space` or `fs`:
//! a mistake there must not be repeated here.
//!
//! [`check`] returns a [`Report`]; damage is in the report, and an error means that nothing could
//! be said at all. Nothing is ever written.
//!
//! Memory does not grow with what is right: both sides of a comparison are added up by hashes
//! (`hash`, `ledger`), and only where the sums differ does a second look collect what does not
//! fit. What is allocated and what has checksums are kept as joined ranges, and tree blocks with
//! 40 bytes each.

mod blocks;
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
mod names;
mod open;
mod options;
mod pass;
mod report;
mod roots;
mod run;
mod sink;
mod spans;
mod stray;
mod subvolume;
mod sum_items;
mod supers;
mod walk;

pub use error::CheckError;
pub use finding::{Finding, Kind, Severity};
pub use open::open_device;
pub use options::{CheckOptions, Progress};
pub use report::{Counts, Report};

use crate::blocks::Reader;
use crate::data::DataSurvey;
use crate::ledger::Ledger;
use crate::pass::Pass;
use crate::sink::Sink;
use crate::walk::{Route, Walker};
use butternut_device::Device;
use butternut_format::feature;
use butternut_format::units::TreeId;
use butternut_volume::Volume;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Checks the volume on these devices.
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
    let volume = open::volume(devices, options)?;
    let sink = Sink::new(options);
    look(&volume, &sink, pool.as_ref())?;
    let super_block = volume.super_block();
    let (generation, fsid) = (super_block.generation().0, super_block.fsid());
    Ok(Report { generation, fsid, ..sink.into_report() })
}

fn look(
    volume: &Volume,
    sink: &Sink<'_>,
    pool: Option<&rayon::ThreadPool>,
) -> Result<(), CheckError> {
    let reader = Reader::new(volume, sink);
    supers::check_copies(&reader);
    let ledger = Ledger::new();
    let pass = Pass::new(&reader, &ledger, pool);
    let chunk_tree = pass.chunk_tree();
    if !chunk_tree.is_lost {
        supers::check_system_chunks(&chunk_tree.chunks, &reader);
    }
    if !open::install(volume, &chunk_tree, sink)? {
        return Ok(());
    }
    device_tree::check_devices(&chunk_tree, &reader);
    pass.trees(&chunk_tree);
    if volume.super_block().has(feature::RAID56) {
        sink.note("parity of raid5 and raid6 is not checked");
    }
    drop(pass);
    settle(&reader, &ledger, pool);
    if sink.options().check_data_csum {
        data(&reader, pool);
    }
    Ok(())
}

/// Where references do not come out even, looks again for those that do not fit.
fn settle(reader: &Reader<'_>, ledger: &Ledger, pool: Option<&rayon::ThreadPool>) {
    let sink = reader.sink();
    if sink.lost.extents.load(Ordering::Relaxed) || sink.lost.users.load(Ordering::Relaxed) {
        sink.note("some tree blocks cannot be read, so references to extents are not compared");
        return;
    }
    let Some(second) = ledger.second() else { return };
    sink.mute(true);
    let pass = Pass::new(reader, &second, pool);
    let chunk_tree = pass.chunk_tree();
    pass.trees(&chunk_tree);
    drop(pass);
    sink.mute(false);
    second.explain(sink);
}

/// Reads all data that has checksums.
fn data(reader: &Reader<'_>, pool: Option<&rayon::ThreadPool>) {
    let sink = reader.sink();
    let nowhere = Ledger::new();
    sink.mute(true);
    let walker = Walker::new(reader, &nowhere, pool);
    let survey = roots::RootSurvey { reader, ledger: &nowhere };
    let root = reader.volume().super_block().root();
    let route = Route { is_unaccounted: true, ..Route::default() };
    let roots = walker.tree(&survey, root, &route);
    sink.mute(false);
    let sums = roots.find(TreeId::CHECKSUM).map(roots::Root::expected);
    if let Some(root) = sums {
        walker.tree(&DataSurvey::new(reader), root, &route);
    }
}
