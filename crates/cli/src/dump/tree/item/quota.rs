//! Quota groups.

use super::super::render::Style;
use super::raw::padded;
use butternut_format::quota::{
    RawQgroupInfo, RawQgroupLimit, RawQgroupStatus, STATUS_INCONSISTENT, STATUS_ON, STATUS_RESCAN,
    STATUS_SIMPLE_MODE,
};
use std::io::{self, Write};

pub(super) fn status(data: &[u8], style: Style, out: &mut dyn Write) -> io::Result<()> {
    let raw: RawQgroupStatus = padded(data);
    let flags = status_flags_text(raw.flags.get());
    let (version, generation, scan) = (raw.version, raw.generation, raw.rescan);
    write!(out, "\t\tversion {version} generation {generation} flags {flags} scan {scan}")?;
    if style.simple_quota {
        write!(out, " enable_gen {}", raw.enable_gen)?;
    }
    writeln!(out)
}

fn status_flags_text(flags: u64) -> String {
    let mut text = if flags & STATUS_ON == 0 { "OFF" } else { "ON" }.to_owned();
    let mut unknown = flags & !STATUS_ON;
    for (bit, name) in [
        (STATUS_SIMPLE_MODE, "|SIMPLE_MODE"),
        (STATUS_RESCAN, "|SCANNING"),
        (STATUS_INCONSISTENT, "|INCONSISTENT"),
    ] {
        if flags & bit != 0 {
            text.push_str(name);
            unknown &= !bit;
        }
    }
    if unknown != 0 {
        text = format!("{text}|UNKNOWN({unknown:#x})");
    }
    text
}

pub(super) fn info(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawQgroupInfo = padded(data);
    writeln!(out, "\t\tgeneration {}", raw.generation)?;
    writeln!(out, "\t\treferenced {} referenced_compressed {}", raw.rfer, raw.rfer_cmpr)?;
    writeln!(out, "\t\texclusive {} exclusive_compressed {}", raw.excl, raw.excl_cmpr)
}

/// Limits are printed signed: -1 means no limit.
pub(super) fn limit(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let raw: RawQgroupLimit = padded(data);
    let [max_rfer, max_excl, rsv_rfer, rsv_excl] =
        [raw.max_rfer, raw.max_excl, raw.rsv_rfer, raw.rsv_excl]
            .map(|limit| limit.get().cast_signed());
    writeln!(out, "\t\tflags {:x}", raw.flags)?;
    writeln!(out, "\t\tmax_referenced {max_rfer} max_exclusive {max_excl}")?;
    writeln!(out, "\t\trsv_referenced {rsv_rfer} rsv_exclusive {rsv_excl}")
}
