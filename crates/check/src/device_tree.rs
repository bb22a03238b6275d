//! Checks devices: device extents against the stripes of chunks, device items against both, and the
//! superblock against device items.

use crate::blocks::{Block, Reader};
use crate::chunk_tree::ChunkTree;
use crate::finding::Kind;
use crate::misplaced::misplaced;
use crate::sink::Sink;
use crate::walk::Survey;
use butternut_format::device_extent::{DEV_STATS, DeviceExtent, DeviceStats};
use butternut_format::key::ItemType;
use butternut_format::units::{DevId, Logical, TreeId};
use butternut_format::uuid::Uuid;
use butternut_volume::Chunks;

/// Contents of the device tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceTree {
    extents: Vec<DeviceExtent>,
    stats: Vec<(DevId, DeviceStats)>,
    is_lost: bool,
}

pub(crate) struct DeviceSurvey<'a> {
    pub(crate) reader: &'a Reader<'a>,
}

/// A stripe of a chunk, or the device extent of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stripe {
    devid: DevId,
    physical: u64,
    bytes: u64,
    chunk: Logical,
}

impl Survey for DeviceSurvey<'_> {
    type Out = DeviceTree;

    fn leaf(&self, leaf: &Block<'_>, _is_first: bool) -> DeviceTree {
        let mut out = DeviceTree::default();
        for slot in 0..leaf.len() {
            let Some((key, data)) = leaf.item(slot) else { continue };
            match key.item_type {
                ItemType::DEV_EXTENT => out.extents.extend(DeviceExtent::check(key, data)),
                ItemType::PERSISTENT_ITEM => {
                    if key.objectid == DEV_STATS
                        && let Ok(stats) = DeviceStats::check(data)
                    {
                        out.stats.push((DevId(key.offset), stats));
                    }
                }
                ItemType::DEV_REPLACE => {}
                _ => misplaced(self.reader, TreeId::DEVICE, leaf, key),
            }
        }
        out
    }

    fn join(&self, left: &mut DeviceTree, right: DeviceTree) {
        left.extents.extend(right.extents);
        left.stats.extend(right.stats);
        left.is_lost |= right.is_lost;
    }

    fn lost(&self) -> DeviceTree {
        DeviceTree { is_lost: true, ..DeviceTree::default() }
    }
}

/// Checks that device extents and stripes match, do not overlap and end inside their device.
pub(crate) fn check(tree: &DeviceTree, chunk_tree: &ChunkTree, chunks: &Chunks, sink: &Sink<'_>) {
    if tree.is_lost {
        return;
    }
    let mut stripes: Vec<Stripe> = chunks
        .iter()
        .flat_map(|chunk| {
            let bytes = chunk.stripe_bytes();
            chunk.stripes().iter().map(move |place| Stripe {
                devid: place.devid,
                physical: place.physical.0,
                bytes,
                chunk: chunk.logical(),
            })
        })
        .collect();
    stripes.sort_unstable();
    let mut extents: Vec<Stripe> = tree
        .extents
        .iter()
        .map(|extent| Stripe {
            devid: extent.devid,
            physical: extent.offset.0,
            bytes: extent.bytes,
            chunk: extent.chunk,
        })
        .collect();
    extents.sort_unstable();
    check_overlaps(&extents, sink);
    for extent in &extents {
        if stripes.binary_search(extent).is_err() {
            let (place, what) = (place_of(extent), "none of this place and length");
            let want = format!("one of chunk {}", extent.chunk);
            sink.add(Kind::DeviceExtentExtra, place, "stripe", what, want);
        }
    }
    for stripe in &stripes {
        if extents.binary_search(stripe).is_err() {
            let place = format!("chunk {}: stripe on {}", stripe.chunk, place_of(stripe));
            sink.add(Kind::DeviceExtentMissing, place, "device extent", "none", "one");
        }
    }
    check_items(&extents, chunk_tree, sink);
    check_stats(tree, sink);
}

fn place_of(stripe: &Stripe) -> String {
    format!("device {} at {} + {}", stripe.devid, stripe.physical, stripe.bytes)
}

fn check_overlaps(extents: &[Stripe], sink: &Sink<'_>) {
    let mut before: Option<(DevId, u64)> = None;
    for extent in extents {
        if let Some((devid, end)) = before
            && devid == extent.devid
            && extent.physical < end
        {
            let want = format!("at least {end}, where the extent before ends");
            sink.add(Kind::DeviceExtentOverlap, place_of(extent), "offset", extent.physical, want);
        }
        before = Some((extent.devid, extent.physical.saturating_add(extent.bytes)));
    }
}

/// Checks that `bytes_used` is the sum of the device extents, and that they are inside the device.
fn check_items(extents: &[Stripe], chunk_tree: &ChunkTree, sink: &Sink<'_>) {
    for item in &chunk_tree.devices {
        let own = || extents.iter().filter(|extent| extent.devid == item.devid);
        let used = own().fold(0_u64, |sum, extent| sum.saturating_add(extent.bytes));
        let place = format!("device {}", item.devid);
        if used != item.bytes_used {
            let want = format!("{used}, as its device extents");
            sink.add(Kind::DeviceUsage, &place, "bytes_used", item.bytes_used, want);
        }
        let beyond =
            own().find(|extent| extent.physical.saturating_add(extent.bytes) > item.total_bytes);
        if let Some(extent) = beyond {
            let end = extent.physical.saturating_add(extent.bytes);
            let want = format!("at most {}, the device's total_bytes", item.total_bytes);
            sink.add(Kind::DeviceExtentOverlap, place_of(extent), "end", end, want);
        }
    }
}

fn check_stats(tree: &DeviceTree, sink: &Sink<'_>) {
    for (devid, stats) in &tree.stats {
        let counts = [
            ("write errors", stats.write_errors),
            ("read errors", stats.read_errors),
            ("flush errors", stats.flush_errors),
            ("corruption errors", stats.corruption_errors),
            ("generation errors", stats.generation_errors),
        ];
        for (field, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
            sink.add(Kind::DeviceErrors, format!("device {devid}"), field, count, 0);
        }
    }
}

/// Checks the sizes of devices against their items, and the superblock against both.
pub(crate) fn check_devices(chunk_tree: &ChunkTree, reader: &Reader<'_>) {
    let (sink, volume) = (reader.sink(), reader.volume());
    let raw = volume.super_block().raw();
    let devices = u64::try_from(chunk_tree.devices.len()).unwrap_or(u64::MAX);
    if raw.num_devices.get() != devices {
        sink.add(Kind::SuperField, "superblock", "num_devices", raw.num_devices, devices);
    }
    let sum = |sum: u64, item: &butternut_format::device_item::DeviceItem| {
        sum.saturating_add(item.total_bytes)
    };
    let total = chunk_tree.devices.iter().fold(0, sum);
    if raw.total_bytes.get() != total {
        let want = format!("{total}, as its devices");
        sink.add(Kind::SuperField, "superblock", "total_bytes", raw.total_bytes, want);
    }
    for status in volume.devices() {
        let place = format!("device {}", status.devid);
        let Some(device) = &status.device else {
            sink.add(Kind::DeviceMissing, place, "device", "missing", "there");
            continue;
        };
        let Some(item) = status.item else { continue };
        let fsid = volume.super_block().metadata_uuid();
        if !status.is_seed && item.fsid != fsid {
            let want = Uuid(fsid);
            sink.add(Kind::DeviceUsage, &place, "fsid of its item", Uuid(item.fsid), want);
        }
        if device.bytes() < item.total_bytes {
            let want = format!("at least {}, as its device item says", item.total_bytes);
            sink.add(Kind::DeviceUsage, &place, "size", device.bytes(), want);
        }
    }
    let own = volume.super_block().device();
    let item = chunk_tree.devices.iter().find(|item| item.devid == own.devid);
    let Some(item) = item else {
        let place = "superblock: dev_item";
        sink.add(Kind::SuperField, place, "devid", own.devid, "one of the chunk tree's");
        return;
    };
    let pairs = [
        ("total_bytes", own.total_bytes, item.total_bytes),
        ("bytes_used", own.bytes_used, item.bytes_used),
    ];
    for (field, have, want) in pairs.into_iter().filter(|(_, have, want)| have != want) {
        sink.add(Kind::SuperField, "superblock: dev_item", field, have, want);
    }
}
