//! Root items, and the subvolumes of a UUID.

use super::super::formatting::{UuidText, time_line};
use super::super::key::KeyText;
use super::raw::padded;
use butternut_format::key::Key;
use butternut_format::root::{RawRootItem, RootFlags};
use butternut_format::uuid::subvolume_ids;
use std::io::{self, Write};

pub(super) fn root(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawRootItem = padded(data);
    let (generation, dirid, bytenr) = (raw.generation, raw.root_dirid, raw.bytenr);
    let (limit, used) = (raw.byte_limit, raw.bytes_used);
    writeln!(
        out,
        "\t\tgeneration {generation} root_dirid {dirid} bytenr {bytenr} byte_limit {limit} \
         bytes_used {used}"
    )?;
    let flags = raw.flags.get();
    let name = if RootFlags(flags).contains(RootFlags::READ_ONLY) { "RDONLY" } else { "none" };
    let (snapshot, refs) = (raw.last_snapshot, raw.refs);
    writeln!(out, "\t\tlast_snapshot {snapshot} flags {flags:#x}({name}) refs {refs}")?;
    let progress = KeyText(Key::from(&raw.drop_progress));
    writeln!(out, "\t\tdrop_progress {progress} drop_level {}", raw.drop_level)?;
    writeln!(out, "\t\tlevel {} generation_v2 {}", raw.level, raw.generation_v2)?;
    // Kernels without the newer fields update only the first generation.
    if raw.generation != raw.generation_v2 {
        return Ok(());
    }
    writeln!(out, "\t\tuuid {}", UuidText(&raw.uuid))?;
    writeln!(out, "\t\tparent_uuid {}", UuidText(&raw.parent_uuid))?;
    writeln!(out, "\t\treceived_uuid {}", UuidText(&raw.received_uuid))?;
    let (change, origin, sent, received) = (raw.ctransid, raw.otransid, raw.stransid, raw.rtransid);
    writeln!(out, "\t\tctransid {change} otransid {origin} stransid {sent} rtransid {received}")?;
    time_line("ctime", &raw.ctime, out)?;
    time_line("otime", &raw.otime, out)?;
    time_line("stime", &raw.stime, out)?;
    time_line("rtime", &raw.rtime, out)
}

pub(super) fn uuid(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let Ok(ids) = subvolume_ids(data) else { return Ok(()) };
    for id in ids {
        writeln!(out, "\t\tsubvol_id {id}")?;
    }
    Ok(())
}
