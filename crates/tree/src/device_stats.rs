//! The `DEV_STATS` items of the device tree: error counts of each device, kept on disk.
//!
//! Laws:
//!
//! 1. The counts of a device are read when the volume is opened, and written by each commit after
//!    they changed. They only grow until `btrfs device stats -z` resets them. On a volume of one
//!    device that is opened for reading they are not read: they would change no read.
//! 2. The first failed write or flush of a device is on disk before the commit that tolerated it
//!    returns: the contents of that device are doubtful from then on, for the next mount too
//!    (law 4 of `volume/tolerance.rs`).
//! 3. An unreadable device tree does not prevent opening a volume for reading.

use crate::committed::CommittedTrees;
use crate::error::TreeError;
use crate::transaction::commit::context::Commit;
use butternut_format::device_extent::{DEV_STATS, DeviceStats, RawDeviceStats};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{DevId, TreeId};
use butternut_volume::ErrorCounts;
use zerocopy::{FromZeros, IntoBytes};

/// The error counts of devices that a commit writes.
pub(crate) type Counts = Vec<(DevId, ErrorCounts)>;

/// Passes the recorded counts to the volume.
pub(crate) fn load(trees: &CommittedTrees) -> Result<(), TreeError> {
    let Some(tree) = trees.tree(TreeId::DEVICE)? else { return Ok(()) };
    let present = trees.volume().devices().into_iter().filter(|status| !status.is_missing());
    for status in present.filter(|status| !status.is_seed) {
        let Some(item) = tree.find(&key(status.devid))? else { continue };
        let stats = DeviceStats::check(item.data()).map_err(|refused| TreeError::Corrupt {
            tree: TreeId::DEVICE,
            source: refused.at(format_args!("item {}", key(status.devid))),
        })?;
        let counts = ErrorCounts {
            read_errors: stats.read_errors,
            write_errors: stats.write_errors,
            flush_errors: stats.flush_errors,
            corruption_errors: stats.corruption_errors,
            generation_errors: stats.generation_errors,
        };
        trees.volume().add_recorded_stats(status.devid, &counts);
    }
    Ok(())
}

impl Commit<'_> {
    /// Writes the counts that have changed, and returns them.
    pub(crate) fn write_device_stats(&self) -> Result<Counts, TreeError> {
        let changed = self.volume().stats_for_commit();
        for (devid, counts) in &changed {
            let mut raw = RawDeviceStats::new_zeroed();
            raw.write_errs.set(counts.write_errors);
            raw.read_errs.set(counts.read_errors);
            raw.flush_errs.set(counts.flush_errors);
            raw.corruption_errs.set(counts.corruption_errors);
            raw.generation_errs.set(counts.generation_errors);
            let tree = self.edit(TreeId::DEVICE)?;
            let key = key(*devid);
            // The item of a newer kernel may be longer: its further fields are kept.
            let mut item =
                tree.tree().find(&key)?.map_or_else(Vec::new, |item| item.data().to_vec());
            let known = raw.as_bytes();
            item.resize(item.len().max(known.len()), 0);
            for (to, from) in item.iter_mut().zip(known) {
                *to = *from;
            }
            tree.put(&key, &item)?;
        }
        Ok(changed)
    }
}

fn key(devid: DevId) -> Key {
    Key::new(DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0)
}
