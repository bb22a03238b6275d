//! The attributes of each profile: a table with one row for each, like `btrfs_raid_array` in the
//! kernel.
//!
//! Reads, writes and the placement of chunks use the table and compare no profiles.
//! [`crate::stripe`] maps addresses to the stripes of a profile, and checks their number.

use butternut_format::chunk::{BlockGroupFlags, Profile};

/// The attributes of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileAttributes {
    pub profile: Profile,
    /// The profile's bit in the flags of a block group; none for single.
    pub flag: BlockGroupFlags,
    /// The name as `btrfs filesystem df` prints it.
    pub name: &'static str,
    /// Complete copies of each byte.
    pub copies: usize,
    /// Parity elements of each full stripe.
    pub parities: usize,
    /// Stripes that mirror each other within a full stripe (`sub_stripes` of a chunk item).
    pub sub_stripes: usize,
    /// Whether a chunk spans as many devices as possible, instead of `copies` devices.
    pub is_striped: bool,
    /// Stripes of a chunk on each device.
    pub stripes_per_device: usize,
    pub devices_min: usize,
    /// Number of arbitrary devices that may be lost with every byte still readable.
    pub failures_tolerated: usize,
}

const ORDINARY: ProfileAttributes = ProfileAttributes {
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
const TABLE: [ProfileAttributes; 9] = [
    ORDINARY,
    ProfileAttributes { profile: Profile::Dup, flag: BlockGroupFlags::DUP,
        name: "DUP", copies: 2,
        stripes_per_device: 2, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid0, flag: BlockGroupFlags::RAID0,
        name: "RAID0",
        is_striped: true, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid1, flag: BlockGroupFlags::RAID1,
        name: "RAID1", copies: 2,
        devices_min: 2, failures_tolerated: 1, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid1c3, flag: BlockGroupFlags::RAID1C3,
        name: "RAID1C3", copies: 3,
        devices_min: 3, failures_tolerated: 2, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid1c4, flag: BlockGroupFlags::RAID1C4,
        name: "RAID1C4", copies: 4,
        devices_min: 4, failures_tolerated: 3, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid10, flag: BlockGroupFlags::RAID10,
        name: "RAID10", copies: 2,
        sub_stripes: 2,
        is_striped: true, devices_min: 2, failures_tolerated: 1, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid5, flag: BlockGroupFlags::RAID5,
        name: "RAID5", parities: 1,
        is_striped: true, devices_min: 2, failures_tolerated: 1, ..ORDINARY },
    ProfileAttributes { profile: Profile::Raid6, flag: BlockGroupFlags::RAID6,
        name: "RAID6", parities: 2,
        is_striped: true, devices_min: 3, failures_tolerated: 2, ..ORDINARY },
];

impl ProfileAttributes {
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

    /// Returns the whole table.
    pub fn all() -> &'static [Self] {
        &TABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_matches_its_profile_and_flag() {
        let mut flags = 0;
        for attributes in ProfileAttributes::all() {
            assert_eq!(ProfileAttributes::of(attributes.profile), attributes);
            assert_eq!(attributes.flag.profile(), Some(attributes.profile));
            flags |= attributes.flag.0;
        }
        assert_eq!(flags, BlockGroupFlags::PROFILES.0);
    }

    #[test]
    fn tolerance_follows_from_copies_and_parities() {
        for attributes in
            ProfileAttributes::all().iter().filter(|attributes| attributes.profile != Profile::Dup)
        {
            assert_eq!(
                attributes.failures_tolerated,
                attributes.copies - 1 + attributes.parities,
                "{attributes:?}"
            );
        }
        assert_eq!(
            ProfileAttributes::of(Profile::Dup).failures_tolerated,
            0,
            "both are on one device"
        );
    }
}
