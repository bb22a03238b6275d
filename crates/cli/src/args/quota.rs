//! Arguments of the commands for quotas and quota groups.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::VolumeArgs;
use super::read::{UnitArgs, VolumesArgs};

const QUOTA_HELP: &str = "\
Quotas count the bytes on disk that each subvolume refers to, and how many of them no other
subvolume refers to. Each commit writes numbers that are exact. While they are enabled, snapshots
and deletions of subvolumes cost time in proportion to what is shared.

Enabling, and a rescan, read all references of the volume, and no data.

Simple quotas (--simple) count an extent for the subvolume that has allocated it, until the extent
is freed, whatever refers to it then. Only what is allocated while they are enabled counts, so
enabling reads nothing. Snapshots, clones and deletions cost what they cost without quotas. The
volume gets the feature simple-quota, which Linux knows since 6.7, and keeps it when the quotas are
disabled.

VOLUME may be a directory of a volume that `butternut mount` serves: its process makes the change.
Only the owner of the mount and root reach it.";

const QGROUP_HELP: &str = "\
A quota group is named LEVEL/NUMBER. Each subvolume has the group 0/ID. A group of a higher level
includes the groups that were assigned to it: what they share counts once. With simple quotas, a new
subvolume or snapshot is in the groups that include the subvolume that it is made in, if no others
are named.

VOLUME may be a directory of a volume that `butternut mount` serves.";

const QGROUP_SHOW_HELP: &str = "\
A quota group is named LEVEL/NUMBER. Each subvolume has the group 0/ID. A group of a higher level
includes the groups that were assigned to it: what they share counts once.

The numbers are those of the last commit, which is at most 30 seconds old on a mount; --sync makes
one first. A group shown as <stale> is that of a subvolume that is deleted; the next commit removes
it. One shown as <squota space holder> is that of a deleted subvolume, too: it exists as long as
other subvolumes refer to what the subvolume has allocated. Only the owner of a mount and root see
the numbers of a mounted volume.

VOLUME may be a directory of a volume that `butternut mount` serves. -F and -f select the groups of
the subvolume that contains this directory; those of another subvolume of a volume that is not
mounted, with VOLUME@SUBVOL.

  butternut qgroup show -pcre --sort=-rfer disk.img
  butternut qgroup show -F disk.img@home
  butternut qgroup show -F --sync MOUNT/home";

const LIMIT_HELP: &str = "\
A write that would exceed a limit fails with EDQUOT, before it changes anything. Deletions succeed,
and what they free can be used at once; space of deleted subvolumes, when it is freed
(`subvolume sync`). A limit may be below what is in use already. A change of names or attributes
needs room for the blocks that it may add, also where it adds none: a new file, 64 KiB with blocks
of 16 KiB. The data of small files, which is in the metadata, counts when it is written.

Clones are not limited: `cp --reflink` shares data that is counted already, and may exceed a limit.

A limit of a group of a higher level is one for all that it includes together. A snapshot gets the
limits of its source, and is in no group of a higher level until it is assigned to one, or
`subvolume snapshot -i` has made it in one. With simple quotas it gets no limits, and is in the
groups of the subvolume that it is made in.

Without QGROUP, the limit is that of a subvolume: MOUNT/PATH of a mounted volume, or VOLUME@SUBVOL.

  butternut qgroup limit 10G 0/256 VOLUME
  butternut qgroup limit 10G MOUNT/PATH
  butternut qgroup limit -e 5G 1/100 VOLUME
  butternut qgroup limit none 0/256 VOLUME

VOLUME may be a directory of a volume that `butternut mount` serves.";

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Enable quotas
    #[command(after_help = QUOTA_HELP)]
    Enable(QuotaEnableArgs),
    /// Disable quotas, and remove all quota groups
    #[command(after_help = QUOTA_HELP)]
    Disable(VolumeArgs),
    /// Compute the usage of all quota groups again
    #[command(after_help = QUOTA_HELP)]
    Rescan(QuotaRescanArgs),
    /// Show whether quotas are enabled, their mode, and whether their numbers are exact
    #[command(after_help = QUOTA_HELP)]
    Status(VolumesArgs),
}

#[derive(Debug, Args)]
pub(crate) struct QuotaEnableArgs {
    /// Count extents for the subvolumes that allocate them: simple quotas
    #[arg(short = 's', long)]
    pub(crate) simple: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct QuotaRescanArgs {
    /// Wait until the numbers are computed (always done; accepted for compatibility)
    #[arg(short = 'w', long, hide = true)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QgroupCommand {
    /// Show the usage of quota groups
    #[command(after_help = QGROUP_SHOW_HELP)]
    Show(QgroupShowArgs),
    /// Create a quota group
    #[command(after_help = QGROUP_HELP)]
    Create(QgroupArgs),
    /// Remove a quota group that includes no other one
    #[command(after_help = QGROUP_HELP)]
    Destroy(QgroupArgs),
    /// Make a quota group include another one
    #[command(after_help = QGROUP_HELP)]
    Assign(QgroupAssignArgs),
    /// Set and remove the limits of a quota group
    #[command(after_help = LIMIT_HELP)]
    Limit(QgroupLimitArgs),
    /// Make a quota group no longer include another one
    #[command(after_help = QGROUP_HELP)]
    Remove(QgroupPairArgs),
}

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct QgroupShowArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Print the groups that include each group
    #[arg(short = 'p')]
    pub(crate) parents: bool,
    /// Print the groups that each group includes
    #[arg(short = 'c')]
    pub(crate) children: bool,
    /// Print the limits of the referenced bytes
    #[arg(short = 'r')]
    pub(crate) limit_referenced: bool,
    /// Print the limits of the exclusive bytes
    #[arg(short = 'e')]
    pub(crate) limit_exclusive: bool,
    /// Print only the group of the subvolume and all groups that include it
    #[arg(short = 'F', group = "of")]
    pub(crate) of_path: bool,
    /// Print only the group of the subvolume
    #[arg(short = 'f', group = "of")]
    pub(crate) of_path_only: bool,
    #[allow(clippy::doc_markdown, reason = "the help shows the names of the fields")]
    /// Sort by these fields: qgroupid, rfer, excl, max_rfer, max_excl, path; with - descending
    #[arg(long, value_name = "[+-]FIELD,...", value_parser = parse_sort)]
    #[arg(allow_hyphen_values = true, action = clap::ArgAction::Append)]
    pub(crate) sort: Vec<QgroupSorts>,
    /// Commit all changes of a mounted volume first
    #[arg(long)]
    pub(crate) sync: bool,
    #[command(flatten)]
    pub(crate) units: UnitArgs,
}

/// The fields of one `--sort`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QgroupSorts(pub(crate) Vec<QgroupSort>);

/// A field that quota groups are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QgroupSort {
    pub(crate) field: QgroupSortField,
    pub(crate) is_descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QgroupSortField {
    Qgroupid,
    Rfer,
    Excl,
    MaxRfer,
    MaxExcl,
    Path,
}

fn parse_sort(typed: &str) -> Result<QgroupSorts, String> {
    let parse = |word: &str| {
        let (is_descending, name) = match word.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let field = match name {
            "qgroupid" => QgroupSortField::Qgroupid,
            "rfer" => QgroupSortField::Rfer,
            "excl" => QgroupSortField::Excl,
            "max_rfer" => QgroupSortField::MaxRfer,
            "max_excl" => QgroupSortField::MaxExcl,
            "path" => QgroupSortField::Path,
            _ => return Err(format!("no field is named {name:?}")),
        };
        Ok(QgroupSort { field, is_descending })
    };
    // As in btrfs-progs, nothing between two commas is no error.
    let words = typed.split(',').filter(|word| !word.is_empty());
    words.map(parse).collect::<Result<_, _>>().map(QgroupSorts)
}

#[derive(Debug, Args)]
pub(crate) struct QgroupArgs {
    /// The quota group: LEVEL/NUMBER
    #[arg(value_name = "QGROUP")]
    pub(crate) group: String,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct QgroupLimitArgs {
    /// The largest number of bytes, with suffix K, M, G or T; none removes the limit
    pub(crate) size: String,
    /// The quota group, LEVEL/NUMBER, and the volume; the volume alone selects the group of its
    /// subvolume
    #[arg(required = true, num_args = 1..=2, value_name = "[QGROUP] VOLUME")]
    pub(crate) group_and_volume: Vec<OsString>,
    /// Limit what is stored, after compression (always so; accepted for compatibility)
    #[arg(short = 'c', hide = true)]
    pub(crate) compressed: bool,
    /// Limit the exclusive bytes, not the referenced ones
    #[arg(short = 'e')]
    pub(crate) exclusive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QgroupAssignArgs {
    /// Compute the numbers again (never needed: they are exact; accepted for compatibility)
    #[arg(long, hide = true)]
    pub(crate) rescan: bool,
    /// Do not compute the numbers again (accepted for compatibility)
    #[arg(long, hide = true)]
    pub(crate) no_rescan: bool,
    #[command(flatten)]
    pub(crate) pair: QgroupPairArgs,
}

#[derive(Debug, Args)]
pub(crate) struct QgroupPairArgs {
    /// The quota group that is included: LEVEL/NUMBER
    #[arg(value_name = "CHILD")]
    pub(crate) child: String,
    /// The quota group that includes it, of a higher level
    #[arg(value_name = "PARENT")]
    pub(crate) parent: String,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}
