//! [`Identity`]: the UUIDs of a new volume.

use crate::error::MkfsError;
use butternut_format::checksum::ChecksumKind;
use butternut_format::uuid::Uuid;
use butternut_sys::random;

/// All UUIDs of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub fsid: Uuid,
    pub device: Uuid,
    pub chunk_tree: Uuid,
    /// UUID of the top-level subvolume.
    pub subvolume: Uuid,
}

impl Identity {
    /// Returns random UUIDs, with this filesystem UUID if one is given.
    ///
    /// # Errors
    /// The kernel returns no random numbers.
    pub fn random(fsid: Option<Uuid>) -> Result<Self, MkfsError> {
        let fresh = || -> Result<Uuid, MkfsError> {
            Ok(Uuid::version_4(random::bytes::<16>().map_err(MkfsError::Random)?))
        };
        let fsid = fsid.map_or_else(fresh, Ok)?;
        Ok(Self { fsid, device: fresh()?, chunk_tree: fresh()?, subvolume: fresh()? })
    }

    /// Returns UUIDs that are derived from the filesystem UUID, the same in every call.
    pub fn derived(fsid: Uuid) -> Self {
        let part = |name: &str| {
            let digest = ChecksumKind::Sha256.compute(&[name.as_bytes(), &fsid.0].concat());
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
            Uuid::version_4(bytes)
        };
        Self {
            fsid,
            device: part("butternut device "),
            chunk_tree: part("butternut chunk tree "),
            subvolume: part("butternut subvolume "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_uuids_follow_from_the_volume_and_differ_from_each_other() {
        let first = Identity::derived(Uuid([1; 16]));
        assert_eq!(first, Identity::derived(Uuid([1; 16])));
        let second = Identity::derived(Uuid([2; 16]));
        let all = [first, second].map(|i| [i.fsid, i.device, i.chunk_tree, i.subvolume]).concat();
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 8);
        assert!(first.device.to_string()[14..].starts_with('4'));
    }

    #[test]
    fn random_uuids_are_new_each_time() {
        let (a, b) = (Identity::random(None).unwrap(), Identity::random(None).unwrap());
        assert_ne!(a.fsid, b.fsid);
        let kept = Identity::random(Some(a.fsid)).unwrap();
        assert_eq!(kept.fsid, a.fsid);
        assert_ne!(kept.device, a.device);
    }
}
