//! [`MkfsOptions`]: the options of a caller; [`Plan`]: the options, checked against the device.

use crate::error::MkfsError;
use crate::features::Features;
use crate::identity::Identity;
use crate::layout::{Group, Profiles};
use butternut_format::checksum::ChecksumKind;
use butternut_format::chunk::Profile;
use butternut_format::inode::Time;
use butternut_format::super_block::LABEL_BYTES;
use butternut_format::units::{Generation, NODE_BYTES_MAX, NODE_BYTES_MIN, SECTOR_BYTES};

/// Default node size of a volume without mixed groups.
const NODE_BYTES: u32 = 16384;

/// Options of a new volume. The defaults are those of `mkfs.btrfs` 6.14 on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// UUIDs; random by default.
    pub identity: Option<Identity>,
    /// Timestamps of the root directory.
    pub time: Time,
    pub label: Vec<u8>,
    /// Size of the volume in bytes; by default the size of the device.
    pub bytes: Option<u64>,
    /// Node size in bytes; by default 16 KiB, or 4 KiB with mixed groups.
    pub node_bytes: Option<u32>,
    pub csum: ChecksumKind,
    /// Profile of data; by default single.
    pub data: Option<Profile>,
    /// Profile of metadata; by default dup, or single with mixed groups.
    pub metadata: Option<Profile>,
    pub features: Features,
    /// Overwrite an existing filesystem or partition table.
    pub overwrite: bool,
    /// Discard the whole volume first (TRIM).
    pub discard: bool,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            identity: None,
            time: Time::default(),
            label: Vec::new(),
            bytes: None,
            node_bytes: None,
            csum: ChecksumKind::Crc32c,
            data: None,
            metadata: None,
            features: Features::default(),
            overwrite: false,
            discard: false,
        }
    }
}

/// Checked options, with all defaults filled in.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) identity: Identity,
    pub(crate) time: Time,
    pub(crate) label: Vec<u8>,
    pub(crate) bytes: u64,
    pub(crate) node_bytes: u32,
    pub(crate) csum: ChecksumKind,
    pub(crate) features: Features,
    pub(crate) groups: Vec<Group>,
}

impl Plan {
    /// The only generation of a new volume.
    pub(crate) const GENERATION: Generation = Generation(1);

    /// Checks the options for a device of this size.
    pub(crate) fn check(device_bytes: u64, options: &MkfsOptions) -> Result<Self, MkfsError> {
        options.features.check()?;
        check_label(&options.label)?;
        let node_bytes = node_bytes(options)?;
        let profiles = profiles(options)?;
        let bytes = volume_bytes(device_bytes, options, profiles)?;
        let identity = options.identity.map_or_else(|| Identity::random(None), Ok)?;
        Ok(Self {
            identity,
            time: options.time,
            label: options.label.clone(),
            bytes,
            node_bytes,
            csum: options.csum,
            features: options.features,
            groups: profiles.groups(bytes),
        })
    }
}

fn check_label(label: &[u8]) -> Result<(), MkfsError> {
    if label.len() >= LABEL_BYTES {
        return Err(MkfsError::LabelTooLong { bytes: label.len() });
    }
    if label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
        return Err(MkfsError::LabelBytes);
    }
    Ok(())
}

fn node_bytes(options: &MkfsOptions) -> Result<u32, MkfsError> {
    let is_mixed = options.features.is_mixed();
    let default = if is_mixed { NODE_BYTES_MIN } else { NODE_BYTES };
    let bytes = options.node_bytes.unwrap_or(default);
    if !bytes.is_power_of_two() || !(NODE_BYTES_MIN..=NODE_BYTES_MAX).contains(&bytes) {
        return Err(MkfsError::NodeSize { bytes });
    }
    if is_mixed && bytes != NODE_BYTES_MIN {
        return Err(MkfsError::MixedNodeSize { bytes });
    }
    Ok(bytes)
}

fn profiles(options: &MkfsOptions) -> Result<Profiles, MkfsError> {
    let is_mixed = options.features.is_mixed();
    for profile in [options.data, options.metadata].into_iter().flatten() {
        if !matches!(profile, Profile::Single | Profile::Dup) {
            return Err(MkfsError::Profile { name: profile.name() });
        }
    }
    let default = if is_mixed { Profile::Single } else { Profile::Dup };
    let data = options.data.unwrap_or(Profile::Single);
    let metadata = options.metadata.unwrap_or(default);
    if is_mixed && data != metadata {
        return Err(MkfsError::MixedProfiles);
    }
    Ok(Profiles { is_mixed, data, metadata })
}

fn volume_bytes(
    device_bytes: u64,
    options: &MkfsOptions,
    profiles: Profiles,
) -> Result<u64, MkfsError> {
    let wanted = options.bytes.unwrap_or(device_bytes);
    let bytes = wanted / SECTOR_BYTES * SECTOR_BYTES;
    if bytes > device_bytes {
        return Err(MkfsError::TooLarge { bytes: wanted, device_bytes });
    }
    let bytes_min = profiles.bytes_min();
    if bytes < bytes_min {
        let (data, metadata) = (profiles.data.name(), profiles.metadata.name());
        let what = if profiles.is_mixed {
            format!("a volume of mixed groups in profile {data}")
        } else {
            format!("a volume of data in profile {data} and metadata in profile {metadata}")
        };
        return Err(MkfsError::TooSmall { bytes: wanted, bytes_min, what });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(change: impl FnOnce(&mut MkfsOptions), mib: u64) -> String {
        let mut options = MkfsOptions::default();
        change(&mut options);
        Plan::check(mib << 20, &options).unwrap_err().to_string()
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_with_the_minimum() {
        assert_eq!(
            refuse(|_| (), 108),
            "113246208 bytes are too few: a volume of data in profile single and metadata in \
             profile dup needs at least 114294784 bytes"
        );
        let mixed = |options: &mut MkfsOptions| options.features.choose("mixed-bg").unwrap();
        assert!(refuse(mixed, 15).ends_with("needs at least 16777216 bytes"));
        assert!(refuse(|options| options.bytes = Some(100), 200).starts_with("100 bytes are too"));
        assert_eq!(
            refuse(|options| options.bytes = Some(300 << 20), 200),
            "a volume of 314572800 bytes does not fit on the 209715200 bytes of the device"
        );
    }

    #[test]
    fn contradicting_options_are_refused() {
        assert!(refuse(|o| o.node_bytes = Some(12288), 200).starts_with("node size 12288: want"));
        assert!(refuse(|o| o.node_bytes = Some(2048), 200).starts_with("node size 2048: want"));
        assert!(refuse(|o| o.data = Some(Profile::Raid1), 200).starts_with("profile raid1: "));
        assert!(refuse(|o| o.label = vec![b'x'; 256], 200).ends_with("this one has 256"));
        assert!(refuse(|o| o.label = b"a\nb".to_vec(), 200).starts_with("a label holds no NUL"));
        let mixed = |options: &mut MkfsOptions| {
            options.features.choose("mixed-bg").unwrap();
            options.node_bytes = Some(16384);
        };
        assert!(refuse(mixed, 200).starts_with("node size 16384: mixed groups"));
        let mixed = |options: &mut MkfsOptions| {
            options.features.choose("mixed-bg").unwrap();
            options.data = Some(Profile::Dup);
        };
        assert!(refuse(mixed, 200).starts_with("mixed groups hold data and metadata"));
    }
}
