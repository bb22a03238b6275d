//! Feature bits of a superblock: their names, and which of them are supported.
//!
//! 1. A volume with an unknown or unsupported `incompat` bit is refused, and the error names the
//!    bit.
//! 2. A volume with an unknown `compat_ro` bit can be read, but not written.
//! 3. `compat` bits are ignored: none is defined.

use crate::refused::Refused;
use std::fmt;

/// One bit of a feature word, with its name in sysfs and the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    pub bit: u32,
    pub name: &'static str,
    pub supported: bool,
}

impl Feature {
    const fn new(bit: u32, name: &'static str) -> Self {
        Self { bit, name, supported: true }
    }

    const fn unsupported(bit: u32, name: &'static str) -> Self {
        Self { bit, name, supported: false }
    }

    pub const fn mask(self) -> u64 {
        1 << self.bit
    }
}

/// Bits of `incompat_flags` (`BTRFS_FEATURE_INCOMPAT_*`).
pub const MIXED_BACKREF: Feature = Feature::new(0, "mixed-backref");
pub const DEFAULT_SUBVOL: Feature = Feature::new(1, "default-subvol");
pub const MIXED_GROUPS: Feature = Feature::new(2, "mixed-groups");
pub const COMPRESS_LZO: Feature = Feature::new(3, "compress-lzo");
pub const COMPRESS_ZSTD: Feature = Feature::new(4, "compress-zstd");
pub const BIG_METADATA: Feature = Feature::new(5, "big-metadata");
pub const EXTENDED_IREF: Feature = Feature::new(6, "extended-iref");
pub const RAID56: Feature = Feature::new(7, "raid56");
pub const SKINNY_METADATA: Feature = Feature::new(8, "skinny-metadata");
pub const NO_HOLES: Feature = Feature::new(9, "no-holes");
pub const METADATA_UUID: Feature = Feature::new(10, "metadata-uuid");
pub const RAID1C34: Feature = Feature::new(11, "raid1c34");
pub const ZONED: Feature = Feature::unsupported(12, "zoned");
pub const EXTENT_TREE_V2: Feature = Feature::unsupported(13, "extent-tree-v2");
pub const RAID_STRIPE_TREE: Feature = Feature::unsupported(14, "raid-stripe-tree");
pub const SIMPLE_QUOTA: Feature = Feature::new(16, "simple-quota");
pub const REMAP_TREE: Feature = Feature::unsupported(17, "remap-tree");

pub const INCOMPAT: [Feature; 17] = [
    MIXED_BACKREF,
    DEFAULT_SUBVOL,
    MIXED_GROUPS,
    COMPRESS_LZO,
    COMPRESS_ZSTD,
    BIG_METADATA,
    EXTENDED_IREF,
    RAID56,
    SKINNY_METADATA,
    NO_HOLES,
    METADATA_UUID,
    RAID1C34,
    ZONED,
    EXTENT_TREE_V2,
    RAID_STRIPE_TREE,
    SIMPLE_QUOTA,
    REMAP_TREE,
];

/// Bits of `compat_ro_flags` (`BTRFS_FEATURE_COMPAT_RO_*`).
pub const FREE_SPACE_TREE: Feature = Feature::new(0, "free-space-tree");
pub const FREE_SPACE_TREE_VALID: Feature = Feature::new(1, "free-space-tree-valid");
pub const VERITY: Feature = Feature::new(2, "verity");
pub const BLOCK_GROUP_TREE: Feature = Feature::new(3, "block-group-tree");

pub const COMPAT_RO: [Feature; 4] =
    [FREE_SPACE_TREE, FREE_SPACE_TREE_VALID, VERITY, BLOCK_GROUP_TREE];

/// Checks that all bits of `incompat_flags` are supported.
///
/// # Errors
/// The unsupported bits, by name.
pub fn readable(incompat: u64) -> Result<(), Refused> {
    refuse_unsupported(incompat, &INCOMPAT, "incompat_flags")
}

/// Checks that all bits of `compat_ro_flags` are supported, which writing requires.
///
/// # Errors
/// The unsupported bits, by name.
pub fn writable(compat_ro: u64) -> Result<(), Refused> {
    refuse_unsupported(compat_ro, &COMPAT_RO, "compat_ro_flags")
}

fn refuse_unsupported(flags: u64, table: &[Feature], field: &'static str) -> Result<(), Refused> {
    let supported =
        table.iter().filter(|feature| feature.supported).fold(0, |mask, f| mask | f.mask());
    let refused = flags & !supported;
    if refused == 0 {
        return Ok(());
    }
    Err(Refused::new(field, Names { flags: refused, table }, "only supported features"))
}

/// Displays the set bits of a feature word by name and number.
struct Names<'a> {
    flags: u64,
    table: &'a [Feature],
}

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = (0..u64::BITS).filter(|bit| self.flags & (1 << bit) != 0);
        for (position, bit) in set.enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            match self.table.iter().find(|feature| feature.bit == bit) {
                Some(feature) => write!(f, "{separator}{} (bit {bit})", feature.name)?,
                None => write!(f, "{separator}unknown (bit {bit})")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_and_unknown_bits_are_named() {
        let flags = NO_HOLES.mask() | RAID_STRIPE_TREE.mask() | ZONED.mask() | 1 << 40;
        assert_eq!(
            readable(flags).unwrap_err().to_string(),
            "incompat_flags: have zoned (bit 12), raid-stripe-tree (bit 14), unknown (bit 40), \
             want only supported features"
        );
        assert_eq!(
            writable(1 << 5).unwrap_err().to_string(),
            "compat_ro_flags: have unknown (bit 5), want only supported features"
        );
    }

    #[test]
    fn the_default_features_of_mkfs_are_supported() {
        readable(0x361).unwrap();
        writable(0xb).unwrap();
    }
}
