//! Computes the block groups of a new volume.
//!
//! ```text
//! 0      64K    68K     1M        5M          13M           21M
//! | wiped | super | wiped | system | metadata | data         | dup groups, if any ...
//!                          4M       8M         8M
//! ```
//!
//! The first three groups are single. If a type has the profile dup, its range among them stays
//! empty, and its group follows behind them, in the order `system`, `metadata`, `data`, one copy
//! behind the other. `mkfs.btrfs` has the same layout, because it creates single groups first and
//! then deletes those that it does not need. Logical addresses have the same order, with each group
//! once.
//!
//! 1. A single group other than system has 8 MiB, or a tenth of the volume if that is less.
//! 2. A dup data group has 1 GiB. A dup metadata group has 256 MiB, or 1 GiB on a volume of more
//!    than 50 GiB. If that exceeds a tenth of the volume, the group has a twentieth of the volume,
//!    but at least 64 MiB for data and 32 MiB for metadata. A dup system group has 8 MiB.
//! 3. If 70 % of a mixed single group would leave less than 2 MiB free, a second group of the same
//!    size follows it.
//! 4. Sizes are multiples of the stripe length, 64 KiB.

use butternut_format::chunk::{BlockGroupFlags, Profile, STRIPE_BYTES};
use butternut_format::units::{Logical, Physical};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Block groups start at or above this address.
const GROUPS_START: u64 = MIB;
const SYSTEM_SINGLE_BYTES: u64 = 4 * MIB;
const SYSTEM_DUP_BYTES: u64 = 8 * MIB;
const SINGLE_BYTES_MAX: u64 = 8 * MIB;

/// Volumes larger than this have larger metadata groups.
const LARGE_VOLUME_BYTES: u64 = 50 * GIB;

/// The free space that law 3 demands, and the tree blocks of an empty volume.
const MIXED_ROOM_BYTES: u64 = 2 * MIB + 9 * 4096;

/// The types of block groups, and their profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profiles {
    pub(crate) is_mixed: bool,
    pub(crate) data: Profile,
    pub(crate) metadata: Profile,
}

/// A block group and its chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) flags: BlockGroupFlags,
    pub(crate) logical: Logical,
    pub(crate) bytes: u64,
    /// Its physical address, once for each copy.
    pub(crate) copies: Vec<Physical>,
}

impl Group {
    pub(crate) fn profile(&self) -> Profile {
        if self.copies.len() == 1 { Profile::Single } else { Profile::Dup }
    }

    pub(crate) fn end(&self) -> Logical {
        Logical(self.logical.0 + self.bytes)
    }

    pub(crate) fn holds(&self, kind: BlockGroupFlags) -> bool {
        self.flags.contains(kind)
    }
}

impl Profiles {
    /// Returns the minimum size of a volume in bytes, which is that of `mkfs.btrfs`. For mixed dup
    /// it is the end of the block groups.
    pub(crate) fn bytes_min(self) -> u64 {
        let (data, metadata) = (self.data == Profile::Dup, self.metadata == Profile::Dup);
        let mib = match (self.is_mixed, data, metadata) {
            (true, false, _) => 16,
            (true, true, _) => 157,
            (false, false, false) => 45,
            (false, false, true) => 109,
            (false, true, false) => 165,
            (false, true, true) => 229,
        };
        mib * MIB
    }

    /// Returns the block groups of a volume of `bytes`, at least [`Self::bytes_min`].
    pub(crate) fn groups(self, bytes: u64) -> Vec<Group> {
        let first = SINGLE_BYTES_MAX.min(whole_stripes(bytes / 10));
        let mut at = Cursor { logical: GROUPS_START, physical: GROUPS_START };
        let (system, metadata, data) = self.kinds();
        let singles = [(system, SYSTEM_SINGLE_BYTES), (metadata, first), (data, first)];
        let mut groups = Vec::new();
        for (kind, bytes) in singles.iter().filter_map(|(kind, bytes)| kind.zip(Some(*bytes))) {
            let group = at.allocate(kind.flags, Profile::Single, bytes);
            if kind.profile == Profile::Single {
                groups.push(group);
            }
        }
        if self.is_mixed && self.data == Profile::Single && first / 10 * 7 < MIXED_ROOM_BYTES {
            groups.extend(metadata.map(|kind| at.allocate(kind.flags, Profile::Single, first)));
        }
        for kind in [system, metadata, data].into_iter().flatten() {
            if kind.profile == Profile::Dup {
                groups.push(at.allocate(kind.flags, Profile::Dup, kind.dup_bytes(bytes)));
            }
        }
        groups
    }

    /// Returns system, metadata (or mixed), and data, each with its profile.
    fn kinds(self) -> (Option<Kind>, Option<Kind>, Option<Kind>) {
        let kind = |flags, profile| Some(Kind { flags, profile });
        let (data, metadata) = (BlockGroupFlags::DATA, BlockGroupFlags::METADATA);
        let system = kind(BlockGroupFlags::SYSTEM, self.metadata);
        if self.is_mixed {
            return (system, kind(BlockGroupFlags(data.0 | metadata.0), self.metadata), None);
        }
        (system, kind(metadata, self.metadata), kind(data, self.data))
    }
}

/// Type and profile of a block group.
#[derive(Clone, Copy)]
struct Kind {
    flags: BlockGroupFlags,
    profile: Profile,
}

impl Kind {
    fn dup_bytes(self, volume_bytes: u64) -> u64 {
        if self.flags.contains(BlockGroupFlags::SYSTEM) {
            return SYSTEM_DUP_BYTES;
        }
        let is_data = self.flags.contains(BlockGroupFlags::DATA);
        let wide = is_data || volume_bytes > LARGE_VOLUME_BYTES;
        let most = if wide { GIB } else { 256 * MIB };
        let least = if is_data { 64 * MIB } else { 32 * MIB };
        let tenth = volume_bytes / 10;
        whole_stripes(if most > tenth { tenth / 2 } else { most }).max(least)
    }
}

/// The first free addresses.
struct Cursor {
    logical: u64,
    physical: u64,
}

impl Cursor {
    fn allocate(&mut self, kind: BlockGroupFlags, profile: Profile, bytes: u64) -> Group {
        let is_dup = profile == Profile::Dup;
        let (count, profile) = if is_dup { (2, BlockGroupFlags::DUP.0) } else { (1, 0) };
        let flags = BlockGroupFlags(kind.0 | profile);
        let copies = (0..count).map(|copy| Physical(self.physical + copy * bytes)).collect();
        let group = Group { flags, logical: Logical(self.logical), bytes, copies };
        self.logical += bytes;
        self.physical += count * bytes;
        group
    }
}

fn whole_stripes(bytes: u64) -> u64 {
    bytes / STRIPE_BYTES * STRIPE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: Profiles =
        Profiles { is_mixed: false, data: Profile::Single, metadata: Profile::Single };
    const DEFAULT: Profiles = Profiles { metadata: Profile::Dup, ..SINGLE };
    const DUP: Profiles = Profiles { data: Profile::Dup, ..DEFAULT };
    const DATA_DUP: Profiles = Profiles { data: Profile::Dup, ..SINGLE };
    const MIXED: Profiles = Profiles { is_mixed: true, ..SINGLE };
    const MIXED_DUP: Profiles = Profiles { is_mixed: true, ..DUP };
    const ALL: [Profiles; 6] = [SINGLE, DEFAULT, DUP, DATA_DUP, MIXED, MIXED_DUP];

    /// Returns logical address, bytes and physical addresses of each group.
    fn check(profiles: Profiles, bytes: u64) -> Vec<(u64, u64, Vec<u64>)> {
        let groups = profiles.groups(bytes);
        let row = |group: &Group| {
            let copies = group.copies.iter().map(|copy| copy.0).collect();
            (group.logical.0, group.bytes, copies)
        };
        groups.iter().map(row).collect()
    }

    /// The expected values are those of `mkfs.btrfs` 6.14.
    #[test]
    fn groups_lie_where_mkfs_btrfs_puts_them() {
        let system = (22_020_096, 8 << 20, vec![22_020_096, 30_408_704]);
        let data = (13_631_488, 8 << 20, vec![13_631_488]);
        let metadata = |bytes| (30_408_704, bytes, vec![38_797_312, 38_797_312 + bytes]);
        assert_eq!(check(DEFAULT, 200 << 20), [data.clone(), system.clone(), metadata(32 << 20)]);
        assert_eq!(check(DEFAULT, 1 << 30), [data.clone(), system.clone(), metadata(53_673_984)]);
        assert_eq!(check(DEFAULT, 10 << 30), [data.clone(), system.clone(), metadata(256 << 20)]);
        assert_eq!(check(DEFAULT, 2 << 40), [data, system.clone(), metadata(1 << 30)]);
        let dup_data = (298_844_160, 1 << 30, vec![575_668_224, 1_649_410_048]);
        assert_eq!(check(DUP, 10 << 30), [system, metadata(256 << 20), dup_data]);
        let small = check(SINGLE, 50 << 20);
        assert_eq!(
            small[1..],
            [(5 << 20, 5 << 20, vec![5 << 20]), (10 << 20, 5 << 20, vec![10 << 20])]
        );
        let dup_data = check(DATA_DUP, 8 << 30);
        assert_eq!(dup_data[2], (22_020_096, 429_457_408, vec![22_020_096, 451_477_504]));
        let mixed = check(MIXED_DUP, 1 << 30);
        assert_eq!(mixed[1], (22_020_096, 64 << 20, vec![30_408_704, 97_517_568]));
    }

    #[test]
    fn a_small_mixed_volume_has_two_groups() {
        let first = (5_242_880, 3_014_656, vec![5_242_880]);
        let second = (8_257_536, 3_014_656, vec![8_257_536]);
        assert_eq!(check(MIXED, 29 << 20)[1..], [first, second]);
        assert_eq!(check(MIXED, 30_932_992).len(), 2);
        assert_eq!(check(MIXED, 16 << 20)[2], (6_881_280, 1_638_400, vec![6_881_280]));
    }

    #[test]
    fn the_smallest_volume_holds_its_groups_and_they_do_not_overlap() {
        for profiles in ALL {
            for bytes in [profiles.bytes_min(), 300 << 20, 3 << 30, 100 << 30] {
                let groups = profiles.groups(bytes);
                let mut taken: Vec<_> = groups
                    .iter()
                    .flat_map(|group| group.copies.iter().map(|at| (at.0, at.0 + group.bytes)))
                    .collect();
                taken.sort_unstable();
                assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{profiles:?}");
                assert!(taken.last().unwrap().1 <= bytes, "{profiles:?} on {bytes}");
                assert!(groups.windows(2).all(|pair| pair[0].end() <= pair[1].logical));
            }
        }
    }
}
