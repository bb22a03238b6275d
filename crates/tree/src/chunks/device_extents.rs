//! The device extents of chunks: read and verified when a volume is opened for writing.
//!
//! ```text
//! chunk tree     chunk item    stripes (device, offset)          length of a stripe
//!                                  |                                  |
//! device tree    device extent key (device, offset)    chunk    length
//! ```
//!
//! The space of a device that no device extent covers is allocated to new chunks, and discarded. So
//! a missing or misplaced device extent would cost the data of its chunk.
//!
//! Laws:
//!
//! 1. Each stripe of each chunk has a device extent with its place and length, and each device
//!    extent belongs to a stripe. No two overlap, and none ends behind its device. Otherwise the
//!    volume is not opened for writing. The kernel's btrfs does not mount it.
//! 2. Neither a new chunk nor a discard covers a part of a stripe, whatever the device extents
//!    say.

use crate::committed::CommittedTrees;
use crate::error::TreeError;
use butternut_format::chunk::Chunk;
use butternut_format::device_extent::DeviceExtent as ExtentItem;
use butternut_format::device_item::{DEV_ITEMS, DeviceItem};
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::Refused;
use butternut_format::units::{DevId, Logical, Physical, TreeId};
use butternut_space::{DeviceExtent, Space};
use butternut_volume::{Chunks, DeviceStatus};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

/// The device extents of all devices.
pub(crate) type DeviceExtents = BTreeMap<DevId, Vec<DeviceExtent>>;

/// The place of a stripe or of a device extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    devid: DevId,
    start: u64,
    end: u64,
    chunk: Logical,
}

impl Place {
    fn refused(&self, field: &'static str, have: impl Display, want: impl Display) -> TreeError {
        let refused = Refused::new(field, have, want);
        corrupt(refused.at(format_args!("device {} at {}", self.devid, self.start)))
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of chunk {}", self.end.saturating_sub(self.start), self.chunk)
    }
}

fn corrupt(source: Refused) -> TreeError {
    TreeError::Corrupt { tree: TreeId::DEVICE, source }
}

/// Reads the device extents, and compares them with the stripes of all chunks (law 1).
fn load(trees: &CommittedTrees) -> Result<DeviceExtents, TreeError> {
    let extents = read(trees)?;
    let stripes = stripes(trees.volume().chunks().iter().flat_map(|layout| {
        let (bytes, chunk) = (layout.stripe_bytes(), layout.logical());
        let place = move |devid, start: Physical| place(devid, start, bytes, chunk);
        layout.stripes().iter().map(move |stripe| place(stripe.devid, stripe.physical))
    }))?;
    for extent in &extents {
        let at = stripes.binary_search_by_key(&(extent.devid, extent.start), key_of);
        let stripe = at.ok().and_then(|at| stripes.get(at));
        let stripe = stripe.ok_or_else(|| {
            extent.refused("device extent", extent, "none, no chunk has a stripe here")
        })?;
        if stripe != extent {
            return Err(extent.refused("device extent", extent, format_args!("{stripe}")));
        }
    }
    let has_extent = |stripe: &&Place| extents.binary_search(stripe).is_ok();
    if let Some(stripe) = stripes.iter().find(|stripe| !has_extent(stripe)) {
        return Err(stripe.refused("device extent", "none", stripe));
    }
    let mut by_device = DeviceExtents::new();
    for extent in extents {
        let item = DeviceExtent { range: extent.start..extent.end, chunk: extent.chunk };
        by_device.entry(extent.devid).or_default().push(item);
    }
    Ok(by_device)
}

/// Adds the devices and their device extents to `space`.
pub(crate) fn load_devices(trees: &CommittedTrees, space: &Space) -> Result<(), TreeError> {
    let mut extents = load(trees)?;
    let devices = trees.volume().devices();
    let mut cursor = trees.chunk_tree().scan();
    cursor.seek(&Key::new(DEV_ITEMS, ItemType::DEV_ITEM, 0))?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.objectid != DEV_ITEMS || key.item_type != ItemType::DEV_ITEM {
            break;
        }
        let device = DeviceItem::check(key, data).map_err(|refused| TreeError::Corrupt {
            tree: TreeId::CHUNK,
            source: refused.at(format_args!("item {key}")),
        })?;
        let extents = extents.remove(&device.devid).unwrap_or_default();
        check_end(&device, &extents)?;
        space
            .add_device(device.devid, device.uuid, device.total_bytes, extents)
            .map_err(|error| TreeError::Space(Box::new(error)))?;
        let is_device =
            |status: &&DeviceStatus| (status.devid, status.uuid) == (device.devid, device.uuid);
        if devices.iter().find(is_device).is_some_and(|status| status.is_seed) {
            space.set_seed(device.devid);
        }
        cursor.advance()?;
    }
    check_none_left(&extents)
}

/// Checks that the device extents of a device end before its end (law 1).
fn check_end(device: &DeviceItem, extents: &[DeviceExtent]) -> Result<(), TreeError> {
    let beyond = extents.iter().find(|extent| extent.range.end > device.total_bytes);
    beyond.map_or(Ok(()), |extent| {
        let Range { start, end } = extent.range;
        let extent = Place { devid: device.devid, start, end, chunk: extent.chunk };
        let want = format_args!("at most {}, the total_bytes of the device", device.total_bytes);
        Err(extent.refused("end of device extent", end, want))
    })
}

/// Checks that no device extent is left: one that is left has a device without an item (law 1).
fn check_none_left(extents: &DeviceExtents) -> Result<(), TreeError> {
    let Some(devid) = extents.keys().next() else { return Ok(()) };
    let want = "one for its device extents";
    Err(corrupt(Refused::new("device item", "none", want).at(format_args!("device {devid}"))))
}

/// Checks that no stripe of a new chunk overlaps a stripe of a chunk (law 2).
pub(crate) fn check_new(chunks: &Chunks, new: &Chunk, stripe_bytes: u64) -> Result<(), TreeError> {
    new.stripes.iter().try_for_each(|stripe| {
        let end = stripe.offset.0.saturating_add(stripe_bytes);
        check_unused(chunks, stripe.devid, &(stripe.offset.0..end))
    })
}

/// Checks that no stripe of a chunk overlaps a range of a device (law 2).
pub(crate) fn check_unused(
    chunks: &Chunks,
    devid: DevId,
    range: &Range<u64>,
) -> Result<(), TreeError> {
    for layout in chunks.iter() {
        for stripe in layout.stripes().iter().filter(|stripe| stripe.devid == devid) {
            let end = stripe.physical.0.saturating_add(layout.stripe_bytes());
            let overlaps = stripe.physical.0 < range.end && range.start < end;
            if overlaps {
                let want = format_args!("none in the stripe of chunk {}", layout.logical());
                let refused = Refused::new("unallocated space", format_args!("{range:?}"), want);
                return Err(corrupt(refused.at(format_args!("device {devid}"))));
            }
        }
    }
    Ok(())
}

fn key_of(place: &Place) -> (DevId, u64) {
    (place.devid, place.start)
}

fn place(devid: DevId, start: Physical, bytes: u64, chunk: Logical) -> Place {
    Place { devid, start: start.0, end: start.0.saturating_add(bytes), chunk }
}

/// Sorts stripes, and checks that they do not overlap.
fn stripes(stripes: impl Iterator<Item = Place>) -> Result<Vec<Place>, TreeError> {
    let mut stripes: Vec<Place> = stripes.collect();
    stripes.sort_unstable();
    for (before, stripe) in stripes.iter().zip(stripes.iter().skip(1)) {
        if before.devid == stripe.devid && stripe.start < before.end {
            let want = format_args!("none, this is in the stripe of chunk {}", before.chunk);
            return Err(stripe.refused("stripe", stripe, want));
        }
    }
    Ok(stripes)
}

/// Returns the device extents in the order of their keys.
fn read(trees: &CommittedTrees) -> Result<Vec<Place>, TreeError> {
    let mut extents = Vec::new();
    let tree = trees.tree(TreeId::DEVICE)?;
    let tree = tree.ok_or(TreeError::NoTree { tree: TreeId::DEVICE })?;
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN)?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.item_type == ItemType::DEV_EXTENT {
            let item = ExtentItem::check(key, data)
                .map_err(|refused| corrupt(refused.at(format_args!("item {key}"))))?;
            extents.push(place(item.devid, item.offset, item.bytes, item.chunk));
        }
        cursor.advance()?;
    }
    Ok(extents)
}
