//! [`Features`]: the feature flags of a new volume, and their names.
//!
//! The names are those of `mkfs.btrfs -O`. Names that only `mkfs.btrfs` supports are refused as
//! unsupported, all others as unknown. Full quotas have no bit in the superblock: the volume has a
//! quota tree.

use crate::error::MkfsError;
use butternut_format::feature;

/// Names that `mkfs.btrfs` accepts and this crate does not support.
const UNSUPPORTED: [&str; 5] =
    ["raid56", "raid1c34", "zoned", "raid-stripe-tree", "extent-tree-v2"];

/// Which quotas count the space of subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quotas {
    Full,
    Simple,
}

/// The field that has the bit of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Incompat,
    CompatRo,
    /// No field of the superblock.
    Quota,
}

/// A feature that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureName {
    pub name: &'static str,
    pub alias: Option<&'static str>,
    pub about: &'static str,
    word: Word,
    mask: u64,
}

/// The features of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    incompat: u64,
    compat_ro: u64,
    /// 1 for full quotas.
    quota: u64,
}

const fn incompat(name: &'static str, mask: u64, about: &'static str) -> FeatureName {
    FeatureName { name, alias: None, about, word: Word::Incompat, mask }
}

const fn compat_ro(
    name: &'static str,
    alias: &'static str,
    mask: u64,
    about: &'static str,
) -> FeatureName {
    FeatureName { name, alias: Some(alias), about, word: Word::CompatRo, mask }
}

impl Features {
    /// All features that can be chosen, in the order of help texts.
    pub const ALL: [FeatureName; 8] = [
        incompat("mixed-bg", feature::MIXED_GROUPS.mask(), "data and metadata in the same groups"),
        incompat("extref", feature::EXTENDED_IREF.mask(), "up to 65536 hard links to a file"),
        incompat("skinny-metadata", feature::SKINNY_METADATA.mask(), "short metadata references"),
        incompat("no-holes", feature::NO_HOLES.mask(), "no items for the holes of files"),
        compat_ro(
            "free-space-tree",
            "fst",
            feature::FREE_SPACE_TREE.mask() | feature::FREE_SPACE_TREE_VALID.mask(),
            "free space kept in a tree",
        ),
        compat_ro(
            "block-group-tree",
            "bgt",
            feature::BLOCK_GROUP_TREE.mask(),
            "block groups in a separate tree, for fast mounts",
        ),
        FeatureName {
            name: "quota",
            alias: None,
            about: "quota groups, which count what subvolumes refer to",
            word: Word::Quota,
            mask: 1,
        },
        incompat(
            "squota",
            feature::SIMPLE_QUOTA.mask(),
            "simple quotas, which count what subvolumes have allocated (Linux 6.7)",
        ),
    ];

    /// Turns a feature on, or off if its name begins with `^`.
    ///
    /// # Errors
    /// The feature is unknown or not supported.
    pub fn choose(&mut self, word: &str) -> Result<(), MkfsError> {
        let (name, is_on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
        let found = Self::ALL.iter().find(|known| known.name == name || known.alias == Some(name));
        let Some(found) = found else {
            let name = name.to_owned();
            return Err(if UNSUPPORTED.contains(&&*name) {
                MkfsError::FeatureUnsupported { name }
            } else {
                MkfsError::FeatureUnknown { name }
            });
        };
        let bits = match found.word {
            Word::Incompat => &mut self.incompat,
            Word::CompatRo => &mut self.compat_ro,
            Word::Quota => &mut self.quota,
        };
        *bits = if is_on { *bits | found.mask } else { *bits & !found.mask };
        Ok(())
    }

    /// Returns the names of the features that are on.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().filter(move |known| self.has(known)).map(|known| known.name)
    }

    pub fn has(self, feature: &FeatureName) -> bool {
        let bits = match feature.word {
            Word::Incompat => self.incompat,
            Word::CompatRo => self.compat_ro,
            Word::Quota => self.quota,
        };
        bits & feature.mask == feature.mask
    }

    pub fn is_mixed(self) -> bool {
        self.incompat & feature::MIXED_GROUPS.mask() != 0
    }

    pub(crate) fn is_skinny(self) -> bool {
        self.incompat & feature::SKINNY_METADATA.mask() != 0
    }

    pub(crate) fn has_free_space_tree(self) -> bool {
        self.compat_ro & feature::FREE_SPACE_TREE.mask() != 0
    }

    pub(crate) fn has_block_group_tree(self) -> bool {
        self.compat_ro & feature::BLOCK_GROUP_TREE.mask() != 0
    }

    /// Returns which quotas are on.
    pub(crate) fn quotas(self) -> Option<Quotas> {
        match (self.quota, self.incompat & feature::SIMPLE_QUOTA.mask()) {
            (0, 0) => None,
            (_, 0) => Some(Quotas::Full),
            _ => Some(Quotas::Simple),
        }
    }

    /// Refuses a feature that depends on one that is off, and both kinds of quotas.
    pub(crate) fn check(self) -> Result<(), MkfsError> {
        if self.quota != 0 && self.quotas() == Some(Quotas::Simple) {
            return Err(MkfsError::TwoQuotas);
        }
        if !self.has_block_group_tree() {
            return Ok(());
        }
        if self.incompat & feature::NO_HOLES.mask() == 0 {
            return Err(MkfsError::FeatureMissing { missing: "no-holes" });
        }
        if !self.has_free_space_tree() {
            return Err(MkfsError::FeatureMissing { missing: "free-space-tree" });
        }
        Ok(())
    }

    /// Returns `incompat_flags` of a volume with nodes of this size.
    pub(crate) fn incompat_flags(self, node_bytes: u32) -> u64 {
        let is_big = u64::from(node_bytes) > butternut_format::units::SECTOR_BYTES;
        let big = if is_big { feature::BIG_METADATA.mask() } else { 0 };
        self.incompat | feature::MIXED_BACKREF.mask() | big
    }

    pub(crate) fn compat_ro_flags(self) -> u64 {
        self.compat_ro
    }
}

impl Default for Features {
    /// Returns the defaults of `mkfs.btrfs` 6.14.
    fn default() -> Self {
        Self {
            incompat: feature::EXTENDED_IREF.mask()
                | feature::SKINNY_METADATA.mask()
                | feature::NO_HOLES.mask(),
            compat_ro: feature::FREE_SPACE_TREE.mask() | feature::FREE_SPACE_TREE_VALID.mask(),
            quota: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_turn_bits_on_and_off() {
        let mut features = Features::default();
        for word in ["^extref", "bgt", "^no-holes", "no-holes"] {
            features.choose(word).unwrap();
        }
        let names: Vec<_> = features.names().collect();
        assert_eq!(names, ["skinny-metadata", "no-holes", "free-space-tree", "block-group-tree"]);
        assert_eq!(features.compat_ro_flags(), 0xb);
    }

    #[test]
    fn quotas_are_full_or_simple() {
        let quotas = |words: &[&str]| {
            let mut features = Features::default();
            for word in words {
                features.choose(word).unwrap();
            }
            features.check().map(|()| features.quotas()).map_err(|error| error.to_string())
        };
        assert_eq!(quotas(&[]), Ok(None));
        assert_eq!(quotas(&["quota"]), Ok(Some(Quotas::Full)));
        assert_eq!(quotas(&["quota", "^quota", "squota"]), Ok(Some(Quotas::Simple)));
        let both = "quota and squota exclude each other".to_owned();
        assert_eq!(quotas(&["squota", "quota"]), Err(both));
    }

    #[test]
    fn unsupported_features_are_refused_by_name() {
        let refuse = |word: &str| Features::default().choose(word).unwrap_err().to_string();
        assert_eq!(refuse("zoned"), "feature zoned is not supported");
        assert_eq!(refuse("^zoned"), "feature zoned is not supported");
        assert_eq!(refuse("holes"), "feature holes is not known");
    }

    #[test]
    fn a_block_group_tree_needs_no_holes_and_the_free_space_tree() {
        let check = |words: &[&str]| {
            let mut features = Features::default();
            for word in words {
                features.choose(word).unwrap();
            }
            features.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(&["bgt"]), Ok(()));
        assert_eq!(check(&["bgt", "^fst"]), Err("block-group-tree needs free-space-tree".into()));
        assert_eq!(check(&["bgt", "^no-holes"]), Err("block-group-tree needs no-holes".into()));
    }
}
