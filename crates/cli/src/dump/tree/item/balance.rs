//! Temporary items: a running balance, a running change of the checksum algorithm.

use super::super::key::ObjectIdText;
use super::raw::padded;
use butternut_format::balance::{BALANCE_OBJECTID, RawBalanceArgs, RawBalanceItem};
use butternut_format::checksum::ChecksumKind;
use butternut_format::key::Key;
use std::io::{self, Write};

const CSUM_CHANGE_OBJECTID: u64 = u64::MAX - 12;

pub(super) fn temporary(key: Key, data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let object = ObjectIdText { objectid: key.objectid, item_type: key.item_type };
    writeln!(out, "\t\ttemporary item objectid {object} offset {}", key.offset)?;
    match key.objectid {
        BALANCE_OBJECTID => balance(&padded(data), out),
        CSUM_CHANGE_OBJECTID => {
            let kind =
                u16::try_from(key.offset).ok().and_then(|kind| ChecksumKind::check(kind).ok());
            match kind {
                Some(kind) => {
                    writeln!(out, "\t\ttarget csum type {} ({})", kind.name(), key.offset)
                }
                None => writeln!(out, "\t\tunknown csum type {}", key.offset),
            }
        }
        other => writeln!(out, "\t\tunknown temporary item objectid {other}"),
    }
}

fn balance(raw: &RawBalanceItem, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\t\tbalance status flags {}", raw.flags)?;
    for (name, args) in [("DATA", &raw.data), ("METADATA", &raw.meta), ("SYSTEM", &raw.sys)] {
        writeln!(out, "\t\t{name}")?;
        filters(args, out)?;
    }
    Ok(())
}

fn filters(args: &RawBalanceArgs, out: &mut dyn Write) -> io::Result<()> {
    let (profiles, devid, target, flags) = (args.profiles, args.devid, args.target, args.flags);
    writeln!(out, "\t\tprofiles {profiles} devid {devid} target {target} flags {flags}")?;
    let (usage_min, usage_max) = range(args.usage.get());
    let (pstart, pend) = (args.pstart, args.pend);
    writeln!(out, "\t\tusage_min {usage_min} usage_max {usage_max} pstart {pstart} pend {pend}")?;
    let (limit_min, limit_max) = range(args.limit.get());
    let (vstart, vend) = (args.vstart, args.vend);
    writeln!(out, "\t\tvstart {vstart} vend {vend} limit_min {limit_min} limit_max {limit_max}")?;
    writeln!(out, "\t\tstripes_min {} stripes_max {}", args.stripes_min, args.stripes_max)
}

/// Splits a 64-bit field into the 32-bit bounds of a range.
fn range(word: u64) -> (u64, u64) {
    (word & u64::from(u32::MAX), word >> 32)
}
