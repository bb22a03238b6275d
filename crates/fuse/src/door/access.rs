//! Whether a caller may access a file, or write to a directory: for requests that the kernel passes
//! on without a check of permissions.
//!
//! The rules are those of POSIX.1 and, with an ACL, of POSIX.1e (draft 17, 23.1.5), with one
//! exception: where the mode has no permissions of the group class, which are the mask of an ACL,
//! the kernel ignores the ACL, and "other" applies to all users outside of the owning group. The
//! ACL is in the form in which the kernel and the volume store it: a version, and entries of a tag,
//! the permissions and an id, in little-endian byte order.

use butternut::server::FilesystemExt;
use butternut::{Error, FileId, Filesystem};

use crate::connection::protocol::InHeader;
use crate::door::{Door, caller};
use crate::errno::{Errno, ErrnoResult};

const ACL: &[u8] = b"system.posix_acl_access";
/// Bytes of the version, and of an entry.
const ACL_HEADER_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;

/// Tags of ACL entries.
const USER: u16 = 0x02;
const GROUP_OF_FILE: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// To add an entry, a caller has to write to the directory and search it.
const WRITE_AND_SEARCH: u16 = 0o3;

impl Door {
    /// Checks that the caller may add entries to a directory and remove them. A mount that checks
    /// no permissions allows it to every caller.
    ///
    /// # Errors
    /// `EROFS` for a read-only subvolume, to every caller; `EACCES`; errors of reading the
    /// attributes.
    pub(super) fn may_write_to_directory(&self, header: &InHeader, dir: FileId) -> ErrnoResult<()> {
        self.filesystem.check_writable(dir)?;
        self.may_access(header, dir, WRITE_AND_SEARCH)
    }

    /// Checks that the caller has permissions for a file, as three bits. A mount that checks no
    /// permissions allows it to every caller, and so does `CAP_DAC_OVERRIDE`.
    ///
    /// # Errors
    /// `EACCES`; errors of reading the attributes.
    pub(super) fn may_access(&self, header: &InHeader, id: FileId, wanted: u16) -> ErrnoResult<()> {
        if !self.options.checks_permissions {
            return Ok(());
        }
        has_permissions(&self.filesystem, header, id, wanted)
    }
}

/// Checks that a caller has permissions for a file, as three bits, or `CAP_DAC_OVERRIDE`.
///
/// # Errors
/// `EACCES`; errors of reading the attributes.
pub(super) fn has_permissions(
    filesystem: &Filesystem,
    header: &InHeader,
    id: FileId,
    wanted: u16,
) -> ErrnoResult<()> {
    if caller::overrides_permissions(header) {
        return Ok(());
    }
    let stat = filesystem.stat(id)?;
    let acl = match filesystem.xattr(id, ACL) {
        Ok(acl) => acl,
        Err(Error::NoAttribute) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let of = Owned { mode: stat.mode, owner: stat.uid, group: stat.gid };
    let groups = caller::all_groups(header);
    let permissions = allowed(&of, &acl, (header.uid, &groups), wanted);
    if permissions & wanted == wanted { Ok(()) } else { Err(Errno::EACCES) }
}

/// The mode of a file, and whose it is.
struct Owned {
    mode: u32,
    owner: u32,
    group: u32,
}

/// Returns the permissions of a user with these groups for a file, as three bits. If several groups
/// match, those of one that allows what is wanted count.
fn allowed(of: &Owned, acl: &[u8], (uid, groups): (u32, &[u32]), wanted: u16) -> u16 {
    let class = |shift: u32| u16::try_from(of.mode >> shift & 0o7).unwrap_or(0);
    if uid == of.owner {
        return class(6);
    }
    let entries = entries(acl);
    if entries.is_empty() || class(3) == 0 {
        return if groups.contains(&of.group) { class(3) } else { class(0) };
    }
    let with_tag = |tag| entries.iter().find(move |entry| entry.tag == tag);
    let mask = with_tag(MASK).map_or(0o7, |entry| entry.permissions);
    if let Some(user) = entries.iter().find(|entry| entry.tag == USER && entry.id == uid) {
        return user.permissions & mask;
    }
    let matches = |entry: &&Entry| match entry.tag {
        GROUP_OF_FILE => groups.contains(&of.group),
        GROUP => groups.contains(&entry.id),
        _ => false,
    };
    let of_groups: Vec<u16> =
        entries.iter().filter(matches).map(|entry| entry.permissions & mask).collect();
    let suffices = |permissions: &&u16| **permissions & wanted == wanted;
    match of_groups.iter().find(suffices).or(of_groups.first()) {
        Some(permissions) => *permissions,
        None => with_tag(OTHER).map_or(0, |entry| entry.permissions),
    }
}

struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

fn entries(acl: &[u8]) -> Vec<Entry> {
    let (entries, _) = acl.get(ACL_HEADER_BYTES..).unwrap_or_default().as_chunks();
    let entry = |bytes: &[u8; ACL_ENTRY_BYTES]| {
        let [tag, tag_upper, permissions, upper, id @ ..] = *bytes;
        Entry {
            tag: u16::from_le_bytes([tag, tag_upper]),
            permissions: u16::from_le_bytes([permissions, upper]),
            id: u32::from_le_bytes(id),
        }
    };
    entries.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acl_whose_mask_has_no_permissions_is_ignored() {
        let entry = |tag: u16, permissions: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let acl = |mask: u16| {
            let entries = [
                entry(USER, 7, 8),
                entry(GROUP_OF_FILE, 7, 0),
                entry(MASK, mask, 0),
                entry(OTHER, 3, 0),
            ];
            [&2_u32.to_le_bytes()[..], &entries.concat()].concat()
        };
        let of = |mode| Owned { mode, owner: 1, group: 2 };
        for (mode, mask, user, want) in [
            (0o773, 7, 8, 7),
            (0o703, 0, 8, 3),
            (0o723, 2, 8, 2),
            (0o703, 0, 9, 3),
            (0o703, 0, 1, 7),
        ] {
            assert_eq!(allowed(&of(mode), &acl(mask), (user, &[9]), 3), want, "{mode:o} {user}");
        }
        assert_eq!(allowed(&of(0o703), &acl(0), (9, &[2]), 3), 0, "the owning group");
    }
}
