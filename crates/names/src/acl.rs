//! POSIX access control lists: their encoding, and their relation to the mode of an inode.
//!
//! ```text
//! 0         4
//! | version |   2, then entries:
//!
//! 0     2      4    8
//! | tag | perm | id |   `id` is valid for named users and groups only
//! ```
//!
//! Laws of [`Acl::parse`]:
//!
//! 1. The owner comes first, then named users, the group, named groups, the mask, the others.
//!    Owner, group and others occur once each, the mask at most once.
//! 2. Named users or groups need a mask.
//! 3. An entry has no permission bits beyond read, write and execute; a named one has an id.
//!
//! The mode of an inode mirrors its access list. The bits of owner and others are those of their
//! entries; the bits of the group are those of the mask, or of the group's entry if there is no
//! mask. A list that a mode can express is not stored.

use crate::error::NamesError;
use butternut_format::inode::FileKind;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The attribute of the access list of an inode.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The attribute of the default list of a directory, which new entries inherit.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const TAG_OWNER: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OWNER: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHERS: u16 = 0x20;
/// The id of entries that need none.
const NO_ID: u32 = u32::MAX;
/// The bits read, write and execute.
const RWX: u16 = 0o7;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAclEntry {
    tag: U16,
    perm: U16,
    id: U32,
}
const _: () = assert!(size_of::<RawAclEntry>() == 8);

/// The subject of an entry, in the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclTag {
    Owner,
    User(u32),
    GroupOwner,
    Group(u32),
    Mask,
    Others,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
}

/// A list that keeps the laws above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// The permissions and lists that a new inode inherits from its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The permission bits after the umask or the list is applied.
    pub permissions: u32,
    pub access: Option<Acl>,
    pub default: Option<Acl>,
}

/// An access list to be stored, and the mode that mirrors it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclAndMode {
    pub mode: u32,
    /// `None` if the mode expresses the whole list: the attribute is removed then.
    pub acl: Option<Acl>,
}

impl Acl {
    /// Parses the value of an ACL attribute. A list without entries is `None`: setting it removes
    /// the attribute.
    ///
    /// # Errors
    /// The value violates a law of this module.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, NamesError> {
        let (version, rest) = U32::read_from_prefix(value)
            .map_err(|_| NamesError::Invalid { what: "an ACL has at least 4 bytes" })?;
        if version.get() != VERSION {
            return Err(NamesError::Unsupported { what: "an ACL of a version other than 2" });
        }
        let raw = <[RawAclEntry]>::ref_from_bytes(rest)
            .map_err(|_| NamesError::Invalid { what: "the entries of an ACL have 8 bytes each" })?;
        if raw.is_empty() {
            return Ok(None);
        }
        let entries = raw.iter().copied().map(AclEntry::check).collect::<Result<Vec<_>, _>>()?;
        check_order(&entries)?;
        Ok(Some(Self { entries }))
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = U32::new(VERSION).as_bytes().to_vec();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.to_bytes());
        }
        bytes
    }

    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Returns whether a mode can express this list.
    fn is_mode(&self) -> bool {
        !self
            .entries
            .iter()
            .any(|entry| matches!(entry.tag, AclTag::User(_) | AclTag::Group(_) | AclTag::Mask))
    }

    /// Returns the nine permission bits that mirror this list.
    fn permissions(&self) -> u32 {
        let of = |tag| u32::from(self.entry(tag).map_or(0, |entry| entry.permissions));
        (of(AclTag::Owner) << 6) | (of(self.group_tag()) << 3) | of(AclTag::Others)
    }

    /// Returns the tag of the entry that the group's bits of the mode mirror.
    fn group_tag(&self) -> AclTag {
        if self.entry(AclTag::Mask).is_some() { AclTag::Mask } else { AclTag::GroupOwner }
    }

    fn entry(&self, tag: AclTag) -> Option<&AclEntry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    /// Changes the three entries that a mode mirrors.
    fn map_mirrored(&mut self, change: impl Fn(u16, u16) -> u16, mode: u32) {
        let group_tag = self.group_tag();
        for entry in &mut self.entries {
            let mirrored = [(AclTag::Owner, 6), (group_tag, 3), (AclTag::Others, 0)];
            let found = mirrored.into_iter().find(|(tag, _)| *tag == entry.tag);
            let Some((_, shift)) = found else { continue };
            let bits = u16::try_from((mode >> shift) & u32::from(RWX)).unwrap_or_default();
            entry.permissions = change(entry.permissions, bits);
        }
    }

    /// Returns the list after a change of the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.map_mirrored(|_, bits| bits, mode);
        self
    }

    /// Returns the mode of an inode with this access list. The caller decides whether set-group-id
    /// is kept.
    pub fn apply_to(self, mode: u32) -> AclAndMode {
        let mode = (mode & !0o777) | self.permissions();
        let acl = Some(self).filter(|acl| !acl.is_mode());
        AclAndMode { mode, acl }
    }
}

/// Applies the default list of the directory to a new inode, or the umask if there is no such list.
/// Neither applies to symbolic links.
pub fn inherit(default: Option<&Acl>, kind: FileKind, permissions: u32, umask: u32) -> Inherited {
    if kind == FileKind::Symlink {
        return Inherited { permissions, access: None, default: None };
    }
    let Some(default) = default else {
        let permissions = permissions & !(umask & 0o777);
        return Inherited { permissions, access: None, default: None };
    };
    let mut access = default.clone();
    access.map_mirrored(|have, bits| have & bits, permissions);
    let permissions = (permissions & !0o777) | access.permissions();
    Inherited {
        permissions,
        access: Some(access).filter(|acl| !acl.is_mode()),
        default: (kind == FileKind::Directory).then(|| default.clone()),
    }
}

impl AclEntry {
    fn check(raw: RawAclEntry) -> Result<Self, NamesError> {
        let named = || match raw.id.get() {
            NO_ID => Err(NamesError::Invalid { what: "a named entry of an ACL needs an id" }),
            id => Ok(id),
        };
        let tag = match raw.tag.get() {
            TAG_OWNER => AclTag::Owner,
            TAG_USER => AclTag::User(named()?),
            TAG_GROUP_OWNER => AclTag::GroupOwner,
            TAG_GROUP => AclTag::Group(named()?),
            TAG_MASK => AclTag::Mask,
            TAG_OTHERS => AclTag::Others,
            _ => return Err(NamesError::Invalid { what: "an ACL has an entry of no known kind" }),
        };
        let permissions = raw.perm.get();
        if permissions & !RWX != 0 {
            return Err(NamesError::Invalid { what: "an ACL has permissions beyond rwx" });
        }
        Ok(Self { tag, permissions })
    }

    /// Returns the bytes of the entry.
    pub fn to_bytes(self) -> [u8; 8] {
        zerocopy::transmute!(self.raw())
    }

    fn raw(self) -> RawAclEntry {
        let (tag, id) = match self.tag {
            AclTag::Owner => (TAG_OWNER, NO_ID),
            AclTag::User(id) => (TAG_USER, id),
            AclTag::GroupOwner => (TAG_GROUP_OWNER, NO_ID),
            AclTag::Group(id) => (TAG_GROUP, id),
            AclTag::Mask => (TAG_MASK, NO_ID),
            AclTag::Others => (TAG_OTHERS, NO_ID),
        };
        RawAclEntry { tag: U16::new(tag), perm: U16::new(self.permissions), id: U32::new(id) }
    }
}

/// Checks laws 1 and 2. Named entries may repeat, in any order.
fn check_order(entries: &[AclEntry]) -> Result<(), NamesError> {
    let rank = |entry: &AclEntry| match entry.tag {
        AclTag::Owner => 0,
        AclTag::User(_) => 1,
        AclTag::GroupOwner => 2,
        AclTag::Group(_) => 3,
        AclTag::Mask => 4,
        AclTag::Others => 5,
    };
    let mut counts = [0_usize; 6];
    for entry in entries {
        if let Some(count) = counts.get_mut(rank(entry)) {
            *count = count.saturating_add(1);
        }
    }
    let [owner, users, group, groups, mask, others] = counts;
    if (owner, group, others) != (1, 1, 1) || mask > 1 {
        return Err(NamesError::Invalid {
            what: "an ACL has one entry each for owner, group and others, and at most one mask",
        });
    }
    if users.saturating_add(groups) > 0 && mask == 0 {
        return Err(NamesError::Invalid { what: "an ACL with named entries needs a mask" });
    }
    if !entries.is_sorted_by_key(rank) {
        return Err(NamesError::Invalid { what: "the entries of an ACL are out of order" });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
