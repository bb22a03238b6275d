//! [`Privileges`] of a file, and how a change strips them.

use crate::change::Change;
use crate::error::may_block;
use crate::inode::table::InodeEntry;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Filesystem, Result};
use butternut_format::units::Ino;
use butternut_names as names;
use butternut_sys::wait::Wait;
use butternut_tree::Need;

/// The extended attribute that holds the capabilities of an executable.
pub(crate) const CAPABILITIES: &[u8] = b"security.capability";

/// Items that stripping reserves space for: more than the two that it may change.
const ITEMS_OF_STRIPPING: u32 = 4;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Which privileges a change strips from a file: those that the caller may not keep (`CAP_FSETID`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileges {
    #[default]
    Keep,
    /// Strips capabilities, as the kernel does for every caller; the mode keeps its bits.
    StripCapabilities,
    /// Strips set-user-id, set-group-id if the group may execute, and capabilities.
    Strip,
    /// As `Strip`, for a caller outside of the file's group: strips set-group-id in any case.
    StripForeign,
}

impl Filesystem {
    /// Strips the privileges of a file that is written to, if it has any. The caller holds its
    /// inode lock exclusively.
    pub(crate) fn strip_privileges(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &InodeEntry,
        privileges: Privileges,
        wait: Wait,
    ) -> Result<()> {
        if privileges == Privileges::Keep || entry.has_no_privileges() {
            return Ok(());
        }
        may_block(wait)?;
        let mut inode = self.attributes(entry)?;
        let ino = Ino(entry.id.ino);
        let mode = stripped(inode.mode, privileges);
        let has_capabilities = names::xattr(&subvolume.tree, ino, CAPABILITIES)?.is_some();
        if mode == inode.mode && !has_capabilities {
            entry.set_no_privileges(stripped(mode, Privileges::StripForeign) == mode);
            return Ok(());
        }
        self.shared.counters.privs_stripped.add();
        self.change(
            write_state,
            subvolume,
            Need::items(ITEMS_OF_STRIPPING).uncharged(),
            |change: &Change<'_>| {
                inode.mode = mode;
                names::changed(&mut inode, change.moment);
                if has_capabilities {
                    change.step(names::remove_xattr(&change.edit, ino, CAPABILITIES))?;
                }
                change.put(ino, &inode)
            },
        )?;
        entry.set(inode);
        Ok(())
    }
}

/// Returns the mode without the privileges to strip. Set-group-id without group execute means
/// mandatory locking, and stays unless the writer is not in the file's group.
pub(super) fn stripped(mode: u32, privileges: Privileges) -> u32 {
    let set_group_id = match privileges {
        Privileges::Keep | Privileges::StripCapabilities => return mode,
        Privileges::Strip if mode & GROUP_EXECUTE == 0 => 0,
        Privileges::Strip | Privileges::StripForeign => SET_GROUP_ID,
    };
    mode & !(SET_USER_ID | set_group_id)
}
