//! [`Acl`]: POSIX access control lists, their xattr form, and their relation to mode bits.
//!
//! 1. An ACL with base entries only is stored as mode bits.
//! 2. The group bits of the mode are the mask if there is one, and the owning group's otherwise.
//! 3. A new inode inherits its directory's default ACL, each base entry limited by the requested
//!    mode; a new directory inherits it as its default ACL as well.

use serde::{Deserialize, Serialize};

pub const ACCESS_NAME: &str = "system.posix_acl_access";
pub const DEFAULT_NAME: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

/// Permission bits (0 to 7) of each class. Named entries are sorted by id, and each id occurs once.
/// If there is a named entry, there is a mask.
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

    /// Returns whether mode bits can represent the ACL (law 1).
    pub fn is_plain(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    /// Returns the nine permission bits of the ACL (law 2).
    pub fn permissions(&self) -> u32 {
        let group = self.mask.unwrap_or(self.group);
        u32::from(self.owner) << 6 | u32::from(group) << 3 | u32::from(self.other)
    }

    /// Returns the ACL after a chmod.
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

    /// Returns the access ACL of a new inode that was created with `mode` (law 3).
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
