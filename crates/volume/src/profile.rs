//! What each allocation profile promises: one table, one row per profile.
//!
//! Everything above asks the table; nothing above compares profiles by name. Where a profile's
//! elements go is [`crate::stripe`]'s to say.

use butternut_format::chunk::{BlockGroupFlags, Profile};

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub profile: Profile,
    /// The bit in a block group's flags; none for single.
    pub flag: BlockGroupFlags,
    /// The name as `btrfs filesystem df` prints it.
    pub name: &'static str,
    /// Whole copies of each byte.
    pub copies: usize,
    /// Parity elements in each row.
    pub parities: usize,
    /// Elements that hold the same bytes side by side (`sub_stripes` of a chunk item).
    pub sub_stripes: usize,
    /// Whether rows spread over as many devices as there are, rather than over `copies`.
    pub is_striped: bool,
    /// Stripes that one device gives to a chunk.
    pub stripes_per_device: usize,
    pub devices_min: usize,
    /// Devices that may be lost, whichever they are, with every byte still readable.
    pub failures_tolerated: usize,
}

const ORDINARY: Facts = Facts {
    profile: Profile::Single,
    flag: BlockGroupFlags(0),
    name: "single",
    copies: 1,
    parities: 0,
    sub_stripes: 1,
    is_striped: false,
    stripes_per_device: 1,
    devices_min: 1,
    failures_tolerated: 0,
};

#[rustfmt::skip]
const TABLE: [Facts; 9] = [
    ORDINARY,
    Facts { profile: Profile::Dup, flag: BlockGroupFlags::DUP, name: "DUP", copies: 2,
        stripes_per_device: 2, ..ORDINARY },
    Facts { profile: Profile::Raid0, flag: BlockGroupFlags::RAID0, name: "RAID0",
        is_striped: true, ..ORDINARY },
    Facts { profile: Profile::Raid1, flag: BlockGroupFlags::RAID1, name: "RAID1", copies: 2,
        devices_min: 2, failures_tolerated: 1, ..ORDINARY },
    Facts { profile: Profile::Raid1c3, flag: BlockGroupFlags::RAID1C3, name: "RAID1C3", copies: 3,
        devices_min: 3, failures_tolerated: 2, ..ORDINARY },
    Facts { profile: Profile::Raid1c4, flag: BlockGroupFlags::RAID1C4, name: "RAID1C4", copies: 4,
        devices_min: 4, failures_tolerated: 3, ..ORDINARY },
    Facts { profile: Profile::Raid10, flag: BlockGroupFlags::RAID10, name: "RAID10", copies: 2,
        sub_stripes: 2,
        is_striped: true, devices_min: 2, failures_tolerated: 1, ..ORDINARY },
    Facts { profile: Profile::Raid5, flag: BlockGroupFlags::RAID5, name: "RAID5", parities: 1,
        is_striped: true, devices_min: 2, failures_tolerated: 1, ..ORDINARY },
    Facts { profile: Profile::Raid6, flag: BlockGroupFlags::RAID6, name: "RAID6", parities: 2,
        is_striped: true, devices_min: 3, failures_tolerated: 2, ..ORDINARY },
];

impl Facts {
    pub fn of(profile: Profile) -> &'static Self {
        match profile {
            Profile::Single => &TABLE[0],
            Profile::Dup => &TABLE[1],
            Profile::Raid0 => &TABLE[2],
            Profile::Raid1 => &TABLE[3],
            Profile::Raid1c3 => &TABLE[4],
            Profile::Raid1c4 => &TABLE[5],
            Profile::Raid10 => &TABLE[6],
            Profile::Raid5 => &TABLE[7],
            Profile::Raid6 => &TABLE[8],
        }
    }

    /// The whole table.
    pub fn all() -> &'static [Self] {
        &TABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_found_by_its_profile_and_agrees_with_the_flags() {
        let mut flags = 0;
        for facts in Facts::all() {
            assert_eq!(Facts::of(facts.profile), facts);
            assert_eq!(facts.flag.profile(), Some(facts.profile));
            flags |= facts.flag.0;
        }
        assert_eq!(flags, BlockGroupFlags::PROFILES.0);
    }

    #[test]
    fn tolerance_follows_from_copies_and_parities() {
        for facts in Facts::all().iter().filter(|facts| facts.profile != Profile::Dup) {
            assert_eq!(facts.failures_tolerated, facts.copies - 1 + facts.parities, "{facts:?}");
        }
        assert_eq!(Facts::of(Profile::Dup).failures_tolerated, 0, "both are on one device");
    }
}
