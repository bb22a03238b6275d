//! Which attributes an export preserves.

use rustix::process::geteuid;

use crate::args::ExportArgs;

/// The attributes that the copy preserves.
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Preserve {
    pub(super) owners: bool,
    pub(super) xattrs: bool,
    pub(super) devices: bool,
    /// Owners are not preserved because the user is not root.
    pub(super) owners_need_root: bool,
}

impl Preserve {
    pub(super) fn of(args: &ExportArgs) -> Self {
        // An archive only names owners.
        let may_give_away = geteuid().is_root() || args.tar;
        Self {
            owners: may_give_away && !args.no_owner,
            xattrs: !args.no_xattrs,
            devices: args.devices,
            owners_need_root: !may_give_away && !args.no_owner,
        }
    }
}
