//! Chunks, devices, device statistics and device replace.

use super::super::formatting::{LocalTimeText, UuidText};
use super::super::key::ObjectIdText;
use super::raw::{after, padded};
use super::space::group_flags_text;
use butternut_format::chunk::{RawChunk, RawStripe};
use butternut_format::device_extent::{
    DEV_STATS, RawDeviceExtent, RawDeviceReplace, RawDeviceStats,
};
use butternut_format::device_item::RawDeviceItem;
use butternut_format::key::Key;
use std::io::{self, Write};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

pub(in crate::dump) fn chunk(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawChunk = padded(data);
    let count = usize::from(raw.num_stripes.get());
    let Ok((stripes, _)) =
        <[RawStripe]>::ref_from_prefix_with_elems(after::<RawChunk>(data), count)
    else {
        return writeln!(out, "\t\tchunk item invalid");
    };
    let (bytes, owner, stripe) = (raw.length, raw.owner, raw.stripe_len);
    let flags = group_flags_text(raw.r#type.get());
    writeln!(out, "\t\tlength {bytes} owner {owner} stripe_len {stripe} type {flags}")?;
    let (align, width, sector) = (raw.io_align, raw.io_width, raw.sector_size);
    writeln!(out, "\t\tio_align {align} io_width {width} sector_size {sector}")?;
    writeln!(out, "\t\tnum_stripes {count} sub_stripes {}", raw.sub_stripes)?;
    for (at, stripe) in stripes.iter().enumerate() {
        writeln!(out, "\t\t\tstripe {at} devid {} offset {}", stripe.devid, stripe.offset)?;
        writeln!(out, "\t\t\tdev_uuid {}", UuidText(&stripe.dev_uuid))?;
    }
    Ok(())
}

pub(super) fn device(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawDeviceItem = padded(data);
    let (devid, total, used) = (raw.devid, raw.total_bytes, raw.bytes_used);
    writeln!(out, "\t\tdevid {devid} total_bytes {total} bytes_used {used}")?;
    let (align, width, sector, kind) = (raw.io_align, raw.io_width, raw.sector_size, raw.r#type);
    writeln!(out, "\t\tio_align {align} io_width {width} sector_size {sector} type {kind}")?;
    let (generation, start, group) = (raw.generation, raw.start_offset, raw.dev_group);
    writeln!(out, "\t\tgeneration {generation} start_offset {start} dev_group {group}")?;
    writeln!(out, "\t\tseek_speed {} bandwidth {}", raw.seek_speed, raw.bandwidth)?;
    writeln!(out, "\t\tuuid {}", UuidText(&raw.uuid))?;
    writeln!(out, "\t\tfsid {}", UuidText(&raw.fsid))
}

pub(super) fn device_extent(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawDeviceExtent = padded(data);
    writeln!(out, "\t\tdev extent chunk_tree {}", raw.chunk_tree)?;
    let (objectid, offset, bytes) = (raw.chunk_objectid, raw.chunk_offset, raw.length);
    writeln!(out, "\t\tchunk_objectid {objectid} chunk_offset {offset} length {bytes}")?;
    writeln!(out, "\t\tchunk_tree_uuid {}", UuidText(&raw.chunk_tree_uuid))
}

/// Prints pairs of device id and physical address.
pub(super) fn raid_stripe(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let Ok((formatting, _)) = <[U64]>::ref_from_prefix_with_elems(data, data.len() / 16 * 2) else {
        return Ok(());
    };
    for (at, stripe) in formatting.chunks_exact(2).enumerate() {
        if let [devid, physical] = stripe {
            writeln!(out, "\t\t\tstripe {at} devid {devid} physical {physical}")?;
        }
    }
    Ok(())
}

pub(super) fn replace(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawDeviceReplace = padded(data);
    let mode = match raw.cont_reading_from_srcdev_mode.get() {
        0 => "ALWAYS".to_owned(),
        1 => "AVOID".to_owned(),
        other => format!("unknown({other})"),
    };
    let state = match raw.replace_state.get() {
        0 => "NEVER_STARTED".to_owned(),
        1 => "STARTED".to_owned(),
        2 => "FINISHED".to_owned(),
        3 => "CANCELED".to_owned(),
        4 => "SUSPENDED".to_owned(),
        other => format!("unknown({other})"),
    };
    let (left, right) = (raw.cursor_left, raw.cursor_right);
    let devid = raw.src_devid.get().cast_signed();
    writeln!(out, "\t\tsrc devid {devid} cursor left {left} cursor right {right} mode {mode}")?;
    let (writes, reads) = (raw.num_write_errors, raw.num_uncorrectable_read_errors);
    writeln!(out, "\t\tstate {state} write errors {writes} uncorrectable read errors {reads}")?;
    // btrfs-progs prints the start in both lines.
    for name in ["start", "stop"] {
        let started = raw.time_started.get();
        let local = LocalTimeText(started.cast_signed());
        writeln!(out, "\t\t{name} time {started} ({local})")?;
    }
    Ok(())
}

pub(super) fn persistent(key: Key, data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let object = ObjectIdText { objectid: key.objectid, item_type: key.item_type };
    writeln!(out, "\t\tpersistent item objectid {object} offset {}", key.offset)?;
    if key.objectid != DEV_STATS {
        return writeln!(out, "\t\tunknown persistent item objectid {}", key.objectid);
    }
    let raw: RawDeviceStats = padded(data);
    writeln!(out, "\t\tdevice stats")?;
    let (writes, reads, flushes) = (raw.write_errs, raw.read_errs, raw.flush_errs);
    let (corruptions, generations) = (raw.corruption_errs, raw.generation_errs);
    writeln!(
        out,
        "\t\twrite_errs {writes} read_errs {reads} flush_errs {flushes} \
         corruption_errs {corruptions} generation {generations}"
    )
}
