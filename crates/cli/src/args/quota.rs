//! Arguments of the commands for quotas and quota groups.

use clap::{Args, Subcommand};

use super::VolumeArgs;
use super::read::{UnitArgs, VolumesArgs};

const QUOTA_HELP: &str = "\
Quotas count the bytes on disk that each subvolume refers to, and how many of them no other
subvolume refers to. Each commit writes numbers that are exact. While they are enabled, snapshots
and deletions of subvolumes cost time in proportion to what is shared.

Enabling, and a rescan, read all references of the volume, and no data.

VOLUME may be a directory of a volume that `butternut mount` serves: its process makes the change.
Only the owner of the mount and root reach it.";

const QGROUP_HELP: &str = "\
A quota group is named LEVEL/NUMBER. Each subvolume has the group 0/ID. A group of a higher level
includes the groups that were assigned to it: what they share counts once.

The numbers are those of the last commit, which is at most 30 seconds old on a mount; `filesystem
sync` makes one. A group shown as <stale> is that of a subvolume that is deleted; the next commit
removes it. Only the owner of a mount and root see the numbers of a mounted volume.

VOLUME may be a directory of a volume that `butternut mount` serves.";

const LIMIT_HELP: &str = "\
A write that would exceed a limit fails with EDQUOT, before it changes anything. Deletions succeed,
and what they free can be used at once; space of deleted subvolumes, when it is freed
(`subvolume sync`). A limit may be below what is in use already. A change of names or attributes
needs room for the blocks that it may add, also where it adds none: a new file, 64 KiB with blocks
of 16 KiB. The data of small files, which is in the metadata, counts when it is written.

A limit of a group of a higher level is one for all that it includes together. A snapshot gets the
limits of its source, and is in no group of a higher level until it is assigned to one.

  butternut qgroup limit 10G 0/256 VOLUME
  butternut qgroup limit -e 5G 1/100 VOLUME
  butternut qgroup limit none 0/256 VOLUME

VOLUME may be a directory of a volume that `butternut mount` serves.";

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Enable quotas
    #[command(after_help = QUOTA_HELP)]
    Enable(VolumeArgs),
    /// Disable quotas, and remove all quota groups
    #[command(after_help = QUOTA_HELP)]
    Disable(VolumeArgs),
    /// Compute the usage of all quota groups again
    #[command(after_help = QUOTA_HELP)]
    Rescan(VolumeArgs),
    /// Show whether quotas are enabled, and whether their numbers are exact
    #[command(after_help = QUOTA_HELP)]
    Status(VolumesArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum QgroupCommand {
    /// Show the usage of all quota groups
    #[command(after_help = QGROUP_HELP)]
    Show(QgroupShowArgs),
    /// Create a quota group
    #[command(after_help = QGROUP_HELP)]
    Create(QgroupArgs),
    /// Remove a quota group that includes no other one
    #[command(after_help = QGROUP_HELP)]
    Destroy(QgroupArgs),
    /// Make a quota group include another one
    #[command(after_help = QGROUP_HELP)]
    Assign(QgroupPairArgs),
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
    #[command(flatten)]
    pub(crate) units: UnitArgs,
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
    /// The quota group: LEVEL/NUMBER
    #[arg(value_name = "QGROUP")]
    pub(crate) group: String,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Limit the exclusive bytes, not the referenced ones
    #[arg(short = 'e')]
    pub(crate) exclusive: bool,
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
