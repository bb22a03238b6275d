//! Names and order of block groups, as in btrfs-progs, and the selected units.

use butternut::GroupUsage;

use crate::args::UnitArgs;
use crate::output::size::Units;

pub(super) const DATA: u64 = 1;
pub(super) const SYSTEM: u64 = 2;
pub(super) const METADATA: u64 = 4;
const TYPES: u64 = DATA | SYSTEM | METADATA;

/// Returns the name of the block group type.
pub(super) fn kind(flags: u64) -> &'static str {
    match flags & TYPES {
        DATA => "Data",
        SYSTEM => "System",
        METADATA => "Metadata",
        5 => "Data+Metadata",
        _ => "unknown",
    }
}

/// Returns the name of the profile.
pub(super) fn profile(flags: u64) -> &'static str {
    match flags & 0x7f8 {
        0 => "single",
        0x8 => "RAID0",
        0x10 => "RAID1",
        0x20 => "DUP",
        0x40 => "RAID10",
        0x80 => "RAID5",
        0x100 => "RAID6",
        0x200 => "RAID1C3",
        0x400 => "RAID1C4",
        _ => "unknown",
    }
}

/// Sorts by type, in the order of `kinds`, then by profile.
pub(super) fn sorted(groups: &[GroupUsage], kinds: [u64; 4]) -> Vec<GroupUsage> {
    let mut groups = groups.to_vec();
    let rank = |flags: u64| kinds.iter().position(|kind| *kind == flags & TYPES);
    groups.sort_by_key(|group| (rank(group.flags), group.flags & !TYPES));
    groups
}

pub(crate) fn units(args: &UnitArgs) -> Units {
    let fixed = |power: u32, binary, decimal| {
        if args.si {
            Units::Fixed(1000_u64.pow(power), decimal)
        } else {
            Units::Fixed(1024_u64.pow(power), binary)
        }
    };
    match args {
        UnitArgs { raw: true, .. } => Units::Bytes,
        UnitArgs { kbytes: true, .. } => fixed(1, "KiB", "kB"),
        UnitArgs { mbytes: true, .. } => fixed(2, "MiB", "MB"),
        UnitArgs { gbytes: true, .. } => fixed(3, "GiB", "GB"),
        UnitArgs { tbytes: true, .. } => fixed(4, "TiB", "TB"),
        UnitArgs { si: true, .. } => Units::Decimal,
        _ => Units::Binary,
    }
}
