//! [`Acl`]: POSIX access control lists, their xattr form, and how they and mode bits move together.
//!
//! 1. An ACL that says no more than mode bits do is stored as mode bits.
//! 2. With a mask, the group bits of the mode are the mask; without, the owning group's.
//! 3. A new inode takes its directory's default ACL, each base entry cut by the mode asked for; a
//!    new directory takes it as its own default, too.

use serde::{Deserialize, Serialize};

pub const ACCESS_NAME: &str = "system.posix_acl_access";
pub const DEFAULT_NAME: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

/// Permission bits (0 to 7) of each class. Named entries are sorted by id, each id once; with any
/// of them there is a mask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    pub owner: u16,
    pub users: Vec<(u32, u16)>,
    pub group: u16,
    pub groups: Vec<(u32, u16)>,
    pub mask: Option<u16>,
    pub other: u16,
}

impl Acl {
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut push = |tag: u16, perm: u16, id: u32| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&perm.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        push(0x01, self.owner, NO_ID);
        for (id, perm) in &self.users {
            push(0x02, *perm, *id);
        }
        push(0x04, self.group, NO_ID);
        for (id, perm) in &self.groups {
            push(0x08, *perm, *id);
        }
        if let Some(mask) = self.mask {
            push(0x10, mask, NO_ID);
        }
        push(0x20, self.other, NO_ID);
        bytes
    }

    /// Law 1.
    pub fn is_plain(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    /// The nine permission bits that stand for it (law 2).
    pub fn permissions(&self) -> u32 {
        let group = self.mask.unwrap_or(self.group);
        u32::from(self.owner) << 6 | u32::from(group) << 3 | u32::from(self.other)
    }

    /// After a chmod.
    #[must_use]
    pub fn with_permissions(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        let bits = |shift: u32| u16::try_from(mode >> shift & 7).expect("three bits");
        acl.owner = bits(6);
        acl.other = bits(0);
        match &mut acl.mask {
            Some(mask) => *mask = bits(3),
            None => acl.group = bits(3),
        }
        acl
    }

    /// As a new inode's access ACL, asked for with `mode` (law 3).
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        let bits = |shift: u32| u16::try_from(mode >> shift & 7).expect("three bits");
        acl.owner &= bits(6);
        acl.other &= bits(0);
        match &mut acl.mask {
            Some(mask) => *mask &= bits(3),
            None => acl.group &= bits(3),
        }
        acl
    }
}
